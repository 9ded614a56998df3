"""`joformer check`: every fault in the data at once, before training on it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from joformer._log import Progress, counted
from joformer.cli.console import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from joformer.training import Source
    from joformer.training.data.files import Fault
    from joformer.training.data.sources import Note

Seen = dict[bytes, tuple[str, str]]  # content hash → split and name


@dataclass(frozen=True)
class Check:
    """List every fault in your data at once, each with its remedy, and how the data would be read.

    The exit code is 0 if there are no faults, otherwise 2. Example: joformer check photos --size 224

    Attributes:
        data: The same as --data of the other commands: a file, a folder, or a name.
        label: The class column, if a table has several. For sounds: folder or name, if both could be the class.
        column: The text column of a table.
        size: Scale and crop all images to this side length, as in training: their own sizes may then differ.
        kind: What the data is, if it is ambiguous: source code and JSON are text unless this is trees.
        json: Print {summary, faults} as JSON instead of lines.
    """

    data: Annotated[str, tyro.conf.Positional]
    label: str | None = None
    column: str | None = None
    size: int | None = None
    kind: Literal["text", "images", "sounds", "graph", "trees"] | None = None
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer.training import resolve

        faults: list[str] = []
        notes: list[Note] = []
        try:
            source = resolve(self.data, kind=self.kind, label=self.label, column=self.column)
            check = _CHECKS.get(source.kind, check_examples)
            notes = check(source, self.size, faults.append)
        except ValueError as error:  # fatal: nothing is left to check
            faults.append(str(error))
        lines = [line for _, line in notes]
        if self.json:
            say(json.dumps({"summary": lines, "faults": faults}, indent=2), lines=True)
        else:
            for line in [*lines, *faults, counted(len(faults), "fault") if faults else "no faults"]:
                say(line)
        return 2 if faults else 0


def check_examples(source: Source, size: int | None, fault: Fault) -> list[Note]:
    """Decodes every example of both splits; returns the summary."""
    from joformer.training import load_clips, load_labelled
    from joformer.training.data.audio import decode_sound
    from joformer.training.data.clips import SIZE, decode_clip, has_classes, open_clips
    from joformer.training.data.examples import open_examples
    from joformer.training.data.hub import is_hub
    from joformer.training.data.pairs import load_pairs, open_pairs
    from joformer.training.data.sources import summary
    from joformer.training.data.streamed import decode_image

    if source.path is None and not is_hub(source.spec):
        # It logs its summary; there are no faults.
        load: Any = {"video": load_clips, "pairs": load_pairs}.get(source.kind, load_labelled)
        load(source)
        return []
    shapes: dict[str, list[str]] = {}
    seen: Seen = {}
    with TemporaryDirectory() as folder:
        video = source.kind == "video"
        opened = open_pairs if source.kind == "pairs" else open_examples
        opened = open_clips if video and not has_classes(source) else opened
        records = opened(source, Path(folder), fault)
        splits = {"train": records.train, "test": records.test}
        sizes = {split: len(part) for split, part in splits.items()}
        every = ((split, part, index) for split, part in splits.items() for index in range(len(part)))
        with Progress("checking", sum(sizes.values()), unit="files") as progress:
            for split, part, index in every:
                progress.advance()
                name = part.name(index)
                try:
                    data = part.read(index)
                    if video:
                        shape = f"{len(decode_clip(data, name, size or SIZE)):,} pictures"
                    elif source.kind == "sounds":
                        shape = f"{decode_sound(data, name)[1]:,} samples per second"
                    else:
                        shape = "{} × {}".format(*decode_image(data, name).size)
                except ValueError as error:
                    fault(str(error))
                    continue
                shapes.setdefault(shape, []).append(name)
                _check_unseen(seen, hashlib.sha256(data).digest(), split, name, fault)
    usual = sorted(shapes, key=lambda shape: -len(shapes[shape]))
    for shape in usual[1:] if source.kind in ("images", "pairs") and size is None else ():
        first, count = shapes[shape][0], len(shapes[shape])
        fault(f"{count:,} images are {shape}, not {usual[0]}, such as {first}: give --size, such as 224")
    kind = f"{source.kind} of {', '.join(usual[:3]) or 'nothing'}{' and others' * (len(usual) > 3)}"
    if source.kind == "pairs":
        return summary(source.name, kind.replace("pairs", "images with text", 1), sizes, "pairs", records.notes)
    classes, labels = records.classes, records.train.labels
    return summary(source.name, kind, sizes, "examples", records.notes, classes=classes, labels=labels)


def check_text(source: Source, _: int | None, fault: Fault) -> list[Note]:
    """Reads every document of every split; returns the summary."""
    from joformer.training.data.documents import open_text, stream
    from joformer.training.data.sources import summary

    documents = open_text(source, fault)
    sizes: dict[str, int] = {}
    seen: Seen = {}
    for split in [name for name in ("train", "valid", "test") if name in documents.parts]:
        sizes[split] = 0
        for name, chunks in documents.parts[split]():
            digest, before = hashlib.sha256(), sizes[split]
            try:
                for chunk in stream([(name, chunks)]):
                    digest.update(chunk)
                    sizes[split] += len(chunk)
            except ValueError as error:
                fault(str(error))
                continue
            if sizes[split] > before:
                _check_unseen(seen, digest.digest(), split, name, fault)
        if not sizes[split]:
            fault(f"{source.name} holds no text for {split}: give a file that does")
    return summary(source.name, "text", sizes, "bytes", notes=documents.notes)


def check_graph(source: Source, _: int | None, fault: Fault) -> list[Note]:
    """Reads every triple of every split; returns the summary."""
    from joformer.training.data.graphs import read_graph

    return read_graph(source, fault)[1]


def check_points(source: Source, _: int | None, fault: Fault) -> list[Note]:
    """Reads every set of both splits; returns the summary."""
    import torch

    from joformer.training.data.points import read_points

    found, notes = read_points(source, fault=fault)
    train, test = (
        [torch.cat((part.points, part.features), -1)[row, : part.counts[row]] for row in range(len(part))]
        for part in (found.train, found.test)
    )
    _check_apart("sets", train, test, fault)
    return notes


def check_recordings(source: Source, _: int | None, fault: Fault) -> list[Note]:
    """Reads every recording and every event of both splits; returns the summary."""
    from joformer.training.data.streams import read_streams

    splits, notes = read_streams(source, fault)
    train, test = (
        [part.pixels[start:end] for start, end in zip(part.starts, part.ends, strict=True)]
        for part in (splits["train"], splits["test"])
    )
    _check_apart("recordings", train, test, fault)
    return notes


def check_trees(source: Source, _: int | None, fault: Fault) -> list[Note]:
    """Parses every file; returns the summary."""
    from joformer.training.data import trees

    return trees.check_trees(source, fault)


_CHECKS = {
    "text": check_text,
    "graph": check_graph,
    "points": check_points,
    "streams": check_recordings,
    "trees": check_trees,
}


def _check_apart(word: str, train: Iterable[Tensor], test: Iterable[Tensor], fault: Fault) -> None:
    """Reports how much of the test split occurs in the training split."""
    known = {one.numpy().tobytes() for one in train}
    if count := sum(one.numpy().tobytes() in known for one in test):
        fault(f"{count:,} {word} of the test split are also in the training split: take them out of one of them")


def _check_unseen(seen: Seen, digest: bytes, split: str, name: str, fault: Fault) -> None:
    """Reports an example or document that occurs in two splits."""
    where, other = seen.setdefault(digest, (split, name))
    if where != split:
        fault(f"{name} ({split}) is the same as {other} ({where}): take one of them out")
