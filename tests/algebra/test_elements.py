"""Composition against sums written out term by term."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import (
    Element,
    Generators,
    Orthogonal,
    Pair,
    Torus,
    compose,
    compose_grid,
    concatenate,
    scan,
    split,
    unroll,
)

DTYPES = [torch.float32, torch.float64]
ATOL = {torch.float32: 1e-4, torch.float64: 1e-11}
quick = settings(deadline=None, derandomize=True, max_examples=30)


def rotations(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype))[0]


def curved(axes: int, d: int = 4, dtype: torch.dtype = torch.float64) -> Generators:
    return Generators.orthogonal(rotations(axes, d, d, dtype=dtype))


def flat(axes: int, planes: int = 2, dtype: torch.dtype = torch.float64) -> Generators:
    rng = torch.Generator().manual_seed(axes)
    return Generators.torus(torch.randn(axes, planes, generator=rng, dtype=dtype))


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def dense_power(generators: Generators, axis: int, n: int) -> torch.Tensor:
    return torch.linalg.matrix_power(generators.group.matrix(generators.steps[axis]), n)


def close(a, b, dtype=torch.float64):
    torch.testing.assert_close(a, b, atol=ATOL[dtype], rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [flat, curved])
def test_tiles_compose_to_the_sum_over_their_cells(make, dtype):
    generators, content = make(2, dtype=dtype), noise(3, 4, 4, dtype=dtype)
    rows = [
        concatenate([Element.cell(content[i, j], (i + 5, j - 2), generators) for j in range(4)], axis=1)
        for i in range(3)
    ]
    whole = concatenate(rows, axis=0)
    expected = sum(
        dense_power(generators, 0, i) @ dense_power(generators, 1, j) @ content[i, j]
        for i, j in itertools.product(range(3), range(4))
    )
    close(whole.content, expected, dtype)
    assert (whole.origin, whole.extent, whole.end) == ((5, -2), (3, 4), (8, 2))


@quick
@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_composition_is_associative_and_grouping_is_free(n, cut, other, is_flat):
    generators = flat(1) if is_flat else curved(1)
    cells = [Element.cell(v, i, generators) for i, v in enumerate(noise(n + 2, 4))]
    a, b = sorted((1 + cut % (n + 1), 1 + other % (n + 1)))
    parts = [cells[:a], cells[a:b], cells[b:]]
    whole = concatenate([concatenate(p) for p in parts if p])
    close(whole.content, concatenate(cells).content)
    assert whole.extent == (n + 2,)


@quick
@given(st.integers(1, 40), st.booleans(), st.lists(st.integers(1, 3), max_size=2))
def test_unroll_is_the_composition(length, is_flat, batch):
    generators = flat(1) if is_flat else curved(1)
    contents = noise(*batch, length, 4)
    cells = [Element.cell(contents[..., t, :], t, generators) for t in range(length)]
    close(unroll(contents, generators), concatenate(cells).content)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [Torus(2), Orthogonal(4)], ids=str)
def test_unroll_with_a_generator_per_step_is_the_fold_of_pairs(group, dtype):
    length = 9
    steps = noise(length, 2, dtype=dtype) if isinstance(group, Torus) else rotations(length, 4, 4, dtype=dtype)
    contents = noise(length, 4, dtype=dtype)
    folded = Pair.identity(group)
    for v, r in zip(contents, steps):
        folded = folded.compose(Pair(v, r, group))
    close(unroll(contents, steps, group), folded.content.to(dtype), dtype)
    assert group.distance(scan(group, steps, exclusive=False)[-1], folded.operator) < ATOL[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_compose_grid_puts_the_axis_composed_last_leftmost(order, dtype):
    generators, content = curved(3, dtype=dtype), noise(2, 2, 3, 4, 4, dtype=dtype)
    expected = torch.zeros(2, 4, dtype=dtype)
    for n in itertools.product(range(2), range(3), range(4)):
        term = content[(slice(None), *n)]
        for k in order:
            term = term @ dense_power(generators, k, n[k]).mT
        expected += term
    whole = compose_grid(content, generators, order=order)
    close(whole.content, expected, dtype)
    assert whole.extent == (2, 3, 4)


def test_compose_grid_equals_composing_tiles_by_hand():
    generators, content = curved(2), noise(2, 3, 4)
    columns = [
        concatenate([Element.cell(content[i, j], (i, j), generators) for i in range(2)], axis=0) for j in range(3)
    ]
    close(compose_grid(content, generators, order=(0, 1)).content, concatenate(columns, axis=1).content)
    nested = [[content[i, j] for j in range(3)] for i in range(2)]
    close(compose_grid(nested, generators).content, compose_grid(content, generators, order=(1, 0)).content)


@quick
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 1]), st.booleans())
def test_split_recovers_either_part(n, m, across, axis, is_flat):
    generators = flat(2) if is_flat else curved(2)
    origin, size = (3, -1), (n + m, across)
    shape = size if axis == 0 else size[::-1]
    first = (n, across) if axis == 0 else (across, n)
    second = (m, across) if axis == 0 else (across, m)
    start = tuple(o + (n if k == axis else 0) for k, o in enumerate(origin))
    x, y = Element(noise(4), origin, first, generators), Element(noise(4, seed=1), start, second, generators)
    whole = compose(x, y, axis=axis)
    assert whole.extent == shape
    right, left = split(whole, axis=axis, left=x), split(whole, axis=axis, right=y)
    close(right.content, y.content)
    close(left.content, x.content)
    assert (right.origin, right.extent, left.origin, left.extent) == (y.origin, y.extent, x.origin, x.extent)


def test_contents_carry_batches_and_gradients():
    angles = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    content = noise(2, 2, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, c: compose_grid(c, Generators.torus(a)).content, (angles, content), fast_mode=True
    )
    tile = Element.cell(content[0], (0, 0), Generators.torus(angles))
    assert split(
        compose(tile, Element.cell(content[1], (0, 1), tile.generators), axis=1), axis=1, left=tile
    ).content.shape == (2, 2, 4)


def test_a_position_may_be_a_tensor():
    cell = Element.cell(torch.ones(4), torch.tensor([2, 3]), flat(2, dtype=torch.float32))
    assert cell.origin == (2, 3)
    assert math.prod(cell.extent) == 1
