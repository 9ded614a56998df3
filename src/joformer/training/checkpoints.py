"""Checkpoints: written atomically, verified when read, and free of executable content.

    checkpoints/00000200/           appears by one rename, when all below is written and synchronised
        model.safetensors           weights
        optimizer.safetensors       moments, named after their parameters: exp_avg/blocks.0.up.weight
        averaged.safetensors        the moving average of the weights, where there is one
        config.json                 the model, so that `models.load` reads this folder too
        state.json                  step, place, circumstances; sha256 of every file above, and of itself

A run resumes from the newest one whose checksums match; the last few are kept, and the oldest is removed only when
the newest is in place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from joformer._io import PARTIAL, check_files, checksum, make_folder, new_folder, read_sealed, remove, sealed, writing
from joformer._log import logger
from joformer.models._saving import Layout, difference, header

STATE = "state.json"


class Unfit(ValueError):
    """A checkpoint that is whole and does not fit what is beside it, as a log that was cut short.

    >>> issubclass(Unfit, ValueError)
    True
    """


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checksums were right when it was read; `state` is what was given to `save`.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as folder:
    ...     saved = save(Path(folder), 20, {"model": {"w": torch.ones(2)}}, {"seed": 0}, {"model": "JoFormerLM"})
    ...     newest = latest(Path(folder))
    ...     newest.step, newest.state["seed"], newest.tensors("model")["w"].tolist()
    (20, 0, [1.0, 1.0])
    """

    folder: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        """How many steps had been taken."""
        return self.state["step"]

    def file(self, name: str) -> Path | None:
        """The file of the tensors that were saved under this name; None where there were none."""
        path = self.folder / f"{name}.safetensors"
        return path if path.name in self.state["files"] else None

    def tensors(self, name: str) -> dict[str, Tensor]:
        """What was saved under this name; empty where nothing was."""
        from safetensors.torch import load_file

        path = self.file(name)
        return load_file(path) if path else {}

    def layout(self, name: str) -> Layout:
        """The dtypes and shapes of what `tensors` would give, which are not read for that."""
        path = self.file(name)
        return header(path) if path else {}

    def require(self, name: str, wanted: Layout) -> None:
        """Raises `Unfit` where what was saved under this name has other dtypes or shapes than wanted."""
        odd, how = difference(self.layout(name), wanted)
        if odd:
            raise Unfit(
                f"{self.folder} does not fit the model, first at {odd} of {name}: another architecture or version made "
                f"it ({how})"
            )


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    keep: int = 3,
) -> Path:
    """Writes the checkpoint of `step` into folder/00000020, keeps the newest `keep`, and returns its path.

    Where the disk is full or read-only that is a ValueError in one line, and everything older is still in place.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for step in (10, 20, 30):
    ...         written = save(Path(folder), step, {}, {}, {}, keep=2)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['00000020', '00000030']
    """
    from safetensors.torch import save_file

    place = folder / f"{step:08d}"
    remedy = "those before it are untouched, make room and start again"
    with new_folder(place, f"cannot save the checkpoint {place}", remedy) as partial:
        described = partial / "config.json"
        described.write_bytes((json.dumps(config, indent=2) + "\n").encode())
        files = {described.name: checksum(described)}
        for name, entries in tensors.items():
            if entries:
                path = partial / f"{name}.safetensors"
                save_file({key: value.contiguous() for key, value in entries.items()}, path)
                shutil.copymode(described, path)  # safetensors lets only the owner read
                files[path.name] = checksum(path)
        (partial / STATE).write_bytes(sealed({**state, "step": step, "files": files}))
        if place.exists():  # damaged, or it would have been resumed from
            _aside(place)
    found = _steps(folder)
    end = found.index(place) + 1  # newer ones are damaged, or they would have been resumed from
    with writing(f"cannot remove old checkpoints in {folder}", f"{place} is saved"):
        for old in found[: max(end - keep, 0)] + found[end:]:
            _aside(old)
        sweep(folder)
    return place


