"""Text from anywhere, as a stream of valid UTF-8 for each split.

Sources: "stdlib" (the Python standard library's source), "wikipedia", "openwebtext" or "hub:owner/name", or a path: a
text file, a table with a text column (parquet, JSON lines, CSV, TSV), or a folder of one of these; gz, xz and zst are
undone, UTF-16 and UTF-32 with a byte-order mark are decoded. Other formats (PDF, zip, images, …) are no text and are
called what they are. Splits are those of sources.py; text that names no train split and another one is all train.

Documents of one split (files in the order of their paths, rows) follow one another, with a newline between two where
the former does not end with one.
"""

from __future__ import annotations

import codecs
import itertools
import logging
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from joformer._io import one_line, open_file
from joformer.training.data.files import Expansion, Fault, fault, files_under, open_parquet, read_utf8, suffix_of
from joformer.training.data.hub import hub_identity
from joformer.training.data.sources import SPLITS, Note, Source, split_of
from joformer.training.data.tables import is_parquet, is_table, pick_column, read_rows

ROWS = 256
# In the standard library: tests, what is installed beside it, what was written for this machine, tables.
ASIDE = re.compile(
    r"\..*|site-packages|dist-packages|tests?|idle_test|__pycache__|config-.*|_sysconfigdata.*|(site|user)customize\.py"
    r"|encodings|pydoc_data|lib2to3|__phello__.*"
)
# What is no text although its bytes may be UTF-8, or deserves a better word than where they are not.
UNPACK, OTHER = "unpack it", "take it out, or train another kind of model on it (joformer train vit)"
FOREIGN = {
    b"%PDF-": ("a PDF", "extract its text, for example by pdftotext"),
    b"{\\rtf": ("an RTF document", "save it as plain text"),
    b"PK\x03\x04": ("a zip archive or an office document", "unpack it, or save it as plain text"),
    **dict.fromkeys((b"BZh", b"7z\xbc\xaf", b"Rar!"), ("an archive", UNPACK)),
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"), ("an image", OTHER)),
    **dict.fromkeys((b"RIFF", b"fLaC", b"OggS", b"ID3\x03", b"ID3\x04"), ("a sound or an image", OTHER)),
    **dict.fromkeys((b"\x80\x04\x95", b"\x93NUMPY", b"SQLite f", b"\x7fELF"), ("binary data", "take it out")),
}


Document = tuple[str, Iterable[bytes]]  # what errors call it, and its bytes


class Documents(NamedTuple):
    """The documents of a source.

    Attributes:
        parts: For each split, train always among them, a function that gives its documents, at every call.
        identity: What tells its content from others, for `content_hash`.
        notes: What was decided.
        decoded: The encodings of files in UTF-16 or UTF-32 that were read so far.
    """

    parts: Mapping[str, Callable[[], Iterator[Document]]]
    identity: list[Any]
    notes: list[Note]
    decoded: dict[Path, str]


def stream(documents: Iterable[Document]) -> Iterator[bytes]:
    """The bytes of all documents, a chunk at a time, checked to be UTF-8.

    >>> b"".join(stream([("a.txt", [b"to be"]), ("b.txt", [b"or not", b" to be"])]))
    b'to be\\nor not to be'
    >>> list(stream([("a.txt", [b"ab\\xe9cd"])]))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ValueError: a.txt is not UTF-8 at byte 2 (0xe9): if it is text, convert it, for example by iconv …
    """
    apart = b""
    for name, chunks in documents:
        decoder, read, start = codecs.getincrementaldecoder("utf-8")(), 0, apart
        for chunk in itertools.chain(chunks, [None]):  # the last ends a character that was not complete
            at = read - len(decoder.getstate()[0])
            try:
                decoder.decode(chunk or b"", final=chunk is None)
            except UnicodeDecodeError as error:
                place = f"byte {at + error.start} (0x{error.object[error.start]:02x})"
                remedy = "if it is text, convert it, for example by iconv -f LATIN1 -t UTF-8; if not, take it out"
                raise ValueError(f"{name} is not UTF-8 at {place}: {remedy}") from None
            if chunk:
                yield start + chunk
                start, apart, read = b"", b"" if chunk.endswith(b"\n") else b"\n", read + len(chunk)


def open_text(source: Source, fault: Fault = fault) -> Documents:
    """The documents of a source; what is wrong with a row or a file of rows goes to `fault`.

    >>> from joformer.training.data.sources import resolve
    >>> list(open_text(resolve("stdlib")).parts)
    ['train']
    """
    if source.spec == "stdlib":
        data = stdlib_source()
        return Documents({"train": lambda: iter([("stdlib", [data])])}, [data], [], {})
    if source.path is None:
        return _from_hub(source)
    path, files = source.path, _chosen(source)
    notes: list[Note] = []
    decoded: dict[Path, str] = {}
    if not files:
        raise ValueError(f"{path} holds no files: give a text file or a folder of them")
    if aside := sorted({*source.files} - {*files}):
        text = f"only {len(files):,} files like {files[0].name} are read, {len(aside):,} others are not"
        notes.append((logging.WARNING, f"{text}: {aside[0].name}"))
    named: dict[str, list[Path]] = {}
    for file in files if path.is_dir() else []:
        named.setdefault(SPLITS.get(split_of(file.relative_to(path)) or "", ""), []).append(file)
    unnamed = named.pop("", [])
    if "train" not in named and len(named) > 1:
        raise ValueError(f"{path} has files named valid and test but none named train: add or rename it")
    if len(named) < 2:
        named = {"train": files}
    elif unnamed:
        text = f"only files named {', '.join(sorted(named))} are read, {len(unnamed):,} others are not"
        notes.append((logging.WARNING, f"{text}: {unnamed[0].name}"))
    identity = [item for split, held in sorted(named.items()) for item in (split, *held)]
    if source.column is not None or is_table(files[0]):  # which the same bytes as plain text are not
        suffixes = "".join(sorted({suffix_of(file) for held in named.values() for file in held}))
        identity.append(f"column {source.column} of {suffixes}")  # .csv and .tsv cut the same bytes otherwise
    parts = {split: partial(_of_files, held, source.column, decoded, fault) for split, held in named.items()}
    return Documents(parts, identity, notes, decoded)


