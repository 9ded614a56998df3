"""Assertions about frames and rotations that hold for every correct implementation and fail for incorrect ones.

    y_t = diag(R(θ_tb)) x_t          is_rotation      the rotation is the paper's, sign included
    ‖A x‖ = ‖x‖                      norm_preserved
    A⁻¹ A x = x                      inverse
    P_{j→k} P_{i→j} = P_{i→k}        telescopes
    F(x, pos + u) = F(x, pos)        shift_invariant  (if the frames claim it)

Use them to test your own frames modules, or another implementation of `rotate`. They compare in the precision of their
inputs, with tolerances far below the usual 1e-3: see `TOLERANCE`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from joformer.algebra import Orthogonal
from joformer.attention import journey_attention
from joformer.attention._reference import entry_order, matrices
from joformer.frames import Frames, FramesModule, is_flat
from joformer.rotation import rotate as library_rotate

Operation = Callable[..., Tensor]

# The largest allowed difference, relative to the largest entry of the expected result.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def assert_close(actual: Tensor, expected: Tensor, *, tolerance: float | None = None, what: str = "result") -> None:
    """Asserts ``|actual − expected| ≤ tolerance · max(1, max |expected|)``, that all is finite, and equal shapes.

    Args:
        actual: The computed result.
        expected: The correct result, of the same shape.
        tolerance: By default that of `TOLERANCE` for the dtype of `actual`.
        what: Name of the result in the message.

    Raises:
        AssertionError: If they differ; the message gives the largest difference.

    Example:
        >>> assert_close(torch.ones(3), torch.ones(3))
    """
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    limit = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    found, right = actual.detach().to(torch.float64), expected.detach().to(torch.float64)
    assert found.isfinite().all(), f"{what}: not finite"
    worst, size = (t.abs().max().item() if t.numel() else 0.0 for t in (found - right, right))
    size = max(1.0, size)
    assert worst <= limit * size, f"{what}: off by {worst:.3g}, allowed {limit * size:.3g}"


def assert_is_rotation(frames: Frames, x: Tensor, *, rotate: Operation = library_rotate) -> None:
    """Asserts ``rotate(x, frames) = A_t x_t`` with each token's matrix: ``R(φ) = [[cos, −sin], [sin, cos]]`` if flat.

    Args:
        frames: Frames of x's tokens.
        x: ``(batch, tokens, heads, head_dim)``.
        rotate: The implementation to check.

    Raises:
        AssertionError: If `rotate` computes something else.

    Example:
        >>> from joformer import FlatFrames
        >>> assert_is_rotation(FlatFrames.of(torch.rand(1, 5, 1, 4)), torch.rand(2, 5, 2, 8))
    """
    order, operators = entry_order(frames, x.shape[-1]), matrices(frames, x.shape[2], x.shape[3], x.dtype)
    if not is_flat(frames):
        Orthogonal(x.shape[-1]).check(operators)
    expected = torch.einsum("bhtij,bthj->bthi", operators, x[..., order])
    assert_close(rotate(x, frames), expected[..., order.argsort()], what="rotate(x, frames)")


def assert_norm_preserved(frames: Frames, x: Tensor, *, rotate: Operation = library_rotate) -> None:
    """Asserts ``‖A_t x_t‖ = ‖x_t‖``, and the same for the inverse.

    Args:
        frames: Frames of x's tokens.
        x: ``(batch, tokens, heads, head_dim)``.
        rotate: The implementation to check.

    Raises:
        AssertionError: If a norm changes.

    Example:
        >>> from joformer import FlatFrames
        >>> assert_norm_preserved(FlatFrames.of(torch.rand(1, 5, 1, 4)), torch.rand(2, 5, 2, 8))
    """
    for inverse in (False, True):
        assert_close(rotate(x, frames, inverse=inverse).norm(dim=-1), x.norm(dim=-1), what="norm")


def assert_inverse(frames: Frames, x: Tensor, *, rotate: Operation = library_rotate) -> None:
    """Asserts ``A_t⁻¹ A_t x_t = x_t``, and ``A_t A_t⁻¹ x_t = x_t``.

    Args:
        frames: Frames of x's tokens.
        x: ``(batch, tokens, heads, head_dim)``.
        rotate: The implementation to check.

    Raises:
        AssertionError: If one is not the inverse of the other.

    Example:
        >>> from joformer import FlatFrames
        >>> assert_inverse(FlatFrames.of(torch.rand(1, 5, 1, 4)), torch.rand(2, 5, 2, 8))
    """
    for first in (False, True):
        back = rotate(rotate(x, frames, inverse=first), frames, inverse=not first)
        assert_close(back, x, what="there and back")


def assert_telescopes(frames: Frames, x: Tensor, *, rotate: Operation = library_rotate) -> None:
    """Asserts ``P_{j→k} P_{i→j} v = P_{i→k} v`` and ``P_{i→i} v = v`` for tokens i, j, k, with ``P_{i→j} = A_j⁻¹ A_i``.

    Args:
        frames: Frames of x's tokens.
        x: ``(batch, tokens, heads, head_dim)``.
        rotate: The implementation to check.

    Raises:
        AssertionError: If journeys do not compose.

    Example:
        >>> from joformer import FlatFrames
        >>> assert_telescopes(FlatFrames.of(torch.rand(1, 5, 1, 4)), torch.rand(2, 5, 2, 8))
    """

    def journey(v: Tensor, src: int, dst: int) -> Tensor:
        there = rotate(v, frames.select(slice(src, src + 1)))
        return rotate(there, frames.select(slice(dst, dst + 1)), inverse=True)

    n, v = frames.tokens, x[:, :1]
    for i, j, k in {(0, n // 2, n - 1), (n - 1, 0, n // 2)}:
        assert_close(journey(journey(v, i, j), j, k), journey(v, i, k), what=f"journey {i} to {j} to {k}")
    assert_close(journey(v, n - 1, n - 1), v, what="journey from a token to itself")


def assert_shift_invariant(
    module: FramesModule,
    positions: Tensor,
    by: Tensor,
    *,
    x: Tensor | None = None,
    rotate: Operation = library_rotate,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Asserts ``F(x, positions + by) = F(x, positions)`` for the scores and the transported values.

    Args:
        module: The frames module to check.
        positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``. All tokens must have coordinates: a journey to a
            token at the identity is meant to change.
        by: The displacement applied to all tokens, ``(axes,)``.
        x: The content of the tokens, ``(batch, tokens, dim)``, for modules that read it.
        rotate: The rotation to check.
        dtype: The dtype of the queries, keys and values.

    Raises:
        AssertionError: If a score or a value changes.

    Example:
        >>> from joformer import FixedFrames, positions
        >>> assert_shift_invariant(FixedFrames(8), positions.sequence(5), torch.tensor([1000.0]))
    """
    generator = torch.Generator().manual_seed(0)
    here, there = module(positions, x), module(positions + by, x)
    width = max(2, here.width)
    batch = 1 if x is None else x.shape[0]
    q, k, v = torch.randn(3, batch, here.tokens, here.heads, width, generator=generator, dtype=dtype).unbind()

    def both(frames: Frames) -> tuple[Tensor, Tensor]:
        rq, rk, rv = rotate(q, frames.dual), rotate(k, frames), rotate(v, frames)
        scores = torch.einsum("bihd,bjhd->bhij", rq, rk) / width**0.5
        return scores, rotate(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), rv), frames, inverse=True)

    for what, a, b in zip(("scores", "values"), both(there), both(here), strict=True):
        assert_close(a, b, what=f"{what} after a shift")


