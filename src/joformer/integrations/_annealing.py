"""Walking a pretrained model from no transport to full transport while it is trained on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from joformer.integrations._transport import transport_values
from joformer.integrations.hf._save import follow

try:
    from transformers import TrainerCallback
except ImportError:  # a schedule needs nobody

    class TrainerCallback:  # type: ignore[no-redef]
        """Stands in where there is no transformers."""


class Anneal(TrainerCallback):
    r"""The strength of transport over the steps of training: a schedule, and a callback for transformers' Trainer.

        s(step) = start + (end − start) · min(1, step / steps)^power

    As a callback it sets the model's strength before every step, from the step's number alone, so that a run that is
    continued goes on where it was: `Trainer(model, …, callbacks=[Anneal(1000)])`. In a loop of your own:
    `transport_values(model, anneal(step))`.

    >>> anneal = Anneal(100)
    >>> anneal(0), anneal(25), anneal(100), anneal(500)
    (0.0, 0.25, 1.0, 1.0)
    >>> Anneal(100, power=2)(50)
    0.25
    """

    def __init__(self, steps: int, *, start: float = 0.0, end: float = 1.0, power: float = 1.0) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
        for name, value in {"start": start, "end": end, "power": power}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        if power <= 0:
            raise ValueError(f"power must be positive, 1 is a straight line, got {power!r}")
        self.steps, self.start, self.end, self.power = steps, start, end, power

    def __call__(self, step: int) -> float:
        """The strength at a step."""
        return self.start + (self.end - self.start) * min(1.0, max(0.0, step / self.steps)) ** self.power

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        follow()  # a checkpoint may be loaded before the first step

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        transport_values(model, self(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        step = state.global_step
        if args.load_best_model_at_end and state.best_model_checkpoint:  # its weights belong to its own strength
            step = int(Path(state.best_model_checkpoint).name.rpartition("-")[2]) - 1
        transport_values(model, self(step))
