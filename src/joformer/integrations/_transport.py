"""Value transport in a model that somebody else built: one call turns it on, changes its strength or removes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar

from torch import nn

from joformer.integrations._journey import Strength
from joformer.integrations._parts import join, leave
from joformer.integrations._record import KEY, Transport, find
from joformer.integrations.hf import _probe as hf_probe
from joformer.integrations.hf._patch import Attention, Embedding, join_projections
from joformer.integrations.hf._save import wrap_saving
from joformer.integrations.timm import _probe as timm_probe
from joformer.integrations.timm._patch import Rope, RopeAttention

Model = TypeVar("Model", bound=nn.Module)


def transport_values(
    model: Model, strength: int | float = 1.0, *, off: bool = False, extrapolate: bool = False
) -> Model:
    r"""Transports values along the journeys of a model's own rotary positions: ``o_i = Σ_j a_ij R(s (θ_j − θ_i)) v_j``.

    In every attention layer with rotary positions, with θ the model's own angles and s the strength,

        o_i = R(s θ_i)⁻¹ Σ_j softmax_j(…) R(s θ_j) v_j

    Values are rotated before the cache stores them and the output before its projection, so that every cache and
    attention implementation works unchanged. Calling again changes the strength. Called on a part of a model (one tower
    of two), it changes that part; called on the whole model afterwards, it changes the rest too. `repr(model)` shows
    the strength of every attention layer, and `save_pretrained` saves which ones are transported.

    Args:
        model: A model from Hugging Face transformers, including adapters and quantised projections, or one of timm's
            rotary vision transformers. It is changed in place; its weights and their names stay the same.
        strength: s, from 0 (bit-identical to the model without transport) to 1 (full transport); `Anneal` moves it from
            one to the other in training.
        off: Remove transport without a trace instead.
        extrapolate: Allow a strength below 0 or above 1.

    Returns:
        The model.

    Raises:
        ValueError: If the strength is not a number from 0 to 1, or if the model is not supported; the message says
            why, and the model is unchanged.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from joformer.integrations import strength_of
        >>> config = LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> model = transport_values(LlamaForCausalLM(config), strength=0.5)
        >>> strength_of(model)
        0.5
        >>> _ = transport_values(model, off=True)
        >>> strength_of(model) is None
        True
    """
    for name, flag in {"off": off, "extrapolate": extrapolate}.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} must be True or False, got {flag!r}")
    strength = checked_strength(strength, extrapolate)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module, got {type(model).__name__}: load it first")
    found = find(model)
    if model.__dict__.get(KEY) not in found:  # it is a part of what was changed, or has such parts
        _require_whole(model, found)
    if not off and len(found) == 1 and not _has_others(model, found[0]):
        found[0].strength.set(strength)
        for attention in found[0].attentions:
            join_projections(attention)
        model.__dict__.setdefault(KEY, found[0])
        return model
    with _all_or_nothing(model, found):
        _remove(model, found)
        if not off:
            _install(model, strength)
    if not off:
        wrap_saving()
    return model


def checked_strength(strength: Any, extrapolate: bool, name: str = "strength") -> float:
    """A strength as a float; ValueError where it is none, or outside 0…1 without `extrapolate`."""
    if isinstance(strength, bool) or not isinstance(strength, Real) or not math.isfinite(strength):
        raise ValueError(f"{name} must be a finite number, from 0 (none) to 1 (full transport), got {strength!r}")
    if not extrapolate and not 0 <= float(strength) <= 1:
        raise ValueError(
            f"{name} must be from 0 (none) to 1 (full transport), got {strength}: set extrapolate=True to go beyond"
        )
    return float(strength)


def _require_whole(model: nn.Module, found: list[Transport]) -> None:
    """Strength and rotary embedding are shared: a part of what was changed cannot be changed by itself."""
    inside = {id(part) for part in model.modules()}
    if any(id(attention) not in inside for record in found for attention in record.attentions):
        raise ValueError(
            f"this {type(model).__name__} is part of a model whose values are transported as a whole: "
            "call transport_values on that model"
        )


def _has_others(model: nn.Module, record: Transport) -> bool:
    """Whether a model has attentions with positions beside the part that is transported."""
    if record.called_on(model):
        return False
    parts = [part for part in model.modules() if record.called_on(part)]
    inside = {id(each) for part in parts for each in part.modules()}
    takers = [*hf_probe.attentions(model).values(), *timm_probe.attentions(model).values()]
    return bool(parts) and any(id(taker) not in inside for taker in takers)


def _install(model: nn.Module, strength: float) -> None:
    record = Transport(Strength(strength))
    of_timm = bool(timm_probe.attentions(model))
    kinds: Any = (Rope, RopeAttention) if of_timm else (Embedding, Attention)
    specs: Any = (timm_probe if of_timm else hf_probe).probe(model, record.strength)
    for part, modules, named in zip(kinds, (record.embeddings, record.attentions), specs, strict=True):
        for name, spec in named.items():
            modules.append(model.get_submodule(name))
            join(part, modules[-1], spec)
    for attention in record.attentions:
        join_projections(attention)
    for carrier in (model, *record.attentions):
        carrier.__dict__[KEY] = record


def _remove(model: nn.Module, found: list[Transport]) -> None:
    for record in found:
        for part in record.parts:
            leave(part)
        for part in (*model.modules(), *record.attentions):
            if part.__dict__.get(KEY) is record:
                del part.__dict__[KEY]
        record.embeddings, record.attentions = [], []


@contextmanager
def _all_or_nothing(model: nn.Module, found: list[Transport]) -> Iterator[None]:
    """If the body fails, the model and its records are as they were."""
    before = [(each, type(each), dict(vars(each))) for each in (*model.modules(), *found)]
    try:
        yield
    except BaseException:
        for each, cls, held in before:
            each.__class__ = cls
            vars(each).clear()
            vars(each).update(held)
        raise
