"""Labelled examples as rows: of parquet files, or of a data set of the hub.

train-0.parquet  …              struct{bytes, path} or binary, and a column of labels
"mnist"  "hub:owner/name"       through `datasets`
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from joformer.training.data.captions import text_columns
from joformer.training.data.files import Fault, open_parquet, read_example, require_inside
from joformer.training.data.sources import WORDS, Note, Source, pick_test, split_of
from joformer.training.data.tables import copy_parquet, pick_column

Parts = tuple[tuple[str, int], ...]  # the files that make up a split: name, rows


@dataclass(frozen=True)
class Rows:
    """One split as rows of a memory-mapped `datasets.Dataset`, which travels to worker processes by its file's name.

    >>> files = (("train-0.parquet", 100), ("train-1.parquet", 100))
    >>> Rows(None, "image", files, torch.arange(200), torch.zeros(200)).name(150)
    'train-1.parquet, row 50'
    """

    table: Any
    column: str
    files: Parts  # where the rows came from: name, count
    rows: Tensor
    labels: Tensor
    folders: tuple[str, ...] = ()  # with what is below them, all that rows may name by path; without links

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """How a person finds the example: file and row."""
        return _row_name(self.files, int(self.rows[index]))

    def read(self, index: int) -> bytes:
        """The encoded example."""
        cell = self.table[int(self.rows[index])].column(self.column)[0].as_py()
        held = cell if isinstance(cell, dict) else {"bytes": cell}
        if held["bytes"] is not None:
            return held["bytes"]
        path, where = held.get("path"), f"{self.name(index)}: "
        if not isinstance(path, str) or not path:
            raise ValueError(f"{where}{self.column} is missing: fill it or remove the row")
        beside = os.path.dirname(_row_place(self.files, int(self.rows[index]))[0])
        place = require_inside(os.path.join(beside, path), self.folders, f"{where}{self.column} names {path!r}")
        return read_example(place, where)

    def take(self, rows: Tensor) -> Rows:
        """The examples of these numbers, in this order."""
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])


def parquet_splits(found: Path, files: list[Path]) -> dict[str, Parts]:
    """The files of each split; a file alone is the training split."""
    splits: dict[str, Parts] = {}
    for file in files:
        split = (split_of(file.relative_to(found)) or "") if found.is_dir() else "train"
        splits[split] = (*splits.get(split, ()), (str(file), open_parquet(file).metadata.num_rows))
    if "" in splits and len(splits) > 1:
        raise ValueError(f"{splits[''][0][0]} belongs to no split: name it train-… or test-…, or move it")
    return {split or "train": parts for split, parts in splits.items()}


class _Table(NamedTuple):
    """One split: its rows, the names of the columns of examples and of labels, and the files it is made of."""

    rows: Any
    data: str
    label: str
    files: Parts

    @property
    def held(self) -> Any:
        """The labels, as they are in the table."""
        return self.rows.data.column(self.label)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes, where the table has them; a file may hold anything there."""
        return tuple(map(str, getattr(self.rows.features[self.label], "names", None) or ()))


def open_rows(
    source: Source, splits: dict[str, Parts], folder: Path, folders: tuple[str, ...], notes: list[Note], fault: Fault
) -> tuple[Rows, Rows | None, tuple[str, ...]]:
    """Both splits; rows that name a file instead of holding its bytes may name one below `folders`."""
    import pyarrow.compute as pc

    if "train" not in splits:
        raise ValueError(f"there are splits {', '.join(splits)} but no train split: name the training split train")

    @cache
    def table_of(name: str) -> _Table:
        files = tuple((path, rows) for path, rows in splits[name] if rows)
        if not files:
            raise ValueError(f"{splits[name][0][0]} holds no rows: the {name} split needs at least one")
        first, table = files[0][0], None if source.path else source.tables[name]
        schema = open_parquet(first).schema_arrow if table is None else table.features.arrow_schema
        columns = _columns(schema, source, first)
        table = copy_parquet(files, columns, folder / name) if table is None else table
        return _Table(table.with_format("arrow"), *columns, files)

    def is_labelled(name: str) -> bool:
        held = table_of(name).held
        is_number = str(held.type).startswith(("int", "uint"))
        return held.null_count < len(held) and (not is_number or pc.max(held).as_py() >= 0)

    def rows_of(name: str, known: tuple[str, ...]) -> tuple[Rows, tuple[str, ...]]:
        table, train = table_of(name), table_of("train")
        if table.names != train.names:
            raise ValueError(f"{table.files[0][0]} has classes in {table.label} unlike those of {train.files[0][0]}")
        classes, labels = _numbered(table, known, fault)
        right = (labels >= 0).nonzero().squeeze(1)
        return Rows(table.rows, table.data, table.files, right, labels[right], folders), classes

    train, classes = rows_of("train", ())
    test = pick_test(splits, is_labelled, notes)
    return train, rows_of(test, classes)[0] if test else None, classes


