"""The stages of a run: learning rates as functions of the step alone, and what changes between stages.

    warm-up       lr (s + 1) / warmup                                                  s < warmup
    cosine        lr (end + (1 − end) (1 + cos π t) / 2)     t = (s − warmup) / (steps − warmup)

A stage has a length and a learning rate of its own, and may change the frames of a language model, where nothing that
was learned is lost: the paper's three-stage recipe for projected angles is `stages("100000:5e-4", "50000:2e-4",
"50000:5e-5:projected")`. Paper: "Length Generalization".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from joformer.models import LMConfig
from joformer.models._saving import blank, own_state


@dataclass(frozen=True)
class Stage:
    """`steps` at learning rate `lr`; `frames` replaces the language model's frames from here on, function unchanged.

    >>> Stage(100, 5e-4).frames is None
    True
    """

    steps: int
    lr: float
    frames: str | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.lr < math.inf:
            raise ValueError(
                f"a stage needs 1 step or more and a learning rate of 0 or more, got {self.steps}, {self.lr}"
            )


def stages(*written: str) -> tuple[Stage, ...]:
    """The stages written as STEPS:LR or STEPS:LR:FRAMES.

    >>> stages("100:5e-4", "50:5e-5:projected")
    (Stage(steps=100, lr=0.0005, frames=None), Stage(steps=50, lr=5e-05, frames='projected'))
    """
    made = []
    for one in written:
        parts = one.split(":")
        try:
            made.append(Stage(int(parts[0]), float(parts[1]), *parts[2:]))
        except (ValueError, IndexError, TypeError):
            raise ValueError(
                f"cannot read the stage {one!r}: write STEPS:LR or STEPS:LR:FRAMES, such as 1000:5e-4"
            ) from None
    return tuple(made)


def learning_rate(stage: Stage, step: int, *, warmup: int, end: float) -> float:
    """The rate at this step of the stage, counted from 0: linear warm-up, then a cosine down to `end` × lr.

    >>> [round(learning_rate(Stage(4, 1.0), step, warmup=2, end=0.0), 3) for step in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < warmup:
        return stage.lr * (step + 1) / warmup
    share = (step - warmup) / max(stage.steps - warmup, 1)
    return stage.lr * (end + (1 - end) * (1 + math.cos(math.pi * share)) / 2)


def stage_at(sequence: tuple[Stage, ...], step: int) -> tuple[int, int]:
    """Which stage the step of the run is in, and which step of that stage it is.

    >>> stage_at(stages("100:1", "50:1"), 99), stage_at(stages("100:1", "50:1"), 100)
    ((0, 99), (1, 0))
    """
    for number, stage in enumerate(sequence):
        if step < stage.steps:
            return number, step
        step -= stage.steps
    raise ValueError(f"the stages end {step + 1} steps before that")


def changed(config: Any, frames: Any) -> Any:
    """The configuration with these frames; as it is, where none are named.

    >>> changed(LMConfig(), "projected").frames
    'projected'
    """
    if frames is None:
        return config
    if not isinstance(config, LMConfig):
        raise ValueError(f"a stage can change the frames of a language model, not of {type(config).__name__}")
    return replace(config, frames=frames)


def foresee(config: Any, sequence: Sequence[Stage], sharded: bool) -> None:
    """Raises ValueError now for what a later stage could not do, not after the stages before it.

    >>> foresee(LMConfig(dim=16, heads=2, frames="learned"), [Stage(5, 1e-3, "projected")], sharded=False)
    Traceback (most recent call last):
    ValueError: the stage with projected frames would lose frames.0.frequencies: start with fixed frames
    """
    for stage in sequence:
        after = changed(config, stage.frames)
        if after != config:
            if sharded:
                raise ValueError("frames cannot change while the model is sharded: run this stage unsharded")
            has, gets = (own_state(blank(one)) for one in (config, after))
            lost = [name for name in has if name not in gets or has[name].shape != gets[name].shape]
            if lost:
                raise ValueError(f"the stage with {stage.frames} frames would lose {lost[0]}: start with fixed frames")
        config = after
