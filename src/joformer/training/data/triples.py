"""Triples (head, relation, tail) in files: lines with two tabs, or tables and parquet with three named columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from joformer._io import one_line
from joformer.training.data.files import Fault, fault, open_parquet, suffix_of
from joformer.training.data.tables import SEPARATORS, is_parquet, is_table, read_lines, read_rows

Triple = tuple[str, str, str]
COLUMNS = (("head", "h", "subject"), ("relation", "r", "predicate"), ("tail", "t", "object"))
"""Names of the three columns."""
LOOKED_AT = 50


def triple_columns(names: Sequence[str]) -> tuple[str, ...] | None:
    """The columns that hold heads, relations and tails, None where these are not such columns.

    >>> triple_columns(["subject", "predicate", "object", "weight"]), triple_columns(["text"])
    (('subject', 'predicate', 'object'), None)
    """
    found = [next((name for name in names if name.strip().lower() in known), None) for known in COLUMNS]
    return None if None in found else tuple(map(str, found))


def holds_triples(path: Path) -> bool:
    """Whether the first lines, or the names of the columns, are those of triples.

    >>> holds_triples(Path(__file__))
    False
    """
    with suppress(ValueError, OSError):
        if is_parquet(path):
            return triple_columns(open_parquet(path).schema_arrow.names) is not None
        if is_table(path) and suffix_of(path) != ".tsv":
            return triple_columns(list(next(read_rows(path), {}))) is not None
        if suffix_of(path) not in ("", ".txt", ".tsv"):
            return False
        first = [line for line in islice(read_lines(path), LOOKED_AT) if line.strip()]
        cells = [line.rstrip("\r\n").split("\t") for line in first]
        # A table with a header of its own is something else.
        known = bool(cells) and any(cell.strip().lower() in ("file", "text", "label") for cell in cells[0])
        return bool(cells) and not known and all(len(row) == 3 and all(map(str.strip, row)) for row in cells)
    return False


def read_triples(path: Path, fault: Fault = fault) -> Iterator[Triple]:
    r"""The triples of a file; what is no triple is one line that names its place.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("Ada\tknows\tCharles\n")
    ...     list(read_triples(Path(folder, "a.txt")))
    [('Ada', 'knows', 'Charles')]
    """
    if is_parquet(path):
        yield from _of_parquet(path, fault)
    elif is_table(path) and (suffix_of(path) != ".tsv" or _has_header(path)):
        for number, row in enumerate(read_rows(path, fault), 2 if SEPARATORS[suffix_of(path)] else 1):
            columns = triple_columns(list(row))
            if columns is None:
                raise ValueError(f"{path} has the columns {', '.join(row)}: name three of them head, relation and tail")
            yield from _checked(tuple(row[name] for name in columns), f"{path}, row {number}", fault)
    else:
        for number, line in enumerate(read_lines(path), 1):
            if line.strip() and not (number == 1 and _has_header(path)):
                yield from _checked(line.rstrip("\r\n").split("\t"), f"{path}, line {number}", fault)


def _has_header(path: Path) -> bool:
    first = next(read_lines(path), "").rstrip("\r\n").split("\t")
    return triple_columns(first) is not None


def _of_parquet(path: Path, fault: Fault) -> Iterator[Triple]:
    import pyarrow

    table = open_parquet(path)
    columns = triple_columns(table.schema_arrow.names)
    if columns is None:
        have = ", ".join(table.schema_arrow.names)
        raise ValueError(f"{path} has the columns {have}: name three of them head, relation and tail")
    try:
        row = 0
        for batch in table.iter_batches(columns=list(columns)):
            for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
                row += 1
                yield from _checked(cells, f"{path}, row {row}", fault)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is damaged ({one_line(error)}): fetch it again") from None


def _checked(cells: Sequence[object], where: str, fault: Fault) -> Iterator[Triple]:
    names = [str(cell).strip() for cell in cells if cell is not None]
    if len(names) == 3 and all(names):
        yield names[0], names[1], names[2]
    else:
        fault(f"{where} has {len(list(filter(None, names)))} names, not three: write head, relation and tail")
