"""Where is measured, in which precision and on which shapes: one value that figures take, the CPU's by default."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from joformer import positions

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """A training shape of the paper's models; `depth` blocks share the frames of one call, as in a real model."""

    name: str
    batch: int
    tokens: int
    dim: int
    heads: int
    axes: int
    depth: int = 2

    @property
    def head_dim(self) -> int:
        """The dimension of one head."""
        return self.dim // self.heads

    @property
    def causal(self) -> bool:
        """Whether attention is causal: on sequences."""
        return self.axes == 1

    def positions(self) -> Tensor:
        """Positions of the tokens, (tokens, axes): a sequence, or a square grid after one class token."""
        if self.axes == 1:
            return positions.sequence(self.tokens)
        side = int((self.tokens - 1) ** 0.5)
        return positions.grid(side, side, prefix=1)


SHAPES = (
    Shape("ViT-S", batch=8, tokens=197, dim=384, heads=6, axes=2),
    Shape("small ViT", batch=128, tokens=65, dim=128, heads=4, axes=2),
    Shape("LM", batch=8, tokens=512, dim=256, heads=4, axes=1),
)
LARGER = (
    Shape("ViT-S", batch=128, tokens=197, dim=384, heads=6, axes=2),
    Shape("small ViT", batch=1024, tokens=65, dim=128, heads=4, axes=2),
    Shape("LM", batch=8, tokens=2048, dim=1024, heads=16, axes=1),
)
"""The same for a GPU, which waits for the interpreter at the others."""


@dataclass(frozen=True)
class Place:
    """A device, the precision of weights and activations there, and what is measured.

    Attributes:
        device: The CPU, or the torch accelerator.
        dtype: Of weights and activations.
        shapes: Of training steps and rotations.
        decoded: Width and heads of the layers that decode a token.
        cached: Number of tokens in the cache.

    Example:
        >>> Place().device.type
        'cpu'
    """

    device: torch.device = HOST
    dtype: torch.dtype = torch.float32
    shapes: tuple[Shape, ...] = SHAPES
    decoded: tuple[tuple[int, int], ...] = ((768, 8), (256, 4))
    cached: int = 4096

    def clock(self) -> float:
        """The time in seconds, after synchronising the device.

        >>> Place().clock() <= Place().clock()
        True
        """
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    def described(self) -> dict[str, str]:
        """The GPU, and the versions of the software.

        >>> Place().described()["precision"]
        'float32'
        """
        module = torch.get_device_module(self.device)
        named = hasattr(module, "get_device_name")
        found = {"card": module.get_device_name(self.device) if named else self.device.type}
        found |= {"precision": str(self.dtype).removeprefix("torch."), "torch": torch.__version__}
        platforms = {"CUDA": "cuda", "ROCm": "hip", "XPU": "xpu"}
        found |= {name: its for name, key in platforms.items() if (its := getattr(torch.version, key, None))}
        with suppress(ImportError):
            import triton  # by its module: each platform's package has another name

            found["triton"] = triton.__version__
        for package in ("joformer", "transformers", "liger-kernel", "flash-attn"):
            with suppress(PackageNotFoundError):
                found[package] = version(package)
        return found


CPU = Place()


def gpu() -> Place:
    """The GPU that torch finds here, in bfloat16; raises ValueError where there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        raise ValueError("torch finds no GPU here: run bench without --gpu, or on a machine that has one")
    return Place(device, torch.bfloat16, LARGER)
