"""The record of what is transported in a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from joformer.integrations._journey import Strength
from joformer.integrations._parts import Part

KEY = "_joformer_transport"


@dataclass(eq=False)
class Transport:
    """What one call of `transport_values` patched; carried by the module of the call and by each of the attentions.

    It does not hold that module: who copies or pickles a part of a model must not get the rest too. Empty once removed.
    """

    strength: Strength
    embeddings: list[Any] = field(default_factory=list)
    attentions: list[Any] = field(default_factory=list)

    @property
    def parts(self) -> list[nn.Module]:
        """All modules that may be patched: adapters in an attention may hold former projections."""
        return [*self.embeddings, *(part for attention in self.attentions for part in attention.modules())]

    def called_on(self, module: nn.Module) -> bool:
        """Whether `module` is the one of the call."""
        return module.__dict__.get(KEY) is self and not isinstance(module, Part)


def find(model: nn.Module) -> list[Transport]:
    """The records of a model, of parts inside it (adapters and wrappers included), or of the whole it is a part of."""
    own = model.__dict__.get(KEY)
    if own is not None and own.attentions and own.called_on(model):
        return [own]
    found = (part.__dict__[KEY] for part in model.modules() if KEY in part.__dict__)
    return list({id(record): record for record in found if record.attentions}.values())


def strength_of(model: nn.Module) -> float | None:
    """The strength of a model's transport, or None if it has none.

    Args:
        model: Any torch module.

    Raises:
        ValueError: If its parts have different strengths.

    Example:
        >>> strength_of(nn.Linear(2, 2)) is None
        True
    """
    strengths = {record.strength.value for record in find(model)}
    if len(strengths) > 1:
        raise ValueError(
            f"parts of this {type(model).__name__} have the strengths {sorted(strengths)}: ask for one part"
        )
    return strengths.pop() if strengths else None


def transported(model: nn.Module) -> list[dict[str, Any]]:
    """Which attentions of a model are transported: one entry per call, with part, strength and attentions by name.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from joformer.integrations import transport_values
    >>> model = LlamaForCausalLM(
    ...     LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ... )
    >>> _ = transport_values(model.model, 0.5)
    >>> transported(model)
    [{'part': 'model', 'strength': 0.5, 'attentions': ['model.layers.0.self_attn']}]
    """
    found, named = [], dict(model.named_modules())
    for record in find(model):
        rotating = {id(each) for each in record.attentions if each._spec.rotates}
        names = [name for name, part in named.items() if id(part) in rotating]
        if record.strength.on and names:
            part = next((name for name, part in named.items() if record.called_on(part)), "")
            found.append({"part": part, "strength": record.strength.value, "attentions": names})
    return sorted(found, key=lambda entry: entry["part"])
