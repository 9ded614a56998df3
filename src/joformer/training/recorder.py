"""What is recorded of a run beside its metrics: its speed, and TensorBoard where that is installed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joformer.training.runs import Log


class Recorder:
    """Writes speed.jsonl and, in the process with `board`, the metrics for TensorBoard.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = Log(Path(folder) / "speed.jsonl")
    ...     with Recorder(Path(folder), 0, log, board=False) as recorder:
    ...         recorder.write({"step": 1, "loss": 0.5})
    ...     len(log.path.read_text().splitlines())
    1
    """

    def __init__(self, out: Path, start: int, speed: Log, *, board: bool) -> None:
        self.out, self.start, self.speed, self.board = out, start, speed, board
        self._writer: Any = None

    def __enter__(self) -> Recorder:
        self._written, self._step = time.monotonic(), self.start
        if self.board:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:  # not installed, or not wholly
                pass
            else:
                # What a killed run wrote after its last checkpoint is removed there as well.
                self._writer = SummaryWriter(self.out / "tensorboard", purge_step=self.start + 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, entry: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl, for TensorBoard; and the speed since the last one."""
        now = time.monotonic()
        if entry["step"] > self._step:
            took = (now - self._written) / (entry["step"] - self._step)
            self.speed.write({"step": entry["step"], "seconds_per_step": took})
            self._written, self._step = now, entry["step"]
        if self._writer is not None:
            for name, value in entry.items():
                if isinstance(value, (int, float)) and name != "step":
                    self._writer.add_scalar(name, value, entry["step"])
            self._writer.flush()
