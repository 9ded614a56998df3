"""Images that need not fit into memory, decoded by worker processes.

a batch of [(i, s), …]  =  [crop(decode(i), s), …]      whatever the number of workers, among whom each batch is divided
crop: area A·U(0.08, 1), ratio exp(U(ln 3/4, ln 4/3)), corner uniform, all from s alone; scaled to size × size
evaluation: the shorter side scaled to size·256/224, the central size × size
"""

from __future__ import annotations

import copy
import io
import logging
import math
import os
import signal
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Literal

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from joformer._io import LIMITS, allowed, cache_folder, one_line, usable_cores
from joformer.training.data.examples import Split, identity, label_of, open_examples
from joformer.training.data.files import Place, content_hash
from joformer.training.data.sources import Source, log, resolve, summary
from joformer.training.transfer import to_device

# Only these are tried: PIL knows formats that start other programs. Guessing first halves the time of small images.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
MAGIC = {b"\x89PNG": "PNG", b"\xff\xd8": "JPEG", b"RIFF": "WEBP"}
ROTATED = "rotated as EXIF says"
CHUNK = 32  # images that a worker decodes at a time: all of them work on the batch that is needed next
PIXELS = 89_478_485  # from which on PIL suspects a bomb: 270 MB in colour


def decode_image(data: bytes, name: str, converted: Counter[str] | None = None) -> Any:
    """The PIL image of these bytes, grey ("L") or "RGB": upright, palettes as colours, no alpha, 16 bits as 8.

    Args:
        data: The encoded image.
        name: How errors call it.
        converted: Counts what was done to images.

    Example:
        >>> decode_image(b"GIF", "a.gif")
        Traceback (most recent call last):
        ValueError: a.gif cannot be decoded as an image (cannot identify it): repair it or remove it
    """
    from PIL import Image, ImageOps

    try:
        likely = next((name for start, name in MAGIC.items() if data.startswith(start)), None)
        with bounded(Image):
            image: Image.Image = Image.open(io.BytesIO(data), formats=(likely,) if likely else FORMATS)
            packing = str(image.tile)
            image.load()  # after which tiles are gone, and EXIF at the end of a file is known
        done = _conversions(image, packing)
        if ROTATED in done:
            image = ImageOps.exif_transpose(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(name, error) from None
    except Exception as error:  # decoders raise whatever they like
        reason = "cannot identify it" if isinstance(error, Image.UnidentifiedImageError) else one_line(error)
        raise ValueError(f"{name} cannot be decoded as an image ({reason}): repair it or remove it") from None
    if converted is not None:
        converted.update(done)
    if image.mode.startswith("I;16"):
        import numpy as np

        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"{name} has pixels of 32 bits (mode {image.mode}): save it with 8 bits per channel")
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # first: a palette may hold transparency
    return image.convert("L" if image.mode in ("1", "L", "LA", "La") else "RGB")


def too_large(name: str, error: Exception) -> ValueError:
    """What an image beyond `PIXELS` raises: one line that says how to allow it.

    >>> too_large("a.png", ValueError("many pixels"))
    ValueError('a.png is too large (many pixels): if you trust it, set JOFORMER_LIMITS=10 to allow ten times as much')
    """
    remedy = f"if you trust it, set {LIMITS}=10 to allow ten times as much"
    return ValueError(f"{name} is too large ({one_line(error)}): {remedy}")


def _conversions(image: Any, packing: str) -> list[str]:
    """What has to be done to an image, in words; Pillow opens colours of 16 bits as 8, only their packing tells."""
    mode, rotated = image.mode, False
    with suppress(Exception), warnings.catch_warnings():  # EXIF that is damaged says nothing
        warnings.simplefilter("ignore")
        rotated = image.format != "TIFF" and image.getexif().get(0x0112) in range(2, 9)  # PIL itself rotates TIFF
    done = {
        ROTATED: rotated,
        "16 bits reduced to 8": mode.startswith("I;16") or ";16" in packing,
        "palette to colours": mode in ("P", "PA"),
        "alpha dropped": mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info,
        f"{mode} to RGB": mode in ("CMYK", "YCbCr", "LAB", "HSV"),
        "first picture of several taken": getattr(image, "is_animated", False),
    }
    return [what for what, needed in done.items() if needed]


