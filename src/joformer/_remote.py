"""Addresses of object stores (s3://, gs://, …), through fsspec: what lies there, and how it is read and written.

    s3://bucket/runs/a   ⇄   $JOFORMER_CACHE/stored/s3/bucket/runs/a      where a run works, as in any folder
    s3://bucket/notes    →   $JOFORMER_CACHE/fetched/KEY/notes            data, fetched once

An object store has no rename and no locks; an object appears there whole, or not at all. So what is published keeps the
names it has in the folder, and files with checksums of the others (`SEALS`) come last: before them nobody believes the
others, and a seal is removed before what it seals. Which of two writers goes on is decided by an `Owner`, which is
advice and no lock. What is read is data: its names are checked, its size is the listed one, and none of it is run.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from joformer._io import JSON, MANIFEST, Lock, allowed, cache_folder, new_file, one_line, random_name
from joformer._log import Progress, logger

SEALS = ("state.json", MANIFEST, "result.json")
"""Files that say that others are whole, in the order in which they are published."""
AT_ONCE = ("abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a")
"""Stores where an object is there when its last byte is; elsewhere it gets its name by a rename."""
OWNER = ".owner"
BEAT, STALE = 20.0, 60.0
"""Seconds between two signs of life of an owner, and after how many without one it is dead."""
FILES = 1 << 22
"""Files that are fetched from an address at most."""
PIECE = 1 << 23

Place = str | os.PathLike[str]


class Unreachable(ValueError):
    """A store that does not answer, or refuses, in one line.

    >>> issubclass(Unreachable, ValueError)
    True
    """


def is_address(place: object) -> bool:
    """Whether it is an address (SCHEME://…) rather than a path; one that cannot be used is a ValueError in one line.

    >>> is_address("s3://bucket/run"), is_address("runs/a"), is_address(Path("runs"))
    (True, False, False)
    """
    text = os.fspath(place) if isinstance(place, (str, os.PathLike)) else ""
    if not isinstance(place, str):
        if re.match(r"[a-z][a-z0-9+.-]+:[\\/][^\\/]", str(text)) and not os.path.exists(text):
            raise ValueError(f"{text} was an address before it became a Path: give it as a str")
        return False
    if "::" in text and "://" in text:
        raise ValueError(f"{text} is a chain of addresses: give one, such as s3://BUCKET/NAME")
    if not (found := re.match(r"([a-z][a-z0-9+.-]+)://(.*)", text, re.IGNORECASE | re.DOTALL)):
        return False
    rest = found[2]
    if found[1] == "hf":
        raise ValueError(f"{text}: data of the hub is given as hub:OWNER/NAME")
    if re.match(r"[^/]*:[^/]*@", rest):
        raise ValueError(
            "an address must not hold a password: leave it to the environment, or to the store's own files"
        )
    if not rest.strip("/") or ".." in rest.split("/") or "\0" in rest:
        raise ValueError(f"{text} names no place: give an address such as {found[1]}://BUCKET/NAME")
    return True


def local(place: Place) -> Path:
    """The folder itself or, of an address, the folder on this machine that is its working copy.

    >>> local("runs/a").as_posix(), local("s3://bucket/runs/a").parts[-4:]
    ('runs/a', ('s3', 'bucket', 'runs', 'a'))
    """
    if not is_address(place):
        return Path(place).expanduser()
    scheme, _, rest = str(place).partition("://")
    parts = [quote(part, safe=" ") for part in rest.split("/") if part not in ("", ".")]
    return cache_folder() / "stored" / scheme.lower() / Path(*parts)


def require_place(place: Place) -> None:
    """Raises ValueError, before any work is done, if it is an address that cannot be used here.

    >>> require_place("runs/a")
    """
    if is_address(place):
        Store(str(place))


class Store:
    """The objects below an address, by their names from there.

    Args:
        address: SCHEME://…; the scheme's package (s3fs, gcsfs, …) must be installed, credentials are its own affair.

    Raises:
        ValueError: If it is no address, or no package for it is installed.

    Example:
        >>> store = Store("memory://docs/store")
        >>> store.write("a.txt", b"text")
        >>> store.names(), store.read("a.txt")
        ({'a.txt': 4}, b'text')
        >>> store.remove(["a.txt"])
    """

    def __init__(self, address: str) -> None:
        if not is_address(address):
            raise ValueError(f"{address} is no address: give one such as s3://BUCKET/NAME")
        self.address, self.folder = address.rstrip("/"), local(address)
        scheme = address.partition("://")[0].lower()
        self._fs, self._root = _connect(self.address, scheme)
        self._at_once = scheme in AT_ONCE

    def listed(self) -> dict[str, tuple[int, str]]:
        """Every object: its size, and what tells this version from another. That of the address itself is ""."""
        with self._asking("list"):
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True)
        named = {path[len(self._root) :].lstrip("/"): about for path, about in found.items()}
        return {name: (int(about.get("size") or 0), _version(about)) for name, about in sorted(named.items())}

    def names(self) -> dict[str, int]:
        """The sizes of all objects that are whole and not hidden, by name."""
        return {name: size for name, (size, _) in self.listed().items() if not _hidden(name) or name == ".run-id"}

    def has(self, name: str) -> bool:
        """Whether there is an object of this name, or one below it."""
        with self._asking("find", name):
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(name)))

    def read(self, name: str, most: int = JSON) -> bytes | None:
        """What a small object holds; None where there is none."""
        with self._asking("read", name):
            self._fs.invalidate_cache()
            try:
                with self._fs.open(self._path(name), "rb") as stream:
                    data = stream.read(allowed(most) + 1)
            except (FileNotFoundError, IsADirectoryError):
                return None
        if len(data) > allowed(most):
            raise ValueError(f"{self.address}/{name} is larger than the {allowed(most):,} bytes that are allowed")
        return data

    def get(self, name: str, path: Path, size: int) -> None:
        """Copies the object, which was listed with this size, to `path`: whole, or not at all."""
        left = size
        with new_file(path) as file, self._asking("read", name):
            with self._fs.open(self._path(name), "rb") as stream:
                while piece := stream.read(min(PIECE, left + 1)):
                    left -= len(piece)
                    if left < 0:
                        break
                    file.write(piece)
            if left:
                raise Unreachable(f"{self.address}/{name} has changed while it was read: start again")

    def write(self, name: str, data: bytes) -> None:
        """Puts a small object there."""
        with self._asking("write", name), self._named(name) as path:
            self._fs.pipe_file(path, data)

    def put(self, name: str, file: Path) -> None:
        """Puts a file there."""
        with self._asking("write", name), self._named(name) as path:
            self._fs.put_file(str(file), path)

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects, one by one in this order; those that are gone are no error."""
        for name in names:
            with self._asking("remove", name), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    @contextmanager
    def _named(self, name: str) -> Iterator[str]:
        path = self._path(name)
        if self._at_once:
            yield path
            return
        parent = path.rpartition("/")[0]
        self._fs.makedirs(parent, exist_ok=True)
        partial = f"{parent}/{random_name(path.rpartition('/')[2])}"
        yield partial
        self._fs.mv(partial, path)

    @contextmanager
    def _asking(self, what: str, name: str = "") -> Iterator[None]:
        """The errors of packages have no common base."""
        try:
            yield
        except Unreachable:
            raise
        except Exception as error:
            place = f"{self.address}/{name}".rstrip("/")
            raise Unreachable(f"cannot {what} {place}: {one_line(error)}") from None


class Owner:
    """Within it, this process says every few seconds that it is the one that writes below an address.

    Another one that starts meanwhile watches these signs of life: if they go on it is a ValueError, if they stop it
    takes over, and the first, should it come back, finds that out before it publishes again (`require`). Between that
    look and what is then written nothing is atomic: it is advice, as object stores have no locks. Who owns the same
    working copy is dead, as whoever enters holds its `Lock`.

    >>> with Owner(Store("memory://docs/owned")) as owner:
    ...     owner.require()
    """

    def __init__(self, store: Store) -> None:
        self.store, self._token, self._stop = store, secrets.token_hex(8), threading.Event()
        self._about = {"token": self._token, "place": _place_id(), "host": platform.node(), "process": os.getpid()}
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> Owner:
        self._watch()
        self._sign()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(ValueError):  # what it would say was said, or does not matter any more
            if self._other() is None:
                self.store.remove([OWNER])

    def require(self) -> None:
        """Raises ValueError if another process has taken over."""
        if (other := self._other()) is not None:
            raise ValueError(f"{self.store.address} was taken over by {_who(other)}: this one stops publishing to it")

    def _other(self) -> dict[str, Any] | None:
        about = _record(self.store.read(OWNER))
        return None if about is None or about.get("token") == self._token else about

    def _sign(self) -> None:
        self.store.write(OWNER, (json.dumps({**self._about, "time": time.time()}) + "\n").encode())

    def _live(self) -> None:
        while not self._stop.wait(BEAT):
            with suppress(Unreachable):
                if self._other() is not None:
                    return
                self._sign()

    def _watch(self) -> None:
        seen = self.store.read(OWNER)
        about, until = _record(seen), time.monotonic() + STALE
        if about is None or about.get("place") == self._about["place"]:
            return
        logger.info(f"{self.store.address} has an owner, {_who(about)}: waiting up to {STALE:.0f} s for a sign of life")
        while time.monotonic() < until:
            time.sleep(min(1.0, BEAT / 4, STALE / 4))
            now = self.store.read(OWNER)
            if now is None:
                return
            if now != seen:
                raise ValueError(
                    f"{self.store.address} is in use by {_who(_record(now) or about)}: wait for it, or choose another "
                    "--out"
                )
        logger.warning(f"{_who(about)} has not been heard of for {STALE:.0f} s: taking over {self.store.address}")


def fetch(address: str) -> Path:
    """The file or folder of data at an address, on this machine: fetched once for every version of it.

    >>> Store("memory://docs/notes.txt").write("", b"text")
    >>> fetch("memory://docs/notes.txt").read_text()
    'text'
    """
    store = Store(address)
    files = {name: about for name, about in store.listed().items() if not _hidden(name)}
    if not files:
        raise ValueError(f"there is nothing at {address}: give a file or a folder")
    if len(files) > allowed(FILES):
        raise ValueError(f"{address} holds {len(files):,} files, more than the {allowed(FILES):,} that are allowed")
    for name in files:
        require_name(name, address)
    key = hashlib.sha256(json.dumps([store.address, *files.items()]).encode()).hexdigest()[:16]
    folder = cache_folder() / "fetched" / key
    final, whole = folder / store.folder.name, folder / ".whole"
    sizes = {final / name if name else final: (name, size) for name, (size, _) in files.items()}

    def missing() -> dict[Path, tuple[str, int]]:
        return {path: one for path, one in sizes.items() if not path.is_file() or path.stat().st_size != one[1]}

    if whole.is_file() and not missing():
        return final
    with Lock(folder, waiting=f"another process fetches {address}: waiting for it"):
        left = missing()
        total, free = sum(size for _, size in left.values()), shutil.disk_usage(folder).free
        if total > free:
            raise ValueError(
                f"{address} takes {total / 1e6:,.1f} MB and {folder.parent} has {free / 1e6:,.1f} MB free: make room "
                "or set JOFORMER_CACHE"
            )
        if left:
            logger.info(f"fetching {len(left):,} files, {total / 1e6:,.1f} MB, from {address}")
        with Progress("fetching", max(1, total), unit="bytes") as progress:
            done = 0
            for path, (name, size) in left.items():
                store.get(name, path, size)
                done += size
                progress.update(done)
        whole.touch()
    return final


def require_name(name: str, address: str) -> None:
    """Raises ValueError where the name of an object would lead out of the folder it is copied to.

    >>> require_name("a/../../b", "s3://bucket")
    Traceback (most recent call last):
    ValueError: s3://bucket has an object called 'a/../../b', which cannot be the name of a file: rename it
    """
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name or ":" in name[1:2]:
        raise ValueError(f"{address} has an object called {name!r}, which cannot be the name of a file: rename it")


def _connect(address: str, scheme: str) -> tuple[Any, str]:
    try:
        import fsspec
        from fsspec.registry import known_implementations as known
    except ImportError:
        raise ValueError(f"{address} needs fsspec: pip install fsspec") from None
    try:
        fs, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        package = str(known.get(scheme, {}).get("class", scheme)).partition(".")[0]
        if package == "fsspec":
            package = str(getattr(error.__cause__, "name", None) or package)
        raise ValueError(f"{scheme}:// needs {package}, which is not installed: pip install {package}") from None
    except Exception as error:
        if "not known" in str(error):
            raise ValueError(f"fsspec knows no {scheme}://: give another address, such as s3://BUCKET/NAME") from None
        raise Unreachable(f"cannot use {address}: {one_line(error)}") from None
    return fs, root


def _version(about: dict[str, Any]) -> str:
    keys = ("ETag", "etag", "md5Hash", "md5", "crc32c", "mtime", "LastModified", "last_modified", "updated", "created")
    return next((str(about[key]) for key in keys if about.get(key)), "")


def _hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def _record(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _who(about: dict[str, Any]) -> str:
    return f"process {str(about.get('process'))[:20]} on {str(about.get('host'))[:60]}"


def _place_id() -> str:
    """What tells the working copies of this machine from those of others, whatever the machines are called."""
    path = cache_folder() / "stored" / ".place"
    if not path.is_file():
        with new_file(path) as file:
            file.write(secrets.token_hex(16).encode())
    return path.read_text()
