"""`joformer train lm | vit | monoidal`: one model, from the command line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

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
    Stopped,
    Streamed,
    Task,
    Tokenizer,
    augmentation,
    load_labelled,
    load_text,
    train,
)
from joformer.training.augment.named import Augmentation
from joformer.training.opened import Weights
from joformer.training.runs import TOKENIZER


@dataclass(frozen=True)
class Run:
    """Where a run is kept, and what makes it the one it is.

    Attributes:
        out: The run's folder; the same command on it resumes it, and with more --steps extends it once it is finished.
        seed: Decides the first weights, the order of the data and all other randomness.
        start: Start with the weights of another run: its folder, or that of one of its checkpoints.
        drift: Resume a run although its bits cannot be the same: other processes, threads or machine than before.
        shard: Of several processes (torchrun), give each a shard of the model instead of a copy.
        log: Where else to write the metrics: OUT/tensorboard where TensorBoard is installed, Weights & Biases, or
            trackio.
        json: Print the last metrics as JSON.
    """

    out: Path
    seed: int = 0
    start: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    drift: bool = False
    shard: bool = False
    log: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    json: bool = False

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the run to start from: its weights mean nothing with another."""
        place = None if self.start is None else Weights.of(self.start).folder / TOKENIZER
        return Tokenizer.load(place) if place is not None and place.is_file() else None

    def train(self, config: Any, task: Task, recipe: Recipe, notes: dict[str, Any]) -> int:
        """Trains and shows the last metrics; returns the exit code."""
        shortest = min(stage.steps for stage in recipe.sequence)
        if recipe.warmup > shortest:
            raise ValueError(f"a warm-up of {recipe.warmup} steps is longer than a stage of {shortest}: take fewer")
        try:
            result = train(
                config, task, recipe, self.out, seed=self.seed, drift=self.drift, notes=notes, shard=self.shard,
                start=self.start, loggers=() if self.log == "none" else (self.log,),
            )  # fmt: skip
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
    """stdlib (Python's own source), wikipedia, openwebtext, or a file or folder of text, also gz, xz, zst, parquet."""
    context: int = 512
    """Tokens in a window."""
    batch: int = 32
    """Windows in a step, of all processes together."""
    model: LMConfig = field(default_factory=LMConfig)
    recipe: Recipe = field(default_factory=Recipe)

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        make_folder(self.to.out)  # what cannot be written to is said before the data is prepared
        text = load_text(self.data, vocab=self.model.vocab)
        task = LanguageTask(text, context=self.context, batch=self.batch)
        config = replace(self.model, vocab=text.tokenizer.vocab)
        notes = {"data": _where(self.data), "vocab": self.model.vocab}
        return self.to.train(config, task, self.recipe, notes)


