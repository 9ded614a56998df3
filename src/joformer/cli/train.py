"""`joformer train lm | vit | monoidal | relations`: train one model; more in domains.py."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import tyro

from joformer import training
from joformer._io import make_folder
from joformer._log import counted, logger
from joformer._remote import local, require_place
from joformer.attention._options import Transport
from joformer.cli.console import say
from joformer.cli.options import Place, recorded
from joformer.frames._base import Split
from joformer.models import (
    ClassifierConfig,
    LMConfig,
    RelationsConfig,
    ViTConfig,
)
from joformer.models._classifier import Reading
from joformer.models._saving import blank
from joformer.models._vit import FramesName, eighths
from joformer.training import (
    ImageTask,
    LanguageTask,
    Recipe,
    RelationsTask,
    Source,
    Stopped,
    Task,
    Tokenizer,
)
from joformer.training.augment.named import Augmentation
from joformer.training.opened import Weights
from joformer.training.processes import require_teams
from joformer.training.runs import TOKENIZER


@dataclass(frozen=True)
class Run:
    """Where the run is kept, and how it starts and resumes.

    Attributes:
        out: The run's folder, or an address (s3://…). The same command resumes the run; with more --steps it extends a
            finished one.
        seed: Seed of the initial weights, the order of the data and all other randomness.
        start: Start from the weights of another run: its folder or address, or that of one of its checkpoints.
        drift: Resume a run even if its bits cannot be the same: with other processes, threads or machine than before.
        shard: With several processes (torchrun), give each a shard of the model (FSDP2) instead of a copy.
        log: Where else to write the metrics: OUT/tensorboard (if TensorBoard is installed), Weights & Biases, or
            trackio.
        dry_run: Prepare the data, print what would be trained, and stop.
        json: Print the last metrics (with --dry-run, what would be trained) as JSON.
    """

    out: Place
    seed: int = 0
    start: Annotated[Place | None, tyro.conf.arg(name="from")] = None
    drift: bool = False
    shard: bool = False
    log: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    dry_run: bool = False
    json: bool = False

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the run to start from: its weights only make sense with that one."""
        place = None if self.start is None else Weights.of(self.start).folder / TOKENIZER
        return Tokenizer.load(place) if place is not None and place.is_file() else None

    def check(self, recipe: Recipe) -> None:
        """Reports what is wrong with the options before data is prepared."""
        shortest = min(stage.steps for stage in recipe.sequence)
        if recipe.warmup > shortest:
            raise ValueError(f"a warm-up of {recipe.warmup} steps is longer than a stage of {shortest}: use fewer")
        if not self.dry_run:
            require_place(self.out)
            make_folder(local(self.out))

    def train(
        self, command: Any, config: Any, task: Task, recipe: Recipe, notes: dict[str, Any], context_parallel: int = 1
    ) -> int:
        """Trains, prints the last metrics and returns the exit code."""
        if self.dry_run:
            count = sum(weight.numel() for weight in blank(config).parameters())
            model, steps, data = type(config).__name__, recipe.total, notes["data"]
            if self.json:
                told = {"model": model, "parameters": count, "steps": steps, "data": data, "out": str(self.out)}
                say(json.dumps(told))
            else:
                say(f"{model}: {count:,} parameters, {steps:,} steps on {data}, into {self.out}")
            return 0
        first = os.environ.get("RANK", "0") == "0"
        record = recorded(command, f"train {type(command).__name__.lower()}", self.out) if first else nullcontext()
        loggers = () if self.log == "none" else (self.log,)
        try:
            with record:
                result = training.train(
                    config, task, recipe, self.out, seed=self.seed, drift=self.drift, notes=notes, shard=self.shard,
                    context_parallel=context_parallel, start=self.start, loggers=loggers,
                )  # fmt: skip
        except Stopped as stopped:
            logger.warning(f"joformer: {stopped}")
            return stopped.code
        if first:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in result.items() if name != "step")
            say(json.dumps(result) if self.json else f"{self.out}: {shown} after {counted(result['step'], 'step')}")
        return 0


