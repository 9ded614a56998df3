"""Data by name or by path: text as tokens on disk, images and spectrograms as bytes in memory."""

from __future__ import annotations

import os
from pathlib import Path

from joformer.training.data.audio import load_audio
from joformer.training.data.images import Images, Labelled, load_images
from joformer.training.data.sources import files_under, is_hub, open_parquet, require_path
from joformer.training.data.streamed import Streamed
from joformer.training.data.text import Text, Tokenizer, load_text, windows

__all__ = [
    "Images",
    "Labelled",
    "Streamed",
    "Text",
    "Tokenizer",
    "load_audio",
    "load_images",
    "load_labelled",
    "load_text",
    "windows",
]


def load_labelled(
    source: str | os.PathLike[str],
    *,
    label: str | None = None,
    size: int | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Images:
    """Images, or the spectrograms of sounds: whichever the source holds.

    >>> load_labelled("digits").train.images.shape
    torch.Size([1438, 1, 8, 8])
    """
    if not _sounds(source):
        return load_images(source, label=label, size=size, cache=cache)
    if size is not None:
        raise ValueError(f"{source} holds sounds, whose spectrograms have a size of their own: leave out size")
    return load_audio(source, label=label, cache=cache)


def _sounds(source: str | os.PathLike[str]) -> bool:
    if source in ("tones", "words"):
        return True
    if source == "digits" or is_hub(source):
        return False
    path = require_path(source)
    files = files_under(path) if path.is_dir() else [path]
    tables = [file for file in files if file.suffix.lower() == ".parquet"]
    return _first_is_wav(tables[0]) if tables else any(file.suffix.lower() in (".wav", ".wave") for file in files)


def _first_is_wav(table: Path) -> bool:
    import pyarrow

    try:
        rows = next(open_parquet(table).iter_batches(1), None)
    except (OSError, ValueError, pyarrow.ArrowException):
        return False  # and whoever opens it as images says what is wrong with it
    cells = [] if rows is None else list(rows.to_pylist()[0].values())
    held = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells]
    return any(isinstance(cell, bytes) and cell[8:12] == b"WAVE" for cell in held)
