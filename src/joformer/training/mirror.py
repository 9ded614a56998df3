"""A run whose --out is an address: it works in a folder of this machine, and what it saved is published.

    start      what lies at the address is fetched, unless the folder is further: an empty machine resumes there, too
    publish    at every checkpoint: logs, then a checkpoint's files, then its state.json; then old ones are removed
    end        model.safetensors, and manifest.json last

Names are those of the folder. Whoever reads at any moment finds whole checkpoints with the log that belongs to them: a
seal (state.json, manifest.json, result.json) is written after all that it lists, and removed before any of that is
replaced or removed; a log only grows beyond what a checkpoint knows of it. A publication that fails is a warning and is
made up for at the next checkpoint; only if the last one fails, the run does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from joformer._io import MANIFEST, Lock, cache_folder, check_folder, make_folder, new_folder, remove
from joformer._log import logger
from joformer._remote import SEALS, Owner, Place, Store, Unreachable, is_address, local, require_name
from joformer.models._saving import WEIGHTS
from joformer.training import checkpoints
from joformer.training.checkpoints import STATE
from joformer.training.recorder import RUN_ID
from joformer.training.runs import CHECKPOINTS, CONFIG, KEPT, METRICS, SPEED

RESULT = SEALS[-1]
FILES = (CONFIG, METRICS, SPEED, *KEPT, RUN_ID, WEIGHTS, MANIFEST, RESULT)
"""What a run resumes with, beside checkpoints; seals last."""
_CHECKPOINT = re.compile(rf"{CHECKPOINTS}/([0-9]{{8,}})/([^/]+)")
_ONE_CHECKPOINT = re.compile(rf"(.+)/{CHECKPOINTS}/([0-9]{{8,}})/*")
Stamp = tuple[int, int] | None


class Mirror:
    """The folder of a run and, where `out` is an address, what is published of it; for a folder all of it is idle.

    Args:
        out: A folder, or an address.

    Example:
        >>> mirror = Mirror("runs/a")
        >>> with mirror:
        ...     mirror.publish()
        >>> mirror.folder.as_posix()
        'runs/a'
    """

    def __init__(self, out: Place) -> None:
        self.folder = local(out)
        self._store = Store(str(out)) if is_address(out) else None
        self._owner: Owner | None = None
        self._there: dict[str, Stamp] = {}  # what lies at the address, and of which version of ours it is

    def __enter__(self) -> Mirror:
        """Fetches what is there; the caller holds the folder's `Lock`."""
        if self._store is not None:
            self._owner = Owner(self._store).__enter__()
            try:
                self.fetch()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            self._owner.__exit__()

    def fetch(self, follow: bool = False) -> None:
        """Makes the folder what is published; where it is further and not to `follow`, publishes what it has."""
        if self._store is None:
            return
        store, folder = self._store, self.folder
        names = store.names()
        self._there = {name: None for name in names if name in FILES or _CHECKPOINT.fullmatch(name)}
        here = {_name(folder, path) for path in _files(folder)}
        if _progress(here) > _progress(names) and not follow:
            self._require_same_run(store)
            logger.info(f"{folder} is ahead of {store.address}: resuming from it (remove it to start over)")
            for place in (folder / CHECKPOINTS).glob("[0-9]*"):
                if _is_same(store, place):  # else its seal would be removed, and it may be the only one there
                    self._there |= {_name(folder, path): _stamp(path) for path in place.iterdir()}
            self.publish()
            return
        make_folder(folder)
        kept = _fetch_newest(store, folder, names)
        for place in (folder / CHECKPOINTS).glob("[0-9]*"):
            if place.name != kept and not _is_same(store, place):
                remove(place)
        _fetch_files(store, folder, names, FILES)
        for name in FILES:
            if name not in names:
                remove(folder / name)
        for name in self._there:
            self._there[name] = _stamp(folder / name)

    def _require_same_run(self, store: Store) -> None:
        """Raises ValueError before another run is overwritten; the same one may have become longer."""

        def settings(content: bytes | None) -> Any:
            try:
                run = json.loads(content or b"{}")["run"]
                return {**run, "recipe": {key: value for key, value in run["recipe"].items() if key != "steps"}}
            except (ValueError, KeyError, TypeError, AttributeError):
                return None  # reported where it is opened

        place = self.folder / CONFIG
        ours, theirs = settings(place.read_bytes() if place.is_file() else None), settings(store.read(CONFIG))
        if ours and theirs and ours != theirs:
            raise ValueError(
                f"{store.address} holds another run than {self.folder}, its copy here, which is further: remove one "
                "of them, or choose another --out"
            )

    def publish(self, last: bool = False) -> None:
        """Publishes what has changed in the folder; that it fails is a warning, and for the `last` time an error."""
        if self._store is None:
            return
        try:
            if self._owner is not None:
                self._owner.require()
            self._publish(self._store)
        except Unreachable as error:
            if last:
                raise ValueError(f"{error}; the whole run is in {self.folder}: the same command publishes it") from None
            logger.warning(f"{error}; trying again at the next checkpoint")

    def _publish(self, store: Store) -> None:
        here = {_name(self.folder, path): path for path in _files(self.folder)}
        changed = {name: _stamp(path) for name, path in here.items() if self._there.get(name) != _stamp(path)}
        gone = [name for name in self._there if name not in here]
        touched = {_above(name) for name in changed if name in self._there}
        seals = [name for name in (*gone, *changed) if name in self._there and _is_seal(name)]
        self._remove(store, [name for name in seals if _above(name) in touched])
        for name in sorted(changed, key=_order):
            store.put(name, here[name])
            self._there[name] = changed[name]
        # Only now, as until now they were the newest: an old checkpoint's seal, then its files.
        self._remove(store, sorted((name for name in gone if name in self._there), key=_order, reverse=True))

    def _remove(self, store: Store, names: Iterable[str]) -> None:
        for name in names:
            store.remove([name])
            del self._there[name]


