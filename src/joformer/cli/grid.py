"""Shared by `reproduce` and `compare`: running tables with the time left, and showing the results."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joformer._log import Progress, counted, logger
from joformer._remote import Owner, Store, is_address, local
from joformer.cli.console import say
from joformer.cli.growing import GrowingPage, note_look
from joformer.cli.options import CONFIG, Place, changed, claim, positional, words, write_config

if TYPE_CHECKING:
    from joformer.experiments import Cell, Table
    from joformer.experiments.execution import Execution

Engine = Literal["local", "ray", "slurm"]


def chosen(planned: Sequence[Table], command: Any, **instead: Any) -> list[Table]:
    """The tables with the cells selected by `command.only`, each with the command that runs only that cell."""
    given = changed(command, ("only", "jobs", "engine", "slurm", "workers", "drift")) | instead
    for name in ("data", "out"):  # as typed, without machine-specific absolute paths
        if name in given and (Path(given[name]).is_absolute() or str(given[name]).startswith("file:")):
            given[name] = Path(given[name]).name
    typed = shlex.join([_name(command), *words(given, positional(type(command)))])
    kept = []
    for table in planned:
        cells = [cell for cell in table.cells if not command.only or any(_means(one, cell) for one in command.only)]
        if cells:
            named = tuple(replace(cell, command=f"joformer {typed} --only {cell.name}") for cell in cells)
            kept.append(replace(table, cells=named, planned=tuple(cell.name for cell in cells)))
    return kept


def check_only(patterns: Sequence[str], tables: Sequence[Table]) -> None:
    """Raises ValueError if a pattern of --only matches no run; otherwise it would be ignored silently."""
    cells = [cell for table in tables for cell in table.cells]
    for pattern in patterns:
        if not any(_means(pattern, cell) for cell in cells):
            names = [cell.name for cell in cells]
            like = next(iter(get_close_matches(pattern, names, 1)), names[0])
            raise ValueError(f"--only {pattern} matches no run: names look like {like}")


def _name(command: Any) -> str:
    """The command's name as typed."""
    return type(command).__name__.lower()


def _means(pattern: str, cell: Cell) -> bool:
    """Whether the pattern matches this cell, with or without the data prefix of its table's name."""
    short = cell.name.removeprefix(f"{cell.table.rpartition('-')[0]}-")
    return any(name == pattern or fnmatch(name, pattern) for name in (cell.name, short))


def show_cells(tables: Sequence[Table], as_json: bool) -> None:
    """Prints what would be run: one line per model and size, then the total; or all of it as JSON."""
    from joformer.experiments.names import plain

    alike: dict[str, list[Cell]] = {}  # cells of one model and size, by seed
    recipes = {table.name: table.recipe for table in tables}
    for cell in (cell for table in tables for cell in table.cells):
        alike.setdefault(cell.name.rpartition("/")[0], []).append(cell)
    timed = sum(cell.alone for cells in alike.values() for cell in cells)
    trained = sum(map(len, alike.values())) - timed
    if as_json:
        models = []
        for name, (one, *others) in alike.items():
            seeds = [cell.seed for cell in (one, *others)]
            about: dict[str, Any] = {"name": name, "data": one.source.data, "seeds": seeds}
            if not one.alone:
                model = plain(recipes[one.table], one.model)
                about |= {"model": model, "parameters": one.parameters, "steps": one.recipe.total}
            models.append(about)
        say(json.dumps({"models": models, "runs": trained, "rounds": timed}))
        return
    for name, cells in alike.items():
        one, seeds = cells[0], [cell.seed for cell in cells]
        which = "" if seeds == [*range(len(seeds))] else f" ({', '.join(map(str, seeds))})"
        if one.alone:
            what = f"{1 + len(one.rivals)} models timed, {counted(len(seeds), 'round')}"
        else:
            what = f"{plain(recipes[one.table], one.model)}: {one.parameters:,} parameters, {one.recipe.total:,} steps"
            what += f", {counted(len(seeds), 'seed')}"
        say(f"{name}  {what}{which}, {one.source.data}")
    some = ((trained, "run", ""), (timed, "round", " of timing"))
    say("Total: " + " and ".join(counted(count, what) + more for count, what, more in some if count))


