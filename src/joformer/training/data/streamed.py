"""Pictures and clips that stay encoded where they are until they are asked for; images decoded by worker processes.

    folder/cat/1.png                                    a class is a folder …
    folder/train/cat/1.png  folder/test/cat/2.png       … in each split: test, validation, valid or val beside train
    folder/7_jackson_0.wav                              clips only: the class stands before the first underscore
    file.parquet  folder/…/train-0.parquet  …           struct{bytes, path} or binary, and a column of labels
    "mnist"  "hub:owner/name"                           through `datasets`

Where there is no labelled test split, a tenth of each class is held out, the same tenth always. What is damaged,
missing or ambiguous is one line naming the file or the row; nothing is passed over in silence.

    a batch of [(i, s), …]  =  [crop(decode(i), s), …]      whatever the number of workers
    crop: area A·U(0.08, 1), ratio exp(U(ln 3/4, ln 4/3)), corner uniform, all from s alone; scaled to size × size
    evaluation: the shorter side scaled to size·256/224, the central size × size
"""

from __future__ import annotations

import copy
import io
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from joformer.training.data.sources import (
    cache_folder,
    content_hash,
    files_under,
    hub,
    hub_identity,
    is_hub,
    require_path,
)
from joformer.training.draws import generator

TESTS = ("test", "validation", "valid", "val")  # the first of these that has labels is the test split
Say = Callable[[str], object]


def silent(line: str) -> None:
    """What is told where nobody listens."""


class Kind(NamedTuple):
    """What the files hold: the word for one of them, their suffixes, whether a file's name can give its class.

    >>> CLIPS.word, CLIPS.by_name
    ('wav', True)
    """

    word: str
    suffixes: tuple[str, ...]
    by_name: bool = False