def fetch_run(place: Place, *, weights: bool = True) -> Path:
    """The folder itself or, of an address of a run or of one of its checkpoints, a copy for reading.

    Args:
        place: A folder, or an address.
        weights: Fetch the newest checkpoint, too, where a run has not ended or its weights are damaged.

    Returns:
        The folder; of a checkpoint's address that of the checkpoint. What is in it is to be checked as in any folder.

    Raises:
        ValueError: If there is no run at the address, or the store does not answer.

    Example:
        >>> fetch_run("runs/a").as_posix()
        'runs/a'
    """
    if not is_address(place):
        return Path(place)
    found = _ONE_CHECKPOINT.fullmatch(str(place))
    store = Store(found[1] if found else str(place))
    folder = cache_folder() / "read" / store.folder.relative_to(cache_folder() / "stored")
    with Lock(folder, waiting=f"another process reads {place}: waiting for it"):
        return _again(store, lambda: _read(store, folder, found[2] if found else "", weights))


def fetch_files(place: Place, wanted: Callable[[str], bool]) -> Path:
    """The folder itself or, of an address, a copy for reading of all files whose name is wanted.

    >>> fetch_files("runs/a", lambda name: name.endswith(".json")).as_posix()
    'runs/a'
    """
    if not is_address(place):
        return Path(place)
    store = Store(str(place))
    folder = cache_folder() / "read" / store.folder.relative_to(cache_folder() / "stored")
    with Lock(folder, waiting=f"another process reads {place}: waiting for it"):
        _again(store, lambda: pull(store, folder, wanted))
    return folder


def pull(store: Store, folder: Path, wanted: Callable[[str], bool]) -> Path:
    """Copies the objects whose name is wanted into the folder.

    >>> pull(Store("memory://docs/nothing"), Path("."), lambda name: True)
    PosixPath('.')
    """
    names = store.names()
    _fetch_files(store, folder, names, [name for name in names if wanted(name)])
    return folder


def push(store: Store, folder: Path, names: Iterable[str]) -> None:
    """Publishes these files of a folder, in this order; one that is not there is left out.

    >>> push(Store("memory://docs/nothing"), Path("."), ["nowhere"])
    """
    for name in names:
        if (folder / name).is_file():
            store.put(name, folder / name)


# -- reading ---------------------------------------------------------------------------------------------------------


