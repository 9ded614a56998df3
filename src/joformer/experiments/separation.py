"""What one layer can do: questions about where tokens are, for {none, scores, values, both} × {fixed, learned}.

    joformer reproduce separation                             seven questions, 1 and 2 layers, 3 seeds: ten minutes
    joformer reproduce separation --seeds 5                   what docs/results.md has

Expect: where all tokens are alike (the two "alone"), models without value transport stay at chance at any depth, and
those with it reach 95 to 100 %; among other kinds scores answer too, through the weights. A layer without positions
answers the control alone. docs/separation.md has the reasons, and `joformer verify --only separation` runs them.

Not in the paper, whose theory says what values add: what a head read tells where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joformer._log import counted
from joformer.experiments.sequences import KINDS, QUESTIONS
from joformer.experiments.sources import Scale, SequenceSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.experiments.variants import SIDES, variant
from joformer.models import LMConfig
from joformer.training import Recipe

MODELS = ("none", *(f"{side}, {frames}" for frames in ("fixed", "learned") for side in SIDES))
TITLES = {
    "displacement": ("How far back is the mark, among other kinds", 12.5),
    "displacement-alone": ("How far apart are two tokens that are alike", 12.5),
    "order": ("Which of two kinds comes first", 50.0),
    "before": ("What stands three before", 100 / 7),
    "window": ("How many marks within a window, among others", 12.5),
    "window-alone": ("How many tokens within a window, all alike", 12.5),
    "presence": ("Which kind is there: a control that needs no position", 12.5),
}
"""What is asked, and how many per cent are right without knowing where any token is."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """One table for each question; the same at both scales, and on no data but its own."""
    total = steps or 300
    every = max(1, total // 20)
    recipe = Recipe(
        steps=total, lr=3e-3, end=0.1, warmup=total // 20, weight_decay=0.01, log_every=every, evaluate_every=every,
        save_every=total, keep=1,
    )  # fmt: skip
    return [_table(question, scale, seeds, recipe) for question in QUESTIONS]


def _table(question: str, scale: Scale, seeds: Sequence[int], recipe: Recipe) -> Table:
    source, (title, blind) = SequenceSource(question), TITLES[question]
    plain = {
        layers: LMConfig(vocab=KINDS, dim=32, layers=layers, heads=4, base=100.0, tied=False, transport="none")
        for layers in (1, 2)
    }
    cells = [
        Cell(name, counted(layers, "layer"), seed, variant(config, name), source, recipe)
        for layers, config in plain.items()
        for name in MODELS
        for seed in seeds
    ]
    known = "the answers alone" if question == "presence" else "all but where tokens are"
    return plan(
        "separation",
        title,
        "accuracy",
        cells,
        scale=scale,
        models=MODELS,
        baseline="scores, fixed",
        pairs=tuple((f"scores, {frames}", f"both, {frames}") for frames in ("fixed", "learned")),
        notes=(
            f"{recipe.total} steps of {source.batch} sequences of {source.context} tokens for all, at one learning "
            "rate; 32 wide, 4 heads, parameters matched.",
            f"Who knows {known} is right in {blind:.3g} %.",
            "A limit of docs/separation.md that binds is exact: every seed then has the same accuracy, and what has no "
            "spread has no interval and no verdict here.",
            "Accuracy on 1,024 sequences that are drawn like those of training: it is about what a model can express "
            "and find in so many steps, not about what it generalises to.",
        ),
    )
