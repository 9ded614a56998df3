"""What runs have left on disk, gathered: nothing but JSON is read, and nothing in it is run.

    OUT/TABLE/table.json, OUT/TABLE/…/result.json   of `reproduce` and `compare`: a table and its cells
    RUN/config.json, RUN/metrics.jsonl              of `train`: a row of the table "runs"
    report.json                                     of `report`: tables as they were gathered before

A cell that is planned and has no result yet is missing, which the report says. A file that is there and makes no sense,
or is not what its checksum says, is an error that names it: a report without it would look complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from joformer._io import MANIFEST, check_folder, one_line
from joformer._remote import Store, fetch, is_address
from joformer.experiments.metrics import METRICS
from joformer.experiments.tables import RESULT, TABLE, Table, finite, read, read_cells, read_table
from joformer.training.mirror import fetch_files, fetch_run

REPORT = "report.json"
ORDER = ("mnist", "cifar100", "imagenet", "wikipedia", "length", "length-150k", "overhead", "transport", "compare")
"""That of the paper; tables of other names come after."""


def gather(paths: Sequence[str | Path]) -> tuple[Table, ...]:
    """Everything finished in folders of reproduce, compare or train, and in reports written before.

    >>> gather(["no-such-folder"])
    Traceback (most recent call last):
    ValueError: no-such-folder does not exist: give a folder of reproduce, compare or train, or a report.json
    """
    if not paths:
        raise ValueError("nothing to report: give one or more folders of reproduce, compare or train, or a report.json")
    tables: list[Table] = []
    runs: dict[Path, str] = {}
    seen: set[Path] = set()
    for given in paths:
        path = _fetched(given)
        if not path.exists():
            raise ValueError(f"{path} does not exist: give a folder of reproduce, compare or train, or a report.json")
        if path.is_file():
            tables += _reported(path)
        elif path.resolve() not in seen:
            if folders := [path] if (path / TABLE).is_file() else [place.parent for place in path.glob(f"*/{TABLE}")]:
                found = sorted(map(_from_folder, sorted(folders)), key=_place)
                tables += _finished(path, found)
            elif (path / "config.json").is_file() and (path / "metrics.jsonl").is_file():
                runs[path] = str(given)  # a report beside it may be older
            elif (path / REPORT).is_file():
                tables += _reported(path / REPORT)
            else:
                raise ValueError(
                    f"{path} holds no results: give a folder of reproduce, compare or train, or a report.json"
                )
        seen.add(path.resolve())
    return (*tables, *_runs(runs))


def _fetched(given: str | Path) -> Path:
    """The path itself or, of an address, a copy of what is shown of it."""
    if not is_address(given):
        return Path(given)
    if str(given).endswith(".json"):
        return fetch(str(given))
    if Store(str(given)).has("config.json"):
        return fetch_run(given, weights=False)
    return fetch_files(given, lambda name: name.rpartition("/")[2] in (TABLE, RESULT, REPORT))


def _place(table: Table) -> int:
    return ORDER.index(table.recipe) if table.recipe in ORDER else len(ORDER)


def _from_folder(folder: Path) -> Table:
    content = read(folder / TABLE)
    table = read_table(content, (), folder / TABLE)
    results = []
    for name in table.planned:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0] == "/" or "\\" in name:
            raise ValueError(f"{folder / TABLE} is damaged (no cell can be called {name!r}): write it again")
        # A folder may have been renamed since.
        place = (folder.joinpath(*parts[1:]) if parts[0] == table.name else folder.parent / name) / RESULT
        if place.is_file():
            result = read(place)
            read_cells(result, place)
            results.append(result)
    return read_table(content, results, folder / TABLE)


def _finished(path: Path, tables: list[Table]) -> list[Table]:
    if not any(table.cells for table in tables):
        planned = sum(len(table.planned) for table in tables)
        raise ValueError(f"nothing is finished in {path}, 0 of {planned} runs: run it first")
    return tables


def _reported(path: Path) -> list[Table]:
    content = read(path)
    tables = content.get("tables")
    if not isinstance(tables, list) or not all(
        isinstance(t, dict) and isinstance(t.get("cells"), list) for t in tables
    ):
        raise ValueError(f"{path} is not a report.json: give one that `joformer report` wrote, or a folder")
    return _finished(path, [read_table(table.get("about") or {}, table["cells"], path) for table in tables])


def _runs(folders: dict[Path, str]) -> list[Table]:
    """Runs of `joformer train`: a row each, in one table for each metric."""
    found: dict[str, list[dict[str, Any]]] = {}
    notes: dict[str, list[str]] = {}
    for folder, called in folders.items():
        damage = _damage(folder)
        config, lines = read(folder / "config.json"), _lines(folder / "metrics.jsonl")
        metric = next((name for name in METRICS if any(finite(line.get(name)) is not None for line in lines)), None)
        if metric is None:
            raise ValueError(f"nothing is finished in {folder}: no held-out data has been measured yet")
        run, notices = (_inside(config, key, folder / "config.json") for key in ("run", "notes"))
        recipe = _inside(run, "recipe", folder / "config.json")
        last = next(line for line in reversed(lines) if metric in line)
        found.setdefault(metric, []).append(
            {
                "cell": called,
                "model": called,
                "seed": run.get("seed", 0),
                "measured": {"": {key: value for key, value in last.items() if key != "step"}},
                "curve": lines,
                "steps": last.get("step"),
                "config": run.get("config"),
                "recipe": recipe,
                "task": run.get("task"),
                "command": notices.get("command"),
            }
        )
        asked, told = _total(recipe), notes.setdefault(metric, [])
        told.append(f"{called}: {config.get('model', 'a model')} on {notices.get('data', 'unnamed data')}.")
        ended = (folder / MANIFEST).is_file() or (folder / "model.safetensors").is_file()  # as before manifests
        if not ended or last.get("step") != asked:
            told.append(f"{called} is not finished: measured after {last.get('step')} of {asked} steps.")
        if damage:
            told.append(f"{damage}: the command that trained it repairs it.")
    tables = []
    for metric, results in found.items():
        names = [result["cell"] for result in results]
        about = {"name": "runs", "title": "Training runs", "metric": metric, "models": names, "cells": names}
        tables.append(read_table({**about, "notes": notes[metric]}, results, next(iter(folders)) / "config.json"))
    return tables


def _inside(content: dict[str, Any], key: str, place: Path) -> dict[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{place} is damaged (its {key} is not a JSON object): write it again")
    return value


def _damage(folder: Path) -> str:
    """What is wrong with the files of a finished run; raised, where it is with those that are shown."""
    try:
        check_folder(folder, ("config.json", "metrics.jsonl"))
    except ValueError as damage:
        raise ValueError(f"{damage}; the command that trained it repairs it") from None
    try:
        check_folder(folder)
    except ValueError as damage:
        return str(damage)
    return ""


def _total(recipe: dict[str, Any]) -> Any:
    """How many steps a run has by its recipe."""
    stages = recipe.get("stages")
    try:
        return sum(int(str(stage).partition(":")[0]) for stage in stages) if stages else recipe.get("steps")
    except (TypeError, ValueError):
        return None


def _lines(place: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log; the last one may be half, as its run was killed or is running."""
    try:
        texts = place.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {place}: {one_line(error)}") from None
    lines = []
    for number, text in enumerate(texts[:-1], start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise ValueError(f"{place} is damaged in line {number}: write it again")
        lines.append(line)
    return lines
