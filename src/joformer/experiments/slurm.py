"""Running cells by Slurm, a job for each, through submitit; `out` must be a folder that all its machines see.

A job that is preempted, or at the end of its time, gets a signal: its processes save, submitit puts the job back into
the queue, and the cell resumes from there to the same bits. A cell runs on one machine, with a GPU for each of its
processes.

submitit's jobs are pickles, below OUT/slurm: whoever can write there can run code as you, so that nobody else may.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from joformer._io import make_folder, one_line
from joformer.experiments.engine import Done
from joformer.experiments.execution import Execution
from joformer.experiments.tables import Cell
from joformer.experiments.team import GRACE, TICK, Team
from joformer.training import Stopped

CLUSTER = "slurm"
"""submitit's name for where jobs run; "local" is processes of this machine."""
REQUEUED = 1000
"""How often a job may come to the end of its time and resume."""


def options(given: Sequence[str]) -> dict[str, str]:
    """The options of sbatch that are written as KEY=VALUE; raises ValueError without a time.

    >>> options(["time=600", "partition=gpu", "cpus-per-task=32"])
    {'time': '600', 'partition': 'gpu', 'cpus_per_task': '32'}
    """
    pairs = [one.partition("=") for one in given]
    wrong = [one for one, (key, _, value) in zip(given, pairs, strict=True) if not key.strip("-") or not value]
    if wrong:
        raise ValueError(f"--slurm takes KEY=VALUE, such as partition=gpu, got {wrong[0]}")
    found = {key.lstrip("-").replace("-", "_"): value for key, _, value in pairs}
    if not found.get("time", "").isdecimal() or int(found["time"]) < 1:
        raise ValueError("--engine slurm needs a time limit, after which a job is queued again: --slurm time=MINUTES")
    return found


def run_by_slurm(
    cells: Iterable[Cell],
    out: Path,
    *,
    jobs: int | None = None,
    execution: Execution | None = None,
    options: dict[str, str],
) -> Generator[Done | None, None, None]:
    """Submit a job for every cell, at most `jobs` of them at work at once, and wait for all.

    Each has as many GPUs as processes, unless `options` (of sbatch, by name) say otherwise. Measurements of time have a
    machine for themselves.
    """
    try:
        import submitit
    except ImportError:
        raise ValueError("--engine slurm needs submitit: pip install 'joformer[slurm]'") from None
    cells, execution = list(cells), execution or Execution()
    if not cells:
        return
    place = out.resolve() / "slurm"
    make_folder(place)
    place.chmod(0o700)
    more = {key: value for key, value in options.items() if key != "time"}
    waiting: dict[Any, Cell] = {}
    try:
        for alone in (False, True):
            some = [cell for cell in cells if cell.alone == alone]
            if not some:
                continue
            count = 1 if alone else execution.processes
            executor = _executor(submitit, place)
            executor.update_parameters(
                name="joformer",
                timeout_min=int(options["time"]),
                gpus_per_node=None if {*more} & {"gres", "gpus", "gpus_per_node", "gpus_per_task"} else count,
                slurm_exclusive=True if alone else None,
                slurm_array_parallelism=jobs,
                slurm_additional_parameters=more or None,
            )
            with executor.batch():
                submitted = [executor.submit(Job(cell, str(out.resolve()), execution)) for cell in some]
            waiting |= dict(zip(submitted, some, strict=True))
        while waiting:
            time.sleep(TICK)
            ended = [job for job in waiting if job.done()]
            if not ended:
                yield None
            for job in ended:
                yield Done(waiting.pop(job), *_outcome(job))
    except (submitit.core.utils.FailedJobError, OSError) as error:
        raise ValueError(f"Slurm does not accept jobs: {one_line(error)}") from None
    finally:
        for job in waiting:
            job.cancel(check=False)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and not all(job.done(force_check=True) for job in waiting):
            time.sleep(1)


def _executor(submitit: Any, place: Path) -> Any:
    try:
        return submitit.AutoExecutor(place / "%j", cluster=CLUSTER, slurm_max_num_timeout=REQUEUED)
    except RuntimeError:
        raise ValueError("there is no Slurm here (srun): run the command on a machine that submits jobs") from None


def _outcome(job: Any) -> tuple[dict[str, Any] | None, str]:
    try:
        return job.result()
    except Exception as error:  # as when the job itself was killed
        ended = f"its job {job.job_id} ended as {job.state}: {one_line(error, first=True)}"
        return None, f"{ended}; {job.paths.stderr} may say more"


class Job:
    """What a job does: the cell in processes of its own, so that signals to the job leave them the time to save."""

    def __init__(self, cell: Cell, out: str, execution: Execution) -> None:
        self.cell, self.out, self.execution = cell, out, execution
        self.team: Team | None = None

    def __call__(self) -> tuple[dict[str, Any] | None, str]:
        """The result of the cell, or in one line why there is none."""
        self.team = Team(self.cell, Path(self.out), self.execution.of(self.cell))
        try:
            return self.team.result(), ""
        except Stopped as stopped:
            time.sleep(GRACE)  # who asked for it will end this job, or have it queued again
            return None, str(stopped)
        except Exception as error:
            return None, one_line(error, ValueError, first=True)

    def checkpoint(self) -> Any:
        """What submitit calls on its signal, and queues again."""
        from submitit.helpers import DelayedSubmission

        if self.team is not None:
            self.team.stop()
        return DelayedSubmission(Job(self.cell, self.out, self.execution))
