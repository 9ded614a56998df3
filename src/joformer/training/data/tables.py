"""Tables: rows of CSV, TSV and JSON lines as dictionaries, rows of parquet files as a memory-mapped copy.

Not `datasets`' builders: they copy a table before they look at it, trust what it claims to hold, and name no row.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from joformer._io import allowed, new_file, one_line
from joformer.training.data.files import Expansion, Fault, content_hash, fault, open_parquet, read_utf8, suffix_of

SEPARATORS = {".csv": ",", ".tsv": "\t", ".jsonl": "", ".ndjson": "", ".json": ""}
LINE = 1 << 26  # bytes of one row of CSV or JSON
ROWS = 64  # of parquet, copied at a time


def is_table(path: Path | str) -> bool:
    """Whether the name is that of CSV, TSV or JSON lines, compressed or not.

    >>> is_table("train.jsonl.gz"), is_table("notes.txt")
    (True, False)
    """
    return suffix_of(path) in SEPARATORS


def is_parquet(path: Path | str) -> bool:
    """Whether the name is that of a parquet file.

    >>> is_parquet("train-0.parquet")
    True
    """
    return str(path).lower().endswith((".parquet", ".pq"))


def read_rows(path: Path, fault: Fault = fault) -> Iterator[dict[str, Any]]:
    r"""The rows of a table by the names of its columns: the first line of CSV and TSV, the keys of JSON.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.csv").write_text("file,label\n1.png,cat\n")
    ...     list(read_rows(Path(folder, "a.csv")))
    [{'file': '1.png', 'label': 'cat'}]
    """
    separator, lines = SEPARATORS[suffix_of(path)], read_lines(path)
    if separator:
        csv.field_size_limit(max(csv.field_size_limit(), allowed(LINE)))  # 128 KiB by default: a document is longer
        # Strict: a quote that is not closed would swallow the rows after it.
        reader = csv.DictReader(lines, delimiter=separator, strict=True)
        try:
            names = list(reader.fieldnames or ())
            if twice := [name for name in names if name and names.count(name) > 1]:
                raise ValueError(f"{path} has two columns called {twice[0]!r}: rename one")
            for row in reader:
                if None not in row:
                    yield row
                    continue
                remedy = f"quote those that hold {separator!r}"
                fault(f"{path}, line {reader.line_num}: more cells than the header: {remedy}")
        except csv.Error as error:
            reason = one_line(error, csv.Error)
            if "expected after" in reason or "end of data" in reason:
                reason = f'a quote opens a cell and does not close it ({reason}): write "" for a quote within quotes'
            raise ValueError(f"{path}, line {reader.line_num}: {reason}") from None
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            found: Any = None
            with suppress(ValueError, RecursionError):
                found = json.loads(line)
            if isinstance(found, dict):
                yield found
            else:
                fault(f"{path}, line {number} is not a JSON object: write one object per line, without a list")


def pick_column(
    where: object, option: str, given: str | None, columns: list[str], sole: list[str] | None = None
) -> str:
    """The column that was given, else the first usual name, else the only one (of `sole`); or what can be given.

    >>> pick_column("a.csv", "label", None, ["file", "kind"])
    Traceback (most recent call last):
    ValueError: a.csv does not show which column holds the labels: name it (--label), one of file, kind
    """
    choice = ", ".join(columns) or "none"
    held, usual = ("labels", ("label", "fine_label")) if option == "label" else ("text", ("text",))
    if given is not None and given not in columns:
        raise ValueError(f"{where} has no {held} in {given!r}: name another column (--{option}), one of {choice}")
    sole = columns if sole is None else sole
    found = [given] if given else [name for name in usual if name in columns]
    if not found and len(sole) != 1:
        raise ValueError(f"{where} does not show which column holds the {held}: name it (--{option}), one of {choice}")
    return found[0] if found else sole[0]


def copy_parquet(files: Sequence[tuple[str, int]], columns: Sequence[str], folder: Path) -> Any:
    """These columns of parquet files of (path, rows) as a memory-mapped `datasets.Dataset` kept in the folder."""
    import datasets
    import pyarrow

    paths = [path for path, _ in files]
    schemas = [open_parquet(path).schema_arrow for path in paths]
    for path, schema in zip(paths, schemas, strict=True):
        for name in columns:
            if name not in schema.names or schema.field(name).type != schemas[0].field(name).type:
                raise ValueError(f"{path} has no column {name} of the type it has in {paths[0]}: make them the same")
    schema = pyarrow.schema([schemas[0].field(name).with_nullable(True) for name in columns], schemas[0].metadata)
    stats = [(path, (about := os.stat(path)).st_size, about.st_mtime_ns) for path in paths]
    place = folder / f"rows-{content_hash(repr((tuple(columns), stats)))[:32]}.arrow"
    reason = "rows are missing"
    for _ in range(2):
        if not place.is_file():
            _write_rows(paths, schema, place)
        try:
            table = datasets.Dataset.from_file(str(place))
            if len(table) == sum(rows for _, rows in files):
                return table
        except Exception as error:  # `datasets` believes what a file says of its features, and fails in many ways
            reason = one_line(error)
        place.unlink(missing_ok=True)  # a copy made before may be damaged: it is made again
    raise ValueError(f"{paths[0]} cannot be read from its copy in {folder} ({reason}): fetch it again, or make room")


def _write_rows(paths: list[str], schema: Any, place: Path) -> None:
    """The columns of this schema, of all files, as one Arrow file: whole or not at all, and of a bounded size."""
    import pyarrow

    with new_file(place, f"cannot copy {paths[0]} into {place.parent}") as file:
        try:
            with pyarrow.ipc.new_stream(file, schema) as rows:
                for path in paths:
                    held = Expansion(path)  # a few bytes may stand for very many rows
                    for batch in open_parquet(path).iter_batches(ROWS, columns=schema.names):
                        held.add(batch.nbytes)
                        columns = [batch.column(name) for name in schema.names]
                        rows.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
        except (OSError, pyarrow.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise ValueError(f"{path} is damaged ({one_line(error)}): fetch it again") from None


def read_lines(path: Path) -> Iterator[str]:
    r"""The lines of a file in UTF-8 (16 and 32 with a byte-order mark), packed or not; a line is bounded.

    >>> next(read_lines(Path(__file__)))[3:9]
    'Tables'
    """
    held, most = "", allowed(LINE)
    try:
        for text in codecs.iterdecode(read_utf8(path), "utf-8-sig"):
            *whole, held = (held + text).split("\n")
            yield from (f"{line}\n" for line in whole)
            if len(held) > most:
                raise ValueError(f"{path} has a row of more than {most:,} characters: split it, or remove it")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({one_line(error)}): save it as UTF-8") from None
    if held:
        yield held
