"""A table and its cells: what is compared with what, what is to be run, and what came of it.

    OUT/TABLE/table.json                     what the table compares, and the paper's figures
    OUT/TABLE/MODEL/SIZE/seed-N/             the run of a cell (training/runs.py)
    OUT/TABLE/MODEL/SIZE/seed-N/result.json  written last, with its own sha256: with it the cell is not run again

TABLE carries the data: mnist where that is what was used, digits-mnist where the digits took its place. Cells of the
same seed see the same data in the same order and begin with the same weights in all that they share
(models/_initial.py), so that differences between them are paired.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from joformer._io import make_folder, one_line, read_json, read_sealed, write_json
from joformer.experiments.metrics import METRICS, Metric, metric_of
from joformer.models._saving import written, written_before
from joformer.training import Recipe
from joformer.training.recipe import NON_SEMANTIC_FIELDS
from joformer.training.stages import changed

TABLE, RESULT = "table.json", "result.json"
LARGEST = 1e100
"""What is measured beyond this is a run that broke, and its square would be no number."""
REMEDY = "remove it, or choose another --out"


@dataclass(frozen=True)
class Cell:
    """One run of a table: a model at a size with a seed; what to run, and afterwards its `result`.

    With `rivals` (a name and a configuration each) it is not a training run but a measurement: the time per step of
    each, relative to `config`, all taking turns in one process. `lengths` are contexts at which a language model is
    measured at the end, each a column of the table: the same tokens, as many as the first has, with more preceding
    text. With `yarn`, the name of another row, the same weights are measured again with scaled frequencies (YaRN).

    >>> from joformer.experiments import ImageSource
    >>> from joformer.models import ClassifierConfig
    >>> cell = Cell("learned", "d = 8", 0, ClassifierConfig(dim=8), ImageSource("digits", cells=True), table="mnist")
    >>> cell.name
    'mnist/learned/d-8/seed-0'
    """

    model: str
    size: str
    seed: int
    config: Any = None
    source: Any = None
    recipe: Recipe = field(default_factory=Recipe)
    lengths: tuple[int, ...] = ()
    rivals: tuple[tuple[str, Any], ...] = ()
    yarn: str = ""
    table: str = ""
    command: str = field(default="", compare=False)
    """What runs this cell again, alone."""
    address: str = field(default="", compare=False)
    """Where the table's results are published, if --out is an address: whoever runs the cell publishes it there."""
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its folder inside the output folder."""
        parts = (self.table, _slug(self.model), _slug(self.size), f"seed-{self.seed}")
        return str(self.result.get("cell") or "/".join(part for part in parts if part))

    @property
    def parameters(self) -> int:
        """The number of parameters, including those added by a later stage."""
        config = self.config
        for stage in self.recipe.sequence:
            config = changed(config, stage.frames)
        return parameters(config)

    @property
    def alone(self) -> bool:
        """Whether it must run alone, because it measures time."""
        return bool(self.rivals)

    @property
    def work(self) -> float:
        """Estimated seconds on one core; good for comparing cells, and as a first guess."""
        step = 2e-3 + 8e-11 * self.source.tokens(self.config) * (self.parameters + 5e4)
        return 1 + step * (22 * (1 + len(self.rivals)) if self.alone else self.recipe.total) + 2e-4 * sum(self.lengths)

    def describe(self) -> dict[str, Any]:
        """Everything that determines the result, as JSON."""
        return next(self.descriptions())

    def descriptions(self) -> Iterator[dict[str, Any]]:
        """`describe()`, then how version 0.1 described the same cell."""
        recipe = {name: value for name, value in asdict(self.recipe).items() if name not in NON_SEMANTIC_FIELDS}
        source = {**self.source.as_json(), "kind": type(self.source).__name__, "data": self.source.identity()}
        for model in (written(self.config), *written_before(self.config)):
            described = {"seed": self.seed, **model, "against": None, "source": source, "recipe": recipe}
            if self.rivals:
                described["against"] = {name: written(config) for name, config in self.rivals}
            described["lengths"] = self.lengths
            if self.lengths:  # version 0.2 scored other text at each
                described["targets"] = self.lengths[0]
            if self.yarn:
                described["yarn"] = self.yarn
            yield json.loads(json.dumps(described))

    # -- what came of it ---------------------------------------------------------------------------------------------

    @property
    def measured(self) -> Mapping[str, Mapping[str, Any]]:
        """The metrics of each size."""
        return self.result.get("measured", {})

    def number(self, key: str) -> float | None:
        """The finite number in the result under this key, or None."""
        return finite(self.result.get(key))

    def text(self, key: str) -> str:
        """The text in the result under this key, or an empty string."""
        value = self.result.get(key)
        return value if isinstance(value, str) else ""

    def facts(self, key: str) -> dict[str, Any]:
        """The mapping in the result under this key, or an empty one."""
        value = self.result.get(key)
        return dict(value) if isinstance(value, Mapping) else {}

    @property
    def curve(self) -> list[dict[str, float]]:
        """The finite numbers of the training log, each line with its step."""
        lines = self.result.get("curve")
        kept = [
            {str(k): n for k, value in line.items() if (n := finite(value)) is not None and abs(n) <= LARGEST}
            for line in (lines if isinstance(lines, list) else [])
            if isinstance(line, Mapping)
        ]
        return [line for line in kept if line.get("step", -1.0) >= 0]


@dataclass(frozen=True)
class Table:
    """A table: what it compares, its cells, and what is missing after a run.

    `recipe` names the table of the paper that it follows. `baseline` is the model that all others are compared with,
    `pairs` are further pairs (without value transport, with it), `reference` is the value that a ratio is compared
    with. `paper` holds the printed figures, model → size → value; they are shown next to ours only if the setting is
    `comparable`. `also` lists further metrics to show, `also_paper` the paper's figures for them, metric → model →
    size → value. `protocol` says what the sizes have in common if they may be compared with each other. `looks` is the
    planned number of looks at the results, `looked` the number of cells at each look so far.

    >>> one = Cell("a", "", 0, result={"cell": "t/a/seed-0", "measured": {"": {"loss": 1.0}}})
    >>> Table("t", "T", METRICS["loss"], cells=(one,), planned=("t/a/seed-0", "t/a/seed-1")).missing
    ['t/a/seed-1']
    """

    name: str
    title: str
    metric: Metric
    recipe: str = ""
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
    also: tuple[str, ...] = ()
    also_paper: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    protocol: str = ""
    comparable: bool = False
    notes: tuple[str, ...] = ()
    looks: int = 1
    looked: tuple[int, ...] = ()
    planned: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Planned cells without a result."""
        there = {cell.name for cell in self.cells if cell.result}
        return [name for name in self.planned if name not in there]

    @property
    def seeds(self) -> list[int]:
        """All seeds of finished cells."""
        return sorted({cell.seed for cell in self.cells})

    @property
    def steps(self) -> list[int]:
        """The step counts of its finished runs, smallest first."""
        return sorted({int(n) for cell in self.cells if (n := cell.number("steps")) is not None})

    def values(self, model: str, size: str, metric: str = "") -> dict[int, float]:
        """The metric of each seed that has it: finite, and positive if on a log scale."""
        found = {}
        for cell in self.cells:
            if cell.model == model and size in cell.measured:
                value = finite(cell.measured[size].get(metric or self.metric.name))
                least = 1 / LARGEST if not metric and self.metric.log else -LARGEST
                if value is not None and least <= value <= LARGEST:
                    found[cell.seed] = value
        return found

    def about(self) -> dict[str, Any]:
        """The content of table.json; `read_table` reads it back."""
        later = ("also", "also_paper", "protocol")  # not in files of version 0.2, nor where they say nothing
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("metric", "planned", "cells")}
        plain = {name: value for name, value in plain.items() if value or name not in later}
        metric = {"metric": self.metric.name, "unit": self.metric.unit, "higher": self.metric.higher}
        return json.loads(json.dumps({**plain, **metric, "skewed": self.metric.median, "cells": self.planned}))

    def begin(self, out: Path) -> None:
        """Write table.json; raises ValueError where the folder holds another table of that name."""
        place, about = out / self.name / TABLE, self.about()
        cells = {f"{cell.model}, {cell.size}": cell for cell in self.cells}
        about["settings"] = {which: _checksum(cell.describe()) for which, cell in cells.items()}
        if place.is_file():
            before = read(place, REMEDY)
            for key in ("scale", "data", "metric", "protocol"):
                if before.get(key, about.get(key)) != about.get(key):
                    was = f"{key} = {before.get(key)}, not {about.get(key)}"
                    raise ValueError(f"{place.parent} holds a table with {was}: choose another --out")
            for which, digest in before.get("settings", {}).items():
                about["settings"].setdefault(which, digest)
                if which in cells and digest not in map(_checksum, cells[which].descriptions()):
                    kept = f"{place.parent} holds {which.strip(', ')} with other settings or data"
                    raise ValueError(f"{kept}: choose another --out")
            # More seeds, or other cells of it, are added to what is there.
            for key in ("cells", "models", "sizes", "looked", "pairs"):
                about[key] = [*about[key], *(one for one in before.get(key, ()) if one not in about[key])]
        make_folder(place.parent)
        write_json(place, about)


