"""Keyword spotting in a stream: which word has just been said.

    target     class c at times that end within `tolerance` of the end of an event of c, before or after; else nothing
    loss       cross-entropy at each time
    firing     the first of consecutive times with the same answer c ≠ nothing
    event F1   2 · hits / (firings + events), in percent; a hit is a firing of c, one per event, between the start of an
               event of c and `tolerance` after its end. All else that fires is a false alarm

The share of times with the right answer is reported beside it, and is high for a model that never fires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._io import write_json
from joformer._seeding import generator
from joformer.training.data.streams import Recordings, Streams
from joformer.training.processes import Processes
from joformer.training.tasks.parts import divides, rounds, share
from joformer.training.tasks.task import Task

CHUNK = 1024  # times of a recording that are heard at once in evaluation
TOGETHER = 16  # recordings


class SpottingTask(Task):
    """Random pieces of streams.train; evaluated on all of streams.test, in order.

    `seconds` is the length of a piece, `patch` the frames per time step, as in the model's configuration, `tolerance`
    that of the module's docstring in seconds, `normalise` mean and standard deviation of the pixels, by default those
    of the data.

    >>> from joformer.training import load_streams
    >>> task = SpottingTask(load_streams("tones", bands=16), batch=4, seconds=2.0)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=1, parts=2)][:2]
    [torch.Size([2, 124, 16]), torch.Size([2, 31])]
    """

    def __init__(
        self,
        streams: Streams,
        *,
        batch: int = 16,
        seconds: int | float = 8.0,
        patch: int = 4,
        tolerance: int | float = 0.2,
        normalise: Sequence[float] | None = None,
    ) -> None:
        if batch < 1 or patch < 1:
            raise ValueError(f"batch and patch must be 1 or more, got {batch} and {patch}")
        if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(tolerance) and tolerance >= 0):
            raise ValueError(f"seconds must be above 0 and tolerance 0 or more, got {seconds} and {tolerance}")
        self.streams, self.size, self.patch = streams, batch, patch
        self.seconds, self.tolerance = float(seconds), float(tolerance)
        self.times = max(1, math.floor(seconds / (streams.frame * patch)))
        self.normalise = tuple(map(float, normalise or streams.moments))
        self.answers = {"train": self._answers(streams.train), "test": self._answers(streams.test)}
        lengths = streams.train.ends - streams.train.starts
        # At how many places of each recording a piece may begin.
        self._places = (lengths - self.times * patch + 1).clamp_min(1).cumsum(0)

    @property
    def nothing(self) -> int:
        """The class for no word."""
        return len(self.streams.classes)

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        return {
            "streams": self.streams.fingerprint,
            "batch": self.size,
            "seconds": self.seconds,
            "patch": self.patch,
            "tolerance": self.tolerance,
            "normalise": self.normalise,
        }

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the data, or the batch cannot be divided."""
        divides(self.size, parts)
        if isinstance(config, nn.Module):
            return
        count, known, bands = len(self.streams.classes), getattr(config, "classes", 0), getattr(config, "bands", 0)
        if known < count:
            raise ValueError(f"the streams have {count} classes, the model has {known or 'none'}: set classes={count}")
        if bands != self.streams.bands or config.patch[-1] != self.patch:
            got = f"{bands} bands, {config.patch[-1] if bands else 'no'} frames per patch"
            raise ValueError(
                f"the streams have {self.streams.bands} bands, {self.patch} frames per patch; the model has {got}"
            )

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor, Tensor]:
        """This part of the step's pieces, and the target at each time, −100 if ignored; on the device.

        The last number is how many targets of the whole step count, divided by `parts`.
        """
        mine, train, length = share(self.size, part, parts), self.streams.train, self.times * self.patch
        drawn = torch.rand(self.size, dtype=torch.float64, generator=generator(seed, "batch", step))
        place = (drawn * self._places[-1]).long()
        which = torch.searchsorted(self._places, place, right=True)
        start = place - torch.where(which > 0, self._places[which - 1], 0) + train.starts[which]
        frames = start[:, None] + torch.arange(length)
        inside = frames < train.ends[which, None]
        frames = torch.where(inside, frames, 0)
        pixels = train.pixels[frames[mine]] * inside[mine][..., None]
        # A time is answered where its last frame is heard, and the word from its beginning on.
        final = frames[:, self.patch - 1 :: self.patch]
        answer, begun = self.answers["train"][:, final]
        heard = inside[:, self.patch - 1 :: self.patch] & (begun >= start[:, None])
        counted = heard & (answer != -100)
        asked = torch.where(heard, answer, -100)[mine].to(self.device)
        return self._plain(pixels), asked, (counted.sum() / parts).to(self.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss over the times that count: the mean over the parts of a step is that of the step."""
        pieces, answers, count = batch
        logits = model(pieces).float().flatten(0, 1)
        return F.cross_entropy(logits, answers.flatten(), ignore_index=-100, reduction="sum") / count.clamp_min(1)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """F1, precision and recall of events, the accuracy per time step, and the loss."""
        test, frame, patch = self.streams.test, self.streams.frame, self.patch
        starts, lengths = test.starts, (test.ends - test.starts) // patch * patch
        sums = torch.zeros(6, dtype=torch.float64)
        for some, weight in rounds(lengths.argsort(stable=True), TOGETHER, processes):
            # Sharded models work together, and need as many pieces in every process.
            longest = int((lengths if processes.teams > 1 else lengths[some]).max())
            frames = starts[some, None] + torch.arange(longest)
            inside = torch.arange(longest) < lengths[some, None]
            logits = self.listen(model, test.pixels[torch.where(inside, frames, 0)] * inside[..., None]).cpu()
            given = logits.argmax(-1)
            for row, recording in enumerate(some.tolist()):
                first, times = int(starts[recording]), int(lengths[recording]) // patch
                truth = self.answers["test"][0, first + patch - 1 : first + times * patch : patch]
                within = (test.events[:, 0] >= first) & (test.events[:, 0] < test.ends[recording])
                events = test.events[within] - test.events.new_tensor([first, first, 0])
                fired = firings(given[row, :times], self.nothing)
                late = round(self.tolerance / frame)
                at = torch.stack(((fired[:, 0] + 1) * patch, fired[:, 1]), 1)
                found = hits(at, events + events.new_tensor([0, late, 0]))
                loss = F.cross_entropy(logits[row, :times].float(), truth, reduction="sum")
                right = (given[row, :times] == truth).sum()
                sums += weight * torch.tensor([found, len(fired), len(events), right, times, loss], dtype=torch.float64)
        found, fired, asked, right, times, loss = processes.total(sums.to(self.device)).tolist()
        return {
            "loss": loss / max(times, 1),
            "event_f1": 200 * found / max(fired + asked, 1),
            "precision": 100 * found / max(fired, 1),
            "recall": 100 * found / max(asked, 1),
            "frame_accuracy": 100 * right / max(times, 1),
        }

    @torch.no_grad()
    def listen(self, model: nn.Module, pixels: Tensor) -> Tensor:
        """Logits of whole streams of pixels ``(batch, frames, bands)``, processed piece by piece.

        Returns:
            ``(batch, times, classes + 1)``.
        """
        caches = getattr(model, "module", model).caches()  # type: ignore[operator]
        pieces = pixels[:, : pixels.shape[1] // self.patch * self.patch].split(CHUNK * self.patch, 1)
        return torch.cat([model(self._plain(piece), caches=caches) for piece in pieces], 1)

    def keep(self, folder: Path) -> None:
        """Writes the files next to the model that are needed to use it."""
        about = {"frame": self.streams.frame, "normalise": self.normalise, "tolerance": self.tolerance}
        write_json(folder / "classes.json", {"classes": list(self.streams.classes), **about})

    def _plain(self, pixels: Tensor) -> Tensor:
        mean, scale = self.normalise
        return (pixels.to(self.device) / 255 - mean) / (scale or 1.0)

    def _answers(self, part: Recordings) -> Int64[Tensor, "2 time"]:
        """For a time that ends with this frame: the answer, and the frame at which the word began."""
        near = round(self.tolerance / self.streams.frame)
        answers = torch.stack((torch.full((len(part.pixels),), self.nothing), torch.arange(len(part.pixels))))
        ends = part.ends[torch.searchsorted(part.ends, part.events[:, 0].contiguous(), right=True)]
        for (start, end, label), final in zip(part.events.tolist(), ends.tolist(), strict=True):
            some = slice(max(start, end - 1 - near), min(end + near, final))
            answers[0, some], answers[1, some] = label, start
        return answers


def firings(answers: Int64[Tensor, " times"], nothing: int) -> Int64[Tensor, "_firings 2"]:
    """When something fires, and what: the first of consecutive times with the same answer.

    >>> firings(torch.tensor([9, 3, 3, 9, 3, 4]), 9).tolist()
    [[1, 3], [4, 3], [5, 4]]
    """
    before = torch.cat((answers.new_full((1,), nothing), answers[:-1]))
    at = ((answers != before) & (answers != nothing)).nonzero()[:, 0]
    return torch.stack((at, answers[at]), 1)


def hits(fired: Int64[Tensor, "_firings 2"], events: Int64[Tensor, "_events 3"]) -> int:
    """How many events of (first, last, class) have a firing (when, class) of their own, first ≤ when ≤ last.

    Each firing takes the event that ends first among those that are open: no other choice finds more.

    >>> hits(torch.tensor([[5, 0], [6, 0], [7, 1]]), torch.tensor([[4, 8, 0], [6, 9, 2]]))
    1
    """
    open_, found = sorted(events.tolist(), key=lambda event: event[1]), 0
    for when, label in sorted(fired.tolist()):
        mine = next((event for event in open_ if event[2] == label and event[0] <= when <= event[1]), None)
        if mine is not None:
            open_.remove(mine)
            found += 1
    return found
