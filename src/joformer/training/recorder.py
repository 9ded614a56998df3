"""What is recorded of a run beside its metrics: its speed, and the metrics once more where people look at them.

tensorboard   OUT/tensorboard, where TensorBoard is installed
wandb         Weights & Biases, project "joformer"
trackio       the same API, on this machine
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from joformer._io import write_whole
from joformer.training.runs import Log

Logger = str | Callable[[Mapping[str, Any]], object]
LOGGERS = ("tensorboard", "wandb", "trackio")
RUN_ID = ".run-id"
"""The file with the name of this run at wandb or trackio, so that a resumed run is one curve there."""


class Recorder:
    """Writes speed.jsonl, and every line of the metrics to the loggers.

    Args:
        out: The folder of the run.
        start: The step it begins or resumes at.
        speed: The log of its speed.
        loggers: Names of `LOGGERS`, or functions that are called with each line.
        about: What is shown of the run there: its settings.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     log = Log(Path(folder) / "speed.jsonl")
        ...     with Recorder(Path(folder), 0, log, [print]) as recorder:
        ...         recorder.write({"step": 1, "loss": 0.5})
        ...     len(log.path.read_text().splitlines())
        {'step': 1, 'loss': 0.5}
        1
    """

    def __init__(
        self, out: Path, start: int, speed: Log, loggers: Sequence[Logger] = (), about: Mapping[str, Any] | None = None
    ) -> None:
        self.out, self.start, self.speed, self.loggers, self.about = out, start, speed, loggers, about
        self._written, self._step = time.monotonic(), start

    def __enter__(self) -> Recorder:
        with ExitStack() as opened:
            self._sinks = [sink for one in self.loggers if (sink := self._sink(one, opened)) is not None]
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _sink(self, logger: Logger, opened: ExitStack) -> Callable[[Mapping[str, Any]], object] | None:
        if not isinstance(logger, str):
            return logger
        if logger == "tensorboard":
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:  # not installed, or not wholly
                return None
            # What a killed run wrote after its last checkpoint is removed there as well.
            board = opened.enter_context(SummaryWriter(self.out / "tensorboard", purge_step=self.start + 1))
            return lambda entry: ([board.add_scalar(*one, entry["step"]) for one in _numbers(entry)], board.flush())
        module, place = imported(logger), self.out / RUN_ID
        if not (self.start and place.is_file()):
            write_whole(place, secrets.token_hex(4).encode())
        key = place.read_text()
        only = {"id": key, "dir": str(self.out)} if logger == "wandb" else {}
        module.init(
            project="joformer", name=f"{self.out.name}-{key}", config=dict(self.about or {}), resume="allow", **only
        )
        opened.callback(module.finish)
        return lambda entry: module.log(dict(_numbers(entry)), step=entry["step"])

    def write(self, entry: Mapping[str, Any]) -> None:
        """Writes one line of metrics.jsonl to the loggers, and the speed since the last one."""
        now = time.monotonic()
        if entry["step"] > self._step:
            took = (now - self._written) / (entry["step"] - self._step)
            self.speed.write({"step": entry["step"], "seconds_per_step": took})
            self._written, self._step = now, entry["step"]
        for sink in self._sinks:
            sink(entry)


def imported(logger: str) -> Any:
    """The module of a logger; ValueError in one line if there is none, or it is not installed.

    >>> imported("wand")
    Traceback (most recent call last):
    ValueError: there is no logger 'wand': choose tensorboard, wandb or trackio
    """
    if logger not in LOGGERS:
        raise ValueError(f"there is no logger {logger!r}: choose {', '.join(LOGGERS[:-1])} or {LOGGERS[-1]}")
    try:
        return import_module(logger) if logger != "tensorboard" else None  # which is used where it is installed
    except ImportError:
        raise ValueError(f"{logger} is not installed: pip install {logger}, or choose another logger") from None


def _numbers(entry: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [item for item in entry.items() if isinstance(item[1], (int, float)) and item[0] != "step"]
