"""Trees: frames by the path from the root, commuting and dense, against RoPE on the sequence of nodes and others.

    joformer reproduce trees                                  Python's own library, 3 seeds: half an hour
    joformer reproduce trees --data DATA                      DATA/code, or DATA itself: any folder of Python

Expect: on hidden nodes dense tree frames ahead of all others, with values more so; on misuse little is learned in so
few steps (docs/results.md).

Not a table of the paper, which names tree encodings as a special case. Parameters, steps, data and seeds are matched;
on the valid split, whose files are not those of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joformer.experiments.places import find
from joformer.experiments.sources import Scale, TreeSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.experiments.variants import variant
from joformer.training import Recipe

MODELS = (
    "none", "shiv-quirk", "scores, fixed", "both, fixed", "scores, tree", "both, tree", "scores, tree-dense",
    "both, tree-dense",
)  # fmt: skip
STEPS = 500
DIM, LAYERS, HEADS = 64, 2, 4


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """One table, a column per question."""
    place = find(data, ("code",), scale, hub=None, embedded="stdlib-trees", sole=sole)
    total = steps or STEPS
    every = max(1, total // 4)
    recipe = Recipe(
        steps=total, lr=2e-3, end=0.1, warmup=total // 12, weight_decay=0.01, log_every=20, evaluate_every=every,
        save_every=every, keep=1,
    )  # fmt: skip
    cells = []
    for question in ("masked", "misuse"):
        source = TreeSource(place, question)
        none = source.plain(dim=DIM, layers=LAYERS, heads=HEADS)
        cells += [Cell(name, question, seed, variant(none, name), source, recipe) for name in MODELS for seed in seeds]
    return [
        plan(
            "trees",
            "Where nodes are in a tree",
            "accuracy",
            cells,
            named=place != "stdlib-trees",
            scale=scale,
            baseline="scores, fixed",
            pairs=tuple((f"scores, {kind}", f"both, {kind}") for kind in ("tree", "tree-dense")),
            also=("localised",),
            notes=(
                f"{total} steps of 32 trees of at most 96 nodes; {LAYERS} layers of {DIM}, {HEADS} heads; "
                "feed-forward widths are adjusted so that parameters match.",
                "masked: kinds of hidden nodes, 15 % of all. misuse: in half of the trees one use of a variable is "
                "replaced by another; which, or none.",
            ),
        )
    ]
