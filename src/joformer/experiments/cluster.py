"""Running cells on a Ray cluster, or on a small one started here.

`out` is a folder that all its machines see, unless cells have an address.

Ray starts a task again whose worker died; the cell then resumes from its last checkpoint, and one that was finished
is read, not run. A machine that does not answer counts as dead and may still be at work: the lock of a cell lets only
one process run it, and whoever comes second waits, then resumes or reads.

Whoever can connect to a Ray cluster can run code on it. One started here listens on loopback only and, where Ray has
tokens (2.52 and later), answers only to processes that were given its token, so other users of the machine stay out.
A cluster at RAY_ADDRESS is as open as whoever runs it made it.
"""

from __future__ import annotations

import ipaddress
import os
import platform
import secrets
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from joformer._io import Lock, one_line
from joformer.experiments.engine import Done
from joformer.experiments.execution import Execution
from joformer.experiments.running import finished
from joformer.experiments.tables import Cell
from joformer.experiments.team import GRACE, TICK, TRIES, launch
from joformer.training import Stopped

SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own setting, 0 by default on macOS and Windows and 1 on Linux: whether to listen to more than loopback."""
STARTED = ".ray"
"""The lock in `out` that whoever starts cells holds: a machine that does not see it held does not see the others'."""


def run_on_ray(
    cells: Iterable[Cell], out: Path, *, jobs: int = 1, execution: Execution | None = None
) -> Generator[Done | None, None, None]:
    """Run the cells as Ray tasks, one core (and one GPU, where the cluster has some) for each of their processes.

    The cluster is that of RAY_ADDRESS, else one on this machine with cores for `jobs` cells, which only this process
    can reach. Measurements of time get a machine's every core, so that nothing runs beside them.
    """
    execution = execution or Execution()
    if not os.environ.get("RAY_ADDRESS") and "ray" not in sys.modules:  # which reads these when it is imported
        os.environ.setdefault(SWITCH, "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray needs ray: pip install 'joformer[ray]', or use --engine local") from None
    cells = list(cells)
    if not cells:
        return
    own = not ray.is_initialized()
    if own:
        _connect(ray, jobs * execution.processes)
    # The path as it is for everyone: a worker's current folder is another.
    place = str(out.resolve())
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = bool(ray.cluster_resources().get("GPU"))
        most = max(int(node.get("CPU", 1)) for node in nodes)
        # One that was asked to stop, as on a machine that is taken away, has saved: it resumes elsewhere.
        needs = {"max_retries": TRIES - 1, "retry_exceptions": [Stopped]}
        for alone, count in ((False, execution.processes), (True, 1)):
            task = ray.remote(_cell).options(num_cpus=most if alone else count, num_gpus=count * gpus, **needs)
            some = [cell for cell in cells if cell.alone == alone]
            with Lock(out, STARTED):
                yield from _events(ray, {task.remote(cell, place, execution): cell for cell in some}, out)
    finally:
        if own:
            ray.shutdown()


def _connect(ray: Any, cores: int) -> None:
    given = os.environ.get("RAY_ADDRESS")
    here: dict[str, Any] = {} if given else {"num_cpus": cores, "include_dashboard": False}
    if not given and os.environ.get(SWITCH, "0") == "0":
        address = ray.util.get_node_ip_address()
        if not ipaddress.ip_address(address).is_loopback:
            raise ValueError(
                f"Ray would listen on {address} and let anyone run code here: set {SWITCH}=0 before ray is imported, "
                "or start your own cluster and set RAY_ADDRESS"
            )
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=given, log_to_driver=False, logging_level="error", **here)
    except Exception as error:  # Ray's own are plain exceptions, as when it does not start in time
        reason = one_line(error, first=True)
        raise ValueError(f"no Ray cluster at {given}: {reason}" if given else f"Ray does not start: {reason}") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray's own would leave without a word


def _events(ray: Any, waiting: dict[Any, Cell], out: Path) -> Iterator[Done | None]:
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
                    # A machine that was cut off may have ended it.
                    result, error = finished(cell, out), f"Ray gave it up: {one_line(lost, first=True)}"
                yield Done(cell, result, error)
    finally:
        for one in waiting:
            ray.cancel(one)  # which is a Ctrl-C: it saves and ends
        if waiting:
            ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)


def _cell(cell: Cell, out: str, execution: Execution) -> tuple[dict[str, Any] | None, str]:
    import torch

    torch.set_num_threads(1)
    try:
        if cell.address:  # which has an owner instead of a lock
            return launch(cell, Path(out), execution), ""
        _require_shared(Path(out))
        with Lock(Path(out) / cell.name, ".cell", waiting=f"{cell.name}: waiting for the process that runs it"):
            return launch(cell, Path(out), execution), ""
    except Stopped:
        raise
    except Exception as error:  # Ray would say where, in many lines, before it says what
        return None, one_line(error, ValueError, first=True)


def _require_shared(out: Path) -> None:
    """Raises ValueError if two machines could run a cell at once: each has a folder, or locks, of its own."""
    try:
        with Lock(out, STARTED):
            pass
    except ValueError:  # whoever started this holds it
        return
    raise ValueError(
        f"on {platform.node()} {out} is not the folder, or lacks the locks, of the machine that started this: share "
        "it, with locks (NFS: local_lock=none, Lustre: flock)"
    )
