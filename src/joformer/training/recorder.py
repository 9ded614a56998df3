"""What a person sees of a run: a bar with loss, rate and time left; TensorBoard where it is installed; its speed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joformer.training.runs import Log

REFRESH = 0.25
"""Seconds between two pictures of the bar: drawing it must cost nothing."""


class Watch:
    """Shows steps as they are taken, in the first process and on a terminal only; writes speed.jsonl in any case.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = Log(Path(folder) / "speed.jsonl")
    ...     with Watch(Path(folder), 0, 2, log, shown=False) as watch:
    ...         watch.step(1, 0.5)
    """

    def __init__(self, out: Path, start: int, total: int, speed: Log, *, shown: bool) -> None:
        self.out, self.start, self.total, self.speed, self.shown = out, start, total, speed, shown
        self._board: Any = None
        self._bar: Any = None

    def __enter__(self) -> Watch:
        self._began = self._drawn = self._logged = time.monotonic()
        self._logged_step = self.start
        if self.shown:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:  # not installed, or not wholly
                pass
            else:
                # What a killed run wrote after its last checkpoint is forgotten there as well.
                self._board = SummaryWriter(self.out / "tensorboard", purge_step=self.start + 1)
            self._bar = self._make_bar()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()

    def step(self, step: int, loss: float) -> None:
        """`step` steps are taken, the last with this loss."""
        now = time.monotonic()
        if self._bar is not None and (now - self._drawn > REFRESH or step == self.total):
            rate = (step - self.start) / max(now - self._began, 1e-9)
            self._bar.update(self._task, completed=step, loss=f"{loss:.4f}", rate=f"{rate:.3g}", refresh=True)
            self._drawn = now

    def metrics(self, entry: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl, for TensorBoard; and the speed since the last one."""
        now = time.monotonic()
        if entry["step"] > self._logged_step:
            took = (now - self._logged) / (entry["step"] - self._logged_step)
            self.speed.write({"step": entry["step"], "seconds_per_step": took})
            self._logged, self._logged_step = now, entry["step"]
        if self._board is not None:
            for name, value in entry.items():
                if isinstance(value, (int, float)) and name != "step":
                    self._board.add_scalar(name, value, entry["step"])
            self._board.flush()

    def _make_bar(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            return None
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]} steps/s"),
            TimeRemainingColumn(),
        )
        bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
        self._task = bar.add_task("", total=self.total, completed=self.start, loss="", rate="")
        bar.start()
        return bar
