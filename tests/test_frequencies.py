"""Spectra against Hugging Face's and against their definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, frequencies, journey_attention, positions
from joformer.frequencies import NTK, DynamicNTK, Linear, Llama3, LongRoPE, YaRN, geometric, mrope, per_axis, spectrum

transformers = pytest.importorskip("transformers")


def hugging_face(kind, head_dim, base, length=None, **parameters):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=parameters.get("original_max_position_embeddings", 2048),
        rope_parameters={"rope_type": kind, "rope_theta": base, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_scalings_match_hugging_face(head_dim, base):
    planes = head_dim // 2
    theirs, _ = hugging_face("linear", head_dim, base, factor=4.0)
    torch.testing.assert_close(spectrum(planes, base, Linear(4.0)).float(), theirs, rtol=1e-6, atol=0)
    theirs, factor = hugging_face("yarn", head_dim, base, factor=8.0, original_max_position_embeddings=4096)
    yarn = YaRN(8.0, 4096)
    torch.testing.assert_close(spectrum(planes, base, yarn).float(), theirs, rtol=1e-5, atol=1e-9)
    assert yarn.score_scale(head_dim) == pytest.approx(factor**2 / math.sqrt(head_dim), rel=1e-6)
    factors = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs, _ = hugging_face("llama3", head_dim, base, factor=8.0, original_max_position_embeddings=8192, **factors)
    torch.testing.assert_close(spectrum(planes, base, Llama3(8.0, 8192)).float(), theirs, rtol=1e-5, atol=0)


@pytest.mark.parametrize("length", [100, 2048, 2049, 10000])
def test_scalings_by_length_match_hugging_face(length):
    head_dim, base = 32, 10000.0
    theirs, _ = hugging_face("dynamic", head_dim, base, length, factor=3.0)
    ours = spectrum(16, base, DynamicNTK(3.0, original_length=2048, length=length))
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=0)
    short, long = tuple(1 + 0.1 * b for b in range(16)), tuple(1.0 + b for b in range(16))
    parameters = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 2048}
    theirs, factor = hugging_face("longrope", head_dim, base, length, factor=16.0, **parameters)
    scaling = LongRoPE(16.0, 2048, short, long, length=length)
    torch.testing.assert_close(spectrum(16, base, scaling).float(), theirs, rtol=1e-6, atol=0)
    assert scaling.score_scale(head_dim) == pytest.approx(factor**2 / math.sqrt(head_dim), rel=1e-6)


def test_llama3_is_kept_divided_or_blended_by_revolutions():
    """Plane by plane in float64, as Llama 3.1 states it by wavelengths."""
    length, factor, slow, fast = 512, 8.0, 1.0, 4.0
    for own, got in zip(geometric(16).tolist(), spectrum(16, scaling=Llama3(factor, length)).tolist(), strict=True):
        wave = 2 * math.pi / own
        if wave < length / fast:
            expected = own
        elif wave > length / slow:
            expected = own / factor
        else:
            smooth = (length / wave - slow) / (fast - slow)
            expected = (1 - smooth) * own / factor + smooth * own
        assert got == pytest.approx(expected, rel=1e-14)


def test_a_factor_on_cos_and_sin_is_its_square_on_the_scores():
    """Elsewhere the attention factor stretches queries and keys; here it is the scale, and values stay as long."""
    yarn, where = YaRN(8.0, 512), positions.sequence(6)
    q, k, v = torch.randn(3, 1, 6, 2, 16, dtype=torch.float64).unbind()
    frames, stretch = FixedFrames(16, scaling=yarn)(where), 0.1 * math.log(8.0) + 1
    ours = journey_attention(q, k, v, frames, scale=yarn.score_scale(16))
    torch.testing.assert_close(ours, journey_attention(stretch * q, stretch * k, v, frames))


def qwen(version, sections, head_dim, base):
    """The rotary embedding of Qwen2-VL or of Qwen3-VL."""
    rope = {"rope_type": "default", "rope_theta": base, "mrope_section": list(sections)}
    more = {"hidden_size": head_dim, "num_attention_heads": 1, "rope_parameters": rope}
    if version == 2:
        from transformers.models.qwen2_vl import configuration_qwen2_vl, modeling_qwen2_vl

        return modeling_qwen2_vl.Qwen2VLRotaryEmbedding(configuration_qwen2_vl.Qwen2VLTextConfig(**more))
    from transformers.models.qwen3_vl import configuration_qwen3_vl, modeling_qwen3_vl

    config = configuration_qwen3_vl.Qwen3VLTextConfig(**more, head_dim=head_dim)
    return modeling_qwen3_vl.Qwen3VLTextRotaryEmbedding(config)


@pytest.mark.parametrize(
    ("version", "sections", "base"),
    [(2, (16, 24, 24), 1e6), (2, (1, 1, 2), 100.0), (3, (24, 20, 20), 5e6), (3, (3, 2, 1), 100.0)],
)
def test_mrope_is_that_of_qwen(version, sections, base):
    planes = sum(sections)
    where = positions.mrope(5, (1, 3, 4), 3, (2, 2, 2), 2)
    rotary = qwen(version, sections, 2 * planes, base)
    cos, sin = rotary(torch.zeros(1, 1, 1), where.T[:, None].long())
    if cos.dim() > 3:
        pytest.skip("this transformers composes the tables in attention")
    table = mrope(sections, base, interleaved=version == 3)
    angles = FixedFrames(2 * planes, axes=3, layout="half", frequencies=table)(where).angles[:, :, 0]
    for ours, theirs in ((angles.cos(), cos), (angles.sin(), sin)):
        torch.testing.assert_close(torch.cat((ours, ours), -1).float(), theirs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_mrope_on_text_is_rope(interleaved):
    table = mrope((4, 3, 1), 10000.0, interleaved=interleaved, scaling=Linear(2.0))
    assert torch.equal(table.sum(0), spectrum(8, scaling=Linear(2.0)))
    assert ((table > 0).sum(0) == 1).all()
    assert (table > 0).sum(1).tolist() == [4, 3, 1]
    got = FixedFrames(16, axes=3, frequencies=table)(positions.mrope(9)).angles
    torch.testing.assert_close(got, FixedFrames(16, scaling=Linear(2.0))(positions.sequence(9)).angles)


@given(st.integers(2, 40), st.floats(10.0, 1e6), st.floats(1.0, 32.0))
@settings(max_examples=60)
def test_ntk_is_a_larger_base(planes, base, factor):
    larger = base * factor ** (planes / (planes - 1))
    torch.testing.assert_close(spectrum(planes, base, NTK(factor)), geometric(planes, larger), rtol=1e-10, atol=0)


def test_linear_scaling_is_slower_positions():
    scaled = FixedFrames(16, scaling=Linear(4.0))(positions.sequence(9)).angles
    slow = FixedFrames(16)(positions.sequence(9) / 4).angles
    torch.testing.assert_close(scaled, slow, rtol=0, atol=1e-12)


def test_a_literal_table_is_used_as_it_is():
    table = [0.5, 0.25, 3.0]
    angles = FixedFrames(6, frequencies=[table])(positions.sequence(2)).angles
    torch.testing.assert_close(angles[0, 1, 0], torch.tensor(table, dtype=torch.float64))


@pytest.mark.parametrize(("axes", "planes"), [(2, 8), (2, 16), (3, 8), (4, 16)])
def test_combined_leaves_no_small_displacement_invisible_and_diagonal_does(axes, planes):
    steps = torch.cartesian_prod(*[torch.arange(-2.0, 3.0, dtype=torch.float64)] * axes)
    steps = steps[steps.abs().sum(-1) > 0]

    def least_visible(split):
        turned = steps @ per_axis(planes, axes, split, 100.0)
        away = (turned - 2 * math.pi * (turned / (2 * math.pi)).round()).abs()
        return away.max(-1).values.min().item()

    assert least_visible("combined") > 1e-2
    assert least_visible("diagonal") < 1e-12


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: geometric(-1), "0 or more"),
        (lambda: geometric(4, 0.0), "positive"),
        (lambda: geometric(4, math.inf), "positive"),
        (lambda: Linear(0.5), "1 or more"),
        (lambda: NTK(math.nan), "1 or more"),
        (lambda: YaRN(2.0, 0), "original_length"),
        (lambda: YaRN(2.0, 10, fast=1.0, slow=2.0), "fast > slow"),
        (lambda: spectrum(2, [1.0, 2.0]), "positive number"),
        (lambda: DynamicNTK(2.0, 10, 0), "length ≥ 1"),
        (lambda: Llama3(2.0, 10, fast=1.0, slow=1.0), "fast > slow"),
        (lambda: LongRoPE(2.0, 1, (1.0,), (1.0,)), "original_length ≥ 2"),
        (lambda: LongRoPE(2.0, 10, (1.0,), (1.0, 2.0)), "as many planes"),
        (lambda: LongRoPE(2.0, 10, (1.0,), (0.0,)), "positive factors"),
        (lambda: spectrum(3, scaling=LongRoPE(2.0, 10, (1.0,), (1.0,))), "1 planes, not for 3"),
        (lambda: mrope(()), "number of planes of each axis"),
        (lambda: mrope((2, -1)), "number of planes of each axis"),
        (lambda: mrope((1, 3, 3), interleaved=True), "cannot alternate"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_module_is_public():
    assert frequencies.geometric is geometric
