"""docs/from-rope.md: the two sides of each diff, read from the page, compute the same with transport="scores".

The old side is beside the library it is of (transformers, rotary-embedding-torch; timm in timm_checks.py), the new one
also beside the formula written out, so that a sign flipped on both would show.
"""

import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

PAGE = (Path(__file__).parents[1] / "docs" / "from-rope.md").read_text()
TIGHT = {torch.float32: 2e-6, torch.float64: 1e-12}


def sections():
    """Title → text."""
    return dict(part.split("\n", 1) for part in re.split(r"^## ", PAGE, flags=re.M)[1:])


SECTIONS = sections()
DIFFS = {title: re.findall(r"```diff\n(.*?)```", text, re.DOTALL) for title, text in SECTIONS.items()}


def side(title, of):
    """The names that the old ("-") or the new ("+") code of a diff defines, after the page's own imports."""
    imports = PAGE.partition("```python\n")[2].partition("```")[0]
    (diff,) = DIFFS[title]
    lines = [line[1:] for line in diff.splitlines() if not line or line[0] in f" {of}"]
    return compile(imports + "\n".join(lines) + "\n", f"{title} {of}", "exec")


def both(title, **names):
    """Old and new, each in a namespace of its own."""
    spaces = []
    for of in "-+":
        spaces.append({"torch": torch, **names})
        exec(side(title, of), spaces[-1])
    return spaces


def agree(old, new, dtype, loose=1.0):
    assert old.dtype == new.dtype == dtype
    assert_close(new, old, atol=TIGHT[dtype] * loose, rtol=TIGHT[dtype] * loose)


def written(q, k, v, angles, values=False, causal=True):
    """Attention by relative rotations, written out: (batch, tokens, heads, head_dim), neighbours paired."""
    whole = torch.polar(torch.ones_like(angles), angles)
    journey = whole[None] * whole[:, None].conj()  # i, j: from j to i
    qc, kc, vc = (torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) for t in (q, k, v))
    scores = torch.einsum("bihp,ijp,bjhp->bhij", qc.conj(), journey.to(qc.dtype), kc).real / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(q.shape[1], q.shape[1]).triu(1).bool(), -torch.inf)
    carried = journey if values else torch.ones_like(journey)
    out = torch.einsum("bhij,ijp,bjhp->bihp", scores.softmax(-1).to(vc.dtype), carried.to(vc.dtype), vc)
    return torch.view_as_real(out).flatten(-2)


def rope_angles(tokens, head_dim, base=10000.0, start=0):
    omega = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.outer(torch.arange(start, start + tokens, dtype=torch.float64), omega)


def test_every_section_has_its_diff_and_its_values():
    about = [title for title in SECTIONS if title != "Is it worth it"]
    assert len(about) == 6
    for title in about:
        (diff,) = DIFFS[title]
        assert {line[:1] or " " for line in diff.splitlines()} == {" ", "+", "-"}
        for said in ("**Planes, base.**", "**Tensors.**", "**Values.**"):
            assert said in SECTIONS[title]
        after = diff + SECTIONS[title].partition("**Values.**")[2]
        assert 'transport="both"' in after
        assert re.search(r'transport="(scores|none)"', diff)


def test_every_block_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "from-rope.md", "exec"), names)
    assert torch.allclose(
        names["y"], names["attention"](names["x"], names["FixedFrames"](64)(names["positions"].sequence(16)))
    )


def test_nanogpt(dtype):
    """The attention without frames is the old one; the model is a GPT with RoPE written in place."""
    old, new = both("nanoGPT")
    before, after = (space["Attention"](32, 2).to(dtype) for space in (old, new))
    after.load_state_dict(before.state_dict())
    x = torch.randn(2, 9, 32, dtype=dtype)
    agree(before(x), after(x, new["NoFrames"]()(new["positions"].sequence(9))), dtype)

    gpt = new["GPT"](11, 32, 2, 2).to(dtype)
    tokens = torch.randint(11, (2, 9))
    x = gpt.wte(tokens)
    for block in gpt.blocks:
        q, k, v = (t.unflatten(-1, (2, 16)) for t in block.c_attn(x).chunk(3, -1))
        x = x + block.c_proj(written(q, k, v, rope_angles(9, 16)).flatten(2))
    agree(gpt.head(x), gpt(tokens), dtype)
    assert old["GPT"](11, 9, 32, 2, 2)(tokens).shape == (2, 9, 11)


