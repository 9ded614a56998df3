"""Keywords in a stream: a causal encoder with a window, on time and frequency; scores alone against scores and values.

    joformer reproduce spotting                               synthetic words, 3 seeds: six minutes
    joformer reproduce spotting --data DATA                   DATA/fsdd, spoken digits: twenty minutes

Expect: see docs/results.md.

Not in the paper, which sketches it ("Audio and Spectrograms"). The columns are windows: how far a layer sees back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joformer.experiments.places import find
from joformer.experiments.sources import Scale, StreamSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.experiments.variants import variant
from joformer.training import Recipe

MODELS = ("none", "scores, fixed", "both, fixed", "scores, learned", "both, learned")
WINDOWS = (4, 16)
"""Patches of time that a layer sees."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run; both scales are the same but for the number of steps."""
    source = StreamSource(find(data, ("fsdd",), scale, hub=None, embedded="words", sole=sole))
    total = steps or ((100 if source.data == "words" else 300) if scale == "laptop" else 3000)
    recipe = Recipe(
        steps=total, lr=3e-3, end=0.0, warmup=total // 12, betas=(0.9, 0.999), weight_decay=0.05, log_every=10,
        evaluate_every=max(1, total // 4), save_every=max(1, total // 4), keep=1,
    )  # fmt: skip
    none = source.plain(dim=64, layers=2, heads=4)
    task = source.task()
    time = task.patch * task.streams.frame
    cells = [
        Cell(name, f"{window * time:.2g} s", seed, variant(replace(none, window=window), name), source, recipe)
        for window in WINDOWS
        for name in MODELS
        for seed in seeds
    ]
    return [
        plan(
            "spotting",
            "Keywords in a stream, windows",
            source.metric,
            cells,
            scale=scale,
            baseline="scores, fixed",
            pairs=(("scores, learned", "both, learned"),),
            also=("recall", "precision"),
            notes=(
                f"{total} steps of {source.batch} pieces of {source.seconds:g} s, words strung together in noise "
                f"{source.noise:g} dB below them; two layers of 64, causal; the test streams are heard piece by piece.",
                f"A word is spotted if its class fires once between its start and {task.tolerance:g} s after its end; "
                "all other firings are false alarms.",
            ),
        )
    ]
