"""Files and folders that are written whole or not at all, one-line errors where they cannot be, locks and checksums.

What is read may come from strangers: only regular files are opened (a pipe or a device could be waited for for ever),
and no size that they decide is taken on trust (`allowed`). What is written goes to new files with random names, or to
the end of a file that is no link: nobody who may write into the folder can send it elsewhere.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from joformer._log import logger

LIMITS = "JOFORMER_LIMITS"
"""The environment variable by which all bounds on what is read are multiplied."""
PARTIAL = ".partial-"
"""How the name begins of what is not whole yet."""
MANIFEST = "manifest.json"
"""The checksums of all files of a finished run, and of itself."""
LINKED = "it is a symbolic link, through which nothing is written"
JSON = 1 << 26
"""Bytes of JSON that are read at most: parsed they may take twenty times as much."""


def allowed(most: int) -> int:
    """How much is allowed where `most` is the default: that times what JOFORMER_LIMITS says.

    >>> allowed(100)
    100
    """
    given = os.environ.get(LIMITS) or "1"
    try:
        factor = float(given)
    except ValueError:
        factor = 0.0
    if not factor > 0:
        raise ValueError(f"{LIMITS} is {given!r}: give a number above 0; 10 allows ten times as much as is usual")
    return int(min(most * factor, 1 << 62))


def usable_cores() -> int:
    """How many cores this process may use.

    >>> usable_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def not_a_file(mode: int) -> str:
    """What it is, by `stat`'s mode, if it is no regular file; else nothing.

    >>> not_a_file(os.stat(os.devnull).st_mode), not_a_file(os.stat(os.__file__).st_mode)
    ('it is a device, and only files are read', '')
    """
    if stat.S_ISREG(mode):
        return ""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return f"it is {kinds.get(stat.S_IFMT(mode), 'a device')}, and only files are read"


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, opened for reading; anything else (a pipe, a device) is an OSError and is not waited for.

    >>> open_file(os.devnull)
    Traceback (most recent call last):
    OSError: [Errno 22] it is a device, and only files are read: '/dev/null'
    """
    _require_file(os.stat(path).st_mode, path)  # first: to open a device may do something already
    return open(path, "rb", opener=_opener())


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a regular file; one of more than `most` bytes is an OSError.

    >>> read_file(os.__file__, 10)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    OSError: [Errno 27] more than the 10 bytes that are allowed; if you trust it, set JOFORMER_LIMITS=10 ...
    """
    most = allowed(most)
    with open_file(path) as file:
        data = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if data is None or len(data) > most:  # which only a file that grows, or one of /proc, can be
        reason = f"more than the {most:,} bytes that are allowed; if you trust it, set {LIMITS}=10 for ten times that"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return data


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file: data, whatever it says. OSError where it cannot be read, ValueError where it is none.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.json").write_text("[1]")
    ...     read_json(Path(folder, "a.json"))
    Traceback (most recent call last):
    ValueError: no JSON object
    """
    data = read_file(path, JSON)
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(one_line(error)) from None
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return content


def open_log(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, opened for appending and made if it is missing; a symbolic link is an OSError, not followed.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with open_log(Path(folder, "a.log")) as log:
    ...         log.write(b"line")
    4
    """
    try:
        return open(path, "ab", opener=_opener(getattr(os, "O_NOFOLLOW", 0)))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, LINKED, os.fspath(path)) from None
        raise


def _opener(more: int = 0) -> Callable[[str, int], int]:
    """For `open`: without waiting for a pipe, and only what is a regular file, whatever it was a moment ago."""

    def opener(path: str, flags: int) -> int:
        handle = os.open(path, flags | more | getattr(os, "O_NONBLOCK", 0), 0o666)
        try:
            _require_file(os.fstat(handle).st_mode, path)
        except OSError:
            os.close(handle)
            raise
        return handle

    return opener


def _require_file(mode: int, path: str | os.PathLike[str]) -> None:
    if reason := not_a_file(mode):
        raise OSError(errno.EINVAL, reason, os.fspath(path))


