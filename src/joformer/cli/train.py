"""`joformer train lm | vit | monoidal`: one model, from the command line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from joformer._io import make_folder
from joformer._log import logger
from joformer.attention._options import Transport
from joformer.cli.console import say
from joformer.frames._base import Split
from joformer.models import ClassifierConfig, LMConfig, ViTConfig
from joformer.models._classifier import Reading
from joformer.models._vit import FramesName, eighths
from joformer.training import (
    Images,
    ImageTask,
    LanguageTask,
    Recipe,
    Source,
    Stopped,
    Streamed,
    Task,
    augmentation,
    load_labelled,
    load_text,
    resolve,
    train,
)
from joformer.training.augment.named import Augmentation


@dataclass(frozen=True)
class Run:
    """Where a run is kept, and what makes it the one it is."""

    out: Path
    """The run's folder; starting the same command on it continues it."""
    seed: int = 0
    """Decides the first weights, the order of the data and every throw of the dice."""
    drift: bool = False
    """Continue a run although its bits cannot be kept: other processes, threads or machine than before."""
    json: bool = False
    """Print the last metrics as JSON."""

    def train(self, config: Any, task: Task, recipe: Recipe, notes: dict[str, Any]) -> int:
        """Train and show the last metrics; the exit code."""
        shortest = min(stage.steps for stage in recipe.sequence)
        if recipe.warmup > shortest:
            raise ValueError(f"a warm-up of {recipe.warmup} steps is longer than a stage of {shortest}: take fewer")
        try:
            result = train(config, task, recipe, self.out, seed=self.seed, drift=self.drift, notes=notes)
        except Stopped as stopped:
            logger.warning(f"joformer: {stopped}")
            return stopped.code
        if int(os.environ.get("RANK", "0")) == 0:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in result.items() if name != "step")
            say(json.dumps(result) if self.json else f"{self.out}: {shown} after {result['step']} steps")
        return 0


@dataclass(frozen=True)
class LM:
    """A language model on any text.

    Example: joformer train lm --data enwik8.xz --vocab 256 --frames projected --steps 2000 --out runs/enwik8
    """

    to: Run
    data: str = "stdlib"
    """A file or folder of text, parquet, JSON lines, CSV or TSV, also as gz, xz or zst; stdlib (Python's own source),
    wikipedia, openwebtext, hub:OWNER/NAME."""
    column: str | None = None
    """The column of a table that holds the text; by default "text", or the only one."""
    context: int = 512
    """Tokens in a window."""
    batch: int = 32
    """Windows per step, of all processes together."""
    model: LMConfig = field(default_factory=LMConfig)
    recipe: Recipe = field(default_factory=Recipe)

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        make_folder(self.to.out)  # what cannot be written to is reported before the data is prepared
        source = resolve(self.data, kind="text", column=self.column)
        text = load_text(source, vocab=self.model.vocab)
        task = LanguageTask(text, context=self.context, batch=self.batch)
        config = replace(self.model, vocab=text.tokenizer.vocab)
        notes = {"data": source.spec, "column": self.column, "vocab": self.model.vocab}
        return self.to.train(config, task, self.recipe, notes)


@dataclass(frozen=True)
class _Labelled:
    """What models of images and sounds have in common."""

    to: Run
    data: str = "digits"
    """A folder of class folders of images or sounds, a table file,label (CSV, TSV, JSON lines), parquet; digits, tones,
    words (embedded), mnist, cifar100, imagenet, hub:OWNER/NAME."""
    label: str | None = None
    """The column of the classes, if a table has several; folder or name, if both could be the class of sounds."""
    size: int | None = None
    """Scale and crop all images to this side."""
    rate: int | None = None
    """Sounds: samples per second, 8000 by default."""
    seconds: float | None = None
    """Sounds: how much of each clip to use, from its start; 1.04 by default."""
    bands: int | None = None
    """Sounds: bands of frequencies, 64 by default."""
    hop: float | None = None
    """Sounds: milliseconds between frames, 16 by default."""
    batch: int = 128
    """Images per step, of all processes together."""
    epochs: int | None = None
    """Instead of --steps: how many times to go through the images."""
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=1e-3, end=0.0, betas=(0.9, 0.999)))

    def load(self, source: Source) -> Images:
        """Both splits."""
        sound = {name: getattr(self, name) for name in ("rate", "seconds", "bands", "hop")}
        return load_labelled(source, size=self.size, **sound)

    def check(self) -> None:
        """Reports what is wrong with the options before data is prepared."""
        make_folder(self.to.out)
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"--epochs must be 1 or more, got {self.epochs}")
        if self.epochs is not None and self.recipe.stages:
            raise ValueError("--stages give the number of steps: leave out --epochs")

    def start(self, config: Any, task: ImageTask, source: Source, **more: Any) -> int:
        """Trains; `more` is noted beside what all have in common."""
        recipe = self.recipe
        if self.epochs is not None:
            recipe = replace(recipe, steps=max(1, round(self.epochs * len(task.images) / self.batch)))
        options = {name: getattr(self, name) for name in ("label", "size", "rate", "seconds", "bands", "hop")}
        return self.to.train(config, task, recipe, {"data": source.spec, **options, **more})


