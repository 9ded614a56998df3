"""Labelled images, decoded once and resident: uint8 tensors that go to the device as they are.

    pixel p in 0 … 255, training split:   mean_c = E[p]/255,   std_c = √(E[p²] − E[p]²)/255      per channel, exact

Sources are those of `joformer.training.data.examples` and "digits", scikit-learn's 8 × 8 handwriting, which needs no
files. Grey images have one channel; where some of the data is in colour, all of it has three. What was decoded is kept
in the cache under a hash of the files it came from, and mapped from there. Paper: "Experiments", MNIST and CIFAR-100.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from joformer._log import counted, logger
from joformer.training.data.cache import cached_tensors
from joformer.training.data.examples import Records, Split, identity, label_of, open_examples
from joformer.training.data.files import Place, content_hash
from joformer.training.data.sources import Note, Source, log, resolve, summary
from joformer.training.data.streamed import ROTATED, centred, decode_image

FORMAT = 1  # raise it when the same files are to give other tensors


@dataclass(frozen=True)
class Labelled:
    """Images, or anything laid out like them, and the class of each.

    >>> split = Labelled(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    >>> len(split), split.to("meta").images.device.type
    (2, 'meta')
    """

    images: UInt8[Tensor, "n channels *shape"]
    labels: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Labelled:
        """A copy on another device."""
        return Labelled(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Images:
    """Both splits, the class names, and a hash of everything that could change a tensor.

    >>> split = Labelled(torch.full((2, 1, 8, 8), 51, dtype=torch.uint8), torch.tensor([0, 1]))
    >>> data = Images(split, split, ("a", "b"), "no hash")
    >>> data.mean, data.std, data.to("meta").train.images.device.type
    (tensor([0.2000], dtype=torch.float64), tensor([0.], dtype=torch.float64), 'meta')
    """

    train: Labelled
    test: Labelled
    classes: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int:
        return len(self.train)

    def to(self, device: torch.device | str) -> Images:
        """A copy on another device."""
        return Images(self.train.to(device), self.test.to(device), self.classes, self.fingerprint)

    @property
    def mean(self) -> Float64[Tensor, " channels"]:
        """Mean of every channel of the training images, pixels in [0, 1]; on the CPU."""
        return self._moments[0]

    @property
    def std(self) -> Float64[Tensor, " channels"]:
        """Standard deviation of every channel of the training images, pixels in [0, 1]; on the CPU."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        return moments(self.train.images)


def moments(
    images: UInt8[Tensor, "n channels *shape"],
) -> tuple[Float64[Tensor, " channels"], Float64[Tensor, " channels"]]:
    """Mean and standard deviation of every channel, pixels in [0, 1]; on the CPU.

    >>> moments(torch.full((2, 1, 8, 8), 51, dtype=torch.uint8))
    (tensor([0.2000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    # How often each of the 256 values occurs is exact in whole numbers, whatever the order of summation.
    counts = torch.zeros(images.shape[1], 256, dtype=torch.int64)
    for part in images.split(4096):
        for channel, values in enumerate(part.unbind(1)):
            counts[channel] += torch.bincount(values.flatten(), minlength=256).cpu()
    value = torch.arange(256, dtype=torch.float64)
    share = counts / counts.sum(1, keepdim=True).double()
    mean = share @ value
    return mean / 255, (share * (value - mean[:, None]).square()).sum(1).sqrt() / 255


class Made(NamedTuple):
    """What a source was made into: images and labels of both splits, the classes, and what was decided on the way.

    `mark` is part of the fingerprint, where the same files gave other tensors before.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    mark: str = ""


def load_images(
    source: Place | Source, *, label: str | None = None, size: int | None = None, cache: Place | None = None
) -> Images:
    """All images of a source, decoded: uint8 (n, channels, height, width), and int64 labels.

    Args:
        source: A name, a path, or what `resolve` returned.
        label: The class column, if a table has several; "label" or "fine_label" by default.
        size: Side length of the images: the shorter side is resized to it and the centre is cropped. Without it, all
            images must have the same size as the first.
        cache: Cache folder for tensors.

    Returns:
        Both splits.

    Example:
        >>> data = load_images("digits")
        >>> data.train.images.shape, len(data.test), data.classes[:3], data.train.images.max()
        (torch.Size([1438, 1, 8, 8]), 359, ('0', '1', '2'), tensor(255, dtype=torch.uint8))
    """
    if size is not None and size < 1:
        raise ValueError(f"size is {size}: give a whole number of pixels, 1 or more (--size)")
    source = resolve(source, kind="images", label=label)
    if source.spec == "digits":
        if source.label is not None or size is not None:
            raise ValueError("digits are 8 × 8 with only one kind of label: leave out label and size (--label, --size)")
        from joformer.training.data.embedded import digits

        return finished(source, Made(*digits()))

    return kept(source, "image", ("size", size), lambda records: decoded(records, size), cache=cache)


def decoded(records: Records, size: int | None) -> Made:
    """All images of both splits, in as many channels as each other."""
    train, test, classes, notes = records
    logger.info(f"decoding {len(train) + len(test):,} images (once)")
    converted: Counter[str] = Counter()
    split = [_decoded(part, size, converted) for part in (train, test)]
    sides = [f"{images.shape[3]} × {images.shape[2]}" for images in split]
    if sides[0] != sides[1]:
        raise ValueError(f"{test.name(0)} is {sides[1]}, {train.name(0)} is {sides[0]}: give a size (--size)")
    if split[0].shape[1] != split[1].shape[1]:
        split = [images.expand(-1, 3, -1, -1).contiguous() for images in split]
    for what, count in sorted(converted.items()):
        notes += ((logging.INFO, f"{counted(count, 'image')}: {what}"),)
    return Made((split[0], train.labels), (split[1], test.labels), classes, notes, ROTATED * (ROTATED in converted))


def kept(
    source: Source,
    word: str,
    settings: tuple[object, ...],
    make: Callable[[Records], Made],
    *,
    cache: Place | None,
    opened: Callable[[Source, Path], Records] = open_examples,
) -> Images:
    """What `make(records)` gives for a source, from the cache where it was made before.

    `settings` are all that the result depends on beside the source and the label; `opened` opens the source.
    """
    key = content_hash(FORMAT, word, identity(source), str(label_of(source)), str(settings))

    def build(folder: Path) -> Made:
        with TemporaryDirectory(dir=folder.parent, prefix=".arrow-") as rows:
            return make(opened(source, Path(rows)))

    made = stored(f"{source.kind}-{key}", build, cache=cache)
    return finished(source, made, content_hash(key, made.mark) if made.mark else key)


def stored(key: str, make: Callable[[Path], Made], *, cache: Place | None) -> Made:
    """What `make(folder)` gives, from the cache where it was made before under this key; the folder is for its use."""
    names = ("train.images", "train.labels", "test.images", "test.labels")

    def build(folder: Path) -> tuple[dict[str, Tensor], object]:
        made = make(folder)
        return dict(zip(names, made.train + made.test, strict=True)), made[2:]

    held, (classes, notes, mark) = cached_tensors(key, build, cache=cache)
    images, labels, test_images, test_labels = (held[name] for name in names)
    kept = tuple((level, line) for level, line in notes)
    return Made((images, labels), (test_images, test_labels), tuple(classes), kept, mark)


def finished(source: Source, made: Made, fingerprint: str = "") -> Images:
    """The images, with what was understood of them logged; by default the hash is over the tensors themselves.

    >>> split = torch.zeros(1, 1, 2, 2, dtype=torch.uint8), torch.tensor([0])
    >>> len(finished(resolve("digits"), Made(split, split, ("a",))).fingerprint)
    64
    """
    shape = " × ".join(map(str, made.train[0].shape[1:]))
    kind, sizes = f"{source.kind} as {shape} bytes", {"train": len(made.train[1]), "test": len(made.test[1])}
    log(summary(source.name, kind, sizes, "examples", made.notes, classes=made.classes, labels=made.train[1]))
    if not fingerprint:
        tensors = [tensor.numpy().tobytes() for tensor in made.train + made.test]
        fingerprint = content_hash(*made.classes, *tensors)
    return Images(Labelled(*made.train), Labelled(*made.test), made.classes, fingerprint)


def _decoded(records: Split, size: int | None, converted: Counter[str]) -> UInt8[Tensor, "n channels height width"]:
    import numpy as np

    images = None
    for row in range(len(records)):
        image = decode_image(records.read(row), records.name(row), converted)
        if size is not None:
            image = centred(image, size, size)
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        if images is None:
            require_memory(len(records) * 3 * pixels[0].size)
            images = np.empty((len(records), *pixels.shape), dtype=np.uint8)
        if pixels.shape[1:] != images.shape[2:]:
            this, first = f"{image.width} × {image.height}", f"{images.shape[3]} × {images.shape[2]}"
            raise ValueError(f"{records.name(row)} is {this}, {records.name(0)} is {first}: give a size (--size)")
        if len(pixels) > images.shape[1]:  # the first in colour after grey ones
            images = np.repeat(images, 3, axis=1)
        images[row] = pixels
    return torch.from_numpy(images)


def require_memory(size: int) -> None:
    """Raises ValueError if so many bytes of pixels do not fit into memory.

    >>> require_memory(10**18)
    Traceback (most recent call last):
    ValueError: 1000000000 GB of pixels do not fit into memory: give a smaller size (--size), or stream them (--stream)
    """
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    if size > memory:
        many = f"{size / 1e9:.0f} GB of pixels"
        raise ValueError(f"{many} do not fit into memory: give a smaller size (--size), or stream them (--stream)")
