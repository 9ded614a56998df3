"""Does value transport help on anyone's data: text, images or sounds, by name or by path.

    joformer compare --data notes.txt                         RoPE and RoPE + values, 8 seeds, two budgets: some minutes
    joformer compare --data notes.txt --grid                  every kind of frames on every side, ALiBi, Shaw: an hour

Parameters, steps, data and seeds are matched. The question is asked at the budget that was given, and again at a
longer one: does it last? What a step takes is measured on its own, all models taking turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from joformer.experiments.sources import Source
from joformer.experiments.tables import Cell, Table, plan
from joformer.experiments.variants import grid_names, variant
from joformer.training import Recipe

BASELINE, VALUES = "scores, fixed", "both, fixed"
ROUNDS = 3
"""How often the time of a step is measured, each time in a process of its own."""


def tables(
    source: Source,
    seeds: Sequence[int],
    recipe: Recipe,
    *,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    longer: int = 1,
    grid: bool = False,
    looks: int = 1,
) -> list[Table]:
    """The table of what is learned, and that of what a step takes.

    >>> from joformer.experiments import TextSource
    >>> compared, timed = tables(TextSource("stdlib", context=32), (0, 1), Recipe(steps=5), dim=32, longer=4)
    >>> [cell.name for cell in compared.cells][::4], len(timed.cells)
    (['compare/scores-fixed/seed-0', 'compare/scores-fixed/20-steps/seed-0'], 3)
    """
    source.task()  # what no run can use is said before any of them starts
    none = source.plain(dim=dim, layers=layers, heads=heads)
    names = (*grid_names(source.frames), *source.baselines) if grid else (BASELINE, VALUES)
    made = {name: variant(none, name) for name in names}
    budgets = {"": recipe}
    if longer > 1:
        total = longer * recipe.total
        budgets[f"{total} steps"] = replace(recipe, steps=total, warmup=longer * recipe.warmup)
    cells = [
        Cell(name, size, seed, made[name], source, how)
        for size, how in budgets.items()
        for name in names
        for seed in seeds
    ]
    # The cost is that of the model as it is, not of one made narrower elsewhere.
    full = {name: variant(none, name, match=False) for name in names}
    rivals = tuple((name, full[name]) for name in names if name != BASELINE)
    timed = [
        Cell("round", "", turn, full[BASELINE], source, replace(recipe, steps=1), rivals=rivals)
        for turn in range(ROUNDS)
    ]
    pairs = tuple((f"scores, {kind}", f"both, {kind}") for kind in source.frames if kind != "fixed") if grid else ()
    return [
        plan(
            "compare",
            "Does value transport help",
            source.metric,
            cells,
            named=False,
            scale="laptop",
            baseline=BASELINE,
            pairs=pairs,
            looks=looks,
            notes=(
                f"{' and '.join(f'{how.total:,}' for how in budgets.values())} steps of {source.batch}; {layers} "
                f"layers of {dim}, {heads} heads; feed-forward widths are adjusted so that parameters match.",
            ),
        ),
        plan(
            "cost",
            "What a step costs compared with RoPE",
            "ratio",
            timed,
            named=False,
            scale="laptop",
            models=tuple(name for name, _ in rivals),
            reference=1.0,
            notes=(
                f"{ROUNDS} rounds, each a process of its own in which all models take turns, the best of twenty; "
                "parameters not matched.",
            ),
        ),
    ]
