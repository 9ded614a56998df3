"""Reproducible training: data, one loop, checkpoints. The same command gives the same bits, even if it was killed.

task = LanguageTask(load_text("stdlib"), context=256)
train(LMConfig(dim=128), task, Recipe(steps=500), "runs/small")
"""

from joformer._seeding import generator
from joformer.training.augment import Augment, Mix
from joformer.training.augment.clips import ClipAugment
from joformer.training.augment.named import augmentation
from joformer.training.data import (
    Clips,
    Graph,
    Images,
    Pairs,
    Points,
    Source,
    Streamed,
    Streams,
    Text,
    Tokenizer,
    Trees,
    load_audio,
    load_clips,
    load_graph,
    load_images,
    load_labelled,
    load_pairs,
    load_points,
    load_streams,
    load_text,
    load_trees,
    resolve,
)
from joformer.training.loop import train
from joformer.training.opened import Opened, load_weights, open_run
from joformer.training.processes import Processes
from joformer.training.recipe import Recipe
from joformer.training.runs import Stopped
from joformer.training.stages import Stage, learning_rate
from joformer.training.tasks import (
    ImageTask,
    LanguageTask,
    PairsTask,
    PointsTask,
    RelationsTask,
    SpottingTask,
    Task,
    TreeTask,
    VideoTask,
)

__all__ = [
    "Augment",
    "ClipAugment",
    "Clips",
    "Graph",
    "ImageTask",
    "Images",
    "LanguageTask",
    "Mix",
    "Opened",
    "Pairs",
    "PairsTask",
    "Points",
    "PointsTask",
    "Processes",
    "Recipe",
    "RelationsTask",
    "Source",
    "SpottingTask",
    "Stage",
    "Stopped",
    "Streamed",
    "Streams",
    "Task",
    "Text",
    "Tokenizer",
    "TreeTask",
    "Trees",
    "VideoTask",
    "augmentation",
    "generator",
    "learning_rate",
    "load_audio",
    "load_clips",
    "load_graph",
    "load_images",
    "load_labelled",
    "load_pairs",
    "load_points",
    "load_streams",
    "load_text",
    "load_trees",
    "load_weights",
    "open_run",
    "resolve",
    "train",
]
