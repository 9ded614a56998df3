"""Every mistake the algebra refuses: one line that says what is wrong and, after a colon, what would be right."""

import re

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
    absolute,
    compose,
    compose_grid,
    concatenate,
    path_transport,
    split,
    unroll,
)


def test_a_promise_of_flatness_is_checked():
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    mirror = torch.diag(torch.tensor([1.0, -1.0]))
    assert Generators.orthogonal(torch.stack((turn, turn @ turn)), flat=True).axes == 2
    with pytest.raises(ValueError, match="commute") as caught:
        Generators.orthogonal(torch.stack((turn, mirror)), flat=True)
    assert "\n" not in str(caught.value)


@pytest.mark.refused
def test_elements_take_bare_integers_and_tensors():
    generators = Generators.torus(torch.ones(1, 1))
    assert Element(torch.ones(2), 3, torch.tensor([2]), generators).end == (5,)
    with pytest.raises(ValueError, match=r"Element\.cell"):
        compose(torch.ones(2), torch.ones(2))


quick = settings(deadline=None, derandomize=True, max_examples=40)
FLAT = Generators.torus(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
LINE = Generators.torus(torch.tensor([[0.1, 0.2]]))
V = torch.ones(4)


def tile(origin, extent, generators=FLAT):
    return Element(torch.ones(generators.dim), origin, extent, generators)


def refuse(pattern: str, call, *args, **kwargs) -> None:
    with pytest.raises(ValueError, match=pattern) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r": \S", message), f"does not say what would be right: {message}"


def test_different_dimensions_or_generator_sets():
    wide = Generators.torus(torch.zeros(1, 3))
    refuse("different dimensions, 4 and 6", compose, tile((0,), (1,), LINE), tile((1,), (1,), wide))
    other = Generators.torus(torch.tensor([[0.1, 0.3]]))
    refuse("different generator sets", compose, tile((0,), (1,), LINE), tile((1,), (1,), other))
    refuse("different generator sets", split, tile((0,), (2,), LINE), left=tile((0,), (1,), other))
    dense = Generators.orthogonal(torch.eye(4)[None])
    refuse("different generator sets", compose, tile((0,), (1,), LINE), tile((1,), (1,), dense))
    equal = Generators.torus(LINE.steps.clone())
    assert compose(tile((0,), (1,), LINE), tile((1,), (1,), equal)).extent == (2,)
    a, b = Pair.identity(Torus(2)), Pair.identity(Orthogonal(4))
    refuse("both must be in the same group", a.compose, b)


@quick
@given(st.tuples(*[st.integers(-2, 3)] * 2), st.tuples(*[st.integers(0, 3)] * 2), st.sampled_from([0, 1]))
def test_off_axis_origin_or_extent_and_adjacency(origin, extent, axis):
    x, y = tile((0, 0), (2, 2)), tile(origin, extent)
    other = 1 - axis
    if (origin[other], extent[other]) != (0, 2):
        refuse(f"must agree on axis {other}", compose, x, y, axis=axis)
    elif origin[axis] == 2:
        assert compose(x, y, axis=axis).extent[axis] == 2 + extent[axis]
    elif origin[axis] + extent[axis] == 0:
        refuse("out of order", compose, x, y, axis=axis)
    else:
        refuse("not adjacent.*it must start at 2", compose, x, y, axis=axis)


def test_negative_extents_and_ill_formed_places():
    refuse(r"extent \(1, -1\) is negative", tile, (0, 0), (1, -1))
    refuse("has 1 entries: the generators have 2 axes", tile, (0,), (1, 1))
    refuse("has 3 entries", Element.cell, V, (0, 0, 0), FLAT)
    refuse("is not whole", Element.cell, V, torch.tensor([0.5, 1.0]), FLAT)


@quick
@given(st.integers(-5, 5).filter(lambda k: k not in (0, 1)))
def test_unknown_axis(axis):
    refuse(
        f"unknown axis {axis}: the generators have axes 0 to 1",
        compose,
        tile((0, 0), (1, 1)),
        tile((0, 1), (1, 1)),
        axis=axis,
    )
    refuse("unknown axis", concatenate, [tile((0, 0), (1, 1)), tile((0, 1), (1, 1))], axis=axis)
    refuse("unknown axis", split, tile((0, 0), (1, 1)), left=tile((0, 0), (1, 1)), axis=axis)
    if axis > 1:
        refuse("unknown axis", path_transport, FLAT, [0, axis])
        refuse("unknown axis", path_transport, FLAT, [~axis])


def test_an_axis_must_be_named_when_there_are_several():
    refuse("no axis given.*pass axis=0 to 1", compose, tile((0, 0), (1, 1)), tile((0, 1), (1, 1)))
    refuse("no axis given", unroll, torch.ones(3, 4), FLAT)


