"""What runs have left on disk, gathered: nothing but JSON is read, and nothing in it is run.

    OUT/TABLE/table.json, OUT/TABLE/…/result.json   of `reproduce` and `compare`: a table and its cells
    RUN/config.json, RUN/metrics.jsonl              of `train`: a row of the table "runs"
    report.json                                     of `report`: tables as they were gathered before

A cell that is planned and has no result yet is missing, which the report says. A file that is there and makes no sense
is an error that names it: a report without it would look complete.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from statistics import median
from typing import Any

TABLE, RESULT, REPORT = "table.json", "result.json", "report.json"
UNITS = {
    # metric of a training run, the best first: its unit, whether more is better
    "bits_per_byte": ("bits per byte", False),
    "accuracy": ("% accuracy", True),
    "loss": ("nats", False),
}


@dataclass(frozen=True)
class Cell:
    """One run with one seed. `measured` has the metrics of each size; `about` the rest of the file, all optional.

    >>> Cell("t/a/seed-0", "a", 0, {"": {"loss": 1.0}}).number("step_ms") is None
    True
    """

    name: str
    model: str
    seed: int
    measured: Mapping[str, Mapping[str, Any]]
    about: Mapping[str, Any] = field(default_factory=dict)

    def number(self, key: str) -> float | None:
        """The finite number under this key, None where there is none."""
        return finite(self.about.get(key))

    def text(self, key: str) -> str:
        """What is under this key as text, empty where there is nothing."""
        value = self.about.get(key)
        return "" if value is None else str(value)

    def facts(self, key: str) -> dict[str, Any]:
        """The mapping under this key, empty where there is none."""
        value = self.about.get(key)
        return dict(value) if isinstance(value, Mapping) else {}

    @property
    def curve(self) -> list[dict[str, float]]:
        """The finite numbers measured on the way, each line with its step."""
        lines = self.about.get("curve")
        kept = [
            {str(key): number for key, value in line.items() if (number := finite(value)) is not None}
            for line in (lines if isinstance(lines, list) else [])
            if isinstance(line, Mapping)
        ]
        return [line for line in kept if "step" in line]


@dataclass(frozen=True)
class Table:
    """A table: what it compares (the fields of table.json), what of it is finished, what is missing.

    >>> one = Cell("t/a/seed-0", "a", 0, {"": {"loss": 1.0}})
    >>> Table("t", "T", "loss", "nats", models=("a",), cells=(one,), planned=("t/a/seed-0", "t/a/seed-1")).missing
    ['t/a/seed-1']
    """

    name: str
    title: str
    metric: str
    unit: str
    higher: bool = False
    skewed: bool = False
    scale: str = ""
    data: str = ""
    baseline: str | None = None
    reference: float | None = None
    models: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ("",)
    pairs: tuple[tuple[str, str], ...] = ()
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_metric: str = ""
    paper_setting: str = ""
    notes: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Planned cells without a result."""
        there = {cell.name for cell in self.cells}
        return [name for name in self.planned if name not in there]

    def values(self, model: str, size: str, metric: str | None = None) -> dict[int, float]:
        """The metric of each seed that has it: finite, and positive where the table says it is skewed."""
        found = {}
        for cell in self.cells:
            if cell.model == model and size in cell.measured:
                value = finite(cell.measured[size].get(metric or self.metric))
                if value is not None and (metric or not self.skewed or value > 0):
                    found[cell.seed] = value
        return found

    @property
    def seeds(self) -> list[int]:
        """All seeds of finished cells."""
        return sorted({cell.seed for cell in self.cells})


@dataclass(frozen=True)
class Gathered:
    """All tables of a report, in order.

    >>> Gathered(()).tables
    ()
    """

    tables: tuple[Table, ...]


