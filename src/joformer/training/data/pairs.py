"""Images with text: pictures as bytes, captions as tokens, and which of them fit each other.

    images  uint8 (n, channels, height, width)      tokens  int64 (n, longest), −1 after the end
    groups  int64 (n, kinds)

Pairs that share a number in `groups` fit each other: the same caption, the same picture, or the same class where
captions were made from classes. Sources are those of `joformer.training.data.captions`, "captions" (pages of
scikit-learn's digits, which needs no files), and images with classes, whose names give the captions, on two levels
where there are two (CIFAR-100).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from joformer._seeding import generator
from joformer.training.data.captions import caption_column, read_caption, sentence, text_columns, texts_beside, tidy
from joformer.training.data.examples import Files, Records, Split, hold_out, identity, listed
from joformer.training.data.files import Fault, Place, content_hash, fault, open_parquet, suffix_of
from joformer.training.data.hub import hub_folders
from joformer.training.data.images import FORMAT, decoded, load_images, moments, stored
from joformer.training.data.rows import Parts, Rows, data_column, parquet_splits
from joformer.training.data.sources import FILE, SPLITS, SUFFIXES, Note, Source, log, pick_test, resolve, summary
from joformer.training.data.tables import copy_parquet, is_parquet, pick_column, read_rows
from joformer.training.data.tokenizer import Tokenizer

PADDING = -1
PAGES = {"train": 3000, "test": 500}


@dataclass(frozen=True)
class Captioned:
    """One split: images, the tokens of their captions, and which of them fit each other.

    >>> split = Captioned(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([[5], [6]]), torch.eye(2).long())
    >>> len(split), split.to("meta").tokens.device.type
    (2, 'meta')
    """

    images: UInt8[Tensor, "n channels height width"]
    tokens: Int64[Tensor, "n longest"]
    groups: Int64[Tensor, "n kinds"]

    def __len__(self) -> int:
        return len(self.groups)

    def to(self, device: torch.device | str) -> Captioned:
        """A copy on another device."""
        return Captioned(self.images.to(device), self.tokens.to(device), self.groups.to(device))


@dataclass(frozen=True)
class Pairs:
    """Both splits, the tokenizer of the captions, and a hash of everything that could change a tensor.

    >>> pairs = load_pairs("captions", vocab=400)
    >>> pairs.train.images.shape, pairs.train.tokens.shape, pairs.caption(pairs.test, 0)
    (torch.Size([3000, 1, 16, 24]), torch.Size([3000, 6]), 'four eight seven eight eight five')
    """

    train: Captioned
    test: Captioned
    tokenizer: Tokenizer
    fingerprint: str

    def to(self, device: torch.device | str) -> Pairs:
        """A copy on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def caption(self, split: Captioned, row: int) -> str:
        """A caption as text."""
        tokens = split.tokens[row]
        return self.tokenizer.decode(tokens[tokens != PADDING])

    @cached_property
    def moments(self) -> tuple[Float64[Tensor, " channels"], Float64[Tensor, " channels"]]:
        """Mean and standard deviation of every channel of the training images, pixels in [0, 1]; on the CPU."""
        return moments(self.train.images)


class _Described(NamedTuple):
    """One split before its captions are tokens."""

    images: Tensor
    captions: Sequence[str]
    groups: Tensor


