"""CIFAR-100: does rotating the values help a small vision transformer, with fixed or with learned frequencies?

    joformer reproduce cifar100                               digits, D = 32, all models, 3 seeds: two minutes
    joformer reproduce cifar100 --data DATA                   DATA/cifar100, D = 32, six models, a short cosine: hours
    joformer reproduce cifar100 --scale paper --data DATA     D = 32 to 256, 300 epochs; and Setup A, 200 and 400: GPUs

Expect: on digits, after 10 epochs, models that rotate the values some 7 points ahead of those that do not, fixed or
learned alike, and an additive embedding 20 behind; with three seeds and 16 comparisons hardly any of it survives the
correction. The paper's gains are one to two points of one seed, after 300 epochs.

Paper: "CIFAR-100 V Rotation and Scaling", Setup A and B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joformer import paper
from joformer.experiments.places import find
from joformer.experiments.sources import ImageSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import VARIANTS, ViTConfig
from joformer.training import Recipe

SETUP_A = ("axial_dense", "axial_dense_v", "liere64", "liere64_v")
LITERAL = ("rope2dv2_literal", "joformer_fixed_literal")
"""The combined split as printed, equal frequencies on both axes (docs/conventions.md): at the paper's scale."""
OTHERS = ("projected", "cumulative", "none")
SETUP_B = tuple(name for name in VARIANTS if name not in (*SETUP_A, *OTHERS, *LITERAL))
EPOCHS = {"laptop": 4, "digits": 10, "paper": 300}
EPOCHS_A = (200, 400)
"""The paper's text says 200, its figures are "extended results at 400"."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """Setup B; at the paper's scale Setup A as well."""
    where = find(data, ("cifar100",), scale, hub="cifar100", embedded="digits", sole=sole)
    small = where == "digits"
    source = ImageSource(where, augment="none" if small else "cifar", draw="epochs" if small else "randint")
    images = source.load()
    channels, *sides = images.train.images.shape[1:]
    shape = tuple(sides)
    patch = (2, 2) if small else (4, 4)
    epoch = source.steps(1)
    total = steps or source.steps(EPOCHS["digits" if small else scale])
    recipe = Recipe(
        steps=total, lr=1e-3, end=0.0, betas=(0.9, 0.999), weight_decay=0.1, clip=None,
        log_every=20, evaluate_every=max(1, total // 4 if scale == "laptop" else 10 * epoch),
        save_every=min(epoch, 200) if scale == "laptop" else 10 * epoch, keep=1,
    )  # fmt: skip
    widths = paper.CIFAR_WIDTHS if scale == "paper" else (32,)
    models = tuple(paper.CIFAR_SCALING) if scale == "laptop" and not small else SETUP_B
    models += LITERAL if scale == "paper" else ()
    cells = [
        Cell(
            model, f"D = {dim}", seed,
            ViTConfig(
                model=model, shape=shape, patch=patch, channels=channels, classes=len(images.classes), dim=dim,
                layers=4, heads=4, dropout=0.1 if scale == "paper" else 0.0,
            ),
            source, recipe,
        )
        for dim in widths
        for model in models
        for seed in seeds
    ]  # fmt: skip
    printed = {
        model: {f"D = {dim}": value for dim, value in zip(paper.CIFAR_WIDTHS, row, strict=True) if dim in widths}
        for model, row in paper.CIFAR_SCALING.items()
    }
    for without, rotated, a, b, _ in paper.V_ROTATION.values():
        for model, value in ((without, a), (rotated, b)):
            if 256 in widths:
                printed.setdefault(model, {})["D = 256"] = value
    pairs = (*((without, rotated) for without, rotated, *_ in paper.V_ROTATION.values()), LITERAL)
    return [
        plan(
            "cifar100",
            "A small vision transformer (Setup B)",
            "accuracy",
            cells,
            scale=scale,
            baseline="rope2d",
            pairs=tuple((q, v) for q, v in pairs if q in models and v in models),
            paper=printed,
            paper_setting="CIFAR-100, 300 epochs, one seed",
            comparable=_is_the_paper_s(scale, where, steps),
            notes=(
                f"{total} steps of {source.batch} images, {total / epoch:.3g} epochs; the paper has 300.",
                *(["Without dropout: runs are short, and it doubles their time."] if scale == "laptop" else []),
                *(
                    ["literal: equal frequencies on both axes, as printed; the other combined models' axes differ."]
                    if scale == "paper"
                    else []
                ),
                *(["Digits are not augmented: mirrored or half erased they are other digits."] if small else []),
            ),
        ),
        *(_setup_a(where, seeds, steps) if scale == "paper" else []),
    ]


def _is_the_paper_s(scale: Scale, where: str, steps: int | None) -> bool:
    return scale == "paper" and steps is None and Path(where).name == "cifar100"


def _setup_a(where: str, seeds: Sequence[int], steps: int | None) -> list[Table]:
    source = ImageSource(where, augment="crop")
    images = source.load()
    epoch = source.steps(1)
    budgets = {"": steps} if steps else {f"{epochs} epochs": source.steps(epochs) for epochs in EPOCHS_A}
    recipe = Recipe(
        lr=1e-4, end=0.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None,
        precision="bf16", log_every=20, evaluate_every=10 * epoch, save_every=10 * epoch, keep=1,
    )  # fmt: skip
    cells = [
        Cell(
            model, size, seed,
            ViTConfig(
                model=model, shape=(32, 32), patch=(4, 4), classes=len(images.classes), dim=384, layers=12, heads=6,
                hidden=768,
            ),
            source, replace(recipe, steps=total),
        )
        for size, total in budgets.items()
        for model in SETUP_A
        for seed in seeds
    ]  # fmt: skip
    (dense, dense_v, _), (liere, liere_v, _) = paper.CIFAR_LIERE["axial-dense"], paper.CIFAR_LIERE["LieRE64"]
    return [
        plan(
            "cifar100-liere",
            "ViT-Tiny with curved frames (Setup A)",
            "accuracy",
            cells,
            scale="paper",
            pairs=(("axial_dense", "axial_dense_v"), ("liere64", "liere64_v")),
            paper=dict(
                zip(SETUP_A, ({[*budgets][-1]: value} for value in (dense, dense_v, liere, liere_v)), strict=True)
            ),
            paper_setting="CIFAR-100, 400 epochs, one seed",
            comparable=_is_the_paper_s("paper", where, steps),
            notes=(
                "The feed-forward is 768 wide: only so are there 14.9 million parameters (docs/claims.md row 52).",
                "Each number of epochs is a run of its own, its cosine as long; the paper prints figures of 400.",
            ),
        )
    ]
