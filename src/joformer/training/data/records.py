"""Labelled examples that stay encoded where they are until they are asked for, as files or as rows of a table.

A split is `Files` or `Rows`: how many, their labels, how a person finds one of them, and its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from joformer import _io as files
from joformer._log import logger
from joformer._seeding import generator

TESTS = ("test", "validation", "valid", "val")  # the first of these that has labels is the test split
EXAMPLE = 1 << 28  # bytes of one encoded image or clip: nobody's are larger


class Kind(NamedTuple):
    """What the files hold: the word for one of them, their suffixes, whether a file's name can give its class.

    >>> CLIPS.word, CLIPS.by_name
    ('wav', True)
    """

    word: str
    suffixes: tuple[str, ...]
    by_name: bool = False


IMAGES = Kind("image", (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
CLIPS = Kind("wav", (".wav", ".wave"), by_name=True)


@dataclass(frozen=True)
class Files:
    """One split as files: `paths` are bytes in one NumPy array, which worker processes share.

    >>> Files([b"cat/1.png"], torch.tensor([0])).name(0)
    'cat/1.png'
    """

    paths: Any
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """How a person finds the example: its path."""
        return os.fsdecode(self.paths[index])

    def read(self, index: int) -> bytes:
        """The encoded example."""
        return read_file(self.name(index))

    def take(self, rows: Tensor) -> Files:
        """The examples of these numbers, in this order."""
        return Files(self.paths[rows.numpy()], self.labels[rows])


@dataclass(frozen=True)
class Rows:
    """One split as rows of a memory-mapped `datasets.Dataset`, which travels to worker processes by its file's name.

    >>> files = (("train-0.parquet", 100), ("train-1.parquet", 100))
    >>> Rows(None, "image", files, torch.arange(200), torch.zeros(200)).name(150)
    'train-1.parquet, row 50'
    """

    table: Any
    column: str
    files: tuple[tuple[str, int], ...]  # where the rows came from: name, count
    rows: Tensor
    labels: Tensor
    folders: tuple[str, ...] = ()  # with what is below them, all that rows may name by path; without links

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """How a person finds the example: file and row."""
        return row_name(self.files, int(self.rows[index]))

    def read(self, index: int) -> bytes:
        """The encoded example."""
        cell = self.table[int(self.rows[index])].column(self.column)[0].as_py()
        held = cell if isinstance(cell, dict) else {"bytes": cell}
        if held["bytes"] is not None:
            return held["bytes"]
        path = held.get("path")
        if not isinstance(path, str) or not path:
            raise ValueError(f"{self.name(index)}: {self.column} is missing: fill it or take the row out")
        return read_file(self._place(index, path), f"{self.name(index)}: ")

    def _place(self, index: int, path: str) -> str:
        """Where a row's path leads, from its table's folder: a row could name any file of this machine."""
        table = row_place(self.files, int(self.rows[index]))[0]
        try:
            place = os.path.realpath(os.path.join(os.path.dirname(table), path))
        except (OSError, ValueError) as error:  # ValueError: a null byte
            raise ValueError(f"{self.name(index)}: {self.column} names {path!r}: {files.one_line(error)}") from None
        if not any(place.startswith(os.path.join(folder, "")) for folder in self.folders):
            raise ValueError(
                f"{self.name(index)}: {self.column} names {path!r}, outside of the data's folder: "
                "put the file into it, or its bytes into the row"
            )
        return place

    def take(self, rows: Tensor) -> Rows:
        """The examples of these numbers, in this order."""
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])


class Records(NamedTuple):
    """A source, opened: both splits and the names of the classes."""

    train: Files | Rows
    test: Files | Rows
    classes: tuple[str, ...]


def hold_out(labels: Int64[Tensor, " n"], share: float = 0.1) -> tuple[Tensor, Tensor]:
    """Which examples train and which test, in order: `share` of each class as nearly as it goes, the same always.

    No class loses its last example to the test.

    >>> train, test = hold_out(torch.tensor([0, 0, 0, 1, 1, 1]), share=0.34)
    >>> len(train), sorted(torch.tensor([0, 0, 0, 1, 1, 1])[test].tolist())
    (4, [0, 1])
    """
    shuffled = torch.randperm(len(labels), generator=generator("held out", len(labels)))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    ordered = labels[by_class]
    spare = by_class[1:][ordered[1:] == ordered[:-1]]  # the first of each class always trains
    count = min(len(spare), max(1, round(share * len(labels))))
    if not count:
        raise ValueError(f"{len(labels)} examples, each of its own class, leave none to test with: add a test split")
    held = spare[((torch.arange(count, dtype=torch.float64) + 0.5) * len(spare) / count).long()].sort().values
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[held] = False
    return kept.nonzero().squeeze(1), held


def read_file(path: str, where: str = "") -> bytes:
    """The bytes of an example; ValueError in one line where it cannot be read."""
    try:
        return files.read_file(path, EXAMPLE)
    except OSError as error:
        raise ValueError(f"{where}cannot read {path}: {files.one_line(error)}") from None


def row_place(files: tuple[tuple[str, int], ...], row: int) -> tuple[str, int]:
    """The file in which a row is, and its number there."""
    for name, count in files:
        if row < count:
            return name, row
        row -= count
    raise IndexError(row)


def row_name(files: tuple[tuple[str, int], ...], row: int) -> str:
    """A row of several files, named for an error."""
    name, number = row_place(files, row)
    return f"{name}, row {number}"


def pick_test(present: Iterable[str], labelled: Callable[[str], bool]) -> str | None:
    """The test split among those present; those passed over are logged."""
    chosen = None
    for name in sorted(set(present) - {"train"}, key=lambda name: (*TESTS, name).index(name)):
        if chosen is None and name in TESTS and labelled(name):
            chosen = name
        else:
            logger.warning(
                f"the {name} split is left aside" + ("" if chosen else ": it has no labels" * (name in TESTS))
            )
    return chosen
