"""Video: clips of pictures, uint8 (n, channels, rows, columns, time), decoded once and resident.

    "moving"                              two of scikit-learn's digits, 16 × 16, 6 pictures: needs no files
    "mnist"  "digits"  images             two of them move: Moving MNIST (moving.py), 64 × 64, 20 pictures
    folder/wave/1.mp4  folder/run/2.npy   clips, a folder per class; without class folders the next picture is all there
                                          is to ask: mp4, mov, mkv, webm, avi (PyAV), gif, npy, npz

An array of npy or npz is uint8 (time, rows, columns) or (time, rows, columns, channels). Pictures are scaled by their
shorter side and cut to size × size. Where the class is asked for, a clip's pictures are spread evenly over it; where
the next picture is, they are its first. Grey clips have one channel, unless others are in colour.
"""

from __future__ import annotations

import io
import itertools
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joformer._io import LIMITS, allowed, imported, one_line
from joformer._log import logger
from joformer._seeding import generator
from joformer.training.data.arrays import read_header
from joformer.training.data.examples import Files, Records, Split, hold_out, open_examples
from joformer.training.data.files import EXAMPLE, Fault, Place, content_hash, fault, suffix_of
from joformer.training.data.images import Images, Made, finished, kept, load_images, require_memory
from joformer.training.data.moving import DIRECTIONS, MIRRORED, Question, moving
from joformer.training.data.sources import SPLITS, SUFFIXES, Note, Source, pick_test, resolve
from joformer.training.data.streamed import PIXELS, bounded, centred, too_large

