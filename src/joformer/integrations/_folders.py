"""The two folders of a conversion: one is read, without running any code in it, the other appears whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from joformer._io import read_json
from joformer._log import logger
from joformer.integrations.hf._load import architecture, load, read
from joformer.integrations.hf._setting import SETTING
from joformer.training.data.files import content_hash

RECORD, TRAINING, WRITTEN = "conversion.json", "training", ".written"
GENERATION = "generation_config.json"
# Weights, code and what training leaves behind; all else in a model's folder belongs to its tokenizer or its users.
NOT_COPIED = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".py")


def described(source: Path) -> str:
    """The class that config.json names; raises ValueError before anything is imported where there is no model."""
    if not source.is_dir():
        raise ValueError(f"{source} does not exist: give the folder of a Hugging Face model")
    try:
        config = read_json(source / "config.json")
        names = list(config.get("architectures") or [None])
    except OSError:
        more = ", but an adapter: merge it into its model first" if (source / "adapter_config.json").exists() else ""
        raise ValueError(f"{source} holds no model: it has no config.json{more}") from None
    except (ValueError, TypeError):
        raise ValueError(f"{source / 'config.json'} is damaged: fetch it again") from None
    if (source / "adapter_config.json").exists():
        raise ValueError(f"{source} holds an adapter next to the model: merge it into the model first")
    if not any(source.glob("*.safetensors")):
        raise ValueError(
            f"{source} has no safetensors weights, and other formats are not read: save it as safetensors first"
        )
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "converting a model needs transformers and safetensors: pip install 'joformer[integrations]'"
        ) from None
    cls = architecture(config)
    if cls is None:
        raise ValueError(f"{source} holds a {names[0]}, which transformers {transformers.__version__} does not have")
    return cls.__name__


def load_model(source: Path) -> Any:
    """The model, which transformers can save again."""
    config = read_json(source / "config.json")
    model = load(source, dtype="auto") if SETTING in config else read(architecture(config), source, dtype="auto")[0]
    generation: Any = getattr(model, "generation_config", None)
    try:
        if generation is not None:
            generation.validate(strict=True)
    except ValueError:  # some settings are read by transformers but not written: they are copied instead
        model.generation_config = type(generation)()
    return model


def hash_of(source: Path) -> str:
    return content_hash(source / "config.json", *sorted(source.glob("*.safetensors")))


def require_free(place: Path, source: Path) -> None:
    """Raises ValueError for a folder that holds anything but a conversion."""
    if place.resolve() == source.resolve():
        raise ValueError(f"{place} is the model's own folder: give another output folder")
    if place.is_file():
        raise ValueError(f"{place} is a file: give a directory")
    strange = [path.name for path in place.iterdir()] if place.is_dir() and not (place / RECORD).exists() else []
    if any(name != TRAINING for name in strange):
        raise ValueError(f"{place} is not empty and holds no conversion: give another folder")


def begun(place: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The record of this conversion so far; ValueError if its settings differ, or it is finished and was altered."""
    if not (place / RECORD).is_file():
        return None
    try:
        record = read_json(place / RECORD)
        before = dict(record["settings"])
        record["finished"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{place / RECORD} is damaged: remove {place}, or give another folder") from None
    for name in [*before, *settings]:
        if before.get(name) != settings.get(name):
            what = {"model": "of another model", "data": "on other data"}.get(
                name, f"with {name} = {before.get(name)}, not {settings.get(name)}"
            )
            raise ValueError(f"{place} holds a conversion {what}: give the same to resume it, or another folder")
    if record["finished"]:
        if record.get("sha256") != hash_of(place):
            raise ValueError(f"{place} was changed after it was written: remove it, and convert again")
        logger.info(f"{place} is already finished")
        shutil.rmtree(place / TRAINING, ignore_errors=True)  # where the end was cut short
    return record


def write(model: Any, source: Path, folder: Path) -> None:
    """Writes the model and what belongs to it into this folder."""
    model.save_pretrained(folder)
    if (source / GENERATION).is_file():
        shutil.copyfile(source / GENERATION, folder / GENERATION)
    for path in source.iterdir():
        hidden = path.name.startswith(".") or path.name == RECORD or path.name.endswith(NOT_COPIED)
        if path.is_file() and not hidden and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)
    if (source / "additional_chat_templates").is_dir():
        shutil.copytree(source / "additional_chat_templates", folder / "additional_chat_templates")
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)  # safetensors lets only the owner read
