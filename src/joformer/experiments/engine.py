"""Running many cells: in processes of this machine, on a Ray cluster (cluster.py), or by Slurm (slurm.py).

    for event in run_local(cells, out, jobs=2): …      a `Done` for every cell as it ends, None now and then between

A process that dies takes nothing with it: what it had saved is on disk, and the next one resumes there. A cell
whose process dies three times is given up and named; the others are run all the same.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from joformer._io import one_line, usable_cores
from joformer.experiments.execution import Execution
from joformer.experiments.tables import Cell
from joformer.experiments.team import GRACE, LOG, TICK, TRIES, died, follow, launch, write_to
from joformer.training import Stopped


@dataclass(frozen=True)
class Done:
    """A cell that has ended: its result, or in one line why there is none."""

    cell: Cell
    result: dict[str, Any] | None
    error: str = ""


def run_local(
    cells: Iterable[Cell], out: Path, *, jobs: int = 1, execution: Execution | None = None
) -> Generator[Done | None, None, None]:
    """Run `jobs` cells at once, in processes of one thread each; those that measure time one by one, last.

    One thread whatever `jobs` is: the last bits depend on how many there are, and a run may be continued with others.
    """
    cells, execution = list(cells), execution or Execution()
    if execution.workers is None:
        execution = replace(execution, workers=max(1, usable_cores() // (jobs * execution.processes)))
    for alone, count in ((False, jobs), (True, 1)):
        some = [cell for cell in cells if cell.alone == alone]
        if some:
            yield from _Pool(some, out, min(count, len(some)), execution).events()


def usable_devices(processes: int = 1) -> int:
    """How many cells of so many processes may run at once: a GPU for each where there are some, else a core.

    >>> usable_devices() >= 1
    True
    """
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there and there < processes:
        raise ValueError(f"--processes {processes} needs as many GPUs, but there are {there}: use fewer")
    return max(1, (there or usable_cores()) // processes)


class _Pool:
    def __init__(self, cells: list[Cell], out: Path, jobs: int, execution: Execution) -> None:
        self.waiting, self.out, self.execution = deque(cells), out, execution
        self.tries = dict.fromkeys((cell.name for cell in cells), 0)
        self.jobs = jobs
        self.working: dict[Connection, tuple[Any, Cell]] = {}
        self.idle: list[tuple[Any, Connection]] = []

    def events(self) -> Iterator[Done | None]:
        try:
            self.idle += [self._start(place) for place in range(self.jobs)]
            while self.waiting or self.working:
                while self.waiting and self.idle:
                    self._give(*self.idle.pop(), self.waiting.popleft())
                ready = wait(list(self.working), timeout=TICK)
                if not ready:
                    yield None
                for connection in ready:
                    assert isinstance(connection, Connection)
                    process, cell = self.working.pop(connection)
                    try:
                        kind, content = connection.recv()
                    except (EOFError, OSError):  # it died
                        process.join()
                        connection.close()
                        event = self._again(cell, process.exitcode)
                        if self.waiting:
                            self.idle.append(self._start(process.place))
                        yield event
                        continue
                    self.idle.append((process, connection))
                    yield Done(cell, content) if kind == "result" else Done(cell, None, content)
        finally:
            self._stop()

    def _again(self, cell: Cell, code: int | None) -> Done | None:
        self.tries[cell.name] += 1
        if self.tries[cell.name] < TRIES:
            self.waiting.appendleft(cell)
            return None
        return Done(cell, None, died(code))

    def _start(self, place: int) -> tuple[Any, Connection]:
        # Not forked: torch's threads do not survive that.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(there, str(self.out), self.execution, place))
        process.place = place  # type: ignore[attr-defined]
        process.start()
        there.close()
        return process, here

    def _give(self, process: Any, connection: Connection, cell: Cell) -> None:
        with suppress(OSError):  # then it died, which is seen when its answer is read
            connection.send(cell)
        self.working[connection] = process, cell

    def _stop(self) -> None:
        """Ask those still at work to save and end, and wait for all."""
        for process, _ in self.working.values():
            process.terminate()
        ending = [*self.idle, *((process, connection) for connection, (process, _) in self.working.items())]
        until = time.monotonic() + GRACE
        for _, connection in ending:
            connection.close()  # which ends a process that waits for a cell
        for process, _ in ending:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()


def _work(connection: Connection, out: str, execution: Execution, place: int) -> None:
    """What a process does: a cell at a time until the other end is closed."""
    write_to(Path(out) / LOG)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it through who started it, or while training
    os.environ["OMP_NUM_THREADS"] = "1"
    threading.Thread(target=follow, daemon=True).start()

    import torch

    torch.set_num_threads(1)
    if torch.cuda.is_available() and execution.processes == 1:
        torch.cuda.set_device(place % torch.cuda.device_count())
    while True:
        try:
            cell = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send(("result", launch(cell, Path(out), execution, place)))
        except Stopped:
            return
        except Exception as error:  # a cell that fails must not take the others with it
            connection.send(("error", one_line(error, ValueError, first=True)))