FORMAT = 1  # raise it when the same images are to give other clips
SIZE, LENGTH = 64, 20
EMBEDDED = (16, 6)
COUNTS = (2000, 500)  # clips made to train and to test with
PICTURES = 20_000  # of one clip: eleven minutes at 30 per second
# The demuxer of each suffix: one that was guessed from the content could open other files, as playlists do.
CONTAINERS = {".mp4": "mov", ".m4v": "mov", ".mov": "mov", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi"}


@dataclass(frozen=True)
class Clips(Images):
    """Both splits as `Images`, with time as a third axis; without classes if the question is the next picture.

    `mirrored` says for each of the axes (rows, columns, time) what every class becomes where it is reversed; it is
    empty where nobody knows.

    >>> from joformer.training.data import Labelled
    >>> split = Labelled(torch.zeros(2, 1, 8, 8, 4, dtype=torch.uint8), torch.tensor([0, 1]))
    >>> Clips(split, split, ("left", "right"), "no hash", mirrored=((0, 1), (1, 0), (1, 0))).to("cpu").mirrored[1]
    (1, 0)
    """

    mirrored: tuple[tuple[int, ...], ...] = ()

    def to(self, device: torch.device | str) -> Clips:
        """A copy on another device."""
        return Clips(self.train.to(device), self.test.to(device), self.classes, self.fingerprint, self.mirrored)


def load_clips(
    source: Place | Source,
    *,
    question: Question = "next",
    size: int | None = None,
    length: int | None = None,
    count: int | None = None,
    label: str | None = None,
    cache: Place | None = None,
) -> Clips:
    """The clips of a source, or clips made of its images: uint8 (n, channels, rows, columns, time).

    Args:
        source: A name, a path, or what `resolve` returned: video, or images that will move.
        question: What to learn: the "next" picture, or the "class" of a clip. The class of a generated clip is the
            direction in which one of the two digits moves; otherwise it is given by the folder.
        size: Rows and columns; 64 by default ("moving": 16).
        length: Pictures per clip; 20 by default ("moving": 6).
        count: Number of clips generated for training, plus a quarter of that for testing; 2,000 by default.
        label: The class column, if a table lists the clips.
        cache: Cache folder for decoded clips.

    Returns:
        Both splits. Training and test clips use different handwriting.

    Raises:
        ValueError: If the source has no clips or no classes, or a clip cannot be decoded or has too few pictures.

    Example:
        >>> clips = load_clips("moving", question="class", count=40)
        >>> clips.train.images.shape, len(clips.test), clips.classes[:2]
        (torch.Size([40, 1, 16, 16, 6]), 10, ('up', 'up-right'))
    """
    source = resolve(source, label=label)
    usual = EMBEDDED if source.spec == "moving" else (SIZE, LENGTH)
    size, length = (one if given is None else given for one, given in zip(usual, (size, length), strict=True))
    if size < 5 or length < 2 or (count is not None and count < 1):
        raise ValueError(f"--size {size} and --length {length}: give 5 and 2 or more, and a count of 1 or more")
    if source.kind == "images" or source.spec == "moving":
        images = load_images("digits" if source.spec == "moving" else source)
        return _made(source, images, question, size, length, COUNTS[0] if count is None else count)
    if source.kind != "video":
        raise ValueError(f"{source.path or source.spec} holds {source.kind}: give video, or images that will move")
    if count is not None:
        raise ValueError(f"{source.name} holds clips, so none are generated: leave out count (--count)")
    opened = open_examples if question == "class" else open_clips

    def make(records: Records) -> Made:
        train, test, classes, notes = records
        logger.info(f"decoding {len(train) + len(test):,} clips (once)")
        spread = question == "class"
        first, second = (_decoded(part, size, length, spread) for part in (train, test))
        if first.shape[1] != second.shape[1]:
            first, second = (clips.expand(-1, 3, -1, -1, -1).contiguous() for clips in (first, second))
        return Made((first, train.labels), (second, test.labels), classes, notes)

    images = kept(source, "clip", (question, size, length, FORMAT), make, cache=cache, opened=opened)
    return Clips(images.train, images.test, images.classes, images.fingerprint)


def has_classes(source: Source) -> bool:
    """Whether every clip stands in a class folder, or in a table; clips that are made have classes.

    >>> has_classes(resolve("moving"))
    True
    """
    if source.path is None or source.listing:
        return True
    if not source.path.is_dir():
        return False
    inside = [_parts(source, file) for file in source.files if suffix_of(file) in SUFFIXES["video"]]
    folders = {parts[0] for parts in inside if len(parts) > 1}
    return len(folders) > 1 and all(len(parts) > 1 for parts in inside)


def open_clips(source: Source, folder: Path, fault: Fault = fault) -> Records:
    """Every clip below the source without a class: those of test or valid folders test, or a tenth that is held out.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     for number in range(4):
    ...         _ = Path(name, f"{number}.gif").write_bytes(b"")
    ...     records = open_clips(resolve(name, kind="video"), Path(name))
    ...     len(records.train), len(records.test)
    (3, 1)
    """
    import numpy as np

    notes: list[Note] = []
    splits: dict[str, list[bytes]] = {}
    for file in source.files:
        if suffix_of(file) in SUFFIXES["video"]:
            splits.setdefault(_split(source, file), []).append(os.fsencode(file))
    if "train" not in splits:
        have = f"only {', '.join(splits)}" if splits else "no clips"
        raise ValueError(f"{source.path} holds {have}: give {', '.join(SUFFIXES['video'])} files to train with")

    def files(name: str) -> Files:
        return Files(np.array(splits[name]), torch.zeros(len(splits[name]), dtype=torch.int64))

    train, test = files("train"), pick_test(splits, lambda _: True, notes)
    if test is None and len(train) < 2:
        raise ValueError(f"{source.path} holds one clip, which leaves none for testing: give two or more")
    if test is None:
        rest, held = hold_out(train.labels)
        notes.append((20, f"no test split: {len(held):,} of {len(train):,} clips are held out, always the same ones"))
        return Records(train.take(rest), train.take(held), (), tuple(notes))
    return Records(train, files(test), (), tuple(notes))


def decode_clip(data: bytes, name: str, size: int, most: int | None = None) -> Any:
    """The pictures of a clip, an array uint8 (time, size, size, channels), one channel where all are grey.

    Args:
        data: The encoded clip.
        name: How errors call it; its suffix says how to decode it.
        size: Side to which pictures are scaled and cut.
        most: How many pictures are needed, from the start; all of them by default.

    Example:
        >>> decode_clip(b"GIF", "a.gif", 16)
        Traceback (most recent call last):
        ValueError: a.gif cannot be decoded as a clip (cannot identify image file): repair it or remove it
    """
    import numpy as np
    from PIL import Image

    suffix, limit = suffix_of(name), allowed(PICTURES)
    decoder: Callable[[bytes, str], Iterator[Any]]
    decoder = {".gif": _gif, ".npy": _array, ".npz": _arrays}.get(suffix, _container)
    pictures = []
    try:
        with bounded(Image):
            for picture in itertools.islice(decoder(data, suffix), most):
                pictures.append(np.asarray(centred(picture, size, size).convert("RGB")))
                if len(pictures) > limit:
                    raise Refused(f"has more than {limit:,} pictures: cut it or, if you trust it, set {LIMITS}=10")
    except Refused as error:
        raise ValueError(f"{name} {error}") from None
    except ImportError:
        kind = suffix.removeprefix(".")
        remedy = "pip install 'joformer[video]' to read it, or convert it to gif or npy"
        raise ValueError(f"{name} is {kind}: {remedy}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(name, error) from None
    except Exception as error:  # decoders raise whatever they like
        reason = "cannot identify image file" if isinstance(error, Image.UnidentifiedImageError) else one_line(error)
        raise ValueError(f"{name} cannot be decoded as a clip ({reason}): repair it or remove it") from None
    if not pictures:
        raise ValueError(f"{name} holds no pictures: repair it or remove it")
    clip = np.stack(pictures)
    return clip[..., :1] if (clip == clip[..., :1]).all() else clip


class Refused(Exception):
    """What is wrong with a clip and what would be right, to be put behind its name."""


def _made(source: Source, images: Images, question: Question, size: int, length: int, count: int) -> Clips:
    """Clips of two moving images; the same ones always."""
    counts = (count, max(1, count * COUNTS[1] // COUNTS[0]))
    settings = (question, size, length, *counts)
    require_memory(sum(counts) * images.train.images.shape[1] * size**2 * length)
    logger.info(f"making {sum(counts):,} clips of {images.train.images.shape[1]} × {size} × {size} × {length}")
    train, test = (
        moving(part.images, many, question, size=size, length=length, draws=generator("moving", split, *settings))
        for part, many, split in zip((images.train, images.test), counts, ("train", "test"), strict=True)
    )
    classes = DIRECTIONS if question == "class" else ()
    key = content_hash("moving", FORMAT, images.fingerprint, str(settings))
    done = finished(source, Made(train, test, classes), key)
    return Clips(done.train, done.test, classes, key, MIRRORED if classes else ())


def _parts(source: Source, file: Path) -> tuple[str, ...]:
    """Where a file stands below the source, without the folder of its split."""
    assert source.path is not None
    parts = file.relative_to(source.path).parts if source.path.is_dir() else (file.name,)
    return parts[1:] if len(parts) > 1 and parts[0].lower() in SPLITS else parts


def _split(source: Source, file: Path) -> str:
    assert source.path is not None
    first = file.relative_to(source.path).parts[0].lower() if source.path.is_dir() else ""
    return first if first in SPLITS else "train"


def _decoded(records: Split, size: int, length: int, spread: bool) -> Tensor:
    """All clips of a split, (n, channels, rows, columns, time)."""
    import numpy as np

    require_memory(len(records) * 3 * size**2 * length)
    clips = np.empty((len(records), size, size, length, 1), dtype=np.uint8)
    for row in range(len(records)):
        name = records.name(row)
        clip = decode_clip(records.read(row), name, size, None if spread else length)
        if len(clip) < length:
            raise ValueError(f"{name} has {len(clip)} pictures, not {length}: give fewer (--length), or remove it")
        places = np.linspace(0, len(clip) - 1, length).round().astype(int)
        if clip.shape[-1] > clips.shape[-1]:  # the first in colour after grey ones
            clips = np.repeat(clips, 3, axis=-1)
        clips[row] = clip[places].transpose(1, 2, 0, 3)
    return torch.from_numpy(np.ascontiguousarray(clips.transpose(0, 4, 1, 2, 3)))


# -- decoders: each gives PIL images ----------------------------------------------------------------------------------


def _gif(data: bytes, _: str) -> Iterator[Any]:
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(data), formats=("GIF",)) as image:
        if not data.rstrip(b"\0").endswith(b";"):  # Pillow takes the end of the bytes for that of the pictures
            raise Refused("is truncated, or bytes follow its pictures: repair it or remove it")
        for picture in ImageSequence.Iterator(image):
            yield picture.convert("RGB")


def _container(data: bytes, suffix: str) -> Iterator[Any]:
    av = imported("av", "video")
    with av.open(io.BytesIO(data), format=CONTAINERS[suffix], options={"protocol_whitelist": "none"}) as file:
        if not file.streams.video:
            raise Refused("holds no video: remove it")
        stream = file.streams.video[0]
        _require_pixels(stream.codec_context.width, stream.codec_context.height)
        count, end = 0, 0.0
        for frame in file.decode(stream):
            _require_pixels(frame.width, frame.height)
            if frame.is_corrupt:
                raise Refused(f"is damaged at picture {count + 1:,}: repair it or remove it")
            count, end = count + 1, _end(frame, stream)
            yield frame.to_image().rotate(frame.rotation, expand=True)
        # The decoder takes the end of the bytes for that of the pictures.
        if count < 0.9 * stream.frames:
            raise Refused(f"has {count:,} of {stream.frames:,} pictures: it is truncated or damaged")
        whole = (file.duration or 0) / av.time_base
        if len(file.streams) == 1 and end and end < 0.95 * whole - 1 / (stream.average_rate or 25):
            raise Refused(f"ends after {end:.1f} of {whole:.1f} s: it is truncated or damaged")


def _end(frame: Any, stream: Any) -> float:
    """Seconds from the first picture's beginning to this one's end, 0 where the file does not say."""
    if frame.pts is None:
        return 0.0
    lasts = frame.duration * frame.time_base if frame.duration else 1 / (stream.average_rate or 25)
    return float((frame.pts - (stream.start_time or 0)) * frame.time_base + lasts)


def _array(data: bytes, _: str) -> Iterator[Any]:
    """Pictures of a .npy file; its header is looked at before anything is allocated."""
    import numpy as np
    from PIL import Image

    file = io.BytesIO(data)
    shape, _by_columns, dtype = read_header(file)
    if dtype != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
        wanted = "uint8 (time, rows, columns) or (time, rows, columns, 1 or 3)"
        raise Refused(f"is {dtype} {shape}: save it as {wanted}")
    _require_pixels(*shape[1:3])
    if prod(shape) > len(data):
        raise Refused(f"is truncated: its header says {shape}: fetch it again")
    file.seek(0)
    for picture in np.load(file, allow_pickle=False):
        yield Image.fromarray(picture[..., 0] if picture.ndim == 3 and picture.shape[-1] == 1 else picture)


def _arrays(data: bytes, _: str) -> Iterator[Any]:
    """Pictures of the only array of an .npz file, which may expand no further than a file may be large."""
    with zipfile.ZipFile(io.BytesIO(data)) as held:
        inside = held.infolist()
        if len(inside) != 1 or not inside[0].filename.endswith(".npy"):
            names = ", ".join(info.filename for info in inside[:3]) or "nothing"
            raise Refused(f"holds {names}: save one array in it")
        most = allowed(EXAMPLE)
        with held.open(inside[0]) as file:
            array = file.read(most + 1)
        if len(array) > most:
            raise Refused(f"expands to more than {most:,} bytes: if you trust it, set {LIMITS}=10")
    yield from _array(array, "")


def _require_pixels(*sides: int) -> None:
    if not all(sides) or sides[0] * sides[1] > allowed(PIXELS):
        what = " × ".join(map(str, sides))
        raise Refused(f"has pictures of {what}: 1 to {allowed(PIXELS):,} pixels are read")
