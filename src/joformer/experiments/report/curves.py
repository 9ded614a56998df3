"""Learning curves, thinned and averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from joformer.experiments.tables import Cell

MOST = 40
"""Maximum points per curve: a small plot cannot show more, and the page stays small."""


@dataclass(frozen=True)
class Curve:
    """One line over steps: mean, minimum and maximum over n seeds."""

    steps: list[float]
    mean: list[float]
    least: list[float]
    most: list[float]
    n: int

    def at(self, step: float) -> float:
        """The mean at this step, interpolated linearly; outside the curve, the value at its end."""
        inside = min(max(step, self.steps[0]), self.steps[-1])
        return _at(list(zip(self.steps, self.mean, strict=True)), inside)


def thin(lines: Sequence[dict[str, float]], most: int = MOST) -> list[dict[str, float]]:
    """At most this many lines of each kind (by their keys), evenly spaced, including the first and the last.

    >>> thin([{"step": float(s), "loss": 1.0} for s in range(100)], 3)
    [{'step': 0.0, 'loss': 1.0}, {'step': 50.0, 'loss': 1.0}, {'step': 99.0, 'loss': 1.0}]
    """
    kinds: dict[tuple[str, ...], list[int]] = {}
    for index, line in enumerate(lines):
        kinds.setdefault(tuple(sorted(line)), []).append(index)
    kept = sorted(index for members in kinds.values() for index in _evenly(members, most))
    return [
        {key: value if key == "step" else float(f"{value:.5g}") for key, value in lines[index].items()}
        for index in kept
    ]


def over_seeds(cells: Sequence[Cell], key: str) -> Curve | None:
    """The curve of this key, at the steps of the seed with the fewest, over the range that all seeds cover.

    >>> lines = lambda y: [{"step": 0, "loss": y}, {"step": 9, "loss": 1.0}]
    >>> over_seeds([Cell("a", "", seed, result={"curve": lines(3.0 - seed)}) for seed in (0, 1)], "loss")
    Curve(steps=[0.0, 9.0], mean=[2.5, 1.0], least=[2.0, 1.0], most=[3.0, 1.0], n=2)
    """
    paths = []
    for cell in cells:
        path = sorted({line["step"]: line[key] for line in thin(cell.curve) if key in line}.items())
        if len(path) > 1:
            paths.append(path)
    if not paths:
        return None
    first, last = max(path[0][0] for path in paths), min(path[-1][0] for path in paths)
    steps = [step for step, _ in min(paths, key=len) if first <= step <= last]
    if len(steps) < 2:
        return None
    columns = [[_at(path, step) for path in paths] for step in steps]
    return Curve(steps, [fmean(c) for c in columns], [min(c) for c in columns], [max(c) for c in columns], len(paths))


def _evenly(members: list[int], most: int) -> list[int]:
    if len(members) <= most:
        return members
    return [members[round(i * (len(members) - 1) / (most - 1))] for i in range(most)]


def _at(path: Sequence[tuple[float, float]], step: float) -> float:
    """Linear interpolation at this step."""
    before = max((point for point in path if point[0] <= step), key=lambda point: point[0])
    after = min((point for point in path if point[0] >= step), key=lambda point: point[0])
    share = 0.0 if after[0] == before[0] else (step - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])
