"""Alignment: against every shift tried by the algebra, against circular cross-correlation, between whole steps."""

import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import Element, Generators, absolute
from joformer.monoidal import MonoidalEmbedding, align

CLOSE = {torch.float32: 1e-3, torch.float64: 1e-9}
TURN = 2 * math.pi


def scores_one_by_one(x, y, generators, shifts):
    sizes = [len(s) for s in shifts]
    out = []
    for s in itertools.product(*(s.tolist() for s in shifts)):
        moved = generators.group.act(absolute(generators, torch.tensor(s)), y.double())
        out.append((x.double() * moved).sum(-1))
    return torch.stack(out, -1).unflatten(-1, sizes)


def gap(a, b):
    return float((a - b).detach().abs().max())


def full_dft(n):
    return Generators.torus(TURN * torch.arange(n, dtype=torch.float64)[None] / n)


@settings(max_examples=25)
@given(st.integers(1, 3), st.booleans(), st.booleans(), st.data())
def test_the_surface_is_every_shift_by_the_algebra(axes, regular, wide, data):
    dtype = torch.float64 if wide else torch.float32
    planes = 3
    if regular:
        n = [data.draw(st.integers(1, 5)) for _ in range(axes)]
        angles = torch.stack([torch.randint(-m, m + 1, (planes,)).double() * TURN / m for m in n])
    else:
        angles = torch.randn(axes, planes, dtype=torch.float64)
    generators = Generators.torus(angles)
    x, y = torch.randn(2, 2 * planes, dtype=dtype), torch.randn(2, 2 * planes, dtype=dtype)
    found = align(x, y, generators, limit=None if regular else 2)
    slow = scores_one_by_one(x, y, generators, found.shifts)
    assert found.surface.dtype == dtype
    assert found.surface.shape == slow.shape
    assert gap(found.surface, slow) < CLOSE[dtype]
    assert gap(found.score, slow.flatten(1).max(-1).values) < CLOSE[dtype]
    best = generators.group.act(absolute(generators, found.shift), y.double())
    assert gap((x * best).sum(-1), found.score) < CLOSE[dtype]
    # The same by sums where an FFT was possible.
    if regular:
        other = align(x, y, generators, limit=3)
        assert gap(other.surface, scores_one_by_one(x, y, generators, other.shifts)) < CLOSE[dtype]


def test_row_48_full_dft_is_n_times_circular_cross_correlation(dtype):
    n = 12
    generators = full_dft(n)
    phases = torch.polar(torch.ones(n, n).double(), torch.arange(n).double()[:, None] * generators.steps)
    x, y = torch.randn(2, 3, n, dtype=torch.float64)
    ex, ey = (torch.view_as_real(v.to(phases.dtype) @ phases).flatten(-2).to(dtype) for v in (x, y))
    found = align(ex, ey, generators)
    correlation = np.stack([[np.dot(a, np.roll(b, s)) for s in range(n)] for a, b in zip(x.numpy(), y.numpy())])
    assert gap(found.surface, n * torch.from_numpy(correlation)) < CLOSE[dtype]
    assert found.period == (n,)
    embed = MonoidalEmbedding(2 * n, n, frequencies="dft")
    assert gap(align(embed(x), embed(y), embed.generators).surface, n * torch.from_numpy(correlation)) < 1e-9


@pytest.mark.parametrize("kind", ["learned", "dft"])
def test_a_fragment_is_found_where_it_was(kind, dtype):
    """y = x[7:12] sits at +7 and not at −7."""
    embed = MonoidalEmbedding(80, 40, frequencies=kind)
    x = torch.randn(4, 40, dtype=dtype)
    found = align(embed(x), embed(x[:, 7:37]), embed.generators, limit=20)
    assert found.shift.tolist() == [[7]] * 4
    assert found.unique.all()
    back = align(embed(x[:, 7:37]), embed(x), embed.generators, limit=20)
    assert back.shift.tolist() == [[-7]] * 4


def test_a_patch_is_found_on_two_axes_and_on_one():
    embed = MonoidalEmbedding(400, (20, 20), frequencies="dft").double()
    x = torch.randn(2, 20, 20, dtype=torch.float64)
    patch = x[:, 3:13, 8:19]
    found = align(embed(x), embed(patch), embed.generators)
    assert found.shift.tolist() == [[3, 8]] * 2
    assert found.surface.shape == (2, 20, 20)
    assert found.period == (20, 20)
    placed = embed(torch.nn.functional.pad(patch, (0, 0, 3, 0)))
    only = align(embed(x), placed, embed.generators, axes=1)
    assert only.shift.tolist() == [[8]] * 2
    assert only.surface.shape == (2, 20)
    turned = align(embed(x), embed(patch), embed.generators, axes=(1, 0))
    assert turned.shift.tolist() == [[8, 3]] * 2


