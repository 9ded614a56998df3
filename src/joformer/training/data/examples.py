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
LABELS = ("label", "fine_label")
Parts = tuple[tuple[str, int], ...]
"""The files that make up a split: name, rows."""


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
        table = _row_place(self.files, int(self.rows[index]))[0]
        try:
            place = _inside(os.path.join(os.path.dirname(table), path), self.folders)
        except ValueError as error:
            raise ValueError(f"{where}{self.column} names {path!r}{error}") from None
        return _read(place, where)

    def take(self, rows: Tensor) -> Rows:
        """The examples of these numbers, in this order."""
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])


Split = Files | Rows
Opened = tuple[Split, Split | None, tuple[str, ...]]
"""Training and test split, and the names of the classes."""


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
        return content_hash(
            *(part for name in sorted(source.tables) for part in (name, hub_identity(source.tables[name])))
        )
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
        media = next((file for file in source.files if suffix_of(file) in SUFFIXES[source.kind]), None)
        if media is not None:
            raise ValueError(
                f"{source.path} holds both {parquet[0].name} and {media.name}: keep one kind of source in a folder"
            )
        inside = os.path.realpath(source.path if source.path.is_dir() else source.path.parent)
        splits = _parquet_splits(source.path, parquet)
        train, test, classes = _open_rows(source, splits, folder, (inside,), notes, fault)
    elif source.path.is_file():
        raise ValueError(
            f"{source.path} is no parquet file or table: give a folder of {source.kind}, parquet, or a table file,label"
        )
    else:
        train, test, classes = _open_tree(source, notes, fault)
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


def _open_tree(source: Source, notes: list[Note], fault: Fault) -> Opened:
    """Training and test files of a folder of class folders, and the names of the classes."""
    assert source.path is not None
    folder, files = source.path, list(map(str, source.files))
    if source.label not in (None, "folder", "name") or (source.label == "name" and source.kind == "images"):
        raise ValueError(f"{folder} holds class folders, which have no column {source.label!r}: leave out --label")
    splits = _tree_splits(folder, files, source, fault)
    members = {name: _members(place, files, source) for name, place in splits.items()}
    flat = {name for name, (_, loose) in members.items() if loose and source.kind == "images"}
    test = _pick_test(splits, lambda name: name not in flat, notes)
    if test is None and (left := sorted(flat - {"train", "test"})):
        place = splits[left[0]]
        fault(
            f"the {len(members[left[0]][1]):,} images in {place} have no class folders: move each into "
            f"{place.name}/CLASS, or list all of {folder} in a table file,label,split and give that"
        )
    inside = members["train"][0]
    if source.kind == "sounds" and source.label is None and _ambiguous(inside):
        prefixes = {Path(path).stem.partition("_")[0] for paths in inside.values() for path in paths}
        raise ValueError(
            f"the classes of {splits['train']} may be its folders ({_few(sorted(inside))}) or what each name begins "
            f"with ({_few(sorted(prefixes))}): choose by --label folder or --label name"
        )
    examples = {}
    for name in ("train", test) if test else ("train",):
        by_name = source.kind == "sounds" and (source.label == "name" or not members[name][0])
        examples[name] = _examples(splits[name], *members[name], source, by_name, fault)
    other = [name for name in files if os.path.dirname(name) in {str(folder), *map(str, splits.values())}]
    if other := [os.path.basename(name) for name in other if suffix_of(name) not in SUFFIXES[source.kind]]:
        notes.append((logging.INFO, f"not read, beside the class folders: {_few(other)}"))
    return _numbered_files(examples["train"], examples.get(test or "", []), splits["train"], fault)


def _tree_splits(folder: Path, files: list[str], source: Source, fault: Fault) -> dict[str, Path]:
    """The folders of the splits; the folder itself is the training split where it holds none."""
    below = _folders(folder)
    splits = {name.lower(): folder / name for name in below if name.lower() in SPLITS}
    if "train" not in splits or len(splits) == 1 < len(below):  # beside other folders alone, "train" is a class
        if splits and len(splits) == len(below):
            raise ValueError(f"{folder} has {', '.join(below)} but no train folder: name the training split train")
        splits = {"train": folder}
    else:
        for name in below:
            if name.lower() not in splits:
                fault(f"{folder / name} is no split beside train: name it one of {', '.join(TESTS)}, or move it away")
        for loose in _members(folder, files, source)[1]:
            fault(f"{loose} stands beside the train folder: move it into a class folder of a split")
    return splits


def _numbered_files(train: list[tuple[str, str]], test: list[tuple[str, str]], where: object, fault: Fault) -> Opened:
    """Both splits of (path, class)."""
    import numpy as np

    classes = {name: number for number, name in enumerate(sorted({name for _, name in train}))}
    for path, name in test:
        if name not in classes:
            fault(f"{path}: class {name!r} is unknown to {where}: add examples of it there")
    splits = []
    for part in (train, test):
        known = [(os.fsencode(path), classes[name]) for path, name in part if name in classes]
        paths, labels = [path for path, _ in known], [number for _, number in known]
        splits.append(Files(np.array(paths), torch.tensor(labels, dtype=torch.int64)))
    return splits[0], splits[1] if test else None, tuple(classes)


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not ASIDE.fullmatch(entry.name))


