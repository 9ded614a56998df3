"""Data by name or by path: text as tokens on disk, images, captions, spectrograms and clips as bytes in memory."""

from __future__ import annotations

from joformer.training.data.audio import load_audio
from joformer.training.data.clips import Clips, load_clips
from joformer.training.data.files import Place
from joformer.training.data.graphs import Graph, load_graph
from joformer.training.data.images import Images, Labelled, load_images
from joformer.training.data.pairs import Captioned, Pairs, load_pairs
from joformer.training.data.points import Clouds, Points, load_points
from joformer.training.data.sources import Source, resolve
from joformer.training.data.streamed import Streamed
from joformer.training.data.streams import Streams, load_streams
from joformer.training.data.text import Text, Tokenizer, load_text, windows
from joformer.training.data.trees import Trees, load_trees

__all__ = [
    "Captioned",
    "Clips",
    "Clouds",
    "Graph",
    "Images",
    "Labelled",
    "Pairs",
    "Points",
    "Source",
    "Streamed",
    "Streams",
    "Text",
    "Tokenizer",
    "Trees",
    "load_audio",
    "load_clips",
    "load_graph",
    "load_images",
    "load_labelled",
    "load_pairs",
    "load_points",
    "load_streams",
    "load_text",
    "load_trees",
    "resolve",
    "windows",
]


def load_labelled(
    source: Place | Source,
    *,
    label: str | None = None,
    size: int | None = None,
    cache: Place | None = None,
    **sound: int | float | None,
) -> Images:
    """Images or the spectrograms of sounds, depending on the source.

    Args:
        source: A name, a path, or what `resolve` returned.
        label: The class column, or "folder" or "name" for sounds.
        size: Side length of images, for `load_images`.
        cache: Cache folder for tensors.
        sound: rate, seconds, bands and hop, for `load_audio`; None means its default.

    Example:
        >>> load_labelled("digits").train.images.shape
        torch.Size([1438, 1, 8, 8])
    """
    source = resolve(source, label=label)
    given = {name: value for name, value in sound.items() if value is not None}
    if source.kind == "sounds":
        if size is not None:
            raise ValueError(f"{source.name} holds sounds: leave out size (--size) and give --bands and --seconds")
        return load_audio(source, cache=cache, **given)  # type: ignore[arg-type]
    others = {
        "text": ("text", "a language model (lm)"),
        "graph": ("a graph", "relations"),
        "pairs": ("images with text", "pairs"),
        "points": ("points", "points"),
        "streams": ("recordings with events", "spotting"),
        "video": ("video", "video"),
        "trees": ("trees", "trees"),
    }
    if source.kind in others:
        what, remedy = others[source.kind]
        raise ValueError(f"{source.path or source.spec} holds {what}: give images or sounds, or train {remedy}")
    if given:
        raise ValueError(f"{source.name} holds images: leave out {' '.join(f'--{name}' for name in given)}")
    return load_images(source, size=size, cache=cache)
