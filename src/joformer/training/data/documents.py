"""Text from anywhere, as a stream of valid UTF-8 for each split.

Sources: "stdlib" (the Python standard library's source), "wikipedia", "openwebtext" or "hub:owner/name", or a path: a
text file, a parquet with a text column, or a folder of either; gz, xz and zst are undone.

Splits: in a folder, files (or folders in it) named train, valid (validation, val) and test, as in train.txt.gz,
wiki.valid.tokens, test-00000-of-00002.parquet or train/a.txt, are those splits. Other text is one split, train.

Documents of one split (files in the order of their paths, rows) follow one another, with a newline between two where
the former does not end with one.
"""

from __future__ import annotations

import codecs
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joformer._io import one_line, open_file
from joformer._log import logger
from joformer.training.data.sources import (
    Expansion,
    files_under,
    hub,
    hub_identity,
    hub_name,
    is_hub,
    open_parquet,
    read_chunks,
    require_path,
)

NAMES = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}
ROWS = 256
# In the standard library: tests, what is installed beside it, what was written for this machine, tables.
ASIDE = re.compile(
    r"\..*|site-packages|dist-packages|tests?|idle_test|__pycache__|config-.*|_sysconfigdata.*|(site|user)customize\.py"
    r"|encodings|pydoc_data|lib2to3|__phello__.*"
)


@dataclass(frozen=True)
class Part:
    """One split of a source: `documents()` gives, as often as it is asked, what errors call a document and its bytes.

    >>> part = Part(lambda: iter([("a.txt", [b"to be"]), ("b.txt", [b"or not", b" to be"])]))
    >>> b"".join(part.stream())
    b'to be\\nor not to be'
    """

    documents: Callable[[], Iterator[tuple[str, Iterable[bytes]]]]

    def stream(self) -> Iterator[bytes]:
        """The bytes of all documents, a chunk at a time, checked to be UTF-8.

        >>> list(Part(lambda: iter([("a.txt", [b"ab\\xe9cd"])])).stream())  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ValueError: a.txt is not UTF-8 at byte 2 (0xe9): if it is text, convert it, for example by iconv …
        """
        apart = b""
        for name, chunks in self.documents():
            decoder, offset = codecs.getincrementaldecoder("utf-8")(), 0
            start = apart
            for chunk in chunks:
                _check(name, decoder, offset, chunk)
                offset += len(chunk)
                if chunk:
                    yield start + chunk
                    start, apart = b"", b"" if chunk.endswith(b"\n") else b"\n"
            _check(name, decoder, offset, b"", final=True)


def open_text(source: str | os.PathLike[str]) -> tuple[dict[str, Part], list[Any]]:
    """The parts of a source, train always among them, and what to give `content_hash` to tell its content from others.

    >>> parts, identity = open_text("stdlib")
    >>> list(parts)
    ['train']
    """
    if source == "stdlib":
        data = stdlib_source()
        return {"train": Part(lambda: iter([("stdlib", [data])]))}, [data]
    if is_hub(source):
        return _from_hub(str(source))
    path = require_path(source)
    files = files_under(path) if path.is_dir() else [path]
    rows = [file for file in files if _is_parquet(file)]
    if rows and len(rows) < len(files):
        logger.warning(f"{path}: only its {len(rows)} parquet files are read, {len(files) - len(rows)} others are not")
        files = rows
    if not files:
        raise ValueError(f"{path} holds no files: give a text file or a folder of them")
    named: dict[str, list[Path]] = {}
    for file in files if path.is_dir() else []:
        named.setdefault(_split(file.relative_to(path)), []).append(file)
    unnamed = named.pop("", [])
    if "train" not in named and len(named) > 1:
        raise ValueError(f"{path} has files named valid and test but none named train: add or rename it")
    if len(named) < 2:
        named, unnamed = {"train": files}, []
    if unnamed:
        logger.warning(f"{path}: only files named {', '.join(sorted(named))} are read, {len(unnamed)} others are not")
    parts = {split: Part(lambda held=held: _of_files(held)) for split, held in named.items()}  # type: ignore[misc]
    return parts, [item for split, held in sorted(named.items()) for item in (split, *held)]


