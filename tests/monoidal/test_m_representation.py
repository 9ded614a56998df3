"""m-representations: against windows summed one by one; invariance, order, and every blind spot shown on two inputs."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import Generators, compose_grid
from joformer.monoidal import MonoidalEmbedding, align, blind_spots, m_representation
from joformer.monoidal._periods import period, whole_turns

CLOSE = {torch.float32: 2e-4, torch.float64: 1e-10}
TURN = 2 * math.pi


def torus(*rows, dtype=torch.float64):
    return Generators.torus(torch.tensor(rows, dtype=dtype))


def slowly(x, generators, window, circular):
    """Every window composed cell by cell."""
    axes = generators.axes
    grid = x.shape[x.ndim - 1 - axes : -1]
    total = 0.0
    for start in itertools.product(*(range(n if circular else n - m + 1) for n, m in zip(grid, window))):
        piece = x
        for k, (n, m, a) in enumerate(zip(grid, window, start)):
            piece = piece.index_select(x.ndim - 1 - axes + k, torch.arange(a, a + m) % n)
        total = total + compose_grid(piece, generators).content.unflatten(-1, (-1, 2)).norm(dim=-1)
    return total


def gap(a, b):
    return float((a - b).detach().abs().max())


def real(*grid, planes, seed=0):
    """Real content x_n·e in general position: one number a cell, the same vector for all."""
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(*grid, 1, dtype=torch.float64, generator=gen) * torch.randn(2 * planes, generator=gen).double()


def general(*grid, planes, seed=0):
    return torch.randn(*grid, 2 * planes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40)
@given(st.data(), st.integers(1, 3), st.booleans(), st.booleans())
def test_windows_by_doubling_are_windows_cell_by_cell(data, axes, circular, wide):
    dtype = torch.float64 if wide else torch.float32
    grid = data.draw(st.lists(st.integers(1, 9 if axes == 1 else 4), min_size=axes, max_size=axes))
    window = [data.draw(st.integers(1, n)) for n in grid]
    generators = Generators.torus(torch.randn(axes, 2, dtype=dtype))
    x = torch.randn(2, *grid, 4, dtype=dtype)
    v = m_representation(x, generators, window=window, circular=circular)
    assert v.dtype == dtype
    assert v.shape == (2, 2)
    assert gap(v, slowly(x, generators, window, circular)) < CLOSE[dtype] * max(1.0, float(v.max()))


@pytest.mark.parametrize("window", range(1, 18))
def test_every_length_of_window(window):
    generators, x = torus([0.7, -1.3]), general(17, planes=2)
    for circular in (True, False):
        v = m_representation(x, generators, window=window, circular=circular)
        assert gap(v, slowly(x, generators, [window], circular)) < 1e-10


def test_the_direction_of_turning_matters():
    """(1, 0) then (0, 1) at a quarter turn: R takes the second to (−1, 0), so the window vanishes; not at −90°."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert m_representation(x, torus([math.pi / 2]), window=2, circular=False).item() < 1e-6
    assert abs(m_representation(x, torus([-math.pi / 2]), window=2, circular=False).item() - 2) < 1e-6


@settings(max_examples=25)
@given(st.integers(1, 3), st.data())
def test_row_34_invariant_to_circular_shifts(axes, data):
    grid = data.draw(st.lists(st.integers(2, 5), min_size=axes, max_size=axes))
    by = [data.draw(st.integers(0, 5)) for _ in grid]
    generators, x = Generators.torus(torch.randn(axes, 3, dtype=torch.float64)), torch.randn(*grid, 6).double()
    v = m_representation(x, generators, window=2)
    assert gap(m_representation(x.roll(by, tuple(range(axes))), generators, window=2), v) < 1e-10


