"""The evidence runs on enwik8: learning rates, sizes, and the grid of frames and sides at the middle size.

    nohup nice -n 19 python results/scripts/enwik8.py --data DATA/enwik8 --out runs/enwik8 &    starts, or resumes
    joformer report runs/enwik8                                                               one page

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

from joformer.experiments.cells import Cell
from joformer.experiments.engine import run_local
from joformer.experiments.plans import Plan
from joformer.experiments.sources import TextSource
from joformer.experiments.variants import NAMES, variant
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


def recipe(steps: int, rate: float) -> Recipe:
    return Recipe(
        steps=steps, lr=rate, end=1.0, warmup=100, weight_decay=0.01, average=0.99, log_every=20,
        evaluate_every=max(1, steps // 25), save_every=max(1, steps // 25), keep=1,
    )  # fmt: skip


def stage(name: str, source: TextSource) -> Plan:
    """The table of this stage."""

    def cells(table: str, model: str, size: str, seeds: range, rate: float = RATE, label: str = "") -> list[Cell]:
        shape, steps = SIZES[size]
        plain = LMConfig(vocab=256, heads=4, transport="none", **shape)
        how = recipe(steps if table == "sizes" else 1000, rate)
        return [Cell(table, model, label or size, seed, variant(plain, model), source, how) for seed in seeds]

    if name == "rates":
        found = [
            cell
            for rate in RATES
            for model in (BASELINE, FIXED)
            for cell in cells("rates", model, "0.1M", range(3), rate, f"lr {rate:g}")
        ]
        models, sizes, title = (BASELINE, FIXED), tuple(f"lr {rate:g}" for rate in RATES), "Learning rates"
    else:
        some = {"small": (FIVE, "0.1M", 5), "middle": (FIVE, "0.4M", 5), "grid": (NAMES, "0.4M", 3),
                "large": ((BASELINE, FIXED, "both, projected"), "1M", 3)}  # fmt: skip
        names, size, seeds = some[name]
        found = [
            cell
            for seed in range(seeds)
            for model in names
            for cell in cells("sizes", model, size, range(seed, seed + 1))
        ]
        models, sizes, title = NAMES, tuple(SIZES), "Sizes, and the grid of frames and sides"
    return Plan(
        name=found[0].table, title=title, scale="laptop", source=source, metric="bits_per_byte", models=models,
        sizes=sizes, baseline=BASELINE, cells=tuple(found),
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
    parser.add_argument("stages", nargs="*", default=["rates", "small", "middle", "grid", "large"])
    asked = parser.parse_args()
    source = TextSource(asked.data, context=256, batch=16, held_out=200)
    for name in asked.stages:
        plan = stage(name, source)
        plan.begin(asked.out)
        for event in run_local(plan.cells, asked.out, jobs=asked.jobs):
            if event is not None:
                told = event.error or next(iter(event.result["measured"].values()))["bits_per_byte"]
                print(event.cell.name, told, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