def plan(recipe: str, title: str, metric: str, cells: Sequence[Cell], *, named: bool = True, **more: Any) -> Table:
    """The table of these cells, which share one source of data; its name includes the data, unless `named` is false.

    >>> from joformer.experiments import ImageSource
    >>> cell = Cell("learned", "", 0, source=ImageSource("digits"))
    >>> plan("mnist", "One vector per image", "accuracy", [cell]).name
    'digits-mnist'
    """
    data = Path(cells[0].source.data).name
    name = recipe if data == recipe or not named else f"{_slug(data)}-{recipe}"
    sizes = dict.fromkeys(str(size) for cell in cells for size in cell.lengths or (cell.size,))
    kept = tuple(replace(cell, table=name) for cell in cells)
    models = more.pop(
        "models", tuple(dict.fromkeys(name for cell in cells for name in (cell.model, cell.yarn) if name))
    )
    return Table(
        name, title, METRICS[metric], recipe, data=data, models=models, sizes=tuple(sizes), cells=kept,
        planned=tuple(cell.name for cell in kept), **more,
    )  # fmt: skip


@lru_cache(maxsize=1024)  # seeds share a configuration, and the time left is judged by this again and again
def parameters(config: Any) -> int:
    """How many numbers the model of this configuration learns; it is not built for that.

    >>> from joformer.models import ClassifierConfig
    >>> parameters(ClassifierConfig(dim=8))
    2450
    """
    with torch.device("meta"):
        return sum(weight.numel() for weight in config.build().parameters())


