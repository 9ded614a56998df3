"""Value transport in a model that somebody else built: one call to turn it on, to change its strength, to undo it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import TypeVar

from torch import nn

from joformer.integrations import looking_timm
from joformer.integrations.carrying import Attention, Embedding, Strength, check_leave, join, leave, surround
from joformer.integrations.looking import look
from joformer.integrations.timm import Rope, RopeAttention

Model = TypeVar("Model", bound=nn.Module)
_KEPT = "_joformer_transport"


@dataclass
class Transport:
    """What was changed in a model: all that is needed to follow it and to undo it."""

    strength: Strength
    embeddings: list[nn.Module] = field(default_factory=list)
    attentions: list[nn.Module] = field(default_factory=list)
    marked: list[nn.Module] = field(default_factory=list)


def transport_values(model: Model, strength: int | float = 1.0, *, off: bool = False) -> Model:
    r"""Carry the values of a loaded model along the journeys its own rotary positions define; returns the model.

    In every attention layer with rotary positions, with θ the model's own angles and s the strength,

        o_i = R(s θ_i)⁻¹ Σ_j softmax_j(…) R(s θ_j) v_j

    Values are rotated before the cache takes them and the output before its projection, so that every cache and
    attention implementation works unchanged. At strength 0 the model computes what it always did, to the last bit;
    between 0 and 1 lies a path from there to full transport (`Anneal` walks it, in training). Calling again changes
    the strength; `off=True` removes every trace. What cannot be done is refused before anything is changed.

    Works on the models of Hugging Face's transformers, with adapters or quantised projections in them or not, and on
    timm's rotary vision transformers.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(
    ...     LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ... )
    >>> _ = transport_values(model, strength=0.5)
    >>> strength_of(model)
    0.5
    >>> _ = transport_values(model, off=True)
    >>> strength_of(model) is None
    True
    """
    if isinstance(strength, bool) or not isinstance(strength, Real) or not math.isfinite(strength):
        raise ValueError(f"strength must be a finite number, from 0 (none) to 1 (full transport), got {strength!r}")
    if not isinstance(off, bool):
        raise ValueError(f"off must be True or False, got {off!r}")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch module, got {type(model).__name__}: load it first")
    kept = find(model)
    if off:
        if kept is not None:
            _undo(kept)
    elif kept is not None:
        kept.strength.set(float(strength))
        for attention in kept.attentions:
            surround(attention)
        _mark(model, kept)
    else:
        _install(model, float(strength))
    return model


def strength_of(model: nn.Module) -> float | None:
    """The strength of a model's transport, or None where it has none."""
    kept = find(model)
    return None if kept is None else kept.strength.value


def find(model: nn.Module) -> Transport | None:
    """The transport of a model, or of the model inside it: adapters and parallel wrappers are seen through."""
    return next((kept for part in model.modules() if (kept := part.__dict__.get(_KEPT)) is not None), None)


def _install(model: nn.Module, strength: float) -> None:
    kept = Transport(Strength(strength))
    of_timm = bool(looking_timm.attentions(model))
    tables, around = (looking_timm.look if of_timm else look)(model, kept.strength)
    try:
        for name, table in tables.items():
            kept.embeddings.append(model.get_submodule(name))
            join(Rope if of_timm else Embedding, kept.embeddings[-1], table)
        for name, its in around.items():
            kept.attentions.append(model.get_submodule(name))
            join(RopeAttention if of_timm else Attention, kept.attentions[-1], its)
            surround(kept.attentions[-1])
    except ValueError:
        _leave(kept)
        raise
    _mark(model, kept)


def _mark(model: nn.Module, kept: Transport) -> None:
    """Not the model alone: an adapter's wrapper may be thrown away, and the model inside it used or saved by itself."""
    from joformer.integrations.saving import mark_saves

    if model.__dict__.get(_KEPT) is kept:
        return
    for part in model.modules():
        if (part is model or hasattr(type(part), "save_pretrained")) and _KEPT not in part.__dict__:
            kept.marked.append(part)
            part.__dict__[_KEPT] = kept
            mark_saves(part)


def _leave(kept: Transport) -> None:
    parts = [*kept.embeddings, *(part for attention in kept.attentions for part in attention.modules())]
    for each in (check_leave, leave):  # all or none
        for part in parts:
            each(part)


def _undo(kept: Transport) -> None:
    from joformer.integrations.saving import unmark_saves

    _leave(kept)
    for part in kept.marked:
        del part.__dict__[_KEPT]
        unmark_saves(part)
