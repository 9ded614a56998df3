"""Journey operators: positional structure that composes along any number of axes, on scores and values.

frames = FixedFrames(64)(positions.sequence(16))
out = journey_attention(q, k, v, frames, causal=True)          # q, k, v: (batch, 16, heads, 64)
"""

from joformer import algebra, frequencies, monoidal, positions, spectral
from joformer.attention import JourneyAttention, JourneyCache, journey_attention
from joformer.frames import (
    CumulativeFrames,
    DenseFrames,
    DenseTreeFrames,
    FixedFrames,
    LearnedFrames,
    NoFrames,
    ProjectedFrames,
    TreeFrames,
)
from joformer.rotate import convert_layout, rotate
from joformer.values import CurvedFrames, FlatFrames

__version__ = "0.1.0"

__all__ = [
    "CumulativeFrames",
    "CurvedFrames",
    "DenseFrames",
    "DenseTreeFrames",
    "FixedFrames",
    "FlatFrames",
    "JourneyAttention",
    "JourneyCache",
    "LearnedFrames",
    "NoFrames",
    "ProjectedFrames",
    "TreeFrames",
    "algebra",
    "convert_layout",
    "frequencies",
    "journey_attention",
    "monoidal",
    "positions",
    "rotate",
    "spectral",
]