@dataclass(frozen=True)
class ViT:
    """A vision transformer on images, or on the spectrograms of sounds.

    Example: joformer train vit --data cifar100 --patch 4 4 --dim 32 --augment cifar --epochs 30 --out runs/cifar
    """

    to: Run
    data: str = "digits"
    """digits, tones, words (embedded), mnist, cifar100, imagenet, hub:OWNER/NAME, or a folder or parquet of images
    or of wav files."""
    label: str | None = None
    """The column of the classes, where there are several."""
    size: int | None = None
    """Side to which images of different sizes are brought."""
    stream: bool = False
    """Decode while training instead of before: for images that do not fit into memory. 224 × 224 unless --size."""
    workers: int = min(4, os.cpu_count() or 1)
    """Processes that decode, where they are streamed."""
    batch: int = 128
    """Images in a step, of all processes together."""
    epochs: int | None = None
    """Instead of --steps: how often to go through the images."""
    augment: Augmentation = "none"
    """none, the paper's Setup A (crop: and flip) or B (cifar: with mixup), or DeiT's (with mixup, CutMix, smoothed
    labels)."""
    draw: Literal["epochs", "randint"] = "epochs"
    """Every image once an epoch, or any at any time (Setup B)."""
    model: str | None = None
    """By the paper's name (rope2d, joformer_old, joformer_axial, …), short for the next four, which override it."""
    frames: FramesName | None = None
    """How patches rotate: fixed, learned (the default), dense, projected, cumulative; additive or none do not."""
    split: Split | None = None
    """How axes share planes: axial (the default), combined, or diagonal, the paper's literal combined split."""
    transport: Transport | None = None
    """What is transported: scores (RoPE), values, both (JoFormer, the default) or none."""
    per_layer: bool | None = None
    """Whether every layer has frames of its own; by default where they are dense or read the content."""
    patch: tuple[int, ...] | None = None
    """Sides of a patch; one number is for all of them; by default about an eighth of each side of the image."""
    dim: int = 64
    """The width."""
    layers: int = 4
    """How many layers."""
    heads: int = 4
    """How many heads they have."""
    hidden: int | None = None
    """Width of the feed-forward; four times dim by default."""
    base: float = 100.0
    """The slowest frequency's wavelength, 2π base."""
    pool: Literal["cls", "mean"] = "cls"
    """What is read in the end: a class token, or the mean of all patches."""
    registers: int = 0
    """Tokens without a place, beside the class token."""
    dropout: float = 0.0
    """How much of what a layer adds is dropped while training."""
    drop_path: float = 0.0
    """How often the last layer is left out altogether while training; earlier ones less often."""
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=1e-3, end=0.0, betas=(0.9, 0.999)))

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        make_folder(self.to.out)
        images: Images | Streamed
        if self.stream:
            size = self.size or 224
            crop: Literal["centre", "resized"] = "centre" if self.augment == "none" else "resized"
            images = Streamed(self.data, size=size, train_crop=crop, workers=self.workers, label=self.label)
            count, channels = len(images), 3
            shape: tuple[int, ...] = (size, size)
        else:
            images = load_labelled(self.data, label=self.label, size=self.size)
            count, (channels, *sides) = len(images.train), images.train.images.shape[1:]
            shape = tuple(sides)
        given: dict[str, Any] = {field.name: getattr(self, field.name, None) for field in fields(ViTConfig)}
        given |= {
            "shape": shape,
            "patch": _patch(self.patch, shape),
            "channels": channels,
            "classes": len(images.classes),
        }
        config = ViTConfig(**{name: value for name, value in given.items() if value is not None}, model=self.model)
        augment, mix = augmentation(self.augment, images)
        task = ImageTask(images, batch=self.batch, augment=augment, mix=mix, draw=self.draw)
        notes = {"data": _where(self.data), "label": self.label, "size": self.size, "stream": self.stream}
        recipe = _in_epochs(self.recipe, self.epochs, count, self.batch)
        return self.to.train(config, task, recipe, notes)


@dataclass(frozen=True)
class Monoidal:
    """One vector for a whole image, and a small classifier on it: the paper's MNIST model.

    Example: joformer train monoidal --data mnist --dim 32 --epochs 50 --out runs/mnist
    """

    to: Run
    data: str = "digits"
    """digits (embedded), mnist (hub), or a folder or parquet of images with one channel."""
    label: str | None = None
    """The column of the classes, where there are several."""
    size: int | None = None
    """Side to which images of different sizes are brought."""
    batch: int = 128
    """Images in a step, of all processes together."""
    epochs: int | None = None
    """Instead of --steps: how often to go through the images."""
    dim: int = 32
    """Numbers in the vector."""
    hidden: int = 128
    """Width of the classifier's hidden layer."""
    frequencies: Reading = "learned"
    """learned, or fixed ones; pixels for no embedding at all (then --dim is their number)."""
    spread: float | None = None
    """How far apart learned frequencies start."""
    recipe: Recipe = field(
        default_factory=lambda: Recipe(lr=1e-3, end=0.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None)
    )

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        make_folder(self.to.out)
        images = load_labelled(self.data, label=self.label, size=self.size)
        config = ClassifierConfig(
            dim=self.dim,
            shape=tuple(images.train.images.shape[2:]),
            classes=len(images.classes),
            hidden=self.hidden,
            frequencies=self.frequencies,
            spread=self.spread,
        )
        task = ImageTask(images, batch=self.batch, cells=True)
        notes = {"data": _where(self.data), "label": self.label, "size": self.size}
        recipe = _in_epochs(self.recipe, self.epochs, len(images.train.labels), self.batch)
        return self.to.train(config, task, recipe, notes)


def _patch(given: tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The patch that was given, for every axis, or one that suits the shape."""
    if given is None:
        return eighths(shape)
    return given * len(shape) if len(given) == 1 else given


def _in_epochs(recipe: Recipe, epochs: int | None, images: int, batch: int) -> Recipe:
    if epochs is not None and epochs < 1:
        raise ValueError(f"--epochs must be 1 or more, got {epochs}")
    if epochs is not None and recipe.stages:
        raise ValueError("--stages say how many steps there are: leave out --epochs")
    return recipe if epochs is None else replace(recipe, steps=max(1, round(epochs * images / batch)))


def _where(data: str) -> str:
    """A path that still leads there from another folder; a name as it is."""
    return str(Path(data).expanduser().resolve()) if Path(data).expanduser().exists() else data
