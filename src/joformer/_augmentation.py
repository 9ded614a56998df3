"""Random changes of coordinates in training: a vision model then depends less on where and how large things are."""

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
    """``r j_k (n_k + s_k)``: shifts all coordinates, stretches each axis, then rescales all axes (DINOv3, timm).

    The three are drawn at every call, in this order, once for all tokens: use it in training only. Tokens at the
    identity stay there. With fixed or learned frames a shift alone changes no journey between tokens that have
    coordinates; it does change the journeys between them and a class token.

    Args:
        positions: ``(tokens, axes)``, or ``(batch, tokens, axes)`` with separate draws for each row; DINOv3 uses
            ``positions.grid(…, normalise="separate")``.
        shift: Bound of ``s_k``, uniform in [−shift, shift] for each axis.
        jitter: Bound of ``j_k``, log-uniform in [1 / jitter, jitter] for each axis.
        rescale: Bound of ``r``, log-uniform in [1 / rescale, rescale], the same for all axes.
        generator: Random generator; torch's default one if None, which `joformer train` reseeds at every step.

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