@pytest.mark.parametrize("start", [0, 37])
def test_llama(dtype, start):
    """In float64 the old table, of float32, is what differs: then the new one is beside the formula."""
    old, new = both("Llama's `freqs_cis`")
    q, k, v = (torch.randn(2, 9, heads, 16, dtype=dtype) for heads in (4, 2, 2))
    found = new["attend"](q, k, v, start)
    agree(old["attend"](q, k, v, start), found, dtype, 1e6 if dtype == torch.float64 else 2)
    shared = (t.repeat_interleave(2, 2) for t in (k, v))
    agree(written(q, *shared, rope_angles(9, 16, 500000.0, start)), found, dtype)


def test_hugging_face(dtype):
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    old, new = both("Hugging Face's cos and sin")
    q, k, v = torch.randn(3, 2, 4, 9, 16, dtype=dtype)
    config = LlamaConfig(hidden_size=64, num_attention_heads=4)
    cos, sin = (t.to(dtype) for t in llama.LlamaRotaryEmbedding(config)(q.float(), torch.arange(9)[None]))
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *llama.apply_rotary_pos_emb(q, k, cos, sin), v, is_causal=True
    )
    agree(theirs, old["attend"](q, k, v, cos, sin), dtype)
    # Tables of float32 are no exact rotations: their length is off by its rounding.
    agree(theirs, new["attend"](q, k, v, cos, sin), dtype, 1e6 if dtype == torch.float64 else 1)
    if dtype == torch.float64:
        cos, sin = (f(rope_angles(9, 16).repeat(1, 2))[None] for f in (torch.cos, torch.sin))
        agree(old["attend"](q, k, v, cos, sin), new["attend"](q, k, v, cos, sin), dtype)


def test_rotary_embedding_torch(dtype):
    """Their table is of float32 whatever the queries."""
    old, new = both("rotary-embedding-torch")
    q, k, v = torch.randn(3, 2, 4, 9, 64, dtype=dtype)
    found = new["attend"](q, k, v)
    agree(old["attend"](q, k, v), found, dtype, 1e6 if dtype == torch.float64 else 1)
    angles = torch.cat((rope_angles(9, 32), torch.zeros(9, 16, dtype=torch.float64)), -1)
    agree(written(*(t.transpose(1, 2) for t in (q, k, v)), angles).transpose(1, 2), found, dtype)


def test_timm(dtype):
    """The new side beside the formula: rows, then columns, the class token at angle 0."""
    space = {"torch": torch}
    exec(side("timm", "+"), space)
    q, k, v = torch.randn(3, 2, 4, 16, 64, dtype=dtype)
    omega = 100.0 ** (-torch.arange(16, dtype=torch.float64) / 16)
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(5)).double()
    angles = torch.cat((torch.zeros(1, 32), (cells[:, :, None] * omega).flatten(1)))
    expected = written(*(t.transpose(1, 2) for t in (q, k, v)), angles, causal=False).transpose(1, 2)
    agree(expected, space["attend"](q, k, v, 3, 5), dtype)


def test_multihead_attention(dtype):
    old, new = both("`nn.MultiheadAttention`", trained=torch.nn.MultiheadAttention(256, 4).state_dict())
    for space in (old, new):
        space["attention"].to(dtype)
    old["attention"].load_state_dict({name: t.to(dtype) for name, t in old["trained"].items()})
    x, padding = torch.randn(2, 9, 256, dtype=dtype), torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    agree(old["attend"](x, padding), new["attend"](x, padding), dtype)


def test_the_oracle_tells_a_sign_and_values():
    q, k, v = torch.randn(3, 1, 9, 2, 16, dtype=torch.float64)
    angles = rope_angles(9, 16)
    from joformer import FixedFrames, journey_attention, positions

    frames = FixedFrames(16)(positions.sequence(9))
    agree(written(q, k, v, angles, values=True), journey_attention(q, k, v, frames, causal=True), torch.float64)
    assert not torch.allclose(written(q, k, v, -angles), written(q, k, v, angles), atol=1e-3)
    assert not torch.allclose(written(q, k, v, angles, values=True), written(q, k, v, angles), atol=1e-3)
