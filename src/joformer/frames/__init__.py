"""Frames: the rotation that each token carries (not a video frame), and the modules that make them."""

from joformer.frames._types import CurvedFrames, FlatFrames, Frames, Layout, is_flat
from joformer.frames.base import FramesModule
from joformer.frames.cumulative import CumulativeFrames
from joformer.frames.dense import DenseFrames
from joformer.frames.fixed import FixedFrames, NoFrames
from joformer.frames.learned import LearnedFrames
from joformer.frames.projected import ProjectedFrames
from joformer.frames.tree import DenseTreeFrames, TreeFrames

__all__ = [
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
