"""JoFormerViT: patches of an array with any number of axes, frames on its grid, a class token at the identity.

    ViTConfig(frames=, split=, transport=, per_layer=)          the model; the paper's names stand for these four:

    frames, split        transport="scores" (QK)    transport="both" (QKV)
    fixed, axial         rope2d                     joformer_old
    learned, axial       monoidal_axial             joformer_axial              (…_perlayer: one set of ω per layer)
    fixed, combined      rope2dv2                   joformer_fixed
    fixed, diagonal      rope2dv2_literal           joformer_fixed_literal      as printed: (1, −1) is invisible
    learned, combined    monoidal                   joformer                    (…_perlayer: one set of ω per layer)
    dense, axial         axial_dense                axial_dense_v               curved within an axis, flat between axes
    dense, combined      liere64                    liere64_v                   LieRE: curved
    projected, axial                                projected                   fixed angles + W₂ GELU(W₁ LN(x))
    cumulative, axial                               cumulative                  the same, summed along the axes
    additive             learned (transport none)                               one vector per position, no frames
    none                 none (transport none)                                  a bag of patches

Projected and cumulative are not in the paper: it has projected angles for language only, and no cumulative ones.
docs/conventions.md, "Readings". Paper: "CIFAR-100 V Rotation and Scaling", "ImageNet ViT-S Scale Validation".
"""

# No `from __future__ import annotations`: typing.get_type_hints of Python 3.10 cannot evaluate an InitVar in a string.
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, asdict, dataclass, fields, replace
from math import prod
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer import positions
from joformer.attention._options import Transport
from joformer.frames import CumulativeFrames, DenseFrames, FixedFrames, LearnedFrames, NoFrames, ProjectedFrames
from joformer.frames._base import Split
from joformer.models._blocks import LayerFrames, encoder, last, require_counts, require_probabilities, run_blocks

FramesName = Literal["fixed", "learned", "dense", "projected", "cumulative", "additive", "none"]
STILL = ("additive", "none")
"""Frames that cannot transport anything."""


@dataclass(frozen=True)
class Variant:
    """One entry of the table above: the four fields of a `ViTConfig` that a name stands for.

    Attributes:
        frames: How patches are rotated.
        split: How the axes share the planes.
        per_layer: Whether each layer has its own frames.
        transport: What is transported.

    Example:
        >>> VARIANTS["joformer_axial"]
        Variant(frames='learned', split='axial', per_layer=False, transport='both')
    """

    frames: FramesName
    split: Split = "axial"
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
    "rope2dv2_literal": Variant("fixed", "diagonal"),
    "joformer_fixed_literal": Variant("fixed", "diagonal", transport="both"),
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

_UNSET: Any = None