def latest(folder: Path, fits: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
    """The newest checkpoint in the folder that is whole; each newer one that is not is a warning.

    `fits` may raise a ValueError for a whole one that cannot be used. Where that is `Unfit` for some and none before
    them can be used, it is raised: whole checkpoints are there, and to begin anew would lose them.

    >>> latest(Path("nowhere")) is None
    True
    """
    found, unfit = _steps(folder), None
    for at, place in reversed(list(enumerate(found))):
        try:
            return read(place, fits)
        except ValueError as damage:
            unfit = unfit or (damage if isinstance(damage, Unfit) else None)
            if at:
                logger.warning(f"{damage}; trying the previous one, {found[at - 1].name}")
            elif unfit is None:
                logger.warning(f"{damage}; starting over, because there is no earlier one")
    if unfit is not None:
        raise unfit
    return None


def read(place: Path, fits: Callable[[Checkpoint], None] | None = None) -> Checkpoint:
    """The checkpoint in this folder; ValueError in one line if it is not what was saved, or by `fits`.

    >>> read(Path("nowhere"))
    Traceback (most recent call last):
    ValueError: nowhere is not a checkpoint: it has no state.json
    """
    try:
        if not (place / STATE).is_file():
            raise ValueError(f"{place} is not a checkpoint: it has no {STATE}")
        state = read_sealed(place / STATE)
        step, files = state.get("step"), state.get("files")
        if type(step) is not int or not isinstance(files, dict):
            raise ValueError(f"{place / STATE} is damaged: it has no step or no files")
        if place.name != f"{step:08d}":
            raise ValueError(f"{place / STATE} was altered: its step is {step}")
        check_files(place, files)
    except ValueError as damage:
        pickled = " (a pickle, which can run code when loaded, is never read)" if _has_pickle(place) else ""
        raise ValueError(f"{damage}{pickled}") from None
    checkpoint = Checkpoint(place, state)
    if fits is not None:
        fits(checkpoint)
    return checkpoint


def require_room(folder: Path, size: int, count: int = 2) -> None:
    """Raises ValueError, before any work is done, if there is no room for `count` more checkpoints of `size` bytes.

    >>> from tempfile import gettempdir
    >>> require_room(Path(gettempdir()), 10)
    """
    make_folder(folder)
    free = shutil.disk_usage(folder).free
    if free < count * size:
        raise ValueError(
            f"{folder} has {free / 1e6:,.1f} MB free and a checkpoint takes {size / 1e6:,.1f} MB, "
            f"{'two' if count == 2 else count} at a time: make room or choose another --out"
        )


def held(folder: Path) -> int:
    """How many checkpoints are in the folder, whole or not.

    >>> held(Path("nowhere"))
    0
    """
    return len(_steps(folder))


def sweep(folder: Path) -> None:
    """Removes what was set aside, and what a run that was killed left half written.

    >>> sweep(Path("nowhere"))
    """
    for left in folder.glob(f"{PARTIAL}*"):
        remove(left)


def _steps(folder: Path) -> list[Path]:
    """What is, or once was, a checkpoint of ours, oldest first; another folder with such a name is not."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if len(path.name) >= 8 and path.name.isdecimal()]
    return sorted((path for path in named if _ours(path)), key=lambda path: int(path.name))


def _ours(path: Path) -> bool:
    inside = {one.name for one in path.iterdir()} if path.is_dir() else {STATE}
    return not inside or bool(inside & {STATE, "config.json", "model.safetensors"})


def _aside(place: Path) -> None:
    """Hides it by one rename: a removal that is cut short must not leave a folder that looks like a checkpoint."""
    gone = place.with_name(f"{PARTIAL}old-{place.name}")
    remove(gone)
    os.rename(place, gone)


def _has_pickle(place: Path) -> bool:
    """Whether it, or a file in it, begins as pickles do, and not as safetensors: the length of a header, then "{"."""
    for path in filter(Path.is_file, (place, *place.glob("*"))):
        with path.open("rb") as file:
            start = file.read(9)
        if start.startswith((b"PK", b"\x80")) and start[8:] != b"{":
            return True
    return False
