"""A cell in several processes, as torchrun would start them: DDP, or FSDP2 with `shard`.

    launch(cell, out, Execution(processes=2))    the result; in this very process where one is enough

Each process finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment, and this one holds the
store through which they meet. One that dies takes the others with it: none could save without it. The cell resumes from
its last checkpoint, three times at most.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from joformer._io import one_line, open_log
from joformer.experiments.execution import Execution
from joformer.experiments.running import run
from joformer.experiments.tables import Cell
from joformer.training import Stopped
from joformer.training.determinism import signals

LOG = "workers.log"
TRIES = 3
TICK = 0.5
GRACE = 60.0
"""Seconds that a process has to save what it is doing."""
SETTLE = 2.0
"""Seconds in which the death of another process may be seen, which then is why this one failed."""


def launch(cell: Cell, out: Path, execution: Execution, place: int = 0) -> dict[str, Any]:
    """The result of the cell, run in as many processes as `execution` says, on the devices of this place."""
    execution = execution.of(cell)
    if execution.processes == 1:
        return run(cell, out, execution)
    return Team(cell, out, execution, place).result()


def died(code: int | None) -> str:
    """What is said of a cell that is given up.

    >>> died(-9)
    'its process died 3 times, the last time by signal 9; memory may be short, workers.log may say more'
    """
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return f"its process died {TRIES} times, the last time by {how}; memory may be short, {LOG} may say more"


class Team:
    """The processes of one cell, `result` waits for them and `stop` has them save and end."""

    def __init__(self, cell: Cell, out: Path, execution: Execution, place: int = 0) -> None:
        self.cell, self.out, self.execution, self.place = cell, out, execution, place
        self.members: list[tuple[Any, Connection]] = []
        self.code: int | None = None

    def result(self) -> dict[str, Any]:
        """The cell's result, like that of `run`; raises ValueError with what one of the processes said."""
        with signals() as received:
            for _ in range(TRIES):
                self._start()
                try:
                    found = self._wait(received)
                finally:
                    self._end()
                if found is not None:
                    return found
        raise ValueError(died(self.code))

    def stop(self) -> None:
        """Have all processes save and end, and wait for it."""
        for process, _ in self.members:
            process.terminate()
        self._end(GRACE)

    def _start(self) -> None:
        from torch import cuda
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        count = self.execution.processes
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
        common |= {"MASTER_PORT": self.store.port}
        # As torchrun has it: the store is there already, and a port that is free now cannot be taken by another.
        common |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
        context = multiprocessing.get_context("spawn")
        devices = max(1, cuda.device_count())
        for rank in range(count):
            own = {"RANK": rank, "LOCAL_RANK": (self.place * count + rank) % devices}
            here, there = context.Pipe()
            given = {key: str(value) for key, value in (common | own).items()}
            process = context.Process(target=_member, args=(there, self.cell, str(self.out), self.execution, given))
            process.start()
            there.close()
            self.members.append((process, here))

    def _wait(self, received: Callable[[], int]) -> dict[str, Any] | None:
        """The result; None where a process died."""
        by = {connection: process for process, connection in self.members}
        said: dict[Any, tuple[str, Any]] = {}
        until = math.inf
        while len(said) < len(by) and time.monotonic() < until:
            if received():
                self.stop()
                raise Stopped(f"saved {self.out / self.cell.name}; the same command resumes it", 128 + received())
            for one in wait([one for one in by if one not in said], timeout=TICK):
                assert isinstance(one, Connection)
                try:
                    said[one] = one.recv()
                except (EOFError, OSError):
                    by[one].join()
                    self.code = by[one].exitcode
                    said[one] = "died", None
                if said[one][0] != "result":
                    until = min(until, time.monotonic() + (GRACE if said[one][0] == "stopped" else SETTLE))
        for kind in ("died", "error", "stopped"):
            for how, what in said.values():
                if how == kind == "error":
                    raise ValueError(what)
                if how == kind == "stopped":
                    raise Stopped(what, 128 + signal.SIGTERM)
                if how == kind:
                    return None
        return said[self.members[0][1]][1]

    def _end(self, patience: float = 0.0) -> None:
        """End all processes: those that are done by themselves, others after so many seconds."""
        members, self.members = self.members, []
        until = time.monotonic() + max(patience, SETTLE)
        for _, connection in members:
            connection.close()  # which ends a process that is done
        for process, _ in members:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _member(connection: Connection, cell: Cell, out: str, execution: Execution, environment: dict[str, str]) -> None:
    """What a process of a team does."""
    # Slurm and terminals signal everyone: who started this one decides, and a run takes care of Ctrl-C by itself.
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(environment)
    write_to(Path(out) / LOG)
    threading.Thread(target=follow, daemon=True).start()

    import torch

    torch.set_num_threads(1)
    said: tuple[str, Any]
    try:
        result = run(cell, Path(out), execution)
        said = "result", result if environment["RANK"] == "0" else None
    except Stopped as stopped:
        said = "stopped", str(stopped)
    except Exception as error:  # whatever it is, the others wait for this process in vain
        said = "error", one_line(error, ValueError, first=True)
    with suppress(EOFError, OSError):
        connection.send(said)
        connection.recv()  # until all are done: who leaves early breaks what others still receive
    # Not through the interpreter's end: once in ten times a thread of gloo's asks for the GIL there, and aborts.
    os._exit(0)


def follow() -> None:
    """End with the process that started this one, saving first: nobody would hear of the result."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def write_to(log: Path) -> None:
    """What this process would print goes there: the terminal is for who started it, and a crash may leave a reason."""
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError), open_log(log) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
