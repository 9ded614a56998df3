"""Sets in space: which class, wherever they lie and however they are rotated.

loss  cross-entropy      accuracy in percent: as they are, each shifted at random, each rotated at random
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._io import write_json
from joformer._seeding import generator
from joformer.training.data import Clouds, Points
from joformer.training.processes import Processes
from joformer.training.tasks.parts import divides, epoch_order, rounds, share
from joformer.training.tasks.task import Task

Motion = Literal["none", "shift", "rotate"]
REACH = 2.0
"""How far sets are shifted along each axis at most, in radii of a set."""
METRICS: dict[Motion, str] = {"none": "accuracy", "shift": "accuracy_shifted", "rotate": "accuracy_rotated"}


def moved(
    points: Float[Tensor, "batch most axes"], how: Motion, draws: Float[Tensor, "batch axes"]
) -> Float[Tensor, "batch most axes"]:
    """Sets as they are, each shifted, or each rotated about the origin in the plane of its first two axes.

    Args:
        points: In radii of a set.
        how: What to do with them.
        draws: Numbers in 0 … 1, one row per set: the shift along each axis, or the angle.

    Returns:
        Points of the same shape.

    Example:
        >>> quarter = moved(torch.tensor([[[1.0, 0.0]]]), "rotate", torch.tensor([[0.25, 0.0]]))
        >>> quarter[0, 0].abs().round(decimals=6).tolist()
        [0.0, 1.0]
    """
    if how == "none":
        return points
    if how == "shift":
        return points + REACH * (2 * draws.unsqueeze(1) - 1)
    angle = 2 * pi * draws[:, :1]
    x, y = points[..., 0], points[..., 1]
    turned = torch.stack((angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y), -1)
    return torch.cat((turned, points[..., 2:]), -1)


class PointsTask(Task):
    """Sets of points and their classes; evaluated on all of points.test: unchanged, shifted and rotated.

    Coordinates are normalised by the centre and radius of the training split, or by `normalise`: constants
    that do not depend on how a set is shifted or rotated. `augment` shifts or rotates training sets at random.

    >>> from joformer.training import load_points
    >>> task = PointsTask(load_points("digits", points=16), batch=32)
    >>> points, features, mask, labels = task.batch(seed=0, step=0, part=1, parts=2)
    >>> points.shape, features, mask, labels.shape
    (torch.Size([16, 16, 2]), None, None, torch.Size([16]))
    """

    def __init__(
        self, points: Points, *, batch: int = 64, augment: Motion = "none", normalise: Sequence[Any] | None = None
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch must be 1 set or more, got {batch}")
        if augment == "rotate" and points.axes < 2:
            raise ValueError("points on one axis cannot be rotated: use --augment shift or none")
        self.points, self.size, self.augment, self.classes = points, batch, augment, len(points.classes)
        centre, radius = (points.centre, points.radius) if normalise is None else normalise
        self.normalise = (tuple(map(float, centre)), float(radius))
        self._centre = torch.tensor(self.normalise[0])
        # Where no set is padded attention needs no mask.
        self.padded = any(bool((part.counts < part.points.shape[1]).any()) for part in (points.train, points.test))
        self.train, self.test, self.parts = points.train, points.test, 1

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        settings = {"batch": self.size, "augment": self.augment, "normalise": self.normalise}
        return {"points": self.points.fingerprint, **settings}

    def to(self, device: torch.device) -> None:
        """Moves both splits to the device."""
        super().to(device)
        self.train, self.test, self._centre = self.train.to(device), self.test.to(device), self._centre.to(device)

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the points, or the batch cannot be divided."""
        divides(self.size, parts)
        self.parts = parts
        if isinstance(config, nn.Module):
            return
        known = getattr(config, "classes", 0)
        if known < self.classes:
            raise ValueError(f"the sets have {self.classes} classes, the model has {known}: set classes={self.classes}")
        for name in ("axes", "features"):
            have, reads = getattr(self.points, name), getattr(config, name, None)
            if have != reads:
                raise ValueError(f"the points have {have} {name}, the model reads {reads}: set {name}={have}")

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        """This part of the step's points, features, mask and labels, on the device."""
        mine = share(self.size, part, parts)
        chosen = epoch_order(len(self.train), self.size, seed, step)[mine]
        draws = torch.rand(self.size, self.points.axes, generator=generator(seed, "augment", step))[mine]
        return self._read(self.train.take(chosen.to(self.device)), self.augment, draws)

    def loss(self, model: nn.Module, batch: tuple[Any, ...]) -> Tensor:
        """The mean loss of the batch."""
        points, features, mask, labels = batch
        return F.cross_entropy(model(points, features, mask=mask).float(), labels)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """Loss, and accuracy unchanged, shifted and rotated, over the whole test split."""
        motions: list[Motion] = ["none", "shift", "rotate"] if self.points.axes > 1 else ["none", "shift"]
        found: dict[str, float] = {}
        for how in motions:
            # The same motions for every model and seed.
            draws = torch.rand(len(self.test), self.points.axes, generator=generator("points", how))
            sums = torch.zeros(3, dtype=torch.float64, device=self.device)
            for some, weight in rounds(torch.arange(len(self.test)), max(self.size // self.parts, 256), processes):
                batch = self._read(self.test.take(some.to(self.device)), how, draws[some])
                points, features, mask, labels = batch
                logits = model(points, features, mask=mask).float()
                loss = F.cross_entropy(logits, labels, reduction="sum").double()
                sums += weight * torch.stack((loss, (logits.argmax(-1) == labels).sum(), torch.ones_like(labels).sum()))
            loss, hits, n = processes.total(sums).tolist()
            found |= {"loss": loss / n} if how == "none" else {}
            found[METRICS[how]] = 100 * hits / n
        return found

    def keep(self, folder: Path) -> None:
        """Writes the class names next to the model."""
        write_json(folder / "classes.json", {"classes": list(self.points.classes)})

    def _read(self, clouds: Clouds, how: Motion, draws: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
        """What the model reads of these sets."""
        points = (clouds.points - self._centre) / self.normalise[1]
        features = clouds.features if self.points.features else None
        return (
            moved(points, how, draws.to(self.device)),
            features,
            clouds.mask() if self.padded else None,
            clouds.labels,
        )