def test_elements_try_every_overlap():
    torch.manual_seed(1)
    embed, x = MonoidalEmbedding(100, 50, spread=3.0), torch.randn(50)
    found = align(embed.tile(x), embed.tile(x[30:42], origin=30))
    assert (int(found.shifts[0][0]), int(found.shifts[0][-1])) == (-11, 49)
    assert found.shift.tolist() == [30]
    assert found.period == (None,)
    assert str(found) == "axis 0: no period"


@pytest.mark.parametrize("delay", [0.25, 2.5, -3.4, 0.0, 4.49])
def test_a_fractional_delay_is_recovered(delay):
    """A band-limited signal sampled again `delay` later: x(t) = y(t − delay), so X = R^delay Y."""
    n = 32
    k = torch.arange(-7, 8, dtype=torch.float64)
    amplitude = torch.randn(3, 15, dtype=torch.complex128)

    def sampled(shift):
        t = torch.arange(n, dtype=torch.float64) - shift
        return (amplitude @ torch.polar(torch.ones(15, n).double(), TURN / n * k[:, None] * t)).real

    embed = MonoidalEmbedding(n, n, frequencies="dft").double()
    found = align(embed(sampled(delay)), embed(sampled(0.0)), embed.generators, limit=8)
    assert gap(found.refined, torch.full((3, 1), delay)) < 1e-6
    assert bool((found.refined_score >= found.score - 1e-9).all())
    assert bool(((found.refined - found.shift).abs() <= 1).all())
    # Angles in [0, 2π) say the same at whole steps and must say the same in between.
    wrapped = Generators.torus(embed.angles % TURN)
    again = align(embed(sampled(delay)), embed(sampled(0.0)), wrapped, limit=8)
    assert gap(again.refined, found.refined) < 1e-6


def test_fractions_of_a_step_on_two_axes(dtype):
    embed = MonoidalEmbedding(60, (16, 16), spread=0.6).to(dtype)
    y = embed(torch.randn(5, 16, 16, dtype=dtype)).detach()
    by = torch.tensor([2.3, -1.6], dtype=torch.float64)
    x = embed.generators.group.act(absolute(embed.generators, by), y)
    found = align(x, y, embed.generators, limit=4)
    assert bool(((found.shift - by).abs() < 1).all())
    assert gap(found.refined, by) < (1e-3 if dtype == torch.float32 else 1e-6)
    assert gap(found.refined_score, y.square().sum(-1)) < CLOSE[dtype] * float(y.square().sum(-1).max())


def test_refinement_never_goes_downhill_and_stays_within_reach():
    generators = Generators.torus(torch.randn(2, 6, dtype=torch.float64) * 2)
    x, y = torch.randn(2, 50, 12, dtype=torch.float64)
    found = align(x, y, generators, limit=3)
    assert bool((found.refined_score >= found.score - 1e-9).all())
    assert bool((found.refined.abs() <= 4).all())  # within a step of some whole shift tried
    moved = generators.group.act(found.refined @ ((generators.steps + math.pi) % TURN - math.pi), y)
    assert gap((x * moved).sum(-1), found.refined_score) < 1e-9


def test_nothing_is_refined_before_it_is_read(monkeypatch):
    from joformer.monoidal import _alignment

    calls, refine = [], _alignment._refine

    def counted(*given):
        calls.append(len(given))
        return refine(*given)

    monkeypatch.setattr(_alignment, "_refine", counted)
    generators = Generators.torus(torch.rand(2, 5, dtype=torch.float64) * TURN)
    x, y = torch.randn(4, 10, dtype=torch.float64), torch.randn(4, 10, dtype=torch.float64)
    found = align(x, y, generators, limit=3)
    assert found.unique.shape == found.score.shape == (4,)
    assert "refine" not in repr(found)
    assert calls == []
    both = found.refined, found.refined_score
    assert len(calls) == 1
    assert found.refined is both[0]  # kept
    assert len(calls) == 1
    again = pickle.loads(pickle.dumps(align(x, y, generators, limit=3)))
    assert torch.equal(again.refined, both[0])
    assert torch.equal(again.refined_score, both[1])
    with torch.inference_mode():
        inside = align(x, y, generators, limit=3)
    assert torch.equal(inside.refined, both[0])


