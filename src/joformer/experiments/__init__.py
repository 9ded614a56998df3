"""Every table of the paper, with seeds and intervals; the same grid on anyone's data; a report.

    TABLES["mnist"]("laptop", data=None, seeds=(0, 1, 2), steps=None, sole=True)    the plans of a table

Each table is one file here. `engine` runs their cells, `report` shows what came of them.
"""

from __future__ import annotations

from joformer.experiments import cifar100, imagenet, length, mnist, overhead, speech, transport, wikipedia
from joformer.experiments.cells import Cell, run
from joformer.experiments.plans import Plan
from joformer.experiments.sources import ImageSource, TextSource

TABLES = {
    "mnist": mnist.plans,
    "cifar100": cifar100.plans,
    "imagenet": imagenet.plans,
    "wikipedia": wikipedia.plans,
    "length": length.plans,
    "transport": transport.plans,
    "speech": speech.plans,
    "overhead": overhead.plans,
}
"""The tables by name, in the order in which they are run."""

__all__ = ["TABLES", "Cell", "ImageSource", "Plan", "TextSource", "run"]
