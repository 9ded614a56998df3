"""See what a model learned: the numbers behind the figures of `joformer inspect`, for your own plots.

    frequencies      ω of every frames module, at the start of training and now
    kernels          κ_h(Δ): the effect of displacement on the scores of each head, averaged over content
    angles           the angle fields of frames that depend on content, over a text or an image
    value_use        the loss with value transport switched off, per head, per layer and everywhere
    journey          what travels between two tokens: weights and angles, by layer and head
    attended         the basis of all these: queries, keys, frames and weights of every attention layer

They take models built from `JourneyAttention` (all of joformer.models with attention) and causal language models from
transformers, with or without value transport.
"""

from joformer.inspect._attention import Kernel, Travel, journey, kernels
from joformer.inspect._frames import AngleField, Frequencies, angles, frequencies
from joformer.inspect._layers import Attended, attended
from joformer.inspect._values import (
    Effect,
    Measure,
    ValueUse,
    image_measure,
    layers_with_values,
    text_measure,
    token_measure,
    value_use,
    without_values,
)

__all__ = [
    "AngleField",
    "Attended",
    "Effect",
    "Frequencies",
    "Kernel",
    "Measure",
    "Travel",
    "ValueUse",
    "angles",
    "attended",
    "frequencies",
    "image_measure",
    "journey",
    "kernels",
    "layers_with_values",
    "text_measure",
    "token_measure",
    "value_use",
    "without_values",
]
