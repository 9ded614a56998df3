"""Models on disk: `config.json` says what was built, `model.safetensors` holds its weights; loading runs no code.

folder/config.json          {"model": "JoFormerLM", "config": {"vocab": 8000, …}}
folder/model.safetensors    every parameter and persistent buffer, shared ones once
"""

from __future__ import annotations

import json
import os
import types
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import nn

from joformer.files import make_folder, write_whole
from joformer.models.classifier import MonoidalClassifier
from joformer.models.lm import JoFormerLM
from joformer.models.vit import JoFormerViT

MODELS: dict[str, type] = {model.__name__: model for model in (JoFormerLM, JoFormerViT, MonoidalClassifier)}
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the model's configuration and weights into the folder, each file whole or not at all.

    >>> from tempfile import TemporaryDirectory
    >>> from joformer.models import ClassifierConfig
    >>> with TemporaryDirectory() as folder:
    ...     save(MonoidalClassifier(ClassifierConfig(dim=8)), folder)
    ...     load(folder).config.dim
    8
    """
    name = type(model).__name__
    if MODELS.get(name) is not type(model):
        raise ValueError(f"{name} is none of the models that can be saved: {', '.join(MODELS)}")
    where = Path(folder)
    make_folder(where)
    # Weights first: a folder with a configuration always has the weights that go with it.
    save_weights(own_state(model), where)
    write_whole(where / CONFIG, (json.dumps(written(model.config), indent=2) + "\n").encode())


def written(config: Any) -> dict[str, Any]:
    """What config.json says of a configuration: the name of its model, and its fields.

    >>> from joformer.models import ClassifierConfig
    >>> written(ClassifierConfig(dim=8))["model"]
    'MonoidalClassifier'
    """
    for name, model in MODELS.items():
        if model.config_class is type(config):  # type: ignore[attr-defined]
            return {"model": name, "config": asdict(config)}
    raise ValueError(f"{type(config).__name__} is no configuration of {', '.join(MODELS)}")


def save_weights(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Put the weights into folder/model.safetensors, whole or not at all.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_weights({"w": torch.ones(2)}, Path(folder))
    ...     (Path(folder) / WEIGHTS).is_file()
    True
    """
    from safetensors.torch import save as to_bytes

    write_whole(folder / WEIGHTS, to_bytes({key: value.contiguous() for key, value in weights.items()}))


def load(folder: str | os.PathLike[str]) -> Any:
    """The model saved in the folder, in evaluation mode, on the CPU; files that do not fit are refused in one line.

    >>> load("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere has no config.json: give the folder that save() wrote
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    where = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (where / name).is_file():
            raise ValueError(f"{where} has no {name}: give the folder that save() wrote")
    try:
        written = json.loads((where / CONFIG).read_text(encoding="utf-8"))
        model_class, config = MODELS[written["model"]], written["config"]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(f"{where / CONFIG} is not a model's configuration: it needs a model and its config") from None
    model = model_class(_configuration(model_class.config_class, config, where / CONFIG))  # type: ignore[attr-defined]
    try:
        weights = from_bytes((where / WEIGHTS).read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{where / WEIGHTS} is damaged or no safetensors file: {error}") from None
    own = own_state(model)
    wrong = [key for key in own.keys() | weights.keys() if _shape(own.get(key)) != _shape(weights.get(key))]
    if wrong:
        raise ValueError(f"{where / WEIGHTS} does not fit {CONFIG}, first at {min(wrong)!r}: they belong to two models")
    with torch.no_grad():
        for key, value in own.items():
            value.copy_(weights[key])
    return model.eval()


def own_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of the model, what two names share under the first of them.

    >>> list(own_state(nn.Linear(2, 2)))
    ['weight', 'bias']
    """
    seen: set[int] = set()
    state = {}
    for key, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            state[key] = value.detach()
    return state


def _shape(value: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


def _configuration(config_class: type, given: object, path: Path) -> object:
    """The dataclass of these plain values, each checked against its annotation: a file may say anything."""
    hints = get_type_hints(config_class)
    known = {field.name for field in fields(config_class)}
    if not isinstance(given, dict) or given.keys() - known:
        odd = sorted(given.keys() - known) if isinstance(given, dict) else given
        raise ValueError(f"{path} holds {odd}, which {config_class.__name__} does not know: see its fields")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{path}: {name} is {value!r}, it must be {hints[name]}")
    return config_class(**values)


def _fits(value: object, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if parts:  # a Literal
        return value in parts
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is hint or (hint is type(None) and value is None)
