"""What a cell is trained on: data by name or by path, and what a step makes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from joformer.experiments.sequences import SequenceTask, draw
from joformer.models import LMConfig, ViTConfig
from joformer.models._vit import eighths
from joformer.training import (
    Graph,
    ImageTask,
    LanguageTask,
    RelationsTask,
    Streamed,
    Task,
    Text,
    Tokenizer,
    augmentation,
    load_graph,
    load_labelled,
    load_text,
)
from joformer.training.augment.named import Augmentation

Scale = Literal["laptop", "paper"]
# Options that version 0.1 did not have: at their defaults they are no part of a cell's description.
LATER = ("column", "rate", "seconds", "bands", "hop", "percent", "tokenizer")
PERCENT = 5
# Cells that share data load it once per process.
_text, _images = lru_cache(maxsize=4)(load_text), lru_cache(maxsize=4)(load_labelled)
_graph = lru_cache(maxsize=4)(load_graph)
_streamed: Any = lru_cache(maxsize=4)(Streamed)


class _Source(ABC):
    """Data that can tell which it is, what is measured on it, and which frames and baselines `compare` has for it."""

    data: str
    batch: int
    metric: ClassVar[str]
    frames: ClassVar[tuple[str, ...]] = ("fixed", "learned", "projected", "cumulative")
    baselines: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def load(self) -> Any:
        """The data itself, loaded once per process; what was understood is logged."""

    def plain(self, *, dim: int, layers: int, heads: int) -> Any:
        """The model without positions that `compare` gives frames: its fields `frames` and `transport` say which."""
        raise ValueError(f"{Path(self.data).name} has no models to compare: choose other data")

    def tokens(self, config: Any) -> int:
        """How many tokens a step of this model reads."""
        return self.batch * (prod(config.grid) + config.prefix if hasattr(config, "grid") else 1)

    def identity(self) -> str:
        """Which data it is, by what it holds and not by where it lies: results are published, folders are not."""
        return f"{Path(self.data).name} ({self.load().fingerprint[:12]})"

    def as_json(self) -> dict[str, Any]:
        """The settings that decide a cell's result; those at defaults that did not exist before are left out.

        >>> "rate" in ImageSource("words").as_json(), ImageSource("words", rate=16000).as_json()["rate"]
        (False, 16000)
        """
        settings = asdict(self)  # type: ignore[call-overload]
        return {name: value for name, value in settings.items() if value is not None or name not in LATER}


@dataclass(frozen=True)
class TextSource(_Source):
    """Text, its tokens and the windows of a step; `held_out` None scores all that is held out.

    `percent` is how much of text without splits that is (5 by default), `tokenizer` the tokenizer.json of GPT-2, to be
    used instead of training one.

    >>> TextSource("stdlib", context=128).task().context
    128
    """

    metric = "bits_per_byte"
    baselines = ("alibi", "shaw")

    data: str
    vocab: int = 256
    context: int = 512
    batch: int = 32
    held_out: int | None = 200
    column: str | None = None
    percent: int | None = None
    tokenizer: str | None = None

    def load(self) -> Text:
        """The tokens of all splits."""
        tokenizer = None if self.tokenizer is None else Tokenizer.of_gpt2(self.tokenizer)
        return _text(
            self.data, vocab=self.vocab, tokenizer=tokenizer, column=self.column, percent=self.percent or PERCENT
        )

    def plain(self, *, dim: int, layers: int, heads: int) -> LMConfig:
        """A language model without positions."""
        vocab = self.load().tokenizer.vocab
        return LMConfig(vocab=vocab, dim=dim, layers=layers, heads=heads, transport="none")

    def tokens(self, config: Any) -> int:
        """Those of the windows."""
        return self.context * self.batch

    def as_json(self) -> dict[str, Any]:
        """As every source, but not where the tokenizer lies: which it is, the text's fingerprint says."""
        settings = super().as_json()
        return settings if self.tokenizer is None else {**settings, "tokenizer": Path(self.tokenizer).parent.name}

    def task(self) -> Task:
        """The task on this data."""
        return LanguageTask(self.load(), context=self.context, batch=self.batch, held_out=self.held_out)

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        vocab = self.vocab if self.tokenizer is None else None  # that of the run itself is then used
        return {"data": self.data, "vocab": vocab, "column": self.column, "percent": self.percent}


