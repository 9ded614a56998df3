"""JoFormerViT: patches of an array with any number of axes, frames on its grid, a class token at the identity.

                    scores only (QK)          scores and values (QKV)
    axial fixed     rope2d                    joformer_old
    axial learned   monoidal_axial            joformer_axial             (…_perlayer: one set of ω a layer)
    combined fixed  rope2dv2                  joformer_fixed
    combined lrnd.  monoidal                  joformer                   (combined_perlayer: one set of ω a layer)
    axial dense     axial_dense               axial_dense_v              curved within an axis, flat between axes
    LieRE           liere64                   liere64_v                  curved
    additive        learned                                              a vector per position, no frames
    by content      –                         projected, cumulative      axial fixed and what the patches hold
    none            none                                                 a bag of patches

`ViTConfig(transport=…)` has any of them move other sides than its own: values alone, say. The last two rows are not the
paper's: there projected angles are for language only, and cumulative ones nowhere.

CLAIMS.md, "Readings". Paper: "CIFAR-100 V Rotation and Scaling", "ImageNet ViT-S Scale Validation".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer import positions
from joformer.attention import JourneyAttention
from joformer.attention._functional import Transport
from joformer.frames import CumulativeFrames, DenseFrames, FixedFrames, LearnedFrames, NoFrames, ProjectedFrames
from joformer.models._blocks import Block, LayerFrames, last, require_counts, run_blocks


@dataclass(frozen=True)
class Variant:
    """One row of the table above: which frames, how the axes share planes, one set a layer, which sides travel.

    >>> VARIANTS["joformer_axial"]
    Variant(frames='learned', split='axial', per_layer=False, transport='both')
    """

    frames: str
    split: str = "axial"
    per_layer: bool = False
    transport: Transport = "scores"


VARIANTS = {
    "rope2d": Variant("fixed"),
    "joformer_old": Variant("fixed", transport="both"),
    "monoidal_axial": Variant("learned"),
    "joformer_axial": Variant("learned", transport="both"),
    "monoidal_axial_perlayer": Variant("learned", per_layer=True),
    "joformer_axial_perlayer": Variant("learned", per_layer=True, transport="both"),
    "rope2dv2": Variant("fixed", "combined"),
    "joformer_fixed": Variant("fixed", "combined", transport="both"),
    "monoidal": Variant("learned", "combined"),
    "joformer": Variant("learned", "combined", transport="both"),
    "monoidal_perlayer": Variant("learned", "combined", per_layer=True),
    "joformer_perlayer": Variant("learned", "combined", per_layer=True, transport="both"),
    "axial_dense": Variant("dense", per_layer=True),
    "axial_dense_v": Variant("dense", per_layer=True, transport="both"),
    "liere64": Variant("dense", "combined", per_layer=True),
    "liere64_v": Variant("dense", "combined", per_layer=True, transport="both"),
    "learned": Variant("additive", transport="none"),
    "projected": Variant("projected", per_layer=True, transport="both"),
    "cumulative": Variant("cumulative", per_layer=True, transport="both"),
    "none": Variant("none", transport="none"),
}
"""The vision models by name, most of them the paper's."""

CONTENT = {"projected": ProjectedFrames, "cumulative": CumulativeFrames}


