"""One front door for data: `resolve` decides once what a name or a path holds, and every loader takes its answer.

    "mnist"  "hub:owner/name"  "stdlib"       a name always means the name …
    "./mnist"  "~/text.txt.gz"                … and a path with a slash or a suffix always the path
    "s3://bucket/notes"                       an address is fetched into the cache, once for every version

Split names, for every kind of data: train; valid, validation or val; test. A folder of class folders is a split if that
is its whole name; a file (text, table) belongs to the split that the first such word of its path names, as in
wiki.valid.tokens, test-00000-of-00002.parquet or train/a.txt.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from joformer._log import logger
from joformer._remote import fetch, is_address
from joformer.training.data.arrays import holds_pictures
from joformer.training.data.captions import caption_column, is_captioned, text_columns, texts_beside
from joformer.training.data.files import Place, files_under, open_parquet, require_path, suffix_of
from joformer.training.data.hub import hub, is_hub
from joformer.training.data.tables import is_parquet, is_table, read_rows
from joformer.training.data.triples import holds_triples

Kind = Literal["text", "images", "sounds", "streams", "graph", "points", "video", "pairs", "trees"]
Note = tuple[int, str]  # what a loader decided on its own: a level of `logging`, and one line

NAMES: dict[str, Kind] = {"stdlib": "text", "digits": "images", "tones": "sounds", "words": "sounds"}
NAMES |= {"family": "graph", "clouds": "points", "moving": "video", "stdlib-trees": "trees", "captions": "pairs"}
NAMES |= dict.fromkeys(("wikipedia", "openwebtext"), "text")
NAMES |= dict.fromkeys(("mnist", "cifar100", "imagenet"), "images")
SPLITS = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}
WAV, CODED = (".wav", ".wave"), (".flac", ".mp3", ".oga", ".ogg", ".opus")
ENCODED = (b"fLaC", b"OggS", b"ID3", *(b"\xff" + bytes([kind]) for kind in b"\xe2\xe3\xf2\xf3\xfa\xfb"))
"""How compressed sounds begin; the last are frames of mp3."""
SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "text": (),
    "images": (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
    "sounds": (*WAV, *CODED),
    "streams": (*WAV, *CODED),
    "graph": (),
    "points": (".npy", ".xyz"),
    "video": (".avi", ".gif", ".m4v", ".mkv", ".mov", ".mp4", ".npy", ".npz", ".webm"),
    "trees": (".py", ".json"),
}
ARRAYS = (".npy", ".npz")  # clips or points: their first array says which
SUFFIXES["pairs"] = SUFFIXES["images"]
UNREAD = (".aac", ".aif", ".aiff", ".m4a", ".wma")  # sounds that nothing here can read: they are called that
HEARD = (*SUFFIXES["sounds"], *UNREAD)
LISTED = (*SUFFIXES["images"], *HEARD, *SUFFIXES["points"], *SUFFIXES["video"])  # what a table may list
TESTS = ("test", "validation", "valid", "val")  # the first of these that has labels is the test split
COUNTED = 12  # so many classes are logged one by one
WORDS = {"images": "image", "sounds": "sound", "points": "set", "streams": "sound", "video": "video", "pairs": "image"}
FILE = ("file", "file_name", "filename", "path", "image")  # names of the column of a table that lists files
START, END = ("start", "onset", "begin"), ("end", "offset", "stop")  # … and of those that make it one of events


@dataclass(frozen=True)
class Source:
    """What a name or a path holds, as determined by `resolve`.

    Attributes:
        spec: The name, the address, or the absolute path: valid from any folder.
        kind: "text", "images", "sounds", "streams" (recordings with a table of events), "graph", "points",
            "video", "pairs" (images with text) or "trees".
        name: The name used in reports: the name, or the last part of the path.
        path: The path as given; None for names, and the local copy for an address.
        files: All files there, in a fixed order.
        listing: The tables among `files` that list files with their classes or events.
        label: The class column; "folder" or "name" for sounds if both could be the class.
        column: The text column.

    Example:
        >>> source = resolve("digits")
        >>> source.kind, source.name
        ('images', 'digits')
    """

    spec: str
    kind: Kind
    name: str
    path: Path | None = None
    files: tuple[Path, ...] = field(default=(), repr=False)
    listing: tuple[Path, ...] = ()
    label: str | None = None
    column: str | None = None

    @cached_property
    def tables(self) -> Any:
        """The splits of a data set of the hub, fetched when first used."""
        logger.info(f"fetching {self.spec} from the hub")
        return hub(self.spec)


def resolve(
    spec: Place | Source, *, kind: Kind | None = None, label: str | None = None, column: str | None = None
) -> Source:
    """Determines what the data is from names and first bytes; only addresses and `hub:` names are downloaded.

    Args:
        spec: A name, a path, an address (s3://…), or what `resolve` returned before.
        kind: The required kind; any by default. Source code and JSON are text unless this is "trees".
        label: The class column, or "folder" or "name" for files.
        column: The text column.

    Returns:
        The source, for any of the loaders.

    Raises:
        ValueError: If it does not exist, cannot be read, or is of another kind.

    Example:
        >>> resolve("nowhere/pictures")
        Traceback (most recent call last):
        ValueError: nowhere/pictures does not exist: give a file or a folder
    """
    if isinstance(spec, Source):
        changed = label not in (None, spec.label) or column not in (None, spec.column)
        source = replace(spec, label=label or spec.label, column=column or spec.column) if changed else spec
    elif isinstance(spec, str) and is_name(spec):
        source = Source(spec, NAMES.get(spec, kind or "text"), spec.rpartition("/")[2], label=label, column=column)
        if spec not in NAMES and kind is None:
            tables = source.tables
            found = _kind_of_schema(next(iter(tables.values())).features.arrow_schema)
            source = replace(source, kind="images" if found == "pairs" and label else found)
            source.__dict__["tables"] = tables  # fetched once
    else:
        address = str(spec) if is_address(spec) else None
        path = require_path(spec if address is None else fetch(address))
        files = tuple(files_under(path)) if path.is_dir() else (path,)
        listing = _listing(path, files) if kind not in ("text", "trees") else ()
        found = kind or _kind_of_files(files, listing)
        found = "images" if kind is None and found == "pairs" and label is not None else found
        place = path.resolve()
        source = Source(address or str(place), found, place.name, path, files, listing, label, column)
    if kind is not None and source.kind != kind:
        raise ValueError(f"{source.name} holds {source.kind}, not {kind}: give other data")
    return source


def is_name(spec: str) -> bool:
    """Whether data is given by name; a folder of that name is then given as ./NAME.

    >>> is_name("digits"), is_name("./digits")
    (True, False)
    """
    return spec in NAMES or is_hub(spec)


def split_of(path: Place) -> str | None:
    """The first word of a path that names a split.

    >>> split_of("wiki.valid.tokens"), split_of("data/train-0.parquet"), split_of("the notes.txt")
    ('valid', 'train', None)
    """
    words = re.split("[^a-z]+", os.fspath(path).lower())
    return next((word for word in words if word in SPLITS), None)


def summary(
    name: str,
    kind: str,
    splits: dict[str, int],
    unit: str,
    notes: Iterable[Note] = (),
    *,
    classes: Sequence[str] = (),
    labels: Any = None,
) -> list[Note]:
    """What was understood of the data, as lines to log: kind, classes, splits, and what was decided on the way.

    >>> import torch
    >>> about = {"classes": ["cat", "dog"], "labels": torch.tensor([0, 1, 0])}
    >>> [line for _, line in summary("pets", "images", {"train": 3, "test": 1}, "images", **about)]
    ['data: pets, images', '  2 classes: cat (2), dog (1)', '  train 3, test 1 images']
    """
    lines = [f"data: {name}, {kind}"]
    if classes:
        counted = list(zip(labels.bincount(minlength=len(classes)).tolist(), classes, strict=True))
        few = len(classes) <= COUNTED
        shown = [f"{name} ({count:,})" for count, name in (counted if few else (min(counted), max(counted)))]
        which = f": {', '.join(shown)}" if few else f", from {' to '.join(shown)}"
        lines.append(f"  {len(classes):,} class{'es' * (len(classes) != 1)}{which}")
    lines.append("  " + ", ".join(f"{split} {count:,}" for split, count in splits.items()) + f" {unit}")
    return [(logging.INFO, line) for line in lines] + [(level, f"  {line}") for level, line in notes]


def log(notes: Iterable[Note]) -> None:
    """Logs notes, each at its level."""
    for level, line in notes:
        logger.log(level, line)


def _kind_of_files(files: Sequence[Path], listing: Sequence[Path]) -> Kind:
    if any(map(_lists_events, listing)):
        return "streams"
    names = [name for table in listing for name in _listed(table)] or files
    if media := _kind_of_media(files, listing, [suffix_of(name) for name in names]):
        return media
    if any(suffix_of(name) in (*ARRAYS, *SUFFIXES["points"]) for name in names):
        return "points"
    if files and all(map(holds_triples, files)):
        return "graph"
    return next(map(_kind_of_parquet, filter(is_parquet, files)), "text")


def _kind_of_media(files: Sequence[Path], listing: Sequence[Path], suffixes: Sequence[str]) -> Kind | None:
    """What most files are to be seen or heard as, None where none is."""
    arrays = [file for file in files if suffix_of(file) in ARRAYS]
    clips = [suffix for suffix in SUFFIXES["video"] if suffix not in ARRAYS or (arrays and holds_pictures(arrays[0]))]
    sounds, images, video = (sum(suffix in some for suffix in suffixes) for some in (HEARD, SUFFIXES["images"], clips))
    gifs = [file for file in files if suffix_of(file) == ".gif"]
    if video > max(sounds, images) or (video == images == suffixes.count(".gif") > sounds and _moves(gifs)):
        return "video"
    if sounds >= images:
        return "sounds" if sounds else None
    row = next(read_rows(listing[0]), {}) if listing else {}
    described = is_captioned(list(row)) if row else 2 * len(texts_beside(files, SUFFIXES["images"])) >= images
    return "pairs" if described else "images"


def _moves(gifs: Sequence[Path]) -> bool:
    """Whether the first of these is a clip: gif files may be still images, too."""
    from PIL import Image

    with suppress(Exception), Image.open(gifs[0], formats=("GIF",)) as image:
        return bool(getattr(image, "is_animated", False))
    return False


def _kind_of_parquet(file: Path) -> Kind:
    import pyarrow

    try:
        table = open_parquet(file)
        if _kind_of_schema(table.schema_arrow) == "text":
            return "text"
        rows = next(table.iter_batches(1), None)
    except (OSError, ValueError, pyarrow.ArrowException):
        return "images"  # and whoever opens it reports what is wrong with it
    cells = [] if rows is None else list(rows.to_pylist()[0].values())
    held = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells]
    starts = [cell[:12] for cell in held if isinstance(cell, bytes)]
    is_sound = any(start[8:] == b"WAVE" or start.startswith(ENCODED) for start in starts)
    return "sounds" if is_sound else _kind_of_schema(table.schema_arrow)


def _kind_of_schema(schema: Any) -> Kind:
    from pyarrow import types

    kinds = [field.type for field in schema]
    binary = any(types.is_binary(kind) or types.is_large_binary(kind) or types.is_struct(kind) for kind in kinds)
    words = text_columns(schema)
    if words and not binary:
        return "text"
    return "pairs" if caption_column(words) and is_captioned(schema.names) else "images"


def _listing(path: Path, files: Sequence[Path]) -> tuple[Path, ...]:
    """Tables that list files and their classes: the one that was given, or those of a folder without class folders."""
    if path.is_file():
        return (path,) if is_table(path) and _listed(path) else ()
    tables = [file for file in files if is_table(file) and file.parent == path and _listed(file)]
    if events := tuple(filter(_lists_events, tables)):
        return events
    media = [file for file in files if tables and suffix_of(file) in LISTED]
    below = {file.relative_to(path).parts[:2] for file in media}
    is_tree = len({parts[0] for parts in below}) > 1 and all(len(parts) > 1 for parts in below)
    return () if is_tree else tuple(tables)


def _listed(table: Path) -> list[str]:
    """The first image, sound or set that a table lists, if it lists such files."""
    row = next(read_rows(table), {})
    files = [str(row[name]) for name in FILE if name in row]
    return [name for name in files[:1] if suffix_of(name) in LISTED]


def _lists_events(table: Path) -> bool:
    """Whether a table that lists sounds says when something is heard in them."""
    return any(name in (*START, *END) for name in next(read_rows(table), {}))


def pick_test(present: Iterable[str], labelled: Callable[[str], bool], notes: list[Note]) -> str | None:
    """The test split among those present; those passed over are noted."""
    chosen = None
    for name in sorted(set(present) - {"train"}, key=lambda name: (*TESTS, name).index(name)):
        if chosen is None and name in TESTS and labelled(name):
            chosen = name
        else:
            why = "" if chosen else ": it has no labels" * (name in TESTS)
            notes.append((logging.WARNING, f"the {name} split is left aside{why}"))
    return chosen
