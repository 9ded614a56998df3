"""Layers and models built with journeys: a recurrence, relations, point sets, the paper's transformers.

>>> import torch
>>> JourneySSM(32, heads=2)(torch.rand(1, 5, 32))[0].shape
torch.Size([1, 5, 32])
"""

from joformer.models._classifier import ClassifierConfig, MonoidalClassifier
from joformer.models._initial import adapt, initialise
from joformer.models._lm import JoFormerLM, LMConfig
from joformer.models._losses import linear_cross_entropy
from joformer.models._pairs import JoFormerPairs, PairsConfig
from joformer.models._points import JoFormerPoints, PointsConfig
from joformer.models._relations import RelationsConfig, RotatE
from joformer.models._saving import load, save
from joformer.models._spotting import JoFormerSpotter, SpottingConfig
from joformer.models._ssm import JourneySSM
from joformer.models._tree import JoFormerTree, TreeConfig
from joformer.models._video import JoFormerVideo, VideoConfig
from joformer.models._vit import VARIANTS, JoFormerViT, Variant, ViTConfig

__all__ = [
    "VARIANTS",
    "ClassifierConfig",
    "JoFormerLM",
    "JoFormerPairs",
    "JoFormerPoints",
    "JoFormerSpotter",
    "JoFormerTree",
    "JoFormerViT",
    "JoFormerVideo",
    "JourneySSM",
    "LMConfig",
    "MonoidalClassifier",
    "PairsConfig",
    "PointsConfig",
    "RelationsConfig",
    "RotatE",
    "SpottingConfig",
    "TreeConfig",
    "Variant",
    "ViTConfig",
    "VideoConfig",
    "adapt",
    "initialise",
    "linear_cross_entropy",
    "load",
    "save",
]
