"""The value-path hierarchy: attention, two kinds of state-space model and JoFormer as one formula.

    c_k = Σ_j w_kj K_{j→k} v_j          K_{j→k} = C_k⁻¹ C_j

                      K_{j→k}                 C_t                       input
    attention         I                       I                         nothing
    linear SSM        R^{k−j}                 R^{−t}                    one step R for all tokens
    selective SSM     A_k ⋯ A_{j+1}           (A_t ⋯ A_1)⁻¹             one step A_t per token
    JoFormer          A_k⁻¹ A_j               A_t                       the absolute operator A_t of each token

Every kernel is a journey between absolute operators C; the four differ in where C comes from. Paper:
"Value-Path Hierarchy and SSM Bridge", where the product over transitions is descending (docs/claims.md rows 21 and 22).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.algebra._elements import scan
from joformer.algebra._groups import Group
from joformer.algebra._journeys import value_path

Kernel = Literal["attention", "linear_ssm", "selective_ssm", "joformer"]
KERNELS = get_args(Kernel)
NEEDS = {
    "attention": "attention does not rotate values and takes neither",
    "linear_ssm": "linear_ssm takes steps (..., *element), one for all tokens",
    "selective_ssm": "selective_ssm takes steps (..., T, *element), one for each token",
    "joformer": "joformer takes operators (..., T, *element), the absolute operator of each token",
}


def hierarchy(
    kernel: Kernel,
    values: Tensor,
    *,
    group: Group,
    steps: Tensor | None = None,
    operators: Tensor | None = None,
    weights: Tensor | None = None,
) -> Float[Tensor, "... _queries _dim"]:
    """c_k = Σ_j w_kj K_{j→k} v_j for every k at once.

    "attention"       K = I
    "linear_ssm"      h_t = R h_{t−1} + v_t
    "selective_ssm"   h_t = A_t h_{t−1} + v_t from h_0 = 0
    "joformer"        K_{j→k} = A_k⁻¹ A_j

    For a recurrence that also decays, h_t = λ_t A_t h_{t−1} + v_t, use w_kj = λ_k ⋯ λ_{j+1}: decay is not an element of
    the group.

    Args:
        kernel: One of the four.
        values: (..., T, dim).
        group: The group of the operators.
        steps: For "linear_ssm" (..., *element), one for all tokens; for "selective_ssm" (..., T, *element).
        operators: For "joformer" the absolute operator of each token, (..., T, *element).
        weights: (..., T, T). Required for "attention" and "joformer"; for the recurrences 1 for j ≤ k and 0 elsewhere
            by default.

    Returns:
        (..., T, dim).

    Example:
        >>> from joformer.algebra import Torus
        >>> quarter = torch.tensor([torch.pi / 2])
        >>> ones = torch.tensor([[1.0, 0.0]]).expand(3, 2)
        >>> hierarchy("linear_ssm", ones, group=Torus(1), steps=quarter).round(decimals=3) + 0
        tensor([[1., 0.],
                [1., 1.],
                [0., 1.]])
    """
    group.check_vector(values, "values")
    if values.ndim < 2:
        raise ValueError(f"values have shape {tuple(values.shape)}: there must be a time dimension, (..., T, dim)")
    frames = _frames(kernel, values, group, steps, operators)
    if weights is None:
        if kernel in ("attention", "joformer"):
            raise ValueError(f"{kernel} has no default weights: give weights (..., T, T), e.g. a softmax of scores")
        weights = torch.ones(values.shape[-2], values.shape[-2], dtype=values.dtype, device=values.device).tril()
    return value_path(weights, values, group=group, src=frames, dst=frames)


def _frames(kernel: str, values: Tensor, group: Group, steps: Tensor | None, operators: Tensor | None) -> Tensor:
    """C_t of every token, (..., T, *element)."""
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}: it must be one of {', '.join(KERNELS)}")
    for name, its, kernels in (("steps", steps, KERNELS[1:3]), ("operators", operators, KERNELS[3:])):
        if (its is None) == (kernel in kernels):
            raise ValueError(f"{name} {'are missing' if its is None else 'are not used here'}: {NEEDS[kernel]}")
    tokens = values.shape[-2]
    if kernel == "attention":
        return group.identity(tokens).to(values)
    given = operators if steps is None else steps
    assert given is not None
    group.check(given, "operators" if steps is None else "steps")
    if kernel == "linear_ssm":
        return group.power(given.unsqueeze(-1 - group.rank), -torch.arange(tokens, device=given.device))
    if given.ndim == group.rank or given.shape[-1 - group.rank] != tokens:
        raise ValueError(f"{tuple(given.shape)} is not one per token for {tokens} tokens: {NEEDS[kernel]}")
    # (A_t ⋯ A_1)⁻¹ = A_1⁻¹ ⋯ A_t⁻¹: the inverses, multiplied left to right.
    return given if kernel == "joformer" else scan(group, group.inverse(given), exclusive=False)