@dataclass(frozen=True)
class ViTConfig:
    """What a `JoFormerViT` is made of; the defaults are ViT-S on ImageNet.

    >>> ViTConfig(shape=(32, 32), patch=(4, 4), dim=128, layers=4, heads=4, classes=100).grid
    (8, 8)
    """

    model: str = "joformer_axial"
    transport: Transport | None = None
    """What moves along the journey, where it is not what the model's name says."""
    shape: tuple[int, ...] = (224, 224)
    patch: tuple[int, ...] = (16, 16)
    channels: int = 3
    classes: int = 1000
    dim: int = 384
    layers: int = 12
    heads: int = 6
    hidden: int | None = None
    base: float = 100.0
    pool: Literal["cls", "mean"] = "cls"
    registers: int = 0
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "shape", "patch", "channels", "classes", "dim", "layers", "heads", "hidden")
        if self.model not in VARIANTS:
            raise ValueError(f"unknown model {self.model!r}: choose one of {', '.join(VARIANTS)}")
        if len(self.shape) != len(self.patch) or any(n % p for n, p in zip(self.shape, self.patch, strict=False)):
            raise ValueError(f"shape {self.shape} does not divide into patches {self.patch}: each axis must")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")
        if not 0 <= self.drop_path < 1:
            raise ValueError(f"drop_path is a probability below 1, got {self.drop_path}")
        if self.pool not in ("cls", "mean") or self.registers < 0:
            raise ValueError(f"pool is 'cls' or 'mean' and registers 0 or more, got {self.pool!r}, {self.registers}")
        if self.transport not in (None, *get_args(Transport)):
            raise ValueError(f"transport is one of {', '.join(get_args(Transport))}, got {self.transport!r}")
        if VARIANTS[self.model].transport == "none" and self.transport not in (None, "none"):
            raise ValueError(f"{self.model} has no frames to move {self.transport} by: choose another model")

    @classmethod
    def spectrogram(cls, bands: int, frames: int, classes: int, **changes: Any) -> ViTConfig:
        """A small encoder for spectrograms, frequency × time: one channel, patches of 16 bands × 4 frames, their mean.

        Where 16 and 4 do not divide, the largest that does. Longer and shorter recordings are welcome too, as long as
        their frames divide; `changes` are other fields of the configuration.

        >>> config = ViTConfig.spectrogram(64, 100, classes=10, model="rope2d")
        >>> config.grid, config.dim, config.layers, config.pool
        ((4, 25), 64, 4, 'mean')
        """
        if bands < 1 or frames < 1:
            raise ValueError(f"a spectrogram has 1 band and 1 frame or more, got {bands} × {frames}")
        patch = tuple(max(p for p in range(1, most + 1) if n % p == 0) for n, most in ((bands, 16), (frames, 4)))
        small: dict[str, Any] = {"patch": patch, "dim": 64, "layers": 4, "heads": 4, "pool": "mean"}
        return cls(shape=(bands, frames), channels=1, classes=classes, **(small | changes))

    @property
    def prefix(self) -> int:
        """How many tokens at the identity come before the patches: a class token where it is read, and registers."""
        return (self.pool == "cls") + self.registers

    @property
    def variant(self) -> Variant:
        """The model's row of the table, with the transport that was asked for."""
        own = VARIANTS[self.model]
        return own if self.transport is None else replace(own, transport=self.transport)

    @property
    def grid(self) -> tuple[int, ...]:
        """How many patches there are along each axis."""
        return tuple(n // p for n, p in zip(self.shape, self.patch, strict=True))


class JoFormerViT(nn.Module):
    """x (batch, channels, *shape) → logits (batch, classes), read from the class token or the mean of all patches.

    Other shapes than the configured one are welcome as long as they divide into patches: frames follow the grid.
    Only the additive position embedding (`learned`) is bound to its own.

    >>> config = ViTConfig(shape=(8, 8), patch=(4, 4), channels=1, classes=10, dim=32, layers=2, heads=2)
    >>> model = JoFormerViT(config)
    >>> model(torch.rand(3, 1, 8, 8)).shape, model(torch.rand(3, 1, 12, 20)).shape
    (torch.Size([3, 10]), torch.Size([3, 10]))
    """

    config_class = ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config, variant = config, config.variant
        dim, head_dim = config.dim, config.dim // config.heads
        self.embed = nn.Linear(config.channels * prod(config.patch), dim)
        self.prefix = nn.Parameter(torch.zeros(config.prefix, dim)) if config.prefix else None
        additive = variant.frames == "additive"
        self.places = nn.Parameter(torch.zeros(config.prefix + prod(config.grid), dim)) if additive else None
        self.frames = _frames(config, variant, head_dim)
        self.blocks = nn.ModuleList(
            Block(
                JourneyAttention(dim, config.heads, transport=variant.transport, dropout=config.dropout, bias=True),
                hidden=4 * dim if config.hidden is None else config.hidden,
                bias=True,
                dropout=config.dropout,
                # Deeper layers are left out more often, from none of the first to all of `drop_path` of the last.
                drop_path=config.drop_path * layer / max(config.layers - 1, 1),
            )
            for layer in range(config.layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=0.02)
        if self.places is not None:
            nn.init.normal_(self.places, std=0.02)

    def forward(self, x: Float[Tensor, "batch channels ..."]) -> Float[Tensor, "batch classes"]:
        tokens, frames = self.start(x)
        tokens = last(run_blocks(self.blocks, frames, tokens))
        # The norm comes before the mean: every patch counts alike.
        return self.head(self.pooled(self.norm(tokens)))

    def start(self, x: Float[Tensor, "batch channels ..."]) -> tuple[Float[Tensor, "batch tokens dim"], LayerFrames]:
        """What the first block reads, and what gives a layer the frames of the tokens that come to it.

        >>> model = JoFormerViT(ViTConfig(shape=(8, 8), patch=(4, 4), channels=1, dim=32, layers=2, heads=2))
        >>> tokens, frames = model.start(torch.rand(3, 1, 8, 8))
        >>> tokens.shape, frames(0, tokens).tokens
        (torch.Size([3, 5, 32]), 5)
        """
        config, patches = self.config, self._patches(x)
        grid = tuple(n // p for n, p in zip(x.shape[2:], config.patch, strict=True))
        tokens = self.embed(patches)
        if self.prefix is not None:
            tokens = torch.cat((self.prefix.expand(x.shape[0], -1, -1).to(tokens.dtype), tokens), 1)
        if self.places is not None:
            if grid != config.grid:
                raise ValueError(f"an additive position embedding is bound to its grid {config.grid}, got {grid}")
            tokens = tokens + self.places
        where = positions.grid(*grid, prefix=config.prefix, device=x.device)
        per_layer = self.frames if isinstance(self.frames, nn.ModuleList) else [self.frames] * config.layers
        return tokens, LayerFrames(per_layer, where, tokens, grid=grid)

    def pooled(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch dim"]:
        """What the head reads: the class token, or the mean of all patches.

        >>> model = JoFormerViT(ViTConfig(shape=(8, 8), patch=(4, 4), dim=32, heads=2, pool="mean"))
        >>> model.pooled(torch.rand(3, 4, 32)).shape
        torch.Size([3, 32])
        """
        return tokens[:, 0] if self.config.pool == "cls" else tokens[:, self.config.prefix :].mean(1)

    def _patches(self, x: Tensor) -> Tensor:
        config, axes = self.config, len(self.config.patch)
        given = tuple(x.shape[2:])
        if (
            x.dim() != 2 + axes
            or x.shape[1] != config.channels
            or any(n < p or n % p for n, p in zip(given, config.patch, strict=True))
        ):
            sizes = " × ".join(f"a multiple of {p}" for p in config.patch)
            raise ValueError(f"x must be (batch, {config.channels}, {sizes}), got {tuple(x.shape)}")
        for axis in range(axes):
            x = x.unfold(2 + axis, config.patch[axis], config.patch[axis])
        return x.movedim(1, 1 + axes).flatten(1, axes).flatten(2)


def _frames(config: ViTConfig, variant: Variant, head_dim: int) -> nn.Module:
    axes = len(config.shape)
    layers = config.layers if variant.per_layer else 1
    split: dict = {"axes": axes, "split": variant.split}
    if variant.frames == "additive" or variant.transport == "none":
        return NoFrames(axes)
    if variant.frames in CONTENT:
        kind = CONTENT[variant.frames]
        return nn.ModuleList(
            kind(config.dim, head_dim, heads=config.heads, base=config.base, **split) for _ in range(layers)
        )
    if variant.frames == "fixed":
        return FixedFrames(head_dim, base=config.base, **split)
    if variant.frames == "learned":
        return LearnedFrames(head_dim, heads=config.heads, layers=layers, base=config.base, **split)
    return nn.ModuleList(DenseFrames(head_dim, heads=config.heads, **split) for _ in range(layers))


def eighths(shape: Sequence[int]) -> tuple[int, ...]:
    """Sides of a patch for images of this shape: of each side's divisors the one nearest to an eighth of it.

    >>> eighths((224, 224)), eighths((28, 28)), eighths((8, 8))
    ((28, 28), (4, 4), (1, 1))
    """
    divisors = [[p for p in range(1, side + 1) if side % p == 0] for side in shape]
    return tuple(min(some, key=lambda p: (abs(p - side / 8), -p)) for side, some in zip(shape, divisors, strict=True))
