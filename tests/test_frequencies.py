"""Spectra against Hugging Face's and against their definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, frequencies, positions
from joformer.frequencies import NTK, Linear, YaRN, geometric, per_axis, spectrum

transformers = pytest.importorskip("transformers")


def hugging_face(kind, head_dim, base, **parameters):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=parameters.get("original_max_position_embeddings", 2048),
        rope_parameters={"rope_type": kind, "rope_theta": base, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu")


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
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_module_is_public():
    assert frequencies.geometric is geometric
