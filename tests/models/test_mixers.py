"""Layers that are not journey attention: each against its formula, token by token, and decoded as it is trained."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, NoFrames, positions, rotate
from joformer.models import JoFormerLM, LMConfig, initialise, load, save
from joformer.models._lm import LETTERS
from joformer.models._mixers import BiasedAttention, ClippedAttention, LinearAttention, Recurrence, alibi_slopes

DTYPES = {torch.float32: 2e-5, torch.float64: 1e-12}
NEW = "LRSAC"
SMALL = LMConfig(vocab=17, dim=32, layers=2, heads=4)


def split(layer, x, heads):
    return layer.qkv(x).unflatten(-1, (3, heads, -1)).unbind(2)


def nowhere(x):
    return NoFrames()(positions.sequence(x.shape[1]), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transport", ["none", "scores", "values", "both"])
@pytest.mark.parametrize("tokens", [1, 63, 64, 130])
def test_linear_attention_is_its_formula(tokens, transport, dtype):
    torch.manual_seed(tokens)
    layer, x = LinearAttention(16, 2, transport=transport).to(dtype), torch.randn(2, tokens, 16, dtype=dtype)
    frames = FixedFrames(8)(positions.sequence(tokens, offset=3))
    q, k, v = split(layer, x, 2)
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    below = torch.einsum("bihd,bjhd->bijh", q, k).mul(torch.ones(tokens, tokens).tril()[..., None]).sum(2)
    if transport in ("scores", "both"):
        q, k = rotate(q, frames), rotate(k, frames)
    if transport in ("values", "both"):
        v = rotate(v, frames)
    weights = torch.einsum("bihd,bjhd->bijh", q, k) * torch.ones(tokens, tokens).tril()[..., None]
    mixed = torch.einsum("bijh,bjhd->bihd", weights, v) / below.unsqueeze(-1)
    if transport in ("values", "both"):
        mixed = rotate(mixed, frames, inverse=True)
    wanted = layer.out(mixed.flatten(2))
    assert (layer(x, frames) - wanted).abs().max() <= DTYPES[dtype] * (1 + wanted.abs().max())


@given(offset=st.integers(-(10**6), 10**6), transport=st.sampled_from(["scores", "values", "both"]))
@settings(max_examples=10, deadline=None)
def test_linear_attention_sees_displacements_alone(offset, transport):
    torch.manual_seed(0)
    layer, x = LinearAttention(16, 2, transport=transport).double(), torch.randn(1, 70, 16, dtype=torch.float64)
    here, there = (layer(x, FixedFrames(8)(positions.sequence(70, offset=by))) for by in (0, offset))
    still = layer(x, FixedFrames(8)(2.0 * positions.sequence(70)))
    assert (here - there).abs().max() < 1e-5 < (here - still).abs().max()


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_slopes_are_those_of_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert torch.allclose(alibi_slopes(heads), theirs, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alibi_is_its_formula(dtype):
    torch.manual_seed(0)
    layer, x = BiasedAttention(32, 4).to(dtype), torch.randn(2, 9, 32, dtype=dtype)
    q, k, v = split(layer, x, 4)
    wanted = torch.empty_like(v)
    for i in range(9):
        for h, slope in enumerate(alibi_slopes(4).tolist()):
            scores = torch.stack(
                [(q[:, i, h] * k[:, j, h]).sum(-1) / 8**0.5 - slope * (i - j) for j in range(i + 1)], 1
            )
            wanted[:, i, h] = (scores.softmax(1).unsqueeze(-1) * v[:, : i + 1, h]).sum(1)
    wanted = layer.out(wanted.flatten(2))
    assert (layer(x, nowhere(x)) - wanted).abs().max() <= DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("clip", [1, 3, 20])
def test_clipped_distances_are_their_formula(clip, dtype):
    torch.manual_seed(clip)
    layer, x = ClippedAttention(32, 4, clip=clip).to(dtype), torch.randn(2, 9, 32, dtype=dtype)
    for at in (layer.key_at, layer.value_at):
        torch.nn.init.normal_(at)
    q, k, v = split(layer, x, 4)
    wanted = torch.empty_like(v)
    for i in range(9):
        keys = torch.stack([k[:, j] + layer.key_at[min(i - j, clip)] for j in range(i + 1)], 1)
        values = torch.stack([v[:, j] + layer.value_at[min(i - j, clip)] for j in range(i + 1)], 1)
        weights = ((q[:, i, None] * keys).sum(-1) / math.sqrt(8)).softmax(1)
        wanted[:, i] = (weights.unsqueeze(-1) * values).sum(1)
    wanted = layer.out(wanted.flatten(2))
    assert (layer(x, nowhere(x)) - wanted).abs().max() <= 10 * DTYPES[dtype]


@pytest.mark.parametrize("content", [True, False])
def test_a_recurrence_takes_step_after_step(content):
    torch.manual_seed(0)
    layer, x = Recurrence(16, 2, content=content).double(), torch.randn(2, 40, 16, dtype=torch.float64)
    state, steps = None, []
    for t in range(40):
        y, state = layer.ssm.step(x[:, t], state)
        steps.append(y)
    assert (layer(x, nowhere(x)) - torch.stack(steps, 1)).abs().max() < 1e-12


@pytest.mark.parametrize("frames", ["fixed", "cumulative"])
@pytest.mark.parametrize("pattern", [*NEW, "LSF", "WAC"])
def test_a_model_decodes_what_it_computes(pattern, frames, tmp_path):
    config = dataclasses.replace(SMALL, pattern=pattern, layers=len(pattern) + 1, frames=frames, window=3)
    model = initialise(JoFormerLM(config), 1).double().eval()
    for name, weight in model.named_parameters():
        if "w2" in name or name.endswith("_at"):
            torch.nn.init.normal_(weight)
    tokens = torch.randint(17, (2, 75))
    with torch.no_grad():
        whole, caches = model(tokens), model.caches()
        parts = [model(part, caches=caches) for part in tokens.split([66, 1, 1, 7], 1)]
        assert (torch.cat(parts, 1) - whole).abs().max() < 1e-10
        # Causal: what comes later changes nothing.
        assert torch.allclose(model(tokens[:, :40]), whole[:, :40], atol=1e-12)
        for cache in caches:
            cache.reorder([1, 1])
        swapped = model(tokens[1:, :1].expand(2, 1), caches=caches)
        assert torch.equal(swapped[0], swapped[1])
    save(model.float(), tmp_path)
    assert torch.equal(
        load(tmp_path).eval().generate(tokens, 3, temperature=0), model.generate(tokens, 3, temperature=0)
    )


@pytest.mark.parametrize("letter", NEW)
def test_in_half_precision_and_with_gradients(letter):
    model, tokens = initialise(JoFormerLM(dataclasses.replace(SMALL, pattern=letter)), 1), torch.randint(17, (2, 9))
    for name, weight in model.named_parameters():
        if "w2" in name:  # which start at zero, and hide what is before them
            torch.nn.init.normal_(weight, std=0.02)
    losses = []
    for mixed in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses.append(model(tokens[:, :-1], targets=tokens[:, 1:]))
    assert abs(losses[0] - losses[1]) < 0.05
    losses[1].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.blocks.parameters())


@pytest.mark.parametrize("letter", "AC")
def test_packed_sequences_are_read_alone(letter):
    model = initialise(JoFormerLM(dataclasses.replace(SMALL, pattern=letter)), 1).double()
    tokens = torch.randint(17, (1, 30))
    packed = model(tokens, segments=positions.segments([11, 19]))
    alone = torch.cat([model(part) for part in tokens.split([11, 19], 1)], 1)
    assert (packed - alone).abs().max() < 1e-12


@pytest.mark.refused
@pytest.mark.parametrize("letter", "LRS")
def test_sums_over_all_tokens_cannot_be_packed(letter):
    model = JoFormerLM(dataclasses.replace(SMALL, pattern=letter))
    with pytest.raises(ValueError, match=r"cannot keep packed sequences apart: give one per row, or use F, W, N, A, C"):
        model(torch.randint(17, (1, 30)), segments=positions.segments([11, 19]))


@pytest.mark.refused
def test_letters_that_are_none():
    with pytest.raises(ValueError, match=r"'FX' must be made of the letters F \(full\), .*C \(clipped distances\)"):
        LMConfig(pattern="FX")
    from joformer.integrations.hf.models import JoFormerConfig

    with pytest.raises(ValueError, match=r"caches and masks are for F, W and N, not for S; use JoFormerLM itself"):
        JoFormerConfig(pattern="FS")


@pytest.mark.refused
def test_a_failed_call_leaves_a_state_as_it_was():
    model, tokens = JoFormerLM(dataclasses.replace(SMALL, pattern="SF", layers=2)).eval(), torch.randint(17, (2, 6))
    with torch.no_grad():
        caches = model.caches()
        model(tokens, caches=caches)
        (state,) = caches[0].state
        model.blocks[1].register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model(tokens, caches=caches)
    assert caches[0].state[0] is state
    assert caches[0].tokens == 6


@pytest.mark.parametrize("letter", sorted(LETTERS))
def test_a_model_made_on_meta_is_the_model(letter):
    """Numbers that no state dict holds must not be what lay in memory."""
    config = LMConfig(vocab=20, dim=12, layers=1, heads=3, pattern=letter, window=4 if letter == "W" else None)
    torch.manual_seed(0)
    model, tokens = initialise(JoFormerLM(config), seed=3).eval(), torch.randint(20, (2, 9))
    with torch.device("meta"):
        empty = [JoFormerLM(config) for _ in range(2)]
    for one in empty:
        for held in (*one.to_empty(device="cpu").parameters(), *one.buffers()):
            held.data.fill_(torch.nan)
    empty[0] = initialise(empty[0], seed=3)
    empty[1].load_state_dict(model.state_dict())
    for one in empty:
        assert torch.equal(one.eval()(tokens), model(tokens))
