"""Sets in space: coordinates as input, or as the positions of frames, on sets as they are, shifted and rotated.

    joformer reproduce points                                 digits as sets of 32 points, 3 seeds: four minutes
    joformer reproduce points --data DATA                     DATA/mnist, 48 points each: twenty minutes

Expect: shifts cost nothing where frames are flat and most where coordinates are the input; without features RoPE is
blind and RoPE + values leads; polar coordinates alone survive rotations (docs/results.md).

Not a table of the paper, whose positions are real numbers nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joformer.experiments.places import find
from joformer.experiments.sources import PointsSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.training import Recipe, resolve

MODELS: dict[str, dict[str, Any]] = {
    "coordinates": {"inputs": "coordinates"},
    "none": {},
    "scores, fixed": {"transport": "scores"},
    "both, fixed": {"transport": "both"},
    "both, learned": {"transport": "both", "frames": "learned"},
    "polar": {"transport": "both", "coordinates": "polar"},
}
"""What each changes in a model that reads the features of points and not where they are."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """Points that carry nothing and, of images, points that carry the ink of their pixel."""
    where = find(data, ("mnist",), scale, hub="mnist", embedded="digits", sole=sole)
    small, pixels = where == "digits", Path(where).name in ("digits", "mnist") or resolve(where).kind == "images"
    source = PointsSource(where, points=(32 if small else 48) if pixels else None)
    total = steps or (200 if small else 300 if scale == "laptop" else 6000)
    made = [_table("points", "Sets in space", source, scale, seeds, total)]
    if pixels:
        made.append(_table("points-ink", "Sets in space, with ink", replace(source, ink=True), scale, seeds, total))
    return made


def _table(recipe: str, title: str, source: PointsSource, scale: Scale, seeds: Sequence[int], total: int) -> Table:
    how = Recipe(
        steps=total, lr=2e-3, end=0.0, warmup=total // 12, betas=(0.9, 0.999), weight_decay=0.01, log_every=10,
        evaluate_every=total, save_every=100, keep=1,
    )  # fmt: skip
    plain, flat = source.plain(dim=64, layers=2, heads=4), source.load().axes < 2
    cells = [
        Cell(name, "", seed, replace(plain, **changes), source, how)
        for name, changes in MODELS.items()
        if not (flat and name == "polar")
        for seed in seeds
    ]
    return plan(
        recipe,
        title,
        source.metric,
        cells,
        scale=scale,
        baseline="coordinates",
        pairs=(("scores, fixed", "both, fixed"),),
        also=("accuracy_shifted", "accuracy_rotated"),
        notes=(
            f"{total} steps of {source.batch} sets as they are; 2 layers of 64, 4 heads.",
            "Tested as they are, each shifted by up to two radii along each axis, each rotated by any angle.",
        ),
    )
