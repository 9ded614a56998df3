"""One vector per image: learned frequencies, the DFT's, those of the print, and an MLP on the pixels.

    joformer reproduce mnist                                  digits 8 × 8, 3 seeds: half a minute
    joformer reproduce mnist --data DATA --seeds 5            DATA/mnist, the paper's recipe: an hour on two cores

Expect: learned frequencies far above the diagonal that the print calls the DFT at d = 2 and 8, and about equal to the
true lowest frequencies from d = 8 on; at d = 2 the spread of the angles at the start decides (docs/claims.md row 40).

Paper: "MNIST Monoidal Embedding": Adam, lr 1e-3, 50 epochs, batch 128; one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod
from pathlib import Path

from joformer import paper
from joformer.experiments.places import find
from joformer.experiments.sources import ImageSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import ClassifierConfig
from joformer.models._classifier import Reading
from joformer.training import Recipe

EPOCHS = 50
SPREADS = (0.01, 0.05, 0.5, pi)
"""Half-widths of the uniform start of the angles, beside the library's own: the paper does not say what it took."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run."""
    source = ImageSource(find(data, ("mnist",), scale, hub="mnist", embedded="digits", sole=sole), cells=True)
    images = source.load()
    shape, classes = tuple(images.train.images.shape[2:]), len(images.classes)
    full, epoch = prod(shape), source.steps(1)
    recipe = Recipe(
        steps=steps or source.steps(EPOCHS), lr=1e-3, end=1.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None,
        log_every=max(1, epoch // 4), evaluate_every=5 * epoch, save_every=5 * epoch, keep=1,
    )  # fmt: skip
    dims = (2, 8, 32, full)
    rows: list[tuple[str, Reading, float | None, tuple[int, ...]]]
    rows = [("learned", "learned", None, dims), ("dft", "dft", None, dims), ("diagonal", "diagonal", None, dims)]
    rows += [("mlp", "pixels", None, (full,))]
    rows += [(f"learned, from ±{spread:.2g}", "learned", spread, (2,)) for spread in SPREADS]
    cells = [
        Cell(
            name, f"d = {dim}", seed,
            ClassifierConfig(dim=dim, shape=shape, classes=classes, frequencies=kind, spread=spread), source, recipe,
        )
        for name, kind, spread, several in rows
        for dim in several
        for seed in seeds
    ]  # fmt: skip
    sizes = [f"d = {dim}" for dim in dims]
    printed = {"learned": paper.MNIST["learned"], "diagonal": paper.MNIST["dft"], "mlp": paper.MNIST["mlp"]}
    return [
        plan(
            "mnist",
            "One vector per image",
            "accuracy",
            cells,
            scale=scale,
            baseline="dft",
            pairs=(("diagonal", "learned"),),
            paper={
                name: {size: value for size, value in zip(sizes, values, strict=True) if value is not None}
                for name, values in printed.items()
            },
            paper_setting="MNIST, 50 epochs, d = 2, 8, 32, 784, one seed",
            comparable=Path(source.data).name == "mnist" and steps is None,
            notes=(
                "diagonal: the frequencies 2πk/d on both axes that the paper prints and calls the DFT; its figures are "
                "beside that row. dft: the lowest frequencies of the true grid, at d = 2 the sum of all pixels alone.",
                "The paper does not say how learned angles start. learned: uniform in ±π √(d / cells), the box that as "
                "many frequencies of the DFT fill; the other rows start elsewhere.",
                *([f"The last size is d = {full}, the number of pixels; the paper's is 784."] if full != 784 else []),
            ),
        )
    ]
