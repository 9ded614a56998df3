"""Results as text: lines for a terminal, a Markdown page for the documentation."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from joformer._log import counted
from joformer.verify._claims import VERDICTS, Result, Verdict

SUMMED: dict[Verdict, str] = {**VERDICTS, "H": "as printed", "C": "under a condition", "O": "ours, which hold"}
TITLES = {
    "algebra": "Algebra",
    "attention": "Attention and classification",
    "order": "ALiBi, information, order",
    "transforms": "Transforms and applications",
    "tables": "Tables and recipes",
    "remarks": "Remarks and proofs",
    "separation": "What one layer can tell",
}
INTRODUCTION = """\
# Every claim of the paper, checked

Each row is a claim of *Journey Operators for Structured Multi-Axis Composition*, run by `joformer verify` with the
library's own functions, in float64, on random instances; rows 49, 50, 54, 57 and 59 are arithmetic on what the paper
prints, rows 51 to 53, 55 and 56 build its models. What no claim is about (inverse transforms, norms, plane layouts,
training) is covered by the tests. **H** holds as printed, **C** holds under the condition
given, **W** is wrong as printed, **U** is not supported by what the paper shows. The residual is that of the true
statement, the largest over all instances; it must not exceed the tolerance. Where the form as printed is wrong or
lacks a condition (or a claim says that two things differ), its gap, the smallest over all instances, must be at
least the margin: a check that could not fail would prove nothing.

Names in the column "in the paper" are labels of its source; [where the paper is in the code](paper.md) has
the numbers that a reader of the PDF sees. This page is written by `{command}`.
"""
HEADER = (
    "| # | in the paper | verdict | as printed | what is true | residual ≤ tolerance | gap ≥ margin |",
    "|---|---|---|---|---|---|---|",
)


def lines(result: Result, width: int = 120) -> list[str]:
    """One claim as text for a terminal: its verdict, what is printed, what is true, what was measured.

    Args:
        result: What `verify.run` gave.
        width: Columns of the terminal.

    Example:
        >>> from joformer import verify
        >>> print(lines(verify.run(["26"], trials=1)[0])[1])
             printed   qᵀRⁿk = Σ α_b cos(nθ_b) + β_b sin(nθ_b) with β_b = q₁k₂ − q₂k₁
    """
    claim = result.claim
    state = "ok" if result.ok else "DISAGREES"
    found = [f"{claim.row:>3}  {claim.verdict}  {state:<9}  {claim.label}: {VERDICTS[claim.verdict]}"]
    texts = {"printed": claim.printed, "true": claim.statement, "residual": _residual(result), "gap": _gap(result)}
    for name, text in {**texts, "error": result.error}.items():
        first = f"     {name:<8}  "
        wrapped = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False
        )
        found += wrapped
    return found


def _residual(result: Result) -> str:
    claim = result.claim
    return f"{result.residual:.1e} {'≤' if result.residual <= claim.tolerance else 'NOT ≤'} {claim.tolerance:.2g}"


def _gap(result: Result) -> str:
    if (gap := result.gap) is None:
        return ""
    claim = result.claim
    return f"{claim.gap}: {gap:.3g} {'≥' if gap >= claim.margin else 'NOT ≥'} {claim.margin:g}"


def summary(results: Sequence[Result]) -> str:
    """How many claims there were of each verdict, and which disagree with theirs.

    >>> from joformer import verify
    >>> summary(verify.run(["1", "10"], trials=1))
    '2 claims: 1 as printed, 1 wrong as printed. All as they should be.'
    """
    counts = Counter(result.claim.verdict for result in results)
    verdicts = ", ".join(f"{counts[v]} {words}" for v, words in SUMMED.items() if counts[v])
    wrong = [str(result.claim.row) for result in results if not result.ok]
    end = f"These disagree with their verdict: {', '.join(wrong)}." if wrong else "All as they should be."
    return f"{counted(len(results), 'claim')}: {verdicts}. {end}"


def markdown(results: Sequence[Result], command: str) -> str:
    """The page of all results, one table per section.

    Args:
        results: What `verify.run` gave.
        command: What wrote the page, for its introduction.

    Example:
        >>> from joformer import verify
        >>> print(markdown(verify.run(["26"], trials=1), "joformer verify --only 26").splitlines()[-1][:30])
        | 26 | prop:alibi-separation (
    """
    parts = [INTRODUCTION.format(command=command), summary(results) + "\n"]
    for section, members in groupby(results, lambda result: result.claim.section):
        parts += [f"## {TITLES[section]}\n", *HEADER, *map(_row, members), ""]
    return "\n".join(parts).rstrip() + "\n"


def _row(result: Result) -> str:
    claim = result.claim
    verdict = claim.verdict if result.ok else f"**{claim.verdict}, but measured otherwise**"
    cells = (str(claim.row), claim.label, verdict, claim.printed, claim.statement, _residual(result), _gap(result))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
