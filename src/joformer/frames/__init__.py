"""Modules that give each token its frame: the rotation it carries (not a video frame)."""

from joformer.frames.base import FramesModule
from joformer.frames.cumulative import CumulativeFrames
from joformer.frames.dense import DenseFrames
from joformer.frames.fixed import FixedFrames, NoFrames
from joformer.frames.learned import LearnedFrames
from joformer.frames.projected import ProjectedFrames
from joformer.frames.tree import DenseTreeFrames, TreeFrames

__all__ = [
    "CumulativeFrames",
    "DenseFrames",
    "DenseTreeFrames",
    "FixedFrames",
    "FramesModule",
    "LearnedFrames",
    "NoFrames",
    "ProjectedFrames",
    "TreeFrames",
]
