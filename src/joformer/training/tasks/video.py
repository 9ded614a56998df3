"""Video: which class a clip is, or its next picture.

    class    cross-entropy, accuracy: as images have it
    next     loss  mean of (prediction − pixel)² over pictures 1 … T − 1, pixels in 0 … 1
             picture_error  Σ over the pixels of a picture of the same, mean over the later half of the pictures of all
             held-out clips: the unit of Moving MNIST, where "MSE" is such a sum; copy_error is that of repeating the
             picture before

A picture is predicted from all true pictures before it, one step ahead. (Published figures of Moving MNIST are mostly
of ten steps, each from the predictions before: they are another task.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._seeding import generator
from joformer.training.augment.clips import ClipAugment
from joformer.training.data import Clips
from joformer.training.data.moving import Question
from joformer.training.processes import Processes
from joformer.training.tasks.images import ImageTask
from joformer.training.tasks.parts import rounds, share


class VideoTask(ImageTask):
    """Clips, and a question about them; evaluated on all of clips.test.

    `question` is "next" or "class"; `augment` reverses and shifts training clips, and their classes accordingly
    (`Clips.mirrored`). The model reads normalised pixels and predicts them in 0 … 1.

    >>> from joformer.training import load_clips
    >>> task = VideoTask(load_clips("moving", count=40), batch=8)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=1, parts=2)]
    [torch.Size([4, 1, 16, 16, 6]), torch.Size([4])]
    """

    images: Clips

    def __init__(
        self,
        clips: Clips,
        *,
        question: Question = "next",
        batch: int = 32,
        augment: ClipAugment | None = None,
        normalise: Sequence[Sequence[float]] | None = None,
    ) -> None:
        if question == "class" and not clips.classes:
            raise ValueError("the clips have no classes: load them with question='class', or use question='next'")
        super().__init__(clips, batch=batch, normalise=normalise)
        self.question, self.changes = question, augment

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        augment = None if self.changes is None else self.changes.describe()
        return {"question": self.question, **super().describe(), "augment": augment}

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the clips, or the batch cannot be divided."""
        asked = getattr(config, "question", self.question)
        if asked != self.question:
            raise ValueError(f"the model answers question={asked!r}, the task asks {self.question!r}: choose one")
        super().check(config, mine, parts)

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """This part of the step's clips and their classes, on the device."""
        clips, labels = self._drawn(seed, step, part, parts)
        if self.changes is not None:
            plan = self.changes.plan(self.size, generator(seed, "augment", step))[share(self.size, part, parts)]
            clips, labels = self.changes(
                clips, labels, plan, self.images.mirrored if self.question == "class" else None
            )
        return self._plain(clips), labels

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of the batch."""
        if self.question == "class":
            return super().loss(model, batch)
        clips, _ = batch
        return F.mse_loss(model(clips)[..., :-1].float(), self._pixels(clips)[..., 1:])

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """The metrics of the question, over the whole test split."""
        if self.question == "class":
            return super().evaluate(model, processes)
        test = self.images.test.images
        later = max(1, test.shape[-1] // 2)
        sums = torch.zeros(4, dtype=torch.float64, device=self._mean.device)
        for some, weight in rounds(torch.arange(len(test)), max(self.size // self.parts, 16), processes):
            clips = self._plain(test[some])
            pixels, ahead = self._pixels(clips), model(clips)[..., :-1].float()
            off = (ahead - pixels[..., 1:]).square().double()
            copied = (pixels[..., 1:] - pixels[..., :-1])[..., later - 1 :].square().double()
            many = off.new_tensor(len(some))
            sums += weight * torch.stack((off.mean() * many, off[..., later - 1 :].sum(), copied.sum(), many))
        loss, error, copy, n = processes.total(sums).tolist()
        pictures = n * (test.shape[-1] - later)
        return {"loss": loss / n, "picture_error": error / pictures, "copy_error": copy / pictures}

    def keep(self, folder: Path) -> None:
        """Writes the class names next to the model, if there are any."""
        if self.question == "class":
            super().keep(folder)

    def _pixels(self, clips: Tensor) -> Tensor:
        """Normalised pixels as they were, in 0 … 1."""
        return clips * self._scale + self._mean