@dataclass(frozen=True)
class ViTConfig:
    """Configuration of a `JoFormerViT`; the defaults are ViT-S on ImageNet with learned axial frames (joformer_axial).

    Attributes:
        frames: How patches are rotated: "fixed" as in RoPE, by "learned" frequencies (the default), by "dense" matrices
            or by content ("projected", "cumulative"); or a learned vector per position ("additive"), or "none".
        split: How the axes share the planes: "axial" (the default), "combined", or "diagonal", the paper's combined
            split taken literally.
        transport: What is transported: "scores" (RoPE), "values", "both" (JoFormer, the default) or "none".
        per_layer: Whether each layer has its own frames; by default if they are dense or depend on content.
        shape: Shape of an image, an array with any number of axes.
        patch: Shape of a patch, one side per axis.
        channels: Number of channels.
        classes: Number of classes.
        dim: Width of the model.
        layers: Number of layers.
        heads: Attention heads per layer.
        hidden: Width of the feed-forward network; four times `dim` by default.
        base: Base of the fixed frequencies.
        pool: What the classification head reads: a class token ("cls"), or the mean of all patches ("mean").
        registers: Number of tokens without a position, in addition to the class token.
        dropout: Dropout probability, 0 ≤ p < 1, on each residual branch and on the attention weights.
        drop_path: Probability that the last layer is skipped for a sample; earlier layers are skipped less often.

    Args:
        model: A name in `VARIANTS`, which stands for `frames`, `split`, `transport` and `per_layer`; those of the four
            that are also given override it. Not a field: the property `name` recovers it.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> config = ViTConfig(frames="fixed", transport="scores", shape=(32, 32), patch=(4, 4))
        >>> config.grid, config.name, config == ViTConfig(model="rope2d", shape=(32, 32), patch=(4, 4))
        ((8, 8), 'rope2d', True)
    """

    frames: FramesName = _UNSET
    split: Split = _UNSET
    transport: Transport = _UNSET
    per_layer: bool = _UNSET
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
    model: InitVar[str | None] = None

    def __post_init__(self, model: str | None) -> None:
        self._resolve(model)
        require_counts(self, "shape", "patch", "channels", "classes", "dim", "layers", "heads", "hidden")
        require_probabilities(dropout=self.dropout, drop_path=self.drop_path)
        for name, known in (("frames", FramesName), ("split", Split), ("transport", Transport)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {getattr(self, name)!r}")
        if self.frames in STILL and self.transport != "none":
            raise ValueError(f"frames={self.frames!r} cannot transport anything: use other frames, or transport='none'")
        if self.per_layer and self.frames in ("fixed", *STILL):
            raise ValueError(f"frames={self.frames!r} are the same in every layer: leave out per_layer")
        if len(self.shape) != len(self.patch) or any(n % p for n, p in zip(self.shape, self.patch, strict=False)):
            raise ValueError(f"shape {self.shape} does not divide into patches {self.patch}: each axis must")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")
        if self.pool not in ("cls", "mean") or self.registers < 0:
            raise ValueError(f"pool must be 'cls' or 'mean', registers 0 or more, got {self.pool!r}, {self.registers}")

    def _resolve(self, model: str | None) -> None:
        """Fills in defaults for the four fields that define the model."""
        if model not in (None, *VARIANTS):
            raise ValueError(f"unknown model {model!r}: choose one of {', '.join(VARIANTS)}")
        given = {field.name: getattr(self, field.name) for field in fields(Variant)}
        frames: FramesName = given["frames"] or "learned"
        own = frames in ("dense", "projected", "cumulative")
        usual = Variant(frames, per_layer=own, transport="none" if frames in STILL else "both")
        usual = usual if model is None else VARIANTS[model]
        # dataclasses.replace(config, model=…) passes all four fields as well: it is unclear which are meant.
        if model is not None and None not in given.values() and given != asdict(usual):
            raise ValueError(f"model={model!r} and four fields that differ from it: give those of VARIANTS[{model!r}]")
        for name, value in asdict(usual).items():
            if given[name] is None:
                object.__setattr__(self, name, value)

    @classmethod
    def spectrogram(cls, bands: int, frames: int, classes: int, **changes: Any) -> "ViTConfig":
        """A small encoder for spectrograms, frequency × time: one channel, patches of 16 bands × 4 frames, mean pool.

        Args:
            bands: Number of frequency bands; the patch size is its largest divisor up to 16.
            frames: Number of frames in time; the patch size is its largest divisor up to 4. Longer and shorter
                recordings also work if their frames divide into patches.
            classes: Number of classes.
            **changes: Other fields of the configuration.

        Returns:
            The configuration.

        Example:
            >>> config = ViTConfig.spectrogram(64, 100, classes=10, model="rope2d")
            >>> config.grid, config.dim, config.layers, config.pool
            ((4, 25), 64, 4, 'mean')
        """
        if bands < 1 or frames < 1:
            raise ValueError(f"a spectrogram has 1 band or more and 1 frame or more, got {bands} × {frames}")
        patch = tuple(max(p for p in range(1, most + 1) if n % p == 0) for n, most in ((bands, 16), (frames, 4)))
        small: dict[str, Any] = {"patch": patch, "dim": 64, "layers": 4, "heads": 4, "pool": "mean"}
        return cls(shape=(bands, frames), channels=1, classes=classes, **(small | changes))

    @property
    def prefix(self) -> int:
        """Number of tokens at the identity before the patches: the class token, if there is one, and registers."""
        return (self.pool == "cls") + self.registers

    @property
    def outputs(self) -> int:
        """Number of outputs of the head."""
        return self.classes

    @property
    def variant(self) -> Variant:
        """The four fields that define the model."""
        return Variant(self.frames, self.split, self.per_layer, self.transport)

    @property
    def name(self) -> str | None:
        """The name in `VARIANTS` of the four fields that define the model, or None."""
        return next((name for name, variant in VARIANTS.items() if variant == self.variant), None)

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of patches along each axis."""
        return tuple(n // p for n, p in zip(self.shape, self.patch, strict=True))

    def build(self) -> "JoFormerViT":
        """Builds a model with this configuration and random weights."""
        return JoFormerViT(self)


class JoFormerViT(nn.Module):
    """A vision transformer: class logits of an array, from the class token or from the mean of all patches.

    It accepts other shapes than the configured one if they divide into patches: frames follow the grid. Only the
    additive position embedding is bound to its own grid.

    Args:
        config: The model's configuration.

    Example:
        >>> config = ViTConfig(shape=(8, 8), patch=(4, 4), channels=1, classes=10, dim=32, layers=2, heads=2)
        >>> model = JoFormerViT(config)
        >>> model(torch.rand(3, 1, 8, 8)).shape, model(torch.rand(3, 1, 12, 20)).shape
        (torch.Size([3, 10]), torch.Size([3, 10]))
    """

    config_class = ViTConfig

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.embed = nn.Linear(config.channels * prod(config.patch), dim)
        self.prefix = nn.Parameter(torch.zeros(config.prefix, dim)) if config.prefix else None
        additive = config.frames == "additive"
        self.places = nn.Parameter(torch.zeros(config.prefix + prod(config.grid), dim)) if additive else None
        self.frames = grid_frames(config, len(config.shape), config.split, config.per_layer)
        self.blocks = encoder(config, drop_path=config.drop_path)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.outputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the model's own parameters: class token, registers and additive position embedding."""
        for own in (self.prefix, self.places):
            if own is not None:
                nn.init.normal_(own, std=0.02)

    def forward(
        self,
        x: Float[Tensor, "batch channels ..."] | Sequence[Float[Tensor, "channels ..."]],
        *,
        where: Float[Tensor, "*batch tokens axes"] | None = None,
    ) -> Float[Tensor, "batch classes"]:
        """Logits of the classes.

        Args:
            x: Arrays, ``(batch, channels, *shape)``; each side must be a multiple of the patch's. Or a list of arrays
                ``(channels, *shape)`` of different shapes, which are packed into one row (NaViT) and give the same
                logits as on their own; `drop_path` then skips all of them or none.
            where: Positions of the tokens, prefix included, instead of those of the grid, e.g. from
                `positions.augment` in training.

        Returns:
            Logits ``(batch, classes)``.

        Raises:
            ValueError: If `x` does not divide into patches, or cumulative frames do not get the grid they sum along.
        """
        if isinstance(x, Tensor):
            tokens, frames = self.start(x, where)
            tokens = last(run_blocks(self.blocks, frames, tokens))
            # The norm comes before the mean, so that all patches have equal weight.
            return self.head(self.pooled(self.norm(tokens)))
        each = [self._tokens(image.unsqueeze(0)) for image in x]
        grids, prefix, device = [grid for _, grid in each], self.config.prefix, self.embed.weight.device
        who = positions.segments(grids, prefix=prefix, device=device)
        if where is None:
            where = positions.packed(grids, prefix=prefix, device=device)
        tokens = torch.cat([one for one, _ in each], 1)
        frames = LayerFrames(self._per_layer(), where, tokens)

        def packed(layer: int, block: nn.Module, x: Tensor) -> Tensor:
            return block(x, frames(layer, x), segments=who)

        rows = self.norm(last(run_blocks(self.blocks, frames, tokens, call=packed)))
        return self.head(torch.cat([self.pooled(row) for row in rows.split([one.shape[1] for one, _ in each], 1)]))

    def start(
        self, x: Float[Tensor, "batch channels ..."], where: Float[Tensor, "*batch tokens axes"] | None = None
    ) -> tuple[Float[Tensor, "batch tokens dim"], LayerFrames]:
        """The input of the first block, and the frames of each layer.

        Args:
            x: Arrays, ``(batch, channels, *shape)``.
            where: Positions of the tokens instead of those of the grid.

        Returns:
            The tokens, prefix first, ``(batch, tokens, dim)``, and the frames for `run_blocks`.

        Example:
            >>> model = JoFormerViT(ViTConfig(shape=(8, 8), patch=(4, 4), channels=1, dim=32, layers=2, heads=2))
            >>> tokens, frames = model.start(torch.rand(3, 1, 8, 8))
            >>> tokens.shape, frames(0, tokens).tokens
            (torch.Size([3, 5, 32]), 5)
        """
        tokens, grid = self._tokens(x)
        if where is None:
            where = positions.grid(*grid, prefix=self.config.prefix, device=x.device)
        return tokens, LayerFrames(self._per_layer(), where, tokens, grid=grid)

    def _tokens(self, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """The prefix and the embedded patches, and the shape of their grid."""
        config, tokens = self.config, self.embed(self._patches(x))
        grid = tuple(n // p for n, p in zip(x.shape[2:], config.patch, strict=True))
        if self.prefix is not None:
            tokens = torch.cat((self.prefix.expand(x.shape[0], -1, -1).to(tokens.dtype), tokens), 1)
        if self.places is not None:
            if grid != config.grid:
                raise ValueError(f"an additive position embedding is bound to its grid {config.grid}, got {grid}")
            tokens = tokens + self.places
        return tokens, grid

    def _per_layer(self) -> Iterable[nn.Module]:
        return self.frames if isinstance(self.frames, nn.ModuleList) else [self.frames] * self.config.layers

    def pooled(self, tokens: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch dim"]:
        """The input of the head: the class token, or the mean of all patches.

        Args:
            tokens: The output of the last norm, ``(batch, tokens, dim)``.

        Returns:
            One vector per array, ``(batch, dim)``.

        Example:
            >>> model = JoFormerViT(ViTConfig(shape=(8, 8), patch=(4, 4), dim=32, heads=2, pool="mean"))
            >>> model.pooled(torch.rand(3, 4, 32)).shape
            torch.Size([3, 32])
        """
        return tokens[:, 0] if self.config.pool == "cls" else tokens[:, self.config.prefix :].mean(1)

    def _patches(self, x: Tensor) -> Tensor:
        return patches(x, self.config.patch, self.config.channels)


def patches(
    x: Float[Tensor, "batch channels ..."], patch: Sequence[int], channels: int
) -> Float[Tensor, "batch tokens numbers"]:
    """The patches of arrays in row-major order, each as one vector: channel, then the position inside the patch.

    >>> patches(torch.rand(3, 1, 8, 12), (4, 4), 1).shape
    torch.Size([3, 6, 16])
    """
    axes = len(patch)
    if (
        x.dim() != 2 + axes
        or x.shape[1] != channels
        or any(n < p or n % p for n, p in zip(x.shape[2:], patch, strict=True))
    ):
        sizes = " × ".join(f"a multiple of {p}" for p in patch)
        raise ValueError(f"x must be (batch, {channels}, {sizes}), got {tuple(x.shape)}")
    for axis, side in enumerate(patch, start=2):
        x = x.unfold(axis, side, side)
    return x.movedim(1, 1 + axes).flatten(1, axes).flatten(2)


def grid_frames(config: Any, axes: int, split: Split, per_layer: bool) -> nn.Module:
    """The frames of a model on a grid, one module for all layers or one per layer.

    `config` must have dim, heads, layers, base, frames and transport.

    >>> grid_frames(ViTConfig(frames="fixed"), 2, "axial", False).axes
    2
    """
    head_dim, base = config.dim // config.heads, config.base
    own: dict[str, Any] = {"axes": axes, "split": split}
    if config.transport == "none":
        return NoFrames(own["axes"])
    if config.frames == "fixed":
        return FixedFrames(head_dim, base=base, **own)
    own["heads"] = config.heads
    if config.frames == "learned":
        return LearnedFrames(head_dim, layers=config.layers if per_layer else 1, base=base, **own)

    def one() -> nn.Module:
        if config.frames == "dense":
            return DenseFrames(head_dim, **own)
        kind = ProjectedFrames if config.frames == "projected" else CumulativeFrames
        return kind(config.dim, head_dim, base=base, **own)

    return nn.ModuleList(one() for _ in range(config.layers)) if per_layer else one()


def earlier_forms(config: ViTConfig) -> list[dict[str, Any]]:
    """The fields as version 0.1 wrote them: a name, with its own transport or with a separate one.

    >>> [(form["model"], form["transport"]) for form in earlier_forms(ViTConfig(frames="fixed", transport="scores"))]
    [('rope2d', None), ('joformer_old', 'scores')]
    """
    rest = {name: value for name, value in asdict(config).items() if name not in asdict(config.variant)}
    both = None if config.frames in STILL else replace(config, transport="both").name
    said = ((config.name, None), (both, config.transport))
    return [{**rest, "model": name, "transport": transport} for name, transport in said if name]


def eighths(shape: Sequence[int]) -> tuple[int, ...]:
    """Sides of a patch for arrays of this shape: for each side, the divisor nearest to an eighth of it.

    >>> eighths((224, 224)), eighths((28, 28)), eighths((8, 8))
    ((28, 28), (4, 4), (1, 1))
    """
    return _shares(shape, 8)


def quarters(shape: Sequence[int]) -> tuple[int, ...]:
    """The same, nearest to a quarter: for clips, which have that many patches per picture.

    >>> quarters((64, 64)), quarters((30, 40))
    ((16, 16), (6, 10))
    """
    return _shares(shape, 4)


def _shares(shape: Sequence[int], parts: int) -> tuple[int, ...]:
    divisors = [[p for p in range(1, side + 1) if side % p == 0] for side in shape]
    return tuple(
        min(some, key=lambda p: (abs(p - side / parts), -p)) for side, some in zip(shape, divisors, strict=True)
    )
