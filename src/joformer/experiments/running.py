"""Running a cell: the training run, or the measurement of times, and the result.json that says it is finished."""

from __future__ import annotations

import json
import os
import platform
import statistics
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import joformer
from joformer._io import make_folder, open_log, read_sealed, sealed, usable_cores, write_whole
from joformer._log import logger
from joformer._remote import Store, local
from joformer.experiments import extrapolation
from joformer.experiments.cost import measure
from joformer.experiments.execution import Execution
from joformer.experiments.tables import REMEDY, RESULT, Cell, read
from joformer.training import LanguageTask, Processes, Streamed, open_run, train
from joformer.training.checkpoints import STATE
from joformer.training.mirror import pull, push
from joformer.training.runs import CHECKPOINTS, METRICS, SPEED, circumstances

ATTEMPTS = "attempts.jsonl"


def finished(cell: Cell, out: Path) -> dict[str, Any] | None:
    """The result of a cell that was run before; raises ValueError where the folder holds one of other settings."""
    place = out / cell.name / RESULT
    if not place.is_file():
        return None
    result = read(place, REMEDY)
    if not any(result.get("described") == described for described in cell.descriptions()):
        raise ValueError(f"{place.parent} holds a run with other settings: choose another --out, or remove it")
    return result


def run(cell: Cell, out: Path, execution: Execution | None = None) -> dict[str, Any]:
    """The result of the cell, which is run, resumed or, if finished, read.

    With several processes all call it, like `train`; the first one writes.
    """
    place: str | Path = out / cell.name
    store = None
    if cell.address:
        store, out = Store(f"{cell.address}/{cell.name}"), local(cell.address)
        place = store.address
        pull(store, store.folder, lambda name: name in (RESULT, ATTEMPTS))
    folder = local(place)
    done = finished(cell, out)
    if done is not None:
        if store is not None and not store.has(RESULT):  # that could not be published
            push(store, folder, (ATTEMPTS, RESULT))
        return done
    execution = (execution or Execution()).of(cell)
    first = os.environ.get("RANK", "0") == "0"
    if first:
        make_folder(folder)
        with open_log(folder / ATTEMPTS) as log:  # who began it, when: how often is then no guess
            log.write((json.dumps({"process": os.getpid(), "began": _now()}) + "\n").encode())
    if cell.alone:
        timed = {name: {cell.size: times} for name, times in measure(cell).items()}
        found: dict[str, Any] = {"measured": {}, "timed": timed, "seconds": None, "step_ms": None, "curve": []}
    else:
        found = {**_trained(cell, place, execution), "parameters": cell.parameters}
    where = circumstances(Processes().device, 1, False)
    result = {
        "cell": cell.name,
        "table": cell.table,
        "model": cell.model,
        "seed": cell.seed,
        **found,
        "steps": cell.recipe.total,
        "described": cell.describe(),
        "command": cell.command,
        "versions": {"joformer": joformer.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "processor": where["processor"] or where["device"],
            "cores": usable_cores(),
            "threads": where["threads"],
            "system": platform.system(),
            "processes": execution.processes,
            "shard": execution.shard,
            "accumulate": execution.accumulate,
        },
        "finished": _now(),
    }
    if first:
        write_whole(folder / RESULT, sealed(result))
        if store is not None:
            push(store, folder, (ATTEMPTS, RESULT))
    return result


def _trained(cell: Cell, place: str | Path, execution: Execution) -> dict[str, Any]:
    task, folder = cell.source.task(), local(place)
    images = getattr(task, "images", None)
    if isinstance(images, Streamed) and execution.workers is not None:
        images.workers = images.test.workers = execution.workers
    recipe = replace(cell.recipe, accumulate=execution.accumulate)
    last = train(
        cell.config, task, recipe, place, seed=cell.seed, drift=execution.drift, notes=cell.source.notes(),
        shard=execution.shard,
    )  # fmt: skip
    measured = {name: value for name, value in last.items() if name != "step"} | cell.source.final_metrics(folder)
    found: dict[str, Any] = {"measured": {cell.size: measured}}
    if cell.lengths:
        assert isinstance(task, LanguageTask)
        logger.info(f"{cell.name}: measuring at {', '.join(map(str, cell.lengths))} tokens")
        found = extrapolation.measure(cell, task, open_run(folder).model)
    pace = read_log(folder / SPEED)
    spent = [line["seconds_per_step"] for line in pace]
    since = [0, *(line["step"] for line in pace)]
    lines = read_log(folder / METRICS)
    held, seen = ([line for line in lines if ("train_loss" in line) == training] for training in (False, True))
    curve = [
        {key: value for key, value in line.items() if key not in ("lr", "gradient")} for line in held + _thin(seen)
    ]
    return {
        **found,
        "curve": sorted(curve, key=lambda line: line["step"]),
        "seconds": sum((line["step"] - at) * s for line, at, s in zip(pace, since, spent, strict=False)),
        "step_ms": 1000 * statistics.median(spent) if spent else None,
        "task": json.loads(json.dumps(task.describe())),
        "recipe": {**cell.describe()["recipe"], "accumulate": execution.accumulate},
        "config": asdict(cell.config),
        **_drifted(folder),
    }


def _drifted(folder: Path) -> dict[str, Any]:
    """Where the run was resumed although its bits could not be the same, if it was."""
    states = sorted((folder / CHECKPOINTS).glob(f"[0-9]*/{STATE}"))
    drifted = read_sealed(states[-1])["drifted"] if states else []
    return {"drifted": drifted} if drifted else {}


def read_log(log: Path) -> list[dict[str, Any]]:
    """The lines of a log that can be read: that of speeds is not brought to the disk with the checkpoints."""
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


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
