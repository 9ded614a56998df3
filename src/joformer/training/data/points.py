"""Sets of points in space: coordinates, what else is known of each point, and the class of every set.

    FILE.npz        points (n, p, axes), or (all points, axes) and offsets (n + 1); labels (n,): numbers or names
                    features like points, split (n,): train or test, classes: the names of labels 0, 1, …, if you like
    a folder        train.npz and test.npz; or a folder per class of .npy and .xyz files, rows of numbers
    images          so many pixels of each, drawn in proportion to their ink, at a random place within the pixel

Sets may differ in size: they are padded, and `counts` says how many points are real.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float32, Int64
from torch import Tensor

from joformer._io import allowed
from joformer._seeding import generator
from joformer.training.data.arrays import read_array, read_arrays
from joformer.training.data.embedded import clouds
from joformer.training.data.examples import hold_out, open_examples
from joformer.training.data.files import FREE, RATIO, Fault, Place, content_hash, fault, suffix_of
from joformer.training.data.images import Images, load_images
from joformer.training.data.sources import SPLITS, TESTS, Note, Source, log, pick_test, resolve, split_of, summary

SAMPLED = 64
"""Points of an image, unless said otherwise."""
FAR = 1e5
"""So many times as far from the origin as a set is wide, float32 leaves less than two digits of its shape."""
_COMMA = rb"([+-]?\d+,\d+(?:[eE][+-]?\d+)?)"
DECIMAL_COMMA = re.compile(rb"(?:^|[ \t])" + _COMMA + rb"[ \t]+\S|\S[ \t]+" + _COMMA + rb"[ \t\r]*$", re.M)
"""One comma in a number that stands between spaces: no one can know whether it divides two."""


@dataclass(frozen=True)
class Clouds:
    """Sets of points of one split.

    Attributes:
        points: Coordinates, ``(n, most, axes)``; 0 where there is no point.
        counts: How many points each set has, ``(n,)``.
        labels: The class of each.
        features: What else is known of each point, ``(n, most, features)``; of width 0 where that is nothing.

    Example:
        >>> some = Clouds(torch.zeros(2, 3, 2), torch.tensor([3, 1]), torch.tensor([0, 1]), torch.zeros(2, 3, 0))
        >>> some.mask().int().tolist(), len(some)
        ([[1, 1, 1], [1, 0, 0]], 2)
    """

    points: Float32[Tensor, "n most axes"]
    counts: Int64[Tensor, " n"]
    labels: Int64[Tensor, " n"]
    features: Float32[Tensor, "n most features"]

    def __len__(self) -> int:
        return len(self.labels)

    def mask(self) -> Bool[Tensor, "n most"]:
        """True for real points."""
        return torch.arange(self.points.shape[1], device=self.counts.device) < self.counts.unsqueeze(1)

    def take(self, rows: Int64[Tensor, " m"]) -> Clouds:
        """The sets of these numbers, in this order."""
        return Clouds(self.points[rows], self.counts[rows], self.labels[rows], self.features[rows])

    def to(self, device: torch.device | str) -> Clouds:
        """A copy on another device."""
        return Clouds(*(one.to(device) for one in (self.points, self.counts, self.labels, self.features)))


@dataclass(frozen=True)
class Points:
    """Both splits, the class names, and a hash of everything that could change a tensor.

    Attributes:
        train: The training split.
        test: The held-out split.
        classes: The class names.
        fingerprint: A hash of the content.
        centre: Mean of all training points, one number per axis.
        radius: Root mean square distance of training points from the centroid of their set.
    """

    train: Clouds
    test: Clouds
    classes: tuple[str, ...]
    fingerprint: str
    centre: tuple[float, ...] = field(init=False)
    radius: float = field(init=False)

    def __post_init__(self) -> None:
        sums, squares, count = torch.zeros(self.axes, dtype=torch.float64), 0.0, 0
        for rows in torch.arange(len(self.train)).split(4096):
            some = self.train.take(rows)
            real, exact = some.mask().unsqueeze(-1), some.points.double()
            centroids = (exact * real).sum(1) / some.counts.unsqueeze(1)
            sums += (exact * real).sum((0, 1)).cpu()
            squares += float(((exact - centroids.unsqueeze(1)).square() * real).sum())
            count += int(some.counts.sum())
        object.__setattr__(self, "centre", tuple((sums / count).tolist()))
        object.__setattr__(self, "radius", (squares / count) ** 0.5 or 1.0)

    def __len__(self) -> int:
        return len(self.train)

    @property
    def axes(self) -> int:
        """The number of coordinates per point."""
        return self.train.points.shape[-1]

    @property
    def features(self) -> int:
        """The number of features per point."""
        return self.train.features.shape[-1]


class _Set(NamedTuple):
    """One set as it was read."""

    points: Tensor
    features: Tensor
    label: str
    split: str
    name: str = ""


def load_points(
    source: Place | Source, *, points: int | None = None, axes: int | None = None, ink: bool = False
) -> Points:
    """Sets of points from a file or a folder, or sampled from the pixels of images.

    Args:
        source: A .npz file or a folder of them, a folder per class of .npy and .xyz files, images of any kind that
            `load_images` reads; "clouds" (embedded, eight surfaces in 3-D), "digits", "mnist"; or what `resolve`
            returned.
        points: Maximum number of points per set, drawn once; for images, how many are sampled, 64 by default.
        axes: How many columns of a .npy or .xyz file are coordinates, the first ones; by default three, or all if there
            are fewer. The others are features.
        ink: Images: give each point its pixel's value as features.

    Returns:
        Both splits.

    Raises:
        ValueError: If a file is none of these, or a set has no points or coordinates that are not finite.

    Example:
        >>> data = load_points("digits", points=32)
        >>> data.train.points.shape, data.classes[-1], load_points("clouds").axes
        (torch.Size([1438, 32, 2]), '9', 3)
    """
    found, notes = read_points(resolve(source), points=points, axes=axes, ink=ink)
    log(notes)
    return found


def read_points(
    source: Source,
    *,
    points: int | None = None,
    axes: int | None = None,
    ink: bool = False,
    fault: Fault = fault,
) -> tuple[Points, list[Note]]:
    """The sets, and what was understood of them."""
    if points is not None and points < 1:
        raise ValueError(f"points is {points}: give how many points of a set are used, 1 or more (--points)")
    if source.kind == "images":
        if axes is not None:
            raise ValueError("pixels always have a row and a column: leave out axes (--axes)")
        return _of_images(load_images(source), source, points or SAMPLED, ink)
    if source.kind != "points":
        raise ValueError(f"{source.name} holds {source.kind}, not points: give other data")
    if ink:
        raise ValueError(f"{source.name} has no pixels: leave out ink (--ink)")
    notes: list[Note] = []
    classes: tuple[str, ...] = ()
    if source.spec == "clouds":
        made, classes = clouds()
        sets = [_Set(where, where[:, :0], classes[label], split) for where, label, split in made]
    elif all(suffix_of(file) == ".npz" for file in source.files):
        sets, classes = _of_arrays(source, fault)
    else:
        sets, classes = _of_files(source, axes, fault, notes)
    sets = [one for number, one in enumerate(sets) if _is_sound(one, number, source.name, fault)]
    found = _finished(source, sets, classes, points, notes, fault)
    sizes = {"train": len(found.train), "test": len(found.test)}
    least, most = (int(getattr(torch.cat((found.train.counts, found.test.counts)), end)()) for end in ("min", "max"))
    many = f"{most}" if least == most else f"{least} to {most}"
    about = f"sets of {many} points on {found.axes} axes" + f", {found.features} features" * bool(found.features)
    return found, summary(source.name, about, sizes, "sets", notes, classes=found.classes, labels=found.train.labels)


def _of_images(images: Images, source: Source, count: int, ink: bool) -> tuple[Points, list[Note]]:
    """`count` pixels of every image in proportion to their ink, each at a random place within itself."""
    dark = float(images.mean.mean()) > 0.5  # on a light ground
    split = {}
    for name, part in (("train", images.train), ("test", images.test)):
        draws, (height, width) = generator("points", name, count), part.images.shape[2:]
        where = torch.empty(len(part), count, 2)
        channels = part.images.shape[1] if ink else 0
        held = torch.empty(len(part), count, channels)
        for rows in torch.arange(len(part)).split(4096):
            pixels = part.images[rows].flatten(2)
            weights = pixels.sum(1).long()
            weights = 255 * part.images.shape[1] - weights if dark else weights
            weights[weights.sum(1) == 0] = 1  # a blank image is a set of any pixels
            total = weights.cumsum(1)
            # In whole numbers, so that the same pixels are drawn on every machine.
            drawn = (torch.rand(len(rows), count, generator=draws, dtype=torch.float64) * total[:, -1:]).long()
            at = torch.searchsorted(total, drawn, right=True)
            within = torch.rand(len(rows), count, 2, generator=draws)
            where[rows] = 2 * (torch.stack((at // width, at % width), -1) + within) / max(height, width) - 1
            if ink:
                held[rows] = pixels.gather(2, at.unsqueeze(1).expand(-1, channels, -1)).mT / 255
        split[name] = Clouds(where, torch.full((len(part),), count), part.labels, held)
    key = content_hash("points", images.fingerprint, count, int(ink))
    about = [(logging.INFO, f"  {count} points of each, drawn by {'darkness' if dark else 'brightness'}")]
    return Points(**split, classes=images.classes, fingerprint=key), about


def _of_arrays(source: Source, fault: Fault) -> tuple[list[_Set], tuple[str, ...]]:
    """The sets of .npz files; what they say of each other is checked here."""
    sets: list[_Set] = []
    names: tuple[str, ...] = ()
    for file in source.files:
        assert source.path is not None
        own = split_of(file.relative_to(source.path) if source.path.is_dir() else file.name) or "train"
        try:
            found, classes = _of_npz(file, own)
        except ValueError as error:
            fault(str(error))
            continue
        if sets and names != classes:
            raise ValueError(f"{file} has classes that differ from the previous file's: give all files the same")
        names = classes
        sets += found
    return sets, names


def _of_npz(file: Path, own: str) -> tuple[list[_Set], tuple[str, ...]]:
    import numpy as np

    arrays = read_arrays(file)
    if missing := [name for name in ("points", "labels") if name not in arrays]:
        have = ", ".join(arrays) or "nothing"
        raise ValueError(f"{file} holds {have}, but no {missing[0]}: save points (n, p, axes) and labels (n,)")
    points, labels, features = arrays["points"], arrays["labels"], arrays.get("features")
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise ValueError(f"{file}: labels are {labels.dtype} {labels.shape}: give one whole number or name per set")
    for name, array in (("points", points), ("features", features)):
        if array is not None and array.dtype.kind == "U":
            raise ValueError(f"{file}: {name} are text: give numbers")
    wanted = 2 if "offsets" in arrays else 3
    if points.ndim != wanted or not points.shape[-1]:
        shape = "(all points, axes) with offsets" if wanted == 2 else "(n, p, axes), or rows of them and offsets"
        raise ValueError(f"{file}: points are {points.shape}: give {shape}")
    if features is not None and features.shape[:-1] != points.shape[:-1]:
        raise ValueError(f"{file}: features are {features.shape}, points {points.shape}: all but the last must agree")
    if wanted == 2:
        ends = arrays["offsets"]
        ordered = ends.ndim == 1 and ends.dtype.kind in "iu" and len(ends) > 0
        if not ordered or ends[0] != 0 or ends[-1] != len(points) or (ends[1:] < ends[:-1]).any():
            raise ValueError(f"{file}: offsets must rise from 0 to the number of points, {len(points):,}")
        ends = ends.astype(np.int64)
    else:
        ends = np.arange(len(points) + 1) * points.shape[1]
        points = points.reshape(-1, points.shape[2])
        features = None if features is None else features.reshape(len(points), -1)
    if len(labels) != len(ends) - 1:
        raise ValueError(f"{file} has {len(labels):,} labels for {len(ends) - 1:,} sets: give one per set")
    classes = tuple(map(str, arrays["classes"].tolist())) if "classes" in arrays else ()
    if len({*classes}) < len(classes):
        raise ValueError(f"{file}: classes has a name twice: give each class a name of its own")
    if classes and (labels.dtype.kind == "U" or (len(labels) and not 0 <= labels.min() <= labels.max() < len(classes))):
        raise ValueError(f"{file}: labels must be whole numbers 0 … {len(classes) - 1}, because the file has classes")
    splits = _splits(file, arrays.get("split"), own, len(labels))
    where = _as_float32(points)
    more = where[:, :0] if features is None else _as_float32(features)
    sizes = np.diff(ends).tolist()
    said = [classes[label] if classes else str(label) for label in labels.tolist()]
    pieces = zip(where.split(sizes), more.split(sizes), said, splits, strict=True)
    return [_Set(*piece) for piece in pieces], classes


def _splits(file: Path, given: Any, own: str, count: int) -> list[str]:
    if given is None:
        return [own] * count
    names = [str(name).lower() for name in given.ravel().tolist()]
    if len(names) != count or (odd := sorted({*names} - SPLITS.keys())):
        what = f"has {len(names):,} entries for {count:,} sets" if len(names) != count else f"names {odd[0]!r}"
        raise ValueError(f"{file}: split {what}: give one of {', '.join(SPLITS)} per set")
    return names


def _of_files(source: Source, axes: int | None, fault: Fault, notes: list[Note]) -> tuple[list[_Set], tuple[str, ...]]:
    """The sets of a folder of class folders, one file each."""
    sets = []
    with TemporaryDirectory() as folder:
        records = open_examples(source, Path(folder), fault)
        notes += records.notes
        for split, part in (("train", records.train), ("test", records.test)):
            for index in range(len(part)):
                name = part.name(index)
                try:
                    rows = _rows(part.read(index), name)
                except ValueError as error:
                    fault(str(error))
                    continue
                own = min(3, rows.shape[1]) if axes is None else axes
                if not 1 <= own <= rows.shape[1]:
                    raise ValueError(f"{name} has rows of {rows.shape[1]} numbers, not of {own} or more (--axes)")
                label = records.classes[int(part.labels[index])]
                sets.append(_Set(rows[:, :own], rows[:, own:], label, split, name))
    return sets, records.classes


def _rows(data: bytes, name: str) -> Tensor:
    """Rows of numbers: those of a .npy file, or of text."""
    import numpy as np

    if suffix_of(name) == ".npy":
        array = read_array(data, name)
        if array.ndim != 2 or not array.shape[1] or array.dtype.kind == "U":
            raise ValueError(f"{name} is {array.dtype} {array.shape}: save a row of numbers per point")
    else:
        data = data.removeprefix(codecs.BOM_UTF8)
        if found := DECIMAL_COMMA.search(data):
            number = (found[1] or found[2]).decode()
            raise ValueError(f"{name} has {number} between spaces: write decimals with a point, or commas throughout")
        lines = [line.replace(b",", b" ").split() for line in data.splitlines() if line.strip()]
        try:
            array = np.array([[float(word) for word in line] for line in lines])
        except ValueError:
            raise ValueError(f"{name} is not text with the same count of numbers on every line: write x y z") from None
        if not array.size:
            raise ValueError(f"{name} has no points: remove it")
    return _as_float32(array)


def _as_float32(array: Any) -> Tensor:
    import numpy as np

    with np.errstate(over="ignore"):  # what is infinite then is reported with its set
        return torch.from_numpy(array.astype(np.float32))


def _is_sound(one: _Set, number: int, name: str, fault: Fault) -> bool:
    """Whether a set has points, all of them somewhere."""
    where = one.name or f"{name}: set {number} ({one.label})"
    if not len(one.points):
        fault(f"{where} has no points: remove it")
    elif not (one.points.isfinite().all() and one.features.isfinite().all()):
        what = "coordinates or features that are not finite in float32"
        fault(f"{where} has {what}: correct them")
    else:
        return True
    return False


def _finished(
    source: Source, sets: Sequence[_Set], classes: tuple[str, ...], most: int | None, notes: list[Note], fault: Fault
) -> Points:
    """Both splits, padded; classes in order, as numbers where they are."""
    widths = {(one.points.shape[1], one.features.shape[1]) for one in sets}
    if len(widths) > 1:
        (axes, more), (other, others) = sorted(widths)[:2]
        raise ValueError(
            f"{source.name} has points of {axes} coordinates and {more} features, others with {other} and {others}"
        )
    present = {one.label for one in sets}
    if len(present) < 2:
        only = f"one class, {next(iter(present))!r}" if present else "no sets"
        raise ValueError(f"{source.name} holds {only}: there must be two or more")
    names = classes or tuple(
        sorted(present, key=lambda name: (not name.isdecimal(), len(name) * name.isdecimal(), name))
    )
    numbers = {name: number for number, name in enumerate(names)}
    split = pick_test({one.split for one in sets}, lambda name: True, notes)
    if {one.split for one in sets} <= {*TESTS}:
        raise ValueError(f"{source.name} has no training sets: name the training split train")
    made, labels = _padded(source.name, sets, most), torch.tensor([numbers[one.label] for one in sets])
    whole = Clouds(made[0], made[1], labels, made[2])
    rows = {name: torch.tensor([at for at, one in enumerate(sets) if one.split == name]) for name in ("train", split)}
    train, test = rows["train"].long(), None if split is None else rows[split].long()
    if test is None:
        kept, held = hold_out(labels[train])
        notes.append(
            (logging.INFO, f"no test split: {len(held):,} of {len(train):,} sets are held out, the same ones always")
        )
        train, test = train[kept], train[held]
    unseen = sorted({*labels[test].tolist()} - {*labels[train].tolist()})
    if unseen:
        fault(f"{source.name}: class {names[unseen[0]]!r} occurs in the test split only: add sets of it to train")
    tensors = [tensor.numpy().tobytes() for part in (train, test) for tensor in vars(whole.take(part)).values()]
    found = Points(whole.take(train), whole.take(test), names, content_hash("points", *names, *tensors))
    if max(map(abs, found.centre)) > FAR * found.radius:
        far = "lie so far from the origin that float32 rounds their shape: subtract an origin"
        notes.append((logging.WARNING, f"the points {far}"))
    return found


def _padded(name: str, sets: Sequence[_Set], most: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """All sets in one tensor, each cut to `most` points; counts, and features."""
    counts = torch.tensor([min(len(one.points), most or len(one.points)) for one in sets])
    longest, width = int(counts.max()), sets[0].points.shape[1] + sets[0].features.shape[1]
    size, plain = 4 * len(sets) * longest * width, 4 * int(counts.sum()) * width
    if size > allowed(FREE + RATIO * plain):
        many = f"sets of {int(counts.min()):,} to {longest:,} points would be padded to {size:,} bytes"
        raise ValueError(f"{name}: {many}: limit the points per set (--points)")
    where = torch.zeros(len(sets), longest, sets[0].points.shape[1])
    more = torch.zeros(len(sets), longest, sets[0].features.shape[1])
    draws = generator("points", "chosen")
    for row, (one, count) in enumerate(zip(sets, counts.tolist(), strict=True)):
        chosen: Tensor | slice = slice(None)
        if count < len(one.points):
            chosen = torch.randperm(len(one.points), generator=draws)[:count].sort().values
        where[row, :count], more[row, :count] = one.points[chosen], one.features[chosen]
    return where, counts, more
