"""The evidence runs on enwik8: learning rates, sizes, and the grid of frames and sides at the middle size.

    nohup nice -n 19 python results/scripts/enwik8.py --data DATA/enwik8 --out runs/enwik8 &    starts, or resumes
    joformer report runs/enwik8                                                               one page

The same for WikiText-2 (its second domain): --data DATA/wikitext-2 --out runs/wikitext-2 second

Two processes of one thread each; a killed script resumes from the checkpoints. The stages run in the order below, and
a later stage may be selected by name, so that several sessions can share the work. Copy what is finished from
results/enwik8 into --out first: finished cells are not run again.

The learning rate is constant after the warm-up and the weights that are evaluated are a moving average, so that every
point of a curve is a finished model: the compute multiplier compares steps along the curve, and on a cosine schedule
it would compare two places of the schedule instead.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from joformer.experiments import Cell, Table, TextSource, plan
from joformer.experiments.engine import run_local
from joformer.experiments.variants import FRAMES, NAMES, variant
from joformer.models import LMConfig
from joformer.training import Recipe

# About 0.1, 0.36 and 1.0 million parameters; steps of 16 windows of 256 bytes.
SIZES = {
    "0.1M": ({"dim": 64, "layers": 2}, 2000),
    "0.4M": ({"dim": 96, "layers": 3}, 2000),
    "1M": ({"dim": 144, "layers": 4}, 5000),
}
BASELINE, FIXED = "scores, fixed", "both, fixed"
FIVE = (BASELINE, FIXED, "both, learned", "both, projected", "both, cumulative")
RATES = (1e-3, 3e-3, 1e-2)
RATE = 3e-3
"""The rate of every stage after `rates`: a guess until that stage has run for all three; then the best of them."""
STAGES = {
    "small": (FIVE, "0.1M", 5),
    "pair": (FIVE[:2], "0.4M", 5),
    "middle": (FIVE[:4], "0.4M", 5),
    "middle-cumulative": ((BASELINE, FIVE[4]), "0.4M", 5),
    "grid": (NAMES, "0.4M", 3),
    "large": (FIVE[:2] + FIVE[3:4], "1M", 3),
    "large-pair": (FIVE[:2], "1M", 3),
    "grid-small": (NAMES, "0.1M", 3),
    "second": (FIVE[:2], "0.1M", 3),
}
"""Models, size and seeds; the last three are run when they are named."""


def recipe(steps: int, rate: float) -> Recipe:
    return Recipe(
        steps=steps, lr=rate, end=1.0, warmup=100, weight_decay=0.01, average=0.99, log_every=20,
        evaluate_every=max(1, steps // 25), save_every=max(1, steps // 25), keep=1,
    )  # fmt: skip


def stage(name: str, source: TextSource, seeds: int | None = None) -> Table:
    """The table of this stage; with fewer seeds, it is one to which later runs may add the others."""

    def cells(model: str, size: str, seed: int, how: Recipe, label: str = "") -> Cell:
        plain = LMConfig(vocab=256, heads=4, transport="none", **SIZES[size][0])
        return Cell(model, label or size, seed, variant(plain, model), source, how)

    pairs: tuple[tuple[str, str], ...] = ()
    if name == "rates":
        table, title, models = "rates", "Learning rates", (BASELINE, FIXED)
        found = [
            cells(model, "0.1M", seed, recipe(1000, rate), f"lr {rate:g}")
            for rate in RATES
            for model in models
            for seed in range(seeds or 3)
        ]
    else:
        table, title, models = "sizes", "Sizes, and the grid of frames and sides", NAMES
        names, size, most = STAGES[name]
        how = recipe(SIZES[size][1], RATE)
        pairs = tuple((f"scores, {kind}", f"both, {kind}") for kind in FRAMES)
        found = [cells(model, size, seed, how) for seed in range(seeds or most) for model in names]
    return plan(
        table, title, "bits_per_byte", found, named=False, scale="laptop", models=models, baseline=BASELINE,
        pairs=pairs,
        notes=(
            "Constant learning rate after 100 steps of warm-up; the evaluated weights are a moving average (0.99).",
            "Parameters are matched by the width of the feed-forward; steps and data are equal.",
        ),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", type=int, help="fewer than a stage has")
    parser.add_argument("stages", nargs="*", default=["rates", *[*STAGES][:-3]])
    asked = parser.parse_args()
    source = TextSource(asked.data, context=256, batch=16, held_out=200)
    for name in asked.stages:
        table = stage(name, source, asked.seeds)
        table.begin(asked.out)
        for event in run_local(table.cells, asked.out, jobs=asked.jobs):
            if event is not None:
                told = event.error or next(iter(event.result["measured"].values()))["bits_per_byte"]
                print(event.cell.name, told, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
