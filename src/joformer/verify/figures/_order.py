"""Order-awareness of m-representations: which reorderings of a window change it, and which it cannot see.

    v = |Σ_i ω^i z_i|, ω = e^{iθ}        one plane of one window of m contents z

A permutation σ is seen when v(z_σ) ≠ v(z). Paper: "Shift-Invariance and Order-Awareness"; docs/claims.md rows 34 and
35: real content and its reversal agree, an angle of finite order q is enough only when q > m, and a circular shift of
the whole sequence is never seen, by design.
"""

from __future__ import annotations

import math
from itertools import permutations, product

import torch
from torch import Tensor

from joformer.algebra import Generators
from joformer.monoidal import m_representation
from joformer.verify.figures._sheet import DARK, MIDDLE, ROUNDING, Axes, Figure, sheet

MOST = 6  # 720 orders: more marks would cover each other
FLOOR = 1e-17  # where zero is drawn on a logarithmic scale


def order_awareness_figure(angle: float = 1.0, *, window: int = 4, seed: int = 0) -> Figure:
    """Draws |v(z_σ) − v(z)| in one plane for each of the m! − 1 reorderings σ of a window.

    Columns: complex content; real content; angles 2π/q of order q = m − 1, m and m + 1; and, in place of reorderings
    of a window, circular shifts of a sequence of 3m.

    Args:
        angle: The generator's, in radians.
        window: m, 3 to 6.
        seed: The seed of the contents, which have unit norm in all.

    Example:
        >>> figure = order_awareness_figure(window=3)
        >>> figure.axes[0].get_xlabel()
        'content and angle of the generator'
    """
    if not 3 <= window <= MOST:
        raise ValueError(f"window {window} cannot be drawn: its {window}! orders need a window of 3 to {MOST}")
    rng = torch.Generator().manual_seed(seed % 2**63)
    z = torch.randn(window, 2, generator=rng, dtype=torch.float64)
    z = z / z.norm()
    real = z * torch.tensor([1.0, 0.0], dtype=torch.float64)
    m, orders = window, torch.tensor(list(permutations(range(window))))[1:]
    cases = {f"complex\ncontent\nθ = {angle:.3g}": (z, angle), f"real\ncontent\nθ = {angle:.3g}": (real, angle)}
    for q, compared in ((m - 1, "q < m"), (m, "q = m"), (m + 1, "q > m")):
        cases[f"complex\ncontent\nθ = 2π/{q}\n{compared}"] = (z, 2 * math.pi / q)
    changes = {name: _changes(x, x[orders], theta, window=m, circular=False) for name, (x, theta) in cases.items()}
    longer = torch.randn(3 * m, 2, generator=rng, dtype=torch.float64)
    longer = longer / longer.norm()
    shifted = torch.stack([longer.roll(n, 0) for n in range(1, len(longer))])
    changes["circular\nshifts of\na longer\nsequence"] = _changes(longer, shifted, angle, window=m, circular=True)

    caption = (
        f"Each mark is one of the {len(orders)} reorderings of m = {m} contents (triangle: the reversal): how far it "
        "changes the m-representation. Hollow: orders that cannot be told apart. Real content hides its reversal, an "
        "angle of order q < m swaps of places q apart, one of order m cyclic shifts of the window; circular shifts "
        "are meant to be hidden. docs/claims.md rows 34 and 35; paper, “Shift-Invariance and Order-Awareness”."
    )
    title = "An m-representation sees order unless its content or its angle hides it"
    with sheet(title, caption, height=5.4) as figure:
        axes = figure.subplots()
        axes.axhspan(FLOOR / 10, ROUNDING, color="0.93")
        axes.text(-0.42, ROUNDING / 3, "rounding:\nnot told\napart", va="top")
        for column, (name, distances) in enumerate(changes.items()):
            _draw_column(axes, column, distances, reversal=name in cases)
        axes.set(yscale="log", ylim=(FLOOR / 4, 1e4), xlim=(-0.5, len(changes) - 0.5))
        axes.set(xlabel="content and angle of the generator", ylabel="|v(reordered) − v|  (0 drawn at 10⁻¹⁷)")
        axes.set_xticks(range(len(changes)), list(changes))
        for column in range(1, len(changes)):
            axes.axvline(column - 0.5, color="0.8", linewidth=0.8)
    return figure


def _draw_column(axes: Axes, column: int, distances: list[float], *, reversal: bool) -> None:
    count = len(distances)
    for hidden, last in product((False, True), repeat=2):  # the last permutation is the reversal
        marks = {
            column + 0.7 * ((n + 0.5) / count - 0.5): max(d, FLOOR)
            for n, d in enumerate(distances)
            if (d < ROUNDING) == hidden and (reversal and n == count - 1) == last
        }
        shape, size = ("^", 7) if last else ("o", 4.5)
        colour = "white" if hidden else MIDDLE
        axes.plot(list(marks), list(marks.values()), shape, color=colour, markeredgecolor=DARK, markersize=size)
    unseen = sum(d < ROUNDING for d in distances)
    axes.text(column, 12, f"{unseen} of {count}\nhidden", ha="center", va="bottom", fontweight="bold")


def _changes(content: Tensor, reordered: Tensor, angle: float, *, window: int, circular: bool) -> list[float]:
    """The distance of the m-representation of each of `reordered` from that of `content`."""
    line = Generators.torus(torch.tensor([[angle]], dtype=torch.float64))
    those, this = (m_representation(x, line, window=window, circular=circular) for x in (reordered, content))
    return (those - this).norm(dim=-1).tolist()
