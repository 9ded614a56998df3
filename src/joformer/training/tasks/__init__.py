"""What is learned: the batches of a step, their loss, and what counts in the end.

A batch is a function of the seed, the step and the place in the batch (_seeding.py); a process requests its part.
"""

from joformer.training.tasks.images import ImageTask
from joformer.training.tasks.language import LanguageTask
from joformer.training.tasks.pairs import PairsTask
from joformer.training.tasks.points import PointsTask
from joformer.training.tasks.relations import RelationsTask
from joformer.training.tasks.spotting import SpottingTask
from joformer.training.tasks.task import Task
from joformer.training.tasks.trees import TreeTask
from joformer.training.tasks.video import VideoTask

__all__ = [
    "ImageTask",
    "LanguageTask",
    "PairsTask",
    "PointsTask",
    "RelationsTask",
    "SpottingTask",
    "Task",
    "TreeTask",
    "VideoTask",
]
