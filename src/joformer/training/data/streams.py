"""Streams: long recordings and the events in them, from when to when which word is heard.

    recordings/  events.csv: file,start,end,label[,split]     seconds; CSV, TSV or JSON lines beside wav, flac, mp3, ogg
    any classified sounds                                     strung together: silence of 0.1 … 1 s between two of them,
                                                              each 0 … 6 dB softer than the loudest, in white noise

Both splits are spectrograms end to end, (time, bands), whose frames depend on their own samples alone
(`audio.stream_spectrogram`), with events in frames. Test recordings are others than those that train; where a table
names no test split, the last fifth of every recording tests.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from joformer._log import logger
from joformer._seeding import generator
from joformer.training.data import embedded as made
from joformer.training.data.audio import EMBEDDED, decode_sound, mel_filters, resampled, step_of, stream_spectrogram
from joformer.training.data.cache import cached_tensors
from joformer.training.data.examples import Split, identity, label_of, open_examples
from joformer.training.data.files import Fault, Place, content_hash, fault, read_example, require_inside
from joformer.training.data.sources import (
    END,
    FILE,
    SPLITS,
    START,
    SUFFIXES,
    Note,
    Source,
    log,
    pick_test,
    resolve,
    split_of,
    summary,
)
from joformer.training.data.tables import pick_column, read_rows

FORMAT = 1  # raise it when the same files are to give other tensors
GAP, SOFTER = (0.1, 1.0), 6.0  # seconds between two words, decibels
LONG = 20  # seconds of a stream that is made: it ends with the word that reaches them
OFTEN, MANY = 4, 12_000  # how often few clips are strung together, each time in another order
SLACK = 0.05  # seconds that an event may seem to end after its recording: times are rounded


@dataclass(frozen=True, eq=False)
class Recordings:
    """The recordings of one split, end to end.

    Attributes:
        pixels: Their spectrograms, ``(time, bands)``.
        ends: The frame after the last one of each, ``(n,)``.
        events: First frame, frame after the last, and class of each event, ``(events, 3)``, in order.
    """

    pixels: UInt8[Tensor, "time bands"]
    ends: Int64[Tensor, " n"]
    events: Int64[Tensor, "events 3"]

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> Int64[Tensor, " n"]:
        """The first frame of each recording."""
        return torch.cat((self.ends.new_zeros(1), self.ends[:-1]))


@dataclass(frozen=True, eq=False)
class Streams:
    """Both splits of streams, the class names of events, and a fingerprint of the data.

    Attributes:
        train: The training split.
        test: The held-out split.
        classes: The class names.
        frame: Seconds from one frame to the next.
        fingerprint: A hash over all of it.
    """

    train: Recordings
    test: Recordings
    classes: tuple[str, ...]
    frame: float
    fingerprint: str

    @property
    def bands(self) -> int:
        """The number of bands per frame."""
        return self.train.pixels.shape[1]

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the training pixels, in 0 … 1; exact, whatever the order of summation."""
        counts = torch.zeros(256, dtype=torch.int64)
        for some in self.train.pixels.split(1 << 18):
            counts += torch.bincount(some.flatten(), minlength=256)
        value, share = torch.arange(256, dtype=torch.float64) / 255, counts / counts.sum().double()
        mean = (share * value).sum()
        return mean.item(), (share * (value - mean).square()).sum().sqrt().item()


class Event(NamedTuple):
    """What a row of a table says: seconds, a class, and the row itself, for whoever has to correct it."""

    start: float
    end: float
    label: str
    where: str