def _chosen(source: Source) -> list[Path]:
    """Those of a folder's files to read: parquet, else tables if only notes are beside them, else text."""
    plain = [file for file in source.files if not is_table(file)]
    is_text = any(file.suffix.lower() not in (".md", "") for file in plain)
    tables = [] if is_text else [file for file in source.files if is_table(file)]
    return [file for file in plain if is_parquet(file)] or tables or plain


def stdlib_source(limit_bytes: int = 8_000_000) -> bytes:
    """The source of the Python standard library: real text on every machine, the same for the same version of Python.

    Files in the order of their paths, whole ones only, as long as they fit into the limit. Left out are tests, what is
    installed beside the library or written for this machine, tables (encodings, pydoc_data), and files not in UTF-8.

    >>> source = stdlib_source(limit_bytes=100_000)
    >>> b"import" in source, 50_000 < len(source) <= 100_000
    (True, True)
    """
    source = bytearray()
    for path in stdlib_files():
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
        raise ValueError(f"no source of the standard library in {stdlib_root()}: give a text file instead")
    return bytes(source)


def stdlib_root() -> Path:
    """Where the standard library is.

    >>> (stdlib_root() / "ast.py").is_file()
    True
    """
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files() -> list[Path]:
    """The Python files of the standard library in the order of their paths, without tests, tables and the like.

    >>> names = [path.name for path in stdlib_files()]
    >>> "ast.py" in names, "test_ast.py" in names
    (True, False)
    """
    root = stdlib_root()
    return [path for path in files_under(root, ASIDE) if path.suffix == ".py"] if root.is_dir() else []


def _of_files(files: list[Path], column: str | None, decoded: dict[Path, str], fault: Fault) -> Iterator[Document]:
    for file in files:
        try:
            if is_parquet(file):
                yield from _of_parquet(file, column)
            elif is_table(file):
                yield from _of_table(file, column, fault)
            else:
                yield str(file), _of_file(file, decoded)
        except ValueError as error:
            fault(str(error))


def _of_file(file: Path, decoded: dict[Path, str]) -> Iterator[bytes]:
    chunks = read_utf8(file, decoded)
    first = next(chunks, b"")
    found = [about for start, about in FOREIGN.items() if first.startswith(start)]
    if first[257:262] == b"ustar":
        found = [("a tar archive", UNPACK)]
    for what, remedy in found:
        raise ValueError(f"{file} is {what}, not text: {remedy}")
    yield first
    yield from chunks


def _of_table(file: Path, column: str | None, fault: Fault) -> Iterator[Document]:
    for number, row in enumerate(read_rows(file, fault), 1):
        if number == 1:
            texts = [name for name, value in row.items() if isinstance(value, str)]
            column = pick_column(file, "column", column, texts)
        text = row.get(column or "")
        if isinstance(text, str):
            yield f"{file}, row {number},", [text.encode("utf-8", "surrogatepass")]
        else:
            fault(f"{file} has no text in row {number}: fill it or drop the row")


def _of_parquet(file: Path, column: str | None) -> Iterator[Document]:
    import pyarrow

    table, held = open_parquet(file), Expansion(file)
    rows = _of_rows(str(file), table.schema_arrow, column, lambda name: table.iter_batches(ROWS, columns=[name]))
    try:
        for name, data in rows:
            held.add(len(data[0]))
            yield name, data
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is damaged or not parquet ({one_line(error)}): fetch it again") from None


def _from_hub(source: Source) -> Documents:
    found = {SPLITS[split]: data for split, data in source.tables.items() if split in SPLITS}
    if "train" not in found:
        raise ValueError(f"{source.spec} has no train split: give a folder of its files instead")

    def documents(data: Any) -> Iterator[Document]:
        rows = data.with_format("arrow")
        schema = data.features.arrow_schema
        return _of_rows(source.spec, schema, source.column, lambda name: rows.select_columns([name]).iter(ROWS))

    identity: list[Any] = [hub_identity(data) for _, data in sorted(found.items())]
    identity += [f"column {source.column}"] * (source.column is not None)
    aside = [split for split in source.tables if split not in SPLITS]
    notes = [(logging.WARNING, f"the {split} split is left aside") for split in aside]
    return Documents({split: partial(documents, data) for split, data in found.items()}, identity, notes, {})


def _of_rows(
    where: str, schema: Any, column: str | None, batches: Callable[[str], Iterable[Any]]
) -> Iterator[tuple[str, list[bytes]]]:
    """The rows of the column of text, which `batches` gives by its name."""
    import pyarrow
    from pyarrow import types

    texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
    held = (batch.column(0) for batch in batches(pick_column(where, "column", column, texts)))
    # As bytes: what parquet calls a string was never checked, and is checked with all other text.
    rows = (data for texts in held for data in texts.cast(pyarrow.large_binary()).to_pylist())
    for row, data in enumerate(rows):
        if data is None:
            raise ValueError(f"{where} has no text in row {row}: fill it or drop the row")
        yield f"{where}, row {row},", [data]
