"""`joformer demo`: one question, one curve, one page, in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from joformer._log import counted
from joformer._remote import local, require_place
from joformer.cli.compare import Compare
from joformer.cli.console import say
from joformer.cli.grid import chosen, finish, run_tables
from joformer.cli.options import Place

if TYPE_CHECKING:
    from joformer.experiments import Cell

TEXT, METRICS = "stdlib", "metrics.jsonl"
CAVEAT = (
    "This shows what small models learn sooner on one text, not whether it lasts or holds on other data. For that, use "
    "`joformer compare --data PATH`."
)


@dataclass(frozen=True)
class Demo:
    """A one-minute demo: RoPE against RoPE + values, on the source of Python's standard library.

    Draws how the training loss falls, answers in one sentence as `joformer compare` does, and writes its page. It runs
    that command with few seeds, one budget and no timing; if interrupted, the same command resumes.
    Example: joformer demo

    Attributes:
        seeds: Number of seeds: 0, 1, …
        steps: Steps per run.
        jobs: Number of runs in parallel; by default as many as there are GPUs, or cores.
        out: Where to keep everything, including the page: a folder or an address (s3://…).
        json: Print the report as JSON instead of the picture and the sentence.
    """

    seeds: int = 4
    steps: int = 200
    jobs: int | None = None
    out: Place = "runs/demo"
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        require_place(self.out)
        from joformer.experiments.results import gather

        compare = Compare(TEXT, seeds=self.seeds, steps=self.steps, longer=1, jobs=self.jobs, out=self.out)
        tables = chosen(compare.tables(compare.source(), self.seeds)[:1], compare)
        cells, out = tables[0].cells, local(self.out)
        failed = run_tables(tables, compare, picture=lambda: picture(under_way(cells, out), self.steps))
        if not self.json:
            say(picture(gather([out / tables[0].name])[0].cells, self.steps), lines=True)
        code = finish(self.out, failed, as_json=self.json)
        if not self.json:
            say(CAVEAT)
        return code


def under_way(cells: Sequence[Cell], out: Path) -> list[Cell]:
    """The cells with their logs so far."""
    from joformer.experiments.running import read_log

    return [replace(cell, result={"curve": read_log(out / cell.name / METRICS)}) for cell in cells]


def picture(cells: Sequence[Cell], total: int) -> str:
    """The training loss of each model: mean over the seeds that all models have finished, or else begun."""
    from joformer.experiments.names import plain
    from joformer.experiments.report.chart import chart
    from joformer.experiments.report.curves import over_seeds

    models = list(dict.fromkeys(cell.model for cell in cells))
    come = {(cell.model, cell.seed): max((line["step"] for line in cell.curve), default=0.0) for cell in cells}
    shown: list[int] = []
    for least in (total, 1):
        every = {seed for _, seed in come}
        shown = shown or [seed for seed in every if all(come.get((model, seed), 0) >= least for model in models)]
    curves = {
        plain("compare", model): curve
        for model in models
        if (curve := over_seeds([c for c in cells if c.model == model and c.seed in shown], "train_loss"))
    }
    return f"training loss in nats per byte, mean of {counted(len(shown), 'seed')}\n{chart(curves, total)}"
