"""JoFormerPairs: what is encoded alone, what words and patches see of each other, and by which journeys."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import positions
from joformer.algebra import Generators, absolute, value_path
from joformer.models import JoFormerPairs, PairsConfig, initialise, load, save
from joformer.testing import assert_close

SMALL = {"vocab": 20, "shape": (8, 12), "patch": (4, 4), "channels": 2, "dim": 32, "layers": 2, "heads": 2}


def made(seed=0, **changes):
    return initialise(PairsConfig(**{**SMALL, **changes}).build(), seed).eval()


def drawn(n=3, words=5):
    tokens = torch.randint(20, (n, words))
    tokens[0, 3:] = -1
    return torch.randn(n, 2, 8, 12), tokens, (torch.rand(n, words) < 0.5) & (tokens >= 0)


@pytest.mark.parametrize("journeys", ["joint", "shared", "off"])
@pytest.mark.parametrize("transport", ["none", "scores", "values", "both"])
def test_alone_is_alone_and_padding_is_nothing(journeys, transport, dtype):
    model = made(journeys=journeys, transport=transport).to(dtype)
    images, tokens, masked = drawn()
    images = images.to(dtype)
    found = model(images, tokens, masked)
    assert_close(found.image, model(images).image)
    assert_close(found.text, model(tokens=tokens).text)
    assert_close(found.text[:1], model(tokens=tokens[:1, :3]).text)
    assert_close(found.words[:1, :3], model(images[:1], tokens[:1, :3], masked[:1, :3]).words)
    assert_close(found.image.norm(dim=-1), torch.ones(3, dtype=dtype))
    assert_close(found.text.norm(dim=-1), torch.ones(3, dtype=dtype))


@pytest.mark.parametrize(("journeys", "sees"), [("joint", True), ("shared", True), ("off", False)])
def test_only_with_journeys_words_see_the_image(journeys, sees):
    model = made(journeys=journeys)
    images, tokens, masked = drawn()
    before, after = (model(x, tokens, masked).words for x in (images, images.flip(0)))
    assert torch.equal(before[1], after[1])  # the same image
    assert torch.equal(before[0], after[0]) is not sees
    other = tokens.roll(1, 0)
    assert torch.equal(model(images, tokens).image, model(images, other).image)


def test_a_masked_word_is_hidden_and_the_others_are_not():
    model, (images, tokens, _) = made(), drawn()
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[:, 1] = True
    changed = tokens.clone()
    changed[:, 1] = (tokens[:, 1] + 1) % 20
    assert torch.equal(model(images, tokens, masked).words, model(images, changed, masked).words)
    changed[:, 0] = (tokens[:, 0] + 1) % 20
    assert not torch.equal(model(images, tokens, masked).words[:, 1], model(images, changed, masked).words[:, 1])
    assert not torch.equal(model(images, tokens).text, model(images, changed).text)


def test_the_first_layer_by_the_algebra():
    """Values of the fused pass go from patch to word by R_mod and both absolute operators (docs/claims.md row 47)."""
    model = made(layers=1, transport="values", split="combined").double()
    images, tokens, masked = drawn(2)
    tokens, masked = tokens.clamp(min=0), torch.ones_like(masked[:2])
    where = model.where(5, 2, 3)
    assert torch.equal(where, positions.joint(positions.sequence(5), positions.grid(2, 3)))
    steps = Generators.torus(model.frames.frequencies())
    at = absolute(steps, where)
    block, layer = model.blocks[0], model.blocks[0].attention
    x = torch.cat((model.tokens.weight[-1].expand(2, 5, -1), model.embed(_patches(images.double()))), 1)
    q, k, v = layer.qkv(block.norm1(x)).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(q @ k.mT / 4, -1)
    read = value_path(weights, v, group=steps.group, src=at, dst=at)
    x = x + layer.out(read.transpose(1, 2).flatten(2))
    x = x + block.down(torch.nn.functional.gelu(block.up(block.norm2(x))))
    assert_close(model(images.double(), tokens, masked).words, model.head(model.norm(x))[:, :5])


def _patches(images):
    """(n, 2, 8, 12) as 2 × 3 patches, one by one."""
    cells = [images[:, :, r : r + 4, c : c + 4].flatten(1) for r in (0, 4) for c in (0, 4, 8)]
    return torch.stack(cells, 1)


def test_without_positions_words_and_patches_are_bags():
    images, tokens, masked = drawn()
    masked = tokens >= 0
    swapped = torch.cat((images[..., 4:], images[..., :4]), -1)  # columns of patches in another order
    for transport, same in (("none", True), ("both", False)):
        model = made(transport=transport)
        here, there = (model(x, tokens, masked).words for x in (images, swapped))
        assert torch.allclose(here, there, atol=1e-5) is same
    model = made(transport="none")
    assert_close(model(tokens=tokens[1:]).text, model(tokens=tokens[1:].flip(1)).text)


@given(words=st.integers(0, 9), rows=st.integers(1, 4), columns=st.integers(1, 4))
@settings(max_examples=15)
def test_shared_places_are_those_of_the_patches_in_reading_order(words, rows, columns):
    shared = made(journeys="shared").where(words, rows, columns)
    cells = positions.grid(rows, columns)
    assert torch.equal(shared[words:], cells)
    for word in range(words):
        assert shared[word].tolist() == list(divmod(word, columns))
    count = min(words, len(cells))
    assert torch.equal(shared[:count], cells[:count])


def test_saved_and_loaded(tmp_path):
    model, given_ = made(journeys="shared", frames="learned"), drawn()
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.config == model.config
    assert all(torch.equal(a, b) for a, b in zip(model(*given_), again(*given_)))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: PairsConfig(shape=(8, 8), patch=(3, 3)), r"does not divide into patches \(3, 3\)"),
        (lambda: PairsConfig(shape=(8,), patch=(4,)), "height and width must"),
        (lambda: PairsConfig(journeys="some"), "journeys must be one of joint, shared, off, got 'some'"),
        (lambda: PairsConfig(frames="dense"), "frames must be one of fixed, learned"),
        (lambda: PairsConfig(dim=30), "does not divide into 4 heads"),
        (lambda: PairsConfig(vocab=0), "vocab must be 1 or more"),
        (lambda: made()(None, None), "nothing to encode: give images, tokens or both"),
        (lambda: made()(tokens=torch.tensor([[20]])), "must be within 0 … 19, or -1 for padding"),
        (lambda: made()(tokens=torch.tensor([[0.5]])), "give whole numbers"),
        (lambda: made()(torch.rand(1, 3, 8, 12)), "x must be"),
        (lambda: made()(None, torch.tensor([[1]]), torch.tensor([[True]])), "give 1 images"),
    ],
)
def test_bad_input_is_one_line(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_class_is_public():
    assert JoFormerPairs.config_class is PairsConfig
