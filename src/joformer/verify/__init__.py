"""The paper's claims as executable checks, one module a section of CLAIMS.md; `joformer verify` runs them all.

>>> result = run(["1"], trials=1)[0]
>>> result.claim.label, result.ok
('eq:composition', True)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from joformer.verify import algebra, attention, order, tables, transforms
from joformer.verify.claims import VERDICTS, Claim, Draw, Measured, Result, worst

__all__ = ["CLAIMS", "SECTIONS", "VERDICTS", "Claim", "Draw", "Measured", "Result", "choose", "run"]

SECTIONS = {m.claim.name: m.claim.claims for m in (algebra, attention, order, transforms, tables)}
CLAIMS = [claim for claims in SECTIONS.values() for claim in claims]


def choose(only: Sequence[str] = ()) -> list[Claim]:
    """The claims of the sections and rows named; all of them when none is.

    >>> [claim.row for claim in choose(["algebra", "36"])]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 36]
    """
    known = {*SECTIONS, *(str(claim.row) for claim in CLAIMS)}
    for name in only:
        if name not in known:
            raise ValueError(f"no section or row {name!r}: use {', '.join(SECTIONS)}, or a row 1 to {CLAIMS[-1].row}")
    return [claim for claim in CLAIMS if not only or claim.section in only or str(claim.row) in only]


def run(
    only: Sequence[str] = (), *, seed: int = 0, trials: int = 3, say: Callable[[Result], None] | None = None
) -> list[Result]:
    """Check every claim chosen on `trials` random instances; `say` is told each result as it comes.

    >>> [result.ok for result in run(["26"])]
    [True]
    """
    if trials < 1:
        raise ValueError(f"trials must be 1 or more random instances of each claim, got {trials}")
    results = []
    for claim in choose(only):
        results.append(_check(claim, seed, trials))
        if say is not None:
            say(results[-1])
    return results


def _check(claim: Claim, seed: int, trials: int) -> Result:
    start = time.perf_counter()
    measured: list[Measured] = []
    try:
        for trial in range(trials):
            # Every claim has draws of its own: adding a claim must not change what the others see.
            measured.append(claim.check(Draw(1_000_003 * seed + 1_009 * claim.row + trial)))
    except (ValueError, RuntimeError, AssertionError, IndexError, TypeError) as error:
        # A library so wrong that it refuses its own input is a failed claim, not a crash of the report.
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Result(claim, float("inf"), None, time.perf_counter() - start, error=message)
    gaps = [m.gap for m in measured if m.gap is not None]
    smallest = -worst(*(-g for g in gaps)) if gaps else None
    return Result(claim, worst(*(m.residual for m in measured)), smallest, time.perf_counter() - start)
