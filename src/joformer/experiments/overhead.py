"""Overhead: what a training step takes and what parameters are added, all variants and RoPE in one process.

    joformer reproduce overhead                               3 rounds: two minutes, nothing else running
    joformer reproduce overhead --scale paper                 ViT-S, batch 1,024 in fp16, hours of 300 epochs: a GPU

Expect, on a CPU and at this small size: 1.03 to 1.05 for values by fixed angles, against the paper's 94 h / 72 h = 1.31
("unoptimized rotation ops"); 1.2 to 1.3 for learned angles, 1.4 for projected, 1.8 for cumulative ones. A round is a
fresh process; the interval is over rounds, each the best of twenty turns.

Paper: "Parameter and Wall-Clock Overhead".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joformer.experiments.places import find
from joformer.experiments.sources import ImageSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import ViTConfig
from joformer.training import Recipe

MODELS = ("none", "learned", "joformer_old", "monoidal_axial", "joformer_axial", "joformer_axial_perlayer", "projected",
          "cumulative")  # fmt: skip
HOURS = {"rope2d": 72.0, "joformer_old": 94.0, "joformer_axial": 94.0}
"""What the paper's runs took: 300 epochs of ViT-S on ImageNet, two H100."""
PAPER = 1.31  # 94 hours / 72 hours


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is measured; seeds are rounds."""
    if scale == "paper":
        where = find(data, ("imagenet",), scale, hub="imagenet", embedded="digits", sole=sole)
        source = ImageSource(where, batch=1024, augment="deit", stream=224)
        shape: dict[str, Any] = {"classes": len(source.load().classes), "drop_path": 0.1}
    else:  # what a step takes does not depend on what is in the images
        source = ImageSource("digits", batch=64)
        shape = {"shape": (8, 8), "patch": (1, 1), "channels": 1, "classes": 10, "dim": 64, "layers": 4, "heads": 4}
    rope = ViTConfig(model="rope2d", **shape)
    # A step is timed; hours are those of so many.
    total, models = (source.steps(300), ("rope2d", *MODELS)) if scale == "paper" else (1, MODELS)
    recipe = Recipe(steps=total, precision="fp16" if scale == "paper" else "fp32")
    rivals = tuple((model, ViTConfig(model=model, **shape)) for model in models)
    cells = [Cell("round", "", seed, rope, source, recipe, rivals=rivals) for seed in seeds]
    return [
        plan(
            "overhead",
            "What a step costs compared with RoPE in two dimensions",
            "ratio",
            cells,
            named=False,
            scale=scale,
            models=models,
            reference=1.0,
            paper={"joformer_old": {"": PAPER}, "joformer_axial": {"": PAPER}},
            also=("hours",) if scale == "paper" else (),
            also_paper={"hours": {model: {"": hours} for model, hours in HOURS.items()}} if scale == "paper" else {},
            paper_setting="ViT-S on ImageNet, two H100, one run: 94 hours against 72",
            comparable=scale == "paper",
            notes=(
                "Forward, backward and AdamW; all models take turns in one process, the best of twenty counts.",
                *(
                    [
                        f"hours: seconds per step × {total:,} steps, 300 epochs, on one device and without decoding; "
                        "the paper's are of two H100. rope2d is timed against itself: how far from 1 it is, is noise."
                    ]
                    if scale == "paper"
                    else []
                ),
                f"{rope.layers} layers of {rope.dim}, {rope.grid[0] * rope.grid[1] + 1} tokens, batch {source.batch}.",
            ),
        )
    ]
