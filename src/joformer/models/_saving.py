"""Models on disk: `config.json` describes the model, `model.safetensors` holds its weights; loading executes no code.

folder/config.json          {"model": "JoFormerLM", "config": {"vocab": 8000, …}}
folder/model.safetensors    every parameter and persistent buffer, shared ones once

If the folder has checksums, those of a finished run (manifest.json) or of a checkpoint (state.json), they are verified.
config.json is compared with the header of the weights before any memory is allocated for them.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from joformer._io import MANIFEST, check_folder, imported, make_folder, one_line, read_json, write_json, write_whole
from joformer.models._classifier import MonoidalClassifier
from joformer.models._lm import JoFormerLM
from joformer.models._pairs import JoFormerPairs
from joformer.models._points import JoFormerPoints
from joformer.models._relations import RotatE
from joformer.models._spotting import JoFormerSpotter
from joformer.models._tree import JoFormerTree
from joformer.models._video import JoFormerVideo
from joformer.models._vit import JoFormerViT, ViTConfig, earlier_forms

_KNOWN = (
    JoFormerLM,
    JoFormerViT,
    JoFormerVideo,
    JoFormerPairs,
    JoFormerPoints,
    JoFormerSpotter,
    JoFormerTree,
    MonoidalClassifier,
    RotatE,
)
MODELS: dict[str, Any] = {model.__name__: model for model in _KNOWN}
CONFIG, WEIGHTS = "config.json", "model.safetensors"
Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The dtype, as named by safetensors, and the shape of every tensor."""