@dataclass(frozen=True)
class ViT(_Labelled):
    """A vision transformer on images, or on the spectrograms of sounds.

    Example: joformer train vit --data cifar100 --patch 4 4 --dim 32 --augment cifar --epochs 30 --out runs/cifar
    """

    stream: bool = False
    """Decode images while training, not before: for those that do not fit into memory. 224 × 224 unless --size."""
    workers: int = min(4, os.cpu_count() or 1)
    """Processes that decode, with --stream."""
    augment: Augmentation = "none"
    """none, crop (the paper's Setup A: and flip), cifar (Setup B: with mixup), or imagenet (DeiT's: with mixup, CutMix,
    smoothed labels)."""
    draw: Literal["epochs", "randint"] = "epochs"
    """Every image once per epoch, or any image at any time (Setup B)."""
    model: str | None = None
    """By the paper's name (rope2d, joformer_old, joformer_axial, …), short for the next four, which override it."""
    frames: FramesName | None = None
    """How patches rotate: fixed, learned (the default), dense, projected, cumulative; additive or none do not."""
    split: Split | None = None
    """How axes share planes: axial (the default), combined, or diagonal, the paper's literal combined split."""
    transport: Transport | None = None
    """What is transported: scores (RoPE), values, both (JoFormer, the default) or none."""
    per_layer: bool | None = None
    """Whether every layer has its own frames; by default if they are dense or read the content."""
    patch: tuple[int, ...] | None = None
    """Sides of a patch, one number for all; by default about an eighth of each side of the image."""
    dim: int = 64
    """The width."""
    layers: int = 4
    """The number of layers."""
    heads: int = 4
    """The number of heads."""
    hidden: int | None = None
    """Width of the feed-forward; four times --dim by default."""
    base: float = 100.0
    """The slowest frequency's wavelength, 2π base."""
    pool: Literal["cls", "mean"] = "cls"
    """What is read at the end: a class token, or the mean of all patches."""
    registers: int = 0
    """Tokens without a place, beside the class token."""
    dropout: float = 0.0
    """Share of what a layer adds that is dropped while training."""
    drop_path: float = 0.0
    """How often the last layer is skipped while training; earlier ones less often."""

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.check()
        self._config(tuple(8 * side for side in _patch(self.patch, (8, 8))), 3, 2)
        source = resolve(self.data, label=self.label)
        images: Images | Streamed
        if self.stream:
            crop: Literal["centre", "resized"] = "centre" if self.augment == "none" else "resized"
            images = Streamed(source, size=self.size or 224, train_crop=crop, workers=self.workers)
            channels, shape = 3, [images.size, images.size]
        else:
            images = self.load(source)
            channels, *shape = images.train.images.shape[1:]
        config = self._config(tuple(shape), channels, len(images.classes))
        augment, mix = augmentation(self.augment, images)
        task = ImageTask(images, batch=self.batch, augment=augment, mix=mix, draw=self.draw)
        return self.start(config, task, source, stream=self.stream)

    def _config(self, shape: tuple[int, ...], channels: int, classes: int) -> ViTConfig:
        given = {each.name: getattr(self, each.name, None) for each in fields(ViTConfig)}
        given |= {"shape": shape, "patch": _patch(self.patch, shape), "channels": channels, "classes": classes}
        return ViTConfig(**{name: value for name, value in given.items() if value is not None}, model=self.model)


@dataclass(frozen=True)
class Monoidal(_Labelled):
    """One vector for a whole image, and a small classifier on it: the paper's MNIST model. Images have one channel.

    Example: joformer train monoidal --data mnist --dim 32 --epochs 50 --out runs/mnist
    """

    dim: int = 32
    """Numbers in the vector."""
    hidden: int = 128
    """Width of the classifier's hidden layer."""
    frequencies: Reading = "learned"
    """learned, or fixed; pixels for no embedding at all (--dim is then their number)."""
    spread: float | None = None
    """How far apart learned frequencies start."""
    recipe: Recipe = field(
        default_factory=lambda: Recipe(lr=1e-3, end=0.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None)
    )

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.check()
        source = resolve(self.data, label=self.label)
        images = self.load(source)
        own = {name: getattr(self, name) for name in ("dim", "hidden", "frequencies", "spread")}
        config = ClassifierConfig(shape=tuple(images.train.images.shape[2:]), classes=len(images.classes), **own)
        task = ImageTask(images, batch=self.batch, cells=True)
        return self.start(config, task, source)


def _patch(given: tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The patch that was given, for every axis, or one that suits the shape."""
    if given is None:
        return eighths(shape)
    return given * len(shape) if len(given) == 1 else given
