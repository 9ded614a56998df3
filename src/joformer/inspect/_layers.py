"""What each attention layer did in one forward pass: queries, keys, frames and weights.

s_ij = scale · q_iᵀ A_i⁻¹ A_j k_j        α_i = softmax_j s_ij        q, k here before any rotation
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.attention import JourneyAttention, journey_attention
from joformer.attention._options import sides
from joformer.frames import Frames, FramesModule


@dataclass(frozen=True, eq=False)
class Attended:
    """One attention layer in one forward pass; `attended` makes them.

    Attributes:
        layer: The number in the layer's name, or its index among the attention layers.
        name: Name of the layer in the model.
        q: Queries before rotation, ``(batch, tokens, heads, head_dim)``.
        k: Keys before rotation, ``(batch, tokens, kv_heads, head_dim)``.
        frames: Frames of the tokens; None if the layer has no positions that could be read.
        positions: ``(tokens, axes)``, NaN if a token has none; None if they are unknown or differ within the batch.
        module: The frames module; None in models other than ours.
        scores: Whether queries and keys are rotated.
        strength: The share of the angles by which values are rotated: 0 is no value transport.
        causal: Whether later tokens are masked.
        scale: Scale of the scores.
    """

    layer: int
    name: str
    q: Float[Tensor, "batch tokens heads head_dim"]
    k: Float[Tensor, "batch tokens kv_heads head_dim"]
    frames: Frames | None
    positions: Tensor | None
    module: FramesModule | None
    scores: bool
    strength: float
    causal: bool
    scale: float
    attend: Callable[[], Tensor]

    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """α, the attention weights of the layer."""
        return self.attend()


@torch.no_grad()
def attended(model: nn.Module, batch: Tensor) -> list[Attended]:
    """What every self-attention layer does with a batch, in call order.

    Args:
        model: A model built from `JourneyAttention`, or a causal language model from transformers. It is called as
            ``model(batch)`` and left unchanged.
        batch: Tokens ``(batch, tokens)``, or any other input of the model.

    Returns:
        One item per layer; empty if the model has no attention that can be read. Recurrences, linear attention, ALiBi
        and attention between two sequences are left out.

    Example:
        >>> from joformer.models import LMConfig
        >>> layers = attended(LMConfig(vocab=9, dim=16, layers=2, heads=2).build(), torch.arange(8)[None])
        >>> [(one.name, tuple(one.q.shape), tuple(one.weights().shape)) for one in layers][0]
        ('blocks.0.attention', (1, 8, 2, 8), (1, 2, 8, 8))
    """
    ours = {name: part for name, part in model.named_modules() if is_readable(part)}
    if not ours and hasattr(model, "get_input_embeddings"):
        from joformer.inspect._hf import attended as of_transformers

        return of_transformers(model, batch)
    made: dict[int, tuple[Frames, Tensor, FramesModule]] = {}
    found: list[Attended] = []

    def after(module: FramesModule, args: tuple[Any, ...], given: dict[str, Any], frames: Frames) -> None:
        made[id(frames)] = frames, given["positions"] if "positions" in given else args[0], module

    def before(name: str, layer: JourneyAttention, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        x, *rest = args if args else (given["x"],)
        frames: Frames = given["frames"] if "frames" in given else rest[0]
        q, k, _ = layer._project(x, None, [None, None, None])
        _, positions, module = made.get(id(frames), (None, None, None))
        scores, values = sides(layer.transport)
        options = {one: given.get(one) for one in ("mask", "segments")}
        attend = partial(_weights, layer, q, k, frames, options)
        number = number_of(name, len(found))
        found.append(
            Attended(
                number, name, q, k, frames, _shared(positions), module, scores, float(values), layer.causal,
                layer.scale, attend,
            )
        )  # fmt: skip

    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(part, FramesModule):
                stack.callback(part.register_forward_hook(after, with_kwargs=True).remove)
        for name, layer in ours.items():
            stack.callback(layer.register_forward_pre_hook(partial(before, name), with_kwargs=True).remove)
        model(batch)
    return found


def is_readable(part: nn.Module) -> bool:
    """Whether a module computes self-attention exactly as `JourneyAttention` does; subclasses may change it.

    >>> is_readable(JourneyAttention(8, 2)), is_readable(JourneyAttention(8, 2, context_dim=4))
    (True, False)
    """
    return (
        isinstance(part, JourneyAttention)
        and type(part).forward is JourneyAttention.forward
        and part.context_dim is None
    )


def number_of(name: str, place: int) -> int:
    """The number of a layer: the one in its name, or else its index.

    >>> number_of("blocks.3.attention", 0), number_of("attention", 7)
    (3, 7)
    """
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else place


def _weights(layer: JourneyAttention, q: Tensor, k: Tensor, frames: Frames, options: dict[str, Any]) -> Tensor:
    """The layer's weights: its output when the values are the unit vectors of the keys."""
    scores, _ = sides(layer.transport)
    units = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)[None, :, None].expand(*k.shape[:3], -1)
    with torch.no_grad():
        out = journey_attention(
            q, k, units, frames, transport="scores" if scores else "none", causal=layer.causal, window=layer.window,
            scale=layer.scale, weighting=layer.weighting, **options,
        )  # fmt: skip
    return out.transpose(1, 2)


def _shared(positions: Tensor | None) -> Tensor | None:
    """Positions (tokens, axes) shared by all rows; None if rows differ."""
    if positions is None or positions.dim() == 2:
        return positions
    same = torch.equal(positions.nan_to_num(-1.0), positions[:1].expand_as(positions).nan_to_num(-1.0))
    return positions[0] if same else None
