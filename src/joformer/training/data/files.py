"""Files of any origin: found in one order, hashed, unpacked, decoded; whatever they claim, sizes are bounded."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from joformer._io import LIMITS, allowed, not_a_file, one_line, open_file, read_file

CHUNK = 1 << 20
EXAMPLE = 1 << 28  # bytes of one encoded image or clip: nobody's are larger
# What a compressed file may become: this many bytes, and so many times its own. Text is seldom packed to less than a
# thirtieth, a bomb of zeros to a thousandth (gz) or a millionth.
FREE, RATIO = 1 << 26, 100
XZ_MEMORY = 1 << 28  # to unpack what `xz -9` made takes a quarter of this
# Hidden files, and those that systems leave behind in folders of people's data.
ASIDE = re.compile(r"\..*|thumbs\.db|desktop\.ini|__macosx", re.IGNORECASE)
# None of these can begin text in UTF-8, so that the first bytes tell what a file holds, whatever its name.
MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
PACKED = (".gz", ".xz", ".zst")
# UTF-32 first: its mark in little-endian order begins with that of UTF-16.
MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
MARKS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


Place = str | os.PathLike[str]
Fault = Callable[[str], None]


def fault(line: str) -> None:
    """What opening does about a fault in the data: it raises; `joformer check` collects them instead.

    >>> fault("a.png is damaged")
    Traceback (most recent call last):
    ValueError: a.png is damaged
    """
    raise ValueError(line)


def content_hash(*parts: Path | bytes | str | int) -> str:
    """sha256, in hex, over all parts in order; a `Path` counts by what its file holds, not by its name.

    >>> content_hash(b"ab", b"c") == content_hash(b"a", b"bc"), len(content_hash("text", 8000))
    (False, 64)
    """
    whole = hashlib.sha256()
    for part in parts:
        one = hashlib.sha256()
        if isinstance(part, Path):
            with _reading(part), open_file(part) as file:
                for piece in _all_of(file, CHUNK):
                    one.update(piece)
        else:
            one.update(part if isinstance(part, bytes) else repr(part).encode())
        whole.update(one.digest())
    return whole.hexdigest()


def suffix_of(path: Place) -> str:
    """The suffix in lower case, without that of a compression.

    >>> suffix_of("train.JSONL.gz"), suffix_of("notes.xz")
    ('.jsonl', '')
    """
    stem, suffix = os.path.splitext(os.fspath(path).lower())
    return os.path.splitext(stem)[1] if suffix in PACKED else suffix


def require_path(source: Place) -> Path:
    """The file or folder, which exists and may be read, or one line saying what is wrong.

    >>> require_path("a/nowhere.txt")
    Traceback (most recent call last):
    ValueError: a/nowhere.txt does not exist: give a file or a folder
    """
    if not os.fspath(source):
        raise ValueError("the name of the data is empty: give a file, a folder or a name")
    path = Path(source).expanduser()
    try:
        path.stat()
        if path.is_dir():
            next(path.iterdir(), None)
        else:
            open_file(path).close()
    except (FileNotFoundError, NotADirectoryError):
        names = (
            "stdlib, wikipedia, openwebtext for text; digits, tones, words, mnist, cifar100, imagenet for classes; "
            "moving for video, captions for images with text, clouds for points, stdlib-trees for "
            "trees, family for relations"
        )
        known = f", or a name: {names}" if len(path.parts) == 1 else ""
        raise ValueError(f"{path} does not exist: give a file or a folder{known}") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise ValueError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    return path


def files_under(folder: Path, aside: re.Pattern[str] = ASIDE) -> list[Path]:
    """All files in the folder and in those below it, in the same order on every machine.

    Files and folders with a name that `aside` matches stay out: by default those with a leading dot, Thumbs.db,
    desktop.ini and __MACOSX. A pipe, a socket or a device among them is one line that names it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     for file in ("b.txt", "a.txt", ".hidden"):
    ...         _ = Path(name, file).write_text(file)
    ...     [path.name for path in files_under(Path(name))]
    ['a.txt', 'b.txt']
    """

    def stop(error: OSError) -> None:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}")

    found, seen = [], set()
    for here, below, names in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add(real)
        below[:] = [name for name in below if not aside.fullmatch(name)]
        found += [Path(here, name) for name in names if not aside.fullmatch(name)]
    for path in found:
        with suppress(OSError):  # whoever reads it says so
            if reason := not_a_file(path.stat().st_mode):
                raise ValueError(f"cannot read {path}: {reason}")
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def read_chunks(path: Path, size: int = CHUNK) -> Iterator[bytes]:
    r"""The bytes of a file, a chunk at a time, with gz, xz and zst undone.

    The first bytes tell which it is, else the suffix. A truncated or damaged file is one line that names it,
    and so is one that expands beyond all measure.

    >>> import gzip
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "text")
    ...     _ = path.write_bytes(gzip.compress(b"line\n" * 3))
    ...     b"".join(read_chunks(path))
    b'line\nline\nline\n'
    """
    import lzma
    import zlib

    with _reading(path), open_file(path) as file:
        start = file.read(6)
        kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), path.suffix.lower().lstrip("."))
        file.seek(0)
        if kind not in MAGIC.values() or not start:
            yield from _all_of(file, size)
            return
        held = Expansion(path)
        try:
            for chunk in _unpacked(file, kind, size):
                held.add(len(chunk))
                yield chunk
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise ValueError(f"{path} is damaged or truncated ({kind}: {one_line(error)}): fetch it again") from None


def read_utf8(path: Path, found: dict[Path, str] | None = None) -> Iterator[bytes]:
    r"""`read_chunks` without a byte-order mark, which tells UTF-16 and UTF-32: these as UTF-8; `found` gets which.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "text")
    ...     _ = path.write_bytes("né".encode("utf-16"))
    ...     b"".join(read_utf8(path))
    b'n\xc3\xa9'
    """
    chunks = read_chunks(path)
    first = b""
    for chunk in chunks:
        first += chunk
        if len(first) >= 512:  # what comes first is looked at as a whole
            break
    encoding = next((name for mark, name in MARKS.items() if first.startswith(mark)), None)
    if encoding is None:
        _refuse_unmarked(first, path)
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    if found is not None:
        found[path] = encoding
    try:
        for text in codecs.iterdecode(itertools.chain([first], chunks), encoding):
            yield text.encode()
    except UnicodeError as error:
        raise ValueError(f"{path} is damaged or not {encoding} ({one_line(error)}): save it as UTF-8") from None


def _refuse_unmarked(first: bytes, path: Path) -> None:
    """Raises ValueError for UTF-16 without its mark, which is valid UTF-8 as well: every other byte of it is 0."""
    for zeros, others, order in ((first[1::2], first[::2], "LE"), (first[::2], first[1::2], "BE")):
        if zeros.count(0) > 0.5 * len(zeros) and others.count(0) < 0.1 * len(others):
            raise ValueError(
                f"{path} looks like UTF-16 without its mark: convert it by iconv -f UTF-16{order} -t UTF-8"
            )


class Expansion:
    """How much a file becomes when it is read: more than its size allows is one line that says how to allow it.

    >>> Expansion(Path(__file__)).add(10)
    """

    def __init__(self, path: Place) -> None:
        self.path, self.size, self.given = path, os.stat(path).st_size, 0
        self.most = allowed(FREE + RATIO * self.size)

    def add(self, size: int) -> None:
        """So many bytes more."""
        self.given += size
        if self.given > self.most:
            remedy = f"if you trust it, set {LIMITS}=10 to allow ten times as much"
            raise ValueError(f"{self.path} expands from {self.size:,} to more than {self.most:,} bytes: {remedy}")


def open_parquet(path: Place) -> Any:
    """The `pyarrow.parquet.ParquetFile`; one that is none, or that claims to hold far more than it can, is one line.

    >>> open_parquet(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...files.py is damaged or not a parquet file (...): fetch it again
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(path):  # it would wait for a pipe
            table = pyarrow.parquet.ParquetFile(os.fspath(path), page_checksum_verification=True)
        about = table.metadata
        sizes = [about.row_group(number).total_byte_size for number in range(about.num_row_groups)]
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} is damaged or not a parquet file ({one_line(error)}): fetch it again") from None
    Expansion(path).add(max(sum(sizes), 8 * about.num_rows))
    return table


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot read {path}: {one_line(error)}") from None


