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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from joformer._seeding import generator
from joformer.training.data.files import ASIDE, Fault, content_hash, fault, read_example, require_inside, suffix_of
from joformer.training.data.hub import hub_folders, hub_identity
from joformer.training.data.rows import Parts, Rows, open_rows, parquet_splits
from joformer.training.data.sources import (
    FILE,
    SPLITS,
    SUFFIXES,
    TESTS,
    UNREAD,
    WORDS,
    Note,
    Source,
    pick_test,
    split_of,
)
from joformer.training.data.tables import is_parquet, pick_column, read_rows


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
        return read_example(self.name(index))

    def take(self, rows: Tensor) -> Files:
        """The examples of these numbers, in this order."""
        return Files(self.paths[rows.numpy()], self.labels[rows])


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
    files, root = list(source.files), source.path
    if source.path.is_file() and source.listing:  # and what it lists
        files += [Path(name) for examples in _listings(source, fault).values() for name in examples]
        root = source.path.parent
    names = ["" if file == root else f"/{os.path.relpath(file, root)}".replace(os.sep, "/") for file in files]
    if read:
        return content_hash(*(part for pair in zip(names, files, strict=True) for part in pair))
    sizes = repr([(name, os.stat(file).st_size) for name, file in zip(names, files, strict=True)])
    return content_hash(sizes, *source.listing, *files[:: max(len(files) // 1000, 1)])


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
    train: Files | Rows
    test: Files | Rows | None
    parquet = [file for file in source.files if is_parquet(file)]
    if source.path is None:
        splits: dict[str, Parts] = {n: ((f"the hub's {n} split", len(t)),) for n, t in source.tables.items()}
        train, test, classes = open_rows(source, splits, folder, hub_folders(), notes, fault)
    elif source.listing:
        train, test, classes = _open_listing(source, notes, fault)
    elif parquet:
        media = [file.name for file in source.files if suffix_of(file) in SUFFIXES[source.kind]]
        if media:
            both = f"{parquet[0].name} and {media[0]}"
            raise ValueError(f"{source.path} holds both {both}: keep one kind of source in a folder")
        inside = os.path.realpath(source.path if source.path.is_dir() else source.path.parent)
        splits = parquet_splits(source.path, parquet)
        train, test, classes = open_rows(source, splits, folder, (inside,), notes, fault)
    elif source.path.is_file():
        remedy = f"give a folder of {source.kind}, parquet, or a table file,label"
        raise ValueError(f"{source.path} is not a parquet file or table: {remedy}")
    else:
        train, test, classes = _open_tree(source, source.path, notes, fault)
    found = train.labels.unique()
    if len(found) < 2:
        only = f"one class, {classes[int(found[0])]!r}" if len(found) else "no examples"
        fault(f"{source.name} holds {only}: there must be two or more; give class folders, or a table file,label")
    if test is None:
        kept, held = hold_out(train.labels)
        text = f"no test split with labels: {len(held):,} of {len(train):,} examples are held out, always the same ones"
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
        raise ValueError(f"{len(labels)} examples, each with its own class, leave none for testing: add a test split")
    held = spare[((torch.arange(count, dtype=torch.float64) + 0.5) * len(spare) / count).long()].sort().values
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[held] = False
    return kept.nonzero().squeeze(1), held


# -- files ------------------------------------------------------------------------------------------------------------


def _open_tree(source: Source, folder: Path, notes: list[Note], fault: Fault) -> Opened:
    """Training and test files of a folder of class folders, and the names of the classes."""
    if source.label not in (None, "folder", "name") or (source.label == "name" and source.kind != "sounds"):
        raise ValueError(f"{folder} holds class folders, which have no column {source.label!r}: leave out --label")
    splits = _tree_splits(source, folder, fault)
    members = {name: _members(source, place) for name, place in splits.items()}
    flat = {name for name, (_, loose) in members.items() if loose and source.kind != "sounds"}
    test = pick_test(splits, lambda name: name not in flat, notes)
    if test is None and (left := sorted(flat - {"train", "test"})):
        place, loose = splits[left[0]], members[left[0]][1]
        remedy = f"move each into {place.name}/CLASS, or list all of {folder} in a table file,label,split and give that"
        fault(f"the {len(loose):,} {source.kind} in {place} have no class folders: {remedy}")
    inside = members["train"][0]
    if source.kind == "sounds" and source.label is None and (prefixes := _other_classes(inside)):
        choice = f"its folders ({_few(sorted(inside))}) or the beginning of each name ({_few(sorted(prefixes))})"
        raise ValueError(f"the classes of {splits['train']} may be {choice}: choose --label folder or --label name")
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
            fault(f"{folder / name} is not a split: name it one of {', '.join(TESTS)}, or move it away")
    for file in loose:
        fault(f"{file} is next to the train folder: move it into a class folder of a split")
    return splits


def _members(source: Source, folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """Of all files, those in each folder right below this one, and those of this kind that stand in it directly."""
    below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not ASIDE.fullmatch(entry.name))
    inside: dict[str, list[str]] = {name: [] for name in below}
    loose, root = [], "" if folder == Path() else os.path.join(folder, "")
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
        raise ValueError(f"{folder} holds no class folders: put every {word} into a folder named after its class")
    examples = {}
    for path in loose:
        name, underscore, _ = Path(path).stem.partition("_")
        if not by_name:
            fault(f"{path} is not in a class folder: put every {word} into a folder named after its class")
        elif not name or not underscore:
            fault(f"{path} has no class before an underscore: name it class_{Path(path).name}, or use class folders")
        else:
            examples[path] = name
    for name, paths in inside.items():
        if not paths:
            fault(f"the class folder {folder / name} holds no {word} files: fill it or remove it")
        examples |= dict.fromkeys(paths, name)
    for path in [path for path in examples if not path.lower().endswith(suffixes)]:
        remedy = "convert it to wav" if suffix_of(path) in UNREAD else "move it out of the class folder"
        fault(f"{path} is not a supported {word} file ({', '.join(suffixes)}): {remedy}")
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
    test = pick_test(splits, lambda name: True, notes)
    return _numbered_files(splits["train"], splits[test] if test else {}, "the training split", fault)


def _listings(source: Source, fault: Fault) -> dict[str, Classes]:
    """All files that the tables list, by split."""
    found: dict[str, Classes] = {}
    for where, split, place, name in listed(source, fault):
        if any(place in examples for examples in found.values()):
            fault(f"{where} appears twice: remove one of the rows")
            continue
        found.setdefault(split, {})[place] = name
    return found


def listed(source: Source, fault: Fault, column: str | None = None) -> Iterator[tuple[str, str, str, str]]:
    """Of every row of the tables: where it stands, its split, the file, and what stands in `column` (the class)."""
    for table in source.listing:
        within, columns = os.path.realpath(table.parent), ("", "", "")
        own = (split_of(table.name) or "train") if len(source.listing) > 1 else "train"
        for number, row in enumerate(read_rows(table, fault), 1):
            if number == 1:
                file = next(name for name in FILE if name in row)
                part = next((name for name in row if name.strip().lower() == "split"), "split")
                names = [name for name in row if name not in (file, part)]
                columns = file, column or pick_column(table, "label", source.label, names), part
            path, name, split = ("" if row.get(key) is None else str(row[key]) for key in columns)
            place, named = os.path.normpath(os.path.join(table.parent, path)), f"{columns[0]} names {path!r}"
            split, name = split.strip().lower() or own, name.strip()
            try:
                if not path or not name:
                    raise ValueError(f"{columns[bool(path)]} is missing: fill it or remove the row")
                if split not in SPLITS:
                    raise ValueError(f"split is {split!r}: name it one of {', '.join(SPLITS)}")
                if not require_inside(place, (within,), named).lower().endswith(SUFFIXES[source.kind]):
                    raise ValueError(f"{named}, which is not a supported {WORDS[source.kind]} file: remove the row")
                if not os.path.isfile(place):
                    raise ValueError(f"{named}, which does not exist: correct it, or add the file")
            except ValueError as error:
                fault(f"{table}, row {number}: {error}")
                continue
            yield f"{table}, row {number}: {named}", split, place, name


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


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")
