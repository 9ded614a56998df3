"""The folder of a model → a folder of the same model with its values transported, fine-tuned or not.

    OUT/
        config.json, model.safetensors, …   as `save_pretrained` writes them; tokenizer and the like as they were
        conversion.json                     what was done, and the losses on held-out text, where there was some
        training/                           only while it is fine-tuned: the run, see joformer/training/runs.py

OUT appears whole, by one rename. Where the model is fine-tuned, OUT is there from the start, the same call resumes it,
and config.json, without which nothing can be loaded, comes last.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from joformer._io import Lock, make_folder, new_folder, sweep, write_json, writing
from joformer.integrations import _folders as folders
from joformer.integrations._annealing import Anneal
from joformer.integrations._finetuning import AnnealingTask, Tokens, held_out_loss
from joformer.integrations._folders import RECORD, TRAINING, WRITTEN
from joformer.integrations._record import strength_of
from joformer.integrations._transport import transport_values
from joformer.training import Recipe, load_text, train


def convert(
    model_dir: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    strength: int | float = 1.0,
    off: bool = False,
    anneal: int | None = None,
    settle: int | None = None,
    data: str | os.PathLike[str] | None = None,
    context: int | None = None,
    batch: int = 8,
    lr: int | float = 1e-4,
    power: int | float = 1.0,
    seed: int = 0,
    save_every: int | None = None,
) -> dict[str, Any]:
    """Writes the model in `model_dir` to `out` with transported values, or without if `off`; returns a record.

    With `anneal`, a causal language model is fine-tuned while the strength goes from its current value to `strength`,

        s(step) = s₀ + (s₁ − s₀) · min(1, step / anneal)^power,

    and then for `settle` steps (by default a quarter as many) at full strength, on `data` as in `joformer train lm`,
    with the same training loop. The same call resumes an interrupted one, from the newest checkpoint whose checksums
    match. With `data`, the loss on held-out text is measured before and after: keys `loss_before`, `loss_after`.

    Weights are read from safetensors only, no code in the folder is run, and nothing is downloaded.

    >>> from tempfile import TemporaryDirectory
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from joformer.integrations import load, strength_of
    >>> model = LlamaForCausalLM(
    ...     LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     model.save_pretrained(f"{folder}/plain")
    ...     done = convert(f"{folder}/plain", f"{folder}/transported", strength=0.5)
    ...     strength_of(load(f"{folder}/transported"))
    0.5
    """
    source, place = Path(model_dir).expanduser(), Path(out).expanduser().absolute()
    counts = {"anneal": (anneal, 1), "settle": (settle, 0), "context": (context, 2), "batch": (batch, 1)}
    _check(strength, counts | {"seed": (seed, 0), "save_every": (save_every, 1)}, {"lr": lr, "power": power})
    if seed >= 1 << 32:
        raise ValueError(f"seed must be below 2 to the 32, got {seed}")
    if off and (anneal is not None or strength != 1):
        raise ValueError("off removes transport: leave out anneal and strength, or anneal to strength 0 instead")
    if anneal is None and (settle is not None or save_every is not None):
        raise ValueError("settle and save_every are for annealing: give anneal as well")
    strength, lr, power = float(strength), float(lr), float(power)
    kind = folders.described(source)
    data = "stdlib" if data is None and anneal is not None else data
    if data is not None and not kind.endswith("ForCausalLM"):
        option = "--anneal" if anneal is not None else "--data"
        raise ValueError(f"{source} holds a {kind}: {option} is for causal language models, leave it out")
    folders.require_free(place, source)
    make_folder(place if place.exists() else place.parent)
    text = None if data is None else load_text(data, vocab=256)

    settings: dict[str, Any] = {"model": folders.hash_of(source), "off": off, "strength": None if off else strength}
    settings |= {"data": None if text is None else text.fingerprint, "anneal": anneal, "context": context}
    steps = 0
    if anneal is not None:
        settle = anneal // 4 if settle is None else settle
        steps = anneal + settle
        settings |= {"settle": settle, "batch": batch, "lr": lr, "power": power, "seed": seed}
    record = folders.begun(place, settings)
    if record is not None and record["finished"]:
        return record

    with quiet():
        model = folders.load_model(source)
        start = strength_of(model) or 0.0
        record = record or {"settings": settings, "finished": False, "kind": kind, "from": start}
        if off and not start:
            raise ValueError(f"{source} has no transport to remove")
        if not off and start == strength and (anneal is None or not strength):
            raise ValueError(
                f"{source} is already at strength {start:g}: give another strength, or fine-tune it with anneal"
            )
        if anneal is not None and getattr(model, "is_quantized", False):
            raise ValueError(f"{source} is quantised and cannot be trained: convert the original model")
        transport_values(model, start, extrapolate=True)  # what is not supported is an error before the rest
        tokens = None
        if text is not None:
            model.to(torch.accelerator.current_accelerator() or torch.device("cpu"))
            tokens = Tokens.of(text, model, source, context, batch * steps)
            if "loss_before" not in record:
                record["loss_before"] = held_out_loss(model, tokens, batch)
        if anneal is None or tokens is None:
            return _at_once(model, source, place, record, tokens, batch)
        task = AnnealingTask(tokens, batch, Anneal(anneal, start=start, end=strength, power=power), settings)
        recipe = Recipe(
            steps=steps, lr=lr, end=0.0, warmup=steps // 20, weight_decay=0.0, betas=(0.9, 0.999), evaluate_every=steps,
            save_every=save_every or max(1, steps // 10), keep=2, deterministic=False,  # models of others may need that
        )  # fmt: skip
        with Lock(place / TRAINING, ".conversion"):
            record = folders.begun(place, settings) or record
            return record if record["finished"] else _trained(model, source, place, record, task, recipe, seed)


def _check(strength: Any, counts: dict[str, tuple[Any, int]], positive: dict[str, Any]) -> None:
    """Raises ValueError for what is no number, or out of range; of `counts` with the least that is allowed."""
    for name, (value, least) in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    for name, value in positive.items():
        if not (isinstance(value, int | float) and 0 < value < math.inf):
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    number = isinstance(strength, int | float) and not isinstance(strength, bool)
    if not number or not 0 <= strength <= 1:
        raise ValueError(f"strength must be a finite number, from 0 (none) to 1 (full transport), got {strength!r}")


def _at_once(
    model: Any, source: Path, place: Path, record: dict[str, Any], tokens: Tokens | None, batch: int
) -> dict[str, Any]:
    """The whole folder, by one rename."""
    settings = record["settings"]
    transport_values(model, settings["strength"] or 0.0, off=settings["off"])
    if tokens is not None:
        record["loss_after"] = held_out_loss(model, tokens, batch)
    sweep(place.parent, place.name)
    with new_folder(place) as folder:
        folders.write(model, source, folder)
        record |= {"finished": True, "sha256": folders.hash_of(folder)}
        write_json(folder / RECORD, record)
        if place.is_dir():
            place.rmdir()
    return record


def _trained(
    model: Any, source: Path, place: Path, record: dict[str, Any], task: AnnealingTask, recipe: Recipe, seed: int
) -> dict[str, Any]:
    write_json(place / RECORD, record)
    precisions = {name: parameter.dtype for name, parameter in model.named_parameters()}
    model.float()  # small steps are lost in half precision
    record["loss_after"] = train(model, task, recipe, place / TRAINING, seed=seed, drift=True, loggers=())["loss"]
    task.prepare(model, recipe.steps)  # of a run that had ended before only the weights were read
    if set(precisions.values()) != {torch.float32}:
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(precisions[name])
        record["loss_after"] = held_out_loss(model, task.tokens, task.size)
    if not math.isfinite(record["loss_after"]):
        raise ValueError(f"training ended with a loss of {record['loss_after']}: give a lower lr, and another folder")
    sweep(place, WRITTEN)
    shutil.rmtree(place / WRITTEN, ignore_errors=True)
    with new_folder(place / WRITTEN) as folder:
        folders.write(model, source, folder)
    with writing(f"cannot write {place}"):
        for path in sorted((place / WRITTEN).iterdir(), key=lambda path: path.name == "config.json"):
            if path.is_dir():
                shutil.rmtree(place / path.name, ignore_errors=True)
            os.replace(path, place / path.name)
        (place / WRITTEN).rmdir()
    record |= {"finished": True, "steps": recipe.steps, "sha256": folders.hash_of(place)}
    write_json(place / RECORD, record)
    shutil.rmtree(place / TRAINING, ignore_errors=True)
    return record


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, transformers shows no bars and remarks of its own among ours."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
