"""Sounds as spectrograms, frequency × time: scores alone (QK) against scores and values (QKV).

    joformer reproduce speech                                 synthetic words, 3 seeds: a minute
    joformer reproduce speech --data DATA                     DATA/fsdd, spoken digits: twenty minutes

Expect: of spoken digits, after 300 steps, 76 % with scores and 88 % with values too (docs/results.md).

Not in the paper, which sketches it ("Audio and Spectrograms").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joformer.experiments.places import find
from joformer.experiments.sources import ImageSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import ViTConfig
from joformer.training import Recipe

MODELS = ("none", "rope2d", "joformer_old", "monoidal_axial", "joformer_axial")


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run; both scales are the same but for the number of steps."""
    where = find(data, ("fsdd",), scale, hub=None, embedded="words", sole=sole)
    source = ImageSource(where, batch=32)
    images = source.load()
    bands, frames = images.train.images.shape[2:]
    small = where == "words"
    total = steps or (120 if small else 600 if scale == "laptop" else 6000)
    recipe = Recipe(
        steps=total, lr=4e-3 if small else 1e-3, end=0.0, warmup=total // 12, betas=(0.9, 0.999), weight_decay=0.05,
        log_every=10, evaluate_every=max(1, total // 4), save_every=100, keep=1,
    )  # fmt: skip
    shape = {"dim": 32, "layers": 2} if small else {}
    cells = [
        Cell(
            model, "", seed,
            ViTConfig.spectrogram(bands, frames, len(images.classes), model=model, **shape), source, recipe,
        )
        for model in MODELS
        for seed in seeds
    ]  # fmt: skip
    return [
        plan(
            "speech",
            "Spectrograms, two axes",
            "accuracy",
            cells,
            scale=scale,
            baseline="rope2d",
            pairs=(("monoidal_axial", "joformer_axial"),),
            notes=(f"{total} steps of {source.batch} spectrograms of {bands} bands × {frames} frames.",),
        )
    ]