def one_line(
    error: BaseException,
    plain: type | tuple[type, ...] = (ValueError, OSError, RuntimeError),
    *,
    first: bool = False,
) -> str:
    """What an error says, in a line that is not too long.

    Args:
        error: The error.
        plain: Kinds of error that are not named: what they say is enough.
        first: Of several lines take the first alone, as where the others are a trace.

    Returns:
        One line of at most 300 characters.

    Example:
        >>> one_line(ValueError("too long:\\n  7")), one_line(KeyError("a")), one_line(OSError("no\\nway"), first=True)
        ('too long: 7', "KeyError: 'a'", 'no')
    """
    said = str(getattr(error, "strerror", None) or error).strip()
    said = " ".join((said.partition("\n")[0] if first else said).split())
    if not said or not isinstance(error, plain):
        said = f"{type(error).__name__}: {said}".rstrip(": ")
    return said if len(said) <= 300 else f"{said[:299]}…"


def random_name(name: str) -> str:
    """A hidden name for what becomes `name` when it is whole, which nobody can have put there before.

    >>> random_name("a.md").startswith(f".partial-a.md-{os.getpid()}-")
    True
    """
    return f"{PARTIAL}{name}-{os.getpid()}-{secrets.token_hex(8)}"


def sweep(folder: Path, name: str) -> None:
    """Remove what processes that were killed while they wrote folder/name have left.

    >>> sweep(Path("nowhere"), "a.json")
    """
    left = re.compile(re.escape(f"{PARTIAL}{name}") + "-[0-9]+-[0-9a-f]{16}")
    for path in folder.glob(f"{PARTIAL}*"):
        if left.fullmatch(path.name):
            remove(path)


def remove(path: Path) -> None:
    """Remove a folder with all in it, or a file, or a link; what is not there stays so.

    >>> remove(Path("nowhere"))
    """
    shutil.rmtree(path, ignore_errors=True)
    if path.is_file() or path.is_symlink():
        path.unlink()


def make_folder(path: Path) -> None:
    """The folder and those above it, their names on the disk itself, or one line saying why not.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     make_folder(Path(folder) / "a" / "b")
    ...     (Path(folder) / "a" / "b").is_dir()
    True
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            synchronise(folder.parent)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError:
        raise ValueError(f"{path} is a file: give a directory") from None
    except OSError as error:
        raise ValueError(f"cannot write into {path}: {one_line(error)}; give a directory you may write to") from None


def cache_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Where prepared data is kept: `given`, or $JOFORMER_CACHE, or $XDG_CACHE_HOME/joformer, or ~/.cache/joformer.

    >>> cache_folder("here").name
    'here'
    """
    if given := given or os.environ.get("JOFORMER_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "joformer"


class Lock:
    """Only one process at a time may hold it; that of a process that died is free again.

    Args:
        folder: Where the file of the lock is, and stays; made if it is missing.
        name: What the file is called.
        waiting: A line to log while another process holds the lock; without it that is a ValueError.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder, Lock(Path(folder)):
        ...     with Lock(Path(folder)):
        ...         pass
        Traceback (most recent call last):
        ValueError: ... is in use by another run: wait for it, or choose another --out
    """

    def __init__(self, folder: Path, name: str = ".lock", *, waiting: str = "") -> None:
        from filelock import FileLock

        make_folder(folder)
        self.folder, self.path, self.waiting = folder, folder / name, waiting
        if self.path.is_symlink():  # which older versions of filelock would follow and empty
            raise ValueError(f"cannot lock {self.path}: {LINKED}; remove it")
        self._lock = FileLock(self.path, is_singleton=False)

    def __enter__(self) -> Lock:
        from filelock import Timeout

        with writing(f"cannot lock {self.path}", "give a directory you may write to"):
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                if not self.waiting:
                    raise ValueError(
                        f"{self.folder} is in use by another run: wait for it, or choose another --out"
                    ) from None
                logger.info(self.waiting)
                self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@contextmanager
def writing(what: str, remedy: str = "make room or choose another place") -> Iterator[None]:
    """Within it, what the disk does not take is a ValueError in one line: what failed, why, and what would help.

    >>> with writing("cannot write a.md"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    ValueError: cannot write a.md: No space left on device; make room or choose another place
    """
    try:
        yield
    except Exception as error:
        safetensors = sys.modules.get("safetensors")  # which has an error of its own
        if not isinstance(error, (OSError, getattr(safetensors, "SafetensorError", OSError))):
            raise
        raise ValueError(f"{what}: {one_line(error)}; {remedy}") from None


@contextmanager
def new_file(path: Path, what: str = "") -> Iterator[BinaryIO]:
    """A file that becomes `path` when all of it is on the disk; where that fails, `path` is as it was before.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with new_file(Path(folder, "a.md")) as file:
    ...         _ = file.write(b"text")
    ...     os.listdir(folder)
    ['a.md']
    """
    make_folder(path.parent)
    partial = path.with_name(random_name(path.name))
    with writing(what or f"cannot write {path}"):
        try:
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            synchronise(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, what: str = "", remedy: str = "make room or choose another place") -> Iterator[Path]:
    """A folder that becomes `path` when all in it is on the disk; where that fails, nothing of it is left.

    What is at `path` already has to be gone when the block ends.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with new_folder(Path(folder, "made")) as made:
    ...         _ = (made / "a.md").write_text("text")
    ...     os.listdir(folder), os.listdir(Path(folder, "made"))
    (['made'], ['a.md'])
    """
    make_folder(path.parent)
    partial = path.with_name(random_name(path.name))
    with writing(what or f"cannot write {path}", remedy):
        try:
            partial.mkdir()
            yield partial
            for inside in sorted(partial.rglob("*"), reverse=True):  # what is in a folder before the folder
                synchronise(inside)
            synchronise(partial)
            os.rename(partial, path)
            synchronise(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def synchronise(path: Path) -> None:
    """Wait until the file, or the names in the folder, are on the disk itself.

    >>> synchronise(Path("."))
    """
    if os.name == "nt" and path.is_dir():  # Windows has no handles of folders to flush
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Put data at path: whole, or, if the disk is full or the power fails, as it was before.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a.md", b"text")
    ...     (Path(folder) / "a.md").read_text()
    'text'
    """
    with new_file(path) as file:
        file.write(data)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Put the content at path as JSON, whole or not at all.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "a.json", {"a": 1})
    ...     json.loads((Path(folder) / "a.json").read_text())
    {'a': 1}
    """
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def checksum(path: Path) -> str:
    """The sha256 of a file, read a piece at a time.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a", b"text")
    ...     checksum(Path(folder) / "a") == hashlib.sha256(b"text").hexdigest()
    True
    """
    digest = hashlib.sha256()
    with open_file(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sealed(content: Mapping[str, Any]) -> bytes:
    """The content as JSON with its own checksum, in the only bytes there are for it: any other byte is noticed.

    >>> json.loads(sealed({"step": 3}))["step"]
    3
    """
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=2) + "\n").encode()


def read_sealed(path: Path) -> dict[str, Any]:
    """What was given to `sealed`; raises ValueError in one line where the file is anything else.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "a.json", sealed({"step": 3}))
    ...     read_sealed(Path(folder) / "a.json")
    {'step': 3}
    """
    try:
        raw = read_file(path, JSON)
        content = json.loads(raw)
        if not isinstance(content.pop("sha256"), str):
            raise TypeError
        right = raw == sealed(content)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} is damaged") from None
    if not right:
        raise ValueError(f"{path} was altered: its checksum is wrong")
    return content


