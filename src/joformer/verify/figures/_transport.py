"""Flat and curved transport as pictures: how far apart paths end, and how a vector comes back from a loop.

    spread(i, j) = max over orderings π, π' of i row and j column steps of ‖T(π) − T(π')‖
    H = T(loop),    angle of failure = ∠(v, H v)

Paper: "Path Transport and Commutativity", "Flat/Curved Dichotomy"; docs/claims.md rows 7 and 9.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from joformer.algebra import Generators, Group, Torus, holonomy, interchange_defect, is_flat, path_spread, scan
from joformer.verify.figures._sheet import DARK, LIGHT, MIDDLE, Axes, Figure, sheet

Steps = tuple[Tensor, Tensor, Group]  # down, across as in `plaquette_defect`, and their group


def path_spread_figure(
    flat: Generators | None = None,
    curved: Generators | None = None,
    *,
    nearly: Generators | None = None,
    size: int = 7,
    seed: int = 0,
) -> Figure:
    """Draws the largest ‖T(π) − T(π')‖ over orderings of i row steps and j column steps: zero when flat.

    The last panel follows the diagonal, on a logarithmic scale. All generators have two axes; by default they are
    rotations of space whose two axes of rotation enclose 0°, 1° and 90°.

    Args:
        flat: Generators that commute.
        curved: Generators that do not.
        nearly: Generators that nearly commute, for the last panel.
        size: Displacements 0 … size − 1 along each axis. Up to 7 every ordering counts; beyond, 1,000 random ones.
        seed: The seed of the random orderings.

    Example:
        >>> figure = path_spread_figure(size=3)
        >>> [axes.get_title().split(":")[0] for axes in figure.axes[:2]]
        ['flat', 'curved']
    """
    if size < 2:
        raise ValueError(f"size {size} gives no square: it must be 2 or more cells per side")
    chosen = {
        "flat": _rotations(0.0) if flat is None else flat,
        "nearly flat": _rotations(1.0) if nearly is None else nearly,
        "curved": _rotations(90.0) if curved is None else curved,
    }
    _check(flat=chosen["flat"], curved=chosen["curved"], nearly=nearly)
    cells = range(size)

    def spread(name: str, i: int, j: int) -> float:
        return float(path_spread(chosen[name], (i, j), seed=seed))

    maps = {name: [[spread(name, i, j) for j in cells] for i in cells] for name in ("flat", "curved")}
    lines = {name: [spread(name, n, n) for n in cells[1:]] for name in chosen}
    largest = {name: max(map(max, rows)) for name, rows in maps.items()}

    orderings = "over all orderings" if size <= 7 else "over up to 1,000 orderings, a lower bound,"
    caption = (
        f"Cell (i, j): the largest difference between transports T(π) {orderings} of i row steps and j column steps. "
        "Flat ones differ by rounding alone, curved ones as soon as both axes are used, and even a small commutator "
        "shows far above rounding (below). docs/claims.md rows 7 and 9; paper, “Path Transport and Commutativity”."
    )
    title = "Shared generators: transport ignores the path exactly when they commute"
    with sheet(title, caption, height=7.4) as figure:
        panels: dict[str, Axes] = figure.subplot_mosaic([["a", "b"], ["c", "c"]], height_ratios=(1.25, 1))
        left, right, below = panels.values()
        for axes, (name, rows) in zip((left, right), maps.items(), strict=True):
            image = axes.imshow(rows, cmap="Greys", vmin=0, vmax=largest["curved"])
            axes.set(title=f"{name}: at most {largest[name]:.2g}", xlabel="column steps j", ylabel="row steps i")
            axes.set(xticks=list(cells), yticks=list(cells))
            _number_cells(axes, rows, largest["curved"])
        bar = figure.colorbar(image, ax=[left, right], orientation="horizontal", shrink=0.8, aspect=30)
        bar.set_label("path spread ‖T(π) − T(π′)‖, Frobenius norm")
        looks = (("curved", LIGHT, "^-."), ("nearly flat", MIDDLE, "s--"), ("flat", DARK, "o-"))
        for name, colour, style in looks:
            size_of = float(interchange_defect(chosen[name], (1, 1)))
            shown = [max(value, 1e-17) for value in lines[name]]  # a logarithmic scale has no place for zero
            label = f"{name}, ‖R₁R₂ − R₂R₁‖ = {size_of:.1g}"
            below.semilogy(cells[1:], shown, style, color=colour, markersize=4.5, markeredgecolor=DARK, label=label)
        below.set(xlabel="steps along each axis n", ylabel="path spread\n(0 drawn at 10⁻¹⁷)", ylim=(1e-18, 1e2))
        below.set(title="along the diagonal i = j = n", xticks=list(cells[1:]))
        below.legend(loc="center", frameon=False)
        below.grid(axis="y", color="0.85")
    return figure


def holonomy_figure(
    flat: Generators | None = None,
    curved: Generators | None = None,
    *,
    steps: tuple[Tensor, Tensor] | None = None,
    side: int = 3,
    seed: int = 0,
) -> Figure:
    """Draws a vector carried round a square loop: flat, commuting but with an angle for each edge, and curved.

    At each point of the loop is T(path so far) v, v the first unit vector, of which the first two coordinates are
    drawn; at the end H v beside v. The last panel gives ∠(v, H v) for loops of sides 1 to 2·side from the same
    corner, beside the sum of the plaquettes that the middle one encloses.

    Args:
        flat: Generators of two axes that commute.
        curved: Generators of two axes that do not.
        steps: Angles (down, across) as `plaquette_defect` takes them, 2·side + 1 or more points along each side;
            random by default.
        side: Steps along each side of the loop.
        seed: The seed of random steps.

    Example:
        >>> figure = holonomy_figure(side=1)
        >>> figure.axes[0].get_title()
        'flat\\nreturns as it left (0°)'
    """
    if side < 1:
        raise ValueError(f"side {side} gives no loop: it must be 1 or more")
    points = 2 * side + 1
    flat = _rotations(0.0) if flat is None else flat
    curved = _rotations(90.0) if curved is None else curved
    _check(flat=flat, curved=curved)
    fields = {
        "flat": _shared(flat, points),
        "angles that differ by edge": _per_edge(steps, points, seed),
        "curved": _shared(curved, points),
    }
    sides = range(1, points)
    failures = {name: [_failure(field, n) for n in sides] for name, field in fields.items()}
    squares = [_plaquettes(fields["angles that differ by edge"], n) for n in sides]
    enclosed = [abs(math.remainder(sum(map(sum, angles)), 360)) for angles in squares]

    caption = (
        "A vector carried clockwise from the black point: as it leaves (black), on its way (grey), as it returns "
        "(outline); where it leaves the plane drawn, its arrow is short. With an angle for each edge the rotations "
        "commute and still fail, by the sum of the angles round the unit squares enclosed (numbers). "
        "docs/claims.md rows 7 and 9; paper, “Path Transport and Commutativity”."
    )
    looks = ((DARK, "o-"), (MIDDLE, "s"), (LIGHT, "^-."))
    with sheet("Round a loop, only flat transport brings a vector back to itself", caption, height=9.9) as figure:
        rows = [["a", "b"], ["c", "."], ["d", "d"]]
        panels: dict[str, Axes] = figure.subplot_mosaic(rows, height_ratios=(1.9, 1.9, 1))
        for key, (name, field) in zip("abc", fields.items(), strict=True):
            _draw_loop(panels[key], field, side)
            if isinstance(field[2], Torus):
                _number_plaquettes(panels[key], field, side)
            angle = failures[name][side - 1]
            verdict = "returns as it left (0°)" if angle < 1e-6 else f"returns rotated by {angle:.0f}°"
            panels[key].set_title(f"{name}\n{verdict}")
        axes = panels["d"]
        area = [n * n for n in sides]
        axes.plot(area, enclosed, "--", color=MIDDLE, label="predicted by squares")
        for (colour, style), (name, angles) in zip(looks, failures.items(), strict=True):
            axes.plot(area, angles, style, color=colour, markersize=5.5, markeredgecolor=DARK, label=name)
        axes.set(xlabel="area of the loop (unit squares)", ylabel="angle ∠(v, H v)\n(degrees)", xticks=area)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.05, 1), ncols=2, columnspacing=1, frameon=False)
        axes.grid(axis="y", color="0.85")
    return figure


def _rotations(degrees: float) -> Generators:
    """Rotations of space by 0.3 and 0.25 radians, about the vertical and about an axis that many degrees from it."""
    tilt = math.radians(degrees)
    skew = torch.zeros(2, 3, 3, dtype=torch.float64)
    skew[0, 1, 0], skew[1, 1, 0], skew[1, 2, 1] = 0.3, 0.25 * math.cos(tilt), 0.25 * math.sin(tilt)
    return Generators.orthogonal(torch.linalg.matrix_exp(skew - skew.mT))


def _check(*, flat: Generators, curved: Generators, nearly: Generators | None = None) -> None:
    for name, given in (("flat", flat), ("nearly flat", nearly), ("curved", curved)):
        if given is not None and given.axes != 2:
            raise ValueError(f"the {name} generators have {given.axes} axes: a picture of a grid needs two")
    flat.require_flat()
    if is_flat(curved):
        raise ValueError("the curved generators commute: give a pair that does not, e.g. of Generators.orthogonal")


def _number_cells(axes: Axes, rows: list[list[float]], largest: float) -> None:
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            ink = "white" if value > 0.55 * largest else "black"
            axes.text(j, i, f"{value:.1f}" if value > 1e-6 else "0", color=ink, ha="center", va="center", fontsize=8)


def _shared(generators: Generators, points: int) -> Steps:
    down, across = (step.expand(points - 1, points, *step.shape) for step in generators.steps)
    return down, across.transpose(0, 1), generators.group


def _per_edge(steps: tuple[Tensor, Tensor] | None, points: int, seed: int) -> Steps:
    if steps is None:
        rng = torch.Generator().manual_seed(seed % 2**63)
        shapes = ((points - 1, points, 1), (points, points - 1, 1))
        down, across = (0.15 * torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    else:
        down, across = steps
        if down.ndim != 3 or across.ndim != 3 or min(*down.shape[:2], *across.shape[:2]) < points - 1:
            raise ValueError(
                f"steps have shapes {tuple(down.shape)}, {tuple(across.shape)}: they must be (rows − 1, columns, "
                f"planes) and (rows, columns − 1, planes) with {points} rows and columns or more"
            )
    return down, across, Torus(down.shape[-1])


def _square(side: int) -> list[int]:
    return [1] * side + [0] * side + [~1] * side + [~0] * side


def _start(field: Steps) -> Tensor:
    return torch.eye(field[2].dim, dtype=field[0].dtype)[0]


def _failure(field: Steps, side: int) -> float:
    down, across, group = field
    start = _start(field)
    end = group.act(holonomy((down, across), _square(side), group=group), start)
    # arccos(v · Hv) loses half the digits near zero, this loses none.
    return math.degrees(2 * math.atan2(float((end - start).norm()), float((end + start).norm())))


def _plaquettes(field: Steps, side: int) -> list[list[float]]:
    """The angle round each unit square, in degrees, of the first plane; counted clockwise as the loop goes."""
    down, across, group = field
    around = partial(holonomy, (down, across), _square(1), group=group)
    return [[math.degrees(float(around(start=(i, j))[0])) for j in range(side)] for i in range(side)]


def _number_plaquettes(axes: Axes, field: Steps, side: int) -> None:
    for i, row in enumerate(_plaquettes(field, side)):
        for j, angle in enumerate(row):
            text = f"{angle:+.0f}°".replace("-", "−")
            axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", fontsize=8, zorder=5)


def _draw_loop(axes: Axes, field: Steps, side: int) -> None:
    down, across, group = field
    legs = (
        across[0, :side],
        down[:side, side],
        group.inverse(across[side, :side]).flip(0),
        group.inverse(down[:side, 0]).flip(0),
    )
    so_far = scan(group, torch.cat((*legs, group.identity(1).to(down))))  # the last entry is the whole loop
    arrows = group.act(so_far, _start(field))[:, :2].numpy(force=True)
    there = list(range(side))
    x = there + [side] * side + [side - j for j in there] + [0] * side
    y = [0] * side + there + [side] * side + [side - i for i in there]
    axes.plot([*x, 0], [*y, 0], color="0.6", linewidth=1, zorder=0)
    axes.plot(x, y, "o", color="white", markeredgecolor="0.4", markersize=4)
    axes.plot([0], [0], "o", color=DARK, markersize=6)
    size = {"angles": "uv", "scale_units": "xy", "width": 0.012}
    axes.quiver(x[1:], y[1:], arrows[1:-1, 0], arrows[1:-1, 1], color="0.5", scale=2.1, zorder=3, **size)
    # Wider and longer than what leaves, so that both are seen where they coincide.
    hollow = {"facecolor": "white", "edgecolor": DARK, "linewidth": 1.0, "scale": 1.1, "zorder": 4}
    axes.quiver([0], [0], arrows[-1:, 0], arrows[-1:, 1], **{**size, "width": 0.022}, **hollow)
    axes.quiver([0], [0], arrows[:1, 0], arrows[:1, 1], color=DARK, scale=1.5, zorder=5, **size)
    axes.set(xlim=(-0.75, side + 0.75), ylim=(side + 0.4, -1.1), aspect="equal", xlabel="column", ylabel="row")
    axes.set(xticks=range(side + 1), yticks=range(side + 1))
