"""Examples as rows of parquet files, or of a data set of the hub.

file.parquet  folder/…/train-0.parquet  …           struct{bytes, path} or binary, and a column of labels
"mnist"  "hub:owner/name"                           through `datasets`
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joformer._io import new_file, one_line
from joformer.training.data.records import TESTS, Kind, Rows, pick_test, row_name
from joformer.training.data.sources import Expansion, content_hash, open_parquet

ROWS = 64  # copied at a time
Split = tuple[Any, tuple[tuple[str, int], ...]]  # a Dataset, or the paths of its parquet files; (name, rows) of each


def parquet_splits(found: Path, files: list[Path]) -> dict[str, Split]:
    """The files of each split; a file alone is the training split."""
    named: dict[str, str | None] = {}
    for file in files:
        words = [word for part in file.relative_to(found).parts[::-1] for word in re.split("[^a-z]+", part.lower())]
        named[str(file)] = (
            None if found.is_file() else next((word for word in words if word in ("train", *TESTS)), None)
        )
    nameless = next((name for name, split in named.items() if split is None), None)
    if nameless and any(named.values()):
        raise ValueError(f"{nameless} belongs to no split: name it train-… or test-…, or move it away")
    splits: dict[str, Split] = {}
    for name, split in named.items():
        rows = open_parquet(name).metadata.num_rows
        paths, counts = splits.get(split or "train", ([], ()))
        splits[split or "train"] = ([*paths, name], (*counts, (name, rows)))
    return splits


def open_rows(
    splits: dict[str, Split], kind: Kind, label: str | None, folder: Path, folders: tuple[str, ...]
) -> tuple[Rows, Rows | None, tuple[str, ...]]:
    """Both splits; rows that name a file instead of holding its bytes may name one below `folders`."""
    if "train" not in splits:
        raise ValueError(f"there are the splits {', '.join(splits)} but no train split: name the training split train")
    opened: dict[str, tuple[Any, str, str, Any]] = {}

    def open_split(name: str) -> tuple[Any, str, str, Any]:
        """The table, its columns of data and of labels, and the labels themselves."""
        if name not in opened:
            table, files = splits[name]
            files = files or ((f"the hub's {name} split", len(table)),)
            if not sum(rows for _, rows in files):
                raise ValueError(f"{files[0][0]} holds no rows: the {name} split needs at least one")
            if isinstance(table, list):
                files = tuple((path, rows) for path, rows in files if rows)
                table, columns = _copy(files, kind, label, folder / name)
            else:
                columns = _columns(table.features.arrow_schema, kind, label, files[0][0])
            splits[name] = (table, files)
            opened[name] = (table.with_format("arrow"), *columns, table.data.column(columns[1]))
        return opened[name]

    def labelled(name: str) -> bool:
        import pyarrow.compute as pc

        labels = open_split(name)[3]
        is_number = str(labels.type).startswith(("int", "uint"))
        return labels.null_count < len(labels) and (not is_number or pc.max(labels).as_py() >= 0)

    table, data, column, held = open_split("train")
    feature = table.features[column]
    classes, train = _numbered(held, getattr(feature, "names", None), None, splits["train"][1], column)
    rows = Rows(table, data, splits["train"][1], torch.arange(len(train)), train, folders)
    test = pick_test(splits, labelled)
    if test is None:
        return rows, None, classes
    table, data, column, held = open_split(test)
    if getattr(table.features[column], "names", None) != getattr(feature, "names", None):
        raise ValueError(f"{splits[test][1][0][0]} names other classes in {column} than {splits['train'][1][0][0]}")
    _, labels = _numbered(held, getattr(feature, "names", None), classes, splits[test][1], column)
    return rows, Rows(table, data, splits[test][1], torch.arange(len(labels)), labels, folders), classes


def _copy(
    files: tuple[tuple[str, int], ...], kind: Kind, label: str | None, folder: Path
) -> tuple[Any, tuple[str, str]]:
    """The two columns of these parquet files as a memory-mapped `datasets.Dataset` kept in the folder."""
    import datasets
    import pyarrow

    paths = [path for path, _ in files]
    schemas = [open_parquet(path).schema_arrow for path in paths]
    columns = _columns(schemas[0], kind, label, paths[0])
    for path, schema in zip(paths, schemas, strict=True):
        for name in columns:
            if name not in schema.names or schema.field(name).type != schemas[0].field(name).type:
                raise ValueError(f"{path} has no column {name} of the type it has in {paths[0]}: keep them alike")
    schema = pyarrow.schema([schemas[0].field(name).with_nullable(True) for name in columns], schemas[0].metadata)
    stats = [(path, (about := os.stat(path)).st_size, about.st_mtime_ns) for path in paths]
    place, reason = folder / f"rows-{content_hash(repr((columns, stats)))[:32]}.arrow", "rows are missing"
    for _ in range(2):
        if not place.is_file():
            _write_rows(paths, schema, place)
        try:
            table = datasets.Dataset.from_file(str(place))
            if len(table) == sum(rows for _, rows in files):
                return table, columns
        except Exception as error:  # `datasets` believes what a file says of its features, and fails in many ways
            reason = one_line(error)
        place.unlink(missing_ok=True)  # a copy made before may be damaged: it is made again
    raise ValueError(f"{paths[0]} cannot be read from its copy in {folder} ({reason}): fetch it again, or make room")


def _write_rows(paths: list[str], schema: Any, place: Path) -> None:
    """The columns of this schema, of all files, as one Arrow file: whole or not at all, and of a bounded size."""
    import pyarrow

    with new_file(place, f"cannot copy {paths[0]} into {place.parent}") as file:
        try:
            with pyarrow.ipc.new_stream(file, schema) as rows:
                for path in paths:
                    held = Expansion(path)  # a few bytes may stand for very many rows
                    for batch in open_parquet(path).iter_batches(ROWS, columns=schema.names):
                        held.add(batch.nbytes)
                        columns = [batch.column(name) for name in schema.names]
                        rows.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
        except (OSError, pyarrow.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise ValueError(f"{path} is damaged ({one_line(error)}): fetch it again") from None


def _columns(schema: Any, kind: Kind, label: str | None, where: str) -> tuple[str, str]:
    """Which column holds the examples and which the labels, by name and type."""
    from pyarrow import types

    def of(*tests: Callable[[Any], bool]) -> list[str]:
        return [field.name for field in schema if any(test(field.type) for test in tests)]

    structs = [n for n in of(types.is_struct) if schema.field(n).type.get_field_index("bytes") >= 0]
    data = structs or of(types.is_binary, types.is_large_binary)
    if len(data) != 1:
        found = f"the columns {', '.join(data)}" if data else f"none in {', '.join(schema.names)}"
        raise ValueError(f"{where} should have one column of {kind.word} bytes and has {found}")
    numbers, words = of(types.is_integer), of(types.is_string, types.is_large_string)
    if label is not None:
        if label in numbers or label in words:
            return data[0], label
        raise ValueError(
            f"{where} has no labels in {label!r}: give label= one of {', '.join(numbers + words) or 'none'}"
        )
    for name in ("label", "fine_label"):
        if name in numbers or name in words:
            return data[0], name
    if len(numbers) != 1:
        found = ", ".join(numbers or schema.names)
        raise ValueError(f"{where} does not tell which column holds the labels: give label= one of {found}")
    return data[0], numbers[0]


def _numbered(
    held: Any, names: list[str] | None, known: tuple[str, ...] | None, files: tuple[tuple[str, int], ...], column: str
) -> tuple[tuple[str, ...], Tensor]:
    """Classes and int64 labels of a column; `known` are the classes of the training split."""
    import pyarrow
    import pyarrow.compute as pc

    def refuse(wrong: Any, why: str) -> None:
        row = pc.index(wrong, True).as_py()
        if row >= 0:
            raise ValueError(f"{row_name(files, row)}: {column} {why.format(held[row].as_py())}")

    refuse(pc.is_null(held), "is missing: fill it or take the row out")
    if not pyarrow.types.is_integer(held.type):
        classes = known or tuple(sorted(pc.unique(held).to_pylist()))
        numbers = pc.index_in(held, value_set=pyarrow.array(classes, type=held.type))
        refuse(pc.is_null(numbers), "is {!r}, a class unknown to the training split: add examples of it there")
        return classes, torch.tensor(numbers.to_numpy()).long()
    refuse(pc.less(held, 0), "is {}: labels count from 0")
    if names:
        refuse(pc.greater_equal(held, len(names)), f"is {{}}, beyond the {len(names)} classes that are named")
    elif known:
        refuse(
            pc.greater_equal(held, len(known)), "is {}, a class unknown to the training split: add examples of it there"
        )
    else:
        refuse(
            pc.greater_equal(held, len(held)), f"is {{}} among {len(held)} examples: labels count the classes from 0"
        )
    classes = known or tuple(names or map(str, range(pc.max(held).as_py() + 1)))
    return classes, torch.tensor(held.to_numpy()).long()
