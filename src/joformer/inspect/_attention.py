"""How a head's scores depend on displacement alone, and what travels between two tokens.

    ρ_p(Δ) = E_i e^{i(θ_{i+Δ,p} − θ_{i,p})}                         the mean journey over Δ; e^{iω_pΔ} for ω·n alone
    κ_h(Δ) = scale · (Σ_p Re(q̄*_p k̄_p ρ_p(Δ)) + q̄_rest·k̄_rest)    q̄, k̄: means over tokens, planes as complex numbers

κ is the score of a query and a key drawn independently from all tokens and placed Δ apart: content averages out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.frames import FlatFrames, is_flat
from joformer.frames._base import wrap
from joformer.inspect._layers import Attended, attended
from joformer.positions import located


@dataclass(frozen=True, eq=False)
class Kernel:
    """κ of every head of one layer.

    Attributes:
        layer: Number of the layer.
        name: Name of the layer's attention in the model.
        displacements: Δ = n_key − n_query along each axis, ``(count,)`` each.
        values: κ, ``(heads, *counts)``, float64; NaN if no two tokens have this displacement.
    """

    layer: int
    name: str
    displacements: tuple[Tensor, ...]
    values: Tensor


@dataclass(frozen=True, eq=False)
class Travel:
    """What travels from one token to another in one layer.

    Attributes:
        layer: Number of the layer.
        name: Name of the layer's attention in the model.
        weights: α of the target's query and the source's key, ``(heads,)``.
        row: α of the target's query and all keys, ``(heads, tokens)``.
        angles: θ_source − θ_target in −π … π, by which the source's key is rotated in the target's frame,
            ``(heads, planes)``; None if frames are not angles.
        scores: Whether scores use these angles.
        strength: The share of these angles by which the value is rotated: 0 without value transport.
    """

    layer: int
    name: str
    weights: Float[Tensor, " heads"]
    row: Float[Tensor, "heads tokens"]
    angles: Float[Tensor, "heads planes"] | None
    scores: bool
    strength: float


def kernels(model: nn.Module, batch: Tensor, reach: int | None = None) -> list[Kernel]:
    """Displacement kernels: ``κ_h(Δ)``, the mean score of independent queries and keys that are Δ apart.

    Queries, keys and frames are those of the tokens in `batch`. Content-dependent angles enter as their mean journey.

    Args:
        model: A model built from `JourneyAttention`, or a causal language model from transformers.
        batch: The model's input, such as tokens ``(batch, tokens)``; a larger batch gives better means.
        reach: The longest displacement along each axis; by default all that occur. Causal layers have Δ ≤ 0.

    Returns:
        One item per layer whose scores are rotated by angles on integer positions; curved frames have no κ.

    Raises:
        ValueError: If `reach` is not 1 or more.

    Example:
        >>> from joformer.models import LMConfig
        >>> model = LMConfig(vocab=9, dim=16, layers=2, heads=2).build()
        >>> kernel = kernels(model, torch.randint(9, (4, 12)), reach=5)[0]
        >>> kernel.displacements[0].tolist(), tuple(kernel.values.shape)
        ([-5, -4, -3, -2, -1, 0], (2, 6))
    """
    if reach is not None and reach < 1:
        raise ValueError(f"reach must be 1 or more, got {reach}")
    found = []
    for one in attended(model, batch):
        frames, places = one.frames, _places(one)
        if places is None or frames is None or not is_flat(frames) or frames.is_identity:
            continue
        index, known = places
        spans = [min(size - 1, size if reach is None else reach) for size in index.shape]
        steps = tuple(torch.arange(-span, 1 if one.causal else span + 1) for span in spans)
        q, k = (x[:, known].double().mean((0, 1)) for x in (one.q, one.k))
        k = k.repeat_interleave(len(q) // len(k), 0)
        (query, rest_q), (key, rest_k) = as_planes(q, frames), as_planes(k, frames)
        still = (rest_q * rest_k).sum(-1)
        turned = query.conj() * key
        theta = frames.angles.double()
        theta = theta.repeat_interleave(len(q) // theta.shape[2], 2)
        values = []
        for by in product(*(each.tolist() for each in steps)):
            here, there = _pairs(index, by)
            rho = torch.exp(1j * (theta[:, there] - theta[:, here])).mean((0, 1))  # of no pair: NaN
            values.append(one.scale * ((turned * rho).real.sum(-1) + still).cpu())
        shape = (len(q), *map(len, steps))
        found.append(Kernel(one.layer, one.name, steps, torch.stack(values, -1).view(shape)))
    return found


def journey(model: nn.Module, batch: Tensor, source: int, target: int) -> list[Travel]:
    """What travels from one token to another: ``α_ts R(θ_s − θ_t) v_s``, s the source and t the target.

    Args:
        model: A model built from `JourneyAttention`, or a causal language model from transformers.
        batch: One sample, such as tokens ``(1, tokens)``.
        source: The token whose key and value are read, counted from 0; in an image, prefix tokens come first.
        target: The token whose query reads them.

    Returns:
        One item per attention layer.

    Raises:
        ValueError: If there are several samples, if a token is out of range, or if the source comes after the target
            in a causal layer.

    Example:
        >>> from joformer.models import LMConfig
        >>> model = LMConfig(vocab=9, dim=16, layers=2, heads=2).build()
        >>> first = journey(model, torch.arange(8)[None], source=2, target=5)[0]
        >>> tuple(first.weights.shape), first.angles[0, 0].item(), first.strength
        ((2,), -3.0, 1.0)
    """
    if len(batch) != 1:
        raise ValueError(f"a journey is between two tokens of one sample, got {len(batch)}: give batch[:1]")
    found = []
    for one in attended(model, batch):
        tokens = one.k.shape[1]
        for name, token in (("source", source), ("target", target)):
            if not 0 <= token < tokens:
                raise ValueError(f"{name} {token} is out of range: the sample has the tokens 0 … {tokens - 1}")
        if one.causal and source > target:
            raise ValueError(f"nothing travels from token {source} back to {target}: later tokens are masked")
        angles, heads = None, one.q.shape[2]
        if one.frames is not None and is_flat(one.frames):
            theta = one.frames.angles[0].double()
            angles = wrap(theta[source] - theta[target])
            angles = angles.repeat_interleave(heads // len(angles), 0)
        row = one.weights()[0, :, target].detach()
        found.append(Travel(one.layer, one.name, row[:, source], row, angles, one.scores, one.strength))
    return found


def as_planes(x: Tensor, frames: FlatFrames) -> tuple[Tensor, Tensor]:
    """The rotated entries of heads (…, head_dim) as complex numbers (…, planes), and the others (…, rest).

    >>> as_planes(torch.arange(6.0), FlatFrames.of(torch.zeros(1, 1, 1, 2)))
    (tensor([0.+1.j, 2.+3.j]), tensor([4., 5.]))
    """
    width = frames.width
    inside, rest = (x[..., :width], x[..., width:]) if frames.at == "front" else (x[..., -width:], x[..., :-width])
    first, second = inside.chunk(2, -1) if frames.layout == "half" else (inside[..., 0::2], inside[..., 1::2])
    return torch.complex(first.contiguous(), second.contiguous()), rest


def _places(one: Attended) -> tuple[Tensor, Tensor] | None:
    """Token positions: the index of the token at each integer position (−1: none), and which tokens have one."""
    if one.positions is None or not one.scores:
        return None
    known = located(one.positions).cpu().nonzero().flatten()
    where = one.positions.cpu().double()[known]
    if not len(known) or not torch.equal(where, where.round()):
        return None
    whole = (where - where.min(0).values).long()
    if (sizes := whole.max(0).values + 1).prod() > 4 * len(known):
        return None  # scattered: hardly any two pairs of tokens have the same displacement
    index = torch.full(tuple(sizes.tolist()), -1)
    index[tuple(whole.T)] = known
    return index, known


def _pairs(index: Tensor, by: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The tokens (here, there) with there − here = `by`."""
    here, there = index, index
    for axis, step in enumerate(by):
        size = max(0, index.shape[axis] - abs(step))
        here, there = here.narrow(axis, max(0, -step), size), there.narrow(axis, max(0, step), size)
    both = (here >= 0) & (there >= 0)
    return here[both], there[both]
