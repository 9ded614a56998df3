"""Labelled examples that stay encoded where they are until they are read: files, or rows of tables.

    folder/cat/1.png                                a class is a folder …
    folder/train/cat/1.png  folder/test/cat/2.png   … in each split
    folder/7_jackson_0.wav                          sounds only: the class stands before the first underscore
    labels.csv: file,label[,split]                  a table (CSV, TSV, JSON lines) that lists files below its folder
    train-0.parquet  "mnist"  "hub:owner/name"      struct{bytes, path} or binary, and a column of labels

The first split of test, validation, valid, val that has labels is the test split; where there is none, a tenth of each
class is held out, the same tenth always. Whatever is decided here is a note; what is damaged, missing or ambiguous is a
fault: one line naming the file or the row.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from joformer import _io
from joformer._seeding import generator
from joformer.training.data.files import ASIDE, Fault, content_hash, fault, open_parquet, suffix_of
from joformer.training.data.hub import hub_folders, hub_identity
from joformer.training.data.sources import FILE, SPLITS, SUFFIXES, UNREAD, Note, Source, split_of
from joformer.training.data.tables import copy_parquet, is_parquet, pick_column, read_rows

TESTS = ("test", "validation", "valid", "val")  # the first of these that has labels is the test split
EXAMPLE = 1 << 28  # bytes of one encoded image or clip: nobody's are larger
WORDS = {"images": "image", "sounds": "sound"}
Parts = tuple[tuple[str, int], ...]  # the files that make up a split: name, rows


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
        return _read(self.name(index))

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
            raise ValueError(f"{where}{self.column} is missing: fill it or take the row out")
        beside = os.path.dirname(_row_place(self.files, int(self.rows[index]))[0])
        place = _inside(os.path.join(beside, path), self.folders, f"{where}{self.column} names {path!r}")
        return _read(place, where)

    def take(self, rows: Tensor) -> Rows:
        """The examples of these numbers, in this order."""
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])


Split = Files | Rows
Opened = tuple[Split, Split | None, tuple[str, ...]]  # training and test split, and the names of the classes
Classes = dict[str, str]  # of files: path → class


class Records(NamedTuple):
    """A source, opened: both splits, the names of the classes, and what was decided."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    notes: tuple[Note, ...] = ()


