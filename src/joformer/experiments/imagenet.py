"""ImageNet, ViT-S: RoPE in two dimensions against the same with values transported.

    joformer reproduce imagenet                               digits and a small model, 120 steps, 3 seeds: a minute
    joformer reproduce imagenet --data FOLDER                 any folder of images, one folder per class
    joformer reproduce imagenet --scale paper                 ViT-S, 300 epochs, batch 1,024: some GPU days per run

Expect: on digits, after 120 steps, some 36 points for transported values; about ViT-S on ImageNet, where the paper has
+0.40 of one seed after 300 epochs, that says nothing.

Paper: "ImageNet ViT-S Scale Validation". It calls the recipe DeiT-III's; the values listed are DeiT's (row 54).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joformer import paper
from joformer.experiments.places import find
from joformer.experiments.sources import ImageSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import ViTConfig
from joformer.training import Recipe

MODELS = ("rope2d", "joformer_old")
SIDE = {"laptop": 64, "paper": 224}


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run."""
    where = find(data, ("imagenet",), scale, hub="imagenet", embedded="digits", sole=sole)
    small = where == "digits"
    source = ImageSource(
        where,
        batch=1024 if scale == "paper" else 128,
        augment="deit" if scale == "paper" else "imagenet",
        stream=None if small else SIDE[scale],
    )
    epoch, classes = source.steps(1), len(source.load().classes)
    total = steps or (source.steps(300) if scale == "paper" else 120 if small else 200)
    recipe = Recipe(
        steps=total, lr=1e-3, end=0.0, warmup=total // 60 if scale == "laptop" else 5 * epoch, betas=(0.9, 0.999),
        weight_decay=0.05, clip=None, precision="fp32" if scale == "laptop" else "fp16", log_every=10,
        evaluate_every=max(1, total // 2) if scale == "laptop" else 5 * epoch,
        save_every=100 if scale == "laptop" else epoch, keep=1,
    )  # fmt: skip
    if small:
        shape: dict[str, Any] = {"shape": (8, 8), "patch": (2, 2), "channels": 1, "dim": 64, "layers": 4, "heads": 4}
    elif scale == "laptop":
        shape = {"shape": (64, 64), "patch": (8, 8), "dim": 64, "layers": 4, "heads": 4}
    else:
        shape = {"shape": (224, 224), "patch": (16, 16), "dim": 384, "layers": 12, "heads": 6}
    cells = [
        Cell(model, "", seed, ViTConfig(model=model, classes=classes, drop_path=0.1, **shape), source, recipe)
        for model in MODELS
        for seed in seeds
    ]
    printed = {
        name: dict(zip(MODELS, ({"": value} for value in paper.IMAGENET[name][:2]), strict=True))
        for name in ("top-1", "top-5")
    }
    return [
        plan(
            "imagenet",
            "The recipe for ImageNet",
            "accuracy",
            cells,
            scale=scale,
            baseline="rope2d",
            paper=printed["top-1"],
            also=("top_5",),
            also_paper={"top_5": printed["top-5"]},
            paper_setting="ImageNet-1K, ViT-S, 300 epochs, one seed",
            comparable=scale == "paper" and steps is None and Path(where).name == "imagenet",
            notes=(
                f"{total} steps of {source.batch} images."
                + (" A small model on few steps, not ViT-S on ImageNet." if scale == "laptop" else ""),
                *(
                    ["RandAugment and erasing as timm computes them, in float32: a value may be one of 255 off."]
                    if scale == "paper"
                    else ["RandAugment takes the nearest pixel and erases by zeros; at the paper's scale as timm does."]
                ),
                *(["Mirrored, erased and mixed as the recipe has it, digits are often other digits."] if small else []),
            ),
        )
    ]
