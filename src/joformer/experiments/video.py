"""Video on three axes, row × column × time: RoPE-3D (scores) against scores and values, joint and factorised attention.

    joformer reproduce video                                  moving digits, 16 × 16, 6 pictures: half an hour
    joformer reproduce video --data DATA                      DATA/mnist, Moving MNIST, 32 × 32, 8 pictures: an hour

Expect: see docs/results.md.

Not in the paper, which sketches it ("Video"). Two tables: what comes next (both digits move), and what moved where (one
of them does, in one of 8 directions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joformer.experiments.places import find
from joformer.experiments.sources import Scale, VideoSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.experiments.variants import variant
from joformer.models._video import Attention
from joformer.models._vit import eighths
from joformer.training import Recipe
from joformer.training.data.clips import has_classes
from joformer.training.data.moving import Question
from joformer.training.data.sources import resolve

MODELS = ("none", "scores, fixed", "both, fixed", "scores, learned", "both, learned")
ATTENTION: tuple[Attention, ...] = ("joint", "factorised")
TITLES: dict[Question, str] = {"next": "What comes next, one picture ahead", "class": "What moved where"}


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """A table for each question; both scales are the same but for the number of steps and the size of clips."""
    where = find(data, ("mnist",), scale, hub="mnist", embedded="moving", sole=sole)
    size, length = (None, None) if where == "moving" or scale == "paper" else (32, 8)
    found = resolve(where)
    asked: list[Question] = [*TITLES] if has_classes(found) or found.kind == "images" else ["next"]
    return [_table(VideoSource(where, question, size=size, length=length), scale, seeds, steps) for question in asked]


def _table(source: VideoSource, scale: Scale, seeds: Sequence[int], steps: int | None) -> Table:
    total = steps or (300 if scale == "laptop" else 20_000)
    every = max(1, total // 5)
    recipe = Recipe(
        steps=total, lr=6e-3, end=0.0, warmup=total // 12, betas=(0.9, 0.999), weight_decay=0.01, log_every=10,
        evaluate_every=every, save_every=every, keep=1,
    )  # fmt: skip
    plain = source.plain(dim=48, layers=2, heads=4)
    if source.question == "next":
        # A digit moves by a tenth of its way: from patches of a quarter, the next picture is mostly in the same patch.
        plain = replace(plain, patch=(*eighths(plain.shape[:2]), 1))
    cells = [
        Cell(name, attention, seed, variant(replace(plain, attention=attention), name), source, recipe)
        for seed in seeds
        for attention in ATTENTION
        for name in MODELS
    ]
    *_, rows, columns, length = source.load().train.images.shape
    notes = [
        f"{total:,} steps of {source.batch} clips of {rows} × {columns} pixels and {length} pictures; patches of "
        f"{' × '.join(map(str, plain.patch[:2]))} pixels of one picture; 2 layers of 48, 4 heads, parameters matched.",
        "factorised: the first layer attends within a picture, the second along time; as many parameters.",
    ]
    if source.question == "next":
        notes.append(
            "The error is the sum of squares over the pixels (0 … 1) of a picture, one step ahead of the true ones, "
            "mean over the later half of a clip; published figures of Moving MNIST are of ten steps on predictions."
        )
    elif not source.load().mirrored:
        notes.append("The class is that of a clip's folder.")
    else:
        notes.append("One of two digits crosses in one of 8 directions; who does not know when finds at most its axis.")
    return plan(
        f"video-{source.question}",
        TITLES[source.question],
        source.metric,
        cells,
        scale=scale,
        baseline="scores, fixed",
        pairs=(("scores, learned", "both, learned"),),
        notes=tuple(notes),
    )
