"""JoFormerLM: a pre-norm decoder whose layers follow a pattern of letters.

    F   full causal attention with frames
    W   attention within a window, with frames: 0 ≤ i − j < window
    N   full causal attention without frames ("NoPE"), P = I on values too
    L   linear attention with frames
    R   recurrence with one rotation and decay for all tokens (linear SSM); S with content-dependent ones (selective)
    A   full causal attention with ALiBi's bias; C with Shaw's clipped distances; neither has frames

The last three lines are in _mixers.py. Paper: "JoFormer Wikipedia Language Modeling", "Length Generalization"
(docs/claims.md rows 56 and 58), "Value-Path Hierarchy and SSM Bridge".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from joformer import positions
from joformer.attention import ContextParallel, JourneyAttention, JourneyCache
from joformer.attention._cache import Unchanged
from joformer.attention._options import Transport
from joformer.frames import CumulativeFrames, FixedFrames, LearnedFrames, NoFrames, ProjectedFrames
from joformer.models._blocks import Block, LayerFrames, last, require_counts, require_probabilities, run_blocks
from joformer.models._losses import cross_entropy, linear_cross_entropy, token_losses
from joformer.models._mixers import BiasedAttention, ClippedAttention, LinearAttention, Recurrence
from joformer.rotation import is_plain

FramesName = Literal["fixed", "learned", "projected", "cumulative"]
COLD = 1e-30
"""At temperatures up to this the most likely token is always taken: logits divided by less may overflow."""
LETTERS = {
    "F": "full", "W": "windowed", "N": "NoPE", "L": "linear attention", "R": "linear recurrence",
    "S": "selective recurrence", "A": "ALiBi", "C": "clipped distances",
}  # fmt: skip
FRAMED = "FWL"
"""The letters of layers that have frames."""


@dataclass(frozen=True)
class LMConfig:
    """Configuration of `JoFormerLM`; `pattern`, and `frames` if several, are repeated or cut to match `layers`.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> LMConfig(layers=8, pattern="WWN", window=32).letters
        'WWNWWNWW'
        >>> LMConfig(layers=3, frames=("fixed", "projected")).names
        ('fixed', 'projected', 'fixed')
    """

    vocab: int = 8000
    """Vocabulary size; in training, 256 means bytes."""
    dim: int = 256
    """Model width."""
    layers: int = 4
    heads: int = 4
    hidden: int | None = None
    """Width of the feed-forward layers; four times dim by default."""
    frames: FramesName | tuple[FramesName, ...] = "fixed"
    """How tokens are rotated: fixed as in RoPE, learned, or by content (projected, cumulative); or one per layer."""
    projected_base: Literal["none", "fixed", "learned"] = "fixed"
    """The angles to which projected and cumulative ones are added."""
    transport: Transport = "both"
    """What is transported: scores (RoPE), values, both (JoFormer) or none."""
    pattern: str = "F"
    """One letter per layer: F full attention, W within the window, N full without positions; L linear attention, R and
    S linear and selective recurrence, A ALiBi, C Shaw's clipped distances."""
    window: int | None = None
    """Number of tokens that a token of a W layer attends to, itself included."""
    tied: bool = True
    """Whether the output layer shares the weights of the embedding."""
    base: float = 10000.0
    """Base of the fixed frequencies."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "vocab", "dim", "layers", "heads", "hidden", "window")
        require_probabilities(dropout=self.dropout)
        if not self.pattern or set(self.pattern) - set(LETTERS):
            known = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
            raise ValueError(f"pattern {self.pattern!r} must be made of the letters {known}")
        if "W" in self.pattern and self.window is None:
            raise ValueError(f"pattern {self.pattern!r} has windowed layers: say window=32, or use F")
        unknown = [name for name in self.names if name not in get_args(FramesName)]
        if unknown or not self.frames:
            known = ", ".join(get_args(FramesName))
            raise ValueError(f"frames must be one of {known}, or a tuple of them, got {self.frames!r}")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")

    @property
    def letters(self) -> str:
        """One letter per layer."""
        return (self.pattern * self.layers)[: self.layers]

    @property
    def names(self) -> tuple[str, ...]:
        """The frames of each layer, if its letter is not N."""
        several = self.frames if isinstance(self.frames, tuple) else (self.frames,)
        return (several * self.layers)[: self.layers]

    def build(self) -> JoFormerLM:
        """Builds a model with this configuration and random weights."""
        return JoFormerLM(self)


class JoFormerLM(nn.Module):
    """A decoder language model: logits of the next token after each token.

    Args:
        config: The model's configuration.

    Example:
        >>> model = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model(torch.randint(50, (3, 7))).shape
        torch.Size([3, 7, 50])
    """

    config_class = LMConfig

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.embed = nn.Embedding(config.vocab, dim)
        # Frames without parameters are one module for all layers, and are computed once.
        fixed, none = FixedFrames(dim // config.heads, base=config.base), NoFrames()
        self.frames = nn.ModuleList(
            none
            if letter not in FRAMED or config.transport == "none"
            else fixed
            if name == "fixed"
            else _frames(config, name)
            for letter, name in zip(config.letters, config.names, strict=True)
        )
        self.blocks = nn.ModuleList(
            Block(
                _mixer(config, letter),
                hidden=4 * dim if config.hidden is None else config.hidden,
                dropout=config.dropout,
            )
            for letter in config.letters
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        self.reset_parameters()

    def _apply(self, fn: Any, recurse: bool = True) -> JoFormerLM:
        """What `to`, `to_empty` and their kind go through; from "meta" they would untie the weights."""
        tied = self.head.weight is self.embed.weight
        super()._apply(fn, recurse)
        if tied:
            self.head.weight = self.embed.weight
        return self

    def reset_parameters(self) -> None:
        """Draws the embedding, which a tied output layer shares."""
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        where: Float[Tensor, "*batch tokens 1"] | None = None,
        *,
        segments: Int[Tensor, "*batch _keys"] | None = None,
        caches: Sequence[JourneyCache] | None = None,
        targets: Int[Tensor, "batch tokens"] | None = None,
        reduction: Literal["mean", "none"] = "mean",
        parallel: ContextParallel | None = None,
    ) -> Float[Tensor, "batch tokens vocab"] | Float[Tensor, "batch tokens"] | Float[Tensor, ""]:
        """Logits, or with `targets` the mean loss, or the loss of each token.

        Args:
            tokens: Integers, ``(batch, tokens)``.
            where: Positions, ``(tokens, 1)`` or ``(batch, tokens, 1)``; by default those that follow the cached tokens,
                or 0, 1, … from the beginning of each segment.
            segments: Which of several packed sequences each token belongs to, ``(tokens,)`` or ``(batch, tokens)``, as
                returned by `positions.segments`; tokens attend only to their own sequence. The last token of a sequence
                has no next token: set its target to −100.
            caches: One cache per layer, see `caches()`; extended in place.
            targets: The next token after each token, ``(batch, tokens)``; −100 is ignored. The full logits are then
                never materialised, unless the head is more than its weights (hooks, adapters).
            reduction: With `targets`: "mean", or "none" for the loss of each token, 0 where the target is ignored.
            parallel: The processes that share each sequence. All arguments except `segments`, which covers all tokens,
                are those of this process's tokens, and so is the loss. The mean of the losses over the processes is the
                loss of all tokens if each process has the same number of targets.

        Returns:
            Logits ``(batch, tokens, vocab)``, or the mean cross-entropy, a scalar, or that of each ``(batch, tokens)``.

        Raises:
            ValueError: If the number of caches is not that of layers, or caches are used with segments or `parallel`.

        Example:
            >>> model, tokens = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2)), torch.randint(50, (3, 8))
            >>> model(tokens[:, :-1], targets=tokens[:, 1:]).shape
            torch.Size([])
        """
        x = self._read(tokens, where, caches, segments, parallel)
        if targets is not None and is_plain(self.head) and self.head.bias is None:
            loss = linear_cross_entropy if reduction == "mean" else token_losses
            return loss(x, self.head.weight, targets)
        logits = self.head(x)
        return logits if targets is None else cross_entropy(logits, targets, reduction)

    def _read(
        self,
        tokens: Tensor,
        where: Tensor | None,
        caches: Sequence[JourneyCache] | None,
        segments: Tensor | None = None,
        parallel: ContextParallel | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """The input of the output layer."""
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(f"{len(caches)} caches for {len(self.blocks)} layers: make them with model.caches()")
        if caches is not None and (segments is not None or parallel is not None):
            name = "segments" if parallel is None else "processes (parallel=)"
            raise ValueError(f"{name} need whole sequences: leave out caches, or {name}")
        if where is None:
            count = tokens.shape[1] * (1 if parallel is None else parallel.count)
            where = positions.sequence(count, offset=caches[0].tokens if caches else 0, device=tokens.device)
            where = where if segments is None else _restarted(where, segments)
            where = where if parallel is None else parallel.share(where, dim=-2)
        with nullcontext() if caches is None else Unchanged(*caches):  # restores all caches, whichever layer raises
            x = self.embed(tokens)
            frames = LayerFrames(self.frames, where, x, caches=caches, parallel=parallel)
            if segments is None and parallel is None:
                return self.norm(last(run_blocks(self.blocks, frames, x, caches=caches)))

            def packed(layer: int, block: nn.Module, x: Tensor) -> Tensor:
                return block(x, frames(layer, x), segments=segments, parallel=parallel)

            return self.norm(last(run_blocks(self.blocks, frames, x, call=packed)))

    def caches(self) -> list[JourneyCache]:
        """One empty cache per layer; those of windowed layers slide.

        Returns:
            Caches for one batch of sequences.

        Example:
            >>> model = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2, pattern="WN", window=8))
            >>> [cache.window for cache in model.caches()]
            [8, None]
        """
        window = self.config.window
        return [JourneyCache(window=window if letter == "W" else None) for letter in self.config.letters]

    def generate(
        self,
        tokens: Int[Tensor, "batch tokens"],
        count: int,
        *,
        temperature: int | float = 1.0,
        top_k: int | None = None,
        top_p: int | float | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch _more"]:
        """The tokens followed by `count` new ones, sampled one at a time as by `stream`.

        Args:
            tokens: The prompts, ``(batch, tokens)``.
            count: Number of tokens to generate.
            temperature: Divides the logits; 0 always takes the most likely token.
            top_k: Sample only from the k most likely tokens.
            top_p: Sample only from the smallest set of most likely tokens with at least this total probability.
            generator: Random generator; torch's default one if None.

        Returns:
            ``(batch, tokens + count)``.

        Raises:
            ValueError: If a prompt is empty, or an option is out of range.

        Example:
            >>> model = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2)).eval()
            >>> model.generate(torch.randint(50, (3, 7)), 5, top_k=10).shape
            torch.Size([3, 12])
        """
        more = self.stream(tokens, count, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        return torch.cat((tokens, *more), 1)

    def stream(
        self,
        tokens: Int[Tensor, "batch tokens"],
        count: int,
        *,
        temperature: int | float = 1.0,
        top_k: int | None = None,
        top_p: int | float | None = None,
        generator: torch.Generator | None = None,
    ) -> Iterator[Int[Tensor, "batch 1"]]:
        """Yields `count` new tokens, each sampled from softmax(logits / temperature).

        The mode of the model is not changed: call `model.eval()` first to disable dropout.

        Args:
            tokens: The prompts, ``(batch, tokens)``.
            count: Number of tokens to generate.
            temperature: Divides the logits; 0 always takes the most likely token.
            top_k: Sample only from the k most likely tokens.
            top_p: Sample only from the smallest set of most likely tokens with at least this total probability.
            generator: Random generator; torch's default one if None.

        Yields:
            The next token of each sequence, ``(batch, 1)``.

        Raises:
            ValueError: If a prompt is empty, or an option is out of range.

        Example:
            >>> model = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2)).eval()
            >>> [new.shape for new in model.stream(torch.randint(50, (3, 7)), 2, temperature=0)]
            [torch.Size([3, 1]), torch.Size([3, 1])]
        """
        if tokens.dim() != 2 or not tokens.shape[1]:
            raise ValueError(f"tokens must be (batch, tokens) with at least one token, got {tuple(tokens.shape)}")
        if count < 0 or not 0 <= temperature < math.inf or (top_k is not None and top_k < 1):
            got = f"{count}, {temperature} and {top_k}"
            raise ValueError(f"count and temperature must be 0 or more and top_k 1 or more, got {got}")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p must be a probability above 0, got {top_p}")
        caches, new = self.caches(), tokens
        for _ in range(count):
            with torch.inference_mode():
                logits = self.head(self._read(new, None, caches)[:, -1]).float()
                if top_k is not None and top_k < logits.shape[-1]:
                    logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
                if temperature > COLD:
                    chances = torch.softmax(logits / temperature, -1)
                    if top_p is not None:
                        ranked, order = chances.sort(dim=-1, descending=True, stable=True)
                        beyond = ranked.cumsum(-1) - ranked >= top_p
                        chances = chances.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
                    drawn = torch.multinomial(chances, 1, generator=generator)
                else:
                    drawn = logits.argmax(-1, keepdim=True)
            new = drawn.to(tokens.dtype, copy=True)  # outside inference mode: a normal tensor, usable in training too
            yield new


def _restarted(where: Tensor, segments: Tensor) -> Tensor:
    """Positions counted from the first token of each run of equal segments."""
    at, segments = where[:, 0], segments.to(where.device)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[..., 1:] = segments[..., 1:] != segments[..., :-1]
    return (at - torch.where(begins, at, 0).cummax(-1).values).unsqueeze(-1)


def _mixer(config: LMConfig, letter: str) -> Any:
    """The attention layer, or its replacement, for this letter."""
    dim, heads, dropout = config.dim, config.heads, config.dropout
    if letter == "L":
        return LinearAttention(dim, heads, transport=config.transport)
    if letter in "RS":
        return Recurrence(dim, heads, content=letter == "S", base=config.base)
    if letter in "AC":
        return (BiasedAttention if letter == "A" else ClippedAttention)(dim, heads, dropout=dropout)
    transport, window = "none" if letter == "N" else config.transport, config.window if letter == "W" else None
    return JourneyAttention(dim, heads, transport=transport, causal=True, window=window, dropout=dropout)


def _frames(config: LMConfig, name: str) -> nn.Module:
    head_dim = config.dim // config.heads
    if name == "learned":
        return LearnedFrames(head_dim, heads=config.heads, base=config.base)
    kind = {"projected": ProjectedFrames, "cumulative": CumulativeFrames}[name]
    return kind(config.dim, head_dim, heads=config.heads, on=config.projected_base, base=config.base)