def load_pairs(
    source: Place | Source,
    *,
    column: str | None = None,
    size: int | None = None,
    vocab: int = 1000,
    length: int = 64,
    tokenizer: Tokenizer | None = None,
    cache: Place | None = None,
) -> Pairs:
    """All images of a source and their captions.

    Args:
        source: A name, a path, or what `resolve` returned: images with text, or images with classes.
        column: The caption column; "caption" or "text" by default.
        size: Side length of the images: the shorter side is resized to it and the centre is cropped.
        vocab: 256 means bytes; a larger number trains a BPE of that size on the captions.
        length: Maximum tokens per caption; longer ones are cut, which is logged.
        tokenizer: Used instead of training one.
        cache: Cache folder for decoded images.

    Returns:
        Both splits.

    Raises:
        ValueError: If an image has no text, a text is empty, or an image cannot be decoded.

    Example:
        >>> pairs = load_pairs("digits")
        >>> pairs.caption(pairs.train, 0), len(pairs.test)
        ('a photo of a 0', 359)
    """
    if length < 1:
        raise ValueError(f"length must be 1 token or more, got {length} (--length)")
    if size is not None and size < 1:
        raise ValueError(f"size is {size}: give a whole number of pixels, 1 or more (--size)")
    source = resolve(source, column=column)
    if source.spec == "captions":
        splits, key, notes = _pages(source, size)
    elif source.kind == "pairs" or (source.kind == "images" and _column(source) is not None):
        splits, key, notes = _of_people(source, size, cache)
    elif source.kind == "images":
        splits, key, notes = _of_classes(source, size, cache)
    else:
        raise ValueError(f"{source.name} holds {source.kind}: give images with text, or with classes")
    if tokenizer is None:
        tokenizer = Tokenizer.train(dict.fromkeys(splits["train"].captions), vocab)
    encoded = {text: tokenizer.encode(text) for split in splits.values() for text in split.captions}
    if cut := sum(len(tokens) > length for tokens in encoded.values()):
        notes.append((logging.WARNING, f"{cut:,} captions are longer than {length} tokens and are cut (--length)"))
    longest = min(length, max(map(len, encoded.values())))

    def made(split: _Described) -> Captioned:
        rows = [[*(tokens := encoded[text][:longest]), *[PADDING] * (longest - len(tokens))] for text in split.captions]
        return Captioned(split.images, torch.tensor(rows), split.groups)

    train, test = (made(splits[name]) for name in ("train", "test"))
    shape = " × ".join(map(str, train.images.shape[2:]))
    about = f"images of {shape} with text of up to {longest} of {tokenizer.vocab:,} tokens"
    sizes = {"train": len(train), "test": len(test)}
    log(summary(source.name, about, sizes, "pairs", notes))
    parts = (part for split in (train, test) for part in (split.tokens, split.groups))
    hashed = content_hash("pairs", key, tokenizer.definition(), *(part.numpy().tobytes() for part in parts))
    return Pairs(train, test, tokenizer, hashed)


def _pages(source: Source, size: int | None) -> tuple[dict[str, _Described], str, list[Note]]:
    """Pages of digits, which are embedded."""
    from joformer.training.data.embedded import pages

    if source.column is not None or size is not None:
        raise ValueError("captions are pages of 16 × 24 with one text each: leave out column and size (--column)")
    splits = {}
    for name, count in PAGES.items():
        images, captions = pages(count, name)
        splits[name] = _Described(images, captions, _numbered(captions))
    return splits, content_hash(*(split.images.numpy().tobytes() for split in splits.values())), []


def _of_classes(source: Source, size: int | None, cache: Place | None) -> tuple[dict[str, _Described], str, list[Note]]:
    """Images with classes, each with one of several sentences about its class."""
    images = load_images(source, size=size, cache=cache)
    above = _levels(source, len(images.classes))
    splits = {}
    for name, split in (("train", images.train), ("test", images.test)):
        which = torch.randint(4, (len(split),), generator=generator("captions", name)).tolist()
        said = [
            sentence(form, images.classes[label], above[label])
            for form, label in zip(which, split.labels.tolist(), strict=True)
        ]
        splits[name] = _Described(split.images, said, split.labels.unsqueeze(1))
    note = f"captions made from {'two levels of classes' if above[0] else 'classes'}, such as {said[0]!r}"
    return splits, images.fingerprint, [(logging.INFO, note)]


def _levels(source: Source, classes: int) -> list[str | None]:
    """For each class the name of the one above it, None where the data has no second level."""
    none: list[str | None] = [None] * classes
    if source.label not in (None, "fine_label"):
        return none
    columns = ["fine_label", "coarse_label"]
    if source.path is None:
        table = source.tables["train"] if source.spec != "digits" else None
        if table is None or not {*columns} <= {*table.column_names}:
            return none
        features, held = table.features, table.with_format("arrow").data.table.select(columns)
    else:
        parquet = [file for file in source.files if is_parquet(file)]
        if not parquet:
            return none
        opened = [open_parquet(path) for path, _ in parquet_splits(source.path, parquet)["train"]]
        if not all({*columns} <= {*one.schema_arrow.names} for one in opened):
            return none
        import datasets
        import pyarrow

        features = datasets.Features.from_arrow_schema(opened[0].schema_arrow)
        held = pyarrow.concat_tables([one.read(columns) for one in opened])
    fine, coarse = (held.column(name).to_pylist() for name in columns)
    seen = dict(zip(fine, coarse, strict=True))
    if len({*zip(fine, coarse, strict=True)}) != len(seen):
        raise ValueError(f"{source.name} has a class in two of the coarse_label: give --label for one level")
    names = getattr(features["coarse_label"], "names", None)
    return [None if (one := seen.get(label)) is None else str(names[one] if names else one) for label in range(classes)]


