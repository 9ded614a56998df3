"""What a check is: a claim of the paper, a random instance to try it on, and what was measured.

A claim *holds* when its residual is at most the tolerance on every instance. Where the print is wrong (W), or true
under a condition only (C), the form as printed must also *fail*: its gap must be at least the margin on every
instance. A check that could not tell the two apart would prove nothing.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from joformer.algebra import Generators

Verdict = Literal["H", "C", "W", "U", "O"]
VERDICTS: dict[Verdict, str] = {
    "H": "holds",
    "C": "holds under a condition",
    "W": "wrong as printed",
    "U": "unsupported",
    "O": "holds, and is ours",
}
GAPS = {"H": "", "C": "without the condition it is off by", "W": "as printed it is off by", "U": "", "O": ""}
"""What the gap of a claim is where the claim does not say."""

EXACT = 1e-9
"""The tolerance of an identity in float64; what is measured is usually below 1e-12."""
MARGIN = 1e-2
"""By how much a wrong form must fail."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default dtype inside a `with` block.

    >>> with default_dtype(torch.float64):
    ...     torch.zeros(1).dtype
    torch.float64
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Measured:
    """The result of one check on one instance: the residual of the true form, the gap of the printed one (or None).

    >>> Measured(1e-15, gap=0.7).gap
    0.7
    """

    residual: int | float
    gap: int | float | None = None


@dataclass(frozen=True)
class Draw:
    """A random instance, float64, from one seed.

    >>> Draw(0).noise(2, 3).shape
    torch.Size([2, 3])
    """

    seed: int
    generator: torch.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # torch takes 64 bits; any whole number is a seed.
        object.__setattr__(self, "generator", torch.Generator().manual_seed(self.seed % 2**63))

    def noise(self, *shape: int) -> Tensor:
        """Standard normal numbers of this shape."""
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers between low and high."""
        return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=self.generator)

    def whole(self, *shape: int, low: int, high: int) -> Tensor:
        """Integers low … high − 1."""
        return torch.randint(low, high, shape, generator=self.generator)

    def rotations(self, *shape: int, dim: int = 4) -> Tensor:
        """Orthogonal matrices (*shape, dim, dim), generic: no two commute."""
        return torch.linalg.qr(self.noise(*shape, dim, dim))[0]

    def flat(self, axes: int, planes: int = 2) -> Generators:
        """Generators on the torus, every plane rotating by 0.2 to 2.9 radians per step, in either direction."""
        angles = self.uniform(axes, planes, low=0.2, high=2.9)
        return Generators.torus(angles * (1 - 2 * self.whole(axes, planes, low=0, high=2)))

    def curved(self, axes: int, dim: int = 4) -> Generators:
        """Orthogonal generators that do not commute."""
        return Generators.orthogonal(self.rotations(axes, dim=dim))

    @contextmanager
    def torch_seed(self) -> Iterator[None]:
        """Context in which new modules use this instance's seed and float64; torch's own state is restored."""
        with torch.random.fork_rng(devices=[]), default_dtype(torch.float64):
            torch.manual_seed(self.seed % 2**63)
            yield


Check = Callable[[Draw], Measured]


@dataclass(frozen=True)
class Claim:
    """One row of docs/claims.md with its check; `label` is the paper's own, `gap` describes the gap."""

    row: int
    section: str
    label: str
    verdict: Verdict
    printed: str
    statement: str
    gap: str
    tolerance: float
    margin: float
    check: Check


@dataclass(frozen=True)
class Result:
    """A claim and what was measured over all instances: the worst residual, the smallest gap."""

    claim: Claim
    residual: float
    gap: float | None
    seconds: float
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether measurements agree with the verdict: NaN is never ok, and only claims that hold may lack a gap."""
        holds = not self.error and self.residual <= self.claim.tolerance
        fails = self.claim.verdict in ("H", "O") if self.gap is None else self.gap >= self.claim.margin
        return holds and fails

    def as_json(self) -> dict[str, object]:
        """The row as plain values; an infinite or undefined number becomes None, which JSON can hold."""
        claim = self.claim
        return {
            "id": claim.row,
            "section": claim.section,
            "label": claim.label,
            "verdict": claim.verdict,
            "printed": claim.printed,
            "statement": claim.statement,
            "residual": _finite(self.residual),
            "tolerance": claim.tolerance,
            "gap_is": claim.gap if self.gap is not None else None,
            "gap": _finite(self.gap),
            "margin": claim.margin if self.gap is not None else None,
            "ok": self.ok,
            "error": self.error,
            "seconds": round(self.seconds, 3),
        }


def _finite(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


class Section:
    """A section of docs/claims.md: a decorator that collects checks, whose docstrings hold the texts of their claims.

    The docstring of a check says what is *printed*, what is *true*, and, where `GAPS` does not, what the *gap* is.

    Example:
        >>> claim = Section("sums")
        >>> @claim(1, "eq:sum", "W")
        ... def two(draw):
        ...     '''Printed: 1 + 1 = 3
        ...
        ...     True: 1 + 1 = 2
        ...     '''
        ...     return Measured(abs(1 + 1 - 2), gap=abs(1 + 1 - 3))
        >>> claim.claims[0].statement, claim.claims[0].check(Draw(0)).residual
        ('1 + 1 = 2', 0)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.claims: list[Claim] = []

    def __call__(
        self, row: int, label: str, verdict: Verdict, *, tolerance: float = EXACT, margin: float = MARGIN
    ) -> Callable[[Check], Check]:
        def add(check: Check) -> Check:
            _, *parts = re.split(r"^(Printed|True|Gap): ", inspect.getdoc(check) or "", flags=re.MULTILINE)
            texts = {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
            printed, true, gap = texts.get("Printed", ""), texts.get("True", ""), texts.get("Gap", GAPS[verdict])
            self.claims.append(Claim(row, self.name, label, verdict, printed, true, gap, tolerance, margin, check))
            return check

        return add


def gap(a: Tensor, *others: Tensor) -> float:
    """The largest absolute difference of the other tensors from the first, all of one shape.

    >>> gap(torch.zeros(2), torch.ones(2), torch.full((2,), 3.0))
    3.0
    """
    for b in others:
        if a.shape != b.shape:
            raise ValueError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be compared: they must be the same")
    return worst(*((a - b).detach().abs().max() for b in others))


def worst(*residuals: int | float | Tensor) -> float:
    """The largest of several residuals; NaN stays NaN.

    >>> worst(0.0, 1e-3), worst(0.0, float("nan"))
    (0.001, nan)
    """
    return float(torch.tensor([float(r) for r in residuals], dtype=torch.float64).max())
