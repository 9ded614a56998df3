"""Hugging Face and timm: value transport in their models, our models there.

transport_values      turn it on in a loaded model, change its strength, undo it
Anneal                walk the strength from 0 to 1 in training
load                  a folder that a transported model was saved to
JoFormerForCausalLM, JoFormerForImageClassification, JoFormerModel
                      our models with transformers' interface, and their configurations
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joformer.integrations._transport import strength_of, transport_values
from joformer.integrations.hf._save import load

if TYPE_CHECKING:
    from joformer.integrations._annealing import Anneal
    from joformer.integrations._convert import convert
    from joformer.integrations.hf.models import (
        JoFormerConfig,
        JoFormerForCausalLM,
        JoFormerForImageClassification,
        JoFormerModel,
        JoFormerViTConfig,
    )

__all__ = [
    "Anneal",
    "JoFormerConfig",
    "JoFormerForCausalLM",
    "JoFormerForImageClassification",
    "JoFormerModel",
    "JoFormerViTConfig",
    "convert",
    "load",
    "strength_of",
    "transport_values",
]


def __getattr__(name: str) -> Any:
    """What needs transformers is imported when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Anneal":
        from joformer.integrations._annealing import Anneal

        return Anneal
    if name == "convert":
        from joformer.integrations._convert import convert

        return convert
    from joformer.integrations.hf import models

    return getattr(models, name)
