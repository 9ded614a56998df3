"""Every table of the paper, with seeds and intervals; the same grid on your own data; and a report.

    TABLES["mnist"]("laptop", data=None, seeds=(0, 1, 2), steps=None, sole=True)    the tables of a recipe

Each table is one file here. `engine` runs the cells, `report` shows the results.
"""

from __future__ import annotations

from joformer.experiments import (
    cifar100,
    hierarchy,
    imagenet,
    length,
    mnist,
    overhead,
    pairs,
    points,
    relations,
    separation,
    speech,
    spotting,
    transport,
    trees,
    video,
    wikipedia,
)
from joformer.experiments.running import run
from joformer.experiments.sources import (
    GraphSource,
    ImageSource,
    PairsSource,
    PointsSource,
    SequenceSource,
    StreamSource,
    TextSource,
    TreeSource,
    VideoSource,
)
from joformer.experiments.tables import Cell, Table, plan

TABLES = {
    "mnist": mnist.tables,
    "cifar100": cifar100.tables,
    "imagenet": imagenet.tables,
    "wikipedia": wikipedia.tables,
    "length": length.tables,
    "transport": transport.tables,
    "hierarchy": hierarchy.tables,
    "separation": separation.tables,
    "speech": speech.tables,
    "spotting": spotting.tables,
    "relations": relations.tables,
    "points": points.tables,
    "video": video.tables,
    "trees": trees.tables,
    "pairs": pairs.tables,
    "overhead": overhead.tables,
}
"""The tables by name, in the order in which they are run."""
NAMED_ONLY = ("transport", "hierarchy", "separation", "points", "spotting", "video", "trees", "pairs")
"""Tables that are run where they are named, and not among all: they take long, and are not the paper's."""

__all__ = [
    "NAMED_ONLY",
    "TABLES",
    "Cell",
    "GraphSource",
    "ImageSource",
    "PairsSource",
    "PointsSource",
    "SequenceSource",
    "StreamSource",
    "Table",
    "TextSource",
    "TreeSource",
    "VideoSource",
    "plan",
    "run",
]
