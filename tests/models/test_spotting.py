"""The spotter: piece by piece it hears what it hears at once, nothing looks ahead, and windows bound what it needs."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import CumulativeFrames, positions
from joformer.models import JoFormerSpotter, SpottingConfig, initialise, load, save

SMALL = SpottingConfig(classes=3, bands=8, patch=(4, 2), dim=16, layers=2, heads=2, window=3)
VARIANTS = [("fixed", "none")] + [
    (frames, sides) for frames in ("fixed", "learned", "projected", "cumulative") for sides in ("scores", "both")
]


def spotter(dtype=torch.float64, **changes):
    """A spotter all of whose weights are random: frames that start at zero would show nothing."""
    model = initialise(JoFormerSpotter(dataclasses.replace(SMALL, **changes)), 1).to(dtype).eval()
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=draws).to(weight))
    return model


def stream(frames, batch=1, dtype=torch.float64):
    return torch.randn(batch, frames, 8, generator=torch.Generator().manual_seed(3)).to(dtype)


def heard(model, x, cuts):
    caches, edges = model.caches(), [0, *sorted({*cuts}), x.shape[1]]
    return torch.cat([model(x[:, a:b], caches=caches) for a, b in pairwise(edges)], 1), caches


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize(("frames", "transport"), VARIANTS)
def test_piece_by_piece_is_the_whole_stream(frames, transport, window):
    model, x = spotter(frames=frames, transport=transport, window=window), stream(40, batch=2)
    with torch.no_grad():
        whole = model(x)
        for cuts in ([20], [2, 4, 30]):
            pieces, caches = heard(model, x, cuts)
            torch.testing.assert_close(pieces, whole, atol=1e-10, rtol=1e-10)
            if window is not None:  # what is kept does not grow with the stream
                assert all(cache.held()[0].shape[1] <= 2 * window - 1 for cache in caches)


@settings(max_examples=10)
@given(cuts=st.lists(st.integers(1, 19).map(lambda n: 2 * n), max_size=6), window=st.integers(1, 25))
def test_pieces_of_any_length(cuts, window):
    model, x = spotter(frames="cumulative", window=window), stream(40)
    with torch.no_grad():
        torch.testing.assert_close(heard(model, x, cuts)[0], model(x), atol=1e-10, rtol=1e-10)


def test_in_float32_too():
    model = spotter(torch.float32, frames="cumulative")
    x = stream(400, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(heard(model, x, [10, 12, 202])[0], model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("frames", "transport"), VARIANTS)
def test_nothing_looks_ahead_and_a_window_forgets(frames, transport):
    model, x = spotter(frames=frames, transport=transport), stream(40)
    with torch.no_grad():
        before = model(x)
        later = x.clone()
        later[:, 20:] += 1.0  # from time 10 on
        changed = (model(later) - before).abs().amax(-1)[0]
        assert changed[:10].max() == 0
        assert changed[10:].min() > 1e-6
        early = x.clone()
        early[:, :2] += 1.0  # time 0
        changed = (model(early) - before).abs().amax(-1)[0]
    # A layer sees the end of the time `window` before; two layers twice as far. Cumulative angles are relative, too.
    assert changed[0] > 1e-6
    assert changed[7:].max() < 1e-12


@pytest.mark.parametrize("transport", ["none", "scores", "both"])
def test_when_a_stream_began_does_not_matter(transport):
    """Journeys are between two tokens: what is heard twice gives the same answer twice."""
    model, x = spotter(transport=transport), stream(20)
    with torch.no_grad():
        out = model(torch.cat((x, x), 1))
    torch.testing.assert_close(out[:, 17:20], out[:, 7:10], atol=1e-10, rtol=0)


def test_the_order_of_time_counts_only_with_frames():
    """Within one window, one layer without positions is a bag of what it has heard."""
    x = stream(6)
    swapped = x.unflatten(1, (3, 2))[:, [1, 0, 2]].flatten(1, 2)
    for transport, same in (("none", True), ("scores", False), ("values", False), ("both", False)):
        model = spotter(transport=transport, layers=1, window=None)
        with torch.no_grad():
            difference = (model(x) - model(swapped))[0, 2].abs().max()
        assert (difference < 1e-10) == same, transport


def test_tokens_are_patches_of_bands_at_a_time():
    """A pixel changes the token it lies in: time first, bands within."""
    model, seen = spotter(), []
    model.embed.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    with torch.no_grad():
        for frame, band in ((0, 0), (1, 3), (4, 2), (5, 7)):
            x = torch.zeros(1, 8, 8, dtype=torch.float64)
            x[0, frame, band] = 1.0
            model(x)
            ((token, inside),) = seen[-1][0].nonzero().tolist()
            assert token == 2 * (frame // 2) + band // 4
            assert inside == 4 * (frame % 2) + band % 4


@settings(max_examples=10)
@given(rows=st.integers(2, 5), columns=st.integers(1, 4), cut=st.integers(1, 4), axes=st.sampled_from([2, 3]))
def test_a_grid_is_continued_along_its_first_axis(rows, columns, cut, axes):
    torch.manual_seed(0)
    module = CumulativeFrames(12, 8, heads=2, axes=axes, split="combined").double()
    torch.nn.init.normal_(module.projector.w2.weight)
    shape = (rows, columns, 2)[:axes]
    count = columns * (2 if axes == 3 else 1)
    x, where = torch.randn(2, rows * count, 12, dtype=torch.float64), positions.grid(*shape)
    whole, cut = module(where, x, grid=shape), min(cut, rows - 1)
    first = module(where[: cut * count], x[:, : cut * count], grid=(cut, *shape[1:]))
    rest = module(where[cut * count :], x[:, cut * count :], grid=(rows - cut, *shape[1:]), state=first.end)
    for turn in (torch.cos, torch.sin):
        torch.testing.assert_close(turn(torch.cat((first.angles, rest.angles), 1)), turn(whole.angles))
        torch.testing.assert_close(turn(rest.end), turn(whole.end))


def test_it_comes_back_from_disk(tmp_path):
    model = spotter(torch.float32, frames="cumulative")
    save(model, tmp_path)
    back = load(tmp_path)
    assert back.config == model.config
    with torch.no_grad():
        assert torch.equal(back(stream(8, dtype=torch.float32)), model(stream(8, dtype=torch.float32)))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bands": 9}, r"9 bands do not divide into patches \(4, 2\) of bands and frames"),
        ({"patch": (4,)}, "8 bands do not divide into patches"),
        ({"frames": "dense"}, "frames must be one of fixed, learned, projected, cumulative, got 'dense'"),
        ({"transport": "all"}, "transport must be one of "),
        ({"window": 0}, "window must be 1 or more, got 0"),
        ({"heads": 3}, "dim=16 does not divide into 3 heads"),
        ({"dropout": 1.0}, "dropout is a probability below 1"),
    ],
)
def test_configurations_that_contradict_themselves(changes, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.refused
def test_input_that_does_not_fit():
    model = spotter(torch.float32)
    for shape in ((1, 3, 8), (1, 0, 8), (1, 4, 9), (4, 8)):
        with pytest.raises(ValueError, match=r"x must be \(batch, a multiple of 2, 8\), got "):
            model(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"1 caches for 2 layers: make them with model.caches\(\)"):
        model(torch.zeros(1, 4, 8), caches=model.caches()[:1])
    module = CumulativeFrames(12, 8, heads=2, axes=2)
    end = module(positions.grid(2, 2), torch.zeros(1, 4, 12), grid=(2, 2)).end
    with pytest.raises(ValueError, match="state continues a grid along its first axis: leave out the 1 tokens before"):
        module(positions.grid(2, 2, prefix=1), torch.zeros(1, 5, 12), grid=(2, 2), state=end)