def save(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Writes the model's configuration and weights to a folder, each file atomically.

    Args:
        model: A model of `joformer.models` with a configuration, unchanged since it was built from it.
        folder: The destination; created if it does not exist.

    Raises:
        ValueError: If it is another model, or the folder cannot be written to.
        ImportError: If safetensors is not installed.

    Example:
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
    state, where = own_state(model), Path(folder)
    odd, how = difference(layout(state), layout(own_state(blank(model.config))))
    if odd:
        raise ValueError(f"{name} is not what its configuration builds, load could not give it back: {odd} is {how}")
    make_folder(where)
    (where / MANIFEST).unlink(missing_ok=True)  # left by an earlier run: its checksums are those of other files
    # Weights first: a folder with a configuration always has the matching weights.
    save_weights(state, where)
    write_json(where / CONFIG, written(model.config))


def load(folder: str | os.PathLike[str]) -> Any:
    """Loads the model that `save`, or a training run, wrote to a folder.

    Args:
        folder: The folder with config.json and model.safetensors.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        ValueError: If a file is missing, damaged, or does not match the other.
        ImportError: If safetensors is not installed.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        ValueError: nowhere has no config.json: give the folder that save() wrote
    """
    where = Path(folder)
    config = read_config(where)
    for seal in (MANIFEST, "state.json"):
        check_folder(where, (CONFIG, WEIGHTS), seal)
    model = config.build()
    weights = imported("safetensors.torch", "train").load((where / WEIGHTS).read_bytes())
    with torch.no_grad():
        for key, value in own_state(model).items():
            if not weights[key].isfinite().all():
                raise ValueError(f"{where / WEIGHTS} is damaged: {key!r} holds NaN or infinity")
            value.copy_(weights[key])
    return model.eval()


def written(config: Any) -> dict[str, Any]:
    """The content of config.json for a configuration: the name of its model, and its fields.

    >>> from joformer.models import ClassifierConfig
    >>> written(ClassifierConfig(dim=8))["model"]
    'MonoidalClassifier'
    """
    for name, model in MODELS.items():
        if model.config_class is type(config):
            return {"model": name, "config": asdict(config)}
    raise ValueError(f"{type(config).__name__} is no configuration of {', '.join(MODELS)}")


def written_before(config: Any) -> list[dict[str, Any]]:
    """What version 0.1 may have written for this configuration, if that is different.

    >>> written_before(ViTConfig(frames="fixed", transport="scores"))[0]["config"]["model"]
    'rope2d'
    """
    forms = earlier_forms(config) if type(config) is ViTConfig else []
    return [{**written(config), "config": form} for form in forms]


def save_weights(weights: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the weights to folder/model.safetensors, atomically.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save_weights({"w": torch.ones(2)}, Path(folder))
    ...     (Path(folder) / WEIGHTS).is_file()
    True
    """
    to_bytes = imported("safetensors.torch", "train").save
    write_whole(folder / WEIGHTS, to_bytes({key: value.contiguous() for key, value in weights.items()}))


def read_config(where: Path) -> Any:
    """The configuration in a folder, after checking that the header of the weights matches it.

    >>> from tempfile import TemporaryDirectory
    >>> from joformer.models import ClassifierConfig
    >>> with TemporaryDirectory() as folder:
    ...     save(MonoidalClassifier(ClassifierConfig(dim=8)), folder)
    ...     read_config(Path(folder)).dim
    8
    """
    for name in (CONFIG, WEIGHTS):
        if not (where / name).is_file():
            raise ValueError(f"{where} has no {name}: give the folder that save() wrote")
    try:
        content = read_json(where / CONFIG)
        config_class, given = MODELS[content["model"]].config_class, content["config"]
    except (OSError, KeyError, TypeError, ValueError):
        raise ValueError(f"{where / CONFIG} is not a model's configuration: it needs a model and its config") from None
    has = header(where / WEIGHTS)
    # Every layer has weights; a larger count would loop forever, even on the meta device.
    layers = given.get("layers", 1) if isinstance(given, dict) else 1
    if isinstance(layers, int) and layers > len(has):
        raise ValueError(f"{where / WEIGHTS} does not fit {CONFIG}: {layers} layers and {len(has)} tensors")
    try:
        config = _configuration(config_class, given)
        odd, how = difference(has, layout(own_state(blank(config))))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{where / CONFIG}: {error}") from None
    if odd:
        raise ValueError(f"{where / WEIGHTS} does not fit {CONFIG}, first at {odd}: they belong to two models ({how})")
    return config


def blank(config: Any) -> nn.Module:
    """The model of this configuration on the meta device: shapes and dtypes, without memory.

    >>> from joformer.models import ClassifierConfig
    >>> blank(ClassifierConfig(dim=8)).mlp[0].weight.device
    device(type='meta')
    """
    try:
        with torch.device("meta"):
            return config.build()
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        raise ValueError(f"no such model can be built: {one_line(error)}") from None


def header(path: Path) -> Layout:
    """The contents of a safetensors file according to its header; the tensors themselves are not read.

    >>> header(Path(__file__))
    Traceback (most recent call last):
    ValueError: ...saving.py is damaged or no safetensors file: ...
    """
    safetensors = imported("safetensors", "train")
    try:
        with safetensors.safe_open(path, "pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
            return {key: (one.get_dtype(), tuple(one.get_shape())) for key, one in slices.items()}
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None


def layout(state: Mapping[str, Tensor]) -> Layout:
    """What `header` would return for these tensors.

    >>> layout({"w": torch.ones(2, 3)})
    {'w': ('F32', (2, 3))}
    """
    short = {"float": "F", "bfloat": "BF", "int": "I", "uint": "U", "complex": "C", "bool": "BOOL"}
    made = {}
    for key, value in state.items():
        name = str(value.dtype).removeprefix("torch.")
        kind = name.rstrip("0123456789")
        made[key] = (short.get(kind, kind) + name.removeprefix(kind), tuple(value.shape))
    return made


def difference(has: Layout, wanted: Layout) -> tuple[str, str]:
    """The first tensor that is missing, unexpected, or of another shape or dtype, and how; ("", "") if there is none.

    >>> difference({"w": ("F32", (2,))}, {"w": ("F32", (3,))})
    ("'w'", 'F32 of shape (2,) instead of F32 of shape (3,)')
    """
    key = min((key for key in has.keys() | wanted.keys() if has.get(key) != wanted.get(key)), default=None)
    if key is None:
        return "", ""
    was, now = (f"{one[0]} of shape {one[1]}" if one else "nothing" for one in (has.get(key), wanted.get(key)))
    return repr(key), f"{was} instead of {now}"


def own_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model; tensors shared by two names are listed under the first.

    >>> list(own_state(nn.Linear(2, 2)))
    ['weight', 'bias']
    """
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    return {key: value.detach() for key, value in state.items() if first.setdefault(id(value), key) == key}


def _configuration(config_class: Any, given: object) -> Any:
    """The dataclass of these plain values, each checked against its annotation: a file may say anything."""
    # An InitVar is not a type for typing, but holds one.
    hints = {name: getattr(hint, "type", hint) for name, hint in get_type_hints(config_class).items()}
    if not isinstance(given, dict) or given.keys() - hints.keys():
        odd = sorted(given.keys() - hints.keys()) if isinstance(given, dict) else given
        raise ValueError(f"it holds {odd}, which {config_class.__name__} does not know: see its fields")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    values = {
        name: value for name, value in values.items() if value is not None or getattr(config_class, name) is not None
    }
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} is {value!r}, it must be {hints[name]}")
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
