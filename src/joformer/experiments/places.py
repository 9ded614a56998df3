"""Where a table's data is: below a folder of the user's, on the hub, or embedded."""

from __future__ import annotations

from pathlib import Path

from joformer.experiments.sources import Scale


def find(data: Path | None, names: tuple[str, ...], scale: Scale, *, hub: str | None, embedded: str, sole: bool) -> str:
    """DATA/NAME for the first name that is there; DATA itself, where one table alone is requested.

    Without any, what the paper used at its scale, else what comes with the library.

    >>> find(None, ("mnist",), "laptop", hub="mnist", embedded="digits", sole=True)
    'digits'
    >>> find(None, ("mnist",), "paper", hub="mnist", embedded="digits", sole=True)
    'mnist'
    """
    if data is not None:
        if not data.exists():
            raise ValueError(f"--data {data} is not there: give a folder that holds {' or '.join(names)}")
        below = [data / name for name in names if (data / name).exists()]
        if below or sole:
            return str((below[0] if below else data).resolve())
    return hub if scale == "paper" and hub else embedded
