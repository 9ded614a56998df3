"""What surrounds the steps: deterministic operations, one run per process, and signals that end a run after a step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_running = threading.Lock()


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Within it, operations without a deterministic version raise RuntimeError; with `wanted` false they do not.

    >>> with deterministic(True):
    ...     torch.are_deterministic_algorithms_enabled()
    True
    """
    memory: Any = torch.utils.deterministic
    mode, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    # Filling fresh memory finds code that reads what it did not write; it makes nothing deterministic and costs a pass.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        memory.fill_uninitialized_memory = filled


@contextmanager
def only_one() -> Iterator[None]:
    """Raises ValueError for a second run at once in one process, which would share the global random generator.

    >>> with only_one(), only_one():
    ...     pass
    Traceback (most recent call last):
    ValueError: another run is active in this process: wait for it, or use another process
    """
    if not _running.acquire(blocking=False):
        raise ValueError("another run is active in this process: wait for it, or use another process")
    try:
        yield
    finally:
        _running.release()


@contextmanager
def signals() -> Iterator[Callable[[], int]]:
    """A function that returns which of SIGINT and SIGTERM came, 0 if none; the second Ctrl-C interrupts at once.

    >>> with signals() as received:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     received() == signal.SIGTERM
    True
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
