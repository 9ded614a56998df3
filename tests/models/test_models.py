"""The models the tables name: their sizes, their shapes, and that a variant is what its name says."""

import dataclasses

import pytest
import torch

from joformer.models import VARIANTS, JoFormerLM, JoFormerViT, LMConfig, ViTConfig

SMALL_VIT = ViTConfig(shape=(8, 12), patch=(4, 4), channels=2, classes=5, dim=32, layers=2, heads=2)
SMALL_LM = LMConfig(vocab=17, dim=32, layers=3, heads=2)


def size(model, config):
    with torch.device("meta"):
        return sum(p.numel() for p in model(config).parameters())


def test_sizes_are_those_of_the_readings():
    tiny = ViTConfig(model="liere64", shape=(32, 32), patch=(4, 4), classes=100, hidden=768)
    assert size(JoFormerViT, tiny) == 14_854_756  # row 52: 14.9M
    assert size(JoFormerViT, tiny) - size(JoFormerViT, dataclasses.replace(tiny, model="rope2d")) == 12 * 2 * 6 * 64**2
    assert size(JoFormerViT, ViTConfig(model="rope2d")) == 21_975_016  # row 53: 22M
    assert size(JoFormerViT, ViTConfig(model="joformer_axial")) - 21_975_016 == 6 * 64 // 2  # row 55
    assert size(JoFormerViT, ViTConfig(model="joformer")) - 21_975_016 == 2 * 6 * 64 // 2
    long = LMConfig(vocab=50257, dim=768, layers=16, heads=8, frames="projected", window=32, pattern="WWWWWNWWWWWNWWWN")
    assert size(JoFormerLM, long) == 163_425_792  # row 56: 163M


@pytest.mark.parametrize("name", VARIANTS)
def test_every_vision_model_runs_and_trains(name):
    torch.manual_seed(0)
    model = JoFormerViT(dataclasses.replace(SMALL_VIT, model=name))
    logits = model(torch.randn(3, 2, 8, 12))
    assert logits.shape == (3, 5)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_value_transport_is_the_only_difference_within_a_pair():
    x = torch.randn(3, 2, 8, 12)
    for scores_only, both in (("rope2d", "joformer_old"), ("monoidal", "joformer"), ("liere64", "liere64_v")):
        models = []
        for name in (scores_only, both):
            torch.manual_seed(1)
            models.append(JoFormerViT(dataclasses.replace(SMALL_VIT, model=name)))
        assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in models)))
        assert (models[0](x) - models[1](x)).abs().max() > 1e-4


def test_patches_follow_the_array_order():
    """Two images that differ in one patch alone differ in that token alone."""
    model = JoFormerViT(SMALL_VIT)
    x = torch.zeros(1, 2, 8, 12)
    y = x.clone()
    y[0, 1, 5, 9] = 1.0  # patch row 1, column 2 of 2 × 3
    changed = (model._patches(x) - model._patches(y)).abs().sum(-1)[0]
    assert changed.nonzero().flatten().tolist() == [1 * 3 + 2]
    assert model._patches(y)[0, 5].view(2, 4, 4)[1, 1, 1] == 1.0  # channel, row and column inside the patch


def test_a_video_has_three_axes():
    config = ViTConfig(shape=(4, 8, 8), patch=(2, 4, 4), channels=1, classes=3, dim=48, layers=1, heads=2)
    assert JoFormerViT(config)(torch.randn(2, 1, 4, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("frames", ["fixed", "learned", "projected", "cumulative"])
@pytest.mark.parametrize("pattern", ["F", "WWN"])
def test_language_models_are_causal(frames, pattern):
    model = JoFormerLM(dataclasses.replace(SMALL_LM, frames=frames, pattern=pattern, window=3)).double()
    tokens = torch.randint(17, (2, 9))
    other = tokens.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 17
    a, b = model(tokens), model(other)
    assert (a[:, :6] - b[:, :6]).abs().max() < 1e-12
    assert (a[:, 6:] - b[:, 6:]).abs().max() > 1e-3


def test_only_windowed_layers_are_length_invariant():
    tokens = torch.randint(17, (1, 30))
    for pattern, invariant in (("W", True), ("F", False), ("WWN", False)):
        model = JoFormerLM(dataclasses.replace(SMALL_LM, pattern=pattern, window=4)).double()
        short, long = model(tokens[:, -10:])[:, -1], model(tokens)[:, -1]  # 3 layers see 3 · 3 tokens back
        assert ((short - long).abs().max() < 1e-12) == invariant


def test_a_tied_head_is_the_embedding():
    model = JoFormerLM(SMALL_LM)
    assert model.head.weight is model.embed.weight
    assert JoFormerLM(dataclasses.replace(SMALL_LM, tied=False)).head.weight.shape == (17, 32)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ViTConfig(model="rope3d"), "unknown model 'rope3d': choose one of rope2d"),
        (lambda: ViTConfig(patch=(15, 16)), "does not divide into patches"),
        (lambda: ViTConfig(heads=7), "does not divide into 7 heads"),
        (lambda: LMConfig(pattern="WX", window=2), "letters F"),
        (lambda: LMConfig(pattern="W"), "say window=32"),
        (lambda: LMConfig(dim=10, heads=3), "does not divide into 3 heads"),
        (lambda: JoFormerLM(LMConfig(frames="rotary")), "frames must be fixed"),
        (lambda: JoFormerViT(SMALL_VIT)(torch.zeros(1, 2, 8, 8)), "x must be"),
    ],
)
def test_refusals_are_one_line(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)