# -- captions that people wrote ----------------------------------------------------------------------------------------


def _of_people(source: Source, size: int | None, cache: Place | None) -> tuple[dict[str, _Described], str, list[Note]]:
    alone = source.listing and source.path is not None and source.path.is_file()  # else the folder holds what it lists
    listing: list[Path | str] = []
    for _, _, place, _ in _rows(source, fault) if alone else ():
        listing += (os.path.basename(place), Path(place))
    own = identity(replace(source, listing=()))
    key = content_hash(FORMAT, "pairs by content", own, str(source.column), str(size), *listing)

    def build(folder: Path) -> Any:
        with TemporaryDirectory(dir=folder.parent, prefix=".arrow-") as rows:
            return decoded(open_pairs(source, Path(rows)), size)

    made = stored(f"pairs-{key}", build, cache=cache)
    splits = {}
    for name, (images, labels) in (("train", made.train), ("test", made.test)):
        said = [made.classes[number] for number in labels[:, 0].tolist()]
        splits[name] = _Described(images, said, labels)
    return splits, key, list(made.notes)


def open_pairs(source: Source, folder: Path, fault: Fault = fault) -> Records:
    """Both splits of images with text; labels are (n, 2), the number of the caption in `classes` and of the image.

    Args:
        source: What `resolve` returned.
        folder: For copies of rows of parquet files; it must outlive the records.
        fault: Called with every fault; if it does not raise, what is faulty is left out.
    """
    notes: list[Note] = []
    numbers: dict[str, int] = {}
    if source.path is None or any(map(is_parquet, source.files)):
        splits = _open_rows(source, folder, numbers, notes, fault)
    else:
        splits = _open_files(source, numbers, notes, fault)
    if "train" not in splits or not len(splits["train"]):
        raise ValueError(f"{source.name} holds no images with text to train with: name the training split train")
    test = pick_test(splits, lambda name: len(splits[name]) > 0, notes)
    train = splits["train"]
    if test is not None:
        return Records(train, splits[test], tuple(numbers), tuple(notes))
    # By images: those of several captions are on one side.
    pictures, at = train.labels[:, 1].unique(return_inverse=True)
    if len(pictures) < 2:
        raise ValueError(f"{source.name} holds one image with text: there must be two or more")
    _, held = hold_out(torch.zeros(len(pictures), dtype=torch.int64))
    aside = torch.isin(at, held)
    text = f"no test split: {int(aside.sum()):,} of {len(train):,} pairs are held out, always the same ones"
    notes.append((logging.INFO, text))
    kept, out = (train.take(rows.nonzero().squeeze(1)) for rows in (~aside, aside))
    return Records(kept, out, tuple(numbers), tuple(notes))


def _open_files(source: Source, numbers: dict[str, int], notes: list[Note], fault: Fault) -> dict[str, Split]:
    import numpy as np

    found: dict[str, list[tuple[str, str]]] = {}
    for _, split, place, caption in _rows(source, fault, notes):
        found.setdefault(split, []).append((place, caption))
    pictures: dict[str, int] = {}
    made: dict[str, Split] = {}
    for split, rows in found.items():
        labels = [
            (numbers.setdefault(caption, len(numbers)), pictures.setdefault(place, len(pictures)))
            for place, caption in rows
        ]
        made[split] = Files(np.array([os.fsencode(place) for place, _ in rows]), torch.tensor(labels))
    return made


