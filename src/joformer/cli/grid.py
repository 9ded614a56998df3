"""What `reproduce` and `compare` have in common: running plans, with the time left, and showing what came of them."""

from __future__ import annotations

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joformer._log import Progress, logger
from joformer.cli.console import say

if TYPE_CHECKING:
    from joformer.experiments import Cell, Plan

Engine = Literal["local", "ray"]


def chosen(plans: Sequence[Plan], only: Sequence[str], command: str) -> list[Plan]:
    """The plans with the cells that were asked for, each with the command that runs it alone."""
    from dataclasses import replace

    from joformer.experiments.plans import with_command

    kept = []
    for plan in plans:
        cells = [c for c in plan.cells if not only or any(c.name == one or fnmatch(c.name, one) for one in only)]
        if cells:
            kept.append(replace(plan, cells=with_command(cells, command)))
    return kept


def published(data: Path) -> str:
    """The data's folder as a command in a report has it: as it was typed, but nobody's whole path."""
    return data.name if data.is_absolute() else str(data)


def run_plans(plans: Sequence[Plan], out: Path, *, jobs: int | None, engine: Engine) -> int:
    """Run every cell that is not finished; how many could not be. Only one command at a time may, in a folder."""
    from joformer._io import Lock
    from joformer.experiments.cluster import run_on_ray
    from joformer.experiments.engine import run_local, usable_devices

    jobs = usable_devices() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"--jobs must be 1 or more, got {jobs}")
    engines = {"local": run_local, "ray": run_on_ray}
    with Lock(out):  # two at once would find each other's cells in use, and call them failed
        return _run_cells(plans, out, jobs, engines[engine])


def _run_cells(plans: Sequence[Plan], out: Path, jobs: int, engine: Callable[..., Any]) -> int:
    from joformer.experiments.cells import finished
    from joformer.experiments.results import RESULT

    cells = [cell for plan in plans for cell in plan.cells]
    done = {cell.name for cell in cells if finished(cell, out) is not None}
    for plan in plans:
        plan.begin(out)
    if done:
        logger.info(f"{len(done)} of {len(cells)} cells in {out} are finished already")
    # A seed of every model before the next: whoever stops early has pairs.
    left = sorted((cell for cell in cells if cell.name not in done), key=lambda cell: cell.seed)
    failed, asked = 0, list[int]()
    clock = _Clock(left, out, jobs)
    events = engine(left, out, jobs=jobs)
    try:
        with _asked_to_stop(asked), Progress(f"{len(left)} cells", clock.total) as progress:
            for event in events:
                if event is not None:
                    clock.ended(event.cell, event.result)
                    failed += event.result is None
                    if event.result is None:
                        logger.warning(_line(event, clock))
                    elif not progress.on_terminal:
                        logger.info(_line(event, clock))
                progress.update(clock.done(), f"{clock.count} of {len(left)} cells, {clock.left()} left")
    except KeyboardInterrupt:
        with suppress(Exception):
            events.close()
        ready = sum((out / cell.name / RESULT).is_file() for cell in cells)  # also those nobody was told of yet
        logger.warning(
            f"joformer: stopped with {ready} of {len(cells)} cells finished in {out}; the same command goes on"
        )
        raise SystemExit(128 + (asked[0] if asked else signal.SIGINT)) from None
    if failed and failed == len(cells):
        raise ValueError(f"none of {failed} cells could be run, as said above: the same command tries again")
    return failed


@contextmanager
def _asked_to_stop(asked: list[int]) -> Iterator[None]:
    """SIGTERM is Ctrl-C: what is at work is saved. It is noted in `asked`."""

    def stop(number: int, _: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Clock:
    """How much is done and how long the rest will take, judged by what cells of the same table took."""

    def __init__(self, cells: Sequence[Cell], out: Path, jobs: int) -> None:
        self.out, self.jobs, self.began = out, jobs, time.monotonic()
        self.work = {cell.name: cell.work for cell in cells}
        self.waiting = {cell.name: cell for cell in cells}
        self.total = sum(self.work.values())
        self.count = 0
        self._spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._read: dict[str, tuple[float, float]] = {}

    def ended(self, cell: Cell, result: dict[str, Any] | None) -> None:
        del self.waiting[cell.name]
        self.count += 1
        if result is not None and result["seconds"]:
            self._spent[cell.table].append((self.work[cell.name], 1 + result["seconds"]))

    def done(self) -> float:
        return self.total - sum(self.work[name] * (1 - self._share(cell)) for name, cell in self.waiting.items())

    def left(self) -> str:
        everything = [pair for pairs in self._spent.values() for pair in pairs]
        seconds = sum(
            self.work[name] * (1 - self._share(cell)) * _pace(self._spent[cell.table] or everything)
            for name, cell in self.waiting.items()
        )
        minutes = seconds / min(self.jobs, max(1, len(self.waiting))) / 60
        return "less than a minute" if minutes < 1 else f"about {minutes:.0f} min"

    def _share(self, cell: Cell) -> float:
        """How much of a cell at work is done, by the last line it logged; looked at every two seconds."""
        seen, share = self._read.get(cell.name, (0.0, 0.0))
        if time.monotonic() - seen > 2:
            share = 0.0
            log = self.out / cell.name / "metrics.jsonl"
            with suppress(OSError, ValueError, IndexError, KeyError), open(log, "rb") as file:
                file.seek(max(0, log.stat().st_size - 400))
                share = min(1.0, json.loads(file.read().splitlines()[-1])["step"] / cell.recipe.total)
            self._read[cell.name] = time.monotonic(), share
        return share


def _pace(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(spent for _, spent in pairs) / sum(work for work, _ in pairs) if pairs else 1.0


def _line(event: Any, clock: _Clock) -> str:
    at = f"[{clock.count} of {len(clock.work)}, {clock.left()} left] {event.cell.name}"
    if event.result is None:
        return f"{at}: failed: {event.error}"
    last = list(event.result["measured"].items())[-1]
    shown = ", ".join(f"{name} {value:.4g}" for name, value in last[1].items())
    return f"{at}: {shown}"


def show(out: Path, *, as_json: bool) -> None:
    """Print the tables of a folder, then write their report and say where it is."""
    from joformer.cli.report import Report
    from joformer.experiments import report
    from joformer.experiments.results import gather

    if not as_json:
        for line in report.lines(gather([out])):
            say(line)
        say("")
    Report((out,), json=as_json).run()
