"""Which heads use the value transport: it is switched off head by head in a trained model, and the loss measured.

    head as trained     o_i = A_i⁻¹ Σ_j α_ij A_j v_j
    switched off        o_i = Σ_j α_ij v_j             the weights α of that head stay as they are

That is what the trained model relies on, not what a model trained without it would lose: that one would have learned
something else instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer.attention import JourneyAttention
from joformer.experiments.statistics import Estimate, estimate
from joformer.frames import FlatFrames, Frames, is_flat
from joformer.training import Text
from joformer.training.data import windows

Measure = Callable[[nn.Module], Tensor]
"""The loss of a model on each of some samples, always the same ones, (samples,)."""


@dataclass(frozen=True)
class Effect:
    """By how much the loss rises where these heads, (layer, head) each, no longer transport values.

    >>> Effect(((0, 1),), estimate([0.1, 0.2, 0.3])).off
    ((0, 1),)
    """

    off: tuple[tuple[int, int], ...]
    change: Estimate
    """Over the samples, which are paired; its interval is of other samples, not of another training run."""


def layers_with_values(model: nn.Module) -> list[JourneyAttention]:
    """The attention layers that transport values, in the order in which the model holds them.

    >>> from joformer.models import LMConfig
    >>> len(layers_with_values(LMConfig(vocab=9, dim=16, layers=3, heads=2, pattern="FN").build()))
    2
    """
    found = [module for module in model.modules() if isinstance(module, JourneyAttention)]
    return [layer for layer in found if layer.transport in ("values", "both")]


@contextmanager
def without_values(model: nn.Module, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Within, these heads transport no values: (layer, key/value head) each, of `layers_with_values(model)`.

    Args:
        model: A model made of `JourneyAttention` with flat frames; as it was before when the block is left.
        heads: Which heads; query heads that share a key/value head go with it.

    Raises:
        ValueError: If the model transports no values or has no such head, or (in its forward) has curved frames.

    Example:
        >>> from joformer.models import LMConfig
        >>> model, tokens = LMConfig(vocab=9, dim=16, layers=2, heads=2).build(), torch.arange(9)[None]
        >>> with without_values(model, [(0, 1)]):
        ...     off = model(tokens)
        >>> torch.equal(off, model(tokens))
        False
    """
    layers = layers_with_values(model)
    if not layers:
        raise ValueError(f"{type(model).__name__} transports no values: give a model with transport='both' or 'values'")
    for layer, head in heads:
        if not 0 <= layer < len(layers) or not 0 <= head < layers[layer].kv_heads:
            there = f"{len(layers)} layers with values of {layers[0].kv_heads} heads"
            raise ValueError(f"there is no head {head} in layer {layer}: the model has {there}, counted from 0")
    with ExitStack() as stack:
        for at in {layer for layer, _ in heads}:
            off = sorted(head for layer, head in heads if layer == at)
            hook = layers[at].register_forward_pre_hook(_Still(off), with_kwargs=True)
            stack.callback(hook.remove)
        yield


def head_effects(model: nn.Module, measure: Measure) -> tuple[Estimate, list[Effect]]:
    """The loss as it is, and how it changes with values switched off: in each head, in each layer, in all.

    Args:
        model: A trained model, in evaluation mode.
        measure: The loss on each of the same samples, such as `text_measure` gives.

    Returns:
        The loss over the samples, and the effects: heads first, then whole layers, then all heads at once.

    Raises:
        ValueError: If the model transports no values.

    Example:
        >>> from joformer.models import LMConfig
        >>> model, tokens = LMConfig(vocab=9, dim=16, layers=2, heads=2).build().eval(), torch.arange(8).view(2, 4)
        >>> whole, effects = head_effects(model, lambda model: model(tokens).logsumexp(-1).sum(-1))
        >>> [effect.off for effect in effects][3:5]
        [((1, 1),), ((0, 0), (0, 1))]
    """
    layers = [[(at, head) for head in range(layer.kv_heads)] for at, layer in enumerate(layers_with_values(model))]
    every = [one for layer in layers for one in layer]
    with torch.no_grad():
        whole = measure(model).double()
        effects = []
        for off in (*([one] for one in every), *layers, every):
            with without_values(model, off):
                effects.append(Effect(tuple(off), estimate((measure(model).double() - whole).tolist())))
    return estimate(whole.tolist()), effects


def text_measure(text: Text, *, context: int = 256, count: int = 200, batch: int = 16) -> Measure:
    """Bits per byte of each of `count` windows of `context` tokens, spread evenly over the held-out text.

    Args:
        text: The tokens, of which the validation split is read.
        context: Tokens of a window.
        count: How many windows; fewer where they would overlap.
        batch: How many at once.

    Example:
        >>> import numpy as np
        >>> from joformer.models import LMConfig
        >>> from joformer.training import Tokenizer
        >>> ids = np.frombuffer(b"to be or not to be " * 100, np.uint8)
        >>> measure = text_measure(Text(ids, ids, ids, Tokenizer.of_bytes(), "an example"), context=8, count=5)
        >>> measure(LMConfig(vocab=256, dim=16, layers=1, heads=2).build()).shape
        torch.Size([5])
    """
    last = len(text.valid) - context - 1
    starts = torch.linspace(0, last, max(1, min(count, last // context + 1)), dtype=torch.float64).long()
    lengths = text.tokenizer.bytes_per_token

    def measure(model: nn.Module) -> Tensor:
        device, found = next(model.parameters()).device, []
        for some in starts.split(batch):
            both = windows(text.valid, some, context + 1)
            inputs, targets = both[:, :-1].to(device), both[:, 1:]
            logits = model(inputs).float().cpu()
            nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
            found.append(nats.double().sum(1) / math.log(2) / lengths[targets].sum(1))
        return torch.cat(found)

    return measure


class _Still:
    """Before a layer is called: its frames for the values stand still in these heads."""

    def __init__(self, heads: list[int]) -> None:
        self.heads = heads

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        assert isinstance(layer, JourneyAttention)
        frames = given["frames"] if "frames" in given else args[1]
        return args, {**given, "value_frames": _still(frames, self.heads, layer.kv_heads)}


def _still(frames: Frames, heads: list[int], count: int) -> Frames:
    """The frames with angles of zero in these of `count` heads."""
    if not is_flat(frames):
        raise ValueError("curved frames have no angles to switch off: give a model with flat frames")
    angles = frames.angles.repeat_interleave(count // frames.heads, 2).clone()
    angles[:, :, heads] = 0.0
    return FlatFrames.of(angles, layout=frames.layout, at=frames.at, content=frames.content)
