"""Where one structure is inside another: the best shift between two embeddings, over all shifts at once.

    score(s) = ⟨X, R_1^{s_1} ⋯ R_D^{s_D} Y⟩ = Σ_k Re( X̄_k Y_k e^{i s·θ_k} ),        s* = argmax_s score(s)

Direction: X ≈ R^s Y, the first cell of Y is at cell s of X. If every angle is a multiple of 2π/n, the scores of all
shifts are one FFT; otherwise one sum per axis. Between whole steps the score is smooth, and Newton's method refines the
best shifts when `refined` is read. Paper: "Multi-Axis Alignment". The answer is unique only modulo the period of R;
with the full DFT the score is n × the circular cross-correlation (docs/claims.md row 48).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from joformer._precision import exact_device, without_autocast
from joformer.algebra import Element, Generators, Torus
from joformer.algebra._checks import in_float64, require_finite, tolerance, whole_numbers
from joformer.monoidal._composition import phases
from joformer.monoidal._periods import period, torus_angles
from joformer.spectral._fast import as_complex

NEWTON_STEPS = 24
STARTS = 16
HALVINGS = 6


@dataclass(frozen=True, eq=False)
class Alignment:
    """The best shift s of Y inside X, X ≈ R^s Y; `print` shows to what extent the answer is unique.

    Attributes:
        axes: The aligned axes.
        shift: The best whole shift along each of `axes`, ``(..., axes)``; the shortest one among ties.
        score: The score of `shift`, ``(...)``.
        surface: The scores of all shifts, ``(..., *sizes)``.
        shifts: The shifts along each axis of `surface`.
        period: For each axis the shift after which all scores repeat, or None.
        ties: Number of shifts of the surface that are as good as the best, up to rounding, ``(...)``.
    """

    axes: tuple[int, ...]
    shift: Int[Tensor, "*batch axes"]
    score: Float[Tensor, "*batch"]
    surface: Float[Tensor, "..."]
    shifts: tuple[Int[Tensor, "_shifts"], ...]
    period: tuple[int | None, ...]
    ties: Int[Tensor, "*batch"]
    _refinement: Callable[[], tuple[Tensor, Tensor]] = field(repr=False)

    @property
    def refined(self) -> Float[Tensor, "*batch axes"]:
        """The best shift to a fraction of a step, ``(..., axes)``, refined from the sixteen best whole shifts.

        For content with angles up to ±π it need not be within one step of `shift`. Computed on first access and cached;
        carries no gradient.
        """
        return self._refined[0]

    @property
    def refined_score(self) -> Float[Tensor, "*batch"]:
        """The score of `refined`, ``(...)``."""
        return self._refined[1]

    @cached_property
    def _refined(self) -> tuple[Tensor, Tensor]:
        return self._refinement()

    @property
    def unique(self) -> Bool[Tensor, "*batch"]:
        """Whether no other shift of the surface is as good; beyond the surface the answer repeats with `period`.

        >>> quarter = Generators.torus(torch.tensor([[torch.pi / 2]]))
        >>> align(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), quarter).unique
        tensor(True)
        """
        return self.ties == 1

    def __str__(self) -> str:
        lines = []
        for axis, n in zip(self.axes, self.period, strict=True):
            if n == 1:
                lines.append(f"axis {axis}: no plane rotates, a shift along it is invisible")
            else:
                lines.append(f"axis {axis}: " + ("no period" if n is None else f"unique only modulo {n}"))
        tied = int((~self.unique).sum())
        if tied:
            most = int(self.ties.max())
            lines.append(f"{tied} of {self.ties.numel()} have several equally good shifts, up to {most}")
        return "\n".join(lines)


def align(
    x: Element | Float[Tensor, "..."],
    y: Element | Float[Tensor, "..."],
    generators: Generators | Float[Tensor, "axes planes"] | None = None,
    *,
    axes: int | Sequence[int] | None = None,
    limit: int | Sequence[int | None] | None = None,
) -> Alignment:
    """The best shift s* = argmax_s ⟨x, R^s y⟩ of y inside x, over all whole shifts.

    Reading `refined` on the result also searches between whole shifts. Fractions of a step rotate by the angles in
    (−π, π]: a band-limited signal in between.

    Args:
        x: The larger structure: its embedding ``(..., dim)``, or an element, whose origin is ignored.
        y: The smaller structure, likewise; batches broadcast.
        generators: The generators of the embeddings, or their angles ``(axes, planes)``; elements have their own.
        axes: The axes to shift along; all by default.
        limit: Shifts are −limit … limit, one limit for all axes or one per axis. Without it, an axis with period n
            tries 0 … n − 1, and an axis without a period every shift at which the two elements overlap.

    Returns:
        The best shift, its score, and the scores of all other shifts.

    Raises:
        ValueError: If x, y and the generators are incompatible, or an axis has neither a period nor a `limit`.

    Example:
        >>> from joformer.monoidal import MonoidalEmbedding
        >>> embed = MonoidalEmbedding(40, (20,), frequencies="dft")
        >>> signal = torch.randn(20, generator=torch.Generator().manual_seed(0))
        >>> found = align(embed(signal), embed(signal[7:12]), embed.generators)      # a fragment that starts at 7
        >>> found.shift, found.unique
        (tensor([7]), tensor(True))
        >>> print(found)
        axis 0: unique only modulo 20
    """
    theta = _common_angles(x, y, generators)
    kept = tuple(range(len(theta))) if axes is None else tuple(axes) if isinstance(axes, Sequence) else (axes,)
    if not kept or len(set(kept)) < len(kept) or not all(isinstance(k, int) and 0 <= k < len(theta) for k in kept):
        raise ValueError(f"unknown axes {axes}: name each once, from 0 to {len(theta) - 1}")
    first, second = (e.content if isinstance(e, Element) else e for e in (x, y))
    try:
        torch.broadcast_shapes(first.shape, second.shape)
    except RuntimeError:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"x and y have shapes {shapes}: their batches must agree or be 1") from None
    like = first.to(torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32))
    product = as_complex(like).conj() * as_complex(second.to(like))

    periods = tuple(period(theta[k]) for k in kept)
    limits = tuple(limit) if isinstance(limit, Sequence) else (limit,) * len(kept)
    if len(limits) != len(kept):
        raise ValueError(f"limit {limits} has {len(limits)} entries: give one for each of the {len(kept)} aligned axes")
    shifts = tuple(_range(x, y, k, n, most) for k, n, most in zip(kept, periods, limits, strict=True))
    angles = theta[list(kept)]
    with without_autocast(like.device):
        whole_periods = all(n is not None and most is None for n, most in zip(periods, limits, strict=True))
        if whole_periods and product.numel():
            surface = _surface_by_fft(product, angles, tuple(len(s) for s in shifts))
        else:
            surface = _surface(product, angles, shifts)

    flat = surface.flatten(surface.ndim - len(kept))
    near = tolerance(like.dtype) * product.abs().sum(-1, keepdim=True)
    equals = flat >= flat.amax(-1, keepdim=True) - near
    ties = equals.sum(-1)
    lengths = torch.cartesian_prod(*(s.abs() for s in shifts)).reshape(flat.shape[-1], -1).sum(-1).to(flat.device)
    at = torch.where(equals, lengths, lengths.max() + 1).argmin(-1)
    score = flat.gather(-1, at.unsqueeze(-1)).squeeze(-1)
    place = torch.unravel_index(at, surface.shape[surface.ndim - len(kept) :])
    found = torch.stack([s.to(at.device)[i] for s, i in zip(shifts, place, strict=True)], -1)
    # Newton's method takes many times as long as all whole shifts: it runs only when its result is read.
    refinement = partial(_between, product.detach(), angles.detach(), surface.detach(), shifts, at, near.detach())
    return Alignment(kept, found, score, surface, shifts, periods, ties, refinement)


def _between(
    product: Tensor, angles: Tensor, surface: Tensor, shifts: tuple[Tensor, ...], at: Tensor, near: Tensor
) -> tuple[Tensor, Tensor]:
    """The best shift to a fraction of a step, and its score; prefers the one refined from the best whole shift `at`."""
    sizes = surface.shape[surface.ndim - len(shifts) :]
    flat = surface.flatten(surface.ndim - len(shifts))
    # Between two steps a score may exceed that of the best whole shift: the next best are refined as well.
    starts = torch.cat([at.unsqueeze(-1), flat.topk(min(STARTS, flat.shape[-1])).indices], -1)
    unravelled = torch.unravel_index(starts, sizes)
    places = torch.stack([s.to(at.device)[i] for s, i in zip(shifts, unravelled, strict=True)], -1)
    refined, heights = _refine(product.unsqueeze(-2), angles, places)
    first_is_best = heights[..., 0] >= heights.amax(-1) - near.squeeze(-1)
    chosen = torch.where(first_is_best, 0, heights.argmax(-1)).unsqueeze(-1)
    height = heights.gather(-1, chosen).squeeze(-1)
    shift = refined.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, len(shifts))).squeeze(-2)
    return shift.to(surface), height.to(surface)


def _common_angles(x: object, y: object, generators: object) -> Float[Tensor, "axes planes"]:
    elements = [e for e in (x, y) if isinstance(e, Element)]
    if generators is None and not elements:
        raise ValueError("no generators: pass those of the embedding as the third argument, or two elements")
    generators = elements[0].generators if generators is None else generators
    if isinstance(generators, Generators) and not all(e.generators.same_as(generators) for e in elements):
        raise ValueError("different generator sets: embed both with the same Generators")
    angles = torus_angles(generators)
    for name, e in (("x", x), ("y", y)):
        if not isinstance(e, Element):
            Torus(angles.shape[1]).check_vector(e, name)  # type: ignore[arg-type]
            require_finite(e, name)  # type: ignore[arg-type]
    return angles


def _range(x: object, y: object, axis: int, n: int | None, limit: int | None) -> Int[Tensor, "_shifts"]:
    if limit is not None:
        (most,) = whole_numbers(limit, 1, "limit")
        if most < 0:
            raise ValueError(f"limit {most} allows no shift: it must be 0 or more")
        return torch.arange(-most, most + 1)
    if n is not None:
        return torch.arange(n)
    if isinstance(x, Element) and isinstance(y, Element):
        return torch.arange(min(1 - y.extent[axis], 0), max(x.extent[axis], 1))
    raise ValueError(f"axis {axis} has no period: pass limit=, the largest shift to try, or two elements")


def _surface_by_fft(product: Tensor, angles: Tensor, sizes: tuple[int, ...]) -> Float[Tensor, "..."]:
    place = torch.zeros(angles.shape[1], dtype=torch.long)
    for theta, n in zip(angles.detach().to("cpu", torch.float64), sizes, strict=True):
        place = place * n + (theta * n / (2 * math.pi)).round().long() % n
    empty = product.new_zeros(*product.shape[:-1], math.prod(sizes))
    bins = empty.index_add(-1, place.to(product.device), product).unflatten(-1, sizes)
    return torch.fft.ifftn(bins, dim=tuple(range(-len(sizes), 0)), norm="forward").real


def _surface(product: Tensor, angles: Tensor, shifts: tuple[Tensor, ...]) -> Float[Tensor, "..."]:
    wide = in_float64(angles)
    *outer, last = (phases(s.to(wide)[:, None] * theta, product.real) for theta, s in zip(wide, shifts, strict=True))
    for rotations in outer:  # (shifts, planes)
        product = product[..., None, :] * rotations
    return product.real @ last.real.mT - product.imag @ last.imag.mT


@torch.no_grad()
def _refine(
    product: Complex[Tensor, "... planes"], angles: Float[Tensor, "axes planes"], start: Int[Tensor, "*starts axes"]
) -> tuple[Float[Tensor, "*starts axes"], Float[Tensor, "*starts"]]:
    """Newton's method from whole shifts, never more than one step away from them and never downhill."""
    device = exact_device(product.device)
    c, begin = product.to(device, torch.complex128), start.to(device, torch.float64)
    turns = angles.to(device, torch.float64) / (2 * math.pi)
    theta = (turns - turns.round()) * 2 * math.pi
    s, rotated = begin, c * phases(begin @ theta, begin)
    best = rotated.real.sum(-1)
    for _ in range(NEWTON_STEPS):
        gradient = -(rotated.imag @ theta.mT)
        curvature = torch.einsum("...k,ak,bk->...ab", rotated.real, theta, theta)
        # Uphill whatever the signs: a step along each principal axis by the size of its curvature.
        size, principal = torch.linalg.eigh(curvature)
        floor = 1e-12 * rotated.abs().sum(-1)[..., None] + torch.finfo(s.dtype).tiny
        along = (principal.mT @ gradient[..., None]).squeeze(-1) / size.abs().clamp(min=floor)
        step = (principal @ along[..., None]).squeeze(-1)
        step = step / (2 * step.abs().amax(-1, keepdim=True)).clamp(min=1)
        waiting = torch.ones_like(best, dtype=torch.bool)
        for _ in range(HALVINGS):
            tried = begin + (s + step - begin).clamp(-1, 1)
            there = c * phases(tried @ theta, tried)
            better = waiting & (there.real.sum(-1) > best)
            s, rotated = torch.where(better[..., None], tried, s), torch.where(better[..., None], there, rotated)
            best, step, waiting = rotated.real.sum(-1), step / 2, waiting & ~better
            if not waiting.any():
                break
        if waiting.all():
            break
    return s.to(start.device), best.to(start.device)
