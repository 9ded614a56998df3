"""A source of labelled examples, opened: by name or by path, files or tables, both splits.

Where there is no labelled test split, a tenth of each class is held out, the same tenth always. What is damaged,
missing or ambiguous is one line naming the file or the row; nothing is passed over in silence.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from joformer._log import logger
from joformer.training.data.folders import open_files
from joformer.training.data.records import Files, Kind, Records, Rows, hold_out
from joformer.training.data.sources import (
    content_hash,
    files_under,
    hub,
    hub_folders,
    hub_identity,
    is_hub,
    require_path,
)
from joformer.training.data.tables import Split, open_rows, parquet_splits


class Found(NamedTuple):
    """Where a source is: at a path, with all files there, or in tables of the hub by split."""

    path: Path | None
    files: list[Path]
    tables: Any


def find(source: str | os.PathLike[str]) -> Found:
    """What a name or a path leads to; nothing is opened yet.

    >>> find("nowhere/pictures")
    Traceback (most recent call last):
    ValueError: nowhere/pictures does not exist: give a file or a folder
    """
    if is_hub(source):
        return Found(None, [], hub(str(source)))
    path = require_path(source)
    return Found(path, [path] if path.is_file() else files_under(path), None)


def identity(found: Found, *, read: bool = True) -> str:
    """What tells this data from any other: files' names and what they hold.

    With `read=False`, for what is too large to read first: names and sizes of all, and the content of a thousand files
    spread evenly over them.

    >>> identity(find(__file__)) == identity(find(__file__)), identity(find(__file__)) == identity(find(os.__file__))
    (True, False)
    """
    if found.path is None:
        return content_hash(
            *(part for name in sorted(found.tables) for part in (name, hub_identity(found.tables[name])))
        )
    start = len(str(found.path))
    names = [str(file)[start:].replace(os.sep, "/") for file in found.files]
    if read:
        return content_hash(*(part for pair in zip(names, found.files, strict=True) for part in pair))
    sizes = repr([(name, os.stat(file).st_size) for name, file in zip(names, found.files, strict=True)])
    return content_hash(sizes, *found.files[:: max(len(found.files) // 1000, 1)])


def open_records(found: Found, kind: Kind, *, label: str | None, folder: Path) -> Records:
    """Both splits of what `find` found. Rows of parquet files are copied into `folder`, where they can be mapped.

    >>> from tempfile import TemporaryDirectory
    >>> from joformer.training.data.records import CLIPS
    >>> with TemporaryDirectory() as name:
    ...     for clip in ("yes_1", "yes_2", "no_1"):
    ...         _ = Path(name, f"{clip}.wav").write_bytes(clip.encode())
    ...     records = open_records(find(name), CLIPS, label=None, folder=Path(name, "rows"))
    ...     records.classes, records.train.read(0), records.train.labels
    (('no', 'yes'), b'no_1', tensor([0, 1]))
    """
    train: Files | Rows
    test: Files | Rows | None
    if found.path is None:
        tables: dict[str, Split] = {name: (table, ()) for name, table in found.tables.items()}
        train, test, classes = open_rows(tables, kind, label, folder, hub_folders())
    elif parquet := [file for file in found.files if file.suffix.lower() == ".parquet"]:
        media = next((file for file in found.files if file.suffix.lower() in kind.suffixes), None)
        if media is not None:
            raise ValueError(
                f"{found.path} holds both {parquet[0].name} and {media.name}: keep one kind of source in a folder"
            )
        inside = os.path.realpath(found.path if found.path.is_dir() else found.path.parent)
        train, test, classes = open_rows(parquet_splits(found.path, parquet), kind, label, folder, (inside,))
    elif found.path.is_file():
        raise ValueError(f"{found.path} is no parquet file: give a folder of {kind.word} files, or parquet")
    else:
        train, test, classes = open_files(found.path, list(map(str, found.files)), kind)
    if test is not None:
        return Records(train, test, classes)
    kept, held = hold_out(train.labels)
    logger.info(
        f"no test split with labels: {len(held):,} of {len(train):,} examples are held out, the same ones always"
    )
    return Records(train.take(kept), train.take(held), classes)