def run_tables(
    tables: Sequence[Table],
    command: Any,
    execution: Execution | None = None,
    order: Callable[[Cell], Any] | None = None,
    picture: Callable[[], str] | None = None,
) -> int:
    """Runs every cell that is not finished and returns how many failed. Only one command may run in a folder at a time.

    By default tables run one after the other, the smallest first, so that results appear early. Within a table, each
    seed is run for all models before the next: stopping early leaves complete pairs. On a terminal `picture` is drawn
    above the bar.
    """
    from joformer._io import Lock
    from joformer.experiments.execution import Execution

    if command.jobs is not None and command.jobs < 1:
        raise ValueError(f"--jobs must be 1 or more, got {command.jobs}")
    engine = _engine(command, execution or Execution())
    work = {table.name: sum(cell.work for cell in table.cells) for table in tables}
    order = order or (lambda cell: (work[cell.table], cell.table, cell.seed))
    store = Store(str(command.out)) if is_address(command.out) else None
    # Two commands at once would count each other's running cells as failed.
    with Lock(local(command.out)), nullcontext() if store is None else Owner(store):
        claim(_name(command), command.out)
        if store is not None:
            _pull_results(store)
        failed = _run_cells(tables, command, engine, order, picture)
        if store is not None:
            _pull_results(store)  # results of other machines
        return failed


def _engine(command: Any, execution: Execution) -> Callable[[Sequence[Cell], Path], Any]:
    """The function that runs cells with the command's engine; raises ValueError if the engine is not available."""
    from joformer.experiments.cluster import run_on_ray
    from joformer.experiments.engine import run_local, usable_devices
    from joformer.experiments.slurm import options, run_by_slurm

    if command.slurm and command.engine != "slurm":
        raise ValueError("--slurm is for --engine slurm: give both, or none")
    if command.engine == "slurm":
        return partial(run_by_slurm, jobs=command.jobs, execution=execution, options=options(command.slurm))
    # With a cluster, local devices do not matter.
    most = usable_devices(1 if os.environ.get("RAY_ADDRESS") else execution.processes)
    run = {"local": run_local, "ray": run_on_ray}[command.engine]
    return partial(run, jobs=command.jobs or most, execution=execution)


def _pull_results(store: Store) -> None:
    """Fetches finished results, and publishes those whose upload failed before."""
    from joformer.experiments.tables import RESULT, TABLE
    from joformer.training.mirror import pull

    names = store.names()
    for place in store.folder.rglob(RESULT):
        if (name := place.relative_to(store.folder).as_posix()) not in names:
            store.put(name, place)
    pull(store, store.folder, lambda name: name.rpartition("/")[2] in (RESULT, TABLE))


def _publish(out: Place, names: Iterable[str]) -> None:
    """Publishes these files and every table.json if `out` is an address."""
    if is_address(out):
        from joformer.experiments.tables import TABLE
        from joformer.training.mirror import push

        tables = [place.relative_to(local(out)).as_posix() for place in local(out).glob(f"*/{TABLE}")]
        push(Store(str(out)), local(out), [*names, *tables])


def _run_cells(
    tables: Sequence[Table],
    command: Any,
    engine: Callable[..., Any],
    order: Callable[[Cell], Any],
    picture: Callable[[], str] | None,
) -> int:
    from joformer.experiments.running import finished
    from joformer.experiments.tables import RESULT, TABLE

    out, cells = local(command.out), [cell for table in tables for cell in table.cells]
    done = {cell.name for cell in cells if finished(cell, out) is not None}
    new = [out / table.name / TABLE for table in tables if not (out / table.name / TABLE).exists()]
    for table in tables:
        table.begin(out)
    write_config(command, _name(command), out)
    _publish(command.out, [CONFIG])
    if is_address(command.out):
        cells = [replace(cell, address=str(command.out)) for cell in cells]
    if done:
        logger.info(f"{len(done)} of {len(cells)} runs in {out} are already finished")
    left = sorted((cell for cell in cells if cell.name not in done), key=order)
    failed, asked = 0, list[int]()
    clock, page = _Clock(left, out), GrowingPage(tables, out, left)
    events = engine(left, out)
    try:
        with _asked_to_stop(asked), Progress(f"{len(left)} runs", clock.total, picture=picture) as progress:
            for event in events:
                if event is not None:
                    del clock.waiting[event.cell.name]
                    failed += event.result is None
                    if event.result is None:
                        logger.warning(_line(event, clock))
                    elif not progress.on_terminal:
                        logger.info(_line(event, clock))
                    page.ended(event.cell)
                progress.update(clock.done(), clock.text())
    except KeyboardInterrupt:
        with suppress(Exception):
            events.close()
        page.stopped()
        ready = sum((out / cell.name / RESULT).is_file() for cell in cells)  # including those not reported yet
        logger.warning(
            f"joformer: stopped with {ready} of {len(cells)} runs finished in {out}; the same command resumes"
        )
        raise SystemExit(128 + (asked[0] if asked else signal.SIGINT)) from None
    if failed and failed == len(cells):
        for place in new:  # nothing was computed that other settings could be mixed with
            if not any(place.parent.rglob("checkpoints/*")):
                place.unlink()
        raise ValueError(f"all {failed} runs failed, as logged above: the same command tries again")
    return failed


