"""How a model is trained: everything about it that is neither the model nor the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from torch import nn

from joformer.training.stages import Stage, stages

Precision = Literal["fp32", "bf16", "fp16"]
NON_SEMANTIC_FIELDS = ("save_every", "keep")
"""Fields without effect on the result: a run may resume with others."""


@dataclass(frozen=True)
class Recipe:
    """AdamW with a warm-up and a cosine; `stages` replace `steps` and `lr` where there are several (stages.py).

    Attributes:
        steps: How many steps of the optimiser; a finished run that is given more is extended.
        lr: The highest learning rate.
        end: The learning rate at the end, as a share of the highest.
        warmup: Steps of linear warm-up, at the beginning of every stage.
        weight_decay: Of the weights of linear layers and embeddings; nothing else decays.
        betas: AdamW's decay rates of the two moments.
        clip: The largest norm of the gradient; None for no limit.
        accumulate: Parts in which each process works through its share of a batch, to save memory.
        precision: What matrix products are computed in; weights and rotations stay in float32.
        average: Decay of a moving average of the weights (EMA), which is then what is evaluated and kept; 0 for none.
        compile: Compile the model.
        deterministic: Use only operations whose result does not depend on chance, so that the same command gives the
            same bits; --no-deterministic allows others, which may be faster on GPUs.
        stages: Several stages in a row, as STEPS:LR or STEPS:LR:FRAMES (frames of the language model from there on).
        log_every: Steps between two lines of metrics.jsonl.
        evaluate_every: Steps between two evaluations; there is always one at the end.
        save_every: Steps between two checkpoints; there is always one at the end.
        keep: How many checkpoints are kept.

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
        """The stages: one, where none were given."""
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
