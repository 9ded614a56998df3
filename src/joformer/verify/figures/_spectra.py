"""The displacement kernel: what a head with these frequencies can see.

    K(Δ) = (1/planes) Σ_b cos(ω_b · Δ)

is the score between equal content a displacement Δ apart when all planes hold equal energy. Where K(Δ) = 1 the two
places share one frame, P = I, and no head can tell them apart. Paper: "Toral Classification", "Architecture
Variants"; docs/claims.md rows 14 and 39; docs/conventions.md, the reading of the combined split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.algebra import Generators, absolute
from joformer.frequencies import geometric, per_axis
from joformer.positions import grid, sequence
from joformer.verify.figures._sheet import DARK, LIGHT, MIDDLE, Axes, Figure, sheet

BLIND = 1 - 1e-9


def displacement_kernel(angles: Tensor, displacements: Tensor) -> Float[Tensor, "..."]:
    """K(Δ) = (1/planes) Σ_b cos(ω_b · Δ).

    Args:
        angles: ω, radians per step, (axes, planes).
        displacements: Δ, (..., axes).

    Returns:
        The kernel, (...).

    Example:
        >>> displacement_kernel(torch.tensor([[torch.pi, 0.0]]), torch.tensor([[0.0], [1.0], [2.0]]))
        tensor([1., 0., 1.])
    """
    return absolute(Generators.torus(angles), displacements).cos().mean(-1)


def displacement_kernel_figure(
    angles: Mapping[str, Tensor] | None = None, *, planes: int = 16, reach: int | None = None
) -> Figure:
    """Draws K(Δ) of sets of frequencies: lines for a sequence, images over (Δrow, Δcolumn) for a grid.

    Args:
        angles: Frequencies by name, each (1, planes) for a sequence or (2, planes) for a grid. The default compares
            spectra (geometric with base 10000 and 100, harmonics 2πb/2planes) and, with base 100, the three splits
            of `joformer.frequencies.per_axis`.
        planes: How many planes the default has, an even number.
        reach: The largest Δ drawn; by default 3·planes for lines and 12 for images.

    Example:
        >>> figure = displacement_kernel_figure({"mine": torch.tensor([[1.0, 0.1]])}, reach=8)
        >>> float(figure.axes[0].lines[0].get_ydata()[0])                    # K(0)
        1.0
    """
    own = angles is not None
    chosen = dict(angles) if angles is not None else _defaults(planes)
    for name, omega in chosen.items():
        if omega.ndim != 2 or omega.shape[0] not in (1, 2) or not omega.shape[1]:
            raise ValueError(f"angles of {name!r} have shape {tuple(omega.shape)}: give (1, planes) or (2, planes)")
    if not chosen:
        raise ValueError("no angles given: name at least one set, {'mine': tensor of (1 or 2, planes)}")
    lines, images = (
        {name: omega.detach().cpu().double() for name, omega in chosen.items() if len(omega) == axes} for axes in (1, 2)
    )
    far, wide = (3 * planes, 12) if reach is None else (reach, reach)
    if min(far, wide) < 1:
        raise ValueError(f"reach must be 1 or more, got {reach}")

    caption = (
        f"K(Δ) is the mean of cos(ω · Δ) over {'the' if own else planes} planes: the score between equal content Δ "
        "apart. Where it is 1 (circles) no head can tell Δ from no displacement at all. "
    )
    if not own:
        caption += (
            f"Harmonics repeat after {2 * planes} steps; the same frequencies on both axes of a grid (diagonal) hide "
            "every Δ = (a, −a). docs/claims.md rows 14 and 39, docs/conventions.md “Combined fixed”; "
            "paper, “Architecture Variants”."
        )
    across = min(len(images), 2) or 1
    named = [*images, *["."] * (len(images) % across)]
    rows = [["lines"] * across] * bool(lines) + [named[n : n + across] for n in range(0, len(named), across)]
    heights = [1.9] * bool(lines) + [2.55] * (len(rows) - bool(lines))
    title = "What a head can see is decided by its frequencies"
    with sheet(title, caption, height=sum(heights) + 1.6) as figure:
        panels: dict[str, Axes] = figure.subplot_mosaic(rows, height_ratios=heights)
        if lines:
            _draw_lines(panels.pop("lines"), lines, far)
        if images:
            bar = figure.colorbar(_draw_images(panels, images, wide), ax=list(panels.values()), shrink=0.75)
            bar.set_label("K(Δrow, Δcolumn)")
    return figure


def _defaults(planes: int) -> dict[str, Tensor]:
    if planes < 2 or planes % 2:
        raise ValueError(f"planes {planes} cannot be shared by two axes: give an even number")
    axial = per_axis(planes, 2, "axial", 100.0)
    harmonics = torch.arange(1, planes + 1, dtype=torch.float64) * (math.pi / planes)
    return {
        "geometric, base 10000": geometric(planes)[None],
        "geometric, base 100": geometric(planes, 100.0)[None],
        "harmonics": harmonics[None],
        "axial": torch.block_diag(*axial),  # each axis rotates planes of its own
        "combined": per_axis(planes, 2, "combined", 100.0),
        "diagonal": per_axis(planes, 2, "diagonal", 100.0),
    }


def _draw_lines(axes: Axes, lines: Mapping[str, Tensor], far: int) -> None:
    looks = ((DARK, "-"), (MIDDLE, "--"), (LIGHT, "-."), ("0.5", ":"), (MIDDLE, ":"), (LIGHT, "-"))
    for n, (name, omega) in enumerate(lines.items()):
        colour, style = looks[n % len(looks)]
        kernel = displacement_kernel(omega, sequence(far + 1))
        axes.plot(range(far + 1), kernel.tolist(), style, color=colour, linewidth=1.6, label=name)
        blind = [delta for delta in range(1, far + 1) if kernel[delta] > BLIND]
        axes.plot(blind, [1.0] * len(blind), "o", color="none", markeredgecolor=DARK, markersize=8)
    axes.set(xlabel="displacement Δ (steps)", ylabel="K(Δ)", xlim=(0, far))
    axes.grid(axis="y", color="0.85")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.1, 1), ncols=2, frameon=False)


def _draw_images(panels: Mapping[str, Axes], images: Mapping[str, Tensor], wide: int) -> Any:
    side = 2 * wide + 1
    cells = grid(side, side) - wide
    kernels = {name: displacement_kernel(omega, cells) for name, omega in images.items()}
    lowest = min(float(kernel.min()) for kernel in kernels.values())
    extent = (-wide - 0.5, wide + 0.5, wide + 0.5, -wide - 0.5)
    for name, kernel in kernels.items():
        axes = panels[name]
        image = axes.imshow(kernel.unflatten(0, (side, side)).numpy(), cmap="Greys", vmin=lowest, vmax=1, extent=extent)
        blind = cells[(kernel > BLIND) & cells.any(-1)]
        axes.plot(blind[:, 1].tolist(), blind[:, 0].tolist(), "o", color="none", markeredgecolor="white", markersize=5)
        found = f"{len(blind)} of these Δ\nare invisible" if len(blind) else "none of these Δ\nis invisible"
        axes.set(title=f"{name}:\n{found}", xlabel="Δcolumn (steps)", ylabel="Δrow (steps)")
    return image
