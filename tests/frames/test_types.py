"""Frames made by hand: from tables of cosines and sines, from matrices; and what they show of themselves."""

import re

import pytest
import torch

from joformer import CurvedFrames, FixedFrames, FlatFrames, positions, rotate
from joformer.frequencies import NTK, per_axis


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("shape", [(5, 4), (3, 5, 4), (3, 5, 2, 4)])
def test_tables_rotate_as_the_angles_they_were_made_of(layout, shape, dtype):
    angles = torch.randn(shape, dtype=torch.float64)
    whole = {2: lambda a: a[None, :, None], 3: lambda a: a[:, :, None], 4: lambda a: a}[len(shape)](angles)
    x = torch.randn(whole.shape[0], 5, 2, 8, dtype=dtype)
    found = FlatFrames.from_cos_sin(angles.cos().to(dtype), angles.sin().to(dtype), layout=layout)
    expected = rotate(x, FlatFrames.of(whole, layout=layout))
    assert torch.allclose(rotate(x, found), expected, atol=1e-6 if dtype == torch.float32 else 1e-14)
    assert not torch.allclose(rotate(x, found), rotate(x, FlatFrames.of(-whole, layout=layout)), atol=1e-3)


def test_hugging_face_s_tables_are_one_cut_away():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=1)
    q, k = torch.randn(2, 1, 2, 6, 16)  # (batch, heads, tokens, head_dim)
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(6)[None])
    frames = FlatFrames.from_cos_sin(cos[..., :8], sin[..., :8])
    for ours, theirs in zip((rotate(t, frames, format="bhtd") for t in (q, k)), apply_rotary_pos_emb(q, k, cos, sin)):
        assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.refused
def test_tables_that_are_no_rotations_raise():
    angles = torch.randn(5, 4)
    with pytest.raises(ValueError, match="scaled"):
        FlatFrames.from_cos_sin(1.1 * angles.cos(), 1.1 * angles.sin())
    with pytest.raises(ValueError, match="float32 or float64"):
        FlatFrames.from_cos_sin(angles.cos().bfloat16(), angles.sin().bfloat16())
    with pytest.raises(ValueError, match="must be \\(tokens, planes\\)"):
        FlatFrames.from_cos_sin(angles.cos(), angles[:4].sin())
    with pytest.raises(ValueError, match="layout"):
        FlatFrames.from_cos_sin(angles.cos(), angles.sin(), layout="quarter")


@pytest.mark.refused
def test_matrices_that_are_not_orthogonal_raise():
    camera = torch.eye(4).expand(1, 9, 1, 1, 4, 4).clone()
    camera[..., 0, 3] = 2.0
    with pytest.raises(ValueError, match="orthogonal"):
        CurvedFrames(camera)
    turned = torch.linalg.qr(camera).Q
    assert CurvedFrames(turned).tokens == 9
    with pytest.raises(ValueError, match="orthogonal"):
        CurvedFrames(turned).shift(2 * torch.eye(4))


def test_frames_show_themselves_in_a_line():
    frames = FixedFrames(64)(positions.sequence(16))
    assert repr(frames) == "FlatFrames(batch=1, tokens=16, heads=1, planes=32, layout='interleaved')"
    assert "\n" not in repr(CurvedFrames(torch.eye(8).expand(1, 5, 1, 1, 8, 8)))


def test_a_table_of_frequencies_says_what_axial_and_combined_splits_say(dtype):
    where, x = positions.grid(3, 4, prefix=1), torch.randn(2, 13, 2, 16, dtype=dtype)
    axial = torch.block_diag(*per_axis(8, 2, "axial", 100.0).split(1))  # (axes, planes), zero where an axis has no part
    combined = per_axis(8, 2, "combined", 100.0)
    for table, split in ((axial, "axial"), (combined, "combined")):
        ours = FixedFrames(16, axes=2, frequencies=table)(where)
        assert torch.equal(rotate(x, ours), rotate(x, FixedFrames(16, axes=2, base=100.0, split=split)(where)))


def test_each_head_may_have_a_table_of_its_own():
    """M-RoPE's sections for one head, uneven splits for another: θ_hp = Σ_k ω_hkp n_k, written out."""
    where = torch.tensor([[2.0, 3.0, 5.0], [0.5, -1.0, 4.0]])
    table = torch.randn(2, 3, 4, dtype=torch.float64)
    angles = FixedFrames(10, axes=3, frequencies=table)(where).angles
    assert angles.shape == (1, 2, 2, 4)  # the fifth plane is not rotated
    for token in range(2):
        for head in range(2):
            for plane in range(4):
                expected = sum(table[head, axis, plane] * where[token, axis] for axis in range(3))
                assert torch.allclose(angles[0, token, head, plane], expected.double())


@pytest.mark.refused
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FixedFrames(8, axes=2, frequencies=torch.ones(3, 4)), "axes=2"),
        (lambda: FixedFrames(8, axes=2, frequencies=torch.ones(2, 5)), "at most 4 planes"),
        (lambda: FixedFrames(8, frequencies=[1.0, 2.0]), "(axes, planes)"),
        (lambda: FixedFrames(8, frequencies=[[1.0, 2.0]], planes=3), "2 planes, not 3"),
        (lambda: FixedFrames(8, frequencies=[[1.0, torch.inf]]), "finite"),
        (lambda: FixedFrames(8, frequencies=[[1.0, 2.0]], scaling=NTK(2.0)), "need a base"),
    ],
)
def test_a_table_that_does_not_fit_raises(make, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        make()
