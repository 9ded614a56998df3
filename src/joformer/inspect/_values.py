"""Which heads use value transport: it is switched off head by head in a trained model, and the loss is measured.

    head as trained     o_i = A_i⁻¹ Σ_j α_ij A_j v_j
    switched off        o_i = Σ_j α_ij v_j             the weights α of that head stay the same

This shows what the trained model relies on, not what a model trained without transport would lose: that one would have
learned something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._log import Progress
from joformer.attention import JourneyAttention
from joformer.experiments.statistics import Estimate, estimate
from joformer.frames import FlatFrames, Frames, is_flat
from joformer.inspect import _hf

if TYPE_CHECKING:
    from joformer.training import ImageTask, Text

Measure = Callable[[nn.Module], Tensor]
"""The loss of a model on each of a fixed set of samples, (samples,)."""


@dataclass(frozen=True)
class Effect:
    """How much the loss rises if these heads, (layer, head) each, no longer transport values.

    >>> Effect(((0, 1),), estimate([0.1, 0.2, 0.3])).off
    ((0, 1),)
    """

    off: tuple[tuple[int, int], ...]
    change: Estimate
    """Paired over samples; its interval is over samples, not over training runs."""

    @property
    def used(self) -> bool:
        """Whether the whole interval of the change is above zero."""
        return self.change.low is not None and self.change.low > 0


@dataclass(frozen=True)
class ValueUse:
    """What a model loses without its value transport.

    Attributes:
        loss: The loss as trained, over the samples.
        names: Names of the layers that transport values; (layer, head) in the effects is an index into these.
        heads: The effect of each head alone, layer by layer.
        layers: The effect of all heads of each layer.
        whole: The effect of all heads at once; None if the model transports no values.
    """

    loss: Estimate
    names: tuple[str, ...]
    heads: tuple[Effect, ...]
    layers: tuple[Effect, ...]
    whole: Effect | None


def layers_with_values(model: nn.Module) -> dict[str, nn.Module]:
    """The attention layers that transport values, by name, in the order of the model.

    >>> from joformer.models import LMConfig
    >>> list(layers_with_values(LMConfig(vocab=9, dim=16, layers=3, heads=2, pattern="FN").build()))
    ['blocks.0.attention', 'blocks.2.attention']
    """
    found: dict[str, nn.Module] = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, JourneyAttention) and part.transport in ("values", "both")
    }
    return found or dict(_hf.transported(model))


def kv_heads(layer: nn.Module) -> int:
    """The number of key/value heads of a layer of `layers_with_values`."""
    if isinstance(layer, JourneyAttention):
        return layer.kv_heads
    spec: Any = layer._spec
    return spec.heads.heads


@contextmanager
def without_values(model: nn.Module, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Context manager in which these heads transport no values.

    Args:
        model: A model built from `JourneyAttention` with flat frames, or a transformers model with transported values.
            It is restored on exit.
        heads: ``(layer, key/value head)`` each, counted in `layers_with_values(model)`; query heads that share a
            key/value head are switched off with it.

    Raises:
        ValueError: If the model transports no values or has no such head, or, in its forward pass, if frames are
            curved.

    Example:
        >>> from joformer.models import LMConfig
        >>> model, tokens = LMConfig(vocab=9, dim=16, layers=2, heads=2).build(), torch.arange(9)[None]
        >>> with without_values(model, [(0, 1)]):
        ...     off = model(tokens)
        >>> torch.equal(off, model(tokens))
        False
    """
    layers = list(layers_with_values(model).values())
    if not layers:
        raise ValueError(f"{type(model).__name__} transports no values: give a model with transport='both' or 'values'")
    for layer, head in heads:
        if not 0 <= layer < len(layers) or not 0 <= head < kv_heads(layers[layer]):
            there = f"{len(layers)} layers with value transport and {kv_heads(layers[0])} heads"
            raise ValueError(f"there is no head {head} in layer {layer}: the model has {there}, counted from 0")
    with ExitStack() as stack:
        for at in {layer for layer, _ in heads}:
            off = sorted(head for layer, head in heads if layer == at)
            hook = layers[at].register_forward_pre_hook(partial(_switch_off, off), with_kwargs=True)
            stack.callback(hook.remove)
        yield


def value_use(model: nn.Module, measure: Measure) -> ValueUse:
    """The loss, and ``loss without − loss`` with value transport switched off: per head, per layer, everywhere.

    Args:
        model: A trained model, in evaluation mode.
        measure: The loss on each of a fixed set of samples, for example from `text_measure` or `image_measure`.

    Returns:
        The effects; none for a model that transports no values.

    Example:
        >>> from joformer.models import LMConfig
        >>> model, tokens = LMConfig(vocab=9, dim=16, layers=2, heads=2).build().eval(), torch.arange(8).view(2, 4)
        >>> use = value_use(model, lambda model: model(tokens).logsumexp(-1).sum(-1))
        >>> [effect.off for effect in use.heads][3], use.layers[0].off, len(use.whole.off)
        (((1, 1),), ((0, 0), (0, 1)), 4)
    """
    found = layers_with_values(model)
    layers = [[(at, head) for head in range(kv_heads(layer))] for at, layer in enumerate(found.values())]
    every = [one for layer in layers for one in layer]
    parts = [*([one] for one in every), *layers, *([every] if every else [])]
    effects = []
    with torch.no_grad(), Progress("switching heads off", len(parts) + 1, unit="measurements") as progress:
        whole = measure(model).double()
        progress.advance()
        for off in parts:
            with without_values(model, off):
                effects.append(Effect(tuple(off), estimate((measure(model).double() - whole).tolist())))
            progress.advance()
    heads, rest = effects[: len(every)], effects[len(every) :]
    return ValueUse(
        estimate(whole.tolist()), tuple(found), tuple(heads), tuple(rest[: len(layers)]), rest[-1] if rest else None
    )