@dataclass(frozen=True)
class ImageSource(_Source):
    """Images, or the spectrograms of sounds, and what a step makes of them.

    `stream` is the side to which images are brought while they are decoded by workers; None for all in memory.

    >>> ImageSource("digits", batch=32).task().size
    32
    """

    metric = "accuracy"

    data: str
    batch: int = 128
    augment: Augmentation = "none"
    draw: Literal["epochs", "randint"] = "epochs"
    cells: bool = False
    stream: int | None = None
    label: str | None = None
    size: int | None = None
    rate: int | None = None
    seconds: float | None = None
    bands: int | None = None
    hop: float | None = None

    def load(self) -> Any:
        """Both splits."""
        if self.stream is None:
            sound = {name: getattr(self, name) for name in ("rate", "seconds", "bands", "hop")}
            return _images(self.data, label=self.label, size=self.size, **sound)
        crop = "centre" if self.augment == "none" else "resized"
        return _streamed(self.data, size=self.stream, train_crop=crop, label=self.label)

    def task(self) -> Task:
        """The task on this data."""
        images = self.load()
        augment, mix = augmentation(self.augment, images)
        return ImageTask(images, batch=self.batch, augment=augment, mix=mix, draw=self.draw, cells=self.cells)

    def plain(self, *, dim: int, layers: int, heads: int) -> ViTConfig:
        """A vision transformer without positions, whose patches are about an eighth of each side."""
        images = self.load()
        channels, *sides = images.train.images.shape[1:]
        return ViTConfig(
            model="none", shape=tuple(sides), patch=eighths(tuple(sides)), channels=channels,
            classes=len(images.classes), dim=dim, layers=layers, heads=heads, pool="mean",
        )  # fmt: skip

    def steps(self, epochs: int | float) -> int:
        """How many steps go through the images so often."""
        images = self.load()
        return max(1, round(epochs * len(images if isinstance(images, Streamed) else images.train) / self.batch))

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        options = {name: getattr(self, name) for name in ("data", "label", "rate", "seconds", "bands", "hop")}
        return {**options, "size": self.stream or self.size, "stream": self.stream is not None}


@dataclass(frozen=True)
class GraphSource(_Source):
    """The triples of a knowledge graph.

    >>> GraphSource("kg/umls").batch
    512
    """

    metric = "mrr"

    data: str
    batch: int = 512
    negatives: int = 64

    def load(self) -> Graph:
        """The triples of all splits."""
        return _graph(self.data)

    def task(self) -> Task:
        """The task on this data."""
        return RelationsTask(self.load(), batch=self.batch, negatives=self.negatives)

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {"data": self.data}


@dataclass(frozen=True)
class SequenceSource(_Source):
    """Sequences that are drawn, with a question each; `data` is the question's name (sequences.py).

    >>> SequenceSource("window-alone").context
    8
    """

    metric = "accuracy"

    data: str
    batch: int = 64
    held_out: int = 1024

    def load(self) -> SequenceTask:
        """The task itself: there is nothing to read."""
        return SequenceTask(self.data, batch=self.batch, held_out=self.held_out)

    task = load

    @property
    def context(self) -> int:
        """How many tokens a sequence has."""
        return draw(self.data, 1, torch.Generator()).tokens.shape[1]

    def tokens(self, config: Any) -> int:
        """Those of the sequences."""
        return self.context * self.batch

    def notes(self) -> dict[str, Any]:
        """The question."""
        return {"data": self.data}


Source = TextSource | ImageSource | GraphSource | SequenceSource
