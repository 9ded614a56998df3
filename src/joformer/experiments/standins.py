"""Stand-ins for the paper's data: the real formats, layouts, sizes of images and numbers of classes, little of each.

    mnist/train.parquet  test.parquet                    image: struct{bytes (PNG), path}, label
    cifar100/train.parquet  test.parquet                 img, fine_label, coarse_label
    imagenet/train/n01440764/n01440764_0.JPEG            1,000 classes, images of 500 × 375
    imagenet/val/n01440764/…                             a folder per class …
    imagenet-flat/val/ILSVRC2012_val_00000001.JPEG       … or none, and labels.csv: file,label,split
    wikipedia/train-00000.parquet  openwebtext/…         a column text, as many words as the vocabulary needs

Numbers learned from them mean nothing. What depends on how much data there is (steps per epoch) is computed for the
real data (`SIZES`).
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from joformer._log import logger
from joformer.experiments.sources import ImageSource

SIZES = {
    "mnist": (60_000, 10_000), "cifar100": (50_000, 10_000), "imagenet": (1_281_167, 50_000),
    "wikipedia": (20_000_000_000,), "openwebtext": (40_000_000_000,),
}  # fmt: skip
"""Images to train and to test with in the real data; of text about how many bytes."""
BYTES = 4
"""About how many bytes a token of text has."""
TEXTS = ("enwik8", "wikitext-2")
GROUPS = {
    "mnist": ("mnist",), "cifar100": ("cifar100",), "imagenet": ("imagenet",), "overhead": ("imagenet",),
    "wikipedia": ("wikipedia", *TEXTS), "transport": ("wikipedia", *TEXTS), "length": ("openwebtext", *TEXTS),
    "hierarchy": ("wikipedia", *TEXTS), "speech": ("fsdd",), "spotting": ("fsdd",),
    "relations": ("kg", "nations", "kinships", "umls"),
    "points": ("mnist",), "video": ("mnist",), "trees": ("code",), "pairs": ("cifar100",),
}  # fmt: skip
"""What each table may be run on; the first is the paper's."""
FLAT, PREFIX = "imagenet-flat", "joformer-smoke-"
_TRAIN, _TEST = 256, 64


@contextmanager
def standing_in(tables: Sequence[str], data: Path | None) -> Iterator[Path | None]:
    """A folder with data for these tables: the user's where `data` has it, stand-ins for the rest; removed in the end.

    None where nothing is needed: tables on embedded data.

    >>> with standing_in(["mnist"], None) as folder:
    ...     sorted(str(file.relative_to(folder)) for file in folder.rglob("*.parquet"))
    ['mnist/test.parquet', 'mnist/train.parquet']
    """
    groups = dict.fromkeys(GROUPS[table] for table in tables if table in GROUPS)
    found = [name for names in groups for name in names if data is not None and (data / name).exists()]
    if data is not None and not found:
        if len(groups) > 1 and data.exists():
            raise ValueError(f"--data {data} has nothing for {', '.join(tables)}: give a folder that holds some of it")
        yield data  # which is the data itself, or not there
        return
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix=PREFIX)))
        for name in dict.fromkeys(found):
            (folder / name).symlink_to((data / name).resolve())  # type: ignore[operator]
        for names in groups:
            if names[0] in MAKERS and not any((folder / name).exists() for name in names):
                logger.info(f"making a stand-in for {names[0]}")
                MAKERS[names[0]](folder)
        if not found:  # else what is made of the user's data is worth keeping
            held.enter_context(patch.dict(os.environ, {"JOFORMER_CACHE": str(folder / "cache")}))
        held.enter_context(patch.object(ImageSource, "steps", _steps))
        yield folder if any(folder.iterdir()) else None


def true_size(source: Any, split: int) -> int | None:
    """How much the real data has to train (0) or to test (1) with, where this is a stand-in for it.

    >>> true_size(ImageSource("digits"), 0) is None
    True
    """
    place = Path(source.data)
    is_ours = any(part.startswith(PREFIX) for part in place.parts)
    return SIZES[place.name][split] if is_ours and place.name in SIZES else None


_own_steps = ImageSource.steps


def _steps(source: ImageSource, epochs: int | float) -> int:
    """`ImageSource.steps` for the data that a stand-in stands for."""
    size = true_size(source, 0)
    return _own_steps(source, epochs) if size is None else max(1, round(epochs * size / source.batch))


# -- images ------------------------------------------------------------------------------------------------------------


