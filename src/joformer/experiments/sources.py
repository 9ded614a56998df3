"""What a cell is trained on: data by name or by path, and what a step makes of it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from joformer.training import Images, ImageTask, LanguageTask, Streamed, Task, augmentation, load_labelled, load_text
from joformer.training.augment.named import Augmentation

Scale = Literal["laptop", "paper"]


class _Known(ABC):
    """Data that can say which it is."""

    data: str

    @abstractmethod
    def load(self) -> Any:
        """The data itself, read once."""

    def identity(self) -> str:
        """Which data it is, by what it holds and not by where it lies: results are published, folders are not."""
        return f"{Path(self.data).name} ({self.load().fingerprint[:12]})"


@dataclass(frozen=True)
class TextSource(_Known):
    """Text, its tokens and the windows of a step.

    >>> TextSource("stdlib", context=128).task().context
    128
    """

    data: str
    vocab: int = 256
    context: int = 512
    batch: int = 32
    held_out: int = 200

    def load(self) -> Any:
        """Loads the data, once per process."""
        return _text(self.data, self.vocab)

    def task(self) -> Task:
        """The task on this data."""
        return LanguageTask(self.load(), context=self.context, batch=self.batch, held_out=self.held_out)


@dataclass(frozen=True)
class ImageSource(_Known):
    """Images, or the spectrograms of sounds, and what a step makes of them.

    >>> ImageSource("digits", batch=32).task().size
    32
    """

    data: str
    batch: int = 128
    augment: Augmentation = "none"
    draw: Literal["epochs", "randint"] = "epochs"
    cells: bool = False
    stream: int | None = None
    """The side to which images are brought while they are decoded by workers; None for all in memory."""
    label: str | None = None
    size: int | None = None

    def load(self) -> Any:
        """Loads the data, once per process."""
        return _images(self.data, self.stream, self.augment != "none", self.label, self.size)

    def task(self) -> Task:
        """The task on this data."""
        images = self.load()
        augment, mix = augmentation(self.augment, images)
        return ImageTask(images, batch=self.batch, augment=augment, mix=mix, draw=self.draw, cells=self.cells)

    def steps(self, epochs: int | float) -> int:
        """How many steps go through the images so often."""
        images = self.load()
        return max(1, round(epochs * (len(images) if isinstance(images, Streamed) else len(images.train)) / self.batch))


Source = TextSource | ImageSource


@lru_cache(maxsize=4)
def _text(data: str, vocab: int) -> Any:
    return load_text(data, vocab=vocab)


@lru_cache(maxsize=4)
def _images(data: str, stream: int | None, crops: bool, label: str | None, size: int | None) -> Images | Streamed:
    if stream is None:
        return load_labelled(data, label=label, size=size)
    workers = min(4, os.cpu_count() or 1)
    return Streamed(data, size=stream, train_crop="resized" if crops else "centre", workers=workers, label=label)
