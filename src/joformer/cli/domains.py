"""`joformer train video | pairs | points | spotting | trees`: models of domains other than text and images."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from joformer import training
from joformer.attention._options import Transport
from joformer.cli.train import Run, sides_of
from joformer.frames._base import Split
from joformer.models import (
    PairsConfig,
    PointsConfig,
    SpottingConfig,
    TreeConfig,
    VideoConfig,
    _pairs,
    _tree,
)
from joformer.models._points import Coordinates, Inputs, PointFrames, PointSplit
from joformer.models._spotting import FramesName as HeardFrames
from joformer.models._spotting import halved
from joformer.models._video import Attention
from joformer.models._vit import FramesName, quarters
from joformer.training import (
    ClipAugment,
    PairsTask,
    PointsTask,
    Recipe,
    SpottingTask,
    TreeTask,
    VideoTask,
)
from joformer.training.augment.clips import ClipAugmentation
from joformer.training.data import moving
from joformer.training.tasks.points import Motion
from joformer.training.tasks.trees import READS
from joformer.training.tasks.trees import Question as TreeQuestion


@dataclass(frozen=True)
class Video:
    """Train on clips with three axes (row, column, time): predict the next picture, or what moved where.

    Example: joformer train video --data mnist --size 32 --length 8 --steps 2000 --out runs/moving

    Attributes:
        data: A folder of clips (mp4, mov, mkv, webm, avi by PyAV; gif, npy, npz), one folder per class if there are
            classes; moving (embedded); or images, two of which move in every clip: mnist, digits, a path.
        question: next: the next picture, at every time step. class: the class of the folder or, for generated clips,
            the direction in which one of the two images moves.
        size: Rows and columns of a picture; 64 by default, 16 for moving.
        length: Pictures per clip; 20 by default, 6 for moving.
        count: Number of clips generated for training; 2,000 by default, plus a quarter of that for testing.
        label: The class column, if a table lists the clips.
        batch: Global batch size: clips per step over all processes.
        augment: flip reverses rows, columns and time, each with probability 1/2, and the class accordingly if it is
            known how; shift moves clips by up to an eighth of their sides.
        attention: joint: over the whole clip. factorised: alternately within a picture and along time.
        frames: How patches rotate: fixed, learned (the default), dense, projected or cumulative; with additive or none
            they do not.
        split: How axes share planes: axial (the default), combined, or diagonal.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        per_layer: Whether every layer has its own frames; by default only if they are dense or depend on the content.
        patch: Patch size, rows and columns; by default about a quarter of each. Patches cover one picture each.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        hidden: Width of the feed-forward layers; four times --dim by default.
        base: Base of the frequencies: the slowest has wavelength 2π · base.
        dropout: Dropout rate on the outputs of attention and feed-forward.
        drop_path: Stochastic depth: how often the last layer is skipped during training; earlier ones less often.
    """

    output: Run
    data: str = "moving"
    question: moving.Question = "next"
    size: int | None = None
    length: int | None = None
    count: int | None = None
    label: str | None = None
    batch: int = 16
    augment: ClipAugmentation = "none"
    attention: Attention = "joint"
    frames: FramesName | None = None
    split: Split | None = None
    transport: Transport | None = None
    per_layer: bool | None = None
    patch: tuple[int, ...] | None = None
    dim: int = 96
    layers: int = 4
    heads: int = 4
    hidden: int | None = None
    base: float = 100.0
    dropout: float = 0.0
    drop_path: float = 0.0
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=3e-3, end=0.0, betas=(0.9, 0.999)))

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        source = training.resolve(self.data, label=self.label)
        made = {name: getattr(self, name) for name in ("size", "length", "count", "label")}
        clips = training.load_clips(source, question=self.question, **made)
        channels, *shape = clips.train.images.shape[1:]
        patch = quarters(shape[:2]) if self.patch is None else self.patch * (2 if len(self.patch) == 1 else 1)
        given = {each.name: getattr(self, each.name, None) for each in fields(VideoConfig)}
        given |= {"shape": tuple(shape), "patch": (*patch, 1), "channels": channels}
        given |= {"classes": max(1, len(clips.classes))}
        config = VideoConfig(**{name: value for name, value in given.items() if value is not None})
        augment = ClipAugment.named(self.augment)
        task = VideoTask(clips, question=self.question, batch=self.batch, augment=augment)
        return self.output.train(self, config, task, self.recipe, {"data": source.spec, **made})


@dataclass(frozen=True)
class Pairs:
    """Train one encoder on images with text: which caption belongs to which image, and which words are hidden.

    Example: joformer train pairs --data photos --size 64 --journeys joint --steps 2000 --out runs/photos

    Attributes:
        data: Images with text: x.txt next to x.jpg, a table file,caption (CSV, TSV, JSON lines), parquet with a column
            caption; captions (embedded). Or images with classes, whose names become captions: cifar100.
        column: The caption column; by default caption or text.
        label: The class column, if captions are made from classes.
        size: Scale and crop all images to this side length.
        vocab: 256 means bytes; a larger number trains a BPE of that size on the captions.
        length: Maximum tokens per caption; longer ones are cut.
        frames: How patches and tokens rotate: fixed as in RoPE, or learned.
        transport: What is transported: scores (RoPE), values, both (JoFormer) or none.
        journeys: Journeys between words and patches: joint (modality, word, row, column), shared (words in reading
            order over the patches' rows and columns) or off (none).
        split: How axes share planes: axial, combined, or diagonal.
        patch: Patch size along each axis, or one number for both; by default about an eighth of each side of the image.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        hidden: Width of the feed-forward layers; four times --dim by default.
        base: Base of the fixed frequencies.
        dropout: Dropout rate on the outputs of attention and feed-forward.
        contrastive: Weight of the contrastive (retrieval) loss.
        masked: Weight of the loss on hidden tokens.
        hide: Probability that a token is hidden.
        batch: Global batch size: pairs per step over all processes; negatives come from a process's own part.
    """

    output: Run
    data: str = "captions"
    column: str | None = None
    label: str | None = None
    size: int | None = None
    vocab: int = 1000
    length: int = 64
    frames: _pairs.FramesName = "fixed"
    transport: Transport = "both"
    journeys: _pairs.Journeys = "joint"
    split: Split = "combined"
    patch: tuple[int, ...] | None = None
    dim: int = 64
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    base: float = 100.0
    dropout: float = 0.0
    contrastive: float = 1.0
    masked: float = 1.0
    hide: float = 0.5
    batch: int = 128
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=1e-3, end=0.0))

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        source = training.resolve(self.data, column=self.column, label=self.label)
        prepared = {"vocab": self.vocab, "length": self.length, "size": self.size}
        pairs = training.load_pairs(source, **prepared, tokenizer=self.output.tokenizer())  # type: ignore[arg-type]
        channels, *shape = pairs.train.images.shape[1:]
        own: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(PairsConfig)}
        own |= {"vocab": pairs.tokenizer.vocab, "channels": channels}
        config = PairsConfig(**own | {"shape": tuple(shape), "patch": sides_of(self.patch, tuple(shape))})
        task = PairsTask(pairs, batch=self.batch, contrastive=self.contrastive, masked=self.masked, hide=self.hide)
        notes = {"data": source.spec, "column": self.column, "label": self.label, **prepared}
        return self.output.train(self, config, task, self.recipe, notes)


@dataclass(frozen=True)
class Points:
    """Train on sets of points in space, with real coordinates: which class, even if sets are shifted or rotated.

    Example: joformer train points --data mnist --points 64 --steps 500 --out runs/clouds

    Attributes:
        data: A .npz file (points, labels) or a folder of them, one folder per class of .npy or .xyz files, or images,
            whose pixels are sampled by intensity; clouds (embedded, 3-D), digits, mnist.
        points: Maximum number of points per set; for images, how many are sampled, 64 by default.
        axes: How many columns of .npy and .xyz files are coordinates, 3 by default; the others are features.
        ink: Images: give each point its pixel's value as a feature.
        augment: Shift or rotate training sets at random.
        inputs: The input of a point: its features only (shift-invariant), or its coordinates too.
        coordinates: The coordinates of the frames: cartesian, or polar about the centroid, whose journeys no rotation
            changes (--frames fixed).
        frames: Frequencies as in RoPE (fixed), or learned.
        split: How axes share planes.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        hidden: Width of the feed-forward layers; four times --dim by default.
        fastest: Frequency of the fastest plane, in radians per radius of a set.
        base: How many times slower the slowest plane is, at most.
        dropout: Dropout rate on the outputs of attention and feed-forward.
        batch: Global batch size: sets per step over all processes.
    """

    output: Run
    data: str = "digits"
    points: int | None = None
    axes: int | None = None
    ink: bool = False
    augment: Motion = "none"
    inputs: Inputs = "features"
    coordinates: Coordinates = "cartesian"
    frames: PointFrames = "fixed"
    split: PointSplit = "axial"
    transport: Transport = "both"
    dim: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int | None = None
    fastest: float = 8.0
    base: float = 32.0
    dropout: float = 0.0
    batch: int = 64
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=2e-3, end=0.0, betas=(0.9, 0.999)))

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        source = training.resolve(self.data)
        read = {name: getattr(self, name) for name in ("points", "axes", "ink")}
        points = training.load_points(source, **read)
        given: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(PointsConfig)}
        given |= {"axes": points.axes, "features": points.features, "classes": len(points.classes)}
        task = PointsTask(points, batch=self.batch, augment=self.augment)
        return self.output.train(self, PointsConfig(**given), task, self.recipe, {"data": source.spec, **read})


@dataclass(frozen=True)
class Spotting:
    """Train a causal encoder of spectrograms to spot keywords in a stream, as each word ends.

    Example: joformer train spotting --data recordings --seconds 8 --window 16 --steps 600 --out runs/spotting

    Attributes:
        data: A folder of recordings (wav; flac, mp3 and ogg with the extra `audio`) with a table of events next to
            them, CSV, TSV or JSON lines: file,start,end,label in seconds, and split. Or sounds by class, as for vit,
            which are strung together: a folder, parquet; words, tones (embedded).
        label: The class column, if a table has several.
        keywords: The classes to listen for, all by default; other sounds occur but count as nothing.
        rate: Samples per second, 8000 by default.
        bands: Number of frequency bands, 64 by default.
        hop: Milliseconds between frames, 16 by default.
        noise: Sounds by class: level of the white noise, in decibels below the sounds.
        seconds: Length of the stream pieces that a step reads.
        tolerance: Seconds after its end within which a word must be spotted, and around its end in the training target.
        batch: Global batch size: pieces per step over all processes.
        patch: Patch size: bands and frames. By default half of the bands and 4 frames.
        frames: How patches rotate: fixed, learned, projected or cumulative.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        window: How many time steps of patches a patch attends to in each layer, its own included; None for all earlier
            ones.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        hidden: Width of the feed-forward layers; four times --dim by default.
        base: Base of the fixed frequencies.
        dropout: Dropout rate on the outputs of attention and feed-forward.
    """

    output: Run
    data: str = "words"
    label: str | None = None
    keywords: tuple[str, ...] = ()
    rate: int | None = None
    bands: int | None = None
    hop: float | None = None
    noise: float = 20.0
    seconds: float = 8.0
    tolerance: float = 0.2
    batch: int = 16
    patch: tuple[int, ...] = ()
    frames: HeardFrames = "fixed"
    transport: Transport = "both"
    window: int | None = 16
    dim: int = 64
    layers: int = 3
    heads: int = 4
    hidden: int | None = None
    base: float = 100.0
    dropout: float = 0.0
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=3e-3, end=0.0, betas=(0.9, 0.999)))

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        bands = self.bands or 64
        patch = self.patch or (halved(bands), SpottingConfig.patch[1])
        given: dict[str, Any] = {each.name: getattr(self, each.name, None) for each in fields(SpottingConfig)}
        config = SpottingConfig(**given | {"classes": 1, "bands": bands, "patch": patch})
        source = training.resolve(self.data, label=self.label)
        sound = {name: value for name in ("rate", "hop") if (value := getattr(self, name)) is not None}
        streams = training.load_streams(source, bands=bands, keywords=self.keywords, noise=self.noise, **sound)
        task = SpottingTask(streams, batch=self.batch, seconds=self.seconds, patch=patch[1], tolerance=self.tolerance)
        notes = {name: getattr(self, name) for name in ("label", "keywords", "noise", "rate", "bands", "hop")}
        config = replace(config, classes=len(streams.classes))
        return self.output.train(self, config, task, self.recipe, {"data": source.spec, **notes})


@dataclass(frozen=True)
class Trees:
    """Train on syntax trees of Python or JSON: which kind a hidden node has, or which use of a variable is wrong.

    Example: joformer train trees --data src --question misuse --frames tree-dense --steps 2000 --out runs/trees

    Attributes:
        data: A folder of .py and .json files, which are parsed but never run; stdlib-trees (Python's standard library).
            Folders named train, valid and test are the splits.
        question: masked: the kinds of hidden nodes. misuse: which use of a variable was replaced by another, if any.
        nodes: Maximum nodes per tree; larger ones are cut into parts.
        share: Share of nodes that are hidden (masked).
        batch: Global batch size: trees per step over all processes.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        hidden: Width of the feed-forward layers; four times --dim by default.
        frames: Position of a node: its path from the root (tree, whose branches commute, or tree-dense), its place in
            the sequence of all nodes (fixed, as in RoPE), an added code (shiv-quirk), or none.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        names: Number of vectors that names are hashed into.
        base: Base of RoPE's frequencies (fixed).
        dropout: Dropout rate on the outputs of attention and feed-forward.
    """

    output: Run
    data: str = "stdlib-trees"
    question: TreeQuestion = "masked"
    nodes: int = 96
    share: float = 0.15
    batch: int = 32
    dim: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int | None = None
    frames: _tree.FramesName = "tree"
    transport: Transport | None = None
    names: int = 1024
    base: float = 10000.0
    dropout: float = 0.0
    recipe: Recipe = field(default_factory=lambda: Recipe(lr=2e-3, end=0.1))

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        self.output.check(self.recipe)
        given = {each.name: getattr(self, each.name) for each in fields(TreeConfig) if hasattr(self, each.name)}
        config = TreeConfig(**given, reads=READS[self.question])
        source = training.resolve(self.data, kind="trees")
        trees = training.load_trees(source, nodes=self.nodes)
        config = replace(config, kinds=len(trees.kinds), depth=trees.depth, branches=trees.branches)
        task = TreeTask(trees, question=self.question, batch=self.batch, share=self.share)
        return self.output.train(self, config, task, self.recipe, {"data": source.spec, "nodes": self.nodes})
