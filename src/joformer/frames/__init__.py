"""Frames: the rotation that each token carries (not a video frame), and the modules that compute them."""

from joformer.frames._base import FramesModule
from joformer.frames._cameras import CameraFrames
from joformer.frames._cumulative import CumulativeFrames
from joformer.frames._curved import CurvedFrames
from joformer.frames._dense import DenseFrames
from joformer.frames._fixed import FixedFrames, NoFrames
from joformer.frames._learned import LearnedFrames
from joformer.frames._projected import ProjectedFrames
from joformer.frames._tree import DenseTreeFrames, TreeFrames
from joformer.frames._types import At, FlatFrames, Frames, JointFrames, Layout, is_flat

__all__ = [
    "At",
    "CameraFrames",
    "CumulativeFrames",
    "CurvedFrames",
    "DenseFrames",
    "DenseTreeFrames",
    "FixedFrames",
    "FlatFrames",
    "Frames",
    "FramesModule",
    "JointFrames",
    "Layout",
    "LearnedFrames",
    "NoFrames",
    "ProjectedFrames",
    "TreeFrames",
    "is_flat",
]