def _read(store: Store, folder: Path, step: str, weights: bool) -> Path:
    names = store.names()
    if not any(name in names for name in FILES) and not _steps(names):
        raise ValueError(f"there is no run at {store.address}: give the address of a run, or of one of its checkpoints")
    wanted = [name for name in FILES if not step or name != WEIGHTS]
    _fetch_files(store, folder, names, wanted)
    for name in FILES:
        if name not in names:
            remove(folder / name)
    if step:
        if step not in _steps(names) or not _fetch_checkpoint(store, folder, names, step):
            raise ValueError(f"there is no complete checkpoint {step} at {store.address}: choose another")
        return folder / CHECKPOINTS / step
    ended = WEIGHTS in names
    try:
        check_folder(folder)
    except ValueError:
        ended = False
    if weights and not ended:
        kept = _fetch_newest(store, folder, names)
        for place in (folder / CHECKPOINTS).glob("[0-9]*"):
            if place.name != kept:
                remove(place)
    return folder


def _again(store: Store, work: Callable[[], Path]) -> Path:
    """What `work` gives: a run that is at work may replace what was listed a moment ago."""
    for _ in range(2):
        try:
            return work()
        except Unreachable:
            store.names()  # where the store does not answer at all, that is what is raised
    return work()


def _fetch_newest(store: Store, folder: Path, names: dict[str, int]) -> str:
    """Fetches the newest whole checkpoint; its name, or nothing."""
    return next((step for step in _steps(names) if _fetch_checkpoint(store, folder, names, step)), "")


def _fetch_checkpoint(store: Store, folder: Path, names: dict[str, int], step: str) -> bool:
    """Whether the checkpoint is whole, and now in the folder; one that is not is a warning."""
    place, above = folder / CHECKPOINTS / step, f"{CHECKPOINTS}/{step}"
    if _is_same(store, place):
        try:
            checkpoints.read(place)
            return True
        except ValueError:
            pass  # damaged here: fetched again
    remove(place)
    with new_folder(place, f"cannot write {place}", "make room or set JOFORMER_CACHE") as partial:
        for name, size in names.items():
            found = _CHECKPOINT.fullmatch(name)
            if found and found[1] == step:
                require_name(name, store.address)
                store.get(name, partial / found[2], size)
    try:
        checkpoints.read(place)
        return True
    except ValueError as damage:
        logger.warning(f"{store.address}/{above}: {damage}; trying the previous one")
        remove(place)
        return False


def _is_same(store: Store, place: Path) -> bool:
    """Whether the checkpoint of this folder lies at the address as well, by their seals."""
    state = place / STATE
    return state.is_file() and state.read_bytes() == store.read(f"{CHECKPOINTS}/{place.name}/{STATE}")


def _fetch_files(store: Store, folder: Path, names: dict[str, int], wanted: Iterable[str]) -> None:
    """Copies files into the folder; weights that are there already, by the manifest's checksum, are not read again."""
    listed = [name for name in wanted if name in names]
    if {MANIFEST, WEIGHTS} <= {*listed} and (folder / WEIGHTS).is_file():
        store.get(MANIFEST, folder / MANIFEST, names[MANIFEST])
        try:
            check_folder(folder, [WEIGHTS])
            listed.remove(WEIGHTS)
        except ValueError:
            pass
    for name in listed:
        require_name(name, store.address)
        store.get(name, folder / name, names[name])


def _steps(names: Iterable[str]) -> list[str]:
    """The checkpoints that have their seal, newest first."""
    found = (_CHECKPOINT.fullmatch(name) for name in names)
    return sorted((one[1] for one in found if one and one[2] == STATE), key=int, reverse=True)


def _progress(names: Iterable[str]) -> tuple[int, bool, bool]:
    names = {*names}
    return int(next(iter(_steps(names)), 0)), MANIFEST in names, RESULT in names


def _files(folder: Path) -> list[Path]:
    """What is published of a run's folder: nothing that is hidden, as what is not whole yet."""
    inside = [folder, *(folder / CHECKPOINTS).glob("[0-9]*"), folder / "tensorboard"]
    files = [path for place in inside if place.is_dir() for path in place.iterdir()]
    return [path for path in files if path.is_file() and (not path.name.startswith(".") or path.name == RUN_ID)]


def _stamp(path: Path) -> Stamp:
    """What tells whether a file of ours was written since; None where there is none."""
    if not path.is_file():
        return None
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _above(name: str) -> str:
    return name.rpartition("/")[0]


def _is_seal(name: str) -> bool:
    return name.rpartition("/")[2] in SEALS


def _order(name: str) -> tuple[int, str]:
    """Seals after all else, the run's after those of its checkpoints."""
    last = name.rpartition("/")[2]
    return (1 + SEALS.index(last) if last in SEALS else 0), name
