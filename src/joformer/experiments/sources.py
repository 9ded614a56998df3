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
from joformer.models import LMConfig, PairsConfig, PointsConfig, SpottingConfig, TreeConfig, VideoConfig, ViTConfig
from joformer.models._spotting import halved
from joformer.models._vit import eighths, quarters
from joformer.training import (
    ClipAugment,
    Clips,
    Graph,
    ImageTask,
    LanguageTask,
    Pairs,
    PairsTask,
    Points,
    PointsTask,
    Processes,
    RelationsTask,
    SpottingTask,
    Streamed,
    Streams,
    Task,
    Text,
    Tokenizer,
    Trees,
    TreeTask,
    VideoTask,
    augmentation,
    load_clips,
    load_graph,
    load_labelled,
    load_pairs,
    load_points,
    load_streams,
    load_text,
    load_trees,
    open_run,
)
from joformer.training.augment.clips import ClipAugmentation
from joformer.training.augment.named import Augmentation
from joformer.training.data import moving
from joformer.training.tasks.points import Motion
from joformer.training.tasks.trees import READS
from joformer.training.tasks.trees import Question as TreeQuestion

Scale = Literal["laptop", "paper"]
# Options that version 0.1 did not have: at their defaults they are no part of a cell's description.
LATER = ("column", "rate", "seconds", "bands", "hop", "percent", "tokenizer")
PERCENT = 5
# Cells that share data load it once per process.
_text, _images = lru_cache(maxsize=4)(load_text), lru_cache(maxsize=4)(load_labelled)
_graph, _points = lru_cache(maxsize=4)(load_graph), lru_cache(maxsize=4)(load_points)
_streams, _clips = lru_cache(maxsize=4)(load_streams), lru_cache(maxsize=4)(load_clips)
_trees, _pairs = lru_cache(maxsize=4)(load_trees), lru_cache(maxsize=4)(load_pairs)
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

    def final_metrics(self, run: Path) -> dict[str, float]:
        """Metrics measured once, of the trained model in the folder `run`, beside those of the last evaluation."""
        return {}

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
    """Text, its tokens and the windows of a step; `held_out` None scores all held-out text.

    `percent` is the held-out share of text without splits (5 by default), `tokenizer` the tokenizer.json of GPT-2, used
    instead of training one.

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
        """Like every source, but without the path of the tokenizer: the text's fingerprint identifies it."""
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
    """Images, or the spectrograms of sounds, and how a step uses them.

    `stream` is the side length of images decoded by workers during training; None to hold all in memory.

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
        """The number of steps for this many epochs."""
        images = self.load()
        return max(1, round(epochs * len(images if isinstance(images, Streamed) else images.train) / self.batch))

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        options = {name: getattr(self, name) for name in ("data", "label", "rate", "seconds", "bands", "hop")}
        return {**options, "size": self.stream or self.size, "stream": self.stream is not None}


@dataclass(frozen=True)
class StreamSource(_Source):
    """Streams of sound with events in them, and the pieces of a step (training/data/streams.py).

    >>> StreamSource("words", seconds=4.0).task().times
    62
    """

    metric = "event_f1"

    data: str
    batch: int = 16
    seconds: float = 8.0
    noise: float = 20.0
    keywords: tuple[str, ...] = ()
    label: str | None = None
    rate: int | None = None
    bands: int | None = None
    hop: float | None = None

    def load(self) -> Streams:
        """Both splits."""
        sound = {name: value for name in ("rate", "bands", "hop") if (value := getattr(self, name)) is not None}
        return _streams(self.data, label=self.label, keywords=self.keywords, noise=self.noise, **sound)

    def task(self) -> SpottingTask:
        """The task on this data."""
        return SpottingTask(self.load(), batch=self.batch, seconds=self.seconds)

    def plain(self, *, dim: int, layers: int, heads: int) -> SpottingConfig:
        """A spotter without positions, with a window of about a second and two patches along the bands."""
        streams = self.load()
        patch = (halved(streams.bands), SpottingConfig.patch[1])
        return SpottingConfig(
            classes=len(streams.classes), bands=streams.bands, patch=patch, dim=dim, layers=layers, heads=heads,
            transport="none",
        )  # fmt: skip

    def tokens(self, config: Any) -> int:
        """Those of the pieces."""
        return self.batch * self.task().times * config.rows

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {name: getattr(self, name) for name in ("data", "label", "keywords", "noise", "rate", "bands", "hop")}


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

    def tokens(self, config: Any) -> int:
        """The number of tails and heads scored per step."""
        return self.batch * (1 + 2 * self.negatives)

    def task(self) -> Task:
        """The task on this data."""
        return RelationsTask(self.load(), batch=self.batch, negatives=self.negatives)

    def final_metrics(self, run: Path) -> dict[str, float]:
        """The ranks on the test split, as in published figures."""
        task, processes = RelationsTask(self.load()), Processes()
        task.to(processes.device)
        found = task.evaluate(open_run(run).model.to(processes.device), processes, split="test")
        return {f"test_{name}": value for name, value in found.items()}

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {"data": self.data}


@dataclass(frozen=True)
class PointsSource(_Source):
    """Sets of points in space, or sampled from the pixels of images, and how a step uses them.

    >>> PointsSource("digits", points=32).task().classes
    10
    """

    metric = "accuracy"
    frames = ("fixed", "learned")

    data: str
    batch: int = 64
    augment: Motion = "none"
    points: int | None = None
    axes: int | None = None
    ink: bool = False

    def load(self) -> Points:
        """Both splits."""
        return _points(self.data, points=self.points, axes=self.axes, ink=self.ink)

    def task(self) -> Task:
        """The task on this data."""
        return PointsTask(self.load(), batch=self.batch, augment=self.augment)

    def plain(self, *, dim: int, layers: int, heads: int) -> PointsConfig:
        """A model of the features of points, without their positions."""
        found = self.load()
        shape: dict[str, Any] = {"axes": found.axes, "features": found.features, "classes": len(found.classes)}
        return PointsConfig(**shape, dim=dim, layers=layers, heads=heads, frames="fixed", transport="none")

    def tokens(self, config: Any) -> int:
        """The points of a step."""
        return self.batch * self.load().train.points.shape[1]

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {name: getattr(self, name) for name in ("data", "points", "axes", "ink")}


@dataclass(frozen=True)
class VideoSource(_Source):
    """Clips, and the question about them.

    >>> VideoSource("moving", question="class").metric
    'accuracy'
    """

    data: str
    question: moving.Question = "next"
    batch: int = 16
    augment: ClipAugmentation = "none"
    size: int | None = None
    length: int | None = None
    count: int | None = None
    label: str | None = None

    @property
    def metric(self) -> str:  # type: ignore[override]
        """The metric of the question."""
        return "accuracy" if self.question == "class" else "picture_error"

    def load(self) -> Clips:
        """Both splits."""
        made = {name: getattr(self, name) for name in ("question", "size", "length", "count", "label")}
        return _clips(self.data, **made)

    def task(self) -> Task:
        """The task on this data."""
        augment = ClipAugment.named(self.augment)
        return VideoTask(self.load(), question=self.question, batch=self.batch, augment=augment)

    def plain(self, *, dim: int, layers: int, heads: int) -> VideoConfig:
        """A model without positions with joint attention; its patches are about a quarter of each side."""
        clips = self.load()
        channels, *shape = clips.train.images.shape[1:]
        return VideoConfig(
            model="none", shape=tuple(shape), patch=(*quarters(shape[:2]), 1), channels=channels,
            classes=max(1, len(clips.classes)), dim=dim, layers=layers, heads=heads, question=self.question,
        )  # fmt: skip

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {name: getattr(self, name) for name in ("data", "size", "length", "count", "label")}


@dataclass(frozen=True)
class TreeSource(_Source):
    """Trees of Python or JSON, and the question about them.

    >>> TreeSource("stdlib-trees").question
    'masked'
    """

    metric = "accuracy"
    frames = ("fixed", "tree", "tree-dense")
    baselines = ("shiv-quirk",)

    data: str
    question: TreeQuestion = "masked"
    batch: int = 32

    def load(self) -> Trees:
        """The trees of all splits."""
        return _trees(self.data)

    def plain(self, *, dim: int, layers: int, heads: int) -> TreeConfig:
        """A model of nodes without positions."""
        trees = self.load()
        return TreeConfig(
            kinds=len(trees.kinds), reads=READS[self.question], dim=dim, layers=layers, heads=heads, frames="fixed",
            transport="none", depth=trees.depth, branches=trees.branches,
        )  # fmt: skip

    def tokens(self, config: Any) -> int:
        """Nodes of the trees, on average."""
        return int(self.batch * self.load().train.counts.double().mean())

    def task(self) -> Task:
        """The task on this data."""
        return TreeTask(self.load(), question=self.question, batch=self.batch)

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {"data": self.data}


@dataclass(frozen=True)
class PairsSource(_Source):
    """Images with text: with captions, or with named classes.

    >>> PairsSource("captions", vocab=400).task().size
    128
    """

    metric = "masked_accuracy"
    frames = ("fixed", "learned")

    data: str
    batch: int = 128
    vocab: int = 1000
    column: str | None = None
    size: int | None = None

    def load(self) -> Pairs:
        """Both splits."""
        return _pairs(self.data, vocab=self.vocab, column=self.column, size=self.size)

    def task(self) -> Task:
        """The task on this data."""
        return PairsTask(self.load(), batch=self.batch)

    def plain(self, *, dim: int, layers: int, heads: int) -> PairsConfig:
        """An encoder of both without positions, whose patches are about an eighth of each side."""
        pairs = self.load()
        channels, *sides = pairs.train.images.shape[1:]
        return PairsConfig(
            transport="none", vocab=pairs.tokenizer.vocab, shape=tuple(sides), patch=eighths(tuple(sides)),
            channels=channels, dim=dim, layers=layers, heads=heads,
        )  # fmt: skip

    def tokens(self, config: Any) -> int:
        """Patches and words, each alone and together."""
        return 2 * self.batch * (prod(config.grid) + self.load().train.tokens.shape[1])

    def notes(self) -> dict[str, Any]:
        """What `joformer evaluate` needs to find the data again."""
        return {"data": self.data, "vocab": self.vocab, "column": self.column, "size": self.size}


@dataclass(frozen=True)
class SequenceSource(_Source):
    """Randomly generated sequences, each with a question; `data` is the question's name (sequences.py).

    >>> SequenceSource("window-alone").context
    8
    """

    metric = "accuracy"

    data: str
    batch: int = 64
    held_out: int = 1024

    def load(self) -> SequenceTask:
        """The task itself: there is no data to load."""
        return SequenceTask(self.data, batch=self.batch, held_out=self.held_out)

    task = load

    @property
    def context(self) -> int:
        """The number of tokens per sequence."""
        return draw(self.data, 1, torch.Generator()).tokens.shape[1]

    def tokens(self, config: Any) -> int:
        """Those of the sequences."""
        return self.context * self.batch

    def notes(self) -> dict[str, Any]:
        """The question."""
        return {"data": self.data}


Source = (
    TextSource
    | ImageSource
    | VideoSource
    | PairsSource
    | PointsSource
    | StreamSource
    | TreeSource
    | GraphSource
    | SequenceSource
)
