"""See what a model learned: the numbers behind the figures of `joformer inspect`, to plot on your own.

    frequencies      ω of every frames module, at the start of training and now
    kernels          κ_h(Δ): what a displacement does to a score of each head, content averaged out
    angles           the angle fields of frames that depend on content, over a text or an image
    value_use        what the loss becomes with value transport switched off, by head, by layer, in all
    journey          what travels between two tokens: weights and angles, by layer and head
    attended         what these are made of: queries, keys, frames and weights of every attention layer

They take models made of `JourneyAttention` (all of joformer.models that have attention) and causal language models of
transformers, with value transport or without.
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
