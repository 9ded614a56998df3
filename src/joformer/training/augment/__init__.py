"""Image augmentation as batched tensor operations: everything random is drawn first, as a plan that can be divided."""

from joformer.training.augment.images import Augment, Plan
from joformer.training.augment.mix import Mix, MixPlan

__all__ = ["Augment", "Mix", "MixPlan", "Plan"]
