"""Vision models beyond the paper's table: any transport, frames by content, none; and pixels without an embedding."""

import pytest
import torch

from joformer.models import ClassifierConfig, JoFormerViT, MonoidalClassifier, ViTConfig, initialise

SMALL = {"shape": (8, 12), "patch": (4, 4), "channels": 1, "classes": 5, "dim": 16, "layers": 2, "heads": 2}


def made(**changes):
    return initialise(JoFormerViT(ViTConfig(**(SMALL | changes))), seed=3).eval()


@pytest.fixture
def x():
    return torch.rand(3, 1, 8, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "transport", "same"),
    [
        ("joformer_old", "scores", "rope2d"),
        ("rope2d", "both", "joformer_old"),
        ("joformer_axial", "scores", "monoidal_axial"),
        ("joformer_axial", "none", "none"),
        ("projected", "none", "none"),
    ],
)
def test_transport_replaces_that_of_the_name(x, model, transport, same):
    assert torch.equal(made(model=model, transport=transport)(x), made(model=same)(x))


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("model", ["projected", "cumulative"])
def test_frames_by_content_begin_as_fixed_ones(x, model, pool):
    fixed, ours = made(model="joformer_old", pool=pool), made(model=model, pool=pool)
    assert torch.allclose(ours(x), fixed(x), atol=1e-5)
    with torch.no_grad():
        for module in ours.frames:
            module.projector.w2.weight.normal_(std=1.0, generator=torch.Generator().manual_seed(1))
    assert (ours(x) - fixed(x)).abs().max() > 1e-3
    ours.train()(x).square().sum().backward()
    assert all(module.projector.w1.weight.grad.abs().max() > 0 for module in ours.frames)


@pytest.mark.parametrize("model", ["rope2d", "projected", "cumulative"])
def test_values_alone_are_neither_of_the_others(x, model):
    values, scores, both, none = (made(model=model, transport=t)(x) for t in ("values", "scores", "both", "none"))
    for one, other in ((values, scores), (values, both), (values, none), (scores, none)):
        assert (one - other).abs().max() > 1e-5


def test_without_positions_patches_are_a_bag(x):
    model = made(model="none", pool="mean")
    patches = x.unfold(2, 4, 4).unfold(3, 4, 4)  # (batch, 1, 2, 3, 4, 4)
    moved = patches.flip(2).flip(3).permute(0, 1, 2, 4, 3, 5).reshape(x.shape)
    assert torch.allclose(model(moved), model(x), atol=1e-5)
    assert (made(model="rope2d", pool="mean")(moved) - made(model="rope2d", pool="mean")(x)).abs().max() > 1e-4


def test_pixels_are_the_paper_s_baseline():
    model = MonoidalClassifier(ClassifierConfig(dim=784, frequencies="pixels"))
    x = torch.rand(2, 28, 28)
    assert sum(p.numel() for p in model.parameters()) == 784 * 128 + 128 + 128 * 10 + 10
    assert torch.equal(model(x), model.mlp(x.flatten(1)))


@pytest.mark.refused
def test_what_makes_no_sense_is_one_line():
    with pytest.raises(ValueError, match=r"^none has no frames to move scores by: choose another model$"):
        ViTConfig(model="none", transport="scores")
    with pytest.raises(ValueError, match=r"^transport is one of none, scores, values, both, got 'all'$"):
        ViTConfig(transport="all")
    with pytest.raises(ValueError, match=r"^dim=32 with pixels: a grid \(28, 28\) has 784 of them$"):
        ClassifierConfig(frequencies="pixels")
