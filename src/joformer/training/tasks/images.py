"""Images, and spectrograms: which class.

loss  cross-entropy, with soft targets where samples are mixed      top-1 and top-5 accuracy in percent
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._io import write_json
from joformer._seeding import generator, seed_of
from joformer.training.augment import Augment, Mix
from joformer.training.data import Images, Streamed
from joformer.training.processes import Processes
from joformer.training.tasks.parts import divides, epoch_order, rounds, share
from joformer.training.tasks.task import Task
from joformer.training.transfer import to_device


class ImageTask(Task):
    """Images and their classes; evaluated on all of images.test.

    `Images` are resident on the device as uint8 and batches are drawn there; `Streamed` ones are decoded by workers, a
    few batches ahead. `augment` and `mix` apply in training; without `augment`, images are only normalised, by their
    own mean and standard deviation (ImageNet's if they are streamed) or by `normalise`. `draw`: "epochs" goes
    through all images in a new order each time, "randint" samples with replacement. `cells` gives (batch, *shape)
    numbers in 0 … 1 instead of (batch, channels, *shape): what `MonoidalClassifier` reads.

    >>> from joformer.training import load_images
    >>> task = ImageTask(load_images("digits"), batch=32)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=1, parts=2)]
    [torch.Size([16, 1, 8, 8]), torch.Size([16])]
    """

    def __init__(
        self,
        images: Images | Streamed,
        *,
        batch: int = 128,
        augment: Augment | None = None,
        mix: Mix | None = None,
        draw: Literal["epochs", "randint"] = "epochs",
        normalise: Sequence[Sequence[float]] | None = None,
        cells: bool = False,
    ) -> None:
        channels, axes, plain = 3, 2, augment or Augment.imagenet()
        if isinstance(images, Images):
            channels, axes = images.train.images.shape[1], images.train.images.dim() - 2
        if batch < 1:
            raise ValueError(f"batch must be 1 image or more, got {batch}")
        if cells and (channels != 1 or augment is not None or mix is not None):
            raise ValueError(f"a monoidal embedding reads one channel, unaugmented, not {channels} or augmented ones")
        if augment is not None and len(augment.mean) != channels:
            raise ValueError(f"augment has means for {len(augment.mean)} channels, the images have {channels}")
        self.images, self.size, self.augment, self.mix = images, batch, augment, mix
        self.draw, self.cells, self.classes = draw, cells, len(images.classes)
        if normalise is None:
            own = images if augment is None and isinstance(images, Images) else plain
            normalise = tuple(own.mean), tuple(own.std)
        self.normalise = tuple(tuple(float(value) for value in values) for values in normalise)
        self._mean, self._scale = (torch.tensor(values).view(-1, *[1] * axes) for values in self.normalise)
        self.parts = 1
        self._mine: Sequence[int] = (0,)
        self._flow: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._next: tuple[int, ...] = ()

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        return {
            "images": self.images.fingerprint,
            "batch": self.size,
            "augment": None if self.augment is None else self.augment.describe(),
            "mix": None if self.mix is None else asdict(self.mix),
            "draw": self.draw,
            "normalise": self.normalise,
            "cells": self.cells,
        }

    def to(self, device: torch.device) -> None:
        """Moves resident data to the device."""
        if isinstance(self.images, Images):
            self.images = self.images.to(device)
        self._mean, self._scale = self._mean.to(device), self._scale.to(device)

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the data, or the batch cannot be divided."""
        divides(self.size, parts)
        self.parts = parts
        ours, known, reads = not isinstance(config, nn.Module), getattr(config, "classes", 0), len(self.normalise[0])
        if ours and known < self.classes:
            known = known or "none"
            raise ValueError(
                f"the images have {self.classes} classes, the model has {known}: set classes={self.classes}"
            )
        if ours and getattr(config, "channels", 1) != reads:
            raise ValueError(f"the images have {reads} channels, the model reads {getattr(config, 'channels', 1)}")
        if self.mix is not None and (self.size // parts) % 2:
            raise ValueError(f"samples are mixed in pairs: {self.size} / {parts} samples per part must be even")
        self._mine, self._next = mine, ()

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """This part of the step's batch, on the device."""
        mine = share(self.size, part, parts)
        images, labels = self._drawn(seed, step, part, parts)
        random = generator(seed, "augment", step)
        if self.augment is None:
            images = self._plain(images)
        else:
            images = self.augment(images, self.augment.plan(self.size, random)[mine])
        if self.mix is None:
            return images, labels
        return self.mix(images, labels, self.mix.plan(self.size, random)[mine], classes=self.classes)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of the batch."""
        images, targets = batch
        return F.cross_entropy(model(images).float(), targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """Loss and accuracies over the whole test split."""
        best = min(5, self.classes)
        sums = torch.zeros(4, dtype=torch.float64, device=self._mean.device)
        shares = list(rounds(torch.arange(len(self.images.test)), max(self.size // self.parts, 64), processes))
        for (images, labels), (_, weight) in zip(self._tests([some for some, _ in shares]), shares, strict=True):
            logits = model(self._plain(images)).float()
            hits = logits.topk(best, -1).indices == labels[:, None]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            one = hits.new_full((), len(labels), dtype=torch.int64)
            sums += weight * torch.stack((loss, hits[:, 0].sum(), hits.sum(), one))
        loss, first, five, n = processes.total(sums).tolist()
        return {"loss": loss / n, "accuracy": 100 * first / n, f"top_{best}": 100 * five / n}

    def held_out(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Test images as a model reads them, and their classes: those with the indices `which`, (count,)."""
        ((images, labels),) = self._tests([which])
        return self._plain(images), labels

    def close(self) -> None:
        """Stops background workers."""
        self._flow, self._next = iter(()), ()  # the loader's workers end with it

    def keep(self, folder: Path) -> None:
        """Writes the files next to the model that are needed to use it."""
        write_json(folder / "classes.json", {"classes": list(self.images.classes)})

    def _plain(self, images: Tensor) -> Tensor:
        return images[:, 0] / 255 if self.cells else (images / 255 - self._mean) / self._scale

    def _tests(self, rounds: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        test, device = self.images.test, self._mean.device
        if isinstance(test, Streamed):
            yield from test.batches(([(int(index), 0) for index in some] for some in rounds), device)
        else:
            yield from ((test.images[some], test.labels[some]) for some in rounds)

    def _drawn(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """The images of this part as they are, and their labels."""
        if not isinstance(self.images, Images):
            return self._streamed(seed, step, part, parts)
        chosen = to_device(self._chosen(seed, step)[share(self.size, part, parts)], self._mean.device)
        return self.images.train.images[chosen], self.images.train.labels[chosen]

    def _streamed(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """The part as the workers have it ready; requested out of turn, they start again there."""
        assert isinstance(self.images, Streamed)
        device = self._mean.device
        if part not in self._mine:  # this process goes through other parts: that one alone
            return next(self.images.batches([self._crops(seed, step, part, parts)], device))
        at = self._mine.index(part)
        if self._next != (seed, step, part, parts):
            self._flow = self.images.batches(self._from(seed, step, at, parts), device)
        last = at + 1 == len(self._mine)
        self._next = (seed, step + last, self._mine[0 if last else at + 1], parts)
        return next(self._flow)

    def _crops(self, seed: int, step: int, part: int, parts: int) -> list[tuple[int, int]]:
        chosen, places = self._chosen(seed, step), range(self.size)[share(self.size, part, parts)]
        return [(int(chosen[place]), seed_of(seed, "crop", step, place)) for place in places]

    def _from(self, seed: int, step: int, at: int, parts: int) -> Iterator[list[tuple[int, int]]]:
        while True:
            for part in self._mine[at:]:
                yield self._crops(seed, step, part, parts)
            step, at = step + 1, 0

    def _chosen(self, seed: int, step: int) -> Tensor:
        """Which images the step takes; all of them, whatever part is requested."""
        count = len(self.images)
        if self.draw == "randint":
            return torch.randint(count, (self.size,), generator=generator(seed, "batch", step))
        return epoch_order(count, self.size, seed, step)
