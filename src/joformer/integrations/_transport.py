"""Value transport in a model that somebody else built: one call to turn it on, to change its strength, to undo it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from torch import nn

from joformer.integrations.hf import _probe as hf_probe
from joformer.integrations.hf._patch import Attention, Embedding, Part, Strength, check_leave, join, leave, surround
from joformer.integrations.hf._save import follow
from joformer.integrations.timm import _probe as timm_probe
from joformer.integrations.timm._patch import Rope, RopeAttention

Model = TypeVar("Model", bound=nn.Module)
_KEPT = "_joformer_transport"


@dataclass(eq=False)
class Transport:
    """What one call changed in a model; the module it was called on carries this, and so does each of the attentions.

    Not the model itself: who copies or pickles a part of it must not get the rest as well. Empty once it is undone.
    """

    strength: Strength
    embeddings: list[nn.Module] = field(default_factory=list)
    attentions: list[nn.Module] = field(default_factory=list)


def transport_values(model: Model, strength: int | float = 1.0, *, off: bool = False) -> Model:
    r"""Carry the values of a loaded model along the journeys its own rotary positions define; returns the model.

    In every attention layer with rotary positions, with θ the model's own angles and s the strength,

        o_i = R(s θ_i)⁻¹ Σ_j softmax_j(…) R(s θ_j) v_j

    Values are rotated before the cache takes them and the output before its projection, so that every cache and
    attention implementation works unchanged. At strength 0 the model computes what it always did, to the last bit;
    between 0 and 1 lies a path from there to full transport (`Anneal` walks it, in training). Calling again changes
    the strength; `off=True` removes every trace. What cannot be done is refused before anything is changed.

    Called on a part of a model (one tower of two), it changes that part; called then on the whole model, it changes the
    rest too. Which attentions are transported is saved by name.

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
    found = find(model)
    if model.__dict__.get(_KEPT) not in found:  # it is a part of what was changed, or has such parts
        _require_whole(model, found)
    if off:
        _undo(model, found)
    elif len(found) == 1 and not _has_others(model, found[0]):
        found[0].strength.set(float(strength))
        for attention in found[0].attentions:
            surround(attention)
        model.__dict__.setdefault(_KEPT, found[0])
    else:
        with _undone(model, found):
            _install(model, float(strength))
        follow()
    return model


def strength_of(model: nn.Module) -> float | None:
    """The strength of a model's transport, or None where it has none.

    Raises:
        ValueError: If parts of it have different strengths.
    """
    strengths = {kept.strength.value for kept in find(model)}
    if len(strengths) > 1:
        raise ValueError(f"parts of this {type(model).__name__} have the strengths {sorted(strengths)}: ask a part")
    return strengths.pop() if strengths else None


def find(model: nn.Module) -> list[Transport]:
    """The transport of a model, of the parts inside it (adapters and wrappers are seen through), or of the whole."""
    own = model.__dict__.get(_KEPT)
    if own is not None and own.attentions and not isinstance(model, Part):
        return [own]
    found = (part.__dict__[_KEPT] for part in model.modules() if _KEPT in part.__dict__)
    return list({id(kept): kept for kept in found if kept.attentions}.values())


def transported(model: nn.Module) -> list[dict[str, Any]]:
    """Which attentions of a model are transported, by name: an entry for each call on it or a part of it.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(
    ...     LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ... )
    >>> _ = transport_values(model.model, 0.5)
    >>> transported(model)
    [{'part': 'model', 'strength': 0.5, 'attentions': ['model.layers.0.self_attn']}]
    """
    found, named = [], dict(model.named_modules())
    for kept in find(model):
        turning = {id(each) for each in kept.attentions if getattr(each._of, "heads", True)}
        names = [name for name, part in named.items() if id(part) in turning]
        if kept.strength.on and names:
            called = (name for name, part in named.items() if _carries(part, kept))
            found.append({"part": next(called, ""), "strength": kept.strength.value, "attentions": names})
    return sorted(found, key=lambda entry: entry["part"])


def _carries(part: nn.Module, kept: Transport) -> bool:
    return part.__dict__.get(_KEPT) is kept and not isinstance(part, Part)


def _require_whole(model: nn.Module, found: list[Transport]) -> None:
    """Strength and rotary embedding are shared: a part of what was changed cannot be changed by itself."""
    inside = {id(part) for part in model.modules()}
    if any(id(attention) not in inside for kept in found for attention in kept.attentions):
        raise ValueError(
            f"this {type(model).__name__} is a part of a model whose values are transported as a whole: "
            "call transport_values on that model"
        )


def _has_others(model: nn.Module, kept: Transport) -> bool:
    """Whether a model has attentions with positions beside the part that is transported."""
    if _carries(model, kept):
        return False
    parts = [part for part in model.modules() if _carries(part, kept)]
    inside = {id(each) for part in parts for each in part.modules()}
    takers = [*hf_probe.attentions(model).values(), *timm_probe.attentions(model).values()]
    return bool(parts) and any(id(taker) not in inside for taker in takers)


def _install(model: nn.Module, strength: float) -> None:
    kept = Transport(Strength(strength))
    of_timm = bool(timm_probe.attentions(model))
    tables, around = (timm_probe.look if of_timm else hf_probe.look)(model, kept.strength)
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
    for carrier in (model, *kept.attentions):
        carrier.__dict__[_KEPT] = kept


def _parts(kept: Transport) -> list[nn.Module]:
    return [*kept.embeddings, *(part for attention in kept.attentions for part in attention.modules())]


def _leave(kept: Transport) -> None:
    for each in (check_leave, leave):  # all or none
        for part in _parts(kept):
            each(part)


def _undo(model: nn.Module, found: list[Transport]) -> None:
    for kept in found:
        _leave(kept)
        for part in (*model.modules(), *kept.attentions):
            if part.__dict__.get(_KEPT) is kept:
                del part.__dict__[_KEPT]
        kept.embeddings.clear()
        kept.attentions.clear()


@contextmanager
def _undone(model: nn.Module, found: list[Transport]) -> Iterator[None]:
    """Within it the parts that were transported are not; if it fails, they are again."""
    parts = {id(part): part for kept in found for part in _parts(kept) if isinstance(part, Part)}
    before = [(part, type(part).__bases__[0], part._of) for part in parts.values()]
    carriers = [(each, each.__dict__[_KEPT]) for each in model.modules() if each.__dict__.get(_KEPT) in found]
    lists = [(kept, [*kept.embeddings], [*kept.attentions]) for kept in found]
    _undo(model, found)
    try:
        yield
    except BaseException:
        for part, cls, of in before:
            join(cls, part, of)
        for carrier, kept in carriers:
            carrier.__dict__[_KEPT] = kept
        for kept, embeddings, attentions in lists:
            kept.embeddings[:], kept.attentions[:] = embeddings, attentions
        raise