def assert_matches_reference(
    q: Tensor, k: Tensor, v: Tensor, frames: Frames, *, attention: Operation = journey_attention, **options: object
) -> None:
    """Asserts ``attention(q, k, v, frames, …) = Σ_j α_ij P_{j→i} v_j``, result and gradients, against that formula.

    Args:
        q: ``(batch, queries, heads, head_dim)``.
        k: ``(batch, keys, kv_heads, head_dim)``.
        v: ``(batch, keys, kv_heads, value_dim)``.
        frames: The frames of these tokens.
        attention: The implementation to check, called like `journey_attention`.
        **options: Other arguments of `journey_attention`.

    Raises:
        AssertionError: If the result or a gradient differs.

    Example:
        >>> from joformer import FlatFrames
        >>> assert_matches_reference(*torch.rand(3, 1, 5, 2, 8), FlatFrames.of(torch.rand(1, 5, 1, 4)))
    """
    generator = torch.Generator().manual_seed(0)
    results: list[tuple[Tensor, ...]] = []
    for how in (partial(journey_attention, backend="reference"), attention):
        inputs = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        out = how(*inputs, frames, **options)
        if not results:
            weights = torch.randn(out.shape, generator=generator, dtype=out.dtype)
        results.append((out, *torch.autograd.grad((out * weights).sum(), inputs)))
    for what, expected, actual in zip(("output", "∂q", "∂k", "∂v"), *results, strict=True):
        assert_close(actual, expected, what=what)


def __getattr__(name: str) -> Callable[..., None]:
    if name == "assert_undone":
        warnings.warn("assert_undone is now assert_inverse", DeprecationWarning, stacklevel=2)
        return assert_inverse
    raise AttributeError(f"module 'joformer.testing' has no attribute {name!r}")
