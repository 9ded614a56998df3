"""The paper's claims as executable checks, one module per section of docs/claims.md; `joformer verify` runs them all.

>>> result = run(["1"], trials=1)[0]
>>> result.claim.label, result.ok
('eq:composition', True)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from joformer._io import one_line
from joformer.verify import _algebra as algebra
from joformer.verify import _attention as attention
from joformer.verify import _order as order
from joformer.verify import _remarks as remarks
from joformer.verify import _separation as separation
from joformer.verify import _tables as tables
from joformer.verify import _transforms as transforms
from joformer.verify._claims import VERDICTS, Claim, Draw, Measured, Result, default_dtype, worst

__all__ = ["CLAIMS", "OURS", "SECTIONS", "VERDICTS", "Claim", "Draw", "Measured", "Result", "check", "choose", "run"]

SECTIONS = {m.claim.name: m.claim.claims for m in (algebra, attention, order, transforms, tables, remarks)}
CLAIMS = [claim for claims in SECTIONS.values() for claim in claims]
OURS = {separation.claim.name: separation.claim.claims}
"""Statements that are not the paper's: checked where they are named, by section or row."""


def choose(only: Sequence[str | int] | str | int = ()) -> list[Claim]:
    """The claims of these sections and rows, in the order of the paper, followed by our own statements.

    Args:
        only: Section names (see `SECTIONS` and `OURS`) and row numbers; empty means all claims of the paper.

    Raises:
        ValueError: If there is no such section or row.

    Example:
        >>> [claim.row for claim in choose(["algebra", 36])]
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 36]
    """
    named = {str(name).lower() for name in ([only] if isinstance(only, (str, int)) else only)}
    own = [claim for claims in OURS.values() for claim in claims]
    sections = [*SECTIONS, *OURS]
    for name in named - {*sections, *(str(claim.row) for claim in (*CLAIMS, *own))}:
        raise ValueError(
            f"there is no section or row {name!r}: use {', '.join(sections)}, or a row 1 to {CLAIMS[-1].row}"
        )
    if not named:
        return list(CLAIMS)
    return [claim for claim in (*CLAIMS, *own) if claim.section in named or str(claim.row) in named]


def run(only: Sequence[str | int] | str | int = (), *, seed: int = 0, trials: int = 3) -> list[Result]:
    """Checks every chosen claim on `trials` random instances.

    Args:
        only: Section names and row numbers; empty means all claims.
        seed: Seed of the random instances; any whole number.
        trials: Number of instances per claim; the worst residual and the smallest gap count.

    Returns:
        One result per claim, in the order of the paper.

    Example:
        >>> [result.ok for result in run(["26"])]
        [True]
    """
    return list(check(only, seed=seed, trials=trials))


def check(only: Sequence[str | int] | str | int = (), *, seed: int = 0, trials: int = 3) -> Iterator[Result]:
    """Yields the results of `run` one by one, as claims are checked.

    >>> next(check(["26"])).ok
    True
    """
    for name, number in (("seed", seed), ("trials", trials)):
        if not isinstance(number, int):
            raise ValueError(f"{name} must be a whole number, got {number!r}")
    if trials < 1:
        raise ValueError(f"trials must be 1 or more random instances of each claim, got {trials}")
    for claim in choose(only):
        yield _check(claim, seed, trials)


def _check(claim: Claim, seed: int, trials: int) -> Result:
    start = time.perf_counter()
    measured: list[Measured] = []
    try:
        # Whatever the caller has switched off or chosen, claims are checked with gradients and by default in float32.
        with torch.inference_mode(False), torch.enable_grad(), default_dtype(torch.float32):
            for trial in range(trials):
                # Every claim has draws of its own: adding a claim must not change what the others see.
                measured.append(claim.check(Draw(1_000_003 * seed + 1_009 * claim.row + trial)))
    except Exception as error:
        # A library so wrong that it raises on its own input is a failed claim and no crash.
        return Result(claim, float("inf"), None, time.perf_counter() - start, error=one_line(error, (), first=True))
    gaps = [m.gap for m in measured if m.gap is not None]
    smallest = -worst(*(-g for g in gaps)) if gaps else None
    return Result(claim, worst(*(m.residual for m in measured)), smallest, time.perf_counter() - start)