def _members(folder: Path, files: list[str], source: Source) -> tuple[dict[str, list[str]], list[str]]:
    """Of all files, those in each folder right below this one, and those of this kind that stand in it directly."""
    inside: dict[str, list[str]] = {name: [] for name in _folders(folder)}
    loose, root = [], os.path.join(folder, "")
    for file in files:
        if file.startswith(root):
            name, deeper, _ = file[len(root) :].partition(os.sep)
            if deeper:
                inside[name].append(file)
            elif file.lower().endswith(SUFFIXES[source.kind]):
                loose.append(file)
    return inside, loose


def _examples(
    folder: Path, inside: dict[str, list[str]], loose: list[str], source: Source, by_name: bool, fault: Fault
) -> list[tuple[str, str]]:
    """(path, class) of all files of one split; other files beside the class folders may stay."""
    word, suffixes, examples = WORDS[source.kind], SUFFIXES[source.kind], []
    if by_name:
        inside, loose = {}, loose + [path for paths in inside.values() for path in paths]
    if not inside and not (by_name and loose):
        raise ValueError(f"{folder} holds no class folders: put every {word} into a folder named as its class")
    for path in loose:
        name, underscore, _ = Path(path).stem.partition("_")
        if not by_name:
            fault(f"{path} stands in no class folder: put every {word} into a folder named as its class")
        elif not name or not underscore:
            fault(f"{path} names no class before an underscore: call it class_{Path(path).name}, or use class folders")
        else:
            examples.append((path, name))
    examples += [(path, name) for name, members in inside.items() for path in members]
    for name in [name for name, members in inside.items() if not members]:
        fault(f"the class folder {folder / name} holds no {word} files: fill it or remove it")
    for path in [path for path, _ in examples if not path.lower().endswith(suffixes)]:
        remedy = "convert it to wav" if suffix_of(path) in UNREAD else "move it out of the class folder"
        fault(f"{path} is no {word} file ({', '.join(suffixes)}): {remedy}")
    return [(path, name) for path, name in examples if path.lower().endswith(suffixes)]


def _ambiguous(inside: dict[str, list[str]]) -> bool:
    """Whether the names of the files may give the classes as well as their folders.

    They may where each name repeats its folder after the first word (01/7_01_3.wav), or where all folders have the same
    few first words, each at least four times on average. Names that begin with a speaker's number are neither.
    """
    words = {folder: [Path(path).stem.split("_") for path in paths] for folder, paths in inside.items() if paths}
    first = {folder: {parts[0] for parts in names} for folder, names in words.items()}
    every = set().union(*first.values())
    if len(every) < 2 or every == set(inside) or any(len(parts) < 2 for names in words.values() for parts in names):
        return False
    repeated = all(folder in parts[1:] for folder, names in words.items() for parts in names)
    return repeated or all(first[folder] == every and len(names) >= 4 * len(every) for folder, names in words.items())


# -- tables that list files -------------------------------------------------------------------------------------------


def _listings(source: Source, fault: Fault) -> dict[str, dict[str, str]]:
    """path → class of all files that the tables list, by split."""
    found: dict[str, dict[str, str]] = {}
    for table in source.listing:
        inside, columns = os.path.realpath(table.parent), ("", "")
        own = (split_of(table.name) or "train") if len(source.listing) > 1 else "train"
        for number, row in enumerate(read_rows(table, fault), 1):
            if number == 1:
                file = next(name for name in FILE if name in row)
                names = [name for name in row if name not in (file, "split")]
                columns = file, pick_column(table, "label", source.label, LABELS, names)
            where = f"{table}, row {number}: "
            path, name, split = ("" if row.get(key) is None else str(row[key]) for key in (*columns, "split"))
            split, place = split.lower() or own, os.path.join(table.parent, path)
            try:
                if not path or not name:
                    raise ValueError(f"{columns[bool(path)]} is missing: fill it or take the row out")
                if split not in SPLITS:
                    raise ValueError(f"split is {split!r}: name it one of {', '.join(SPLITS)}")
                where += f"{columns[0]} names {path!r}"
                if not _inside(place, (inside,)).lower().endswith(SUFFIXES[source.kind]):
                    raise ValueError(f", which is no {WORDS[source.kind]} file: take the row out")
                if not os.path.isfile(place):
                    raise ValueError(", which is not there: correct it, or add the file")
                if any(place in examples for examples in found.values()):
                    raise ValueError(" a second time: take one of the rows out")
                found.setdefault(split, {})[place] = name
            except ValueError as error:
                fault(f"{where}{error}")
    return found


