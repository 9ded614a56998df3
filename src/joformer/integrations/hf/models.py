"""Our models in Hugging Face's transformers; importing this registers them with its Auto classes.

>>> import torch
>>> from transformers import AutoModelForCausalLM
>>> model = AutoModelForCausalLM.from_config(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
>>> type(model).__name__
'JoFormerForCausalLM'
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageClassification

from joformer.integrations.hf._card import model_card
from joformer.integrations.hf._config import JoFormerConfig, JoFormerViTConfig
from joformer.integrations.hf._language import JoFormerForCausalLM, JoFormerModel
from joformer.integrations.hf._vision import JoFormerForImageClassification

__all__ = [
    "JoFormerConfig",
    "JoFormerForCausalLM",
    "JoFormerForImageClassification",
    "JoFormerModel",
    "JoFormerViTConfig",
    "model_card",
    "register",
]


def register() -> None:
    """Registers our models with `AutoConfig`, `AutoModel` and those for causal language models and images.

    Called when this module is imported; calling it again changes nothing.

    >>> register()
    >>> AutoConfig.for_model("joformer_vit").to_joformer().name
    'joformer_axial'
    """
    for config, auto, model in (
        (JoFormerConfig, AutoModel, JoFormerModel),
        (JoFormerConfig, AutoModelForCausalLM, JoFormerForCausalLM),
        (JoFormerViTConfig, AutoModelForImageClassification, JoFormerForImageClassification),
    ):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        auto.register(config, model, exist_ok=True)


register()
