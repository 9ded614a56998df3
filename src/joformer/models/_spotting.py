"""JoFormerSpotter: an encoder that processes an audio stream as it arrives, with a prediction after each time step.

    tokens   patches of bands × frames, one time step after the other, within a step from the lowest band up
    frames   A = R_time^t R_band^b on two axes; time is counted from the first frame of the stream
    mask     a token attends to earlier tokens, at most `window` steps back: 0 ≤ i − j < window · patches per step
    logits   of step t, from the mean of its tokens: (batch, times, classes + 1), the last one for "nothing"

Nothing looks ahead and nothing is normalised over time, so that a stream may be processed piece by piece: with `caches`
the logits are those of the whole stream, in memory that depends only on the window. The paper sketches such a model
("Audio and Spectrograms").
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from joformer import positions
from joformer.attention import JourneyCache
from joformer.attention._cache import Unchanged
from joformer.attention._options import Transport
from joformer.models._blocks import LayerFrames, encoder, last, require_counts, require_probabilities, run_blocks
from joformer.models._vit import grid_frames

FramesName = Literal["fixed", "learned", "projected", "cumulative"]


@dataclass(frozen=True)
class SpottingConfig:
    """Configuration of a `JoFormerSpotter`.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> config = SpottingConfig(bands=64, patch=(16, 4), window=32)
        >>> config.rows, config.reach
        (4, 128)
    """

    classes: int = 10
    """Number of words to detect; "nothing" is one more class."""
    bands: int = 64
    """Number of frequency bands in a frame."""
    patch: tuple[int, ...] = (32, 4)
    """Shape of a patch: bands and frames."""
    dim: int = 64
    """Width of the model."""
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    """Width of the feed-forward network; four times dim by default."""
    frames: FramesName = "fixed"
    """How patches are rotated: fixed as in RoPE, learned, or by content (projected, cumulative)."""
    transport: Transport = "both"
    """What is transported: scores (RoPE), values, both (JoFormer) or none."""
    window: int | None = 16
    """Number of time steps that a patch attends to in each layer, its own included; None for all earlier ones."""
    base: float = 100.0
    """Base of the fixed frequencies."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "classes", "bands", "patch", "dim", "layers", "heads", "hidden", "window")
        require_probabilities(dropout=self.dropout)
        for name, known in (("frames", FramesName), ("transport", Transport)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {getattr(self, name)!r}")
        if len(self.patch) != 2 or self.bands % self.patch[0]:
            raise ValueError(f"{self.bands} bands do not divide into patches {self.patch} of bands and frames")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")

    @property
    def rows(self) -> int:
        """Number of patches per time step."""
        return self.bands // self.patch[0]

    @property
    def reach(self) -> int | None:
        """Number of tokens that a token attends to, itself included."""
        return None if self.window is None else self.window * self.rows

    def build(self) -> JoFormerSpotter:
        """Builds a model with this configuration and random weights."""
        return JoFormerSpotter(self)


def halved(bands: int) -> int:
    """Bands of a patch with two patches per time step; all bands if their number is odd.

    >>> halved(64), halved(21)
    (32, 21)
    """
    return bands // 2 if bands % 2 == 0 else bands


class JoFormerSpotter(nn.Module):
    """A keyword spotter: logits of what has just been heard, after each time step.

    Args:
        config: The model's configuration.

    Example:
        >>> import torch
        >>> model = JoFormerSpotter(SpottingConfig(classes=10, bands=64, patch=(32, 4), dim=32, heads=2))
        >>> model(torch.rand(3, 40, 64)).shape
        torch.Size([3, 10, 11])
    """

    config_class = SpottingConfig

    def __init__(self, config: SpottingConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.embed = nn.Linear(config.patch[0] * config.patch[1], dim)
        per_layer = config.frames in ("projected", "cumulative") and config.transport != "none"
        self.frames = grid_frames(config, 2, "axial", per_layer)
        self.blocks = encoder(config, causal=True, window=config.reach)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.classes + 1)

    def forward(
        self, x: Float[Tensor, "batch frames bands"], *, caches: Sequence[JourneyCache] | None = None
    ) -> Float[Tensor, "batch times answers"]:
        """Logits of what has been heard at each time step.

        Args:
            x: Spectrograms, ``(batch, frames, bands)``; the number of frames must be a multiple of the patch's.
            caches: One cache per layer, see `caches()`: `x` continues the cached stream, and they are extended in
                place.

        Returns:
            ``(batch, frames / patch, classes + 1)``, "nothing" last.

        Raises:
            ValueError: If `x` does not divide into patches, or the number of caches is not that of layers.
        """
        config, (high, wide) = self.config, self.config.patch
        if x.dim() != 3 or x.shape[2] != config.bands or x.shape[1] < wide or x.shape[1] % wide:
            raise ValueError(f"x must be (batch, a multiple of {wide}, {config.bands}), got {tuple(x.shape)}")
        if caches is not None and len(caches) != config.layers:
            raise ValueError(f"{len(caches)} caches for {config.layers} layers: make them with model.caches()")
        times = x.shape[1] // wide
        # (batch, times, frames of a patch, rows, bands of a patch) → tokens ordered by time, then by bands.
        patches = x.unflatten(1, (times, wide)).unflatten(3, (config.rows, high)).transpose(2, 3)
        where = positions.grid(times, config.rows, device=x.device)
        if caches:
            where = where + where.new_tensor([caches[0].tokens // config.rows, 0])
        with nullcontext() if caches is None else Unchanged(*caches):
            tokens = self.embed(patches.flatten(3).flatten(1, 2))
            modules = self.frames if isinstance(self.frames, nn.ModuleList) else [self.frames] * config.layers
            frames = LayerFrames(modules, where, tokens, grid=(times, config.rows), caches=caches)
            tokens = last(run_blocks(self.blocks, frames, tokens, caches=caches))
        return self.head(self.norm(tokens).unflatten(1, (times, config.rows)).mean(2))

    def caches(self) -> list[JourneyCache]:
        """One empty cache per layer, sliding if there is a window.

        Returns:
            Caches for one batch of streams.

        Example:
            >>> import torch
            >>> model = JoFormerSpotter(SpottingConfig(dim=32, heads=2)).eval()
            >>> stream, caches = torch.rand(1, 80, 64), model.caches()
            >>> pieces = [model(piece, caches=caches) for piece in stream.split(20, 1)]
            >>> torch.allclose(torch.cat(pieces, 1), model(stream), atol=1e-5)
            True
        """
        return [JourneyCache(window=self.config.reach) for _ in range(self.config.layers)]