def _open_listing(source: Source, notes: list[Note], fault: Fault) -> Opened:
    """Training and test files that tables list, and the names of the classes."""
    splits = _listings(source, fault)
    if "train" not in splits:
        raise ValueError(f"{source.listing[0]} lists no training examples: name the training split train")
    test = _pick_test(splits, lambda name: True, notes)
    held = list(splits[test].items()) if test else []
    return _numbered_files(list(splits["train"].items()), held, "the training split", fault)


# -- rows -------------------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """One split: its rows, the names of the columns of examples and of labels, and the labels themselves."""

    rows: Any
    data: str
    label: str
    held: Any
    files: Parts

    @property
    def names(self) -> list[str] | None:
        """The names of the classes, where the table has them."""
        found = getattr(self.rows.features[self.label], "names", None)
        return [str(name) for name in found] if found else None  # a file may hold anything there


def _parquet_splits(found: Path, files: list[Path]) -> dict[str, Parts]:
    """The files of each split; a file alone is the training split."""
    named = {str(file): split_of(file.relative_to(found)) if found.is_dir() else "train" for file in files}
    nameless = next((name for name, split in named.items() if split is None), None)
    if nameless and any(named.values()):
        raise ValueError(f"{nameless} belongs to no split: name it train-… or test-…, or move it away")
    splits: dict[str, Parts] = {}
    for name, split in named.items():
        part = (name, open_parquet(name).metadata.num_rows)
        splits[split or "train"] = (*splits.get(split or "train", ()), part)
    return splits


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
        if source.path is None:
            table = source.tables[name]
            columns = _columns(table.features.arrow_schema, source, files[0][0])
        else:
            columns = _columns(open_parquet(files[0][0]).schema_arrow, source, files[0][0])
            table = copy_parquet(files, columns, folder / name)
        return _Table(table.with_format("arrow"), *columns, table.data.column(columns[1]), files)

    def is_labelled(name: str) -> bool:
        held = table_of(name).held
        is_number = str(held.type).startswith(("int", "uint"))
        return held.null_count < len(held) and (not is_number or pc.max(held).as_py() >= 0)

    def rows_of(name: str, known: tuple[str, ...] | None = None) -> tuple[Rows, tuple[str, ...]]:
        table, train = table_of(name), table_of("train")
        if table.names != train.names:
            raise ValueError(f"{table.files[0][0]} names other classes in {table.label} than {train.files[0][0]}")
        classes, labels = _numbered(table, known, fault)
        right = (labels >= 0).nonzero().squeeze(1)
        return Rows(table.rows, table.data, table.files, right, labels[right], folders), classes

    train, classes = rows_of("train")
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
    return data[0], pick_column(where, "label", source.label, LABELS, numbers + words, sole=numbers)


def _numbered(table: _Table, known: tuple[str, ...] | None, fault: Fault) -> tuple[tuple[str, ...], Tensor]:
    """Classes and int64 labels of a split, −1 where they are faulty; `known` are the classes of the training split."""
    import pyarrow
    import pyarrow.compute as pc

    held, names = table.held, table.names
    faulty: set[int] = set()

    def report(wrong: Any, why: str) -> None:
        for row in pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist():
            if row not in faulty:
                faulty.add(row)
                fault(f"{_row_name(table.files, row)}: {table.label} {why.format(held[row].as_py())}")

    report(pc.is_null(held), "is missing: fill it or take the row out")
    is_number = pyarrow.types.is_integer(held.type)
    unknown = "a class unknown to the training split: add examples of it there"
    if is_number:
        report(pc.less(held, 0), "is {}: labels count from 0")
        named = names or known
        why = f"beyond the {len(names)} classes that are named" if names else unknown
        many = f"is {{}} among {len(held)} examples: labels count the classes from 0"
        report(pc.greater_equal(held, len(named or held)), f"is {{}}, {why}" if named else many)
        numbers = held
    else:
        known = known or tuple(sorted(pc.unique(held.drop_null()).to_pylist()))
        numbers = pc.index_in(held, value_set=pyarrow.array(known, type=held.type))
        report(pc.is_null(numbers), f"is {{!r}}, {unknown}")
    labels = torch.tensor(pc.fill_null(pc.cast(numbers, "int64", safe=False), -1).to_numpy()).long()
    labels[sorted(faulty)] = -1
    counted = tuple(names or map(str, range(int(labels.max()) + 1))) if is_number else ()
    return known or counted, labels


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


def _inside(path: str, folders: Sequence[str]) -> str:
    """Where a path that stands in a table leads: it could name any file of this machine."""
    try:
        place = os.path.realpath(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ValueError(f": {_io.one_line(error)}") from None
    if not any(place.startswith(os.path.join(folder, "")) for folder in folders):
        raise ValueError(", outside of the data's folder: put the file into it, or its bytes into the row")
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