@dataclass(frozen=True)
class LM:
    """Train a language model on any text.

    Example: joformer train lm --data enwik8.xz --vocab 256 --frames projected --steps 2000 --out runs/enwik8

    Attributes:
        data: A file or folder of text, parquet, JSON lines, CSV or TSV, also as gz, xz or zst; stdlib (Python's
            own source), wikipedia, openwebtext, hub:OWNER/NAME.
        column: The text column of a table; by default "text", or the only one.
        context: Tokens in a window.
        context_parallel: Context parallelism: how many processes (torchrun) share the tokens of each window, for
            windows too long for one.
        batch: Global batch size: windows per step over all processes.
    """

    output: Run
    data: str = "stdlib"
    column: str | None = None
    context: int = 512
    context_parallel: int = 1
    batch: int = 32
    model: LMConfig = field(default_factory=LMConfig)
    recipe: Recipe = field(default_factory=Recipe)

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        require_teams(self.context_parallel)
        source = training.resolve(self.data, kind="text", column=self.column)
        text = training.load_text(source, vocab=self.model.vocab, tokenizer=self.output.tokenizer())
        task = LanguageTask(text, context=self.context, batch=self.batch)
        config = replace(self.model, vocab=text.tokenizer.vocab)
        notes = {"data": source.spec, "column": self.column, "vocab": self.model.vocab}
        return self.output.train(self, config, task, self.recipe, notes, context_parallel=self.context_parallel)