def test_row_35_orders_are_told_apart():
    """All permutations of a window of four differ, for an irrational angle and for one of order 5 > 4."""
    for theta in (1.0, TURN / 5, 2 * TURN / 5):
        x = general(4, planes=1)
        seen = [
            m_representation(x[list(p)], torus([theta]), window=4, circular=False).item()
            for p in itertools.permutations(range(4))
        ]
        assert min(b - a for a, b in itertools.pairwise(sorted(seen))) > 1e-6
        assert blind_spots(torus([theta]), 4, real=False).order_aware
        # Real content: each value twice, an order and its reversal.
        y = real(4, planes=1)
        seen = sorted(
            m_representation(y[list(p)], torus([theta]), window=4, circular=False).item()
            for p in itertools.permutations(range(4))
        )
        assert max(b - a for a, b in zip(seen[0::2], seen[1::2])) < 1e-12
        assert min(b - a for a, b in zip(seen[1::2], seen[2::2])) > 1e-6
        assert blind_spots(torus([theta]), 4).reversals == ((0,),)


@pytest.mark.parametrize("circular", [True, False])
def test_blind_to_reversal_of_real_content(circular):
    generators = torus([0.7, 1.9])
    spots = blind_spots(generators, 3)
    assert spots.reversals == ((0,),)
    assert spots.order_aware
    for content, same in ((real, True), (general, False)):
        x = content(8, planes=2)
        v, w = (m_representation(c, generators, window=3, circular=circular) for c in (x, x.flip(0)))
        assert (gap(v, w) < 1e-10) == same
    assert blind_spots(generators, 3, real=False).reversals == ()


@pytest.mark.parametrize(
    ("angles", "reversals"),
    [
        ([[0.7, 0.4], [1.1, -0.3]], {(0, 1)}),  # each plane turned by both axes
        ([[0.7, 0.0], [0.0, 0.4]], {(0,), (1,), (0, 1)}),  # axial: each axis on its own
        ([[0.7, math.pi], [math.pi, 0.4]], {(0,), (1,), (0, 1)}),  # half turns are their own inverse
        ([[0.7, 0.9], [0.0, math.pi]], {(0,), (1,), (0, 1)}),
    ],
)
def test_blind_to_reversal_of_some_axes(angles, reversals):
    generators = torus(*angles)
    assert set(blind_spots(generators, 3).reversals) == reversals
    unconditional = set(blind_spots(generators, 3, real=False).reversals)
    for content, blind in ((real, reversals), (general, unconditional)):
        x = content(4, 5, planes=2)
        v = m_representation(x, generators, window=3)
        for axes in ((0,), (1,), (0, 1)):
            same = gap(m_representation(x.flip(axes), generators, window=3), v) < 1e-10
            assert same == (axes in blind), (content.__name__, axes)


def swapped(x, a, b):
    y = x.clone()
    y[tuple(a)], y[tuple(b)] = x[tuple(b)], x[tuple(a)]
    return y


@pytest.mark.parametrize(
    ("angles", "window", "swaps"),
    [
        ([[TURN / 3, 2 * TURN / 3]], (5,), {(3,)}),
        ([[TURN / 2, TURN / 3]], (8,), {(6,)}),  # each plane alone is blind sooner than both together
        ([[TURN / 2, TURN / 3]], (5,), set()),
        ([[0.0]], (3,), {(1,)}),
        ([[1.0, 2.0]], (6,), set()),
        ([[TURN / 8, TURN / 4], [TURN / 8, TURN / 4]], (3, 3), {(1, -1)}),  # the printed diagonal
        ([[TURN / 2, 1.0], [1.0, TURN / 2]], (3, 3), set()),
        ([[TURN / 2, TURN / 2], [1.0, 2.0]], (3, 2), {(2, 0)}),
    ],
)
def test_blind_to_swaps(angles, window, swaps):
    """Exchanging two cells of a window is invisible for the displacements reported, their multiples, and no other."""
    generators = torus(*angles)
    assert set(blind_spots(generators, window).swaps) == swaps
    x = general(*window, planes=generators.group.planes)
    v = m_representation(x, generators, window=window, circular=False)
    for a, b in itertools.combinations(itertools.product(*map(range, window)), 2):
        span = tuple(q - p for p, q in zip(a, b))
        told = any(tuple(f * c for c in s) in (span, tuple(-c for c in span)) for s in swaps for f in range(1, 9))
        same = gap(m_representation(swapped(x, a, b), generators, window=window, circular=False), v) < 1e-10
        assert same == told, (a, b)