def test_ties_periods_and_what_is_said():
    embed = MonoidalEmbedding(16, 8, frequencies="dft").double()
    twice = torch.tensor([1.0, 2.0, 3.0, 0.0] * 2, dtype=torch.float64)
    found = align(embed(twice), embed(twice), embed.generators)
    assert found.ties.item() == 2
    assert not found.unique
    assert str(found) == "axis 0: unique only modulo 8\n1 of 1 have several equally good shifts, up to 2"
    beyond = align(embed(torch.randn(8).double()), embed(torch.randn(8).double()), embed.generators, limit=8)
    assert beyond.ties.item() in (2, 3)  # the range holds the period twice

    still = Generators.torus(torch.tensor([[0.0, 0.0], [TURN / 4, TURN / 3]]))
    x, y = torch.randn(2, 3, 4)
    found = align(x, y, still)
    assert found.period == (1, 12)
    assert found.surface.shape == (3, 1, 12)
    assert str(found).startswith(
        "axis 0: no plane rotates, a shift along it is invisible\naxis 1: unique only modulo 12"
    )
    flat = align(x, y, still, axes=0, limit=2)
    assert flat.ties.tolist() == [5, 5, 5]
    assert gap(flat.refined, flat.shift.double()) == 0

    diagonal = MonoidalEmbedding(8, (6, 6), frequencies="diagonal").double()
    image = torch.randn(6, 6).double()
    found = align(diagonal(image), diagonal(image), diagonal.generators)
    assert found.period == (8, 8)
    assert found.ties.item() == 8  # (1, −1) is invisible: a whole diagonal is equally good


def test_batches_broadcast_and_layouts():
    embed = MonoidalEmbedding(40, 20, frequencies="dft")
    x = torch.randn(3, 20)
    found = align(embed(x)[:, None], embed(x)[None], embed.generators)
    assert found.shift.shape == (3, 3, 1)
    assert found.shift.diagonal(0, 0, 1).tolist() == [[0, 0, 0]]
    one = align(embed(x[0]), embed(x[0]), embed.generators)
    assert one.shift.tolist() == [0]
    strided = torch.stack([embed(x), embed(x)], -1)[..., 0]
    assert torch.equal(
        align(strided, strided, embed.generators).shift, align(embed(x), embed(x), embed.generators).shift
    )
    mixed = align(Element(embed(x), (0,), (20,), embed.generators), embed(x))
    assert mixed.shift.tolist() == [[0]] * 3
    nothing = align(torch.empty(0, 40), torch.empty(0, 40), embed.generators)
    assert nothing.shift.shape == (0, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = align(embed(x), embed(x), embed.generators, limit=5).surface
    assert gap(inside, align(embed(x), embed(x), embed.generators, limit=5).surface) < 1e-3


def test_the_surface_has_gradients():
    x, y = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    regular = Generators.torus(torch.tensor([[TURN / 3, TURN / 2]], dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda a, b: align(a, b, regular).surface, (x, y))
    assert torch.autograd.gradcheck(lambda a, b: align(a, b, regular, limit=2).surface, (x, y))


@pytest.mark.refused
def test_refused():
    irregular, x = Generators.torus(torch.tensor([[1.0, 2.0]])), torch.ones(4)
    other = Generators.torus(torch.tensor([[1.0, 3.0]]))
    element = Element(x, (0,), (3,), irregular)
    for arguments, options, message in [
        ((x, x), {}, "no generators"),
        ((x, x, irregular), {}, "axis 0 has no period: pass limit="),
        ((element, x), {}, "axis 0 has no period"),
        ((x, x, irregular), {"limit": -1}, "limit -1 allows no shift"),
        ((x, x, irregular), {"limit": (1, 2)}, "has 2 entries"),
        ((x, x, irregular), {"limit": (1.5,)}, "is not whole"),
        ((x, x, irregular), {"axes": 1, "limit": 2}, "unknown axes 1: name each once, from 0 to 0"),
        ((x, x, irregular), {"axes": (0, 0), "limit": 2}, "name each once"),
        ((torch.ones(6), x, irregular), {"limit": 2}, "x has shape"),
        ((x, torch.ones(4, dtype=torch.long), irregular), {"limit": 2}, "y has dtype"),
        ((element, Element(x, (0,), (3,), other)), {}, "different generator sets"),
        ((x, x, Generators.orthogonal(torch.eye(4)[None])), {}, "planes need a torus"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            align(*arguments, **options)
        assert "\n" not in str(caught.value)


def test_between_steps_the_best_peak_is_found_though_another_whole_shift_scores_higher():
    found = 0
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        theta = (torch.rand(1, 6, dtype=torch.float64, generator=draw) * 2 - 1) * torch.pi
        y = torch.randn(12, dtype=torch.float64, generator=draw)
        true = (torch.rand(1, dtype=torch.float64, generator=draw) * 2 - 1) * 6
        generators = Generators.torus(theta)
        x = generators.group.act(true @ theta, y)
        found += bool((align(x, y, generators, limit=8).refined - true).abs().max() < 1e-6)
    assert found == 60  # 53 where only the best whole shift is refined


def test_the_more_precise_of_two_dtypes_counts():
    generators = Generators.torus(torch.rand(1, 8, dtype=torch.float64))
    x, y = torch.randn(16), torch.randn(16, dtype=torch.float64)
    assert align(x, y, generators, limit=3).surface.dtype == torch.float64
    exact = align(x.double(), y, generators, limit=3).surface
    torch.testing.assert_close(align(x, y, generators, limit=3).surface, exact)
