"""Random changes of coordinates in training, so that a vision model depends less on where and how large things are."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Num
from torch import Tensor

from joformer._precision import exact_device


def augment(
    positions: Num[Tensor, "*batch tokens axes"],
    *,
    shift: float | None = None,
    jitter: float | None = None,
    rescale: float | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch tokens axes"]:
    """``r j_k (n_k + s_k)``: all coordinates shifted, each axis stretched, then all axes alike (DINOv3, timm).

    The three are drawn at every call, in this order, once for all tokens: call it in training only. Tokens at the
    identity stay there. A shift alone changes no journey of fixed or learned frames between tokens that have
    coordinates; it does between these and a class token.

    Args:
        positions: ``(tokens, axes)``, or ``(batch, tokens, axes)`` with draws of its own for each row; DINOv3's are
            ``positions.grid(…, normalise="separate")``.
        shift: Bound of ``s_k``, uniform in [−shift, shift] for each axis.
        jitter: Bound of ``j_k``, log-uniform in [1 / jitter, jitter] for each axis.
        rescale: Bound of ``r``, log-uniform in [1 / rescale, rescale], the same for all axes.
        generator: What to draw from; torch's own by default, which `joformer train` seeds anew for every step.

    Returns:
        Positions of the same shape.

    Raises:
        ValueError: If shift is negative, or jitter or rescale below 1.

    Example:
        >>> where = torch.tensor([[torch.nan, torch.nan], [-0.5, 0.5]])
        >>> augment(where, rescale=2.0, generator=torch.Generator().manual_seed(0)).isnan().tolist()
        [[True, True], [False, False]]
    """
    if shift is not None and not 0 <= shift < math.inf:
        raise ValueError(f"shift must be the largest displacement, 0 or more, got {shift}")
    for name, bound in (("jitter", jitter), ("rescale", rescale)):
        if bound is not None and not 1 <= bound < math.inf:
            raise ValueError(f"{name} must be the largest factor, 1 or more, got {bound}")
    where = positions if positions.is_floating_point() else positions.to(exact_device(positions.device), torch.float64)
    *batch, _, axes = where.shape

    def uniform(bound: float, each: int) -> Tensor:
        device = "cpu" if generator is None else generator.device
        drawn = torch.empty(*batch, 1, each, dtype=where.dtype, device=device)
        return drawn.uniform_(-bound, bound, generator=generator).to(where.device)

    if shift is not None:
        where = where + uniform(shift, axes)
    if jitter is not None:
        where = where * uniform(math.log(jitter), axes).exp()
    return where if rescale is None else where * uniform(math.log(rescale), 1).exp()
