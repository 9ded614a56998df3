"""Images with text in one encoder: scores against scores and values, and journeys between words and patches.

    joformer reproduce pairs                                  pages of digits with their names, 3 seeds: ten minutes
    joformer reproduce pairs --data DATA                      DATA/cifar100, captions from its classes: half an hour

Expect: TODO (docs/results.md).

Not in the paper, which sketches it ("Cross-Modal"; docs/claims.md row 47). Journeys are joint (modality, word, row,
column), on shared axes (row and column, words in reading order), or off: each modality attends to itself alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joformer.attention._options import Transport
from joformer.experiments.places import find
from joformer.experiments.sources import PairsSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models._pairs import Journeys
from joformer.training import Recipe
from joformer.training.tasks.pairs import HELD_OUT

MODELS: dict[str, tuple[Transport, Journeys]] = {
    "none": ("none", "joint"),
    "scores, fixed": ("scores", "joint"),
    "both, fixed": ("both", "joint"),
    "scores, fixed, shared": ("scores", "shared"),
    "both, fixed, shared": ("both", "shared"),
    "scores, fixed, off": ("scores", "off"),
    "both, fixed, off": ("both", "off"),
}
"""What is transported, and how words and patches see each other."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run; both scales are the same but for the number of steps."""
    where = find(data, ("cifar100",), scale, hub="cifar100", embedded="captions", sole=sole)
    small = where == "captions"
    source = PairsSource(where, batch=64)
    total = steps or (200 if small else 300 if scale == "laptop" else 20_000)
    recipe = Recipe(
        steps=total, lr=6e-3 if small else 3e-3, end=0.0, warmup=total // 12, weight_decay=0.05, log_every=10,
        evaluate_every=max(1, total // 4), save_every=100, keep=1,
    )  # fmt: skip
    none = replace(source.plain(dim=64, layers=2, heads=4), patch=(8, 8), base=10.0)
    cells = [
        Cell(name, "", seed, replace(none, transport=transport, journeys=journeys), source, recipe)
        for name, (transport, journeys) in MODELS.items()
        for seed in seeds
    ]
    held = min(len(source.load().test), HELD_OUT)
    return [
        plan(
            "pairs",
            "Images with text",
            source.metric,
            cells,
            scale=scale,
            baseline="scores, fixed",
            pairs=(("scores, fixed, shared", "both, fixed, shared"), ("scores, fixed, off", "both, fixed, off")),
            also=("recall_1", "recall_5", "recall_10", "to_text_1", "to_image_1"),
            notes=(
                f"{total} steps of {source.batch} pairs, half of the tokens hidden; {none.layers} layers of "
                f"{none.dim}, patches of 8 × 8.",
                f"Recall is the mean of both directions, among {held} held-out pairs; those with the same caption, or "
                "class where captions are made from classes, are right.",
            ),
        )
    ]