@pytest.mark.parametrize(("order", "rotations"), [(4, (0,)), (2, (0,)), (3, ()), (5, ())])
def test_blind_to_rotations_of_the_window(order, rotations):
    generators, x = torus([TURN / order]), general(4, planes=1)
    spots = blind_spots(generators, 4)
    assert spots.rotations == rotations
    v, w = (m_representation(c, generators, window=4, circular=False) for c in (x, x.roll(1, 0)))
    assert (gap(v, w) < 1e-10) == bool(rotations)
    two = torus([TURN / order], [1.0])
    assert blind_spots(two, (4, 3)).rotations == rotations


def test_planes_that_see_only_the_sum():
    generators = torus([0.0, 1.0])
    assert blind_spots(generators, 4).sum_only == (0,)
    x = general(4, planes=2)
    v, w = (m_representation(c, generators, window=4, circular=False) for c in (x, x[[2, 0, 3, 1]]))
    assert abs(v[0] - w[0]) < 1e-10
    assert abs(v[1] - w[1]) > 1e-3


def test_partial_reversal_is_why_real_content_needs_one_plane_above_the_window():
    """Orders 3 and 5 see together 15 places, yet t → 4t modulo 15 reverses one and not the other: invisible."""
    generators = torus([TURN / 3, TURN / 5])
    together = blind_spots(generators, 14)
    assert not together.swaps
    assert not together.rotations
    assert not together.order_aware
    assert blind_spots(generators, 14, real=False).order_aware
    moved = [(14 + 4 * (t - 14)) % 15 for t in range(14)]
    assert sorted(moved) == list(range(14))
    for content, same in ((real, True), (general, False)):
        x = content(14, planes=2)
        v, w = (m_representation(c, generators, window=14, circular=False) for c in (x, x[moved]))
        assert (gap(v, w) < 1e-10) == same


def test_orders_and_text():
    spots = blind_spots(torch.tensor([[0.0, math.pi, TURN / 3, TURN / 7, 1.0]]), 4)
    assert spots.orders == ((1, 2, 3, None, None),)
    assert spots.order_aware
    assert str(spots).splitlines() == [
        "window (4,), real or collinear content: order-aware",
        "reversing axis 0 is invisible",
        "axis 0, order 1: cells 1 apart look alike to planes 0",
        "axis 0, order 2: cells 2 apart look alike to planes 1",
        "axis 0, order 3: cells 3 apart look alike to planes 2",
        "planes 0 see only the sum",
    ]
    assert "rotations of the window look alike to planes 0" in str(blind_spots(torus([TURN / 4]), 4))
    assert "not order-aware" in str(blind_spots(torus([0.0] * 9), 2))
    assert "planes 0, 1, 2, 3, 4, 5 and 3 more see only the sum" in str(blind_spots(torus([0.0] * 9), 2))
    assert blind_spots(torus([1.0]), 1).order_aware
    assert blind_spots(torus([0.0]), 1).order_aware


