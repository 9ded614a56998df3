"""A cell of a table: one model, one size, one seed, trained on one source of data; and what is left of it on disk.

    OUT/TABLE/table.json                   what the table compares, and the paper's figures
    OUT/TABLE/MODEL/SIZE/seed-N/           the run (training/runs.py)
    OUT/TABLE/MODEL/SIZE/seed-N/result.json  written last, with its own sha256: with it the cell is not run again

Cells of the same seed see the same data in the same order and begin with the same weights in all that they share
(models/_initial.py), so that differences between them are paired.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import torch

import joformer
from joformer._io import make_folder, open_log, sealed, write_whole
from joformer._log import logger
from joformer.experiments.results import RESULT, read
from joformer.experiments.sources import Source, TextSource
from joformer.models._saving import MODELS, written, written_before
from joformer.training import LanguageTask, Processes, Recipe, open_run, train
from joformer.training.recipe import UNDECIDING
from joformer.training.runs import CONFIG, SPEED, circumstances
from joformer.training.runs import METRICS as MEASURED
from joformer.training.stages import changed

REMEDY = "remove it, or choose another --out"


@dataclass(frozen=True)
class Cell:
    """One training run of a table, or (`against`) the time of a step beside another model's.

    `lengths` are contexts at which a language model is measured in the end, each a column of the table.

    >>> from joformer.experiments import ImageSource
    >>> from joformer.models import ClassifierConfig
    >>> Cell("mnist", "learned", "d = 8", 0, ClassifierConfig(dim=8), ImageSource("digits", cells=True), Recipe()).name
    'mnist/learned/d-8/seed-0'
    """

    table: str
    model: str
    size: str
    seed: int
    config: Any
    source: Source
    recipe: Recipe
    lengths: tuple[int, ...] = ()
    against: Any = None
    command: str = field(default="", compare=False)
    """What runs this cell again, alone."""

    @property
    def name(self) -> str:
        """Its folder below the output's."""
        parts = (self.table, _slug(self.model), _slug(self.size), f"seed-{self.seed}")
        return "/".join(part for part in parts if part)

    @property
    def parameters(self) -> int:
        """How many numbers the model learns, those that a later stage adds included."""
        config = self.config
        for stage in self.recipe.sequence:
            config = changed(config, stage.frames)
        return parameters(config)

    @property
    def alone(self) -> bool:
        """Whether nothing else may run beside it: it is a measurement of time."""
        return self.against is not None

    @property
    def work(self) -> float:
        """About how many seconds it takes on one core; good for comparing cells, and for a first guess."""
        if isinstance(self.source, TextSource):
            tokens = self.source.context * self.source.batch
        else:
            config = self.config
            tokens = self.source.batch * (prod(config.grid) + config.prefix if hasattr(config, "grid") else 1)
        step = 2e-3 + 8e-11 * tokens * (self.parameters + 5e4)
        turns = 2 * 22 if self.alone else self.recipe.total
        return 1 + step * turns + 2e-4 * sum(self.lengths)

    def describe(self) -> dict[str, Any]:
        """All that decides the result, as JSON."""
        return next(self.descriptions())

    def descriptions(self) -> Iterator[dict[str, Any]]:
        """`describe()`, then how version 0.1 described the same cell."""
        others = [None] if self.against is None else [written(self.against), *written_before(self.against)]
        for model in (written(self.config), *written_before(self.config)):
            for against in others:
                yield self._described(model, against)

    def _described(self, model: dict[str, Any], against: dict[str, Any] | None) -> dict[str, Any]:
        recipe, where = _deciding(self.recipe), self.source.identity()
        return json.loads(
            json.dumps(
                {
                    "seed": self.seed,
                    **model,
                    "against": against,
                    "source": {**self.source.as_json(), "kind": type(self.source).__name__, "data": where},
                    "recipe": recipe,
                    "lengths": self.lengths,
                }
            )
        )


@lru_cache(maxsize=1024)  # seeds share a configuration, and the time left is judged by this again and again
def parameters(config: Any) -> int:
    """How many numbers the model of this configuration learns; it is not built for that.

    >>> from joformer.models import ClassifierConfig
    >>> parameters(ClassifierConfig(dim=8))
    2450
    """
    with torch.device("meta"):
        model = MODELS[written(config)["model"]](config)
    return sum(weight.numel() for weight in model.parameters())