def load_streams(
    source: Place | Source,
    *,
    label: str | None = None,
    keywords: Sequence[str] = (),
    rate: int = 8000,
    bands: int = 64,
    hop: int | float | None = None,
    noise: int | float = 20.0,
    cache: Place | None = None,
) -> Streams:
    """The streams of a source.

    Args:
        source: Recordings with a table of events, or classified sounds (a name, a path, what `resolve` returned), which
            are strung together.
        label: The column of the classes.
        keywords: The classes to listen for, all by default; other sounds occur but count as nothing.
        rate: Samples per second.
        bands: Number of frequency bands.
        hop: Milliseconds from one frame to the next; 16 by default.
        noise: Level of the white noise, in decibels below the words, if sounds are strung together.
        cache: Cache folder for spectrograms.

    Returns:
        Both splits.

    Raises:
        ValueError: If there is no such data, or its events make no sense.

    Example:
        >>> streams = load_streams("tones", bands=16)
        >>> streams.bands, streams.frame, len(streams.test.events), streams.classes[0]
        (16, 0.016, 300, 'pure-low')
    """
    mel_filters(rate, bands)
    settings = Settings(rate, bands, step_of(rate, hop))
    source = resolve(source, label=label)
    if source.kind not in ("sounds", "streams"):
        holds = f"{source.path or source.spec} holds {source.kind}"
        raise ValueError(f"{holds}: give sounds by class, or recordings with a table of events")

    def build(folder: Path) -> tuple[dict[str, Tensor], object]:
        splits, classes, notes = _made(source, settings, float(noise), folder)
        tensors = {f"{name}.{key}": value for name, part in splits.items() for key, value in vars(part).items()}
        return tensors, (classes, notes)

    parts: list[Any] = [FORMAT, repr((settings, source.label))]
    if source.kind == "streams":
        tables = _events(source, fault)
        files = [(name, Path(name)) for name in tables]
        parts += [*source.listing, *(part for name, path in files for part in (os.path.basename(name), path))]
    else:
        parts += [float(noise).hex(), str(label_of(source))]
        formulas = [Path(str(made.__file__)), Path(__file__)]  # they are kept as long as the formulas are these
        parts += [source.spec, *formulas] if source.spec in made.SOUNDS else [identity(source)]
    held, (classes, notes) = cached_tensors(f"streams-{content_hash(*parts)}", build, cache=cache)
    splits = {
        name: Recordings(**{key: held[f"{name}.{key}"] for key in ("pixels", "ends", "events")})
        for name in ("train", "test")
    }
    if keywords:
        splits, classes = _listening(splits, tuple(classes), keywords)
    log(_summary(source, settings, splits, classes, [(level, line) for level, line in notes]))
    tensors = [getattr(part, key).numpy().tobytes() for part in splits.values() for key in ("pixels", "ends", "events")]
    fingerprint = content_hash(*classes, repr(settings), *tensors)
    return Streams(splits["train"], splits["test"], tuple(classes), settings.step / rate, fingerprint)


def read_streams(source: Source, fault: Fault) -> tuple[Splits, list[Note]]:
    """Every event and every recording of both splits, coarsely, and what was understood of them."""
    with TemporaryDirectory() as folder:
        splits, classes, notes = _made(source, Settings(8000, 32, 128), 20.0, Path(folder), fault)
    return splits, _summary(source, Settings(8000, 32, 128), splits, classes, notes)


class Settings(NamedTuple):
    """What frames are: samples per second, bands, samples from one to the next."""

    rate: int
    bands: int
    step: int


Splits = dict[str, Recordings]


def _summary(
    source: Source, settings: Settings, splits: Splits, classes: Sequence[str], notes: Sequence[Note]
) -> list[Note]:
    minutes = {name: len(part.pixels) * settings.step / settings.rate / 60 for name, part in splits.items()}
    about = " and ".join(f"{minutes[name]:.1f} min ({name})" for name in splits)
    sizes = {name: len(part.events) for name, part in splits.items()}
    labels = splits["train"].events[:, 2]
    return summary(source.name, f"streams of {about}", sizes, "events", notes, classes=classes, labels=labels)


def _listening(splits: Splits, classes: tuple[str, ...], keywords: Sequence[str]) -> tuple[Splits, tuple[str, ...]]:
    """The same streams with these events alone."""
    unknown = [word for word in keywords if word not in classes]
    if unknown:
        raise ValueError(f"there is no keyword {unknown[0]!r}: choose from {', '.join(classes)} (--keywords)")
    kept = tuple(name for name in classes if name in keywords)
    number = torch.tensor([kept.index(name) if name in kept else -1 for name in classes])
    found = {}
    for name, part in splits.items():
        events = part.events.clone()
        events[:, 2] = number[events[:, 2]]
        found[name] = Recordings(part.pixels, part.ends, events[events[:, 2] >= 0])
    return found, kept


def _made(
    source: Source, settings: Settings, noise: float, folder: Path, fault: Fault = fault
) -> tuple[Splits, tuple[str, ...], list[Note]]:
    """Both splits, the classes, and what was decided on the way."""
    if source.kind == "streams":
        return _recorded(source, settings, fault)
    if not math.isfinite(noise):
        raise ValueError(f"noise is {noise}: give a number of decibels (--noise)")
    if source.spec in made.SOUNDS:
        if source.label is not None:
            raise ValueError(f"{source.spec} have only one kind of label: leave out label (--label)")
        sound, classes = made.SOUNDS[source.spec]
        found = {}
        for split, count in zip(("train", "test"), EMBEDDED, strict=True):
            waves, labels, spans = sound(count, split)
            cut = (spans * made.RATE).round().long().tolist()
            clips = [
                resampled(wave[first:last], made.RATE, settings.rate)
                for wave, (first, last) in zip(waves, cut, strict=True)
            ]
            found[split] = _strung(clips.__getitem__, labels, split, settings, noise)
        return found, classes, []
    with TemporaryDirectory(dir=folder, prefix=".arrow-") as rows:
        records = open_examples(source, Path(rows), fault)
        logger.info(f"stringing {len(records.train) + len(records.test):,} clips together (once)")
        found = {
            split: _strung(_reader(part, settings.rate), part.labels, split, settings, noise)
            for split, part in (("train", records.train), ("test", records.test))
        }
        return found, records.classes, list(records.notes)


