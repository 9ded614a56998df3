"""Value transport in a model that somebody else built: one call turns it on, changes its strength or removes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar

from torch import nn

from joformer.integrations._journey import Strength
from joformer.integrations._parts import Part, join, leave, require_removable
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
    of two), it changes that part; called on the whole model afterwards, it changes the rest too. `print(model)` shows
    the strength of every attention, `save_pretrained` saves which are transported.

    Args:
        model: A model of Hugging Face's transformers, adapters and quantised projections included, or one of timm's
            rotary vision transformers. It is changed in place, its weights and their names stay as they are.
        strength: s, from 0 (bit for bit the model without transport) to 1 (full transport); `Anneal` changes it from
            the one to the other in training.
        off: Remove transport without a trace instead.
        extrapolate: Allow a strength below 0 or above 1.

    Returns:
        The model.

    Raises:
        ValueError: If the strength is no number from 0 to 1, or if the model is not supported; the line says why. The
            model is then as it was.

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
    if off:
        _remove(model, found)
    elif len(found) == 1 and not _has_others(model, found[0]):
        found[0].strength.set(strength)
        for attention in found[0].attentions:
            join_projections(attention)
        model.__dict__.setdefault(KEY, found[0])
    else:
        with _removed(model, found):
            _install(model, strength)
        wrap_saving()
    return model


def checked_strength(strength: Any, extrapolate: bool, name: str = "strength") -> float:
    """A strength as a float; ValueError where it is none, or outside 0…1 without `extrapolate`."""
    if isinstance(strength, bool) or not isinstance(strength, Real) or not math.isfinite(strength):
        raise ValueError(f"{name} must be a finite number, from 0 (none) to 1 (full transport), got {strength!r}")
    if not extrapolate and not 0 <= strength <= 1:
        raise ValueError(f"{name} must be from 0 (none) to 1 (full transport), got {strength}: else extrapolate=True")
    return float(strength)


def _require_whole(model: nn.Module, found: list[Transport]) -> None:
    """Strength and rotary embedding are shared: a part of what was changed cannot be changed by itself."""
    inside = {id(part) for part in model.modules()}
    if any(id(attention) not in inside for record in found for attention in record.attentions):
        raise ValueError(
            f"this {type(model).__name__} is a part of a model whose values are transported as a whole: "
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
    if timm_probe.attentions(model):
        kinds, specs = (Rope, RopeAttention), timm_probe.probe(model, record.strength)
    else:
        kinds, specs = (Embedding, Attention), hf_probe.probe(model, record.strength)
    try:
        for part, modules, named in zip(kinds, (record.embeddings, record.attentions), specs, strict=True):
            for name, spec in named.items():
                modules.append(model.get_submodule(name))
                join(part, modules[-1], spec)
        for attention in record.attentions:
            join_projections(attention)
    except ValueError:
        _leave(record)
        raise
    for carrier in (model, *record.attentions):
        carrier.__dict__[KEY] = record


def _leave(record: Transport) -> None:
    for each in (require_removable, leave):  # all or none
        for part in record.parts:
            each(part)


def _remove(model: nn.Module, found: list[Transport]) -> None:
    for record in found:
        _leave(record)
        for part in (*model.modules(), *record.attentions):
            if part.__dict__.get(KEY) is record:
                del part.__dict__[KEY]
        record.embeddings.clear()
        record.attentions.clear()


@contextmanager
def _removed(model: nn.Module, found: list[Transport]) -> Iterator[None]:
    """Without what is transported already; if the body fails, it is transported again."""
    patched = {id(part): part for record in found for part in record.parts if isinstance(part, Part)}
    parts = [(part, type(part).__bases__[0], part._spec) for part in patched.values()]
    carriers = [(each, each.__dict__[KEY]) for each in model.modules() if each.__dict__.get(KEY) in found]
    lists = [(record, [*record.embeddings], [*record.attentions]) for record in found]
    _remove(model, found)
    try:
        yield
    except BaseException:
        for part, cls, spec in parts:
            join(cls, part, spec)
        for carrier, record in carriers:
            carrier.__dict__[KEY] = record
        for record, embeddings, attentions in lists:
            record.embeddings[:], record.attentions[:] = embeddings, attentions
        raise
