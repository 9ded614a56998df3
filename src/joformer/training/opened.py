"""A trained model taken out of its run: finished or not, by the run's folder or a checkpoint's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joformer import models
from joformer._io import MANIFEST, check_folder, read_json
from joformer._log import logger
from joformer.models._saving import WEIGHTS, blank, difference, layout, read_config
from joformer.training import checkpoints
from joformer.training.checkpoints import STATE, Checkpoint
from joformer.training.data.tokenizer import Tokenizer
from joformer.training.runs import CHECKPOINTS, CONFIG


@dataclass(frozen=True)
class Opened:
    """A model in evaluation mode, the folder of its run, how it was trained (`run`) and what was noted (`notes`)."""

    model: Any
    folder: Path
    step: int | None
    run: dict[str, Any]
    notes: dict[str, Any]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer the model was trained with."""
        path = self.folder / "tokenizer.json"
        promised = isinstance(self.model, models.JoFormerLM) and (self.folder / MANIFEST).exists()
        if not path.is_file() and not promised:
            raise ValueError(f"{self.folder} has no tokenizer.json: is it the run of a language model?")
        try:
            check_folder(self.folder, [path.name])
        except ValueError as damage:
            raise ValueError(f"{damage}; the command that trained it repairs it") from None
        return Tokenizer.load(path)


def open_run(place: str | os.PathLike[str]) -> Opened:
    """The model of a run: its final weights, the newest good checkpoint where it has not ended, or the one named.

    Where final weights or their configuration are damaged, the newest good checkpoint is used, with a warning.

    >>> open_run("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere is not there: give the folder of a run, or of one of its checkpoints
    """
    given = Path(place)
    if given.is_file():
        raise ValueError(f"{given} is a file: give the folder of a run; pickles (.pt, .pth, .bin) are never read")
    if not given.is_dir():
        raise ValueError(f"{given} is not there: give the folder of a run, or of one of its checkpoints")
    folder, checkpoint, model = given, None, None
    if (given / STATE).is_file():
        checkpoint, folder = checkpoints.read(given), given.resolve().parent.parent
        _require_usable(checkpoint)
    elif (given / WEIGHTS).is_file():
        try:
            model = models.load(given)
        except ValueError as damage:
            checkpoint = checkpoints.latest(given / CHECKPOINTS, _require_usable)
            if checkpoint is None:
                raise
            logger.warning(f"{damage}; using {checkpoint.folder} instead")
    else:
        checkpoint = checkpoints.latest(given / CHECKPOINTS, _require_usable)
        if checkpoint is None:
            raise ValueError(f"{given} has neither {WEIGHTS} nor a checkpoint: give the folder of a run that saved one")
    if checkpoint is not None:
        model = models.load(checkpoint.folder)
        averaged = checkpoint.tensors("averaged")
        for name, parameter in model.named_parameters():
            if name in averaged:
                parameter.data.copy_(averaged[name])
    about = _about(folder, checkpoint)
    return Opened(model, folder, None if checkpoint is None else checkpoint.step, *about)


def _require_usable(checkpoint: Checkpoint) -> None:
    """Raise where the checkpoint is whole and yet not of a model, or its average not of the same one."""
    config, averaged = read_config(checkpoint.folder), checkpoint.layout("averaged")
    if averaged:
        odd, how = difference(averaged, layout(dict(blank(config).named_parameters())))
        if odd:
            raise ValueError(f"{checkpoint.folder} does not fit its {CONFIG}, first at {odd} of averaged ({how})")


def _about(folder: Path, checkpoint: Checkpoint | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the model was trained, and what was noted; of a damaged config.json, what the checkpoint knows."""
    path = folder / CONFIG
    if not path.is_file():
        return {}, {}
    try:
        check_folder(folder, [CONFIG])
        about = read_json(path)
        found = about.get("run", {}), about.get("notes", {})
        if not all(isinstance(one, dict) for one in found):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError, OSError) as error:
        settings = None if checkpoint is None else checkpoint.state.get("settings")
        if not isinstance(settings, dict):
            raise ValueError(f"{path} is damaged: the command that trained it repairs it") from None
        reason = str(error) if type(error) is ValueError else f"{path} is damaged"
        logger.warning(f"{reason}; using what {checkpoint.folder} says")  # type: ignore[union-attr]
        return settings, {}
    return found