IMAGES = Kind("image", (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
# Only these are tried: PIL knows formats that start other programs. Guessing first halves the time of small images.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MAGIC = {b"\x89PNG": "PNG", b"\xff\xd8": "JPEG", b"RIFF": "WEBP"}
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
    files: tuple[tuple[str, int], ...]  # where the rows came from: name, count
    rows: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """How a person finds the example: file and row."""
        return _row(self.files, int(self.rows[index]))

    def read(self, index: int) -> bytes:
        """The encoded example."""
        cell = self.table[int(self.rows[index])].column(self.column)[0].as_py()
        held = cell if isinstance(cell, dict) else {"bytes": cell}
        if held["bytes"] is not None:
            return held["bytes"]
        if held.get("path") is None:
            raise ValueError(f"{self.name(index)}: {self.column} is missing: fill it or take the row out")
        return _read(held["path"])

    def take(self, rows: Tensor) -> Rows:
        """The examples of these numbers, in this order."""
        return replace(self, rows=self.rows[rows], labels=self.labels[rows])


class Records(NamedTuple):
    """A source, opened: both splits and the names of the classes."""

    train: Files | Rows
    test: Files | Rows
    classes: tuple[str, ...]


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
    """What tells this data from any other: files' names and what they hold, or with `read=False` their sizes.

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
    return content_hash(repr([(name, os.stat(file).st_size) for name, file in zip(names, found.files, strict=True)]))


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


def open_records(found: Found, kind: Kind, *, label: str | None, folder: Path, say: Say) -> Records:
    """Both splits of what `find` found. Rows of parquet files are copied into `folder`, where they can be mapped.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     for clip in ("yes_1", "yes_2", "no_1"):
    ...         _ = Path(name, f"{clip}.wav").write_bytes(clip.encode())
    ...     records = open_records(find(name), CLIPS, label=None, folder=Path(name, "rows"), say=print)
    ...     records.classes, records.train.read(0), records.train.labels
    no test split with labels: 1 of 3 examples are held out, the same ones always
    (('no', 'yes'), b'no_1', tensor([0, 1]))
    """
    train: Files | Rows
    test: Files | Rows | None
    if found.path is None:
        tables: dict[str, Split] = {name: (table, ()) for name, table in found.tables.items()}
        train, test, classes = _open_rows(tables, kind, label, folder, say)
    elif parquet := [file for file in found.files if file.suffix.lower() == ".parquet"]:
        media = next((file for file in found.files if file.suffix.lower() in kind.suffixes), None)
        if media is not None:
            raise ValueError(
                f"{found.path} holds both {parquet[0].name} and {media.name}: keep one kind of source in a folder"
            )
        train, test, classes = _open_rows(_parquet(found.path, parquet), kind, label, folder, say)
    elif found.path.is_file():
        raise ValueError(f"{found.path} is no parquet file: give a folder of {kind.word} files, or parquet")
    else:
        train, test, classes = _open_files(found.path, list(map(str, found.files)), kind, say)
    if test is not None:
        return Records(train, test, classes)
    kept, held = hold_out(train.labels)
    say(f"no test split with labels: {len(held):,} of {len(train):,} examples are held out, the same ones always")
    return Records(train.take(kept), train.take(held), classes)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _row(files: tuple[tuple[str, int], ...], row: int) -> str:
    for name, count in files:
        if row < count:
            return f"{name}, row {row}"
        row -= count
    raise IndexError(row)


def _pick(present: Iterable[str], labelled: Callable[[str], bool], say: Say) -> str | None:
    """The test split among those present; those passed over are named."""
    chosen = None
    for name in sorted(set(present) - {"train"}, key=lambda name: (*TESTS, name).index(name)):
        if chosen is None and name in TESTS and labelled(name):
            chosen = name
        else:
            say(f"the {name} split is left aside" + ("" if chosen else ": it has no labels" * (name in TESTS)))
    return chosen


# ── files in class folders ───────────────────────────────────────────────────────────────────────────────────────


def _open_files(folder: Path, files: list[str], kind: Kind, say: Say) -> tuple[Files, Files | None, tuple[str, ...]]:
    below = _folders(folder)
    splits = {name: folder / name for name in below if name in ("train", *TESTS)}
    if "train" not in splits or len(splits) == 1 < len(below):  # beside other folders alone, "train" is a class
        if splits and len(splits) == len(below):
            raise ValueError(f"{folder} has {', '.join(below)} but no train folder: name the training split train")
        splits = {"train": folder}
    elif odd := [name for name in below if name not in splits]:
        raise ValueError(
            f"{folder / odd[0]} is no split beside train: name it one of {', '.join(TESTS)}, or move it away"
        )
    elif loose := _by_folder(folder, files, kind)[1]:
        raise ValueError(f"{loose[0]} stands beside the train folder: move it into a class folder of a split")

    def labelled(name: str) -> bool:
        return kind.by_name or not _by_folder(splits[name], files, kind)[1]

    test = _pick(splits, labelled, say)
    train = _examples(splits["train"], files, kind)
    classes = {name: number for number, name in enumerate(sorted({name for _, name in train}))}
    held = _examples(splits[test], files, kind) if test else []
    for path, name in held:
        if name not in classes:
            raise ValueError(f"{path}: class {name!r} is unknown to {splits['train']}: add examples of it there")
    return _files(train, classes), _files(held, classes) if held else None, tuple(classes)


def _files(examples: list[tuple[str, str]], classes: dict[str, int]) -> Files:
    import numpy as np

    return Files(np.array([os.fsencode(path) for path, _ in examples]), torch.tensor([classes[c] for _, c in examples]))


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _by_folder(folder: Path, files: list[str], kind: Kind) -> tuple[dict[str, list[str]], list[str]]:
    """Of all files, those in each folder right below this one, and those of this kind that stand in it directly."""
    inside: dict[str, list[str]] = {name: [] for name in _folders(folder)}
    loose, root = [], os.path.join(folder, "")
    for file in files:
        if file.startswith(root):
            name, deeper, _ = file[len(root) :].partition(os.sep)
            if deeper:
                inside[name].append(file)
            elif file.lower().endswith(kind.suffixes):
                loose.append(file)
    return inside, loose


def _examples(folder: Path, files: list[str], kind: Kind) -> list[tuple[str, str]]:
    """(path, class) of all files in the class folders of one split; other files beside the class folders may stay."""
    inside, loose = _by_folder(folder, files, kind)
    if loose and (inside or not kind.by_name):
        raise ValueError(
            f"{loose[0]} stands in no class folder: put every {kind.word} into a folder named as its class"
        )
    if not loose and not inside:
        raise ValueError(f"{folder} holds no class folders: put every {kind.word} into a folder named as its class")
    examples = []
    for path in loose:
        name, underscore, _ = Path(path).stem.partition("_")
        if not name or not underscore:
            raise ValueError(
                f"{path} names no class before an underscore: call it class_{Path(path).name}, or use class folders"
            )
        examples.append((path, name))
    for name, members in inside.items():
        odd = next((path for path in members if not path.lower().endswith(kind.suffixes)), None)
        if odd is not None:
            raise ValueError(
                f"{odd} is no {kind.word} file ({', '.join(kind.suffixes)}): move it out of the class folder"
            )
        if not members:
            raise ValueError(f"the class folder {folder / name} holds no {kind.word} files: fill it or remove it")
        examples += [(path, name) for path in members]
    return examples


# ── rows of parquet files and of the hub ─────────────────────────────────────────────────────────────────────────

Split = tuple[Any, tuple[tuple[str, int], ...]]  # a Dataset, or the paths of its parquet files; (name, rows) of each


def _parquet(found: Path, files: list[Path]) -> dict[str, Split]:
    """The files of each split; a file alone is the training split."""
    import pyarrow
    import pyarrow.parquet

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
        try:
            rows = pyarrow.parquet.ParquetFile(name).metadata.num_rows
        except (OSError, pyarrow.ArrowException) as error:
            raise ValueError(f"{name} is damaged or no parquet file ({_reason(error)}): fetch it again") from None
        paths, counts = splits.get(split or "train", ([], ()))
        splits[split or "train"] = ([*paths, name], (*counts, (name, rows)))
    return splits


def _open_rows(
    splits: dict[str, Split], kind: Kind, label: str | None, folder: Path, say: Say
) -> tuple[Rows, Rows | None, tuple[str, ...]]:
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
    rows = Rows(table, data, splits["train"][1], torch.arange(len(train)), train)
    test = _pick(splits, labelled, say)
    if test is None:
        return rows, None, classes
    table, data, column, held = open_split(test)
    if getattr(table.features[column], "names", None) != getattr(feature, "names", None):
        raise ValueError(f"{splits[test][1][0][0]} names other classes in {column} than {splits['train'][1][0][0]}")
    _, labels = _numbered(held, getattr(feature, "names", None), classes, splits[test][1], column)
    return rows, Rows(table, data, splits[test][1], torch.arange(len(labels)), labels), classes


def _copy(
    files: tuple[tuple[str, int], ...], kind: Kind, label: str | None, folder: Path
) -> tuple[Any, tuple[str, str]]:
    """The two columns of these parquet files as a memory-mapped `datasets.Dataset` kept in the folder."""
    import datasets
    import pyarrow
    import pyarrow.parquet

    paths = [path for path, _ in files]
    schemas = [pyarrow.parquet.read_schema(path) for path in paths]
    columns = _columns(schemas[0], kind, label, paths[0])
    for path, schema in zip(paths, schemas, strict=True):
        for name in columns:
            if name not in schema.names or schema.field(name).type != schemas[0].field(name).type:
                raise ValueError(f"{path} has no column {name} of the type it has in {paths[0]}: keep them alike")
    bars, level = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL + 1)  # what goes wrong is told below, in one line
    try:
        for again in (True, False):
            try:
                table = datasets.Dataset.from_parquet(paths, cache_dir=str(folder), columns=list(columns))
                if len(table) == sum(rows for _, rows in files):
                    return table, columns
            except (OSError, ValueError, pyarrow.ArrowException, datasets.exceptions.DatasetsError) as error:
                if not again:
                    _blame(paths, columns)
                    raise ValueError(
                        f"cannot copy {paths[0]} into {folder}: {_reason(error.__cause__ or error)}"
                    ) from None
            shutil.rmtree(folder, ignore_errors=True)  # a copy made before may be damaged: it is made again
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()
    raise ValueError(f"{paths[0]}: the copy in {folder} does not hold all rows: make room, or remove the folder")


def _blame(paths: list[str], columns: tuple[str, str]) -> None:
    import pyarrow
    import pyarrow.parquet

    for path in paths:
        try:
            for _ in pyarrow.parquet.ParquetFile(path).iter_batches(columns=list(columns)):
                pass
        except (OSError, pyarrow.ArrowException) as error:
            raise ValueError(f"{path} is damaged ({_reason(error)}): fetch it again") from None


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())


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
            raise ValueError(f"{_row(files, row)}: {column} {why.format(held[row].as_py())}")

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


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_image(data: bytes, name: str) -> Any:
    """The PIL image of these bytes, grey ("L") or "RGB"; palettes become colours, alpha goes, 16 bits become 8.

    >>> decode_image(b"GIF", "a.gif")
    Traceback (most recent call last):
    ValueError: a.gif cannot be decoded as an image (cannot identify it): repair it or take it out
    """
    from PIL import Image

    try:
        likely = next((name for start, name in MAGIC.items() if data.startswith(start)), None)
        image: Image.Image = Image.open(io.BytesIO(data), formats=(likely,) if likely else FORMATS)
        image.load()
    except Exception as error:  # decoders raise whatever they like
        reason = "cannot identify it" if isinstance(error, Image.UnidentifiedImageError) else _reason(error)
        raise ValueError(f"{name} cannot be decoded as an image ({reason}): repair it or take it out") from None
    if image.mode.startswith("I;16"):
        import numpy as np

        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{name} has pixels of 32 bits (mode {image.mode}): save it with 8 bits a channel")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # first: a palette may hold transparency
    return image.convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB")


def centred(image: Any, shorter: int | float, size: int) -> Any:
    """The shorter side scaled to `shorter`, then the central size × size; one bicubic step makes no more than that.

    >>> from PIL import Image
    >>> centred(Image.new("L", (500, 375)), 256, 224).size
    (224, 224)
    """
    from PIL import Image

    if image.size == (size, size) and shorter == size:
        return image
    width, height = image.size
    half = min(width, height) * size / shorter / 2
    box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def random_box(width: int, height: int, seed: int) -> tuple[int, int, int, int]:
    """(left, upper, right, lower) of the random crop of the module's head, a function of its arguments alone.

    >>> random_box(500, 375, seed=1) == random_box(500, 375, seed=1)
    True
    """
    draws = torch.rand(10, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
    for scale, shape, across, down in draws:
        area, ratio = width * height * (0.08 + 0.92 * scale), math.exp((2 * shape - 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(across * (width - w + 1)), int(down * (height - h + 1))
            return left, upper, left + w, upper + h
    # Ten crops did not fit: a long thin image gives its middle, at the nearest ratio allowed.
    w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


class Streamed:
    """Labelled images that need not fit into memory: `len`, `labels`, `classes`, and `batches` of uint8.

    The object itself is the training split, `.test` the other one, which is never cropped at random.

    >>> from tempfile import TemporaryDirectory
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     for number, name in enumerate(["cat", "dog"] * 10):
    ...         Path(folder, name).mkdir(exist_ok=True)
    ...         Image.new("RGB", (40, 30), (number, 0, 0)).save(Path(folder, name, f"{number}.png"))
    ...     data = Streamed(folder, size=16)
    ...     images, labels = next(data.batches([[(0, 7), (17, 8)]]))
    >>> data.classes, len(data), len(data.test), images.shape, labels.tolist()
    (('cat', 'dog'), 18, 2, torch.Size([2, 3, 16, 16]), [0, 1])
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        size: int = 224,
        train_crop: Literal["resized", "centre"] = "resized",
        workers: int = 0,
        label: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        say: Say | None = None,
    ) -> None:
        if size < 1 or workers < 0:
            raise ValueError(f"size is {size} and workers {workers}: give a size of 1 or more, workers 0 or more")
        if train_crop not in ("resized", "centre"):
            raise ValueError(f"train_crop is {train_crop!r}: give 'resized' or 'centre'")
        found = find(source)
        key = identity(found, read=False)
        opened = open_records(
            found, IMAGES, label=label, folder=cache_folder(cache) / f"arrow-{key}", say=say or silent
        )
        self.size, self.workers, self.crop = size, workers, train_crop
        self.classes, self.records = opened.classes, opened.train
        self.fingerprint = content_hash("streamed", key, str(label), size)
        self.test = copy.copy(self)
        self.test.records, self.test.crop = opened.test, "centre"

    def __len__(self) -> int:
        return len(self.records)

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        """The class of every image."""
        return self.records.labels

    def image(self, index: int, seed: int) -> Any:
        """The PIL image a model sees: decoded, in RGB, cropped by the seed or to the centre, size × size."""
        from PIL import Image

        if not 0 <= index < len(self):
            raise ValueError(f"there is no image {index}: the numbers run from 0 to {len(self) - 1}")
        image = decode_image(self.records.read(index), self.records.name(index)).convert("RGB")
        if self.crop == "centre":
            return centred(image, self.size * 256 / 224, self.size)
        box = random_box(image.width, image.height, seed)
        return image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box)

    def batches(
        self, order: Iterable[list[tuple[int, int]]]
    ) -> Iterator[tuple[UInt8[Tensor, "n 3 size size"], Int64[Tensor, " n"]]]:
        """A batch of images and labels for every list of (index, seed), in order; `order` is read a few lists ahead."""
        from torch.utils.data import DataLoader

        # Its own generator: without one, starting to iterate draws from torch's global dice.
        loader: Iterable[Any] = DataLoader(
            _Decoding(self),  # type: ignore[arg-type]
            batch_sampler=order,
            num_workers=self.workers,
            collate_fn=_as_is,
            generator=torch.Generator(),
        )
        for batch in loader:
            if isinstance(batch, str):
                raise ValueError(batch)
            yield batch


class _Decoding:
    """What a worker runs. An error comes back as its text: the loader would wrap it in the worker's traceback."""

    def __init__(self, streamed: Streamed) -> None:
        self.streamed = streamed

    def __len__(self) -> int:
        return len(self.streamed)

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("batches only")

    def __getitems__(self, pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor] | str:
        import numpy as np

        size = self.streamed.size
        pixels = np.empty((len(pairs), size, size, 3), dtype=np.uint8)
        try:
            for row, (index, seed) in enumerate(pairs):
                pixels[row] = self.streamed.image(index, seed)
        except ValueError as error:
            return str(error)
        labels = self.streamed.labels[[index for index, _ in pairs]]
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def _as_is(batch: Any) -> Any:
    return batch
