"""The models the tables name: their sizes, their shapes, and that a variant is what its name says."""

import dataclasses

import pytest
import torch

from joformer import JourneyAttention, JourneyCache, NoFrames, positions
from joformer.models import (
    VARIANTS,
    ClassifierConfig,
    JoFormerLM,
    JoFormerViT,
    LMConfig,
    MonoidalClassifier,
    ViTConfig,
)
from joformer.models._blocks import Block

SMALL_VIT = ViTConfig(shape=(8, 12), patch=(4, 4), channels=2, classes=5, dim=32, layers=2, heads=2)
SMALL_LM = LMConfig(vocab=17, dim=32, layers=3, heads=2)


def size(model, config):
    with torch.device("meta"):
        return sum(p.numel() for p in model(config).parameters())


def test_sizes_are_those_of_the_readings():
    tiny = ViTConfig(model="liere64", shape=(32, 32), patch=(4, 4), classes=100, hidden=768)
    assert size(JoFormerViT, tiny) == 14_854_756  # row 52: 14.9M
    assert (
        size(JoFormerViT, tiny) - size(JoFormerViT, dataclasses.replace(tiny, **vars(VARIANTS["rope2d"])))
        == 12 * 2 * 6 * 64**2
    )
    assert size(JoFormerViT, ViTConfig(model="rope2d")) == 21_975_016  # row 53: 22M
    assert size(JoFormerViT, ViTConfig(model="joformer_axial")) - 21_975_016 == 6 * 64 // 2  # row 55
    assert size(JoFormerViT, ViTConfig(model="joformer")) - 21_975_016 == 2 * 6 * 64 // 2
    long = LMConfig(vocab=50257, dim=768, layers=16, heads=8, frames="projected", window=32, pattern="WWWWWNWWWWWNWWWN")
    assert size(JoFormerLM, long) == 163_425_792  # row 56: 163M


