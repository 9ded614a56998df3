"""How models start: by seed and name alone, like their constructors, and grown from others without loss."""

import dataclasses

import pytest
import torch
from torch import nn

from joformer.models import (
    VARIANTS,
    ClassifierConfig,
    JoFormerLM,
    JoFormerPairs,
    JoFormerPoints,
    JoFormerSpotter,
    JoFormerViT,
    JourneySSM,
    LMConfig,
    MonoidalClassifier,
    PairsConfig,
    PointsConfig,
    RotatE,
    SpottingConfig,
    ViTConfig,
    adapt,
    initialise,
)

LM = LMConfig(vocab=17, dim=32, layers=3, heads=2)
VIT = {"shape": (8, 12), "patch": (4, 4), "channels": 2, "classes": 5, "dim": 32, "layers": 2, "heads": 2}


def lm(**changes):
    return JoFormerLM(dataclasses.replace(LM, **changes))


def vit(**changes):
    return JoFormerViT(ViTConfig(**(VIT | changes)))


KINDS = {
    "lm": lm,
    "lm untied": lambda: lm(tied=False),
    "lm projected": lambda: lm(frames="projected"),
    "lm projected without base": lambda: lm(frames="projected", projected_base="none"),
    "lm of all frames": lambda: lm(layers=4, frames=("fixed", "learned", "projected", "cumulative")),
    "classifier": lambda: MonoidalClassifier(ClassifierConfig(dim=8, shape=(5, 6))),
    "ssm": lambda: JourneySSM(16, heads=2),
    "relations": lambda: RotatE(5, 2, 8),
    "points": lambda: JoFormerPoints(PointsConfig(dim=16, heads=2, features=1)),
    "pairs": lambda: JoFormerPairs(PairsConfig(vocab=9, dim=16, layers=1, heads=2, frames="learned")),
    "spotter": lambda: JoFormerSpotter(SpottingConfig(bands=8, patch=(4, 2), dim=16, heads=2, frames="cumulative")),
} | {f"vit {name}": (lambda name=name: vit(model=name)) for name in VARIANTS}


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_a_function_of_the_seed(kind):
    first = values(initialise(KINDS[kind](), 3))
    torch.manual_seed(99)
    model = KINDS[kind]()
    before = torch.get_rng_state()
    assert initialise(model, 3) is model
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], value) for name, value in values(model).items())
    other = values(initialise(model, 4))
    assert any(not torch.equal(first[name], value) for name, value in other.items())


def test_every_module_draws_its_own():
    model = initialise(lm(), 0)
    assert not torch.equal(model.blocks[0].up.weight, model.blocks[1].up.weight)
    assert not torch.equal(model.blocks[0].up.weight.flatten()[:64], model.blocks[0].down.weight.flatten()[:64])


def same_where_shared(one, other):
    a, b = values(one), values(other)
    shared = [name for name in a.keys() & b.keys() if a[name].shape == b[name].shape]
    assert all(torch.equal(a[name], b[name]) for name in shared)
    return a.keys() - set(shared), b.keys() - set(shared)


@pytest.mark.parametrize("frames", ["learned", "projected", "cumulative", ("fixed", "projected")])
def test_language_models_share_what_they_have_in_common(frames):
    only, more = same_where_shared(initialise(lm(), 5), initialise(lm(frames=frames), 5))
    assert not only
    assert more
    assert all(name.startswith("frames.") for name in more)


def test_other_depths_heads_and_patterns_share_too():
    plain = initialise(lm(), 5)
    only, more = same_where_shared(plain, initialise(lm(layers=5, pattern="WN", window=3, transport="none"), 5))
    assert not only
    assert {name.split(".")[1] for name in more} == {"3", "4"}
    untied = initialise(lm(tied=False, dropout=0.1), 5)
    assert torch.equal(untied.embed.weight, plain.embed.weight)
    assert torch.equal(untied.blocks[1].up.weight, plain.blocks[1].up.weight)


@pytest.mark.parametrize("name", VARIANTS)
def test_vision_models_share_what_they_have_in_common(name):
    only, more = same_where_shared(initialise(vit(model="rope2d"), 5), initialise(vit(model=name), 5))
    assert not only
    assert all(key.startswith(("frames", "places")) for key in more)


def test_recurrences_share_what_they_have_in_common():
    only, more = same_where_shared(
        initialise(JourneySSM(16, heads=2, content=False), 5), initialise(JourneySSM(16, heads=2), 5)
    )
    assert not only
    assert all("projector" in key for key in more)