def finished(cell: Cell, out: Path) -> dict[str, Any] | None:
    """The result of a cell that was run before; refused where the folder holds one of other settings."""
    place = out / cell.name / RESULT
    if not place.is_file():
        return None
    result = read(place, REMEDY)
    if not any(result.get("described") == described for described in cell.descriptions()):
        raise ValueError(f"{place.parent} holds a cell of other settings: choose another --out, or remove it")
    return result


def run(cell: Cell, out: Path) -> dict[str, Any]:
    """The result of the cell: run, continued or, where it is finished, read."""
    done = finished(cell, out)
    if done is not None:
        return done
    folder = out / cell.name
    make_folder(folder)
    with open_log(folder / "attempts.jsonl") as log:  # who began it, when: how often is then no guess
        log.write((json.dumps({"process": os.getpid(), "began": _now()}) + "\n").encode())
    if cell.against is not None:
        from joformer.experiments.cost import measure

        found: dict[str, Any] = {"measured": {cell.size: measure(cell)}, "seconds": None, "step_ms": None, "curve": []}
        where = circumstances(torch.device("cpu"), 1, False)
    else:
        found, where = _trained(cell, folder)
    result = {
        "cell": cell.name,
        "table": cell.table,
        "model": cell.model,
        "seed": cell.seed,
        **found,
        "parameters": cell.parameters,
        "steps": cell.recipe.total,
        "described": cell.describe(),
        "command": cell.command,
        "versions": {"joformer": joformer.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "processor": where["processor"] or where["device"],
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": where["threads"],
            "system": platform.system(),
        },
        "finished": _now(),
    }
    write_whole(folder / RESULT, sealed(result))
    return result


def _trained(cell: Cell, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    task = cell.source.task()
    notes = {**cell.source.notes(), "cell": cell.name}
    last = train(cell.config, task, cell.recipe, folder, seed=cell.seed, notes=notes)
    measured = {cell.size: {name: value for name, value in last.items() if name != "step"}}
    if cell.lengths:
        assert isinstance(task, LanguageTask)
        processes, model = Processes(), open_run(folder).model
        task.to(processes.device)
        model.to(processes.device).eval()
        measured = {}
        for length in cell.lengths:
            logger.info(f"{cell.name}: measuring at {length} tokens")
            measured[str(length)] = task.evaluate(model, processes, context=length)
    pace = _pace(folder / SPEED)
    spent = [line["seconds_per_step"] for line in pace]
    between = [
        after["step"] - before for after, before in zip(pace, [0, *(line["step"] for line in pace)], strict=False)
    ]
    lines = [json.loads(line) for line in (folder / MEASURED).read_text().splitlines()]
    held = [line for line in lines if "train_loss" not in line]
    seen = [line for line in lines if "train_loss" in line]
    curve = sorted(
        ({key: value for key, value in line.items() if key not in ("lr", "gradient")} for line in held + _thin(seen)),
        key=lambda line: line["step"],
    )
    run_of = json.loads((folder / CONFIG).read_text())["run"]
    return {
        "measured": measured,
        "curve": curve,
        "seconds": sum(n * s for n, s in zip(between, spent, strict=True)),
        "step_ms": 1000 * statistics.median(spent) if spent else None,
        "task": run_of["task"],
        "recipe": run_of["recipe"],
        "config": asdict(cell.config),
    }, circumstances(Processes().device, 1, False)


def _pace(log: Path) -> list[dict[str, Any]]:
    """The lines of speed.jsonl that can be read: it alone is not brought to the disk with the checkpoints."""
    lines = []
    for line in log.read_bytes().splitlines() if log.is_file() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def _thin(lines: list[dict[str, Any]], most: int = 100) -> list[dict[str, Any]]:
    """At most so many lines, each the mean of those it stands for."""
    size = -(-len(lines) // most)
    groups = [lines[at : at + size] for at in range(0, len(lines), size)] if size else []
    return [
        {"step": group[-1]["step"], "train_loss": statistics.fmean(line["train_loss"] for line in group)}
        for group in groups
    ]


def _deciding(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(recipe).items() if name not in UNDECIDING}


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