def identity(source: Source, *, read: bool = True) -> str:
    """What tells this data from any other: files' names and what they hold.

    With `read=False`, for what is too large to read first: names and sizes of all, and the content of a thousand files
    spread evenly over them.

    >>> from joformer.training.data.sources import resolve
    >>> len({identity(resolve(path, kind="images")) for path in (__file__, __file__, os.__file__)})
    2
    """
    if source.path is None:
        tables = {name: hub_identity(table) for name, table in sorted(source.tables.items())}
        return content_hash(*itertools.chain(*tables.items()))
    files, start = list(source.files), len(str(source.path))
    if source.path.is_file() and source.listing:  # and what it lists
        files += [Path(name) for examples in _listings(source, fault).values() for name in examples]
        start = len(str(source.path.parent))
    names = [str(file)[start:].replace(os.sep, "/") for file in files]
    if read:
        return content_hash(*(part for pair in zip(names, files, strict=True) for part in pair))
    sizes = repr([(name, os.stat(file).st_size) for name, file in zip(names, files, strict=True)])
    return content_hash(sizes, *files[:: max(len(files) // 1000, 1)])


def label_of(source: Source) -> str | None:
    """The label as hashes have it: for class folders "folder" is what None is.

    >>> from joformer.training.data.sources import resolve
    >>> label_of(resolve("mnist", label="folder"))
    """
    return None if source.label == "folder" else source.label


def open_examples(source: Source, folder: Path, fault: Fault = fault) -> Records:
    """Both splits of a source. Rows of parquet files are copied into `folder`, where they can be mapped.

    Args:
        source: What `resolve` returned.
        folder: For copies; it must outlive the records.
        fault: Called with every fault; if it does not raise, what is faulty is left out.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from joformer.training.data.sources import resolve
        >>> with TemporaryDirectory() as name:
        ...     for clip in ("yes_1", "yes_2", "no_1"):
        ...         _ = Path(name, f"{clip}.wav").write_bytes(clip.encode())
        ...     records = open_examples(resolve(name), Path(name, "rows"))
        ...     records.classes, records.train.read(0), records.train.labels
        (('no', 'yes'), b'no_1', tensor([0, 1]))
    """
    notes: list[Note] = []
    parquet = [file for file in source.files if is_parquet(file)]
    if source.path is None:
        splits: dict[str, Parts] = {n: ((f"the hub's {n} split", len(t)),) for n, t in source.tables.items()}
        train, test, classes = _open_rows(source, splits, folder, hub_folders(), notes, fault)
    elif source.listing:
        train, test, classes = _open_listing(source, notes, fault)
    elif parquet:
        media = [file.name for file in source.files if suffix_of(file) in SUFFIXES[source.kind]]
        if media:
            both = f"{parquet[0].name} and {media[0]}"
            raise ValueError(f"{source.path} holds both {both}: keep one kind of source in a folder")
        inside = os.path.realpath(source.path if source.path.is_dir() else source.path.parent)
        splits = _parquet_splits(source.path, parquet)
        train, test, classes = _open_rows(source, splits, folder, (inside,), notes, fault)
    elif source.path.is_file():
        remedy = f"give a folder of {source.kind}, parquet, or a table file,label"
        raise ValueError(f"{source.path} is no parquet file or table: {remedy}")
    else:
        train, test, classes = _open_tree(source, source.path, notes, fault)
    found = train.labels.unique()
    if len(found) < 2:
        only = f"one class, {classes[int(found[0])]!r}" if len(found) else "no examples"
        fault(f"{source.name} holds {only}: there must be two or more; name classes by folders, or a table file,label")
    if test is None:
        kept, held = hold_out(train.labels)
        text = f"no test split with labels: {len(held):,} of {len(train):,} examples are held out, the same ones always"
        notes.append((logging.INFO, text))
        train, test = train.take(kept), train.take(held)
    untested = sorted(set(train.labels.tolist()) - set(test.labels.tolist()))
    if untested:
        few = _few([classes[number] for number in untested])
        notes.append((logging.WARNING, f"too few examples to be tested, accuracy says nothing of them: {few}"))
    return Records(train, test, classes, tuple(notes))


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


# -- files ------------------------------------------------------------------------------------------------------------


def _open_tree(source: Source, folder: Path, notes: list[Note], fault: Fault) -> Opened:
    """Training and test files of a folder of class folders, and the names of the classes."""
    if source.label not in (None, "folder", "name") or (source.label == "name" and source.kind == "images"):
        raise ValueError(f"{folder} holds class folders, which have no column {source.label!r}: leave out --label")
    splits = _tree_splits(source, folder, fault)
    members = {name: _members(source, place) for name, place in splits.items()}
    flat = {name for name, (_, loose) in members.items() if loose and source.kind == "images"}
    test = _pick_test(splits, lambda name: name not in flat, notes)
    if test is None and (left := sorted(flat - {"train", "test"})):
        place, loose = splits[left[0]], members[left[0]][1]
        remedy = f"move each into {place.name}/CLASS, or list all of {folder} in a table file,label,split and give that"
        fault(f"the {len(loose):,} images in {place} have no class folders: {remedy}")
    inside = members["train"][0]
    if source.kind == "sounds" and source.label is None and (prefixes := _other_classes(inside)):
        choice = f"its folders ({_few(sorted(inside))}) or what each name begins with ({_few(sorted(prefixes))})"
        raise ValueError(f"the classes of {splits['train']} may be {choice}: choose by --label folder or --label name")
    train = _examples(source, splits["train"], *members["train"], fault)
    tests = _examples(source, splits[test], *members[test], fault) if test else {}
    around = {folder, *splits.values()}
    other = [file.name for file in source.files if file.parent in around]
    if other := [name for name in other if suffix_of(name) not in SUFFIXES[source.kind]]:
        notes.append((logging.INFO, f"not read, beside the class folders: {_few(other)}"))
    return _numbered_files(train, tests, splits["train"], fault)


def _tree_splits(source: Source, folder: Path, fault: Fault) -> dict[str, Path]:
    """The folders of the splits; the folder itself is the training split where it holds none."""
    inside, loose = _members(source, folder)
    splits = {name.lower(): folder / name for name in inside if name.lower() in SPLITS}
    if "train" not in splits or len(splits) == 1 < len(inside):  # beside other folders alone, "train" is a class
        if splits and len(splits) == len(inside):
            raise ValueError(f"{folder} has {', '.join(inside)} but no train folder: name the training split train")
        return {"train": folder}
    for name in inside:
        if name.lower() not in splits:
            fault(f"{folder / name} is no split beside train: name it one of {', '.join(TESTS)}, or move it away")
    for file in loose:
        fault(f"{file} stands beside the train folder: move it into a class folder of a split")
    return splits


def _members(source: Source, folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Of all files, those in each folder right below this one, and those of this kind that stand in it directly."""
    below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not ASIDE.fullmatch(entry.name))
    inside: dict[str, list[str]] = {name: [] for name in below}
    loose, root = [], os.path.join(folder, "")
    for file in map(str, source.files):
        if file.startswith(root):
            name, deeper, _ = file[len(root) :].partition(os.sep)
            if deeper:
                inside[name].append(file)
            elif file.lower().endswith(SUFFIXES[source.kind]):
                loose.append(file)
    return inside, loose


def _examples(source: Source, folder: Path, inside: dict[str, list[str]], loose: list[str], fault: Fault) -> Classes:
    """All files of one split; other files beside the class folders may stay."""
    word, suffixes = WORDS[source.kind], SUFFIXES[source.kind]
    by_name = source.kind == "sounds" and (source.label == "name" or not inside)
    if by_name:
        inside, loose = {}, loose + list(itertools.chain(*inside.values()))
    if not inside and not (by_name and loose):
        raise ValueError(f"{folder} holds no class folders: put every {word} into a folder named as its class")
    examples = {}
    for path in loose:
        name, underscore, _ = Path(path).stem.partition("_")
        if not by_name:
            fault(f"{path} stands in no class folder: put every {word} into a folder named as its class")
        elif not name or not underscore:
            fault(f"{path} names no class before an underscore: call it class_{Path(path).name}, or use class folders")
        else:
            examples[path] = name
    for name, paths in inside.items():
        if not paths:
            fault(f"the class folder {folder / name} holds no {word} files: fill it or remove it")
        examples |= dict.fromkeys(paths, name)
    for path in [path for path in examples if not path.lower().endswith(suffixes)]:
        remedy = "convert it to wav" if suffix_of(path) in UNREAD else "move it out of the class folder"
        fault(f"{path} is no {word} file ({', '.join(suffixes)}): {remedy}")
        del examples[path]
    return examples


def _other_classes(inside: dict[str, list[str]]) -> set[str]:
    """What the names of the files begin with, where that may give the classes as well as their folders.

    It may where each name repeats its folder after the first word (01/7_01_3.wav), or where all folders have the same
    few first words, each at least four times on average. Names that begin with a speaker's number are neither.
    """
    words = {folder: [Path(path).stem.split("_") for path in paths] for folder, paths in inside.items() if paths}
    first = {folder: {parts[0] for parts in names} for folder, names in words.items()}
    every = set().union(*first.values())
    if len(every) < 2 or every == set(inside) or any(len(parts) < 2 for names in words.values() for parts in names):
        return set()
    repeated = all(folder in parts[1:] for folder, names in words.items() for parts in names)
    alike = all(first[folder] == every and len(names) >= 4 * len(every) for folder, names in words.items())
    return every if repeated or alike else set()


def _open_listing(source: Source, notes: list[Note], fault: Fault) -> Opened:
    """Training and test files that tables list, and the names of the classes."""
    splits = _listings(source, fault)
    if "train" not in splits:
        raise ValueError(f"{source.listing[0]} lists no training examples: name the training split train")
    test = _pick_test(splits, lambda name: True, notes)
    return _numbered_files(splits["train"], splits[test] if test else {}, "the training split", fault)


def _listings(source: Source, fault: Fault) -> dict[str, Classes]:
    """All files that the tables list, by split."""
    found: dict[str, Classes] = {}
    for table in source.listing:
        inside, columns = os.path.realpath(table.parent), ("", "")
        own = (split_of(table.name) or "train") if len(source.listing) > 1 else "train"
        for number, row in enumerate(read_rows(table, fault), 1):
            if number == 1:
                file = next(name for name in FILE if name in row)
                names = [name for name in row if name not in (file, "split")]
                columns = file, pick_column(table, "label", source.label, names)
            path, name, split = ("" if row.get(key) is None else str(row[key]) for key in (*columns, "split"))
            split, place, named = split.lower() or own, os.path.join(table.parent, path), f"{columns[0]} names {path!r}"
            try:
                if not path or not name:
                    raise ValueError(f"{columns[bool(path)]} is missing: fill it or take the row out")
                if split not in SPLITS:
                    raise ValueError(f"split is {split!r}: name it one of {', '.join(SPLITS)}")
                if not _inside(place, (inside,), named).lower().endswith(SUFFIXES[source.kind]):
                    raise ValueError(f"{named}, which is no {WORDS[source.kind]} file: take the row out")
                if not os.path.isfile(place):
                    raise ValueError(f"{named}, which is not there: correct it, or add the file")
                if any(place in examples for examples in found.values()):
                    raise ValueError(f"{named} a second time: take one of the rows out")
                found.setdefault(split, {})[place] = name
            except ValueError as error:
                fault(f"{table}, row {number}: {error}")
    return found


def _numbered_files(train: Classes, test: Classes, where: object, fault: Fault) -> Opened:
    """Both splits, and the names of the classes: those of the training files, in order."""
    import numpy as np

    classes = sorted({*train.values()})
    numbers = {name: number for number, name in enumerate(classes)}

    def split(examples: Classes) -> Files:
        paths = [os.fsencode(path) for path in examples]
        return Files(np.array(paths), torch.tensor([numbers[name] for name in examples.values()], dtype=torch.int64))

    for path in [path for path, name in test.items() if name not in numbers]:
        fault(f"{path}: class {test.pop(path)!r} is unknown to {where}: add examples of it there")
    return split(train), split(test) if test else None, tuple(classes)


# -- rows -------------------------------------------------------------------------------------------------------------


def _parquet_splits(found: Path, files: list[Path]) -> dict[str, Parts]:
    """The files of each split; a file alone is the training split."""
    splits: dict[str, Parts] = {}
    for file in files:
        split = (split_of(file.relative_to(found)) or "") if found.is_dir() else "train"
        splits[split] = (*splits.get(split, ()), (str(file), open_parquet(file).metadata.num_rows))
    if "" in splits and len(splits) > 1:
        raise ValueError(f"{splits[''][0][0]} belongs to no split: name it train-… or test-…, or move it away")
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


def _open_rows(
    source: Source, splits: dict[str, Parts], folder: Path, folders: tuple[str, ...], notes: list[Note], fault: Fault
) -> Opened:
    """Both splits; rows that name a file instead of holding its bytes may name one below `folders`."""
    import pyarrow.compute as pc

    if "train" not in splits:
        raise ValueError(f"there are the splits {', '.join(splits)} but no train split: name the training split train")

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
            raise ValueError(f"{table.files[0][0]} names other classes in {table.label} than {train.files[0][0]}")
        classes, labels = _numbered(table, known, fault)
        right = (labels >= 0).nonzero().squeeze(1)
        return Rows(table.rows, table.data, table.files, right, labels[right], folders), classes

    train, classes = rows_of("train", ())
    test = _pick_test(splits, is_labelled, notes)
    return train, rows_of(test, classes)[0] if test else None, classes


def _columns(schema: Any, source: Source, where: str) -> tuple[str, str]:
    """Which column holds the examples and which the labels, by name and type."""
    from pyarrow import types

    def of(*tests: Callable[[Any], bool]) -> list[str]:
        return [field.name for field in schema if any(test(field.type) for test in tests)]

    structs = [n for n in of(types.is_struct) if schema.field(n).type.get_field_index("bytes") >= 0]
    data = structs or of(types.is_binary, types.is_large_binary)
    if len(data) != 1:
        found = f"the columns {', '.join(data)}" if data else f"none in {', '.join(schema.names)}"
        raise ValueError(f"{where} should have one column of {WORDS[source.kind]} bytes and has {found}")
    numbers, words = of(types.is_integer), of(types.is_string, types.is_large_string)
    return data[0], pick_column(where, "label", source.label, numbers + words, sole=numbers)


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

    report(pc.is_null(held), "is missing: fill it or take the row out")
    unknown = "a class unknown to the training split: add examples of it there"
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


# -- common to all ----------------------------------------------------------------------------------------------------


def _pick_test(present: Iterable[str], labelled: Callable[[str], bool], notes: list[Note]) -> str | None:
    """The test split among those present; those passed over are noted."""
    chosen = None
    for name in sorted(set(present) - {"train"}, key=lambda name: (*TESTS, name).index(name)):
        if chosen is None and name in TESTS and labelled(name):
            chosen = name
        else:
            why = "" if chosen else ": it has no labels" * (name in TESTS)
            notes.append((logging.WARNING, f"the {name} split is left aside{why}"))
    return chosen


def _inside(path: str, folders: Sequence[str], named: str) -> str:
    """Where a path that stands in a table leads: it could name any file of this machine."""
    try:
        place = os.path.realpath(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ValueError(f"{named}: {_io.one_line(error)}") from None
    if not any(place.startswith(os.path.join(folder, "")) for folder in folders):
        raise ValueError(f"{named}, outside of the data's folder: put the file into it, or its bytes into the row")
    return place


def _read(path: str, where: str = "") -> bytes:
    try:
        return _io.read_file(path, EXAMPLE)
    except OSError as error:
        raise ValueError(f"{where}cannot read {path}: {_io.one_line(error)}") from None


def _row_place(files: Parts, row: int) -> tuple[str, int]:
    """The file in which a row is, and its number there."""
    for name, count in files:
        if row < count:
            return name, row
        row -= count
    raise IndexError(row)


def _row_name(files: Parts, row: int) -> str:
    return "{}, row {}".format(*_row_place(files, row))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")
