"""Runs in processes of their own, started at once: a server imports everything, and forks one process for each job.

    server = Server();  run = server.start(kind="lm", out=folder);  os.kill(run, SIGKILL);  server.wait(run)

A job says what is trained, what befalls the process on its way (see `_befall`), and where its output goes. Forking is
safe here: the server itself never computes anything, so that it has one thread.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

LM = {"vocab": 256, "dim": 16, "layers": 2, "heads": 2, "frames": ["learned", "projected"], "dropout": 0.1}
VIT = {"model": "joformer_perlayer", "shape": [8, 8], "patch": [4, 4], "channels": 1, "classes": 10, "dim": 16}
VIT |= {"layers": 2, "heads": 2, "dropout": 0.1, "drop_path": 0.2}
RECIPE = {"steps": 12, "accumulate": 2, "average": 0.9, "warmup": 3, "log_every": 5, "evaluate_every": 4}
RECIPE |= {"save_every": 2}


DOMAINS = {
    "video": ("VideoSource", {"data": "moving", "batch": 4, "augment": "flip", "count": 16}),
    "pairs": ("PairsSource", {"data": "captions", "batch": 8, "vocab": 300}),
    "points": ("PointsSource", {"data": "digits", "batch": 8, "points": 16, "augment": "rotate"}),
    "spotting": ("StreamSource", {"data": "words", "batch": 2, "seconds": 2.0}),
    "trees": ("TreeSource", {"batch": 4}),
    "relations": ("GraphSource", {"data": "family", "batch": 16, "negatives": 4}),
}
"""What a run of each domain reads, all of it embedded; the data of trees is given with the job."""


HELD_OUT = ", held out: "
"""In every line that reports an evaluation, which tests of other lines leave out."""


@contextmanager
def logged(lines: list[str] | Callable[[str], object]) -> Iterator[None]:
    """Within it, every line logged from INFO on, but evaluations, goes to a list, or to a function, as it comes."""
    take = lines.append if isinstance(lines, list) else lines
    logger, handler = logging.getLogger("joformer"), logging.Handler()
    handler.emit = lambda record: None if HELD_OUT in record.getMessage() else take(record.getMessage())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative for a signal), and what it wrote to stderr but evaluations."""

    code: int
    said: str

    @property
    def lines(self) -> list[str]:
        return self.said.splitlines()


class Server:
    """Starts jobs; see the module."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._logs: dict[int, Path] = {}
        assert json.loads(self._process.stdout.readline()) == "ready"

    def _ask(self, **question: object) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, out: Path, **job: object) -> int:
        """The id of a new process that does the job in `out`."""
        log = out.with_name(f"{out.name}.{time.monotonic_ns()}.log")
        pid = self._ask(do="start", job={"out": str(out), "log": str(log), **job})
        assert isinstance(pid, int)
        self._logs[pid] = log
        return pid

    def wait(self, pid: int, seconds: float = 60.0) -> Ended | None:
        """How the process ended; None if it has not, after so many seconds."""
        code = self._ask(do="wait", pid=pid, seconds=seconds)
        log = self._logs[pid]
        # Killed early enough, it never wrote a line.
        lines = log.read_text().splitlines(keepends=True) if log.is_file() else []
        said = "".join(line for line in lines if HELD_OUT not in line)
        return None if code is None else Ended(int(code), said)  # type: ignore[call-overload]

    def run(self, out: Path, **job: object) -> Ended:
        """Start the job and wait for its end."""
        ended = self.wait(self.start(out, **job))
        assert ended is not None, "the job takes longer than a minute"
        return ended

    def kill(self, pid: int, seconds: float, how: int = signal.SIGKILL) -> Ended:
        """Send the signal so many seconds from now, unless the process ends before."""
        ended = self.wait(pid, seconds)
        if ended is None:
            os.kill(pid, how)
            ended = self.wait(pid)
        assert ended is not None
        return ended

    def close(self) -> None:
        self._process.communicate()


# -- in the server ---------------------------------------------------------------------------------------------------


def lm_task(**changes):
    """A language task on a text made of nothing but arithmetic."""
    import numpy as np

    from joformer.training import LanguageTask, Text, Tokenizer

    data = np.frombuffer(" ".join(f"{n} squared is {n * n};" for n in range(400)).encode(), np.uint8)
    text = Text(data, data[:600], data[:600], Tokenizer.of_bytes(), changes.pop("fingerprint", "squares"))
    return LanguageTask(text, **({"context": 16, "batch": 4, "held_out": 6} | changes))


def vit_task(**changes):
    """Digits, augmented and mixed."""
    from joformer.training import Augment, ImageTask, Mix, load_images

    augment = Augment(crop_pad=1, erase_size=3, mean=(0.3,), std=(0.4,))
    mix = Mix(cutmix=1.0, smoothing=0.1)
    return ImageTask(load_images("digits"), **({"batch": 16, "augment": augment, "mix": mix} | changes))


def own():
    """The example of a user's own model and task."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    import own_model

    return own_model


def domain(kind: str, **options):
    """The source of a domain."""
    from joformer.experiments import sources

    name, usual = DOMAINS[kind]
    return getattr(sources, name)(**usual | options)


def domain_config(kind: str, **options):
    """A tiny model for it, whose frames are learned and carry values where it has frames."""
    from joformer.experiments.variants import variant
    from joformer.models import RelationsConfig

    source = domain(kind, **options)
    if kind == "relations":
        graph = source.load()
        return RelationsConfig(len(graph.entities), len(graph.relations), 16, 4)
    plain = source.plain(dim=16, layers=2, heads=2)
    return variant(plain, "both, tree-dense" if kind == "trees" else "both, learned")


