"""Captions: the column of a table or the file beside an image that holds one, and captions made from classes.

img_1.jpg  img_1.txt                              a text beside its image
file,caption[,split]                              a table (CSV, TSV, JSON lines) that lists images
image: struct{bytes, path} or binary, caption     parquet
"maple tree", "trees"                             two levels of classes, by one of several sentences
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from joformer._io import one_line
from joformer.training.data.files import read_utf8

COLUMNS = ("caption", "text")
"""Names of the column of captions."""
LABELS = ("label", "fine_label")
LONGEST = 10_000
"""Characters of a caption that are read."""
SENTENCES = ("a photo of {a}", "this is {a}", "one can see {a} here", "{name}")
OF_TWO = ("a photo of {a}, one of the {above}", "{above}: {a}", "among the {above}, {a}", "{a} is one of the {above}")
"""What is said of an image of a class, and of one whose class lies in another."""


def caption_column(names: Sequence[str]) -> str | None:
    """The column that holds captions, None where none is called so.

    >>> caption_column(["image", "Caption"]), caption_column(["image", "label"])
    ('Caption', None)
    """
    return next((name for known in COLUMNS for name in names if name.strip().lower() == known), None)


def is_captioned(names: Sequence[str]) -> bool:
    """Whether these are the columns of images with text, and not of images with classes.

    >>> is_captioned(["image", "caption"]), is_captioned(["image", "caption", "label"])
    (True, False)
    """
    return caption_column(names) is not None and not any(name in LABELS for name in names)


def text_columns(schema: Any) -> list[str]:
    """The columns of strings of an Arrow schema."""
    from pyarrow import types

    return [each.name for each in schema if types.is_string(each.type) or types.is_large_string(each.type)]


def texts_beside(files: Iterable[Path], suffixes: tuple[str, ...]) -> dict[Path, Path]:
    """The text beside each image that has one: x.txt beside x.png.

    >>> texts_beside([Path("a.png"), Path("a.txt"), Path("b.png")], (".png",))
    {PosixPath('a.png'): PosixPath('a.txt')}
    """
    every = list(files)
    texts = {os.path.splitext(file)[0]: file for file in every if file.suffix.lower() == ".txt"}
    images = (file for file in every if file.suffix.lower() in suffixes)
    return {file: texts[stem] for file in images if (stem := os.path.splitext(file)[0]) in texts}


def tidy(caption: object) -> str:
    r"""A caption on one line, "" where there is none.

    >>> tidy(" a red\n  barn "), tidy(None)
    ('a red barn', '')
    """
    return " ".join(caption[:LONGEST].split()) if isinstance(caption, str) else ""


def read_caption(path: Path) -> str:
    """The caption in a text file; of a long one the beginning."""
    whole = b"".join(islice(read_utf8(path), 2))
    first = whole[: 4 * LONGEST]
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        return tidy(decoder.decode(first, final=len(first) == len(whole)))  # else a character may be cut in two
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({one_line(error)}): save it as UTF-8") from None


def sentence(which: int, name: str, above: str | None = None) -> str:
    """What is said of an image of this class: one of four sentences.

    >>> sentence(0, "maple_tree", "trees"), sentence(5, "orchid"), sentence(1, "bus", "vehicles_1")
    ('a photo of a maple tree, one of the trees', 'this is an orchid', 'vehicles: a bus')
    """
    name = _plain(name)
    article = "an" if name[:1].lower() in tuple("aeiou") else "a"
    form = (SENTENCES if above is None else OF_TWO)[which % len(SENTENCES)]
    return form.format(a=f"{article} {name}", name=name, above=re.sub(r" \d+$", "", _plain(above or "")))


def _plain(name: str) -> str:
    return re.sub(r"[_\s]+", " ", name).strip()
