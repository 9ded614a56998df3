"""Where tokens are, against obvious loops."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, positions


@given(st.integers(0, 20), st.integers(-5, 2**20))
@settings(max_examples=60)
def test_sequence_counts_from_the_offset(n, offset):
    assert positions.sequence(n, offset)[:, 0].tolist() == [float(offset + i) for i in range(n)]


def test_sequence_with_an_offset_per_row():
    got = positions.sequence(2, torch.tensor([0, 10]))
    assert got[..., 0].tolist() == [[0.0, 1.0], [10.0, 11.0]]


def test_sequence_is_exact_far_out():
    assert (positions.sequence(3, 2**40)[:, 0] - 2**40).tolist() == [0.0, 1.0, 2.0]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=60)
def test_grid_is_row_major_in_array_order(shape, prefix):
    got = positions.grid(*shape, prefix=prefix)
    cells = list(itertools.product(*(range(n) for n in shape)))
    assert got.shape == (prefix + len(cells), len(shape))
    assert got[:prefix].isnan().all()
    assert got[prefix:].tolist() == [list(map(float, cell)) for cell in cells]
    # The same order in which an image is flattened to tokens: height first, then width.
    image = torch.arange(math.prod(shape)).view(*shape)
    assert all(image[tuple(map(int, cell))] == i for i, cell in enumerate(got[prefix:].tolist()))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=60)
def test_packed_restarts_and_segments_tell_apart(lengths):
    assert positions.packed(lengths)[:, 0].tolist() == [float(i) for n in lengths for i in range(n)]
    assert positions.segments(lengths).tolist() == [s for s, n in enumerate(lengths) for _ in range(n)]


@given(st.integers(1, 6), st.integers(0, 4), st.booleans())
@settings(max_examples=40)
def test_padded_counts_real_tokens_only(real, pad, left):
    row = [False] * pad + [True] * real if left else [True] * real + [False] * pad
    got = positions.padded(torch.tensor([row]))[0, :, 0]
    assert got[torch.tensor(row)].tolist() == list(map(float, range(real)))
    assert got[~torch.tensor(row)].isnan().all()


@given(st.data())
@settings(max_examples=60)
def test_tree_paths_follow_the_parents(data):
    n = data.draw(st.integers(1, 9))
    parents = [-1] + [data.draw(st.integers(0, i - 1)) for i in range(1, n)]
    paths = positions.tree(parents)
    for node in range(n):
        path = [int(b) for b in paths[node] if not math.isnan(b)]
        at = 0
        for branch in path:
            at = [i for i in range(n) if parents[i] == at][branch]
        assert at == node


def test_joint_keeps_each_modality_on_its_own_axes():
    text, image = positions.sequence(3), positions.grid(2, 2, prefix=1)
    got = positions.joint(text, image)
    assert got.shape == (8, 4)
    assert got[:3].tolist() == [[0, i, 0, 0] for i in range(3)]
    assert got[3].isnan().all()
    assert got[4:].tolist() == [[1, 0, r, c] for r in range(2) for c in range(2)]


def test_integers_are_welcome_and_stay_exact():
    far = torch.tensor([[2**24 + 1]])
    assert positions.joint(far, far)[0, 1].item() == 2**24 + 1
    assert positions.with_prefix(far, 1)[1].item() == 2**24 + 1
    torch.testing.assert_close(positions.tree(torch.tensor([-1, 0])), positions.tree([-1, 0]), equal_nan=True)


def test_real_coordinates_are_welcome():
    half = FixedFrames(8)(torch.tensor([[0.5]])).angles
    whole = FixedFrames(8)(torch.tensor([[1.0]])).angles
    torch.testing.assert_close(2 * half, whole)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: positions.sequence(-1), "0 or more"),
        (lambda: positions.sequence(2, torch.zeros(2, 2)), "per batch row"),
        (positions.grid, "at least one axis"),
        (lambda: positions.grid(3, 0), "at least one cell"),
        (lambda: positions.grid(2, prefix=-1), "0 or more"),
        (lambda: positions.packed([]), "1 or more"),
        (lambda: positions.packed([3, 0]), "1 or more"),
        (lambda: positions.segments([-1]), "1 or more"),
        (lambda: positions.padded(torch.ones(2, 2)), "boolean"),
        (lambda: positions.tree([]), "one root"),
        (lambda: positions.tree([-1, -1]), "one root"),
        (lambda: positions.tree([-1, 7]), "another node"),
        (lambda: positions.tree([-1, 2, 1]), "cycle"),
        (lambda: positions.tree([-1, 0], branches=[0]), "one branch per node"),
        (positions.joint, "at least one part"),
        (lambda: positions.joint(positions.sequence(2), torch.zeros(1, 2, 1)), "batch"),
        (lambda: positions.grid((3, 2)), "at least one axis"),
        (lambda: positions.sequence(2.5), "number of tokens"),
        (lambda: positions.sequence(2, torch.zeros(1, dtype=torch.float16)), "float16.*float64"),
        (lambda: positions.joint(positions.sequence(2).bfloat16()), "bfloat16.*float64"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
