"""Where a table's data is: below a folder of the user's, on the hub, or embedded."""

from __future__ import annotations

from pathlib import Path

from joformer._remote import Store, is_address
from joformer.experiments.sources import Scale


def find(
    data: str | Path | None, names: tuple[str, ...], scale: Scale, *, hub: str | None, embedded: str, sole: bool
) -> str:
    """DATA/NAME for the first name that is there; DATA itself, where one table alone is requested.

    Without any, what the paper used at its scale, else what comes with the library.

    >>> find(None, ("mnist",), "laptop", hub="mnist", embedded="digits", sole=True)
    'digits'
    >>> find(None, ("mnist",), "paper", hub="mnist", embedded="digits", sole=True)
    'mnist'
    """
    if data is not None and is_address(data):
        store = Store(str(data))
        below = [f"{store.address}/{name}" for name in names if store.has(name)]
        if below or sole:
            return below[0] if below else store.address
    elif data is not None:
        data = Path(data)
        if not data.exists():
            raise ValueError(f"--data {data} does not exist: give a folder that holds {' or '.join(names)}")
        inside = [data / name for name in names if (data / name).exists()]
        if inside or sole:
            return str((inside[0] if inside else data).resolve())
    return hub if scale == "paper" and hub else embedded