# -- reading -----------------------------------------------------------------------------------------------------------


class Damaged(ValueError):
    """A file that makes no sense, in one line that names it."""


def read(place: Path, remedy: str = "write it again") -> dict[str, Any]:
    """The JSON object in this file, checked where it has a checksum; what is none is one line that names `remedy`.

    >>> read(Path("nowhere.json"))
    Traceback (most recent call last):
    ValueError: cannot read nowhere.json: No such file or directory
    """
    try:
        content = read_json(place)
        return read_sealed(place) if "sha256" in content else content
    except OSError as error:
        raise ValueError(f"cannot read {place}: {one_line(error)}") from None
    except ValueError as error:
        raise ValueError(f"{place} is damaged ({error}): {remedy}") from None


def read_table(about: Mapping[str, Any], results: Iterable[Mapping[str, Any]] = (), place: object = TABLE) -> Table:
    """A table from the content of its table.json and of the result.json of its cells; `place` is named in errors.

    >>> read_table({"name": "t", "metric": "loss", "models": ["a"], "cells": []}).metric.unit
    'nats'
    """
    try:
        name = str(about["name"])
        paper, also_paper = about.get("paper") or {}, about.get("also_paper") or {}
        return Table(
            name,
            str(about.get("title") or name),
            metric_of(about),
            **{
                key: str(about.get(key) or "") for key in ("scale", "data", "paper_metric", "paper_setting", "protocol")
            },
            recipe=str(about.get("recipe") or name),
            baseline=None if about.get("baseline") is None else str(about["baseline"]),
            reference=None if about.get("reference") is None else float(about["reference"]),
            models=tuple(str(model) for model in about["models"]),
            sizes=tuple(str(size) for size in about.get("sizes") or [""]),
            pairs=tuple((str(without), str(having)) for without, having in about.get("pairs") or []),
            paper=_figures(paper),
            also=tuple(str(name) for name in about.get("also") or []),
            also_paper={str(name): _figures(rows) for name, rows in also_paper.items()},
            comparable=bool(about.get("comparable")),
            notes=tuple(str(note) for note in about.get("notes") or []),
            looks=int(about.get("looks") or 1),
            looked=tuple(int(cells) for cells in about.get("looked") or []),
            planned=tuple(str(cell) for cell in about.get("cells") or []),
            cells=tuple(cell for result in results for cell in read_cells(result, place)),
        )
    except Damaged:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Damaged(f"{place} is damaged ({one_line(error, plain=())}): write it again") from None


def read_cells(result: Mapping[str, Any], place: object = RESULT) -> list[Cell]:
    """The cell of a result.json, or a cell for each model that was timed, or measured in other ways (`also`), in it.

    >>> read_cells({"cell": "t/a/seed-0", "model": "a", "seed": 0, "measured": {}})[0].model
    'a'
    """
    try:
        seed, table = int(result["seed"]), str(result.get("table") or "")
        rest = {key: value for key, value in result.items() if key not in ("timed", "also")}
        rest["cell"] = str(result["cell"])
        rows: list[tuple[Any, Any, dict[str, Any]]]
        rows = [(model, sizes, {}) for model, sizes in (result.get("timed") or {}).items()]
        rows = rows or [(result["model"], result["measured"], {})]
        for model, one in (result.get("also") or {}).items():  # of the same run, whose time counts once
            rows.append((model, one["measured"], {"by_position": one.get("by_position"), "seconds": None}))
        found = []
        for model, sizes, more in rows:
            measured = {str(size): dict(metrics) for size, metrics in sizes.items()}
            own = {**rest, "model": str(model), "measured": measured, **more}
            found.append(Cell(str(model), next(iter(measured), ""), seed, table=table, result=own))
        return found
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Damaged(f"{place} is damaged ({one_line(error, plain=())}): write it again") from None


def _figures(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Model → size → value, where there is one."""
    return {str(m): {str(s): float(v) for s, v in row.items() if v is not None} for m, row in rows.items()}


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


def _checksum(described: dict[str, Any]) -> str:
    """A checksum of all that decides a cell's result but its seed."""
    text = json.dumps({**described, "seed": None}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