def _all_of(stream: Any, size: int) -> Iterator[bytes]:
    while chunk := stream.read(size):
        yield chunk


def _unpacked(file: Any, kind: str, size: int) -> Iterator[bytes]:
    if kind == "xz":
        return _xz(file, size)
    if kind == "gz":
        import gzip

        return _all_of(gzip.open(file), size)
    import pyarrow

    return _all_of(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd"), size)


def _xz(file: Any, size: int) -> Iterator[bytes]:
    """`lzma.open` would take any memory that the header asks for, up to 4 GB."""
    import lzma

    data = file.read(CHUNK)
    while data:  # one stream after another, with zeros between them that fill up
        decoder = lzma.LZMADecompressor(memlimit=allowed(XZ_MEMORY))
        while not decoder.eof:
            if chunk := decoder.decompress(data, size):
                yield chunk
            data = b""
            if decoder.needs_input and not (data := file.read(CHUNK)):
                raise EOFError("it ends before its end-of-stream marker")
        data = decoder.unused_data.lstrip(b"\0")
        while not data and (more := file.read(CHUNK)):
            data = more.lstrip(b"\0")


def require_inside(path: str, folders: Sequence[str], named: str) -> str:
    """Where a path that stands in a table leads: it could name any file of this machine."""
    try:
        place = os.path.realpath(path)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ValueError(f"{named}: {one_line(error)}") from None
    if not any(place.startswith(os.path.join(folder, "")) for folder in folders):
        raise ValueError(f"{named}, outside of the data's folder: put the file into it, or its bytes into the row")
    return place


def read_example(path: str, where: str = "") -> bytes:
    """The bytes of one encoded image or clip."""
    try:
        return read_file(path, EXAMPLE)
    except OSError as error:
        raise ValueError(f"{where}cannot read {path}: {one_line(error)}") from None
