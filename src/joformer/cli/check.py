"""`joformer check`: every fault of data at once, before anything is trained on it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from joformer._log import Progress
from joformer.cli.console import say

if TYPE_CHECKING:
    from joformer.training import Source
    from joformer.training.data.sources import Note


@dataclass(frozen=True)
class Check:
    """List every fault of your data at once, each with its remedy, and what would be understood of it.

    Exits with 0 if there is none, else with 2. Example: joformer check photos --size 224

    Attributes:
        data: What --data of the other commands takes: a file, a folder, or a name.
        label: The column of the classes, if a table has several; folder or name, if both could be the class of
            sounds.
        column: The column of a table that holds the text.
        size: Scale and crop all images to this side, as in training: their own sizes may then differ.
        json: Print {summary, faults} as JSON instead of lines.
    """

    data: Annotated[str, tyro.conf.Positional]
    label: str | None = None
    column: str | None = None
    size: int | None = None
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer.training import resolve

        faults: list[str] = []
        notes: list[Note] = []
        try:
            source = resolve(self.data, label=self.label, column=self.column)
            notes = check_text(source, faults.append) if source.kind == "text" else self._examples(source, faults)
        except ValueError as error:  # what leaves nothing to go on with
            faults.append(str(error))
        lines = [line for _, line in notes]
        if self.json:
            say(json.dumps({"summary": lines, "faults": faults}, indent=2), lines=True)
        else:
            for line in [*lines, *faults, f"{len(faults):,} fault{'s' * (len(faults) > 1)}" if faults else "no faults"]:
                say(line)
        return 2 if faults else 0

    def _examples(self, source: Source, faults: list[str]) -> list[Note]:
        from joformer.training import load_labelled
        from joformer.training.data.examples import open_examples
        from joformer.training.data.hub import is_hub
        from joformer.training.data.sources import summary

        if source.path is None and not is_hub(source.spec):
            load_labelled(source)  # which logs its summary; what is embedded has no faults
            return []
        with TemporaryDirectory() as folder:
            records = open_examples(source, Path(folder), faults.append)
            kind = check_examples(records, source.kind, self.size, faults.append)
        sizes = {"train": len(records.train), "test": len(records.test)}
        counts = records.train.labels.bincount(minlength=len(records.classes)).tolist()
        return summary(source.name, kind, sizes, "examples", records.classes, counts, records.notes)


def check_examples(records: Any, kind: str, size: int | None, fault: Callable[[str], None]) -> str:
    """Decodes every example of both splits; returns what they are, such as "images of 32 × 32"."""
    from joformer.training.data.audio import decode_sound
    from joformer.training.data.streamed import decode_image

    shapes: Counter[str] = Counter()
    seen: dict[bytes, tuple[str, str]] = {}
    first: dict[str, str] = {}
    with Progress("checking", len(records.train) + len(records.test), unit="files") as progress:
        for split, part in (("train", records.train), ("test", records.test)):
            for index in range(len(part)):
                progress.advance()
                name = part.name(index)
                try:
                    data = part.read(index)
                    if kind == "sounds":
                        _, rate, _ = decode_sound(data, name)
                        shape = f"{rate:,} samples per second"
                    else:
                        shape = "{} × {}".format(*decode_image(data, name).size)
                except ValueError as error:
                    fault(str(error))
                    continue
                shapes[shape] += 1
                first.setdefault(shape, name)
                where, other = seen.setdefault(hashlib.sha256(data).digest(), (split, name))
                if where != split:
                    fault(f"{name} ({split}) is the same as {other} ({where}): take one of them out")
    usual = shapes.most_common()
    if kind == "images" and size is None and len(usual) > 1:
        for shape, count in usual[1:]:
            fault(f"{count:,} images are {shape}, not {usual[0][0]}, such as {first[shape]}: give --size, such as 224")
    return f"{kind} of {', '.join(shape for shape, _ in usual[:3]) or 'nothing'}{' and others' * (len(usual) > 3)}"


def check_text(source: Source, fault: Callable[[str], None]) -> list[Note]:
    """Reads every document of every split; returns the summary."""
    from joformer.training.data.documents import Part, open_text
    from joformer.training.data.sources import summary

    documents = open_text(source, fault)
    sizes: dict[str, int] = {}
    seen: dict[bytes, tuple[str, str]] = {}
    for split in [name for name in ("train", "valid", "test") if name in documents.parts]:
        sizes[split] = 0
        for name, chunks in documents.parts[split].documents():
            digest, before = hashlib.sha256(), sizes[split]
            try:
                for chunk in Part(lambda one=(name, chunks): iter([one])).stream():  # type: ignore[misc]
                    digest.update(chunk)
                    sizes[split] += len(chunk)
            except ValueError as error:
                fault(str(error))
                continue
            where, other = seen.setdefault(digest.digest(), (split, name))
            if where != split and sizes[split] > before:
                fault(f"{name} ({split}) is the same as {other} ({where}): take one of them out")
        if not sizes[split]:
            fault(f"{source.name} holds no text for {split}: give a file that does")
    return summary(source.name, "text", sizes, "bytes", notes=documents.notes)
