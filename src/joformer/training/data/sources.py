"""Where data comes from: a name that the hub knows, or a path.

"mnist"  "wikipedia"  …  "hub:owner/name"       through `datasets`; a name always means the name …
"./mnist"  "~/text.txt.gz"                      … and a path with a slash or a suffix always the path
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from joformer._io import LIMITS, allowed, not_a_file, one_line, open_file

HUB: dict[str, tuple[str, str | None]] = {
    "mnist": ("ylecun/mnist", None),
    "cifar100": ("uoft-cs/cifar100", None),
    "imagenet": ("ILSVRC/imagenet-1k", None),
    "wikipedia": ("wikimedia/wikipedia", "20231101.en"),
    "openwebtext": ("Skylion007/openwebtext", None),
}
CHUNK = 1 << 20
# What a compressed file may become: this many bytes, and so many times its own. Text is seldom packed to less than a
# thirtieth, a bomb of zeros to a thousandth (gz) or a millionth.
FREE, RATIO = 1 << 26, 100
XZ_MEMORY = 1 << 28  # to unpack what `xz -9` made takes a quarter of this
HIDDEN = re.compile(r"\..*")
# None of these can begin text in UTF-8, so that what a file holds is told by its first bytes, whatever its name.
MAGIC = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}


def content_hash(*parts: Path | bytes | str | int) -> str:
    """sha256, in hex, over all parts in order; a `Path` counts by what its file holds, not by its name.

    >>> content_hash(b"ab", b"c") == content_hash(b"a", b"bc"), len(content_hash("text", 8000))
    (False, 64)
    """
    whole = hashlib.sha256()
    for part in parts:
        one = hashlib.sha256()
        if isinstance(part, Path):
            for piece in _pieces(part):
                one.update(piece)
        else:
            one.update(part if isinstance(part, bytes) else repr(part).encode())
        whole.update(one.digest())
    return whole.hexdigest()


def require_path(source: str | os.PathLike[str]) -> Path:
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
        names = "stdlib, wikipedia, openwebtext for text; digits, tones, words, mnist, cifar100, imagenet for classes"
        known = f", or a name: {names}" if len(path.parts) == 1 else ""
        raise ValueError(f"{path} does not exist: give a file or a folder{known}") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise ValueError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    return path


def files_under(folder: Path, aside: re.Pattern[str] = HIDDEN) -> list[Path]:
    """All files in the folder and in those below it, in the same order on every machine.

    Files and folders with a name that `aside` matches stay out: those with a leading dot, if not told otherwise.
    A pipe, a socket or a device among them is one line that names it.

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

    Which it is is told by the first bytes, else by the suffix. A truncated or damaged file is one line that names it,
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
            for chunk in _UNPACKED[kind](file, size):
                held.add(len(chunk))
                yield chunk
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            reason = one_line(error)
            raise ValueError(f"{path} is damaged or cut short ({kind}: {reason}): fetch it again") from None


