"""JoFormerPairs: one encoder over the patches of an image and the tokens of its caption.

    alone    v_image = mean(encoder(patches)),  v_text = mean(encoder(tokens))      retrieval: cosine of the two
    fused    encoder(tokens, some of them masked; patches) → the masked tokens      journeys between modalities

    journeys   positions of tokens                                   word i → patch (r, c)
    joint      (0, i, 0, 0) and (1, 0, r, c)                         R_mod⁻¹ A_image⁻¹ A_text (docs/claims.md row 47)
    shared     token i is at patch i, in reading order: (r, c)       the identity if word and patch are at one place
    off        as joint, and each modality attends only to itself    none: two towers in one encoder

There is a single encoder, so that an image alone, a text alone, and both together are encoded by the same weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer import positions
from joformer._precision import readable
from joformer.attention._options import Transport
from joformer.frames import FixedFrames, FramesModule, LearnedFrames, NoFrames
from joformer.frames._base import Split
from joformer.models._blocks import LayerFrames, encoder, last, require_counts, require_probabilities, run_blocks
from joformer.models._vit import patches

PADDING = -1
"""The token that pads a caption."""
FramesName = Literal["fixed", "learned"]
Journeys = Literal["joint", "shared", "off"]
WARMEST = 100.0
"""Upper bound of the factor of the cosines."""


@dataclass(frozen=True)
class PairsConfig:
    """Configuration of a `JoFormerPairs`.

    Attributes:
        frames: How patches and tokens are rotated: "fixed" as in RoPE, or by "learned" frequencies.
        transport: What is transported: "scores" (RoPE), "values", "both" (JoFormer) or "none".
        journeys: How words and patches see each other: "joint" (modality, word, row, column), "shared" (row, column,
            with words in reading order over the patches) or "off" (not at all).
        split: How the axes share the planes: "axial", "combined" or "diagonal".
        vocab: Size of the vocabulary; 256 means bytes.
        shape: Height and width of an image.
        patch: Height and width of a patch.
        channels: Number of channels per pixel.
        dim: Width of the model, and length of the vectors that are compared.
        layers: Number of layers.
        heads: Attention heads per layer.
        hidden: Width of the feed-forward network; four times `dim` by default.
        base: Base of the fixed frequencies.
        dropout: Dropout probability, 0 ≤ p < 1, on each residual branch and on the attention weights.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> config = PairsConfig(shape=(32, 32), patch=(8, 8), journeys="shared")
        >>> config.grid, config.axes
        ((4, 4), 2)
    """

    frames: FramesName = "fixed"
    transport: Transport = "both"
    journeys: Journeys = "joint"
    split: Split = "combined"
    vocab: int = 1000
    shape: tuple[int, ...] = (32, 32)
    patch: tuple[int, ...] = (4, 4)
    channels: int = 3
    dim: int = 64
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    base: float = 100.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "vocab", "shape", "patch", "channels", "dim", "layers", "heads", "hidden")
        require_probabilities(dropout=self.dropout)
        known = {"frames": FramesName, "transport": Transport, "journeys": Journeys, "split": Split}
        for name, names in known.items():
            if getattr(self, name) not in get_args(names):
                raise ValueError(f"{name} must be one of {', '.join(get_args(names))}, got {getattr(self, name)!r}")
        sizes = zip(self.shape, self.patch, strict=False)
        if len(self.shape) != 2 or len(self.patch) != 2 or any(n % p for n, p in sizes):
            raise ValueError(f"shape {self.shape} does not divide into patches {self.patch}: height and width must")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")

    @property
    def grid(self) -> tuple[int, int]:
        """Number of rows and columns of patches."""
        return self.shape[0] // self.patch[0], self.shape[1] // self.patch[1]

    @property
    def axes(self) -> int:
        """Number of coordinates per token."""
        return 2 if self.journeys == "shared" else 4

    def build(self) -> JoFormerPairs:
        """Builds a model with this configuration and random weights."""
        return JoFormerPairs(self)


class Encoded(NamedTuple):
    """The output of a `JoFormerPairs`: unit vectors, the factor of the cosines, and logits of masked tokens."""

    image: Float[Tensor, "images dim"] | None
    text: Float[Tensor, "texts dim"] | None
    scale: Float[Tensor, ""]
    words: Float[Tensor, "texts tokens vocab"] | None


class JoFormerPairs(nn.Module):
    """An encoder of images and captions: a vector for each, and logits of masked caption tokens given the image.

    Args:
        config: The model's configuration.

    Example:
        >>> model = JoFormerPairs(PairsConfig(vocab=50, shape=(8, 8), channels=1, dim=32, layers=2, heads=2))
        >>> images, tokens = torch.rand(3, 1, 8, 8), torch.randint(50, (3, 7))
        >>> found = model(images, tokens, torch.rand(3, 7) < 0.5)
        >>> (found.image @ found.text.T).shape, found.words.shape
        (torch.Size([3, 3]), torch.Size([3, 7, 50]))
    """

    config_class = PairsConfig

    def __init__(self, config: PairsConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.embed = nn.Linear(config.channels * prod(config.patch), dim)
        self.tokens = nn.Embedding(config.vocab + 1, dim)  # the last one is the mask token
        self.frames = _frames(config)
        self.blocks = encoder(config)
        self.norm = nn.LayerNorm(dim)
        self.image, self.text = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.head = nn.Linear(dim, config.vocab)
        self.warmth = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the initial factor of the cosines, 1 / 0.07."""
        nn.init.constant_(self.warmth, -math.log(0.07))

    def forward(
        self,
        images: Float[Tensor, "images channels height width"] | None = None,
        tokens: Int[Tensor, "texts tokens"] | None = None,
        masked: Bool[Tensor, "texts tokens"] | None = None,
    ) -> Encoded:
        """Vectors of the images and of the texts, each encoded alone; with `masked`, the fused pass too.

        Args:
            images: ``(images, channels, height, width)``; other sizes than the configured one also work if they divide
                into patches.
            tokens: Captions, ``(texts, tokens)``, padded with −1.
            masked: Which tokens are hidden from the fused pass, ``(texts, tokens)``; requires one image per text.

        Returns:
            The vectors of the given inputs, and with `masked` the logits of every caption token.

        Raises:
            ValueError: If shapes are incompatible or, on the CPU, a token is out of range.
        """
        if images is None and tokens is None:
            raise ValueError("there is nothing to encode: give images, tokens or both")
        if tokens is not None:
            self._check(images, tokens, masked)
        image = text = words = pixels = None
        if images is not None:
            rows, columns = (n // p for n, p in zip(images.shape[2:], self.config.patch, strict=True))
            pixels = self.embed(patches(images, self.config.patch, self.config.channels))
            read = self._encode(pixels, self.where(0, rows, columns, images.device))
            image = F.normalize(self.image(read.mean(1)), dim=-1)
        if tokens is not None:
            real = tokens != PADDING
            where = self.where(tokens.shape[1], *self.config.grid, tokens.device)[: tokens.shape[1]]
            read = self._encode(self._embedded(tokens), where, (~real).long())
            mean = (read * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
            text = F.normalize(self.text(mean), dim=-1)
        if masked is not None:
            assert pixels is not None
            assert tokens is not None
            words = self._fused(pixels, (rows, columns), tokens, masked)
        return Encoded(image, text, self.warmth.exp().clamp(max=WARMEST), words)

    def where(
        self, words: int, rows: int, columns: int, device: torch.device | None = None
    ) -> Float[Tensor, "tokens axes"]:
        """Positions of `words` text tokens followed by a grid of patches; the top of the module lists them.

        Args:
            words: Number of text tokens; 0 for none.
            rows: Number of rows of patches.
            columns: Number of columns of patches.
            device: Device of the result.

        Returns:
            ``(words + rows · columns, axes)``.

        Example:
            >>> JoFormerPairs(PairsConfig(journeys="shared", heads=2)).where(3, 1, 2).tolist()
            [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
        """
        text, cells = positions.sequence(words, device=device), positions.grid(rows, columns, device=device)
        if self.config.journeys != "shared":
            return positions.joint(text, cells)
        read = torch.cat((torch.div(text, columns, rounding_mode="floor"), text % columns), -1)
        return torch.cat((read, cells))

    def _fused(self, pixels: Tensor, grid: tuple[int, int], tokens: Tensor, masked: Tensor) -> Tensor:
        """Logits of every caption token, read together with its image."""
        count = tokens.shape[1]
        hidden = tokens.masked_fill(masked, self.config.vocab)
        who = torch.cat((2 * (tokens == PADDING).long(), tokens.new_zeros(pixels.shape[:2]).long()), 1)
        if self.config.journeys == "off":
            who[:, count:] = 1
        x = torch.cat((self._embedded(hidden), pixels), 1)
        return self.head(self._encode(x, self.where(count, *grid, tokens.device), who)[:, :count])

    def _embedded(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens.clamp(min=0))

    def _encode(self, x: Tensor, where: Tensor, segments: Tensor | None = None) -> Tensor:
        """The output of the last norm; tokens attend to those of the same segment."""
        frames = LayerFrames([self.frames] * self.config.layers, where, x)

        def call(layer: int, block: nn.Module, x: Tensor) -> Tensor:
            return block(x, frames(layer, x), segments=segments)

        return self.norm(last(run_blocks(self.blocks, frames, x, call=call)))

    def _check(self, images: Tensor | None, tokens: Tensor, masked: Tensor | None) -> None:
        vocab = self.config.vocab
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens are {tokens.dtype} {tuple(tokens.shape)}: give whole numbers (texts, tokens)")
        if readable(tokens) and tokens.numel() and not PADDING <= int(tokens.min()) <= int(tokens.max()) < vocab:
            within = f"they must be within 0 … {vocab - 1}, or {PADDING} for padding"
            raise ValueError(f"tokens go from {tokens.min()} to {tokens.max()}: {within}")
        if masked is not None and (images is None or len(images) != len(tokens) or masked.shape != tokens.shape):
            raise ValueError(f"masked tokens need one image per text and a mask like tokens: give {len(tokens)} images")


def _frames(config: PairsConfig) -> FramesModule:
    if config.transport == "none":
        return NoFrames(config.axes)
    head_dim = config.dim // config.heads
    if config.frames == "fixed":
        return FixedFrames(head_dim, axes=config.axes, base=config.base, split=config.split)
    return LearnedFrames(head_dim, axes=config.axes, heads=config.heads, base=config.base, split=config.split)
