"""Frames that are matrices A_t, either orthogonal or given with their inverses.

    scores   q_iᵀ A_i⁻¹ A_j k_j = (A_i⁻ᵀ q_i)ᵀ (A_j k_j)        values   A_i⁻¹ Σ_j α_ij A_j v_j

For orthogonal matrices A⁻¹ = Aᵀ, and queries and keys are multiplied by the same matrices. For other invertible
matrices (cameras) queries are multiplied by the dual, A⁻ᵀ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._precision import Device, readable
from joformer.frames._tensors import moved, register, select


@dataclass(frozen=True, eq=False)
class CurvedFrames:
    """Frames that need not commute, one per token: a block-diagonal matrix ``A_t``.

    Scores are ``q_iᵀ A_i⁻¹ A_j k_j = (A_i⁻ᵀ q_i)ᵀ (A_j k_j)``: queries are multiplied by the `dual` frames, which
    differ from the frames themselves only if these are not orthogonal.

    Args:
        matrices: ``(batch or 1, tokens, heads or 1, blocks, block, block)``, for the first repeat·blocks·block
            entries of each head. One block is LieRE; one block per axis is axial-dense; blocks of 4 are cameras.
        content: Whether the matrices depend on the content of the tokens.
        inverses: ``A_t⁻¹``, of the same shape; None for orthogonal matrices, whose inverse is the transpose.
        repeat: How many times the blocks are repeated in a head, ``I ⊗ A_t``: a camera acts on every four entries.

    Raises:
        ValueError: If `inverses` are not the inverses, or a block without one is not orthogonal. In eager mode on the
            CPU at most 15 tokens are checked; elsewhere that would wait for the device or break the graph.

    Example:
        >>> CurvedFrames(torch.eye(8).expand(1, 5, 1, 1, 8, 8))
        CurvedFrames(batch=1, tokens=5, heads=1, blocks=1, block=8)
        >>> scaled = 2 * torch.eye(4).expand(1, 5, 1, 1, 4, 4)
        >>> CurvedFrames(scaled, inverses=torch.linalg.inv(scaled), repeat=2).width
        8
    """

    matrices: Float[Tensor, "batch tokens heads blocks block block"]
    content: bool = False
    inverses: Float[Tensor, "batch tokens heads blocks block block"] | None = None
    repeat: int = 1
    _checked: bool = field(default=False, repr=False)  # True if derived from frames that were checked

    is_identity: ClassVar[bool] = False
    end: ClassVar[None] = None

    def __post_init__(self) -> None:
        given, inverses = self.matrices, self.inverses
        if inverses is not None and inverses.shape != given.shape:
            raise ValueError(
                f"inverses are {tuple(inverses.shape)} but matrices {tuple(given.shape)}: give one for each matrix"
            )
        if self._checked or not readable(given) or not given.numel() or given.dtype.itemsize < 4:
            return
        step = max(1, given.shape[1] // 8)
        some = given[:, ::step].detach().to(torch.float64)
        one = torch.eye(some.shape[-1], dtype=some.dtype)
        if inverses is None:
            if not torch.allclose(some.mT @ some, one, atol=1e-3):
                raise ValueError(
                    "matrices must be orthogonal, AᵀA = I, unless their inverses are given: for cameras and other "
                    "invertible matrices pass inverses=torch.linalg.inv(A)"
                )
        elif readable(inverses):
            back = inverses[:, ::step].detach().to(torch.float64)
            # Relative to the size of the terms: distant cameras have large entries, which float32 rounds.
            if not ((back @ some - one).abs() <= 1e-3 * (back.abs() @ some.abs() + 1)).all():
                raise ValueError("inverses must be A⁻¹ of the matrices, finite: use torch.linalg.inv(A)")

    def __repr__(self) -> str:
        batch, tokens, heads, blocks, block = self.matrices.shape[:5]
        rest = f", repeat={self.repeat}" * (self.repeat > 1) + ", orthogonal=False" * (self.inverses is not None)
        return f"CurvedFrames({batch=}, {tokens=}, {heads=}, {blocks=}, {block=}{rest})"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the frames at both ends of a journey must have in common."""
        return ("curved", *self.matrices.shape[3:], self.repeat)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.matrices.shape[1]

    @property
    def heads(self) -> int:
        """Number of heads that have their own frames; 1 means that all heads share them."""
        return self.matrices.shape[2]

    @property
    def width(self) -> int:
        """Number of entries of a head that are rotated."""
        return self.repeat * self.matrices.shape[3] * self.matrices.shape[4]

    @property
    def dual(self) -> CurvedFrames:
        """``A_t⁻ᵀ``, by which queries are multiplied; `self` if orthogonal.

        Example:
            >>> scaled = 2 * torch.eye(4).expand(1, 5, 1, 2, 4, 4)
            >>> CurvedFrames(scaled, inverses=torch.linalg.inv(scaled)).dual.matrices[0, 0, 0, 0, 0, 0].item()
            0.5
        """
        if self.inverses is None:
            return self
        return replace(self, matrices=self.inverses.mT, inverses=self.matrices.mT, _checked=True)

    def select(self, tokens: slice | Sequence[int] | Tensor) -> CurvedFrames:
        """The frames of some tokens: a slice, indices (kept,), or indices per batch row (batch, kept)."""
        inverses = None if self.inverses is None else select(self.inverses, tokens)
        return replace(self, matrices=select(self.matrices, tokens), inverses=inverses, _checked=True)

    def shift(self, by: Float[Tensor, "*#shape block block"]) -> CurvedFrames:
        """Frames ``S A_t`` with one operator S for all tokens: the frames change, but no journey does (gauge).

        S must be orthogonal if the frames are; with frames that have inverses it may be any invertible matrix.
        """
        inverses = None if self.inverses is None else self.inverses @ inverse(by, "by")
        return replace(self, matrices=by @ self.matrices, inverses=inverses, _checked=False)

    def to(self, device: Device) -> CurvedFrames:
        """The same frames on another device (`self` if already there, or for None); precision never changes."""
        if device is None or torch.device(device) == self.matrices.device:
            return self
        inverses = None if self.inverses is None else moved(self.inverses, device)
        return replace(self, matrices=moved(self.matrices, device), inverses=inverses, _checked=True)


def inverse(matrices: Float[Tensor, "*batch n n"], name: str) -> Float[Tensor, "*batch n n"]:
    """``A⁻¹``; where reading values is free, raises ValueError for singular or non-finite matrices, called `name`."""
    found, _ = torch.linalg.inv_ex(matrices)
    if readable(matrices):
        # The product bounds the condition number; it is NaN or infinite if an entry is.
        size = torch.linalg.matrix_norm(matrices.detach()) * torch.linalg.matrix_norm(found.detach())
        if not (size < 0.1 / torch.finfo(matrices.dtype).eps).all():
            raise ValueError(f"{name} must be invertible and finite: a singular matrix has no journey back")
    return found


register(CurvedFrames, ("matrices", "inverses"), ("content", "repeat"))
