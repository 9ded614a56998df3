"""Absolute operators, journeys between them, and the value-path formula: the library's reference implementation.

    A_n = R_1^{n_1} ⋯ R_D^{n_D}                absolute operator
    P_{src→dst} = A_dst⁻¹ A_src                journey
    T(k_1 ⋯ k_m) = R_{k_1} ⋯ R_{k_m}           path transport, left to right
    c_i = Σ_j w_ij P_{j→i} v_j                 value path
    K_{t→T} = A_T ⋯ A_{t+1}                    forward kernel of a state-space model

Paper: "Compositional Data Points", "Path Transport and Commutativity", "Value-Path Hierarchy and SSM Bridge". The
paper multiplies path transport right to left, which is not the journey; left to right, T = P_{end→start}.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.algebra._checks import require_finite
from joformer.algebra._generators import Generators
from joformer.algebra._groups import Group, Orthogonal


def absolute(generators: Generators, positions: Tensor | Sequence[Any]) -> Float[Tensor, "..."]:
    """A_n = R_1^{n_1} ⋯ R_D^{n_D}, with positions counted from 0.

    Args:
        generators: One per axis.
        positions: n, (..., axes), a tensor or nested lists; on the torus also real numbers.

    Returns:
        The absolute operators, (..., *element).

    Example:
        >>> absolute(Generators.torus(torch.tensor([[0.1], [0.5]])), [[0, 0], [2, 1]])
        tensor([[0.0000],
                [0.7000]])
    """
    n = positions if isinstance(positions, Tensor) else torch.tensor(positions, dtype=torch.float64)
    if n.ndim < 1 or n.shape[-1] != generators.axes:
        raise ValueError(f"positions have shape {tuple(n.shape)}: the generators need (..., {generators.axes})")
    if n.is_floating_point():
        require_finite(n, "positions")
    return reduce(generators.group.multiply, (generators.power(k, n[..., k]) for k in range(generators.axes)))


def journey(group: Group, *, src: Tensor, dst: Tensor) -> Float[Tensor, "..."]:
    """P_{src→dst} = A_dst⁻¹ A_src: takes content from src into the frame of dst.

    Journeys telescope: P_{j→k} P_{i→j} = P_{i→k}.

    Args:
        group: The group of the operators.
        src: Absolute operators (..., *element).
        dst: Absolute operators (..., *element), batches broadcast.

    Returns:
        The journeys, (..., *element).

    Example:
        >>> from joformer.algebra import Torus
        >>> journey(Torus(1), src=torch.tensor([0.5]), dst=torch.tensor([0.2]))
        tensor([0.3000])
    """
    group.check(src, "src")
    group.check(dst, "dst")
    return group.journey(src, dst)


def path_transport(generators: Generators, word: Sequence[int]) -> Float[Tensor, "..."]:
    """T(π) = R_{k_1} ⋯ R_{k_m} along a path, left to right.

    Along the canonical path from the origin (all of axis 0, then all of axis 1, …) this is A_end = P_{end→start}.

    Args:
        generators: One per axis.
        word: The path as letters: k is a step forward along axis k, ~k a step back.

    Returns:
        The transport, (*element).

    Example:
        >>> g = Generators.torus(torch.tensor([[0.1], [0.5]]))
        >>> path_transport(g, [0, 0, 1]), path_transport(g, [1, 0, ~1])
        (tensor([0.7000]), tensor([0.1000]))
    """
    group, transport = generators.group, generators.group.identity().to(generators.steps)
    for letter in word:
        axis, n = unpack_letter(letter)
        transport = group.multiply(transport, generators.power(axis, n))
    return transport


def unpack_letter(letter: int) -> tuple[int, int]:
    """The axis and the direction, +1 or −1, of one letter of a path: k is a step forward, ~k a step back.

    >>> unpack_letter(1), unpack_letter(~1)
    ((1, 1), (1, -1))
    """
    if not isinstance(letter, int):
        raise ValueError(f"letter {letter!r} of a path is not whole: k is a step forward along axis k, ~k a step back")
    return (letter, 1) if letter >= 0 else (~letter, -1)


def value_path(
    weights: Tensor, values: Tensor, *, group: Group, src: Tensor, dst: Tensor
) -> Float[Tensor, "... _queries _dim"]:
    """c_i = Σ_j w_ij P_{j→i} v_j with every journey as a matrix: slow, simple, differentiable in all arguments.

    Leading dimensions broadcast. Shapes are checked but values are not, so that it works under torch.func and the
    compiler.

    Args:
        weights: (..., queries, keys).
        values: (..., keys, dim).
        group: The group of the operators.
        src: The absolute operators of the keys, (..., keys, *element).
        dst: Those of the queries, (..., queries, *element).

    Returns:
        (..., queries, dim).

    Example:
        >>> from joformer.algebra import Torus
        >>> at = torch.tensor([[0.0], [torch.pi / 2]])                      # two tokens, a quarter turn apart
        >>> weights = torch.tensor([[0.0, 1.0]])
        >>> value_path(weights, torch.eye(2), group=Torus(1), src=at, dst=at[:1]).round(decimals=3) + 0
        tensor([[-1.,  0.]])
    """
    group.check_vector(values, "values")
    journeys = _journey_matrices(group, src, dst)
    queries, keys = journeys.shape[-4:-2]
    if tuple(weights.shape[-2:]) != (queries, keys):
        raise ValueError(f"weights have shape {tuple(weights.shape)}: the operators need (..., {queries}, {keys})")
    if values.ndim < 2 or values.shape[-2] != keys:
        raise ValueError(f"values have shape {tuple(values.shape)}: the operators need (..., {keys}, {group.dim})")
    return torch.einsum("...ij,...ijde,...je->...id", *_same_dtype(weights, journeys, values))


def scores_path(q: Tensor, k: Tensor, *, group: Group, src: Tensor, dst: Tensor) -> Float[Tensor, "... _queries _keys"]:
    """s_ij = q_iᵀ P_{j→i} k_j, unscaled.

    Args:
        q: (..., queries, dim).
        k: (..., keys, dim).
        group: The group of the operators.
        src: The absolute operators of the keys, (..., keys, *element).
        dst: Those of the queries, (..., queries, *element).

    Returns:
        (..., queries, keys).

    Example:
        >>> from joformer.algebra import Torus
        >>> at = torch.tensor([[0.0], [torch.pi / 2]])
        >>> scores_path(torch.eye(2)[:1], torch.eye(2), group=Torus(1), src=at, dst=at[:1]).round(decimals=4)
        tensor([[ 1., -1.]])
    """
    group.check_vector(q, "q")
    group.check_vector(k, "k")
    journeys = _journey_matrices(group, src, dst)
    for name, given, wanted in (("q", q, journeys.shape[-4]), ("k", k, journeys.shape[-3])):
        if given.ndim < 2 or given.shape[-2] != wanted:
            raise ValueError(f"{name} has shape {tuple(given.shape)}: the operators need (..., {wanted}, {group.dim})")
    return torch.einsum("...id,...ijde,...je->...ij", *_same_dtype(q, journeys, k))


def ssm_kernel(transitions: Tensor, *, group: Group | None = None) -> Tensor:
    """K_{t→T} = A_T ⋯ A_{t+1} for every t; the last one is I.

    h_t = A_t h_{t−1} + v_t from h_0 = 0 ends at h_T = Σ_t K_{t→T} v_t. With C_t = (A_t ⋯ A_1)⁻¹ the kernel is the
    journey C_T⁻¹ C_t.

    Args:
        transitions: A_1 … A_T: any square matrices (..., T, d, d), or elements (..., T, *element) of `group`.
        group: The group of the transitions; None for matrices.

    Returns:
        A tensor of the shape of `transitions`.

    Example:
        >>> ssm_kernel(torch.tensor([3.0, 5.0, 2.0]).reshape(3, 1, 1)).flatten()
        tensor([10.,  2.,  1.])
    """
    if group is None:
        if transitions.ndim < 3 or transitions.shape[-1] != transitions.shape[-2]:
            raise ValueError(f"transitions have shape {tuple(transitions.shape)}: matrices are (..., T, d, d)")
        group = Orthogonal(transitions.shape[-1])  # only products are used, which need no inverse
    group.check_shape(transitions, "transitions")
    if transitions.ndim == group.rank:
        raise ValueError(f"transitions have shape {tuple(transitions.shape)}: there must be a time dimension before it")
    require_finite(transitions, "transitions")
    time = transitions.ndim - group.rank - 1
    latest_first = transitions.movedim(time, 0).flip(0)
    return group.prefixes(latest_first, exclusive=True).flip(0).movedim(0, time)


def _journey_matrices(group: Group, src: Tensor, dst: Tensor) -> Float[Tensor, "... _queries _keys _dim _dim"]:
    for name, operators in (("src", src), ("dst", dst)):
        group.check_shape(operators, name)
        if operators.ndim == group.rank:
            raise ValueError(f"{name} has shape {tuple(operators.shape)}: pass one operator per token, (tokens, ...)")
    return group.matrix(group.journey(src.unsqueeze(-2 - group.rank), dst.unsqueeze(-1 - group.rank)))


def _same_dtype(*tensors: Tensor) -> list[Tensor]:
    common = reduce(torch.promote_types, (t.dtype for t in tensors))
    return [t.to(common) for t in tensors]