def gather(paths: Sequence[str | Path]) -> Gathered:
    """Everything finished in folders of reproduce, compare or train, and in reports written before.

    >>> gather(["no-such-folder"])
    Traceback (most recent call last):
    ValueError: no-such-folder is not there: give a folder of reproduce, compare or train, or a report.json
    """
    if not paths:
        raise ValueError("nothing to report: give one or more folders of reproduce, compare or train, or a report.json")
    tables: list[Table] = []
    runs: list[Path] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
            raise ValueError(f"{path} is not there: give a folder of reproduce, compare or train, or a report.json")
        if path.is_file():
            tables += _reported(path)
        elif path.resolve() not in seen:
            folders = [path] if (path / TABLE).is_file() else sorted(place.parent for place in path.glob(f"*/{TABLE}"))
            if folders:
                tables += _finished(path, [_from_folder(folder) for folder in folders])
            elif (path / "config.json").is_file() and (path / "metrics.jsonl").is_file():
                runs.append(path)
            else:
                raise ValueError(
                    f"{path} holds no results: give a folder of reproduce, compare or train, or a report.json"
                )
        seen.add(path.resolve())
    return Gathered((*tables, *_runs(runs)))


def as_table(about: Mapping[str, Any], results: Iterable[Mapping[str, Any]], place: str | Path = TABLE) -> Table:
    """A table from the content of its table.json and of the result.json of its cells; `place` is named in errors.

    >>> as_table({"name": "t", "metric": "loss", "models": ["a"], "cells": []}, []).unit
    'loss'
    """
    try:
        name, metric, models = about["name"], about["metric"], [str(model) for model in about["models"]]
        paper = {
            str(m): {str(s): float(v) for s, v in of.items() if v is not None}
            for m, of in (about.get("paper") or {}).items()
        }
        reference, baseline = about.get("reference"), about.get("baseline")
        cells = tuple(_cell(result, place) for result in results)
        return Table(
            str(name),
            str(about.get("title") or name),
            str(metric),
            str(about.get("unit") or metric),
            higher=bool(about.get("higher")),
            skewed=bool(about.get("skewed")),
            scale=str(about.get("scale") or ""),
            data=str(about.get("data") or ""),
            baseline=None if baseline is None else str(baseline),
            reference=None if reference is None else float(reference),
            models=tuple(models),
            sizes=tuple(str(size) for size in about.get("sizes") or [""]),
            pairs=tuple((str(without), str(having)) for without, having in about.get("pairs") or []),
            paper=paper,
            paper_metric=str(about.get("paper_metric") or ""),
            paper_setting=str(about.get("paper_setting") or ""),
            notes=tuple(str(note) for note in about.get("notes") or []),
            planned=tuple(str(cell) for cell in about.get("cells") or []),
            cells=cells,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, _Damaged):
            raise
        raise _Damaged(f"{place} is damaged ({type(error).__name__}: {error}): write it again") from None


def describe(table: Table) -> dict[str, Any]:
    """The content of table.json again, as `as_table` reads it.

    >>> describe(as_table({"name": "t", "metric": "loss", "models": ["a"]}, []))["models"]
    ['a']
    """
    fields = ("name", "title", "scale", "data", "metric", "unit", "higher", "skewed", "baseline", "reference")
    return {
        **{name: getattr(table, name) for name in fields},
        "models": list(table.models),
        "sizes": list(table.sizes),
        "pairs": [list(pair) for pair in table.pairs],
        "paper": {model: dict(of) for model, of in table.paper.items()},
        "paper_metric": table.paper_metric,
        "paper_setting": table.paper_setting,
        "notes": list(table.notes),
        "cells": list(table.planned),
    }


