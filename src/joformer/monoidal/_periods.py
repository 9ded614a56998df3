"""When a displacement is invisible: δ·θ_k a whole number of turns in every plane, up to the rounding of the angles.

R^δ = I  ⇔  δ·θ_k ∈ 2πℤ for every plane k
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joformer.algebra import Generators, Torus

LONGEST = 1 << 16  # longer periods are not searched for
ODDS = 0.01  # above this probability a match is treated as an accident of rounding


def whole_turns(
    displacements: Int[Tensor, "*batch axes"], angles: Float[Tensor, "axes planes"]
) -> Bool[Tensor, "*batch planes"]:
    """Whether R^δ is the identity in each plane, for displacements δ (..., axes); (..., planes), on the CPU.

    >>> whole_turns(torch.tensor([[2], [4]]), torch.tensor([[torch.pi / 2, torch.pi, 1.0]])).tolist()
    [[False, True, False], [True, True, False]]
    """
    total, slack = _turns(displacements, angles)
    return (total - total.round()).abs() <= slack


def accident(
    displacements: Int[Tensor, "*batch axes"], angles: Float[Tensor, "axes planes"]
) -> Bool[Tensor, "*batch planes"]:
    """Whether rounding alone could make some displacement as long as δ look like whole turns, in each plane.

    In fp32 some δ matches any angle: 710 · 1.0 is 113 turns up to 6e-5. True if the odds are above one in a hundred.

    >>> accident(torch.tensor([[7], [710]]), torch.tensor([[1.0]])).tolist()
    [[False], [True]]
    """
    length = displacements.to("cpu", torch.float64).abs().sum(-1, keepdim=True)
    return 2 * _turns(displacements, angles)[1] * length >= ODDS


def torus_angles(generators: object) -> Float[Tensor, "axes planes"]:
    """The angles (axes, planes) of generators on the torus, or given angles; raises ValueError for anything else.

    >>> torus_angles(torch.ones(1, 2))
    tensor([[1., 1.]])
    """
    if isinstance(generators, Tensor):
        generators = Generators.torus(generators)
    if not isinstance(generators, Generators):
        given = type(generators).__name__
        raise ValueError(f"generators are a {given}: give Generators.torus(angles), or an embedding's .generators")
    if not isinstance(generators.group, Torus):
        raise ValueError(f"generators are in {generators.group}: planes need a torus, see Generators.torus")
    return generators.steps


def period(theta: Float[Tensor, "planes"]) -> int | None:
    """The smallest n ≥ 1 with n·θ_k a whole number of turns for every plane; None if there is none up to 65,536.

    A period is accepted if the odds of an accident, judged by the slowest plane, are below one in a hundred. That holds
    for periods up to 20,000 if a plane rotates once per period; angles in fp64 have no limit.

    >>> period(2 * torch.pi * torch.arange(28) / 28), period(torch.zeros(3)), period(torch.tensor([1.0]))
    (28, 1, None)
    """
    turning = theta.detach()[theta.detach() != 0].to("cpu")
    turning = turning[turning.abs().argsort()][None]
    n = 1
    # The slowest plane that does not match yet has the most reliable period; each one at least doubles n.
    while not (fits := whole_turns(torch.tensor([n]), turning)).all():
        plane = int(fits.long().argmin())
        multiples = n * torch.arange(2, LONGEST // n + 1)
        whole = whole_turns(multiples[:, None], turning[:, plane : plane + 1]).squeeze(-1)
        if not whole.any():
            return None
        n = int(multiples[whole][0])
    if not turning.numel():
        return n
    odds = n * 2 * float(_turns(torch.tensor([n]), turning)[1].min())
    return n if odds < ODDS else None


def _turns(displacements: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
    """δ·θ/2π and its possible error: an angle is rounded once or twice, and the error is multiplied by the steps."""
    steps, exact = displacements.to("cpu", torch.float64), angles.detach().to("cpu", torch.float64)
    # Angles that float32 represents exactly were rounded to float32 once, whatever their dtype.
    rounded = torch.float32 if torch.equal(exact, exact.float().double()) else torch.float64
    eps = max(torch.finfo(angles.dtype).eps, torch.finfo(rounded).eps)
    turns = exact / (2 * math.pi)
    return steps @ turns, 2 * eps * (steps.abs() @ turns.abs())
