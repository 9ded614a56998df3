"""Frames: the rotation that each token carries (not a video frame), and the modules that make them."""

from joformer.frames._base import FramesModule
from joformer.frames._cumulative import CumulativeFrames
from joformer.frames._dense import DenseFrames
from joformer.frames._fixed import FixedFrames, NoFrames
from joformer.frames._learned import LearnedFrames
from joformer.frames._projected import ProjectedFrames
from joformer.frames._tree import DenseTreeFrames, TreeFrames
from joformer.frames._types import At, CurvedFrames, FlatFrames, Frames, Layout, is_flat

__all__ = [
    "At",
    "CumulativeFrames",
    "CurvedFrames",
    "DenseFrames",
    "DenseTreeFrames",
    "FixedFrames",
    "FlatFrames",
    "Frames",
    "FramesModule",
    "Layout",
    "LearnedFrames",
    "NoFrames",
    "ProjectedFrames",
    "TreeFrames",
    "is_flat",
]
