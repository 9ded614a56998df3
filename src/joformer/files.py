"""Files that are written whole or not at all, and one-line errors where they cannot be."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def make_folder(path: Path) -> None:
    """The folder and those above it, or one line saying why not.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     make_folder(Path(folder) / "a" / "b")
    ...     (Path(folder) / "a" / "b").is_dir()
    True
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
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