def _rows(source: Source, fault: Fault, notes: list[Note] | None = None) -> list[tuple[str, str, str, str]]:
    """(where it stands, split, image, caption) of files that tables list, or with texts beside them."""
    if source.listing:
        rows = listed(source, fault, _column(source))
        return [(where, split, place, tidy(caption)) for where, split, place, caption in rows]
    assert source.path is not None
    images = [file for file in source.files if suffix_of(file) in SUFFIXES["images"]]
    beside, made = texts_beside(source.files, SUFFIXES["images"]), []
    for image in images:
        first = image.relative_to(source.path).parts[0].lower() if source.path.is_dir() else ""
        if image not in beside:
            fault(f"{image} has no text next to it: write {image.stem}.txt, or move it out of the folder")
            continue
        try:
            caption = read_caption(beside[image])
        except ValueError as error:
            fault(str(error))
            continue
        if caption:
            made.append((str(image), first if first in SPLITS else "train", str(image), caption))
        else:
            fault(f"{beside[image]} holds no text: describe {image.name} in it")
    other = [file.name for file in source.files if file not in beside and file not in {*beside.values(), *images}]
    if other and notes is not None:
        notes.append((logging.INFO, f"{len(other):,} files next to images with text are not read, such as {other[0]}"))
    return made


def _open_rows(
    source: Source, folder: Path, numbers: dict[str, int], notes: list[Note], fault: Fault
) -> dict[str, Split]:
    if source.path is None:
        parts: dict[str, Parts] = {n: ((f"the hub's {n} split", len(t)),) for n, t in source.tables.items()}
        folders = hub_folders()
    else:
        parts = parquet_splits(source.path, [file for file in source.files if is_parquet(file)])
        folders = (os.path.realpath(source.path if source.path.is_dir() else source.path.parent),)
    made: dict[str, Split] = {}
    pictures: dict[str, int] = {}
    for name, every in parts.items():
        files = tuple((path, rows) for path, rows in every if rows)
        if not files:
            raise ValueError(f"{every[0][0]} holds no rows: the {name} split needs at least one")
        table = None if source.path else source.tables[name]
        schema = open_parquet(files[0][0]).schema_arrow if table is None else table.features.arrow_schema
        texts = text_columns(schema)
        column = pick_column(files[0][0], "column", source.column or caption_column(texts), texts)
        image = data_column(schema, "images", files[0][0])
        table = copy_parquet(files, (image, column), folder / name) if table is None else table
        table = table.with_format("arrow")
        whole = Rows(table, image, files, torch.arange(len(table)), torch.zeros(len(table), 2), folders)
        rows, labels = [], []
        for row, caption in enumerate(map(tidy, table.data.column(column).to_pylist())):
            if caption:
                rows.append(row)
                labels.append((numbers.setdefault(caption, len(numbers)), _picture(whole, row, pictures)))
            else:
                fault(f"{whole.name(row)}: {column} is missing: fill it or remove the row")
        made[name] = replace(whole, rows=torch.tensor(rows, dtype=torch.int64), labels=torch.tensor(labels).view(-1, 2))
    return made


def _picture(rows: Rows, row: int, pictures: dict[str, int]) -> int:
    """The number of the picture in this row, the same wherever the same bytes stand: one row per caption is usual."""
    try:
        held = content_hash(rows.read(row))
    except ValueError:  # reported where it is decoded
        held = rows.name(row)
    return pictures.setdefault(held, len(pictures))


def _column(source: Source) -> str | None:
    """The column of the captions: the one that was given, or that is called so; None where there is none."""
    if source.column is not None:
        return source.column
    if source.listing:
        row = next(read_rows(source.listing[0]), {})
        return caption_column([name for name in row if name not in FILE])
    schema = None
    if source.path is None and source.spec not in ("digits", "captions"):
        schema = next(iter(source.tables.values())).features.arrow_schema
    elif parquet := [file for file in source.files if is_parquet(file)]:
        schema = open_parquet(parquet[0]).schema_arrow
    return None if schema is None else caption_column(text_columns(schema))


def _numbered(captions: Sequence[str]) -> Int64[Tensor, "n 1"]:
    """The same number for the same caption."""
    seen: dict[str, int] = {}
    return torch.tensor([[seen.setdefault(caption, len(seen))] for caption in captions])