def test_ragged_or_empty_grids():
    refuse("ragged", compose_grid, [[V, V], [V]], FLAT)
    refuse("ragged", compose_grid, [[V, V], [V, torch.ones(2)]], FLAT)
    refuse("empty row", compose_grid, [[], []], FLAT)
    refuse("empty row", compose_grid, [], FLAT)
    refuse("none empty", compose_grid, torch.ones(0, 3, 4), FLAT)
    refuse("2 grid axes", compose_grid, torch.ones(3, 4), FLAT)
    refuse("nothing to concatenate", concatenate, [])
    for order in ((0,), (0, 0), (0, 2), (0, 1, 1)):
        refuse("name each of 0 to 1 once", compose_grid, torch.ones(2, 2, 4), FLAT, order=order)


@quick
@given(st.integers(1, 4), st.floats(1.01, 3.0), st.booleans())
def test_non_orthogonal_generators(d, scale, fp32):
    dtype = torch.float32 if fp32 else torch.float64
    matrices = torch.eye(d, dtype=dtype).repeat(2, 1, 1)
    matrices[1] *= scale
    refuse("the generator of axis 1 is not orthogonal", Generators.orthogonal, matrices)
    refuse("not orthogonal", Orthogonal(d).check, matrices[1])


def test_shapes_of_generators():
    refuse("give \\(axes, planes\\)", Generators.torus, torch.zeros(3))
    refuse("both 1 or more", Generators.torus, torch.zeros(2, 0))
    refuse("\\(axes, dim, dim\\)", Generators.orthogonal, torch.zeros(2, 3, 4))
    refuse("give one per axis", Generators, Torus(2), torch.zeros(0, 2))
    refuse("floating point", Generators.torus, torch.zeros(1, 2, dtype=torch.long))
    refuse("planes must be an integer, 1 or more", Torus, 0)
    refuse("must be 1 or more", Orthogonal, 0)


def test_curved_generators_where_flatness_is_promised():
    swap, flip = torch.tensor([[0.0, 1], [1, 0]]), torch.tensor([[1.0, 0], [0, -1]])
    refuse("axes 0 and 1 do not commute", Generators.orthogonal(torch.stack([swap, flip])).require_flat)


@quick
@given(st.integers(0, 5))
def test_odd_dimensions_on_the_torus(half):
    odd = 2 * half + 1
    refuse("odd", Torus.from_dim, odd)
    refuse("odd dimension", Torus(half + 1).act, torch.zeros(half + 1), torch.zeros(odd))
    refuse("odd dimension", Element.cell, torch.ones(odd), (0, 0), FLAT)
    assert Torus.from_dim(odd + 1).dim == odd + 1


@quick
@given(st.sampled_from([float("nan"), float("inf"), -float("inf")]), st.integers(0, 3))
def test_nan_and_infinity(bad, place):
    content = torch.ones(4)
    content[place] = bad
    refuse("content holds NaN or infinity", Element.cell, content, (0, 0), FLAT)
    refuse("content holds NaN", Pair, content, torch.zeros(2), Torus(2))
    refuse("contents holds NaN", compose_grid, content.expand(2, 2, 4), FLAT)
    refuse("contents holds NaN", unroll, content.expand(3, 4), LINE)
    refuse("axis 0 holds NaN", Generators.torus, content[None])
    refuse("axis 0 holds NaN", Generators.orthogonal, content.reshape(1, 2, 2))
    refuse("positions holds NaN", absolute, LINE, torch.tensor([[bad]]))


def test_large_finite_values_are_not_mistaken_for_infinity():
    Element.cell(torch.full((4,), 3e38), (0, 0), FLAT)


def test_wrong_shapes_and_powers():
    refuse(r"Torus\(planes=2\) needs \(\.\.\., 2\)", Torus(2).multiply, torch.zeros(2), torch.zeros(3))
    refuse(r"Orthogonal\(dim=3\) needs \(\.\.\., 3, 3\)", Orthogonal(3).multiply, torch.eye(3), torch.eye(2))
    refuse("use integers; real powers exist on the torus", Orthogonal(2).power, torch.eye(2), 0.5)
    refuse("real powers exist", Orthogonal(2).power, torch.eye(2), torch.tensor([1.0, 1.5]))
    refuse("real powers exist", Orthogonal(2).power, torch.eye(2), float("nan"))
    refuse("real powers exist", Orthogonal(2).power, torch.eye(2), float("inf"))
    refuse(r"need \(\.\.\., 2\)", absolute, FLAT, torch.zeros(3))


def test_split_needs_one_part_that_fits():
    whole, part = tile((0, 0), (3, 1)), tile((0, 0), (1, 1))
    refuse("either left= or right=", split, whole, axis=0)
    refuse("either left= or right=", split, whole, axis=0, left=part, right=part)
    refuse("left part must start at 0", split, whole, axis=0, left=tile((1, 0), (1, 1)))
    refuse("right part must end at 3", split, whole, axis=0, right=part)
    refuse("fit inside", split, whole, axis=0, left=tile((0, 0), (4, 1)))
    refuse("must agree on axis 1", split, whole, axis=0, left=tile((0, 0), (1, 2)))


def test_unroll_needs_a_step_for_each_content():
    refuse("2 steps for 3 contents", unroll, torch.ones(3, 4), torch.zeros(2, 2), Torus(2))
    refuse("no group", unroll, torch.ones(3, 4), torch.zeros(3, 2))