def stdlib_source(limit_bytes: int = 8_000_000) -> bytes:
    """The source of the Python standard library: real text on every machine, the same for the same version of Python.

    Files in the order of their paths, whole ones only, as long as they fit into the limit. Left out are tests, what is
    installed beside the library or written for this machine, tables (encodings, pydoc_data), and files not in UTF-8.

    >>> source = stdlib_source(limit_bytes=100_000)
    >>> b"import" in source, 50_000 < len(source) <= 100_000
    (True, True)
    """
    root = Path(sysconfig.get_path("stdlib"))
    source = bytearray()
    for path in files_under(root, ASIDE) if root.is_dir() else []:
        if path.suffix != ".py":
            continue
        with open_file(path) as file:
            data = file.read(limit_bytes + 1)
        if len(source) + len(data) > limit_bytes:
            break
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        source += data
    if not source:
        raise ValueError(f"no source of the standard library in {root}: give a text file instead")
    return bytes(source)


def _check(name: str, decoder: codecs.IncrementalDecoder, offset: int, chunk: bytes, final: bool = False) -> None:
    held = len(decoder.getstate()[0])
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        at, byte = offset - held + error.start, error.object[error.start]
        remedy = "if it is text, convert it, for example by iconv -f LATIN1 -t UTF-8; if not, take it out"
        raise ValueError(f"{name} is not UTF-8 at byte {at} (0x{byte:02x}): {remedy}") from None


def _split(path: Path) -> str:
    """The split that a path's first folder or file of such a name says, or nothing."""
    words = [word for part in path.parts for word in re.split(r"[.\-_]", part.lower())]
    return next((NAMES[word] for word in words if word in NAMES), "")


def _of_files(files: list[Path]) -> Iterator[tuple[str, Iterable[bytes]]]:
    for file in files:
        if _is_parquet(file):
            yield from _of_parquet(file)
        else:
            yield str(file), read_chunks(file)


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() in (".parquet", ".pq")


def _of_parquet(file: Path) -> Iterator[tuple[str, Iterable[bytes]]]:
    import pyarrow

    table = open_parquet(file)
    column = _text_column(str(file), table.schema_arrow)
    held = Expansion(file)
    try:
        for name, chunks in _of_rows(
            str(file), (batch.column(0) for batch in table.iter_batches(ROWS, columns=[column]))
        ):
            held.add(sum(map(len, chunks)))
            yield name, chunks
    except (pyarrow.ArrowException, OSError) as error:
        reason = one_line(error)
        raise ValueError(f"{file} is damaged or no parquet ({reason}): fetch it again") from None


def _from_hub(name: str) -> tuple[dict[str, Part], list[Any]]:
    repository, _ = hub_name(name)
    logger.info(f"fetching {repository} from the hub")
    found = {NAMES[split]: data for split, data in hub(name).items() if split in NAMES}
    if "train" not in found:
        raise ValueError(f"{repository} has no train split: give a folder of its files instead")

    def rows(data: Any) -> Iterator[tuple[str, Iterable[bytes]]]:
        column = _text_column(repository, data.features.arrow_schema)
        batches = data.select_columns([column]).with_format("arrow").iter(ROWS)
        yield from _of_rows(repository, (batch.column(0) for batch in batches))

    parts = {split: Part(lambda data=data: rows(data)) for split, data in found.items()}  # type: ignore[misc]
    return parts, [hub_identity(data) for _, data in sorted(found.items())]


def _text_column(name: str, schema: Any) -> str:
    import pyarrow.types as kinds

    texts = [field.name for field in schema if kinds.is_string(field.type) or kinds.is_large_string(field.type)]
    if "text" in texts:
        return "text"
    if len(texts) == 1:
        return texts[0]
    raise ValueError(f"{name} has no column 'text', only {', '.join(schema.names) or 'none'}: rename the one to read")


def _of_rows(name: str, columns: Iterable[Any]) -> Iterator[tuple[str, list[bytes]]]:
    import pyarrow

    row = 0
    for column in columns:
        # As bytes: what parquet calls a string was never checked, and is checked with all other text.
        for data in column.cast(pyarrow.large_binary()).to_pylist():
            if data is None:
                raise ValueError(f"{name} has no text in row {row}: fill it or drop the row")
            yield f"{name}, row {row},", [data]
            row += 1
