"""The folder of a run, and the conditions under which it resumes to the same bits.

    config.json         the model, and under "run" how it is trained on what
    metrics.jsonl       what was measured: a function of the command alone, hence without times
    speed.jsonl         seconds per step
    checkpoints/        see checkpoints.py
    tokenizer.json      (text) or classes.json (images)
    model.safetensors   when finished, so that `models.load` or `load_weights` reads the folder
    manifest.json       last: sha256 of all the files above that are results, and of itself; with it the run has ended

Starting the same command on the same folder resumes it. If the result would not be bit-identical to an uninterrupted
run (other settings, other data, another machine), a ValueError names the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import joformer
from joformer._io import MANIFEST, check_folder, open_log, read_json, read_sealed, writing
from joformer._log import logger
from joformer.models._saving import MODELS, WEIGHTS, layout, own_state, written

CONFIG, METRICS, SPEED, CHECKPOINTS = "config.json", "metrics.jsonl", "speed.jsonl", "checkpoints"
KEPT = ("tokenizer.json", "classes.json", "graph.json", "trees.json")
"""Files that a task may keep next to the model (`Task.keep`)."""
TOKENIZER = KEPT[0]


class Stopped(Exception):
    """A signal ended the run; everything up to here is saved. `code` is the command's exit code.

    >>> Stopped("saved", 143).code
    143
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Log:
    """JSON lines that can be cut back to where a checkpoint found them.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = Log(Path(folder) / "metrics.jsonl")
    ...     log.restore(None)
    ...     log.write({"step": 1})
    ...     place = log.place()
    ...     log.write({"step": 2})
    ...     log.restore(place)
    ...     log.path.read_text()
    '{"step": 1}\\n'
    """

    path: Path
    _bytes: int = 0
    _hash: Any = field(default_factory=hashlib.sha256)  # of what was written, whatever became of it since

    def is_shorter(self, place: Mapping[str, Any]) -> bool:
        """Whether the file is there, and a part of what was there at `place` is not."""
        return self.path.is_file() and self.path.stat().st_size < place["bytes"]

    def last(self, place: Mapping[str, Any], step: int) -> dict[str, Any] | None:
        """The evaluation of this step, if it follows `place`, whole and alone."""
        kept, line = self._split(place["bytes"])
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return None
        right = isinstance(entry, dict) and entry.get("step") == step and "train_loss" not in entry
        whole = line == (json.dumps(entry) + "\n").encode()
        return entry if right and whole and hashlib.sha256(kept).hexdigest() == place["sha256"] else None

    def restore(self, place: Mapping[str, Any] | None) -> None:
        """Cuts the file back to `place`; ValueError if an earlier part is not what it was."""
        kept, more = self._split(place["bytes"] if place else 0)
        self._hash, self._bytes = hashlib.sha256(kept), len(kept)
        if place and self._hash.hexdigest() != place["sha256"]:
            raise ValueError(
                f"{self.path} has changed since the checkpoint was saved, so the run cannot resume exactly: "
                "restore it, or choose another --out"
            )
        if more or not self.path.is_file():
            with writing(f"cannot write {self.path}", "choose another --out"), open_log(self.path) as file:
                file.truncate(len(kept))

    def write(self, entry: Mapping[str, Any]) -> None:
        """Adds one line; it is on the disk itself after the next `place`."""
        line = (json.dumps(entry) + "\n").encode()
        with writing(f"cannot write {self.path}", "make room and start again"), open_log(self.path) as file:
            file.write(line)
        self._hash.update(line)
        self._bytes += len(line)

    def place(self) -> dict[str, Any]:
        """How much there is, and its checksum; all of it on the disk."""
        with writing(f"cannot write {self.path}", "make room and start again"), open_log(self.path) as file:
            os.fsync(file.fileno())
        return {"bytes": self._bytes, "sha256": self._hash.hexdigest()}

    def _split(self, at: int) -> tuple[bytes, bytes]:
        data = self.path.read_bytes() if self.path.is_file() else b""
        return data[:at], data[at:]