@pytest.mark.parametrize("kind", KINDS)
def test_the_start_is_that_of_the_constructor(kind):
    """Parameter by parameter: constants stay constants, and what is drawn has the same mean, width and tails."""
    torch.manual_seed(1)
    built = [values(KINDS[kind]()) for _ in range(8)]
    drawn = [values(initialise(KINDS[kind](), seed)) for seed in range(8)]
    for name in built[0]:
        a, b = (torch.stack([start[name] for start in starts]).double() for starts in (built, drawn))
        if not a.var(0).any():
            assert torch.equal(a, b), name
            continue
        # The standard errors of a mean and of a spread, times 5.
        count = a.numel()
        assert (a.mean() - b.mean()).abs() < 5 * a.std() * (2 / count) ** 0.5, name
        assert (a.std() / b.std() - 1).abs() < 5 / count**0.5, name
        tails = [((t - t.mean()) / t.std()).pow(4).mean() for t in (a, b)]  # 1.8 where uniform, 3 where normal
        assert abs(tails[0] - tails[1]) < 5 * (48 / count) ** 0.5, name


def test_tied_weights_stay_tied_and_projectors_zero():
    model = initialise(lm(frames="projected"), 2)
    assert model.head.weight is model.embed.weight
    assert 0.015 < model.embed.weight.std() < 0.025
    assert not any(frames.projector.w2.weight.any() for frames in model.frames)
    assert all(frames.projector.w1.weight.any() for frames in model.frames)
    assert initialise(lm(frames="projected", projected_base="none"), 2).frames[0].projector.w2.weight.any()


def test_a_model_can_be_drawn_again_by_hand():
    model = lm()
    before = model.embed.weight.clone()
    model.reset_parameters()
    assert not torch.equal(model.embed.weight, before)
    assert 0.015 < model.embed.weight.std() < 0.025


@pytest.mark.parametrize("frames", ["learned", "projected", "cumulative", ("projected", "fixed", "learned")])
def test_a_grown_model_computes_what_it_did(frames, dtype):
    model = lm().to(dtype).eval()
    tokens = torch.randint(17, (2, 9))
    state = torch.get_rng_state()
    grown = adapt(model, frames=frames)
    assert torch.equal(torch.get_rng_state(), state)
    assert grown.config == dataclasses.replace(LM, frames=frames)
    assert not grown.training
    # Angles from content are fp32 by nature, which is all that differs.
    assert (grown(tokens) - model(tokens)).abs().max() < 2e-6
    more = [p for name, p in grown.named_parameters() if name not in dict(model.named_parameters())]
    assert more
    grown(tokens, targets=tokens).backward()
    assert all(p.grad is not None for p in grown.parameters())
    assert any(p.grad.any() for p in more)
    assert all(p.grad is None for p in model.parameters())  # the old one is left alone


def test_growing_keeps_weights_apart_and_in_their_precision():
    model = lm().bfloat16()
    grown = adapt(model, frames="projected", seed=4)
    assert grown.embed.weight.dtype == torch.bfloat16
    assert grown.frames[0].projector.w1.weight.dtype == torch.float32
    fresh = initialise(lm(frames="projected"), 4)
    assert torch.equal(grown.frames[1].projector.w1.weight, fresh.frames[1].projector.w1.weight)
    with torch.no_grad():
        grown.embed.weight.zero_()
    assert model.embed.weight.any()
    untied = adapt(model, tied=False)
    assert untied.head.weight is not untied.embed.weight
    assert torch.equal(untied.head.weight, model.embed.weight)


def test_growing_other_models():
    model, x = vit(model="rope2d").eval(), torch.randn(2, 2, 8, 12)
    assert torch.allclose(adapt(model, frames="learned")(x), model(x), atol=1e-6)
    assert adapt(model, shape=(16, 24))(torch.randn(1, 2, 16, 24)).shape == (1, 5)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: adapt(lm(frames="projected"), frames="fixed"), "frames='fixed' would lose frames.0.projector"),
        (lambda: adapt(lm(), vocab=18), r"vocab=18 would lose embed.weight \(17, 32\)"),
        (lambda: adapt(lm(), layers=2), "would lose blocks.2"),
        (lambda: adapt(lm(tied=False), tied=True), "would lose head.weight"),
        (lambda: adapt(vit(model="learned"), shape=(16, 12)), "would lose places"),
        (lambda: adapt(lm(), depth=3), "LMConfig has no 'depth'"),
        (lambda: adapt(lm(), frames="rotary"), "frames must be one of fixed"),
        (lambda: adapt(nn.Linear(2, 2), bias=False), "no configuration to change"),
        (lambda: initialise(Odd(), 0), "has parameters but no reset"),
        (lambda: initialise(lm().to("meta"), 0), "to_empty"),
    ],
)
def test_refusals_are_one_line(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
