"""Prints what is finished of `joformer reproduce separation` as one table per depth.

    nohup nice -n 19 joformer reproduce separation --seeds 5 --jobs 1 --out runs/separation &    starts, or resumes
    python results/scripts/separation.py runs/separation

A figure is the mean accuracy over seeds at the end, in per cent, with the least and the most, and after @ the first
step at which the mean over seeds is 95 % or more.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from joformer.experiments.names import plain
from joformer.experiments.results import gather
from joformer.experiments.separation import MODELS
from joformer.experiments.tables import Table


def figure(table: Table, model: str, size: str) -> str:
    found = list(table.values(model, size).values())
    if not found:
        return "–"
    runs = [cell for cell in table.cells if cell.model == model and size in cell.measured]
    curves = [{line["step"]: line["accuracy"] for line in cell.curve if "accuracy" in line} for cell in runs]
    means = {step: fmean(curve[step] for curve in curves) for step in curves[0]}
    reached = next((f" @{step:g}" for step, mean in sorted(means.items()) if mean >= 95), "")
    spread = "" if min(found) == max(found) else f" ({min(found):.1f} … {max(found):.1f})"
    return f"{fmean(found):.1f}{spread}{reached}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    asked = parser.parse_args()
    tables = gather([asked.runs])
    for size in ("1 layer", "2 layers"):
        print(f"\n| {size} | {' | '.join(plain('separation', model) for model in MODELS)} | seeds |")
        print("|---" * (len(MODELS) + 2) + "|")
        for table in tables:
            cells = [figure(table, model, size) for model in MODELS]
            print(f"| {table.data} | {' | '.join(cells)} | {len(table.values(MODELS[-1], size))} |")


if __name__ == "__main__":
    main()
