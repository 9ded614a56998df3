"""`joformer train video | pairs | points | spotting | trees`: models of other domains than text and images."""

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
    """Clips on three axes (row, column, time): their next picture, or what moved where.

    Example: joformer train video --data mnist --size 32 --length 8 --steps 2000 --out runs/moving

    Attributes:
        data: A folder of clips (mp4, mov, mkv, webm, avi by PyAV; gif, npy, npz), one folder per class if there are
            classes; moving (embedded); or images, of which two move in every clip: mnist, digits, a path.
        question: next: the next picture, at every time. class: that of the folder or, of clips that are made, the
            direction in which one of the two images moves.
        size: Rows and columns of a picture; 64 by default, moving 16.
        length: Pictures per clip; 20 by default, moving 6.
        count: Clips that are made to train with; 2,000 by default, and a quarter of that to test.
        label: The column of the classes, where a table lists the clips.
        batch: Clips per step, of all processes together.
        augment: flip reverses rows, columns and time, each half of the time, and the class with them where it is known
            how; shift moves clips by up to an eighth of their sides.
        attention: joint: over the whole clip. factorised: within a picture and along time, in turn.
        frames: How patches rotate: fixed, learned (the default), dense, projected, cumulative; additive or none
            do not.
        split: How axes share planes: axial (the default), combined, or diagonal.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        per_layer: Whether every layer has its own frames; by default if they are dense or read the content.
        patch: Sides of a patch, rows and columns; by default about a quarter of each. Every picture has its own.
        dim: The width.
        layers: The number of layers.
        heads: The number of heads.
        hidden: Width of the feed-forward; four times --dim by default.
        base: The slowest frequency's wavelength, 2π base.
        dropout: Share of what a layer adds that is dropped while training.
        drop_path: How often the last layer is skipped while training; earlier ones less often.
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
    """Images with text, in one encoder: which caption belongs to which image, and which words are hidden.

    Example: joformer train pairs --data photos --size 64 --journeys joint --steps 2000 --out runs/photos

    Attributes:
        data: Images with text: x.txt beside x.jpg, a table file,caption (CSV, TSV, JSON lines), parquet with a column
            caption; captions (embedded). Or images with classes, whose names give captions: cifar100.
        column: The column of the captions; by default caption or text.
        label: The column of the classes, where captions are made from them.
        size: Scale and crop all images to this side.
        vocab: 256 is bytes; more trains a BPE of that size on the captions.
        length: The most tokens of a caption; longer ones are cut.
        frames: How patches and tokens rotate: fixed as in RoPE, or learned.
        transport: What is transported: scores (RoPE), values, both (JoFormer) or none.
        journeys: How a word and a patch see each other: joint (modality, word, row, column), shared (words in reading
            order over the patches' rows and columns) or off (not at all).
        split: How axes share planes: axial, combined, or diagonal.
        patch: Sides of a patch, one number for both; by default about an eighth of each side of the image.
        dim: The width.
        layers: The number of layers.
        heads: The number of heads.
        hidden: Width of the feed-forward; four times --dim by default.
        base: Base of the fixed frequencies.
        dropout: Share of what a layer adds that is dropped while training.
        contrastive: Weight of the loss of retrieval.
        masked: Weight of the loss of hidden tokens.
        hide: How likely a token is hidden.
        batch: Pairs per step, of all processes together; negatives are those of a process's part.
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
    """Sets of points in space, by their real coordinates: which class, also where sets are shifted or rotated.

    Example: joformer train points --data mnist --points 64 --steps 500 --out runs/clouds

    Attributes:
        data: A .npz file (points, labels) or a folder of them, a folder per class of .npy or .xyz files, or images,
            whose pixels are drawn by their ink; clouds (embedded, 3-D), digits, mnist.
        points: How many points of each set are used at most; of images how many are drawn, 64 by default.
        axes: How many columns of .npy and .xyz files are coordinates, 3 by default; the others are features.
        ink: Images: give each point what its pixel holds.
        augment: Shift or rotate training sets at random.
        inputs: What a point's vector is made of: its features alone (shift-invariant), or its coordinates too.
        coordinates: What frames are made of: cartesian coordinates, or polar ones about the centroid, which no rotation
            changes (--frames fixed).
        frames: Frequencies as in RoPE (fixed), or learned.
        split: How axes share planes.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        dim: The width.
        layers: The number of layers.
        heads: The number of heads.
        hidden: Width of the feed-forward; four times --dim by default.
        fastest: Radians per radius of a set of the fastest plane.
        base: How many times slower the slowest is, at most.
        dropout: Share of what a layer adds that is dropped while training.
        batch: Sets per step, of all processes together.
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
    """Keywords in a stream: a causal encoder of spectrograms that says, as it hears, which word was just said.

    Example: joformer train spotting --data recordings --seconds 8 --window 16 --steps 600 --out runs/spotting

    Attributes:
        data: A folder of recordings (wav; flac, mp3 and ogg if soundfile is installed) with a table of events beside
            them, CSV, TSV or JSON lines: file,start,end,label in seconds, and split. Or sounds by class, as for vit,
            which are strung together: a folder, parquet; words, tones (embedded).
        label: The column of the classes, if a table has several.
        keywords: The classes to listen for, all by default; others are heard and are nothing.
        rate: Samples per second, 8000 by default.
        bands: Bands of frequencies, 64 by default.
        hop: Milliseconds between frames, 16 by default.
        noise: Sounds by class: decibels by which white noise lies below them.
        seconds: How long the pieces of the streams are that a step reads.
        tolerance: Seconds after its end within which a word may be spotted; and around its end when it is asked for.
        batch: Pieces per step, of all processes together.
        patch: Sides of a patch: bands and frames. By default half of the bands and 4 frames.
        frames: How patches rotate: fixed, learned, projected or cumulative.
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        window: How many patches of time a patch attends to in each layer, its own included; None for all before it.
        dim: The width.
        layers: The number of layers.
        heads: The number of heads.
        hidden: Width of the feed-forward; four times --dim by default.
        base: Base of the fixed frequencies.
        dropout: Share of what a layer adds that is dropped while training.
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
    """Syntax trees of Python, or JSON: which kind a hidden node has, or which use of a variable is wrong.

    Example: joformer train trees --data src --question misuse --frames tree-dense --steps 2000 --out runs/trees

    Attributes:
        data: A folder of .py and .json files, which are parsed and never run; stdlib-trees (Python's own library).
            Folders train, valid and test are the splits.
        question: masked: the kinds of hidden nodes. misuse: which use of a variable was replaced by another, if any.
        nodes: Nodes of a tree at most; what has more is cut into parts.
        share: Of the nodes, how many are hidden (masked).
        batch: Trees per step, of all processes together.
        dim: The width.
        layers: The number of layers.
        heads: The number of heads.
        hidden: Width of the feed-forward; four times --dim by default.
        frames: Where nodes are: on their path from the root (tree, whose branches commute, or tree-dense), in the
            sequence of all nodes (fixed, RoPE's), by a code that is added (shiv-quirk), or nowhere (none).
        transport: What is transported: scores (RoPE), values, both (JoFormer, the default) or none.
        names: Names are hashed into so many vectors.
        base: Base of RoPE's frequencies (fixed).
        dropout: Share of what a layer adds that is dropped while training.
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
