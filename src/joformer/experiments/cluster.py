"""Running cells on a Ray cluster, or on a small one started here; `out` must be a folder that all its machines see.

Ray starts a task again whose worker died; the cell then goes on from its last checkpoint, and one that was finished
is read, not run.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from joformer.experiments.cells import Cell, run
from joformer.experiments.engine import TICK, TRIES, Done


def run_on_ray(cells: Iterable[Cell], out: Path, *, jobs: int = 1) -> Generator[Done | None, None, None]:
    """Run the cells as Ray tasks, one core (and one GPU, where the cluster has some) each.

    The cluster is that of RAY_ADDRESS, else one of `jobs` cores on this machine. Measurements of time get a machine's
    every core, so that nothing runs beside them.
    """
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray needs ray: pip install 'joformer[ray]', or take --engine local") from None
    given = os.environ.get("RAY_ADDRESS")
    here: dict[str, Any] = {} if given else {"num_cpus": jobs, "include_dashboard": False}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    own = not ray.is_initialized()
    if own:
        ray.init(address=given, **here, **quiet)
    # The path as it is for everyone: a worker's current folder is another.
    place = str(out.resolve())
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        most = max(int(node.get("CPU", 1)) for node in nodes)
        task = ray.remote(_cell)
        cells = list(cells)
        for alone in (False, True):
            waiting = {
                task.options(max_retries=TRIES, num_cpus=most if alone else 1, num_gpus=gpus).remote(
                    cell, place, most if alone else 1
                ): cell
                for cell in cells
                if cell.alone == alone
            }
            yield from _events(ray, waiting)
    finally:
        if own:
            ray.shutdown()


def _events(ray: Any, waiting: dict[Any, Cell]) -> Iterator[Done | None]:
    try:
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=TICK)
            if not ready:
                yield None
            for one in ready:
                cell = waiting.pop(one)
                try:
                    result, error = ray.get(one)
                except ray.exceptions.RayError as lost:
                    result, error = None, f"Ray gave it up: {str(lost).splitlines()[0]}"
                yield Done(cell, result, error)
    finally:
        for one in waiting:
            ray.cancel(one)


def _cell(cell: Cell, out: str, threads: int) -> tuple[dict[str, Any] | None, str]:
    import torch

    torch.set_num_threads(threads)
    try:
        return run(cell, Path(out), say=lambda line: None), ""
    except ValueError as mistake:
        return None, str(mistake)
