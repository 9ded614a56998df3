"""A representation of a sequence or grid by all its windows of m cells: shift-invariant and order-aware.

    s_k = Σ_{0 ≤ i < m} A_i x_{k+i},        v = Σ_k ( ‖s_k1‖, …, ‖s_kK‖ )          one norm for each plane
    s^{a+b}_k = s^a_k + R^a s^b_{k+a}       longer windows from shorter: the law of concatenation

If circular, v is invariant to every circular shift. Windows are doubled instead of summed, O(N log m) for each axis.
`blind_spots` lists what v cannot distinguish. Paper: "Shift-Invariance and Order-Awareness". The paper requires an
angle that is not a rational multiple of π; an order above the window suffices, and with real content reversal is
invisible for any angles (docs/claims.md row 35).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from joformer.algebra import Generators, Torus
from joformer.algebra._checks import whole_numbers
from joformer.monoidal._composition import phases
from joformer.monoidal._periods import accident, torus_angles, whole_turns
from joformer.spectral._fast import as_complex

SHOWN = 6  # number of items of a kind that are printed


def m_representation(
    x: Float[Tensor, "..."],
    generators: Generators | Float[Tensor, "axes planes"],
    *,
    window: int | Sequence[int],
    circular: bool = True,
) -> Float[Tensor, "... _planes"]:
    """Σ_k ( ‖s_k1‖, …, ‖s_kK‖ ) over all windows s_k = Σ_{i<m} A_i x_{k+i}, one norm per plane.

    The gradient is finite everywhere, 0 where a window sums to 0.

    Args:
        x: Cells, ``(..., n_1, …, n_D, dim)``.
        generators: Generators on the torus, or its angles ``(axes, planes)``.
        window: The length m, one for all axes or one per axis.
        circular: Whether windows wrap around, one at every cell; otherwise only windows that fit are used.

    Returns:
        The representation, ``(..., planes)``.

    Raises:
        ValueError: If `x`, `generators` and `window` are incompatible.

    Example:
        >>> generators = Generators.torus(torch.tensor([[0.7, 1.9]]))
        >>> x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
        >>> v = m_representation(x, generators, window=3)
        >>> v.shape, torch.allclose(m_representation(x.roll(4, 0), generators, window=3), v)     # shifted: the same
        (torch.Size([2]), True)
        >>> torch.allclose(m_representation(x[[1, 0, *range(2, 10)]], generators, window=3), v)  # reordered: not
        False
    """
    angles = torus_angles(generators)
    axes = len(angles)
    Torus(angles.shape[1]).check_vector(x, "x")
    if not x.is_floating_point():
        raise ValueError(f"x has dtype {x.dtype}: it must be floating point, float32 or float64")
    lengths = _window_lengths(window, axes)
    grid = tuple(x.shape[x.ndim - 1 - axes : -1])
    if len(grid) < axes or any(m > n for m, n in zip(lengths, grid, strict=True)):
        need = ", ".join(["...", *(f"{m} or more" for m in lengths), str(2 * angles.shape[1])])
        raise ValueError(f"x has shape {tuple(x.shape)}: windows {lengths} need ({need})")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    sums = as_complex(wide)
    for k, m in enumerate(lengths):
        along = sums.movedim(x.ndim - 1 - axes + k, -2)
        if circular:
            along = torch.cat([along, along[..., : m - 1, :]], -2)
        sums = _windows(along, angles[k], m, wide).movedim(-2, x.ndim - 1 - axes + k)
    return sums.abs().sum(tuple(range(-1 - axes, -1))).to(x.dtype)


def _windows(
    z: Complex[Tensor, "*batch n planes"], theta: Float[Tensor, "planes"], length: int, like: Tensor
) -> Complex[Tensor, "*batch _windows planes"]:
    """Σ_{i<m} e^{iθi} z_{k+i} for each window that fits, by the binary digits of m."""
    done: Tensor | None = None
    covered, power, reach = 0, z, 1
    while True:
        if length & reach:
            fitting = z.shape[-2] - covered - reach + 1
            done = power if done is None else _join(done, power, theta, covered, fitting, like)
            covered += reach
        if covered == length:
            return power if done is None else done
        power = _join(power, power, theta, reach, power.shape[-2] - reach, like)
        reach *= 2


def _join(first: Tensor, second: Tensor, theta: Tensor, steps: int, fitting: int, like: Tensor) -> Tensor:
    return torch.addcmul(first[..., :fitting, :], second[..., steps : steps + fitting, :], phases(theta * steps, like))


@dataclass(frozen=True)
class BlindSpots:
    """What an m-representation cannot distinguish, for given angles and window; `print` lists it.

    Within one window, for content in general position, swaps, rotations and reversals leave the norm of every plane
    unchanged, and so do their products. On several axes there can be others, but not if `order_aware` is True.

    Attributes:
        window: Length of the window along each axis.
        real: Whether content is real, or collinear in each plane.
        orders: The order q of each plane's angle along each axis, ``(axes, planes)``: q·θ is a whole number of turns.
            None if it is above the window: such a plane distinguishes every order along that axis.
        sum_only: Planes that no axis rotates: they see only the sum of a window.
        swaps: Displacements δ, with their multiples: exchanging the cells at n and n + δ is invisible.
        rotations: Axes along which rotating the window by one cell is invisible.
        reversals: Sets of axes whose joint reversal is invisible, also for the whole representation.
    """

    window: tuple[int, ...]
    real: bool
    orders: tuple[tuple[int | None, ...], ...]
    sum_only: tuple[int, ...]
    swaps: tuple[tuple[int, ...], ...]
    rotations: tuple[int, ...]
    reversals: tuple[tuple[int, ...], ...]

    @property
    def order_aware(self) -> bool:
        """Whether orders are distinguished, except for the listed reversals: True is guaranteed, False is not.

        There must be no swaps and no rotations and, for real content, along each axis a plane whose order is above the
        window. Without one, planes of different orders can each be reversed on their own without being noticed.
        """
        seen = all(None in along for along, m in zip(self.orders, self.window, strict=True) if m > 1)
        return not self.swaps and not self.rotations and (seen or not self.real)

    def __str__(self) -> str:
        kind = "real or collinear" if self.real else "general"
        lines = [f"window {self.window}, {kind} content: " + ("" if self.order_aware else "not ") + "order-aware"]
        lines += [f"swapping cells {_few(self.swaps)} apart is invisible"] if self.swaps else []
        lines += [f"rotating the window along axis {k} is invisible" for k in self.rotations]
        lines += [f"reversing {'axes' if len(s) > 1 else 'axis'} {_listed(s)} is invisible" for s in self.reversals]
        for axis, along in enumerate(self.orders):
            for q in sorted({q for q in along if q is not None}):
                planes = tuple(b for b, order in enumerate(along) if order == q)
                what = f"cells {q} apart look alike" if q < self.window[axis] else "rotations of the window look alike"
                lines.append(f"axis {axis}, order {q}: {what} to planes {_few(planes)}")
        lines += [f"planes {_few(self.sum_only)} see only the sum"] if self.sum_only else []
        return "\n".join(lines)


def blind_spots(
    generators: Generators | Float[Tensor, "axes planes"], window: int | Sequence[int], *, real: bool = True
) -> BlindSpots:
    """What `m_representation` cannot distinguish with these generators and this window.

    An angle counts as rational if it is so up to the rounding of its dtype and this is unlikely to be an accident: use
    float64 angles for windows of hundreds of cells.

    Args:
        generators: Generators on the torus, or its angles ``(axes, planes)``.
        window: Length of a window, one for all axes or one per axis.
        real: Whether content is real, or collinear in each plane (x_n·e): reversal is then invisible.

    Returns:
        The list, ready to print.

    Raises:
        ValueError: If a window is empty, or the generators are not on a torus.

    Example:
        >>> print(blind_spots(torch.tensor([[torch.pi / 2, 0.0]]), window=5))
        window (5,), real or collinear content: not order-aware
        swapping cells 4 apart is invisible
        reversing axis 0 is invisible
        axis 0, order 1: cells 1 apart look alike to planes 1
        axis 0, order 4: cells 4 apart look alike to planes 0
        planes 1 see only the sum
        >>> blind_spots(torch.tensor([[1.0]]), window=5, real=False).order_aware
        True
    """
    angles = torus_angles(generators).detach()
    axes, planes = angles.shape
    lengths = _window_lengths(window, axes)
    steps = torch.eye(axes, dtype=torch.long)

    orders = []
    for k, m in enumerate(lengths):
        spans = torch.arange(1, m + 1)[:, None] * steps[k]
        whole = whole_turns(spans, angles) & ~accident(spans, angles)
        first = whole.long().argmax(0) + 1
        orders.append(tuple(int(q) if any_ else None for q, any_ in zip(first, whole.any(0), strict=True)))
    turning = [k for k, m in enumerate(lengths) if m > 1]
    sum_only = tuple(b for b in range(planes) if all(orders[k][b] == 1 for k in turning))

    spans = torch.cartesian_prod(*(torch.arange(1 - m, m) for m in lengths)).reshape(-1, axes)
    spans = spans[len(spans) // 2 + 1 :]  # one of δ and −δ, and not 0
    swaps = _primitive(spans[_all_whole(spans, angles)].tolist())
    rotations = tuple(k for k in turning if _all_whole(lengths[k] * steps[k], angles))

    # Reversed along some axes, a plane must stay unchanged or, for real content, become its conjugate.
    half = [whole_turns(2 * steps[k], angles) for k in range(axes)]
    reversals = []
    for size in range(1, len(turning) + 1):
        for chosen in combinations(turning, size):
            same = torch.stack([half[k] for k in chosen]).all(0)
            others = [half[k] for k in turning if k not in chosen]
            mirrored = torch.stack(others).all(0) if others else torch.ones_like(same)
            if (same | mirrored if real else same).all():
                reversals.append(chosen)
    return BlindSpots(lengths, real, tuple(orders), sum_only, swaps, rotations, tuple(reversals))


def _all_whole(spans: Tensor, angles: Tensor) -> Tensor:
    """Whether R^δ = I in all planes, and not by an accident of rounding: the most reliable rotating plane decides."""
    sure = ~accident(spans, angles)
    still = (angles == 0).all(0).to(sure.device)
    return whole_turns(spans, angles).all(-1) & (sure & ~still).any(-1) | still.all()


def _primitive(spans: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    """The displacements that are not multiples of another one in the list, shortest first."""
    listed = {tuple(span) for span in spans}
    kept = []
    for span in sorted(listed, key=lambda s: (sum(c * c for c in s), s)):
        common = math.gcd(*span)
        parts = (tuple(c // f for c in span) for f in range(2, common + 1) if common % f == 0)
        if not any(part in listed for part in parts):
            kept.append(span)
    return tuple(kept)


def _window_lengths(window: int | Sequence[int], axes: int) -> tuple[int, ...]:
    lengths = whole_numbers((window,) * axes if isinstance(window, int) else window, axes, "window")
    if min(lengths) < 1:
        raise ValueError(f"window {lengths} is empty: it must hold 1 cell or more along each axis")
    return lengths


def _listed(items: Sequence[object]) -> str:
    return ", ".join(str(i[0]) if isinstance(i, tuple) and len(i) == 1 else str(i) for i in items)


def _few(items: Sequence[object]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return _listed(items[:SHOWN]) + more