def config_of(kind: str, changes: dict):
    """The tiny model's configuration; of the example the model itself."""
    import torch

    from joformer.models import LMConfig, ViTConfig

    if kind == "own":
        torch.manual_seed(0)
        return own().Echo(**{"width": 8} | changes)
    if kind in DOMAINS:
        return domain_config(kind, **changes)
    values = {"lm": LM, "vit": VIT}[kind] | changes
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return {"lm": LMConfig, "vit": ViTConfig}[kind](**values)


def recipe_of(changes: dict):
    """The short recipe."""
    from joformer.training import Recipe

    return Recipe(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in (RECIPE | changes).items()}
    )


def work(job: dict, task: object) -> int:
    """Train; the exit code the command would give, and the lines it would show."""
    from joformer import _log, _remote
    from joformer.training import Stopped, train

    _log.LOGGED = math.inf  # how far it is, which only a slow machine would report
    if "machine" in job:  # another one, with a disk of its own
        os.environ["JOFORMER_CACHE"], _remote.STALE = job["machine"], 0.1
    try:
        _befall(task, **job.get("befall", {}))
        with _log.to_console():
            train(
                config_of(job["kind"], job.get("config", {})),
                task,
                recipe_of(job.get("recipe", {})),
                job.get("address") or job["out"],
                seed=job.get("seed", 0),
                drift=job.get("drift", False),
                shard=job.get("sharded", False),
                context_parallel=job.get("context", 1),
            )
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.code
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _befall(
    task: object,
    *,
    kill_at: int = 0,
    then: str = "before",
    limit: int | None = None,
    limit_at: int = 1,
    fill: str = "",
    send: str = "",
    during: str = "",
    times: int = 1,
    threads: int = 0,
) -> None:
    """What happens to this process: killed at its n-th operation on files, `before` it, `after` it or with it `torn`;
    files limited to so many bytes from its n-th save on, or the disk filled up there by a file `fill`; a signal sent
    to itself `during` its n-th save, evaluate or batch."""
    import torch

    from joformer.training import checkpoints

    if threads:
        torch.set_num_threads(threads)
    if kill_at:
        _count_operations(kill_at, then)
    if limit is not None or fill:
        save, calls = checkpoints.save, []

        def limited(*args, **kwargs):
            calls.append(1)
            if len(calls) >= limit_at and fill:
                _fill_up(fill)
            elif len(calls) >= limit_at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            return save(*args, **kwargs)

        checkpoints.save = limited
    if send:
        where, name = (checkpoints, "save") if during == "save" else (task, during)
        usual, seen = getattr(where, name), []

        def signalled(*args, **kwargs):
            seen.append(1)
            if len(seen) == times:
                os.kill(os.getpid(), getattr(signal, send))
            return usual(*args, **kwargs)

        setattr(where, name, signalled)


def _fill_up(path: str) -> None:
    with open(path, "ab", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(4096)):
                pass
        file.truncate(os.path.getsize(path) - 32_768)  # what is said of it goes there too


def _count_operations(limit: int, then: str) -> None:
    """SIGKILL at the limit-th operation that changes the disk, by whichever function it is done."""
    import safetensors.torch

    count = 0

    def reached() -> bool:
        nonlocal count
        count += 1
        return count == limit

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple) -> None:
        writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        changing = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
        if (writing or changing) and reached():
            die()

    def patched(module: object, name: str) -> None:
        usual = getattr(module, name)

        def instead(*args, **kwargs):
            here = reached()
            if here and then == "before":
                die()
            result = usual(*args, **kwargs)
            if here and then == "torn" and name == "save_file":
                os.truncate(args[1], os.path.getsize(args[1]) // 2)
            if here:
                die()
            return result

        setattr(module, name, instead)

    sys.addaudithook(audit)  # before the operation; what is before one is after the last
    for module, name in ((os, "fsync"), (safetensors.torch, "save_file"), (os, "rename"), (os, "replace")):
        patched(module, name)


def _child(job: dict, tasks: dict) -> int:
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job.get("environment", {}))
    if "host" in job:  # a network namespace; only Python 3.12 has os.setns
        space = os.open(f"/run/netns/{job['host']}", os.O_RDONLY)
        assert ctypes.CDLL(None).setns(space, 0) == 0
        os.close(space)
    if job["kind"] in DOMAINS:
        task = domain(job["kind"], **job.get("config", {})).task()
    else:
        task = tasks[job["kind"]](**job.get("task", {})) if job.get("task") else tasks[job["kind"], "made"]
    return work(job, task)


def main() -> None:
    """Read a question a line, answer with a line."""
    import filelock  # noqa: F401
    import rich.console
    import rich.progress  # noqa: F401
    import torch._dynamo
    import torch._inductor.config
    import torch.distributed.tensor  # noqa: F401

    import joformer.experiments.sources  # noqa: F401

    tasks = {"lm": lm_task, "vit": vit_task, ("lm", "made"): lm_task(), ("vit", "made"): vit_task()}
    tasks["own", "made"] = own().Repeat()
    assert threading.active_count() == 1, "what is forked must have one thread"
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        answer: object = None
        if question["do"] == "start":
            answer = os.fork()
            if answer == 0:
                code = 70
                try:
                    code = _child(question["job"], tasks)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
        else:
            until = time.monotonic() + question["seconds"]
            while True:
                pid, status = os.waitpid(question["pid"], os.WNOHANG)
                if pid or time.monotonic() > until:
                    break
                time.sleep(0.002)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