@contextmanager
def _asked_to_stop(asked: list[int]) -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C, so that running work is saved; the signal is recorded in `asked`."""

    def stop(number: int, _: object) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Clock:
    """How much is done, and how long the rest will take at the pace of the last five minutes.

    The work of a cell is an estimate (`Cell.work`); the rate at which it is done is measured, including the effect of
    any other load on the machine.
    """

    def __init__(self, cells: Sequence[Cell], out: Path) -> None:
        self.out = out
        self.work = {cell.name: cell.work for cell in cells}
        self.waiting = {cell.name: cell for cell in cells}
        self.total = sum(self.work.values())
        self._read: dict[str, tuple[float, float]] = {}
        self._seen = [(time.monotonic(), 0.0)]

    @property
    def count(self) -> int:
        """How many cells have ended."""
        return len(self.work) - len(self.waiting)

    def done(self) -> float:
        return self.total - sum(self.work[name] * (1 - self._share(cell)) for name, cell in self.waiting.items())

    def left(self) -> str:
        now, done = time.monotonic(), self.done()
        recent = [one for one in self._seen if now - one[0] < 300] or self._seen[-1:]
        self._seen = [*recent, (now, done)]
        then, before = self._seen[0]
        if now - then < 5 or done <= before:
            return "time left unknown"
        seconds = (self.total - done) * (now - then) / (done - before)
        # Coarser for longer runs: a progress line is logged only if its text has changed.
        step = next(step for limit, step in ((10, 1), (60, 5), (math.inf, 15)) if seconds < 60 * limit)
        return "less than a minute left" if seconds < 60 else f"about {step * round(seconds / 60 / step)} min left"

    def text(self) -> str:
        """The progress, and what is running."""
        running = [name for name, cell in self.waiting.items() if self._share(cell) > 0]
        now = f", running {running[0]}{f' and {len(running) - 1} more' * (len(running) > 1)}" if running else ""
        return f"{self.count} of {len(self.work)} runs, {self.left()}{now}"

    def _share(self, cell: Cell) -> float:
        """The completed share of a running cell, from its last log line; read every two seconds at most."""
        seen, share = self._read.get(cell.name, (0.0, 0.0))
        if time.monotonic() - seen > 2:
            share = 0.0
            log = self.out / cell.name / "metrics.jsonl"
            with suppress(OSError, ValueError, IndexError, KeyError), open(log, "rb") as file:
                file.seek(max(0, log.stat().st_size - 400))
                share = min(1.0, json.loads(file.read().splitlines()[-1])["step"] / cell.recipe.total)
            self._read[cell.name] = time.monotonic(), share
        return share


def _line(event: Any, clock: _Clock) -> str:
    at = f"[{clock.count} of {len(clock.work)}, {clock.left()}] {event.cell.name}"
    if event.result is None:
        return f"{at}: failed: {event.error}"
    measured = [*event.result["measured"].values()][-1:]
    return ": ".join([at, *(", ".join(f"{name} {value:.4g}" for name, value in one.items()) for one in measured)])


def finish(place: Place, failed: int, *, as_json: bool, only: Sequence[str] = ()) -> int:
    """Writes the report, prints one sentence per table (or JSON) and its location, and returns the exit code."""
    from joformer.cli.report import Report

    out = local(place)
    note_look(out)
    Report((out,), json=as_json).run()
    _publish(place, ["report.html", "report.md", "report.json"])
    if failed:
        logger.warning(f"{counted(failed, 'run')} failed; the same command tries again")
    if only:
        logger.warning("--only runs a part of a table: its verdicts are corrected only for the comparisons it contains")
    return 1 if failed else 0


def show_rehearsal(tables: Sequence[Table], execution: Execution, throughput: float, *, as_json: bool) -> int:
    """Rehearses the tables and prints what their runs need; the exit code is 1 if a setting failed."""
    from joformer.experiments.smoke import as_text, rehearse, settings

    if not throughput > 0:
        raise ValueError(f"--throughput must be above 0, in TFLOP/s, got {throughput:g}")
    rows = []
    with _asked_to_stop([]), Progress("rehearsing", len(settings(tables)), unit="settings") as progress:
        for row in rehearse(tables, execution, throughput):
            rows.append(row)
            if row.error:
                logger.warning(f"{row.name}: failed: {row.error}")
            progress.update(len(rows), f"rehearsed {len(rows)} of {progress.total} settings, {row.name}")
    if as_json:
        say(json.dumps([row.as_json() for row in rows], indent=2), lines=True)
    else:
        say(as_text(rows, processes=execution.processes, throughput=throughput), lines=True)
    return int(any(row.error for row in rows))
