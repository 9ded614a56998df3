"""JoFormerVideo: patches of a clip on three axes (row, column, time); predicts its class, or the next picture.

    frame of a patch     A = R_row^r R_col^c R_time^t

    attention     a token attends to                                    in layers
    joint         every patch of the clip                               all
    factorised    the patches of its own picture; its own place at      0, 2, 4, …;  1, 3, 5, …
                  every time

    question "class"    one answer per clip, from the mean of its patches
    question "next"     a token at time t predicts its own patch of picture t + 1; no token sees later pictures

Both kinds of attention have the same number of parameters. Factorised attention treats each part as a separate clip:
with flat frames this makes no difference, since the journey between two patches of one picture has no step in time.
Paper: "Video".
"""

# No `from __future__ import annotations`: see _vit.py.
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from joformer import positions
from joformer.attention import JourneyAttention
from joformer.models._blocks import LayerFrames, last, run_blocks
from joformer.models._vit import JoFormerViT, ViTConfig

Attention = Literal["joint", "factorised"]
Asked = Literal["next", "class"]


@dataclass(frozen=True)
class VideoConfig(ViTConfig):
    """Configuration of a `JoFormerVideo`: the fields of `ViTConfig` with other defaults, and two more.

    Attributes:
        shape: Rows, columns and pictures of a clip.
        patch: Shape of a patch; must be one picture deep if the next picture is predicted.
        channels: Number of channels per pixel.
        classes: Number of classes; ignored if the next picture is predicted.
        dim: Width of the model.
        layers: Number of layers; two or more if attention is factorised.
        heads: Attention heads per layer.
        pool: Always "mean", over all patches: a class token would belong to no picture.
        attention: "joint" over the whole clip, or "factorised": alternately within a picture and along time.
        question: What to predict: the "next" picture at every time, or the "class" of the clip.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> config = VideoConfig(model="rope2d", shape=(32, 32, 8), attention="factorised")
        >>> config.grid, config.transport, config.outputs
        ((4, 4, 8), 'scores', 64)
    """

    shape: tuple[int, ...] = (64, 64, 20)
    patch: tuple[int, ...] = (8, 8, 1)
    channels: int = 1
    classes: int = 1
    dim: int = 96
    layers: int = 4
    heads: int = 4
    pool: Literal["cls", "mean"] = "mean"
    attention: Attention = "joint"
    question: Asked = "next"

    def __post_init__(self, model: str | None) -> None:
        super().__post_init__(model)
        if len(self.shape) != 3:
            raise ValueError(f"a clip has rows, columns and pictures, got shape {self.shape}")
        if self.attention not in ("joint", "factorised") or self.question not in ("next", "class"):
            given = f"{self.attention!r} and {self.question!r}"
            raise ValueError(f"attention must be 'joint' or 'factorised', question 'next' or 'class', got {given}")
        if self.prefix:
            raise ValueError("a class token and registers belong to no picture: leave out pool and registers")
        if self.question == "next" and self.patch[2] != 1:
            raise ValueError(f"pictures are predicted one at a time: use patch={(*self.patch[:2], 1)}")
        if self.attention == "factorised" and self.layers < 2:
            raise ValueError("factorised attention alternates between pictures and time: use layers=2 or more")

    @property
    def outputs(self) -> int:
        """Number of outputs of the head: one per class, or the pixels of a patch."""
        return self.classes if self.question == "class" else self.channels * prod(self.patch)

    def build(self) -> "JoFormerVideo":
        """Builds a model with this configuration and random weights."""
        return JoFormerVideo(self)


class _View(NamedTuple):
    """Divides tokens into parts that attend to themselves, and joins them again; the grid of such a part."""

    divide: Callable[[Tensor], Tensor]
    join: Callable[[Tensor], Tensor]
    grid: tuple[int, ...]


