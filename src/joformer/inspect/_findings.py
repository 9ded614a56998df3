"""All findings about a subject, and the sentences that state them: the same for the page, JSON and a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from joformer._log import Progress
from joformer.experiments.report.numbers import number
from joformer.experiments.statistics import Estimate
from joformer.inspect._attention import Kernel, Travel, journey, kernels
from joformer.inspect._frames import AngleField, Frequencies, angles, frequencies
from joformer.inspect._layers import attended
from joformer.inspect._subject import Subject
from joformer.inspect._values import ValueUse, value_use

REACH = 64
"""The longest displacement of the kernels shown for text."""


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found; empty or None if not applicable."""

    subject: Subject
    frequencies: list[Frequencies]
    kernels: list[Kernel]
    angles: list[AngleField]
    use: ValueUse | None
    travels: list[Travel]
    source: int
    target: int
    remarks: list[str]

    @property
    def answer(self) -> list[str]:
        """What the model learned, in a few sentences."""
        return [*self._of_use, *self.of_frequencies, *self.of_content]

    @property
    def _of_use(self) -> list[str]:
        if self.use is None or self.use.whole is None:
            return []
        used, heads = sum(one.used for one in self.use.heads), len(self.use.heads)
        return [
            f"Value transport is used by {used} of {heads} heads: switching it off in all heads costs "
            f"{interval(self.use.whole.change)} {self.subject.unit}, at a loss of {number(self.use.loss.centre)}."
        ]

    @property
    def of_frequencies(self) -> list[str]:
        """How far frequencies moved, as sentences."""
        learned = [one for one in self.frequencies if one.learned]
        if not learned:
            return ["Frequencies are fixed."] if self.frequencies else []
        moved = torch.cat([one.moved.abs().flatten() for one in learned])
        start = torch.cat([one.start.abs().flatten() for one in learned])
        share = (moved / start.clamp(min=1e-300)).median().item()
        return [
            f"Learned frequencies moved by at most {number(moved.max().item(), 4)} radians per step; the median is "
            f"{number(100 * share, 1)} % of the initial value."
        ]

    @property
    def of_content(self) -> list[str]:
        """How far content rotates tokens, as sentences."""
        if not self.angles:
            return []
        sizes = [one.content.square().mean().sqrt().item() for one in self.angles]
        least, most = number(min(sizes), 3), number(max(sizes), 3)
        shown = most if least == most else f"{least} to {most}"
        return [f"Content rotates the tokens of the sample by {shown} radians (root mean square, by layer)."]


def interval(change: Estimate) -> str:
    """A change with its interval.

    >>> interval(Estimate(0.12345, 0.1, 0.15, 5, 0.95))
    '0.123 [0.100, 0.150]'
    """
    digits = digits_of([change.centre])
    if change.low is None or change.high is None:
        return number(change.centre, digits)
    return f"{number(change.centre, digits)} [{number(change.low, digits)}, {number(change.high, digits)}]"


def digits_of(values: Sequence[float]) -> int:
    """Decimals, such that the largest value has about three significant digits.

    >>> digits_of([2.5, 0.01]), digits_of([0.012])
    (2, 4)
    """
    most = max((abs(value) for value in values), default=0.0)
    return next((digits for digits in range(2, 6) if most >= 10.0 ** (2 - digits)), 6)


def find_out(
    subject: Subject, *, tokens: tuple[int, int] | None = None, reach: int | None = None, values: bool = True
) -> Findings:
    """Runs all analyses on a subject.

    Args:
        subject: What `open_subject` returned.
        tokens: The journey to show: from the first of these tokens to the second. By default to the last token of a
            text, or the middle of an image, from the other token that it attends to most.
        reach: The longest displacement of kernels.
        values: Whether to switch value transport off head by head, the slowest part.

    Raises:
        ValueError: If the tokens are out of range.
    """
    model, sample = subject.model, subject.sample
    remarks = list(subject.remarks)
    with Progress("inspecting", 3, unit="parts") as progress:
        source, target = tokens or _strongest(subject)
        travels = journey(model, sample, source, target)
        progress.advance()
        found = frequencies(model)
        fields = angles(model, sample)
        progress.advance()
        most = reach if reach is not None else REACH if subject.grid is None else None
        shapes = kernels(model, subject.batch, most)
        progress.advance()
    use = None
    if values:
        try:
            use = value_use(model, subject.measure)
        except ValueError as curved:
            remarks.append(f"Value transport could not be switched off: {curved}.")
    if use is not None and use.whole is None and not any("value transport" in one for one in remarks):
        remarks.append("The model transports no values: there is nothing to switch off.")
    for what, there in (
        ("frequencies", found),
        ("displacement kernels: no score is rotated by angles on a line or a grid", shapes),
        ("angle fields: no angle depends on content", fields),
        ("journeys: no attention could be read", travels),
    ):
        if not there:
            remarks.append(f"There are no {what}.")
    return Findings(subject, found, shapes, fields, use, travels, source, target, remarks)


def _strongest(subject: Subject) -> tuple[int, int]:
    """The journey into the last token of a text, or the middle of an image, that has the largest mean weight."""
    tokens = len(subject.labels)
    target = tokens - 1
    if subject.grid is not None:
        middle = 0
        for size in subject.grid:
            middle = middle * size + size // 2
        target = tokens - torch.Size(subject.grid).numel() + middle
    rows = [one.weights()[0, :, target].mean(0) for one in attended(subject.model, subject.sample)]
    if not rows:
        return 0, target
    mean: Tensor = torch.stack(rows).mean(0)
    mean[target] = -1.0
    return int(mean.argmax()), target


def as_json(found: Findings) -> dict[str, Any]:
    """All numbers as plain JSON."""
    use = found.use
    return {
        "name": found.subject.name,
        "about": dict(found.subject.facts),
        "answer": found.answer,
        "unit": found.subject.unit,
        "value_use": None if use is None else asdict(use),
        "frequencies": [
            {"name": one.name, "learned": one.learned, "start": one.start.tolist(), "now": one.now.tolist()}
            for one in found.frequencies
        ],
        "kernels": [
            {
                "layer": one.layer,
                "name": one.name,
                "displacements": [axis.tolist() for axis in one.displacements],
                "values": _finite(one.values),
            }
            for one in found.kernels
        ],
        "angles": [
            {"layer": one.layer, "name": one.name, "angles": one.angles[0].tolist(), "content": one.content[0].tolist()}
            for one in found.angles
        ],
        "journey": {
            "source": found.source,
            "target": found.target,
            "tokens": found.subject.labels,
            "layers": [
                {
                    "layer": one.layer,
                    "name": one.name,
                    "weights": one.weights.tolist(),
                    "angles": None if one.angles is None else one.angles.tolist(),
                    "scores": one.scores,
                    "strength": one.strength,
                }
                for one in found.travels
            ],
        },
        "remarks": found.remarks,
    }


def _finite(values: Tensor) -> Any:
    """As lists, with None in place of NaN."""
    if values.dim():
        return [_finite(one) for one in values]
    return None if values.isnan() else values.item()
