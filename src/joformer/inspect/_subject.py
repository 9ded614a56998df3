"""What is inspected: a run of ours, or the folder of a transformers model, with data to run it on."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joformer._io import read_json
from joformer._log import logger, printable
from joformer._remote import is_address
from joformer.inspect._values import Measure, image_measure, text_measure, token_measure
from joformer.models import JoFormerLM, JoFormerViT
from joformer.training import Opened, load_text, open_run
from joformer.training.data import windows
from joformer.training.trained_on import images_of, source_of, text_of

SHOWN = 64
"""Tokens of a text whose angles and journeys are shown if no prompt is given."""
MANY = 32
"""Windows or images over which queries and keys are averaged."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, and the data it is inspected with.

    Attributes:
        name: Name of its folder.
        model: The model, in evaluation mode.
        facts: Its properties, as names and values.
        unit: Unit of the loss.
        measure: The loss on each of some held-out samples.
        batch: The samples over which queries and keys are averaged.
        sample: The one text or image whose tokens are shown, ``(1, …)``.
        labels: The label of each token of the sample.
        grid: The grid shape of the last tokens; None for text.
        picture: The brightness of each token of an image, 0 … 1.
        remarks: What a reader should know.
    """

    name: str
    model: Any
    facts: list[tuple[str, str]]
    unit: str
    measure: Measure
    batch: Tensor
    sample: Tensor
    labels: list[str]
    grid: tuple[int, ...] | None = None
    picture: list[float] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def open_subject(
    place: str | Path,
    *,
    data: str | None = None,
    prompt: str | None = None,
    index: int | None = None,
    samples: int = 50,
) -> Subject:
    """Opens a run, or the folder of a transformers model, for inspection; no code in it is run.

    Args:
        place: The folder or address of a run or of one of its checkpoints, or the folder of a causal language model.
        data: Other data than the training data; required for transformers models.
        prompt: The text whose tokens are shown; by default the beginning of a held-out window.
        index: Which held-out window or image is shown; the first by default.
        samples: Held-out windows or images on which the loss is measured.

    Raises:
        ValueError: If there is no such model, no data, or the model is of another kind.

    Example:
        >>> open_subject("nowhere")
        Traceback (most recent call last):
        ValueError: nowhere does not exist: give the folder of a run, or of one of its checkpoints
    """
    if prompt is not None and index is not None:
        raise ValueError("--prompt and --index both choose what is shown: give one of them")
    if samples < 2:
        raise ValueError(f"--samples must be 2 or more for an interval, got {samples}")
    if not is_address(place) and _of_transformers(Path(place)):
        return _transformers(Path(place), data, prompt, index or 0, samples)
    opened = open_run(place)
    if opened.step is not None:
        logger.info(f"weights of step {opened.step}")
    if isinstance(opened.model, JoFormerLM):
        return _language(opened, data, prompt, index or 0, samples)
    if type(opened.model) is JoFormerViT:
        if prompt is not None:
            raise ValueError(f"--prompt is for language models, and {place} holds a JoFormerViT: give --index")
        return _vision(opened, data, index or 0, samples)
    held = type(opened.model).__name__
    more = "use joformer.inspect from Python for other models"
    raise ValueError(f"{place} holds a {held}: inspect shows language models and ViTs; {more}")


def _of_transformers(place: Path) -> bool:
    try:
        config = read_json(place / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ("model_type" in config or "architectures" in config)


def _language(opened: Opened, data: str | None, prompt: str | None, index: int, samples: int) -> Subject:
    text, config = text_of(opened, data), opened.model.config
    context = opened.run.get("task", {}).get("context", 256)
    measure = text_measure(text, context=context, count=samples)
    sample = _sample(text.valid, text.tokenizer.encode(prompt) if prompt is not None else None, context, index)
    angles = config.frames if isinstance(config.frames, str) else ", ".join(config.names)
    facts = [
        ("model", f"JoFormerLM, {config.layers} layers, {config.heads} heads, {config.dim} wide"),
        ("angles", angles),
        ("transport", config.transport),
        *_trained(opened, data),
        ("context", f"{context} tokens"),
    ]
    labels = [_label(text.tokenizer.tokens[token]) for token in sample[0].tolist()]
    letters = sorted(set(config.letters) - set("FWN"))
    remarks = [
        f"Layers {', '.join(letters)} of the pattern have no journey attention and are left out." for _ in letters[:1]
    ]
    return Subject(
        opened.folder.name, opened.model, facts, "bits per byte", measure, _many(text.valid, context), sample, labels,
        remarks=remarks,
    )  # fmt: skip


def _transformers(place: Path, data: str | None, prompt: str | None, index: int, samples: int) -> Subject:
    from joformer.integrations import _folders as folders
    from joformer.integrations import strength_of
    from joformer.integrations._convert import quiet
    from joformer.integrations._finetuning import Tokens

    kind = folders.described(place)
    if not kind.endswith("CausalLM") and not kind.endswith("LMHeadModel"):
        raise ValueError(f"{place} holds a {kind}: inspect shows causal language models of transformers")
    if data is None:
        raise ValueError(f"{place} does not say what it was trained on: give --data, such as a text file, or stdlib")
    text = load_text(data, vocab=256)
    with quiet():
        model = folders.load_model(place).float().eval()
        tokens = Tokens.of(text, model, place, None, 1)
    tokenizer = tokens.tokenizer
    context = min(tokens.context - 1, 255)
    given = None
    if prompt is not None:
        given = list(prompt.encode()) if tokenizer is None else tokenizer(prompt, add_special_tokens=False)["input_ids"]
    sample = _sample(tokens.valid, given, context, index)
    ids = sample[0].tolist()
    labels = [_label(bytes([one]) if tokenizer is None else tokenizer.decode([one]).encode()) for one in ids]
    strength = strength_of(model)
    shown = "none" if not strength else f"strength {strength:g}"
    facts = [("model", kind), ("value transport", shown), ("data", data), ("context", f"{context} tokens")]
    remarks = [] if strength else ["The model has no value transport to switch off."]
    return Subject(
        place.resolve().name, model, facts, "nats per token",
        token_measure(tokens.valid, context=context, count=samples, batch=8), _many(tokens.valid, context, 8), sample,
        labels, remarks=remarks,
    )  # fmt: skip


def _vision(opened: Opened, data: str | None, index: int, samples: int) -> Subject:
    task, config = images_of(opened, data), opened.model.config
    held = len(task.images.test)
    if not 0 <= index < held:
        raise ValueError(f"there is no test image {index}: choose 0 … {held - 1}")
    batch, _ = task.held_out(torch.linspace(0, held - 1, min(MANY, held), dtype=torch.float64).long())
    sample, label = task.held_out(torch.tensor([index]))
    grid = tuple(n // p for n, p in zip(sample.shape[2:], config.patch, strict=True))
    bright = sample[0].mean(0)
    for axis, side in enumerate(config.patch):
        bright = bright.unflatten(axis, (-1, side)).mean(axis + 1)
    bright = bright.flatten()
    bright = (bright - bright.min()) / (bright.max() - bright.min()).clamp(min=1e-9)
    labels = ["class"] * (config.pool == "cls") + [f"register {n}" for n in range(config.registers)]
    labels += [f"({', '.join(map(str, at))})" for at in product(*map(range, grid))]
    facts = [
        ("model", f"JoFormerViT, {config.layers} layers, {config.heads} heads, {config.dim} wide"),
        ("angles", f"{config.frames}, {config.split}"),
        ("transport", config.transport),
        *_trained(opened, data),
        ("image", f"{index}, class {task.images.classes[int(label)]}, {' × '.join(map(str, grid))} patches"),
    ]
    return Subject(
        opened.folder.name, opened.model, facts, "nats per image", image_measure(task, count=samples), batch, sample,
        labels, grid, bright.tolist(),
    )  # fmt: skip


def _trained(opened: Opened, data: str | None) -> list[tuple[str, str]]:
    step = [] if opened.step is None else [("weights", f"of step {opened.step:,}")]
    return [("data", source_of(opened, data)), *step]


def _sample(tokens: Any, given: list[int] | None, context: int, index: int) -> Tensor:
    """The tokens to show, (1, tokens): those given, or the beginning of a held-out window."""
    if given is not None:
        if len(given) < 2:
            raise ValueError(f"a prompt needs 2 tokens or more, got {len(given)}: give a longer one")
        if len(given) > context:
            logger.warning(f"the prompt has {len(given)} tokens: only the first {context} are shown")
        return torch.tensor([given[:context]])
    count = len(tokens) // context
    if not 0 <= index < count:
        raise ValueError(f"there is no held-out window {index}: choose 0 … {count - 1}, of {context} tokens each")
    return windows(tokens, torch.tensor([index * context]), min(SHOWN, context))


def _many(tokens: Any, context: int, count: int = MANY) -> Tensor:
    last = len(tokens) - context
    return windows(tokens, torch.linspace(0, last, min(count, last + 1), dtype=torch.float64).long(), context)


def _label(token: bytes) -> str:
    """A token as shown on the page: line ends and non-text bytes are made visible.

    >>> _label(b"the"), _label(bytes([10])), _label(bytes([200]))
    ('the', '⏎', '\\\\xc8')
    """
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "".join(chr(one) if 32 <= one < 127 else f"\\x{one:02x}" for one in token)
    return printable(text.replace("\n", "⏎").replace("\t", "→")) or "∅"