def finite(value: object) -> float | None:
    """A number as float, anything else (and what is not finite) as None.

    >>> finite(1), finite("1"), finite(math.nan)
    (1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class _Damaged(ValueError):
    """A file that makes no sense, already in one line."""


def _cell(result: Mapping[str, Any], place: str | Path) -> Cell:
    try:
        measured = {str(size): dict(of) for size, of in result["measured"].items()}
        rest = {key: value for key, value in result.items() if key not in ("cell", "model", "seed", "measured")}
        return Cell(str(result["cell"]), str(result["model"]), int(result["seed"]), measured, rest)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _Damaged(f"{place} is damaged ({type(error).__name__}: {error}): write it again") from None


def _read(place: Path) -> dict[str, Any]:
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {place}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is damaged ({error}): write it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{place} is damaged (no JSON object): write it again")
    return content


def _from_folder(folder: Path) -> Table:
    content = _read(folder / TABLE)
    table = as_table(content, [], folder / TABLE)
    results = []
    for name in table.planned:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0] == "/" or "\\" in name:
            raise ValueError(f"{folder / TABLE} is damaged (no cell can be called {name!r}): write it again")
        # A folder may have been renamed since.
        place = (folder.joinpath(*parts[1:]) if parts[0] == table.name else folder.parent / name) / RESULT
        if place.is_file():
            result = _read(place)
            _cell(result, place)
            results.append(result)
    return as_table(content, results, folder / TABLE)


def _finished(path: Path, tables: list[Table]) -> list[Table]:
    if not any(table.cells for table in tables):
        planned = sum(len(table.planned) for table in tables)
        raise ValueError(f"nothing is finished in {path}, 0 of {planned} cells: run it first")
    return tables


def _reported(path: Path) -> list[Table]:
    content = _read(path)
    tables = content.get("tables")
    if not isinstance(tables, list) or not all(
        isinstance(t, dict) and isinstance(t.get("cells"), list) for t in tables
    ):
        raise ValueError(f"{path} is no report.json: give one that `joformer report` wrote, or a folder")
    return _finished(path, [as_table(table.get("about") or {}, table["cells"], path) for table in tables])


def _runs(folders: list[Path]) -> list[Table]:
    """Runs of `joformer train`: a row each, in one table for each metric."""
    found: dict[str, list[dict[str, Any]]] = {}
    notes: dict[str, list[str]] = {}
    for folder in folders:
        config, lines = _read(folder / "config.json"), _lines(folder / "metrics.jsonl")
        metric = next((name for name in UNITS if any(finite(line.get(name)) is not None for line in lines)), None)
        if metric is None:
            raise ValueError(f"nothing is finished in {folder}: nothing was measured on held-out data yet")
        run, notices = config.get("run") or {}, config.get("notes") or {}
        recipe = run.get("recipe") or {}
        last = next(line for line in reversed(lines) if metric in line)
        pace = _lines(folder / "speed.jsonl") if (folder / "speed.jsonl").is_file() else []
        spent = [s for line in pace if (s := finite(line.get("seconds_per_step"))) is not None]
        found.setdefault(metric, []).append(
            {
                "cell": str(folder),
                "model": str(folder),
                "seed": run.get("seed", 0),
                "measured": {"": {key: value for key, value in last.items() if key != "step"}},
                "curve": lines,
                "steps": last.get("step"),
                "step_ms": 1000 * median(spent) if spent else None,
                "config": run.get("config"),
                "recipe": recipe,
                "task": run.get("task"),
                "command": notices.get("command"),
            }
        )
        asked, told = recipe.get("steps"), notes.setdefault(metric, [])
        told.append(f"{folder}: {config.get('model', 'a model')} on {notices.get('data', 'data it does not name')}.")
        if not (folder / "model.safetensors").is_file():
            told.append(f"{folder} is not finished: measured after {last.get('step')} of {asked} steps.")
    return [
        as_table(
            {
                "name": "runs",
                "title": "Training runs",
                "metric": metric,
                "unit": UNITS[metric][0],
                "higher": UNITS[metric][1],
                "models": [result["model"] for result in results],
                "cells": [result["cell"] for result in results],
                "notes": notes[metric],
            },
            results,
            folders[0] / "config.json",
        )
        for metric, results in found.items()
    ]


def _lines(place: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log; the last one may be half, as its run was killed or goes on."""
    try:
        texts = place.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {place}: {error}") from None
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