@pytest.mark.parametrize("n", [2, 28, 1000, 16000])
def test_periods(n, dtype):
    theta = TURN * torch.arange(12, dtype=torch.float64) / n
    assert period(theta.to(dtype)) == n
    assert period((theta * 2).to(dtype)) == (n // 2)
    assert period(torch.cat([theta, torch.tensor([0.9])]).to(dtype)) is None


def test_no_period_by_accident():
    """A single fp32 angle is near a whole turn for some n; that is not a period."""
    for seed in range(30):
        assert period(torch.randn(1, generator=torch.Generator().manual_seed(seed))) is None
    assert period(torch.tensor([1.0, 2.0])) is None  # 710 is nearly 113 turns
    assert period(torch.zeros(3)) == 1
    assert period(torch.tensor([TURN])) == 1
    assert whole_turns(torch.tensor([1, -1]), torch.tensor([[0.3], [0.3]])).all()


def test_gradients():
    generators = torus([0.7, 1.9])
    x = general(6, planes=2).requires_grad_()
    for circular in (True, False):
        assert torch.autograd.gradcheck(lambda c: m_representation(c, generators, window=3, circular=circular), (x,))  # noqa: B023
    theta = torch.tensor([[0.7, 1.9]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: m_representation(x.detach(), Generators.torus(t), window=5), (theta,))
    zero = torch.zeros(6, 4, requires_grad=True)
    m_representation(zero, generators, window=3).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(6, 4))


def test_layout_and_dtype():
    generators = torus([0.7, 1.9], [0.2, 0.1])
    x = torch.randn(3, 4, 5, 6).permute(1, 3, 2, 0)[..., [0, 1, 2, 0]]
    assert torch.allclose(
        m_representation(x, generators, window=2), m_representation(x.contiguous(), generators, window=2)
    )
    half = m_representation(x.bfloat16(), generators, window=2)
    assert half.dtype == torch.bfloat16
    assert m_representation(torch.empty(0, 3, 3, 4), generators, window=2).shape == (0, 2)


@pytest.mark.refused
def test_refused():
    generators = torus([0.7, 1.9])
    for x, window, message in [
        (torch.ones(5, 3), 2, "needs"),
        (torch.ones(4), 1, "windows"),
        (torch.ones(5, 4), 6, r"windows \(6,\) need \(..., 6 or more, 4\)"),
        (torch.ones(5, 4), 0, r"window \(0,\) is empty"),
        (torch.ones(5, 4), (2, 2), "has 2 entries"),
        (torch.ones(5, 4), 1.5, "is not whole"),
        (torch.ones(5, 4, dtype=torch.long), 2, "must be floating point"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            m_representation(x, generators, window=window)
        assert "\n" not in str(caught.value)
    curved = Generators.orthogonal(torch.eye(4)[None])
    with pytest.raises(ValueError, match="planes need a torus"):
        m_representation(torch.ones(5, 4), curved, window=2)
    with pytest.raises(ValueError, match="planes need a torus"):
        blind_spots(curved, 2)
    with pytest.raises(ValueError, match="give \\(axes, planes\\)"):
        blind_spots(torch.ones(3), 2)


def test_an_axis_with_a_window_of_one_cell_does_not_count():
    """Along it nothing is composed: what the other axis cannot see is as if it were alone."""
    one = blind_spots(torch.tensor([[torch.pi / 2]]), 2)
    two = blind_spots(torch.tensor([[1.0], [torch.pi / 2]]), (1, 2))
    assert two.reversals == tuple((k + 1,) for (k,) in one.reversals) == ((1,),)
    assert two.order_aware == one.order_aware


@pytest.mark.parametrize("n", [20, 128, 150, 224, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rotation_of_a_whole_period_is_always_told(n, dtype):
    """Fast planes of rounded angles prove nothing alone; the slow ones do."""
    regular = (2 * math.pi * torch.arange(n, dtype=torch.float64) / n)[None].to(dtype)
    found = blind_spots(regular, n, real=False)
    assert found.rotations == (0,)
    assert not found.order_aware


def test_angles_rounded_once_are_judged_by_that_rounding_in_any_dtype():
    third = torch.tensor([[math.pi / 3]])
    assert not blind_spots(third, 7).order_aware
    assert not blind_spots(third.double(), 7).order_aware
    embed = MonoidalEmbedding(40, 20)
    with torch.no_grad():
        embed.frequencies.copy_(2 * math.pi * torch.arange(20) / 20)
    assert blind_spots(embed.generators, 20).rotations == (0,)
    x = torch.randn(20)
    assert align(embed(x), embed(x[3:9]), embed.generators).period == (20,)


def test_long_windows_are_answered_at_once():
    assert blind_spots(torch.zeros(1, 16), 2000).swaps == ((1,),)
