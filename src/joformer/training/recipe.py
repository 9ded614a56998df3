"""The training recipe: everything except the model and the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch import nn

from joformer.training.stages import Stage, stages

Precision = Literal["fp32", "bf16", "fp16"]
NON_SEMANTIC_FIELDS = ("save_every", "keep")
"""Fields without effect on the result: a run may resume with other values."""


@dataclass(frozen=True)
class Recipe:
    """AdamW with warm-up and cosine decay; `stages`, if given, replace `steps` and `lr` (stages.py).

    Attributes:
        steps: Number of optimiser steps; with more, a finished run is extended.
        lr: Peak learning rate.
        end: Final learning rate, as a fraction of the peak.
        warmup: Steps of linear warm-up, at the beginning of every stage.
        weight_decay: Weight decay of linear layers and embeddings; nothing else decays.
        betas: AdamW's decay rates of the two moments.
        clip: Maximum global gradient norm; None for no clipping.
        accumulate: Gradient accumulation: split each process's share of a batch into this many parts, to save memory.
        precision: Precision of matrix products; weights and rotations stay in float32.
        average: Decay of an exponential moving average (EMA) of the weights, which is then evaluated and kept; 0 for
            none.
        compile: Compile the model.
        deterministic: Use only deterministic operations, so that the same command gives the same bits. Others, which
            may be faster on GPUs, are allowed with --no-deterministic.
        stages: Several stages in a row, as STEPS:LR or STEPS:LR:FRAMES (frames of the language model from there on).
        log_every: Steps between two lines of metrics.jsonl.
        evaluate_every: Steps between two evaluations; there is always one at the end.
        save_every: Steps between two checkpoints; there is always one at the end.
        keep: Number of checkpoints to keep.

    Example:
        >>> Recipe(steps=10).sequence
        (Stage(steps=10, lr=0.001, frames=None),)
    """

    steps: int = 1000
    lr: float = 1e-3
    end: float = 0.1
    warmup: int = 0
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float | None = 1.0
    accumulate: int = 1
    precision: Precision = "fp32"
    average: float = 0.0
    compile: bool = False
    deterministic: bool = True
    stages: tuple[str, ...] = ()
    log_every: int = 10
    evaluate_every: int = 500
    save_every: int = 500
    keep: int = 3

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "log_every", "evaluate_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("lr", "end", "warmup", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be above 0, or None for no limit, got {self.clip}")
        if not 0 <= self.average < 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"average and betas must be from 0 to below 1, got {self.average} and {self.betas}")
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ValueError(f"precision must be fp32, bf16 or fp16, got {self.precision!r}")
        _ = self.sequence

    @cached_property
    def sequence(self) -> tuple[Stage, ...]:
        """The stages: a single one if none were given."""
        return stages(*self.stages) or (Stage(self.steps, self.lr),)

    @property
    def total(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.sequence)


def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """AdamW's two groups: weights of linear layers and embeddings decay; biases, norms, tokens and frequencies do not.

    A frequency is an angle, not a weight: decay would stretch positions.

    >>> [len(group["params"]) for group in groups(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), 0.1)]
    [1, 3]
    """
    decaying = {id(module.weight) for module in model.modules() if isinstance(module, (nn.Linear, nn.Embedding))}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) in decaying], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decaying], "weight_decay": 0.0},
    ]