def _columns(schema: Any, source: Source, where: str) -> tuple[str, str]:
    """Which column holds the examples and which the labels, by name and type."""
    from pyarrow import types

    data = data_column(schema, source.kind, where)
    numbers = _of(schema, types.is_integer)
    return data, pick_column(where, "label", source.label, numbers + text_columns(schema), sole=numbers)


def data_column(schema: Any, kind: str, where: str) -> str:
    """The one column of a table that holds encoded examples."""
    from pyarrow import types

    structs = [n for n in _of(schema, types.is_struct) if schema.field(n).type.get_field_index("bytes") >= 0]
    data = structs or _of(schema, types.is_binary, types.is_large_binary)
    if len(data) != 1:
        found = f"the columns {', '.join(data)}" if data else f"none in {', '.join(schema.names)}"
        raise ValueError(f"{where} should have one column of {WORDS[kind]} bytes and has {found}")
    return data[0]


def _of(schema: Any, *tests: Callable[[Any], bool]) -> list[str]:
    """The columns of these types."""
    return [field.name for field in schema if any(test(field.type) for test in tests)]


def _numbered(table: _Table, known: tuple[str, ...], fault: Fault) -> tuple[tuple[str, ...], Tensor]:
    """Classes and int64 labels of a split, −1 where they are faulty; `known` are the classes of the training split."""
    import pyarrow
    import pyarrow.compute as pc

    held, names = table.held, table.names
    faulty: set[int] = set()

    def report(wrong: Any, why: str) -> None:
        for row in sorted({*pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist()} - faulty):
            faulty.add(row)
            fault(f"{_row_name(table.files, row)}: {table.label} {why.format(held[row].as_py())}")

    report(pc.is_null(held), "is missing: fill it or remove the row")
    unknown = "a class that the training split does not have: add examples of it there"
    if pyarrow.types.is_integer(held.type):
        numbers, classes = held, names or known
        report(pc.less(held, 0), "is {}: labels count from 0")
        why = f"is {{}}, {f'beyond the {len(names)} classes that are named' if names else unknown}"
        many = f"is {{}} among {len(held)} examples: labels count the classes from 0"
        report(pc.greater_equal(held, len(classes or held)), why if classes else many)
    else:
        classes = known or tuple(sorted(pc.unique(held.drop_null()).to_pylist()))
        numbers = pc.index_in(held, value_set=pyarrow.array(classes, type=held.type))
        report(pc.is_null(numbers), f"is {{!r}}, {unknown}")
    labels = torch.tensor(pc.fill_null(pc.cast(numbers, "int64", safe=False), -1).to_numpy()).long()
    labels[sorted(faulty)] = -1
    return classes or tuple(map(str, range(int(labels.max()) + 1))), labels


def _row_place(files: Parts, row: int) -> tuple[str, int]:
    """The file in which a row is, and its number there."""
    for name, count in files:
        if row < count:
            return name, row
        row -= count
    raise IndexError(row)


def _row_name(files: Parts, row: int) -> str:
    return "{}, row {}".format(*_row_place(files, row))
