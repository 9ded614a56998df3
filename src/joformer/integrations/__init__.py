"""Hugging Face, timm and torchtitan: value transport in their models, and our models in their interfaces.

transport_values      turn it on in a loaded model, change its strength, remove it
strength_of           the strength of a model's transport
Anneal                change the strength from 0 to 1 in training
load                  a folder to which a transported model was saved
convert               a model folder → a folder of the same model with transport, fine-tuned or not
JoFormerForCausalLM, JoFormerForImageClassification, JoFormerModel
                      our models with the interface of transformers, and their configurations
titan                 a module that torchtitan loads by its path
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from joformer.integrations._record import strength_of
from joformer.integrations._transport import transport_values
from joformer.integrations.hf._load import load

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
    # What needs transformers is imported when it is used.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"Anneal": "_annealing", "convert": "_convert"}.get(name, "hf.models")
    return getattr(import_module(f"{__name__}.{home}"), name)
