"""A trained model taken out of its run: finished or not, by the run's folder or a checkpoint's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joformer import models
from joformer.console import tell
from joformer.files import read_json
from joformer.models.saving import WEIGHTS
from joformer.training import checkpoints
from joformer.training.checkpoints import STATE, Say
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
        if not path.is_file():
            raise ValueError(f"{self.folder} has no tokenizer.json: is it the run of a language model?")
        return Tokenizer.load(path)


def open_run(place: str | os.PathLike[str], say: Say | None = None) -> Opened:
    """The model of a run: its final weights, the newest good checkpoint where it has not ended, or the one named.

    >>> open_run("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere is not there: give the folder of a run, or of one of its checkpoints
    """
    given = Path(place)
    if given.is_file():
        raise ValueError(f"{given} is a file: give the folder of a run; pickles (.pt, .pth, .bin) are never read")
    if not given.is_dir():
        raise ValueError(f"{given} is not there: give the folder of a run, or of one of its checkpoints")
    say = say or tell
    step, source, folder = None, given, given
    if (given / STATE).is_file():
        checkpoint: checkpoints.Checkpoint | None = checkpoints.read(given)
        folder = given.resolve().parent.parent
    elif not (given / WEIGHTS).is_file():
        checkpoint = checkpoints.latest(given / CHECKPOINTS, say)
        if checkpoint is None:
            raise ValueError(f"{given} has neither {WEIGHTS} nor a checkpoint: give the folder of a run that saved one")
    else:
        checkpoint = None
    if checkpoint is not None:
        step, source = checkpoint.step, checkpoint.folder
    model = models.load(source)
    if checkpoint is not None:
        averaged = checkpoint.tensors("averaged")
        for name, parameter in model.named_parameters():
            if name in averaged:
                parameter.data.copy_(averaged[name])
    about = _about(folder / CONFIG)
    return Opened(model, folder, step, about.get("run", {}), about.get("notes", {}))


def _about(path: Path) -> dict[str, Any]:
    """What config.json says of a run; nothing where there is none."""
    try:
        about = read_json(path) if path.is_file() else {}
        if not all(isinstance(about.get(name, {}), dict) for name in ("run", "notes")):
            raise ValueError("its run or its notes are no JSON object")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): put it back") from None
    return about