def check_files(folder: Path, files: Mapping[str, str], only: Iterable[str] | None = None) -> None:
    """Compare files of the folder (those in `only`) with their checksums; ValueError names the first that differs.

    >>> check_files(Path("nowhere"), {"a": "0123"})
    Traceback (most recent call last):
    ValueError: nowhere/a is missing
    """
    for name in files if only is None else only:
        path = folder / name
        if Path(name).name != name or name not in files or not path.is_file():
            raise ValueError(f"{path} is {'missing' if name in files else 'in no list of checksums'}")
        if checksum(path) != files[name]:
            raise ValueError(f"{path} was cut short or altered: its checksum is wrong")


def check_folder(folder: Path, only: Iterable[str] | None = None, seal: str = MANIFEST) -> None:
    """Compare the files that the folder's manifest.json lists (those in `only`); a folder without one passes.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / MANIFEST, sealed({"files": {"model.safetensors": "0123"}}))
    ...     check_folder(Path(folder))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...model.safetensors is missing
    """
    if os.path.lexists(folder / seal):
        files = read_sealed(folder / seal).get("files")
        if not isinstance(files, dict):
            raise ValueError(f"{folder / seal} is damaged: it lists no files")
        check_files(folder, files, only)


def imported(module: str, extra: str) -> Any:
    """The module, which only an extra installs; ImportError in one line that names it.

    >>> imported("safetensors_of_mars", "train")
    Traceback (most recent call last):
    ImportError: safetensors_of_mars is not installed: pip install 'joformer[train]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise ImportError(f"{missing} is not installed: pip install 'joformer[{extra}]'", name=missing) from None