def circumstances(device: torch.device, processes: int, sharded: bool, context: int = 1) -> dict[str, Any]:
    """What the last bits of a result depend on beside the command.

    >>> circumstances(torch.device("cpu"), 1, False)["processes"]
    1
    """
    on = device.type
    return {
        "joformer": joformer.__version__,
        "torch": torch.__version__,
        "dtype": str(torch.get_default_dtype()),
        "products": torch.get_float32_matmul_precision(),
        "device": torch.cuda.get_device_name(device) if on == "cuda" else on,
        "processor": _processor() if on == "cpu" else "",
        "threads": torch.get_num_threads() if on == "cpu" else 0,
        "processes": processes,
        "sharded": sharded,
        **({"context_parallel": context} if context > 1 else {}),
        **{name: os.environ[name] for name in ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR") if on == "cpu" and name in os.environ},
    }


def described(model: Any) -> dict[str, Any]:
    """What config.json says of a model: its class and configuration; of a module that is not ours its tensors, too.

    >>> described(nn.Linear(2, 1, bias=False))
    {'model': 'Linear', 'config': None, 'layout': {'weight': 'F32 (1, 2)'}}
    """
    if not isinstance(model, nn.Module):
        return written(model)
    if type(model) in MODELS.values():
        return written(model.config)
    config = getattr(model, "config", None)
    try:
        plain = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
        config = json.loads(json.dumps(plain))
    except TypeError:
        config = None
    tensors = {name: f"{dtype} {shape}" for name, (dtype, shape) in layout(own_state(model)).items()}
    return {"model": type(model).__name__, "config": config, "layout": tensors}


def damage(folder: Path) -> dict[str, str]:
    """What is wrong with the files of a finished run, by name; of the manifest alone, if it is missing or damaged.

    >>> damage(Path("nowhere"))
    {'manifest.json': 'nowhere/manifest.json is missing'}
    """
    if not (folder / MANIFEST).exists():
        return {MANIFEST: f"{folder / MANIFEST} is missing"}
    try:
        check_folder(folder, ())
    except ValueError as error:
        return {MANIFEST: str(error)}
    wrong = {}
    for name in sorted({CONFIG, METRICS, WEIGHTS, *read_sealed(folder / MANIFEST)["files"]}):
        try:
            check_folder(folder, [name])
        except ValueError as error:
            wrong[name] = str(error)
    return wrong


def require_ours(folder: Path) -> None:
    """Raises ValueError if a new run would overwrite files in the folder that are not a run's.

    >>> require_ours(Path("nowhere"))
    """
    place = folder / CONFIG
    foreign = ""
    if place.is_file():
        try:
            foreign = "" if "run" in read_json(place) else CONFIG
        except (OSError, ValueError):
            foreign = CONFIG
    elif (folder / METRICS).is_file() and (folder / METRICS).stat().st_size:
        foreign = METRICS
    if foreign:
        raise ValueError(f"{folder} holds a {foreign} that is not of a run of joformer: choose another --out")


def require_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Raises ValueError naming the first setting that differs, or that the data does.

    >>> require_same({"recipe": {"lr": 0.1}}, {"recipe": {"lr": 0.2}}, Path("run"))
    Traceback (most recent call last):
    ValueError: run holds a run with recipe.lr = 0.1, not 0.2: give the same settings to resume it, or another --out
    """
    name, was, wanted = _difference(before, now)
    if name in ("task.text", "task.images"):
        raise ValueError(f"{folder} holds a run on other data: give the same data to resume it, or another --out")
    if name:
        raise ValueError(
            f"{folder} holds a run with {name} = {was}, not {wanted}: give the same settings to resume it, or "
            "another --out"
        )


def require_exact(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path, drift: bool = False) -> None:
    """Raises ValueError naming the first circumstance that differs; with `drift` it is logged instead.

    >>> require_exact({"processes": 2}, {"processes": 1}, Path("run"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: run was made with processes = 2, but here it is 1: its bits would not be the same; ...
    """
    name, was, here = _difference(before, now)
    differs = f"{folder} was made with {name} = {was}, but here it is {here}"
    if name and drift:
        logger.warning(f"{differs}: from here on its bits are not those of an uninterrupted run")
    elif name:
        raise ValueError(f"{differs}: its bits would not be the same; restore that, or use --drift to resume anyway")


def _difference(before: Any, now: Any, name: str = "") -> tuple[str, Any, Any]:
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return ("", None, None) if before == now else (name, before, now)
    for key in [*before, *(key for key in now if key not in before)]:
        found = _difference(before.get(key), now.get(key), f"{name}.{key}" if name else key)
        if found[0]:
            return found
    return "", None, None


def _processor() -> str:
    """Kernels are chosen by the processor, and with them the order of sums."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"
