"""JoFormerVideo: nobody sees what comes later, factorised attention is masked attention, classes are the ViT's."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import positions
from joformer.models import JoFormerVideo, JoFormerViT, VideoConfig, ViTConfig, initialise, load, save
from joformer.models._blocks import LayerFrames, last, run_blocks
from joformer.models._video import seen_so_far
from joformer.testing import assert_close

SMALL = VideoConfig(model="joformer_axial", shape=(8, 12, 4), patch=(4, 4, 1), channels=2, dim=24, layers=2, heads=2)
BOTH = pytest.mark.parametrize("attention", ["joint", "factorised"])


def made(dtype, **changes):
    model = initialise(replace(SMALL, **changes).build(), 1).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():  # frequencies that are all alike would hide a wrong axis
            weight.add_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    return model


def clips(dtype, *shape):
    return torch.randn(2, 2, *shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


@given(rows=st.integers(1, 3), columns=st.integers(1, 3), time=st.integers(1, 4))
@settings(max_examples=15)
def test_who_sees_whom_by_hand(rows, columns, time):
    seen, cells = seen_so_far((rows, columns, time))[0, 0], list(product(range(rows), range(columns), range(time)))
    assert seen.tolist() == [[key[2] <= query[2] for key in cells] for query in cells]


@BOTH
@pytest.mark.parametrize("model", ["joformer_axial", "joformer_old", "rope2d", "none", "liere64_v", "projected"])
def test_a_prediction_is_that_of_the_clip_up_to_there(attention, model, dtype):
    variant = vars(ViTConfig(model=model).variant)
    net, x = made(dtype, attention=attention, **variant), clips(dtype, 8, 12, 4)
    ahead = net(x)
    assert ahead.shape == x.shape
    for until in range(1, 5):
        assert_close(net(x[..., :until]), ahead[..., :until])
    other = x.clone()
    other[..., 1] += 1
    changed = (net(other) - ahead).abs().amax((0, 1, 2, 3))
    assert changed[0] == 0
    assert (changed[1:] > 1e-3).all()


@pytest.mark.parametrize("question", ["next", "class"])
def test_factorised_is_attention_under_a_mask(question, dtype):
    """The slow way: frames of the whole clip, all tokens at once, a mask for one's own picture or place."""
    net, x = made(dtype, attention="factorised", question=question, classes=3, layers=4), clips(dtype, 8, 12, 4)
    tokens, grid = net._tokens(x)
    where = positions.grid(*grid)
    place, when = torch.arange(24) // 4, torch.arange(24) % 4
    masks = [when[:, None] == when, place[:, None] == place]
    if question == "next":
        masks[1] &= when <= when[:, None]
    frames = LayerFrames([net.frames] * 4, where, tokens, grid=grid)

    def slow(layer, block, tokens):
        block.attention.causal = False
        return block(tokens, frames(layer, tokens), mask=masks[layer % 2][None, None])

    got = net(x)
    states = net.norm(last(run_blocks(net.blocks, frames, tokens, call=slow)))
    if question == "class":
        assert_close(got, net.head(states.mean(1)))
    else:
        assert_close(net._patches(got), net.head(states))


def test_pixels_stand_where_their_patch_is():
    net, x = made(torch.float64), clips(torch.float64, 8, 12, 3)
    given = []
    net.head.register_forward_hook(lambda *call: given.append(call[2]))
    ahead = net(x)
    for row, column, time in product(range(2), range(3), range(3)):
        token = (row * 3 + column) * 3 + time
        patch = ahead[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4, time]
        assert torch.equal(patch, given[0][:, token].unflatten(-1, (2, 4, 4)))


def test_joint_classes_are_those_of_the_vit(dtype):
    net = made(dtype, question="class", classes=5, patch=(4, 4, 2))
    same = {name: getattr(net.config, name) for name in ("shape", "patch", "channels", "classes", "dim", "layers")}
    vit = JoFormerViT(ViTConfig(model="joformer_axial", heads=2, pool="mean", **same)).to(dtype).eval()
    vit.load_state_dict(net.state_dict())
    x = clips(dtype, 8, 12, 4)
    assert torch.equal(net(x), vit(x))


@BOTH
def test_positions_may_be_given_and_only_their_differences_matter(attention, dtype):
    net, x = made(dtype, attention=attention), clips(dtype, 8, 12, 4)
    where = positions.grid(2, 3, 4)
    assert_close(net(x, where=where), net(x))
    assert_close(net(x, where=where[None].expand(2, -1, -1)), net(x))
    assert_close(net(x, where=where + torch.tensor([3.0, -7.5, 11.25])), net(x))
    stretched = where * torch.tensor([1.0, 1.0, 1.5])  # pictures further apart
    assert (net(x, where=stretched) - net(x)).abs().max() > 1e-3


def test_both_kinds_of_attention_have_as_many_parameters():
    sizes = [sum(p.numel() for p in replace(SMALL, attention=a).build().parameters()) for a in ("joint", "factorised")]
    assert sizes[0] == sizes[1]


@BOTH
def test_saved_and_loaded(attention, tmp_path):
    net, x = made(torch.float32, attention=attention), clips(torch.float32, 8, 12, 4)
    save(net, tmp_path)
    back = load(tmp_path)
    assert isinstance(back, JoFormerVideo)
    assert back.config == net.config
    assert torch.equal(back(x), net(x))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": (8, 8), "patch": (4, 4)}, "a clip has rows, columns and pictures, got shape"),
        ({"attention": "both"}, "attention must be 'joint' or 'factorised', question 'next' or 'class', got 'both'"),
        ({"question": "moved"}, "question 'next' or 'class', got 'joint' and 'moved'"),
        ({"pool": "cls"}, "belong to no picture"),
        ({"registers": 2}, "belong to no picture"),
        ({"patch": (4, 4, 2)}, r"pictures are predicted one at a time: use patch=\(4, 4, 1\)"),
        ({"attention": "factorised", "layers": 1}, "use layers=2 or more"),
    ],
)
def test_configurations_that_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **given)


@pytest.mark.refused
def test_a_clip_that_does_not_divide():
    with pytest.raises(ValueError, match="x must be"):
        SMALL.build()(torch.rand(1, 2, 8, 10, 4))