class JoFormerVideo(JoFormerViT):
    """A video transformer: class logits of a clip, or its pictures one step ahead.

    It accepts clips of other shapes than the configured one if they divide into patches.

    Args:
        config: The model's configuration.

    Example:
        >>> config = VideoConfig(shape=(16, 16, 6), patch=(4, 4, 1), dim=48, layers=2)
        >>> JoFormerVideo(config)(torch.rand(3, 1, 16, 16, 5)).shape
        torch.Size([3, 1, 16, 16, 5])
    """

    config_class = VideoConfig
    config: VideoConfig

    def __init__(self, config: VideoConfig) -> None:
        super().__init__(config)
        if config.attention == "factorised" and config.question == "next":
            for block in self.blocks[1::2]:  # attention along time
                cast(JourneyAttention, block.attention).causal = True

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "batch channels rows columns time"],
        *,
        where: Float[Tensor, "*batch tokens axes"] | None = None,
    ) -> Float[Tensor, "batch classes"] | Float[Tensor, "batch channels rows columns time"]:
        """Logits, or predictions: ``y[..., t]`` is about ``x[..., t + 1]``.

        Args:
            x: Clips, ``(batch, channels, rows, columns, time)``; each side must be a multiple of the patch's.
            where: Positions of the patches, (row, column, time) in row-major order, instead of those of the grid, e.g.
                real numbers for pictures that are not evenly spaced.

        Returns:
            Logits ``(batch, classes)``, or pixels like `x`, the last picture being the one after the clip.

        Raises:
            ValueError: If `x` does not divide into patches.
        """
        tokens, grid = self._tokens(x)
        run = self._joint if self.config.attention == "joint" else self._factorised
        states = self.norm(run(tokens, grid, where))
        if self.config.question == "class":
            return self.head(self.pooled(states))
        patch = self.config.patch[:2]
        pixels = self.head(states).unflatten(-1, (self.config.channels, *patch)).unflatten(1, grid)
        # (batch, R, C, time, channels, r, c) to (batch, channels, R, r, C, c, time)
        return pixels.permute(0, 4, 1, 5, 2, 6, 3).flatten(4, 5).flatten(2, 3)

    def _joint(self, tokens: Tensor, grid: tuple[int, ...], where: Tensor | None) -> Tensor:
        where = positions.grid(*grid, device=tokens.device) if where is None else where
        frames = LayerFrames(self._per_layer(), where, tokens, grid=grid)
        mask = seen_so_far(grid, tokens.device) if self.config.question == "next" else None

        def call(layer: int, block: nn.Module, x: Tensor) -> Tensor:
            return block(x, frames(layer, x), mask=mask)

        return last(run_blocks(self.blocks, frames, tokens, call=call))

    def _factorised(self, tokens: Tensor, grid: tuple[int, ...], where: Tensor | None) -> Tensor:
        batch, (*space, time) = tokens.shape[0], grid

        def pictures(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, time)).transpose(1, 2).flatten(0, 1)

        def from_pictures(x: Tensor) -> Tensor:
            return x.unflatten(0, (batch, time)).transpose(1, 2).flatten(1, 2)

        def places(x: Tensor) -> Tensor:
            return x.unflatten(1, (-1, time)).flatten(0, 1)

        def from_places(x: Tensor) -> Tensor:
            return x.unflatten(0, (batch, -1)).flatten(1, 2)

        views = (_View(pictures, from_pictures, (*space, 1)), _View(places, from_places, (1, 1, time)))
        if where is not None and where.dim() == 2:
            where = where.expand(batch, -1, -1)
        frames = [
            LayerFrames(
                self._per_layer(),
                positions.grid(*view.grid, device=tokens.device) if where is None else view.divide(where),
                view.divide(tokens),
                grid=view.grid,
            )
            for view in views
        ]

        def call(layer: int, block: nn.Module, x: Tensor) -> Tensor:
            view = views[layer % 2]
            part = view.divide(x)
            return view.join(block(part, frames[layer % 2](layer, part)))

        return last(run_blocks(self.blocks, frames[0], tokens, call=call))


def seen_so_far(grid: tuple[int, ...], device: torch.device | None = None) -> Bool[Tensor, "1 1 tokens tokens"]:
    """Which patches (keys) each patch (query) sees: all patches of its own picture and of earlier ones.

    >>> seen_so_far((1, 2, 2)).int()[0, 0].tolist()
    [[1, 0, 1, 0], [1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]]
    """
    when = torch.arange(grid[-1], device=device).repeat(prod(grid[:-1]))
    return (when <= when[:, None])[None, None]
