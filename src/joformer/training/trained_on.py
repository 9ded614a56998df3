"""The data that a run was trained on, or other data, as its model reads it."""

from __future__ import annotations

from typing import Any

from joformer._log import logger
from joformer.models import MonoidalClassifier
from joformer.training.data import Images, Streamed, Text, load_labelled, load_text, resolve
from joformer.training.opened import Opened
from joformer.training.tasks import ImageTask


def text_of(opened: Opened, data: str | None = None, *, column: str | None = None) -> Text:
    """The text of a language model's run, in its own tokens.

    Args:
        opened: The run.
        data: Other text than it was trained on.
        column: The column of a table that holds the text; by default that of training.

    Raises:
        ValueError: If the run was not trained on text, or does not say on which.
    """
    trained, source = opened.run.get("task", {}), source_of(opened, data)
    if trained and "text" not in trained:
        raise ValueError(f"{opened.folder} was not trained on text: see its metrics.jsonl for what was measured")
    tokenizer, vocab = opened.tokenizer(), opened.notes.get("vocab")
    found = resolve(source, kind="text", column=column or opened.notes.get("column"))
    text, cut = None, {"percent": percent} if (percent := opened.notes.get("percent")) else {}
    if data is None and vocab is not None:
        text = load_text(found, vocab=vocab, **cut)  # as it was prepared for training, if it is still the same
        if text.fingerprint != trained.get("text"):
            logger.warning(f"{source} has changed since the model was trained on it")
    if text is None or text.tokenizer != tokenizer:
        text = load_text(found, tokenizer=tokenizer, **({} if data else cut))
    return text


def images_of(opened: Opened, data: str | None = None, *, label: str | None = None) -> ImageTask:
    """The images or sounds of a classifier's run, normalised as in training.

    Args:
        opened: The run.
        data: Others than it was trained on.
        label: The column of the classes, or folder or name for sounds; by default that of training.

    Raises:
        ValueError: If they have another number of classes than the model, or the run does not say which they are.
    """
    notes, trained, given = opened.notes, opened.run.get("task", {}), source_of(opened, data)
    source: Any = resolve(given, label=label or notes.get("label"))
    images: Images | Streamed
    if notes.get("stream"):
        images = Streamed(source, size=notes.get("size") or 224)
    else:
        sound = {name: notes.get(name) for name in ("rate", "seconds", "bands", "hop")}
        images = load_labelled(source, size=notes.get("size"), **sound)
    classes = opened.model.config.classes
    if len(images.classes) != classes:
        raise ValueError(f"{given} has {len(images.classes)} classes, the model has {classes}: give other --data")
    if data is None and not notes.get("stream") and images.fingerprint != trained.get("images"):
        logger.warning(f"{given} has changed since the model was trained on it")
    cells = isinstance(opened.model, MonoidalClassifier)
    return ImageTask(images, cells=cells, normalise=trained.get("normalise"))


def source_of(opened: Opened, data: str | None) -> str:
    """The data to read: that given, or else what the run was trained on."""
    if (source := data or opened.notes.get("data")) is None:
        raise ValueError(f"{opened.folder} does not say what it was trained on: give --data")
    return source
