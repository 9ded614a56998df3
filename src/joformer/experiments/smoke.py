"""A rehearsal of tables: every distinct setting for two steps and one evaluation, and what its real run would need.

    run      the cell's own `run`: model, recipe, data path, length and image size are real; 2 samples per part
    count    memory and FLOP of the real batch on tensors without data (footprint.py)
    hours    steps · max(FLOP / throughput, kernels · 10 µs) + evaluations; an estimate, not a measurement

Settings that differ in their seeds alone are rehearsed once. Nothing is written but in a temporary folder.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from joformer._io import one_line
from joformer._log import counted, logger
from joformer.experiments.cost import TURNS, measure
from joformer.experiments.execution import Execution
from joformer.experiments.footprint import LAUNCH, MARGIN, RESERVED, WIDE, Footprint, Live, count, shapes_of
from joformer.experiments.running import run
from joformer.experiments.sources import ImageSource, PairsSource, StreamSource, TextSource
from joformer.experiments.standins import BYTES, FLAT, PREFIX, true_size
from joformer.experiments.tables import Cell, Table
from joformer.models._saving import WEIGHTS
from joformer.training import Images, Pairs, Processes, Recipe, Streamed, Task, loop, resolve
from joformer.training.runs import CHECKPOINTS
from joformer.training.stages import changed
from joformer.training.tasks.pairs import HELD_OUT

CARDS = (24, 40, 80)
"""Gigabytes (10⁹ bytes) of the cards that are judged."""
SAMPLES, HELD = 2, 4
"""Images of a part of a step that is run here, and how many are evaluated; of text one window each."""
NAMING = ("model", "size", "seed", "table", "command", "result")
"""What names a cell and does not decide what is run."""
THROUGHPUT = 40.0
"""TFLOP/s that a card reaches in 16 bits, unless another is given."""


@dataclass(frozen=True)
class Rehearsed:
    """What came of one setting: what was run, and what its real run needs.

    Attributes:
        name: Table, model and size.
        cells: How many runs have this setting.
        error: Why it could not be run or counted, in a line; all below is then missing.
        ran: What was run, in words.
        parameters: How many numbers the model learns.
        batch: Samples per step of the real run.
        parts: In how many parts each card works through its share of them.
        state: Bytes of weights, moments and averages.
        peak: Bytes that one card needs at most.
        timed: Whether it is no training run but a measurement of times, whose batch is never divided.
        cards: For each of `CARDS`, in how many parts the batch of a card must be worked through to fit; None: in none.
        steps: Steps of the real run.
        hours: About how many hours one card takes for one run.
        disk: Bytes of checkpoints and weights that one run needs at most.
        files: How many files its data has.
        read: Bytes of these files.
        seconds: How long the rehearsal took.
    """

    name: str
    cells: int
    error: str = ""
    ran: str = ""
    parameters: int = 0
    batch: int = 0
    parts: int = 1
    state: int = 0
    peak: int = 0
    timed: bool = False
    cards: dict[int, int | None] = field(default_factory=dict)
    steps: int = 0
    hours: float = 0.0
    disk: int = 0
    files: int = 0
    read: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """All of it.

        >>> Rehearsed("mnist/learned/d-2", 3).as_json()["cells"]
        3
        """
        return asdict(self)


def settings(tables: Sequence[Table]) -> list[tuple[Cell, int]]:
    """The cells of these tables, one of each setting, and how many have it: seeds do not count.

    >>> one, other = Cell("a", "", 0, "model", "data"), Cell("a", "", 1, "model", "data")
    >>> [count for _, count in settings([Table("t", "T", None, cells=(one, other))])]
    [2]
    """
    found: dict[Any, tuple[Cell, int]] = {}
    for table in tables:
        for cell in table.cells:
            key = tuple(getattr(cell, one.name) for one in fields(cell) if one.name not in NAMING)
            first, many = found.get(key, (cell, 0))
            found[key] = first, many + 1
    return list(found.values())


def rehearse(
    tables: Sequence[Table], execution: Execution | None = None, throughput: float = THROUGHPUT
) -> Iterator[Rehearsed]:
    """Runs every setting of these tables for two steps, and counts what its real run needs.

    Args:
        tables: The tables as they would be run.
        execution: How many cards share the batch of a cell, and in how many parts each works through its share.
        throughput: TFLOP/s that a card reaches in 16 bits.

    Yields:
        What came of each setting, as soon as it is known; one that fails does not keep others from being run.
    """
    execution = execution or Execution()
    for cell, many in settings(tables):
        name = cell.name.rpartition("/seed-")[0]
        began = time.monotonic()
        try:
            with TemporaryDirectory(prefix=PREFIX) as folder, _quiet(), patch.object(loop, "signals", _unheard):
                found = _rehearsed(cell, Path(folder), execution.of(cell), throughput)
        except Exception as error:  # a setting that fails must not take the others with it
            yield Rehearsed(name, many, one_line(error, ValueError, first=True))
        else:
            yield Rehearsed(name, many, **found, seconds=time.monotonic() - began)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it nothing is logged: that a stand-in has few images is no news, for every setting again."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _unheard() -> Iterator[Callable[[], int]]:
    """In place of `signals`: nothing is worth saving, and a run of two steps would end before it stops."""
    yield lambda: 0


def _rehearsed(cell: Cell, folder: Path, execution: Execution, throughput: float) -> dict[str, Any]:
    team, parts = execution.processes, execution.accumulate
    alone = replace(execution, processes=1, shard=False, accumulate=min(parts, 2))
    short, source = _short(cell.recipe), _few(cell.source, alone.accumulate)
    lengths = tuple(sorted({*cell.lengths[:1], *cell.lengths[-1:]}))
    _require_flat(cell.source)
    if cell.alone:
        measure(replace(cell, source=source, recipe=short), turns=1, warmup=0)
        disk = 0
    else:
        run(replace(cell, source=source, recipe=short, lengths=lengths, result={}), folder, alone)
        disk = _disk(folder / cell.name, cell.recipe)
    took = f"{short.total} steps of {source.batch} of {cell.source.batch:,}"
    took += f", evaluated at {' and '.join(map(str, lengths))} tokens" * bool(lengths)
    if cell.alone:
        took = f"a step of {source.batch} of {cell.source.batch:,}, for {1 + len(cell.rivals)} models"
    if short.precision != cell.recipe.precision:
        took += f", {short.precision} for {cell.recipe.precision}"
    files = [] if (path := resolve(cell.source.data).path) is None else resolve(path).files
    one = _needs(cell, team, parts)
    return {
        "ran": took,
        "parameters": one.parameters,
        "batch": cell.source.batch,
        "parts": parts,
        "state": one.state,
        "peak": one.peak,
        "timed": cell.alone,
        "cards": {card: _parts(cell, team, parts, card) for card in CARDS},
        "steps": cell.recipe.total,
        "hours": _hours(cell, one, team, throughput * 1e12),
        "disk": disk,
        "files": len(files),
        "read": sum(os.stat(file).st_size for file in files),
    }


# -- the run -----------------------------------------------------------------------------------------------------------


def _short(recipe: Recipe) -> Recipe:
    """The recipe for two steps, or one of each stage; all else that the CPU has is as it was."""
    stages = tuple(":".join(("1", *stage.split(":")[1:])) for stage in recipe.stages)
    here = Processes().device.type
    precision = "bf16" if recipe.precision == "fp16" and here == "cpu" else recipe.precision
    return replace(recipe, steps=2, stages=stages, precision=precision, log_every=1, keep=1)


@dataclass(frozen=True)
class _FewImages(ImageSource):
    """The same images; a few are evaluated."""

    def task(self) -> Task:
        task: Any = super().task()
        task.images = _trimmed(task.images)
        return task


def _trimmed(images: Images | Streamed) -> Images | Streamed:
    if isinstance(images, Images):
        test = replace(images.test, images=images.test.images[:HELD], labels=images.test.labels[:HELD])
        return replace(images, test=test)
    images = copy.copy(images)
    images.test = copy.copy(images.test)
    images.test.records = images.test.records.take(torch.arange(min(HELD, len(images.test))))
    return images


def _few(source: Any, parts: int = 1) -> Any:
    """The source with a batch of as few samples as so many parts can have."""
    if isinstance(source, TextSource):
        return replace(source, batch=parts, held_out=1)
    if not isinstance(source, ImageSource):
        return replace(source, batch=SAMPLES * parts)
    given = {one.name: getattr(source, one.name) for one in fields(source)}
    return _FewImages(**given | {"batch": SAMPLES * parts})


def _disk(folder: Path, recipe: Recipe) -> int:
    """Bytes of a run at most: the checkpoints that are kept, one that is being written, and the weights."""
    checkpoint = max(
        sum(file.stat().st_size for file in one.iterdir()) for one in (folder / CHECKPOINTS).iterdir() if one.is_dir()
    )
    weights = (folder / WEIGHTS).stat().st_size
    shutil.rmtree(folder)
    return (recipe.keep + 1) * checkpoint + weights


@lru_cache(maxsize=4)
def _require_flat(source: Any) -> None:
    """Raises ValueError if a stand-in for ImageNet does not give the same samples with a flat val/."""
    flat = Path(source.data).parent / FLAT / "labels.csv"
    if true_size(source, 0) is None or not flat.is_file():
        return
    tasks = [_few(one).task() for one in (source, replace(source, data=str(flat)))]
    batches: list[list[Tensor]] = []
    for task in tasks:
        held = next(task._tests([torch.arange(len(task.images.test))]))
        batches.append([*task.batch(0, 0, 0, 1), *held])
        task.close()
    if not all(map(torch.equal, *batches)):
        raise ValueError(f"{flat} gives different images or labels from class folders")


# -- what the real run needs -------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _made(source: Any) -> tuple[tuple[Tensor, ...], float, int]:
    """A small batch without data; bytes that making a sample takes at most, augmented and mixed; and kernels."""
    peaks, sizes = [], []
    for parts in (4, 8):
        few = _few(source, parts)
        task = few.task()
        with Live() as live:
            batch = task.batch(0, 0, 0, 1)
        peaks.append(live.peak)
        sizes.append(few.batch)
        task.close()
    looks = tuple(torch.empty(one.shape, dtype=one.dtype, device="meta") for one in batch)
    return looks, (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]), live.kernels


def _resident(source: Any) -> int:
    """Bytes of images that stay on the card."""
    images = source.load() if isinstance(source, (ImageSource, PairsSource)) else None
    if not isinstance(images, (Images, Pairs)):
        return 0
    sizes = (true_size(source, split) or len(its) for split, its in enumerate((images.train, images.test)))
    return sum(sizes) * images.train.images[0].numel()


@lru_cache(maxsize=64)
def _count(config: Any, source: Any, recipe: Recipe, rows: int, lengths: tuple[int, ...], copies: bool) -> Footprint:
    looks, making, kernels = _made(source)
    if isinstance(source, TextSource):
        contexts = (source.context, *lengths)
        held: list[list[tuple[int, ...]]] = [
            [(max(1, rows * source.context // one), one)] * len(looks) for one in contexts
        ]
    else:
        held = [shapes_of(looks, max(rows, 64))]
    found = count(config, _few(source).task(), recipe, looks, rows, held, copies=copies)
    peak = _resident(source) + max(found.peak, found.state + round(making * rows))
    return replace(found, peak=peak, kernels=found.kernels + kernels * recipe.accumulate)


def _needs(cell: Cell, processes: int, parts: int) -> Footprint:
    """What a card needs whose share of the batch is worked through in so many parts."""
    rows, source = cell.source.batch // processes // parts, cell.source
    # Of the recipe only what memory and work depend on: tables of other budgets share a count.
    recipe = Recipe(precision=cell.recipe.precision, average=cell.recipe.average, accumulate=parts)
    if not cell.alone:
        config = cell.config
        for stage in cell.recipe.sequence:
            config = changed(config, stage.frames)
        return _count(config, source, recipe, rows, cell.lengths, processes > 1)
    # All models are there at once, and take turns.
    each = [
        _count(config, source, recipe, rows, (), False) for config in (cell.config, *(its for _, its in cell.rivals))
    ]
    state, most = sum(one.state for one in each), max(one.peak - one.state for one in each)
    flops, kernels = (sum(getattr(one, name) for one in each) for name in ("flops", "kernels"))
    return Footprint(max(one.parameters for one in each), state, state + most, flops, kernels, ())


def _parts(cell: Cell, processes: int, parts: int, card: int) -> int | None:
    """The fewest parts, from those given on, with which a card of so many gigabytes has room; None: with none."""
    while cell.source.batch % (processes * parts) == 0:
        found = _needs(cell, processes, parts)
        if found.fits(card * 1e9):
            return parts
        if not replace(found, peak=found.state).fits(card * 1e9):
            return None
        parts *= 2
    return None


def _hours(cell: Cell, one: Footprint, processes: int, rate: float) -> float:
    recipe, source = cell.recipe, cell.source
    steps = TURNS + 2 if cell.alone else recipe.total
    seconds = steps * one.seconds(recipe.precision, rate)
    if not cell.alone:
        evaluations = -(-recipe.total // recipe.evaluate_every)
        flops = _held(source) * (evaluations * one.evaluated[0] + sum(one.evaluated[1:])) / processes
        seconds += flops / (rate * (WIDE if recipe.precision == "fp32" else 1))
    return seconds / 3600


def _held(source: Any) -> float:
    """How many samples an evaluation has: of the real data, where this is a stand-in."""
    if isinstance(source, ImageSource):
        return true_size(source, 1) or len(source.load().test)
    if isinstance(source, StreamSource):
        return len(source.load().test.pixels) * source.load().frame / source.seconds
    if isinstance(source, PairsSource):
        return min(len(source.load().test), HELD_OUT)
    if not isinstance(source, TextSource):
        return len(source.load().valid)
    if source.held_out is not None:
        return source.held_out
    share = getattr(source, "percent", None) or 5
    tokens = (true_size(source, 0) or 0) * share / 100 / BYTES or len(source.load().valid)
    return tokens / source.context


# -- in words ----------------------------------------------------------------------------------------------------------


def as_text(rows: Sequence[Rehearsed], *, processes: int = 1, throughput: float = THROUGHPUT) -> str:
    """The rehearsal as a table in Markdown, with what it assumes.

    >>> print(as_text([Rehearsed("mnist/learned/d-2", 3, "no such file")]).splitlines()[2])
    | mnist/learned/d-2 × 3 | failed: no such file |
    """
    head = ("setting × runs", "parameters", "batch", "memory", *(f"{card} GB" for card in CARDS), "steps", "hours",
            "disk", "files read", "ran here")  # fmt: skip
    lines = [[*head]]
    for row in rows:
        name = f"{row.name} × {row.cells}"
        if row.error:
            lines.append([name, f"failed: {row.error}"])
            continue
        fits = [_fit(row, card) for card in CARDS]
        lines.append([
            name, f"{row.parameters:,}", f"{row.batch:,}", _size(row.peak), *fits, f"{row.steps:,}", _time(row.hours),
            _size(row.disk), f"{row.files:,}, {_size(row.read)}" if row.files else "none",
            f"{row.ran}: {row.seconds:.0f} s",
        ])  # fmt: skip
    widths = [max(len(line[at]) for line in lines if len(line) == len(head)) for at in range(len(head))]
    table = ["| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=False)) + " |"
             if len(line) == len(head) else "| " + " | ".join(line) + " |" for line in lines]  # fmt: skip
    table.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    good = [row for row in rows if not row.error]
    total = sum(row.hours * row.cells for row in good) * processes
    failed = f", {len(rows) - len(good)} failed" * (len(good) < len(rows))
    return "\n".join([
        *table,
        "",
        f"{len(rows)} settings{failed}; all {sum(row.cells for row in good):,} runs: {_time(total)} card-hours, "
        f"{_size(sum(row.disk * row.cells for row in good))} on the disk.",
        f"memory: of each card; counted for the real batch on tensors without data. A card fits if {MARGIN:.0%} and "
        f"{RESERVED / 1e9:g} GB more are free, for fragments and CUDA itself. ÷ N: it fits with --accumulate N, or N "
        "times as many --processes; batch N: with --batch N alone, as times are measured in one part; no: with none.",
        f"hours: steps × max(FLOP / {throughput:g} TFLOP/s, kernels × {LAUNCH * 1e6:g} µs) and the evaluations, on "
        f"{counted(processes, 'card')}; float32 at {WIDE:g} of that rate. An estimate at a stated rate, not "
        "a measurement: --throughput gives another.",
        "Assumed: attention by fused kernels where CUDA has one for the width of the head and the mask, rotations by "
        "our kernel, nothing compiled. disk: checkpoints that are kept, one being written, the weights. files read: of "
        "the data here, stand-ins or yours.",
    ])  # fmt: skip


def _fit(row: Rehearsed, card: int) -> str:
    parts = row.cards[card]
    if parts is None:
        return "no"
    return "yes" if parts == row.parts else f"batch {row.batch // parts}" if row.timed else f"÷ {parts}"


def _size(count: float) -> str:
    unit = "GB" if count >= 1e9 else "MB"
    return f"{count / (1e9 if unit == 'GB' else 1e6):,.1f} {unit}"


def _time(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 0.95 else f"{hours:.2g}"