@pytest.mark.parametrize("name", VARIANTS)
def test_every_vision_model_runs_and_trains(name):
    torch.manual_seed(0)
    model = JoFormerViT(dataclasses.replace(SMALL_VIT, **vars(VARIANTS[name])))
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
            models.append(JoFormerViT(dataclasses.replace(SMALL_VIT, **vars(VARIANTS[name]))))
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
        (lambda: JoFormerLM(LMConfig(frames="rotary")), "frames must be one of fixed"),
        (lambda: JoFormerViT(SMALL_VIT)(torch.zeros(1, 2, 8, 9)), "a multiple of 4"),
        (lambda: JoFormerViT(SMALL_VIT)(torch.zeros(1, 3, 8, 8)), "x must be"),
        (
            lambda: JoFormerViT(dataclasses.replace(SMALL_VIT, **vars(VARIANTS["learned"])))(torch.zeros(1, 2, 8, 8)),
            "bound to",
        ),
        (lambda: ViTConfig(pool="max"), "pool must be 'cls' or 'mean'"),
        (lambda: JoFormerViT(dataclasses.replace(SMALL_VIT, drop_path=1.0)), "probability below 1"),
        (lambda: JoFormerLM(SMALL_LM).generate(torch.zeros(1, 0, dtype=torch.long), 1), "at least one token"),
        (lambda: JoFormerLM(SMALL_LM).generate(torch.zeros(1, 1, dtype=torch.long), 1, top_k=0), "top_k 1 or more"),
        (lambda: JoFormerLM(SMALL_LM)(torch.zeros(1, 1, dtype=torch.long), caches=[JourneyCache()]), "model.caches"),
    ],
)
def test_refusals_are_one_line(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("frames", ["fixed", "learned", "projected", "cumulative"])
@pytest.mark.parametrize("pattern", ["F", "WWN"])
def test_decoding_with_caches_is_the_full_forward(frames, pattern):
    torch.manual_seed(0)
    model = JoFormerLM(dataclasses.replace(SMALL_LM, frames=frames, pattern=pattern, window=3)).double().eval()
    for name, weight in model.named_parameters():
        if "w2" in name:
            torch.nn.init.normal_(weight)
    tokens = torch.randint(17, (2, 12))
    with torch.no_grad():
        whole, caches = model(tokens), model.caches()
        parts = [model(part, caches=caches) for part in tokens.split([5, 1, 1, 3, 2], 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-11


def test_sampling_follows_the_chances():
    torch.manual_seed(0)
    model = JoFormerLM(SMALL_LM).eval()
    start = torch.randint(17, (1, 4))
    drawn = [model.generate(start, 6, top_k=5, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[0][:, :4], start)
    greedy = model.generate(start, 3, temperature=0)
    for t in range(4, 7):
        assert greedy[0, t] == model(greedy[:, :t])[0, -1].argmax()
    assert torch.equal(model.generate(start, 3, top_k=1), greedy)
    many = model.generate(start.expand(4000, -1), 1, generator=torch.Generator().manual_seed(0))[:, -1]
    chances = model(start)[0, -1].softmax(-1)
    assert (many.bincount(minlength=17) / 4000 - chances).abs().max() < 0.03


def test_pooling_registers_and_other_resolutions():
    torch.manual_seed(0)
    x, wide = torch.randn(2, 2, 8, 12), torch.randn(2, 2, 16, 4)
    for pool, registers in (("cls", 0), ("cls", 3), ("mean", 0), ("mean", 2)):
        model = JoFormerViT(dataclasses.replace(SMALL_VIT, pool=pool, registers=registers)).eval()
        assert (0 if model.prefix is None else len(model.prefix)) == (pool == "cls") + registers
        assert model(x).shape == model(wide).shape == (2, 5)
        if registers:
            before = model(x)
            torch.nn.init.normal_(model.prefix)
            assert (model(x) - before).abs().max() > 1e-4


def test_the_mean_of_a_larger_image_counts_every_patch_once():
    """Without positions and prefix, an image tiled twice has the same mean."""
    torch.manual_seed(0)
    config = dataclasses.replace(SMALL_VIT, **vars(VARIANTS["rope2d"]), pool="mean", base=1e18)
    model = JoFormerViT(config).double().eval()
    model.frames = NoFrames(2)
    x = torch.randn(2, 2, 8, 12, dtype=torch.float64)
    assert (model(torch.cat((x, x), 3)) - model(x)).abs().max() < 1e-12


def test_stochastic_depth_leaves_out_in_training_only_and_keeps_the_mean():
    torch.manual_seed(0)
    block = Block(JourneyAttention(8, 2), hidden=16, drop_path=0.5)
    x, frames = torch.randn(1, 3, 8), NoFrames()(positions.sequence(3))
    many = x.expand(4000, -1, -1)
    full = block.eval()(x, frames)
    assert torch.equal(block.eval()(x, frames), full)
    left_out = block.train()(many, frames)
    same = (left_out == x).all((1, 2)).float().mean()
    assert abs(same - 0.25) < 0.03  # both branches dropped
    added = block.attention(block.norm1(x), frames)
    first = block._kept(added.expand(4000, -1, -1)).mean(0)
    assert (first - added[0]).abs().max() < 0.1 * added.abs().max()
    rates = [b.drop_path for b in JoFormerViT(dataclasses.replace(SMALL_VIT, layers=3, drop_path=0.2)).blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2])


def test_the_classifier_is_an_embedding_and_an_mlp():
    torch.manual_seed(0)
    model = MonoidalClassifier(ClassifierConfig(dim=8, shape=(5, 6), classes=3, hidden=7))
    x = torch.randn(4, 5, 6)
    hidden = torch.relu(model.embed(x) @ model.mlp[0].weight.T + model.mlp[0].bias)
    torch.testing.assert_close(model(x), hidden @ model.mlp[2].weight.T + model.mlp[2].bias)
    assert sum(p.numel() for p in model.parameters()) == 8 + 8 * 7 + 7 + 7 * 3 + 3