def _reader(part: Split, rate: int) -> Callable[[int], Tensor]:
    def read(row: int) -> Tensor:
        wave, have, _ = decode_sound(part.read(row), part.name(row), LONG)
        return resampled(wave, have, rate)

    return read


def _strung(clip: Callable[[int], Tensor], labels: Tensor, split: str, settings: Settings, noise: float) -> Recordings:
    """Clips in a random order, of a random loudness, with silence between them, in noise; the same ones always."""
    often = min(OFTEN, 1 + MANY // max(len(labels), 1)) if split == "train" else 1
    recordings: list[tuple[Tensor, list[tuple[float, float, int]]]] = []
    for turn in range(often):
        draws = generator("streams", split, turn)
        order = torch.randperm(len(labels), generator=draws).tolist()
        uniform = torch.rand(len(labels), 2, generator=draws).tolist()
        pieces: list[Tensor] = []
        events: list[tuple[float, float, int]] = []
        at = 0
        for place, row in enumerate(order):
            wave = clip(row)
            gap = round((GAP[0] + (GAP[1] - GAP[0]) * uniform[place][0]) * settings.rate)
            loudness = wave.square().mean().sqrt().clamp_min(1e-6)
            pieces += [torch.zeros(gap), wave * (10 ** (-SOFTER * uniform[place][1] / 20) * 0.1 / loudness)]
            events.append(((at + gap) / settings.rate, (at + gap + len(wave)) / settings.rate, int(labels[row])))
            at += gap + len(wave)
            if at >= LONG * settings.rate or place + 1 == len(order):
                stream = torch.cat((*pieces, torch.zeros(round(GAP[1] * settings.rate))))
                stream += 0.1 * 10 ** (-noise / 20) * torch.randn(len(stream), generator=draws)
                recordings.append((stream_spectrogram(stream, *settings), events))
                pieces, events, at = [], [], 0
    return _joined(recordings, settings)


def _joined(recordings: Sequence[tuple[Tensor, list[tuple[float, float, int]]]], settings: Settings) -> Recordings:
    """Recordings end to end, their events in frames."""
    ends = torch.tensor([len(pixels) for pixels, _ in recordings]).cumsum(0)
    first, rows, per_second = 0, [], settings.rate / settings.step
    for pixels, events in recordings:
        for start, end, label in events:
            begin = min(round(start * per_second), len(pixels) - 1)
            rows.append((first + begin, first + min(max(round(end * per_second), begin + 1), len(pixels)), label))
        first += len(pixels)
    return Recordings(torch.cat([pixels for pixels, _ in recordings]), ends, torch.tensor(rows).view(-1, 3))


# -- tables of events --------------------------------------------------------------------------------------------------


def _recorded(source: Source, settings: Settings, fault: Fault) -> tuple[Splits, tuple[str, ...], list[Note]]:
    notes: list[Note] = []
    tables = _events(source, fault)
    aside = sum(str(file) not in tables for file in source.files if str(file).lower().endswith(SUFFIXES["streams"]))
    if aside and source.path is not None and source.path.is_dir():
        notes.append((logging.WARNING, f"{aside:,} recordings are in no table of events and left aside"))
    logger.info(f"reading {len(tables):,} recordings (once)")
    read: dict[str, list[tuple[Tensor, list[Event]]]] = {}
    for name, (split, events) in tables.items():
        try:
            wave, have, length = decode_sound(read_example(name), name)
            if len(wave) < 0.95 * length * have:  # less is an estimate of how long it is that was wrong
                most = len(wave) / have / 60
                raise ValueError(f"{name} is longer than the limit of {most:.0f} minutes: split it")
        except ValueError as error:
            fault(str(error))
            continue
        pixels = stream_spectrogram(resampled(wave, have, settings.rate), *settings)
        read.setdefault(split, []).append((pixels, _checked(events, name, length, fault)))
    test = pick_test(read, lambda name: True, notes)
    if "train" not in read:
        raise ValueError(f"{source.listing[0]} has no training events: name their split train, or leave it out")
    if test is None:
        notes.append((logging.INFO, "no test split: the last fifth of every recording is held out"))
        read["train"], read["test"] = _held_out(read["train"], settings)
    classes = sorted({event.label for _, events in read["train"] for event in events})
    numbers = {name: number for number, name in enumerate(classes)}
    found = {}
    for split, name in (("train", "train"), ("test", test or "test")):
        recordings = []
        for pixels, events in read[name]:
            for event in events:
                if event.label not in numbers:
                    fault(f"{event.where}: class {event.label!r} is unknown to the training split: add events of it")
            known = [(e.start, e.end, numbers[e.label]) for e in events if e.label in numbers]
            recordings.append((pixels, known))
        found[split] = _joined(recordings, settings)
        if not len(found[split].events):
            raise ValueError(f"{source.name} has no events for {split}: give more, or name the splits (split)")
    return found, tuple(classes), notes


def _events(source: Source, fault: Fault) -> dict[str, tuple[str, list[Event]]]:
    """Of every recording its split and its events, as the tables have them."""
    found: dict[str, tuple[str, list[Event]]] = {}
    for table in source.listing:
        within = os.path.realpath(table.parent)
        columns: tuple[str, ...] = ()
        for number, row in enumerate(read_rows(table, fault), 1):
            columns = columns or _columns(table, row, source.label)
            where = f"{table}, row {number}"
            path, start, end, label = ("" if row.get(name) is None else str(row[name]).strip() for name in columns)
            split = str(row.get("split") or split_of(path) or "train").lower()
            place, named = os.path.normpath(os.path.join(table.parent, path)), f"{columns[0]} names {path!r}"
            try:
                if not path or not label:
                    raise ValueError(f"{columns[3] if path else columns[0]} is missing: fill it or remove the row")
                if split not in SPLITS:
                    raise ValueError(f"split is {split!r}: name it one of {', '.join(SPLITS)}")
                if not require_inside(place, (within,), named).lower().endswith(SUFFIXES["streams"]):
                    raise ValueError(f"{named}, which is not a sound file: remove the row")
                if not os.path.isfile(place):
                    raise ValueError(f"{named}, which does not exist: correct it, or add the file")
                event = Event(*_times(start, end), label, where)
                before = found.setdefault(place, (split, []))
                if before[0] != split:
                    raise ValueError(f"{named} for {split}, an earlier row for {before[0]}: give one split each")
                before[1].append(event)
            except ValueError as error:
                fault(f"{where}: {error}")
    if not found:
        raise ValueError(f"{source.name} lists no events: give a table with the columns file, start, end and label")
    return found


def _columns(table: Path, row: dict[str, Any], label: str | None) -> tuple[str, ...]:
    found = [next((name for name in known if name in row), None) for known in (FILE, START, END)]
    if None in found:
        raise ValueError(
            f"{table} has the columns {', '.join(map(str, row))}: name the event columns file, start, end and label"
        )
    others = [name for name in row if name not in (*found, "split")]
    return (*map(str, found), pick_column(table, "label", label, others))


def _times(start: str, end: str) -> tuple[float, float]:
    try:
        first, last = float(start), float(end)
    except ValueError:
        raise ValueError(f"start is {start!r} and end {end!r}: write seconds, such as 1.25") from None
    if not (math.isfinite(first) and math.isfinite(last) and 0 <= first < last):
        raise ValueError(f"an event from {start} to {end} s: start must be 0 or more, and end after it")
    return first, last


def _checked(events: list[Event], name: str, length: float, fault: Fault) -> list[Event]:
    """The events of a recording in order, those that are inside of it and do not overlap."""
    kept: list[Event] = []
    for event in sorted(events):
        if event.end > length + SLACK:
            fault(f"{event.where}: the event ends at {event.end:g} s, {name} at {length:.2f}: correct it")
        elif kept and event.start < kept[-1].end - 1e-9:
            fault(f"{event.where}: the event overlaps the one at {kept[-1].where}: end one before the other begins")
        else:
            kept.append(event)
    return kept


def _held_out(
    recordings: Sequence[tuple[Tensor, list[Event]]], settings: Settings
) -> Iterator[list[tuple[Tensor, list[Event]]]]:
    """The first four fifths of every recording, and the rest; an event stays whole."""
    sides: tuple[list[tuple[Tensor, list[Event]]], ...] = ([], [])
    for pixels, events in recordings:
        per_second = settings.rate / settings.step
        cut = 0.8 * len(pixels) / per_second
        cut = max([cut, *(event.end for event in events if event.start < cut)])
        frame = min(math.ceil(cut * per_second), len(pixels))
        shift = frame / per_second
        late = [event for event in events if event.end > cut]
        sides[0].append((pixels[:frame], events[: len(events) - len(late)]))
        if frame < len(pixels):
            moved = [event._replace(start=max(event.start - shift, 0.0), end=event.end - shift) for event in late]
            sides[1].append((pixels[frame:], moved))
    yield from sides