@dataclass(frozen=True)
class _Labelled:
    """Options shared by models of images and sounds.

    Attributes:
        data: A folder of class folders of images or sounds, a table file,label (CSV, TSV, JSON lines), parquet;
            digits, tones, words (embedded), mnist, cifar100, imagenet, hub:OWNER/NAME.
        label: The class column, if a table has several. For sounds: folder or name, if both could be the class.
        size: Scale and crop all images to this side length.
        rate: Sounds: samples per second, 8000 by default.
        seconds: Sounds: how much of each clip to use, from its start; 1.04 by default.
        bands: Sounds: number of frequency bands, 64 by default.
        hop: Sounds: milliseconds between frames, 16 by default.
        batch: Global batch size: images per step over all processes.
        epochs: Number of passes over the images, instead of --steps.
    """

    output: Run
    data: str = "digits"
    label: str | None = None
    size: int | None = None
    rate: int | None = None
    seconds: float | None = None
    bands: int | None = None
    hop: float | None = None
    batch: int = 128
    epochs: int | None = None
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=1e-3, end=0.0, betas=(0.9, 0.999)))

    def load(self, source: Source) -> training.Images:
        """Both splits."""
        return training.load_labelled(source, **self._options("size", "rate", "seconds", "bands", "hop"))

    def check(self) -> None:
        """Reports what is wrong with the options before data is prepared."""
        self.output.check(self.recipe if self.epochs is None else replace(self.recipe, warmup=0))
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"--epochs must be 1 or more, got {self.epochs}")
        if self.epochs is not None and self.recipe.stages:
            raise ValueError("--stages sets the number of steps: leave out --epochs")

    def start(self, config: Any, task: ImageTask, source: Source, **more: Any) -> int:
        """Trains; `more` is recorded along with the shared options."""
        recipe = self.recipe
        if self.epochs is not None:
            recipe = replace(recipe, steps=max(1, round(self.epochs * len(task.images) / self.batch)))
        options = self._options("label", "size", "rate", "seconds", "bands", "hop")
        return self.output.train(self, config, task, recipe, {"data": source.spec, **options, **more})

    def _options(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class ViT(_Labelled):
    """Train a vision transformer on images, or on the spectrograms of sounds.

    Example: joformer train vit --data cifar100 --patch 4 4 --dim 32 --augment cifar --epochs 30 --out runs/cifar

    Attributes:
        stream: Decode images during training instead of in advance, for data that does not fit into memory. The side
            length is 224 by default.
        workers: Processes that decode, with --stream; by default as many as there are cores.
        augment: none, crop (the paper's Setup A: crop and flip), cifar (Setup B: with mixup), imagenet (DeiT's: with
            mixup, CutMix, smoothed labels) or deit (the same in timm's arithmetic).
        draw: epochs: every image once per epoch. randint: uniformly at random, with replacement (Setup B).
        model: The paper's name (rope2d, joformer_old, joformer_axial, …), a shorthand for the next four options, which
            override it.
        frames: How patches rotate: fixed, learned (the default), dense, projected or cumulative; with additive or none
            they do not.
        split: How axes share planes: axial (the default), combined, or diagonal, the paper's literal combined
            split.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        per_layer: Whether every layer has its own frames; by default only if they are dense or depend on the content.
        patch: Patch size along each axis, or one number for all; by default about an eighth of each side of the image.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        hidden: Width of the feed-forward layers; four times --dim by default.
        base: Base of the frequencies: the slowest has wavelength 2π · base.
        pool: What the classifier reads: a class token (cls), or the mean of all patches.
        registers: Number of register tokens, which have no position, in addition to the class token.
        dropout: Dropout rate on the outputs of attention and feed-forward.
        drop_path: Stochastic depth: how often the last layer is skipped during training; earlier ones less often.
    """

    stream: bool = False
    workers: int | None = None
    augment: Augmentation = "none"
    draw: Literal["epochs", "randint"] = "epochs"
    model: str | None = None
    frames: FramesName | None = None
    split: Split | None = None
    transport: Transport | None = None
    per_layer: bool | None = None
    patch: tuple[int, ...] | None = None
    dim: int = 64
    layers: int = 4
    heads: int = 4
    hidden: int | None = None
    base: float = 100.0
    pool: Literal["cls", "mean"] = "cls"
    registers: int = 0
    dropout: float = 0.0
    drop_path: float = 0.0

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.check()
        self._config(tuple(8 * side for side in sides_of(self.patch, (8, 8))), 3, 2)
        source = training.resolve(self.data, label=self.label)
        images: training.Images | training.Streamed
        if self.stream:
            crop: Literal["centre", "resized"] = "centre" if self.augment == "none" else "resized"
            images = training.Streamed(source, size=self.size or 224, train_crop=crop, workers=self.workers)
            channels, shape = 3, [images.size, images.size]
        else:
            images = self.load(source)
            channels, *shape = images.train.images.shape[1:]
        config = self._config(tuple(shape), channels, len(images.classes))
        augment, mix = training.augmentation(self.augment, images)
        task = ImageTask(images, batch=self.batch, augment=augment, mix=mix, draw=self.draw)
        return self.start(config, task, source, stream=self.stream)

    def _config(self, shape: tuple[int, ...], channels: int, classes: int) -> ViTConfig:
        given = {each.name: getattr(self, each.name, None) for each in fields(ViTConfig)}
        given |= {"shape": shape, "patch": sides_of(self.patch, shape), "channels": channels, "classes": classes}
        return ViTConfig(**{name: value for name, value in given.items() if value is not None}, model=self.model)


@dataclass(frozen=True)
class Monoidal(_Labelled):
    """Train one vector for a whole image and a small classifier on it: the paper's MNIST model, for images with one
    channel.

    Example: joformer train monoidal --data mnist --dim 32 --epochs 50 --out runs/mnist

    Attributes:
        dim: Length of the vector.
        hidden: Width of the classifier's hidden layer.
        frequencies: learned, or fixed; pixels for no embedding at all (--dim is then the number of pixels).
        spread: Half-width of the uniform start of learned frequencies.
    """

    dim: int = 32
    hidden: int = 128
    frequencies: Reading = "learned"
    spread: float | None = None
    recipe: Recipe = field(
        default_factory=lambda: Recipe(lr=1e-3, end=0.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None)
    )

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.check()
        source = training.resolve(self.data, label=self.label)
        images = self.load(source)
        own = self._options("dim", "hidden", "frequencies", "spread")
        config = ClassifierConfig(shape=tuple(images.train.images.shape[2:]), classes=len(images.classes), **own)
        task = ImageTask(images, batch=self.batch, cells=True)
        return self.start(config, task, source)


@dataclass(frozen=True)
class Relations:
    """Train relations of a knowledge graph as rotations (RotatE): which entity completes a triple.

    Example: joformer train relations --data kg/umls --dim 128 --steps 2000 --out runs/umls

    Attributes:
        data: A file or folder of triples: lines "head TAB relation TAB tail"; CSV, TSV, JSON lines or parquet with
            columns head, relation and tail; family (embedded). Files named train, valid and test are the splits.
        dim: Length of an entity's vector.
        block: Number of entries that a relation rotates together. 2 is RotatE, whose relations commute; with larger
            blocks (4) they need not.
        margin: The score of a triple that holds exactly.
        negatives: Number of wrong heads, and of wrong tails, that each triple is compared with.
        temperature: How much the hardest negatives count.
        batch: Global batch size: triples per step over all processes.
    """

    output: Run
    data: str = "family"
    dim: int = 128
    block: int = 2
    margin: float = 6.0
    negatives: int = 64
    temperature: float = 1.0
    batch: int = 512
    recipe: Recipe = field(
        default_factory=lambda: Recipe(lr=1e-2, end=0.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None)
    )

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        source = training.resolve(self.data, kind="graph")
        graph = training.load_graph(source)
        config = RelationsConfig(len(graph.entities), len(graph.relations), self.dim, self.block, self.margin)
        task = RelationsTask(graph, batch=self.batch, negatives=self.negatives, temperature=self.temperature)
        return self.output.train(self, config, task, self.recipe, {"data": source.spec})


def sides_of(given: tuple[int, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The given patch size for every axis, or one that suits the shape."""
    if given is None:
        return eighths(shape)
    return given * len(shape) if len(given) == 1 else given
