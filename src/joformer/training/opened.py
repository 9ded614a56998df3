"""A trained model taken out of its run: finished or not, by the run's folder or a checkpoint's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from joformer import models
from joformer._io import MANIFEST, check_folder, imported, read_json
from joformer._log import logger
from joformer.models._saving import WEIGHTS, blank, difference, header, layout, own_state, read_config
from joformer.training import checkpoints
from joformer.training.checkpoints import STATE, Checkpoint
from joformer.training.data.tokenizer import Tokenizer
from joformer.training.mirror import fetch_run
from joformer.training.processes import fill
from joformer.training.runs import CHECKPOINTS, CONFIG, TOKENIZER


@dataclass(frozen=True)
class Opened:
    """A model in evaluation mode, the folder of its run, its training settings (`run`) and notes (`notes`)."""

    model: Any
    folder: Path
    step: int | None
    run: dict[str, Any]
    notes: dict[str, Any]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the model was trained with."""
        path = self.folder / TOKENIZER
        promised = isinstance(self.model, models.JoFormerLM) and (self.folder / MANIFEST).exists()
        if not path.is_file() and not promised:
            raise ValueError(f"{self.folder} has no {TOKENIZER}: is it the run of a language model?")
        try:
            check_folder(self.folder, [path.name])
        except ValueError as damage:
            raise ValueError(f"{damage}; the command that trained it repairs it") from None
        return Tokenizer.load(path)


def open_run(place: str | os.PathLike[str]) -> Opened:
    """Opens the model of a run: its final weights, the newest good checkpoint if it has not ended, or the one given.

    If the final weights or their configuration are damaged, the newest good checkpoint is used, with a warning.

    >>> open_run("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere does not exist: give the folder of a run, or of one of its checkpoints
    """
    place = fetch_run(place)
    try:
        about = read_json(place / CONFIG)
    except (OSError, ValueError):  # missing or damaged: a checkpoint has one, too
        about = {}
    if "layout" in about:
        raise ValueError(
            f"{place} holds the model {about.get('model')}, which only its own code can build: build one, and call "
            "joformer.training.load_weights(model, folder)"
        )
    weights = Weights.of(place, ours=True)
    model: Any = read_config(weights.files[0].parent).build()
    weights.into(model)
    step = None if weights.checkpoint is None else weights.checkpoint.step
    return Opened(model.eval(), weights.folder, step, *_about(weights.folder, weights.checkpoint))


def load_weights(model: nn.Module, place: str | os.PathLike[str]) -> None:
    """Loads the weights of a run into a module with the same architecture.

    Uses the final weights, or those of the newest good checkpoint (averaged, if the recipe has an average). Checksums
    are verified, and no code can be run by loading.

    Args:
        model: A module with the same parameters and buffers; changed in place.
        place: The folder of a run, or of one of its checkpoints.

    Raises:
        ValueError: If the weights do not fit the module (the first tensor is named), or are damaged.

    Example:
        >>> load_weights(nn.Linear(2, 2), "nowhere")
        Traceback (most recent call last):
        ValueError: nowhere does not exist: give the folder of a run, or of one of its checkpoints
    """
    Weights.of(place).into(model)


@dataclass(frozen=True)
class Weights:
    """The weights of the run in `folder`: its final ones, or those of a checkpoint."""

    folder: Path
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, place: str | os.PathLike[str], ours: bool = False) -> Weights:
        """Those that `open_run` uses; `ours` if their configuration must be one of joformer's models, and fit."""
        given = fetch_run(place)
        if given.is_file():
            raise ValueError(f"{given} is a file: give the folder of a run; pickles (.pt, .pth, .bin) are never read")
        if not given.is_dir():
            raise ValueError(f"{given} does not exist: give the folder of a run, or of one of its checkpoints")
        usable = _require_usable if ours else None
        if (given / STATE).is_file():
            return cls(given.resolve().parent.parent, checkpoints.read(given, usable))
        wrong, ended = f"{given} has neither {WEIGHTS} nor a checkpoint: give the folder of a run that saved one", False
        if (given / WEIGHTS).is_file():
            try:
                _ = read_config(given) if ours else header(given / WEIGHTS)
                check_folder(given, [CONFIG, WEIGHTS] if ours else [WEIGHTS])
                return cls(given, None)
            except ValueError as damage:
                wrong, ended = str(damage), True
        newest = checkpoints.latest(given / CHECKPOINTS, usable)
        if newest is None:
            raise ValueError(wrong)
        if ended:
            logger.warning(f"{wrong}; using {newest.folder} instead")
        return cls(given, newest)

    @property
    def files(self) -> list[Path]:
        """Where they are; what is in a later file, the averages, overrides what is in an earlier one."""
        if self.checkpoint is None:
            return [self.folder / WEIGHTS]
        return [file for name in ("model", "averaged") if (file := self.checkpoint.file(name)) is not None]

    def into(self, model: nn.Module) -> None:
        """Copies them into the module; ValueError naming the first tensor that does not fit, or is not finite."""
        own, load_file = own_state(model), imported("safetensors.torch", "train").load_file
        odd, how = difference({name: one for file in self.files for name, one in header(file).items()}, layout(own))
        if odd:
            raise ValueError(f"{self.files[0]} does not fit {type(model).__name__}, first at {odd}: {how}")
        tensors = {name: tensor for file in self.files for name, tensor in load_file(file).items()}
        for name, target in own.items():
            if not tensors[name].isfinite().all():
                raise ValueError(f"{self.files[0]} is damaged: {name!r} holds NaN or infinity")
            fill(target, tensors[name])


def _require_usable(checkpoint: Checkpoint) -> None:
    """Raise where the checkpoint is whole and yet not of a model, or its average not of the same one."""
    config = read_config(checkpoint.folder)
    if checkpoint.file("averaged"):
        checkpoint.require("averaged", layout(dict(blank(config).named_parameters())))


def _about(folder: Path, checkpoint: Checkpoint | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the model was trained, and what was noted; of a damaged config.json, what the checkpoint knows."""
    path = folder / CONFIG
    if not path.is_file():
        return {}, {}
    try:
        check_folder(folder, [CONFIG])
        about = read_json(path)
        run, notes = about.get("run", {}), about.get("notes", {})
        if isinstance(run, dict) and isinstance(notes, dict):
            return run, notes
    except (ValueError, OSError):
        pass
    settings = None if checkpoint is None else checkpoint.state.get("settings")
    if checkpoint is None or not isinstance(settings, dict):
        raise ValueError(f"{path} is damaged: the command that trained it repairs it")
    logger.warning(f"{path} is damaged; using the copy in {checkpoint.folder}")
    return settings, {}
