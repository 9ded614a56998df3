"""Journey operators: positional structure that composes along any number of axes, on scores and values.

frames = FixedFrames(64)(positions.sequence(16))
out = journey_attention(q, k, v, frames, causal=True)          # q, k, v: (batch, 16, heads, 64)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joformer import algebra, frequencies, inspect, monoidal, positions, spectral
    from joformer.attention import JourneyAttention, JourneyCache, journey_attention
    from joformer.frames import (
        CameraFrames,
        CumulativeFrames,
        CurvedFrames,
        DenseFrames,
        DenseTreeFrames,
        FixedFrames,
        FlatFrames,
        JointFrames,
        LearnedFrames,
        NoFrames,
        ProjectedFrames,
        TreeFrames,
    )
    from joformer.integrations import transport_values
    from joformer.rotation import convert_layout, rotate

__version__ = "0.2.0"

__all__ = [
    "CameraFrames",
    "CumulativeFrames",
    "CurvedFrames",
    "DenseFrames",
    "DenseTreeFrames",
    "FixedFrames",
    "FlatFrames",
    "JointFrames",
    "JourneyAttention",
    "JourneyCache",
    "LearnedFrames",
    "NoFrames",
    "ProjectedFrames",
    "TreeFrames",
    "algebra",
    "convert_layout",
    "frequencies",
    "inspect",
    "journey_attention",
    "monoidal",
    "positions",
    "rotate",
    "spectral",
    "transport_values",
]

_HOME = {
    "joformer.attention": ("JourneyAttention", "JourneyCache", "journey_attention"),
    "joformer.integrations": ("transport_values",),
    "joformer.rotation": ("convert_layout", "rotate"),
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `joformer --help` must not wait a second for torch.
    if name not in __all__:
        raise AttributeError(f"module 'joformer' has no attribute {name!r}")
    home = next((module for module, names in _HOME.items() if name in names), None)
    if home is None and not name.endswith("Frames"):
        return import_module(f"joformer.{name}")
    value = globals()[name] = getattr(import_module(home or "joformer.frames"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