class Expansion:
    """How much a file becomes when it is read: more than its size allows is one line that says how to allow it.

    >>> Expansion(Path(__file__)).add(10)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.size, self.given = path, os.stat(path).st_size, 0
        self.most = allowed(FREE + RATIO * self.size)

    def add(self, size: int) -> None:
        """So many bytes more."""
        self.given += size
        if self.given > self.most:
            raise ValueError(
                f"{self.path} expands from {self.size:,} to more than {self.most:,} bytes: if you trust it, "
                f"set {LIMITS}=10 to allow ten times as much"
            )


def open_parquet(path: str | os.PathLike[str]) -> Any:
    """The `pyarrow.parquet.ParquetFile`; one that is none, or that claims to hold far more than it can, is one line.

    >>> open_parquet(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: ...sources.py is damaged or no parquet file (...): fetch it again
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(path):  # it would wait for a pipe
            table = pyarrow.parquet.ParquetFile(os.fspath(path))
        about = table.metadata
        sizes = [about.row_group(number).total_byte_size for number in range(about.num_row_groups)]
    except (OSError, pyarrow.ArrowException) as error:
        reason = one_line(error)
        raise ValueError(f"{path} is damaged or no parquet file ({reason}): fetch it again") from None
    Expansion(path).add(max(sum(sizes), 8 * about.num_rows))
    return table


def hub(name: str, split: str | None = None) -> Any:
    """A data set of the hub through `datasets`: one of `HUB`, or "hub:owner/name" or "hub:owner/name:configuration".

    Gives a `datasets.Dataset`, or without `split` a `datasets.DatasetDict`. What was fetched before is found without a
    network; where neither helps, one line says so.

    >>> hub("nothing")
    Traceback (most recent call last):
    ValueError: 'nothing' is no data set's name: use cifar100, imagenet, mnist, openwebtext, wikipedia or hub:owner/name
    """
    repository, configuration = hub_name(name)
    import datasets

    try:
        with _without_waiting():
            return datasets.load_dataset(repository, configuration, split=split)
    except Exception as error:  # the client's errors have no common base: those of the network are not OSError
        reason = one_line(error)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise ValueError(
                f"cannot store {repository}: {reason}; make room or set HF_HOME to another folder"
            ) from None
        if isinstance(error, ConnectionError):
            raise ValueError(
                f"cannot reach the hub for {repository}: no network; give a folder of parquet files instead"
            ) from None
        raise ValueError(f"cannot load {repository} from the hub: {reason}") from None


def hub_name(name: str) -> tuple[str, str | None]:
    """The repository and the configuration that a name stands for; `is_hub(name)` says whether there is one.

    >>> hub_name("wikipedia")
    ('wikimedia/wikipedia', '20231101.en')
    """
    if name in HUB:
        return HUB[name]
    if not is_hub(name):
        known = ", ".join(sorted(HUB))
        raise ValueError(f"{name!r} is no data set's name: use {known} or hub:owner/name")
    repository, _, configuration = name.removeprefix("hub:").partition(":")
    return repository, configuration or None


def is_hub(source: object) -> bool:
    """Whether the source is a name for the hub rather than a path.

    >>> is_hub("mnist"), is_hub("hub:owner/name"), is_hub("./mnist")
    (True, True, False)
    """
    return isinstance(source, str) and (source in HUB or (source.startswith("hub:") and len(source) > 4))


def hub_identity(dataset: Any) -> str:
    """What tells one version of a hub's `Dataset` from another, without reading it: goes into `content_hash`.

    >>> from datasets import Dataset
    >>> hub_identity(Dataset.from_dict({"text": ["a"]})) == hub_identity(Dataset.from_dict({"text": ["b"]}))
    False
    """
    fetched = dataset.info.download_checksums or {}
    return json.dumps([dataset.num_rows, str(dataset.split), sorted(map(str, fetched.items())) or dataset._fingerprint])


def hub_folders() -> tuple[str, ...]:
    """Where what was fetched from the hub lies: files that a row of a hub's data set may name.

    >>> len(hub_folders())
    2
    """
    import datasets
    from huggingface_hub import constants

    return tuple(map(os.path.realpath, (constants.HF_HUB_CACHE, datasets.config.HF_DATASETS_CACHE)))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot read {path}: {one_line(error)}") from None


def _all_of(stream: Any, size: int) -> Iterator[bytes]:
    while chunk := stream.read(size):
        yield chunk


def _gz(file: Any, size: int) -> Iterator[bytes]:
    import gzip

    return _all_of(gzip.open(file), size)


def _zst(file: Any, size: int) -> Iterator[bytes]:
    import pyarrow

    return _all_of(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd"), size)


def _xz(file: Any, size: int) -> Iterator[bytes]:
    """`lzma.open` would take any memory that the header asks for, up to 4 GB."""
    import lzma

    decoder, data = lzma.LZMADecompressor(memlimit=allowed(XZ_MEMORY)), b""
    while True:
        if decoder.eof:  # another stream may follow, after zeros that fill up
            data = decoder.unused_data.lstrip(b"\0")
            while not data and (more := file.read(CHUNK)):
                data = more.lstrip(b"\0")
            if not data:
                return
            decoder = lzma.LZMADecompressor(memlimit=allowed(XZ_MEMORY))
        elif decoder.needs_input:
            data = file.read(CHUNK)
            if not data:
                raise EOFError("it ends before its end-of-stream marker")
        if chunk := decoder.decompress(data, size):
            yield chunk
        data = b""


_UNPACKED = {"gz": _gz, "xz": _xz, "zst": _zst}


def _pieces(path: Path) -> Iterator[bytes]:
    with _reading(path), open_file(path) as file:
        yield from _all_of(file, CHUNK)


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Where the hub's name does not resolve, its client would retry for half a minute, and print all the while."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not _resolves(urlsplit(constants.ENDPOINT).hostname):
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _resolves(host: str | None) -> bool:
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # behind a proxy names resolve elsewhere
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False