def _picture(width: int, height: int, seed: int, kind: str, mode: str = "RGB") -> bytes:
    """An encoded image of a few smooth random colours: as many pixels as a photograph, and quickly made."""
    import numpy as np
    from PIL import Image

    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4) if mode == "L" else (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse, mode).resize((width, height), Image.Resampling.BILINEAR).save(file, kind)
    return file.getvalue()


def _parquet(place: Path, column: str, pictures: Sequence[bytes], labels: dict[str, tuple[list[int], int]]) -> None:
    """A table as the hub has it: struct{bytes, path}, and labels whose names are in the schema's metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    images = pa.array([{"bytes": one, "path": None} for one in pictures],
                      pa.struct([("bytes", pa.binary()), ("path", pa.string())]))  # fmt: skip
    features: dict[str, Any] = {column: {"_type": "Image"}}
    for name, (_, count) in labels.items():
        features[name] = {"names": [str(number) for number in range(count)], "_type": "ClassLabel"}
    columns = {column: images, **{name: pa.array(values) for name, (values, _) in labels.items()}}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    place.parent.mkdir(exist_ok=True)
    parquet.write_table(table, place)


def _mnist(folder: Path) -> None:
    for split, count in (("train", _TRAIN), ("test", _TEST)):
        pictures = [_picture(28, 28, number, "PNG", "L") for number in range(count)]
        _parquet(folder / "mnist" / f"{split}.parquet", "image", pictures, {"label": (_cycle(count, 10), 10)})


def _cifar100(folder: Path) -> None:
    for split, count in (("train", _TRAIN), ("test", _TEST)):
        pictures = [_picture(32, 32, number, "PNG") for number in range(count)]
        labels = {"fine_label": (_cycle(count, 100), 100), "coarse_label": (_cycle(count, 20), 20)}
        _parquet(folder / "cifar100" / f"{split}.parquet", "img", pictures, labels)


def _cycle(count: int, classes: int) -> list[int]:
    return [number % classes for number in range(count)]


def _imagenet(folder: Path, classes: int = 1000, size: tuple[int, int] = (500, 375), test: int = 16) -> None:
    """Both layouts; of each picture there is one copy on the disk, under several names."""
    pictures = [folder / f".picture-{number}" for number in range(8)]
    for number, picture in enumerate(pictures):
        picture.write_bytes(_picture(*size, number, "JPEG"))
    names = [f"n{1440764 + 7919 * number:08d}" for number in range(classes)]
    rows = []

    def place(number: int, *path: str) -> None:
        file = folder.joinpath(*path)
        file.parent.mkdir(parents=True, exist_ok=True)
        os.link(pictures[number % len(pictures)], file)

    for number, name in enumerate(names):
        for copy in range(2):
            file = ("train", name, f"{name}_{copy}.JPEG")
            place(number + copy, "imagenet", *file)
            place(number + copy, FLAT, *file)
            rows.append(("/".join(file), name, "train"))
    for number, name in enumerate(names[:test], 1):
        held = f"ILSVRC2012_val_{number:08d}.JPEG"
        place(number, "imagenet", "val", name, held)
        place(number, FLAT, "val", held)
        rows.append((f"val/{held}", name, "val"))
    with open(folder / FLAT / "labels.csv", "w", newline="", encoding="utf-8") as table:
        csv.writer(table).writerows([("file", "label", "split"), *rows])


# -- text --------------------------------------------------------------------------------------------------------------


def _text(name: str, words: int, columns: tuple[str, ...] = ("text",)) -> Callable[[Path], None]:
    """Documents of so many different made-up words, each several times: enough for the vocabulary."""

    def make(folder: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        draw = random.Random(name)
        known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(words)]
        every = known * 4
        draw.shuffle(every)
        documents = [" ".join(every[at : at + 400]) + ".\n" for at in range(0, len(every), 400)]
        others = {column: [f"{column} {number}" for number in range(len(documents))] for column in columns[:-1]}
        (folder / name).mkdir()
        parquet.write_table(pa.table({**others, "text": documents}), folder / name / "train-00000-of-00001.parquet")

    return make


MAKERS: dict[str, Callable[[Path], None]] = {
    "mnist": _mnist,
    "cifar100": _cifar100,
    "imagenet": _imagenet,
    "wikipedia": _text("wikipedia", 20_000, ("id", "url", "title", "text")),
    "openwebtext": _text("openwebtext", 60_000),
}
