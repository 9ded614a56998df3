"""Vision models beyond the paper's table: any transport, frames by content, none; and pixels without an embedding."""

import dataclasses
import json

import pytest
import torch

from joformer import positions
from joformer.models import (
    VARIANTS,
    ClassifierConfig,
    JoFormerViT,
    MonoidalClassifier,
    ViTConfig,
    initialise,
    load,
    save,
)

SMALL = {"shape": (8, 12), "patch": (4, 4), "channels": 1, "classes": 5, "dim": 16, "layers": 2, "heads": 2}


def made(**changes):
    given = {name: value for name, value in (SMALL | changes).items() if value is not None}
    return initialise(JoFormerViT(ViTConfig(**given)), seed=3).eval()


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


@pytest.mark.parametrize("name", VARIANTS)
def test_a_name_is_short_for_four_fields(x, name):
    by_name = ViTConfig(model=name)
    assert by_name == ViTConfig(**vars(VARIANTS[name]))
    assert by_name.name == name
    assert torch.equal(made(model=name)(x), made(**vars(VARIANTS[name]))(x))


def test_what_is_left_out_is_as_the_paper_has_it():
    left_out = {"learned": "joformer_axial", "fixed": "joformer_old", "dense": "axial_dense_v", "additive": "learned"}
    for frames in ("learned", "fixed", "dense", "additive", "projected", "cumulative", "none"):
        assert ViTConfig(frames=frames).name == left_out.get(frames, frames)
    assert ViTConfig().name == "joformer_axial"
    assert ViTConfig(model="joformer_axial", per_layer=True).name == "joformer_axial_perlayer"
    assert ViTConfig(frames="fixed", transport="values").name is None


@pytest.mark.parametrize("frames", ["dense", "projected", "cumulative"])
def test_layers_can_share_any_frames(x, frames):
    """One module for all layers computes what as many equal ones do, with as many parameters as one of them."""
    shared, each = made(frames=frames, per_layer=False, layers=3), made(frames=frames, layers=3)
    with torch.no_grad():
        for p in shared.frames.parameters():
            p.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    for module in each.frames:
        module.load_state_dict(shared.frames.state_dict())
    assert torch.equal(shared(x), each(x))


def test_the_literal_combined_split_cannot_see_one_displacement():
    """Equal frequencies on both axes: what sits at (i, j) and at (i + 1, j − 1) has the same frame."""
    for name, same in (("joformer_fixed_literal", True), ("joformer_fixed", False)):
        model = made(model=name, shape=(12, 12), pool="mean")
        tokens, frames = model.start(torch.zeros(1, 1, 12, 12))
        angles = frames(0, tokens).angles.reshape(3, 3, -1)
        assert torch.allclose(angles[0, 1], angles[1, 0]) is same


@pytest.mark.parametrize(("model", "transport"), [("rope2d", None), ("joformer_old", "scores"), ("liere64_v", None)])
def test_files_of_version_0_1_load(tmp_path, x, model, transport):
    """They hold a name, and null or a transport beside it."""
    vit = made(model=model, transport=transport)
    save(vit, tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    assert content["config"].items() >= vars(vit.config.variant).items()
    content["config"] = {k: v for k, v in content["config"].items() if k not in vars(vit.config.variant)}
    content["config"] |= {"model": model, "transport": transport}
    path.write_text(json.dumps(content))
    back = load(tmp_path)
    assert back.config == vit.config
    assert torch.equal(back(x), vit(x))


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


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("model", ["rope2d", "joformer_axial", "liere64_v", "projected", "none"])
def test_packed_images_are_what_they_are_alone(model, pool):
    """NaViT: images of three shapes in one row, each with its own class token."""
    vit, draw = made(model=model, pool=pool, registers=1).double(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in vit.parameters():  # frames by content are not at zero
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
        images = [torch.rand(1, *s, generator=draw, dtype=torch.float64) for s in ((8, 12), (4, 4), (12, 8))]
        together = vit(images)
        alone = torch.cat([vit(image[None]) for image in images])
    assert together.shape == (3, 5)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_positions_of_ones_own_take_the_place_of_the_grid(x):
    """A stretch of all coordinates is seen; a shift only by the class token."""
    grid = positions.grid(2, 3, prefix=1)
    moved = positions.augment(grid, shift=3.0, generator=torch.Generator().manual_seed(0))
    model = made(model="joformer_axial")
    assert torch.equal(model(x, where=grid), model(x))
    assert not torch.allclose(model(x, where=2 * grid), model(x), atol=1e-4)
    assert not torch.allclose(model(x, where=moved), model(x), atol=1e-4)
    mean = made(model="joformer_axial", pool="mean")
    torch.testing.assert_close(mean(x, where=moved[1:]), mean(x), rtol=0, atol=1e-5)


def test_pixels_are_the_paper_s_baseline():
    model = MonoidalClassifier(ClassifierConfig(dim=784, frequencies="pixels"))
    x = torch.rand(2, 28, 28)
    assert sum(p.numel() for p in model.parameters()) == 784 * 128 + 128 + 128 * 10 + 10
    assert torch.equal(model(x), model.mlp(x.flatten(1)))


@pytest.mark.refused
def test_what_cannot_be_packed_is_one_line():
    small = torch.rand(1, 4, 4)
    for model, images, says in (
        ("rope2d", [], "1 or more"),
        ("rope2d", [torch.rand(1, 4, 5)], "a multiple of 4"),
        ("cumulative", [small, small], "need the shape of the grid"),
        ("learned", [small], "bound to its grid"),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            made(model=model)(images)
        assert "\n" not in str(caught.value)


@pytest.mark.refused
def test_what_makes_no_sense_is_one_line():
    says = r"^frames='none' cannot transport anything: use other frames, or transport='none'$"
    with pytest.raises(ValueError, match=says):
        ViTConfig(model="none", transport="scores")
    with pytest.raises(ValueError, match=r"^frames='fixed' are the same in every layer: leave out per_layer$"):
        ViTConfig(frames="fixed", per_layer=True)
    with pytest.raises(ValueError, match=r"^frames must be one of fixed, learned, .*, got 'rope2d'$"):
        ViTConfig(frames="rope2d")
    with pytest.raises(ValueError, match=r"^split must be one of axial, combined, diagonal, got 'both'$"):
        ViTConfig(split="both")
    with pytest.raises(
        ValueError, match=r"^model='rope2d' and four fields that differ from it: .*VARIANTS\['rope2d'\]"
    ):
        dataclasses.replace(ViTConfig(), model="rope2d")
    with pytest.raises(ValueError, match=r"^transport must be one of none, scores, values, both, got 'all'$"):
        ViTConfig(transport="all")
    with pytest.raises(ValueError, match=r"^dim=32 with pixels: a grid \(28, 28\) has 784 of them$"):
        ClassifierConfig(frequencies="pixels")