@contextmanager
def bounded(pil: Any) -> Iterator[None]:
    """Images of more pixels than are allowed raise; PIL itself would only warn up to twice its limit."""
    before = pil.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("error", pil.DecompressionBombWarning)
        pil.MAX_IMAGE_PIXELS = allowed(PIXELS)
        try:
            yield
        finally:
            pil.MAX_IMAGE_PIXELS = before


def centred(image: Any, shorter: int | float, size: int) -> Any:
    """The shorter side scaled to `shorter`, then the central size × size; one bicubic step makes no more than that.

    >>> from PIL import Image
    >>> centred(Image.new("L", (500, 375)), 256, 224).size
    (224, 224)
    """
    from PIL import Image

    if image.size == (size, size) and shorter == size:
        return image
    width, height = image.size
    half = min(width, height) * size / shorter / 2
    box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def random_box(width: int, height: int, seed: int) -> tuple[int, int, int, int]:
    """(left, upper, right, lower) of the random crop of the module's head, a function of its arguments alone.

    >>> random_box(500, 375, seed=1) == random_box(500, 375, seed=1)
    True
    """
    draws = torch.rand(10, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
    for scale, shape, across, down in draws:
        area, ratio = width * height * (0.08 + 0.92 * scale), math.exp((2 * shape - 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(across * (width - w + 1)), int(down * (height - h + 1))
            return left, upper, left + w, upper + h
    # Ten crops did not fit: a long thin image gives its middle, at the nearest ratio allowed.
    w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


class Streamed:
    """Labelled images that do not have to fit into memory: `len`, `labels`, `classes`, and `batches` of uint8.

    The object itself is the training split; `.test` is the other one, which is never cropped at random. `workers` is
    the number of decoding processes: by default one per core, 0 for none.

    >>> from tempfile import TemporaryDirectory
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> with TemporaryDirectory() as folder:
    ...     for number, name in enumerate(["cat", "dog"] * 10):
    ...         Path(folder, name).mkdir(exist_ok=True)
    ...         Image.new("RGB", (40, 30), (number, 0, 0)).save(Path(folder, name, f"{number}.png"))
    ...     data = Streamed(folder, size=16)
    ...     images, labels = next(data.batches([[(0, 7), (17, 8)]]))
    >>> data.classes, len(data), len(data.test), images.shape, labels.tolist()
    (('cat', 'dog'), 18, 2, torch.Size([2, 3, 16, 16]), [0, 1])
    """

    def __init__(
        self,
        source: Place | Source,
        *,
        size: int = 224,
        train_crop: Literal["resized", "centre"] = "resized",
        workers: int | None = None,
        label: str | None = None,
        cache: Place | None = None,
    ) -> None:
        if workers is None:
            workers = max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        if size < 1 or workers < 0:
            raise ValueError(f"size is {size} and workers {workers}: give a size of 1 or more, workers 0 or more")
        if train_crop not in ("resized", "centre"):
            raise ValueError(f"train_crop is {train_crop!r}: give 'resized' or 'centre'")
        source = resolve(source, kind="images", label=label)
        key = identity(source, read=False)
        opened = open_examples(source, cache_folder(cache) / f"arrow-{key}")
        self.size, self.workers, self.crop = size, workers, train_crop
        self.classes, self.records = opened.classes, opened.train
        self.fingerprint = content_hash("streamed", key, str(label_of(source)), size, train_crop)
        looked_at, converted = _look(opened.train, opened.test)
        if ROTATED in converted:
            self.fingerprint = content_hash(self.fingerprint, ROTATED)
        self.test = copy.copy(self)
        self.test.records, self.test.crop = opened.test, "centre"
        notes = [*opened.notes, (logging.INFO, f"decoded while training, to {size} × {size}")]
        for what, count in sorted(converted.items()):
            notes.append((logging.INFO, f"{count:,} of {looked_at:,} images that were checked: {what}"))
        sizes = {"train": len(self), "test": len(self.test)}
        log(summary(source.name, "images", sizes, "images", notes, classes=self.classes, labels=self.labels))

    def __len__(self) -> int:
        return len(self.records)

    @property
    def labels(self) -> Int64[Tensor, " n"]:
        """The class of every image."""
        return self.records.labels

    def image(self, index: int, seed: int) -> Any:
        """The PIL image that a model gets: decoded, RGB, cropped by the seed or to the centre, size × size."""
        from PIL import Image

        if not 0 <= index < len(self):
            raise ValueError(f"there is no image {index}: choose 0 to {len(self) - 1}")
        image = decode_image(self.records.read(index), self.records.name(index)).convert("RGB")
        if self.crop == "centre":
            return centred(image, self.size * 256 / 224, self.size)
        box = random_box(image.width, image.height, seed)
        return image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box)

    def batches(
        self, order: Iterable[list[tuple[int, int]]], device: torch.device | None = None
    ) -> Iterator[tuple[UInt8[Tensor, "n 3 size size"], Int64[Tensor, " n"]]]:
        """A batch of images and labels for every list of (index, seed), in order; `order` is read a few lists ahead.

        Where a `device` is given they are on it, by copies from pinned memory that nothing waits for.
        """
        from torch.utils.data import DataLoader

        device, counts = device or torch.device("cpu"), deque[int]()

        def chunks() -> Iterator[list[tuple[int, int]]]:
            for pairs in order:
                counts.append(max(1, -(-len(pairs) // CHUNK)))
                yield from (pairs[at : at + CHUNK] for at in range(0, counts[-1] * CHUNK, CHUNK))

        # Its own generator: without one, starting to iterate draws from torch's global random generator.
        settings: Any = {"num_workers": self.workers, "worker_init_fn": _undisturbed, "generator": torch.Generator()}
        decoding: Any = _Decoding(self)
        flow = iter(DataLoader(decoding, None, sampler=chunks(), pin_memory=device.type == "cuda", **settings))
        try:
            for first in flow:
                parts = [first, *islice(flow, counts.popleft() - 1)]
                if wrong := next((part for part in parts if isinstance(part, str)), None):
                    raise ValueError(wrong)
                there = [tuple(to_device(t, device) for t in part) for part in parts]
                images, labels = there[0] if len(there) == 1 else (torch.cat(both) for both in zip(*there, strict=True))
                yield images, labels
        finally:
            del flow  # which ends its workers: the traceback of an error would keep them


def _look(*splits: Split, most: int = 1000) -> tuple[int, Counter[str]]:
    """How many images of each split were looked at, and what will have to be done to them; damaged ones are passed."""
    from PIL import Image

    converted: Counter[str] = Counter()
    some = [(split, index) for split in splits for index in range(0, len(split), -(-len(split) // most))]
    for split, index in some:
        with suppress(Exception), bounded(Image):
            image: Any = Image.open(io.BytesIO(split.read(index)), formats=FORMATS)
            converted.update(_conversions(image, str(image.tile)))
    return len(some), converted


class _Decoding:
    """What a worker runs. An error comes back as its text: the loader would wrap it in the worker's traceback."""

    def __init__(self, streamed: Streamed) -> None:
        self.streamed = streamed

    def __getitem__(self, pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor] | str:
        import numpy as np

        size = self.streamed.size
        pixels = np.empty((len(pairs), size, size, 3), dtype=np.uint8)
        try:
            for row, (index, seed) in enumerate(pairs):
                pixels[row] = self.streamed.image(index, seed)
        except ValueError as error:
            return str(error)
        labels = self.streamed.labels[[index for index, _ in pairs]]
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def _undisturbed(worker: int) -> None:
    """Ctrl-C and SIGTERM reach the whole group; the run has yet to save, and ends its workers itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
