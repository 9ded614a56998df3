"""Annealing a pretrained model from no transport to full transport while it is fine-tuned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from joformer.integrations._transport import checked_strength, transport_values
from joformer.integrations.hf._save import wrap_saving

try:
    from transformers import TrainerCallback
except ImportError:  # a schedule needs nothing of it

    class TrainerCallback:  # type: ignore[no-redef]
        """Stands in where there is no transformers."""


class Anneal(TrainerCallback):
    r"""The strength of transport while training: ``s(step) = start + (end − start) · min(1, step / steps)^power``.

    A schedule, and a callback for transformers' Trainer: `Trainer(model, …, callbacks=[Anneal(1000)])`. It sets the
    model's strength before every step as a function of the step alone, so that a resumed run has the same strengths.
    In your own loop: `transport_values(model, anneal(step))`.

    Args:
        steps: Number of steps from `start` to `end`; afterwards the strength stays there.
        start: The strength at step 0.
        end: The strength from step `steps` on.
        power: 1 is linear; larger values stay near `start` for longer.
        extrapolate: Allow strengths below 0 or above 1.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> anneal = Anneal(100)
        >>> anneal(0), anneal(25), anneal(100), anneal(500)
        (0.0, 0.25, 1.0, 1.0)
        >>> Anneal(100, power=2)(50)
        0.25
    """

    sets_strength = True

    def __init__(
        self, steps: int, *, start: float = 0.0, end: float = 1.0, power: float = 1.0, extrapolate: bool = False
    ) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
        if isinstance(power, bool) or not isinstance(power, int | float) or not 0 < power < math.inf:
            raise ValueError(f"power must be a positive finite number (1 is linear), got {power!r}")
        self.start = checked_strength(start, extrapolate, "start")
        self.end = checked_strength(end, extrapolate, "end")
        self.steps, self.power = steps, power

    def __call__(self, step: int) -> float:
        """The strength at a step."""
        strength = self.start + (self.end - self.start) * min(1.0, max(0.0, step / self.steps)) ** self.power
        low, high = sorted((self.start, self.end))
        return min(max(strength, low), high)  # rounding may lead beyond

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wraps the Trainer's loading too: a checkpoint may be loaded before the first step."""
        wrap_saving()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Sets the strength of the step."""
        transport_values(model, self(state.global_step), extrapolate=True)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Sets the strength that belongs to the last weights, or to the best ones if these are loaded."""
        step = state.global_step
        if args.load_best_model_at_end and state.best_model_checkpoint:
            step = int(Path(state.best_model_checkpoint).name.rpartition("-")[2]) - 1
        transport_values(model, self(step), extrapolate=True)
