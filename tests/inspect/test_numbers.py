"""What inspect reads off a model, against slow and obvious references."""

import math

import pytest
import torch

from joformer import FixedFrames, inspect, positions, rotate
from joformer.inspect._attention import as_planes
from joformer.models import LMConfig, ViTConfig

SMALL = {"vocab": 11, "dim": 16, "layers": 2, "heads": 2}
TOKENS = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))


def shaken(model):
    """A model of large weights, frequencies among them."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=random))
    return model.eval()


def lm(**changes):
    return shaken(LMConfig(**{**SMALL, **changes}).build())


def vit(**changes):
    small = {"shape": (6, 8), "patch": (2, 2), "channels": 1, "classes": 3, "dim": 16, "layers": 2, "heads": 2}
    return shaken(ViTConfig(**{**small, **changes}).build())


@pytest.mark.parametrize("frames", ["fixed", "learned", "projected", "cumulative"])
def test_weights_are_those_of_the_layer(frames):
    """A layer whose output projection is the identity gives Σ α v, here with transport of scores alone."""
    model = lm(frames=frames, transport="scores", layers=1)
    attention, seen = model.blocks[0].attention, {}
    attention.register_forward_hook(lambda layer, args, out: seen.update(x=args[0], out=out))
    with torch.no_grad():
        attention.out.weight.copy_(torch.eye(16))
        (one,) = inspect.attended(model, TOKENS)
        v = attention._project(seen["x"], None, [None] * 3)[2]
        wanted = torch.einsum("bhqk,bkhd->bqhd", one.weights(), v).flatten(2)
    torch.testing.assert_close(seen["out"], wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(one.weights(), one.weights().tril())


@pytest.mark.parametrize("kind", ["lm", "vit", "combined", "mean"])
@torch.no_grad()
def test_kernels_are_scores_of_independent_pairs_put_apart(kind):
    """Every query with every key of the batch, both rotated to places Δ apart."""
    if kind == "lm":
        model, batch, grid = lm(frames="learned"), TOKENS, (12,)
    else:
        more = {"combined": {"split": "combined"}, "mean": {"pool": "mean"}}.get(kind, {})
        model, batch, grid = vit(frames="learned", **more), torch.rand(2, 1, 6, 8), (3, 4)
    found, layers = inspect.kernels(model, batch, reach=2), inspect.attended(model, batch)
    assert len(found) == len(layers) == 2
    frames_of = model.frames if isinstance(model.frames, torch.nn.ModuleList) else [model.frames] * 2
    for kernel, layer, module in zip(found, layers, frames_of):
        prefix = layer.q.shape[1] - math.prod(grid)
        q, k = (x[:, prefix:].double().flatten(0, 1) for x in (layer.q, layer.k))
        counts = [len(steps) for steps in kernel.displacements]
        assert counts == ([3] if kind == "lm" else [5, 5])
        for at in torch.cartesian_prod(*map(torch.arange, counts)).view(-1, len(counts)).tolist():
            by = torch.tensor([[steps[i].item() for steps, i in zip(kernel.displacements, at)]], dtype=torch.float64)
            here, there = module(torch.full_like(by, 5.0)), module(5 + by)
            rotated = [rotate(x[:, None], f)[:, 0] for x, f in ((q, here), (k, there))]
            wanted = layer.scale * torch.einsum("ahd,bhd->hab", *rotated).mean((1, 2))
            torch.testing.assert_close(kernel.values[(slice(None), *at)], wanted, rtol=1e-6, atol=1e-6)
        assert (kernel.values.flatten(1).max(1).values - kernel.values.flatten(1).min(1).values).min() > 1e-3


def test_causal_kernels_look_back_and_never_further_than_there_are_tokens():
    (kernel, _) = inspect.kernels(lm(), TOKENS)
    assert kernel.displacements[0].tolist() == list(range(-11, 1))
    assert not kernel.values.isnan().any()


@torch.no_grad()
def test_the_kernel_of_content_frames_is_that_of_their_mean_journey():
    model = lm(frames="cumulative")
    kernel, layer = inspect.kernels(model, TOKENS)[0], inspect.attended(model, TOKENS)[0]
    q, k = layer.q.double().mean((0, 1)), layer.k.double().mean((0, 1))
    theta, total = layer.frames.angles, []
    for row in range(3):
        for i in range(4, 12):
            by = (theta[row, i - 4] - theta[row, i]).double()
            z, w = torch.view_as_complex(q.view(2, 4, 2)), torch.view_as_complex(k.view(2, 4, 2))
            total.append((z.conj() * w * torch.polar(torch.ones_like(by), by)).real.sum(-1) * layer.scale)
    torch.testing.assert_close(kernel.values[:, -5], torch.stack(total).mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("at", ["front", "end"])
def test_planes_rotate_as_complex_numbers(layout, at):
    x = torch.randn(1, 3, 2, 10, dtype=torch.float64)
    frames = FixedFrames(10, planes=3, layout=layout, at=at)(positions.sequence(3))
    (before, rest), (after, still) = as_planes(x, frames), as_planes(rotate(x, frames), frames)
    torch.testing.assert_close(after, before * torch.exp(1j * frames.angles), rtol=1e-6, atol=1e-6)
    assert torch.equal(rest, still)
    assert rest.shape[-1] == 4


@pytest.mark.parametrize("frames", ["fixed", "learned", "projected", "cumulative"])
@torch.no_grad()
def test_a_journey_is_the_difference_of_frames(frames):
    model = lm(frames=frames)
    for one, layer in zip(inspect.journey(model, TOKENS[:1], 3, 9), inspect.attended(model, TOKENS[:1]), strict=True):
        torch.testing.assert_close(one.weights, layer.weights()[0, :, 9, 3])
        torch.testing.assert_close(one.row.sum(-1), torch.ones(2))
        theta = layer.frames.angles[0].double().expand(-1, 2, -1)
        away = one.angles - (theta[3] - theta[9])
        assert (torch.exp(1j * away) - 1).abs().max() < 1e-6
        assert one.angles.abs().max() <= math.pi
        assert (one.scores, one.strength) == (True, 1.0)
    if frames == "fixed":
        assert one.angles[0, 0].item() == pytest.approx(2 * math.pi - 6)  # wrap(3 − 9)


def test_frequencies_begin_at_their_start_and_move_with_training():
    for frames in ("fixed", "learned", "projected"):
        base = {"projected_base": "learned"}
        for one in inspect.frequencies(LMConfig(**SMALL, frames=frames, **base).build()):
            assert torch.equal(one.now, one.start)
            assert one.learned == (frames != "fixed")
            assert one.moved.abs().max() == 0
            torch.testing.assert_close(one.now[0, 0, 0], 10000.0 ** (-torch.arange(4).double() / 4), rtol=1e-6, atol=0)
    model = LMConfig(**SMALL, frames="learned").build()
    with torch.no_grad():
        model.frames[1].frequencies[0, 0, 1, 2] += 0.5
    first, second = inspect.frequencies(model)
    assert first.moved.abs().max() == 0
    assert second.moved.nonzero().tolist() == [[0, 0, 1, 2]]
    assert second.moved.max().item() == pytest.approx(0.5)
    assert len(inspect.frequencies(LMConfig(**SMALL, frames="fixed").build())) == 1, "shared by all layers"
    (one,) = inspect.frequencies(vit(frames="learned", per_layer=True))
    assert one.now.shape == (2, 2, 2, 2)
    assert inspect.frequencies(vit(frames="dense")) == []


@torch.no_grad()
def test_content_angles_are_what_is_added_to_positions():
    for frames in ("projected", "cumulative"):
        model = lm(frames=frames)
        found = inspect.angles(model, TOKENS)
        assert [one.layer for one in found] == [0, 1]
        base = FixedFrames(8)(positions.sequence(12)).angles
        for one in found:
            assert one.angles.shape == one.content.shape == (3, 12, 2, 4)
            assert (torch.exp(1j * (one.angles - base - one.content)) - 1).abs().max() < 1e-6
            assert one.content.abs().max() > 0.1
        if frames == "cumulative":
            assert found[0].content[:, 0].abs().max() < 1e-6, "nothing before the first token"
    image = inspect.angles(vit(frames="projected"), torch.rand(2, 1, 6, 8))[0]
    assert image.content.shape == (2, 13, 2, 4)
    assert image.content[:, 0].abs().max() == 0, "the class token stays at the identity"
    assert inspect.angles(lm(frames="learned"), TOKENS) == []


def test_nothing_is_left_behind():
    for model, batch in ((lm(frames="cumulative"), TOKENS), (vit(frames="projected"), torch.rand(2, 1, 6, 8))):
        before = model(batch)
        inspect.kernels(model, batch), inspect.angles(model, batch), inspect.journey(model, batch[:1], 1, 3)
        assert torch.equal(model(batch), before)
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_what_does_not_apply_is_left_out():
    assert inspect.kernels(vit(frames="dense"), torch.rand(1, 1, 6, 8)) == []
    assert inspect.kernels(lm(transport="values"), TOKENS) == []
    assert [one.layer for one in inspect.kernels(lm(pattern="NF"), TOKENS)] == [1]
    assert [one.layer for one in inspect.attended(lm(layers=4, pattern="FLAR"), TOKENS)] == [0]
    assert inspect.journey(vit(frames="dense"), torch.rand(1, 1, 6, 8), 2, 3)[0].angles is None


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: inspect.journey(lm(), TOKENS, 0, 1), "a journey is between two tokens of one sample, got 3"),
        (
            lambda: inspect.journey(lm(), TOKENS[:1], 0, 12),
            "target 12 is out of range: the sample has the tokens 0 … 11",
        ),
        (lambda: inspect.journey(lm(), TOKENS[:1], -1, 2), "source -1 is out of range"),
        (lambda: inspect.journey(lm(), TOKENS[:1], 5, 2), "nothing travels from token 5 back to 2"),
        (lambda: inspect.kernels(lm(), TOKENS, reach=0), "reach must be 1 or more, got 0"),
        (lambda: inspect.token_measure([1, 2, 3], context=5), "the text has 3 tokens: a context of 5 needs 6"),
    ],
)
def test_misuse(call, said):
    with pytest.raises(ValueError, match=said):
        call()