def text_measure(text: Text, *, context: int = 256, count: int = 200, batch: int = 16) -> Measure:
    """Bits per byte of each of `count` windows of `context` tokens, spread evenly over the held-out text.

    Args:
        text: The tokens; the validation split is used.
        context: Tokens per window.
        count: Number of windows; fewer if they would overlap.
        batch: Windows per forward pass.

    Example:
        >>> import numpy as np
        >>> from joformer.models import LMConfig
        >>> from joformer.training import Text, Tokenizer
        >>> ids = np.frombuffer(b"to be or not to be " * 100, np.uint8)
        >>> measure = text_measure(Text(ids, ids, ids, Tokenizer.of_bytes(), "an example"), context=8, count=5)
        >>> measure(LMConfig(vocab=256, dim=16, layers=1, heads=2).build()).shape
        torch.Size([5])
    """
    return _windowed(text.valid, text.tokenizer.bytes_per_token, context, count, batch)


def token_measure(tokens: Any, *, context: int = 256, count: int = 200, batch: int = 16) -> Measure:
    """Nats per token of each of `count` windows of `context` tokens, spread evenly: for models with other tokenizers.

    Args:
        tokens: Integers, ``(tokens,)``, an array or a memory map.
        context: Tokens per window.
        count: Number of windows; fewer if they would overlap.
        batch: Windows per forward pass.

    Example:
        >>> import numpy as np
        >>> from joformer.models import LMConfig
        >>> measure = token_measure(np.arange(99) % 9, context=8, count=5)
        >>> measure(LMConfig(vocab=9, dim=16, layers=1, heads=2).build()).shape
        torch.Size([5])
    """
    return _windowed(tokens, None, context, count, batch)


def image_measure(task: ImageTask, *, count: int = 200, batch: int = 64) -> Measure:
    """The cross-entropy in nats of each of `count` test images, spread evenly over them.

    Args:
        task: The task whose test images are used.
        count: Number of images; fewer if there are not as many.
        batch: Images per forward pass.

    Example:
        >>> from joformer.models import ViTConfig
        >>> from joformer.training import ImageTask, load_images
        >>> config = ViTConfig(shape=(8, 8), patch=(4, 4), channels=1, classes=10, dim=16, layers=1, heads=2)
        >>> image_measure(ImageTask(load_images("digits")), count=5)(config.build()).shape
        torch.Size([5])
    """
    some = len(task.images.test)
    images, labels = task.held_out(torch.linspace(0, some - 1, min(count, some), dtype=torch.float64).long())

    def measure(model: nn.Module) -> Tensor:
        device = next(model.parameters()).device
        parts = zip(images.split(batch), labels.split(batch), strict=True)
        return torch.cat(
            [F.cross_entropy(model(x.to(device)).float().cpu(), y.cpu(), reduction="none") for x, y in parts]
        )

    return measure


def _windowed(tokens: Any, lengths: Tensor | None, context: int, count: int, batch: int) -> Measure:
    """Nats per token of each window, or bits per byte if the bytes of each token are given."""
    from joformer.training.data import windows

    last = len(tokens) - context - 1
    if last < 0:
        raise ValueError(f"the text has {len(tokens)} tokens: a context of {context} needs {context + 1} or more")
    starts = torch.linspace(0, last, max(1, min(count, last // context + 1)), dtype=torch.float64).long()

    def measure(model: nn.Module) -> Tensor:
        device, found = next(model.parameters()).device, []
        for some in starts.split(batch):
            both = windows(tokens, some, context + 1)
            inputs, targets = both[:, :-1].to(device), both[:, 1:]
            logits = logits_of(model, inputs).float().cpu()
            nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
            sums = nats.double().sum(1)
            found.append(sums / context if lengths is None else sums / math.log(2) / lengths[targets].sum(1))
        return torch.cat(found)

    return measure


def logits_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits (batch, tokens, vocab) of our models or of transformers models."""
    if not hasattr(model, "get_input_embeddings"):
        return model(tokens)
    return model(input_ids=tokens, use_cache=False).logits


def _switch_off(
    heads: list[int], layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Pre-forward hook that sets the value frames of these heads to the identity."""
    still = partial(_still, heads=heads)
    if not isinstance(layer, JourneyAttention):
        return _hf.stilled(layer, args, given, still)
    frames = given["frames"] if "frames" in given else args[1]
    return args, {**given, "value_frames": still(frames, layer.kv_heads)}


def _still(frames: Frames, count: int, heads: list[int]) -> Frames:
    """The frames with zero angles in these of `count` heads."""
    if not is_flat(frames):
        raise ValueError("curved frames have no angles to switch off: give a model with flat frames")
    angles = frames.angles.repeat_interleave(count // frames.heads, 2).clone()
    angles[:, :, heads] = 0.0
    return FlatFrames.of(angles, layout=frames.layout, at=frames.at, content=frames.content)
