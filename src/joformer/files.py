"""Files that are written whole or not at all, one-line errors where they cannot be, and checksums of what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
"""The checksums of all files of a finished run, and of itself."""


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
        raise ValueError(f"cannot write into {path}: {error.strerror}; give a directory you may write to") from None


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
    make_folder(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        synchronise(path.parent)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; make room or choose another place") from None
    finally:
        partial.unlink(missing_ok=True)


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
    with path.open("rb") as file:
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
        raw = path.read_bytes()
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
