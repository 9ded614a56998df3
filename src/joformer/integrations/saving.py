"""Saving a model whose values are transported, so that it is loaded as such or not at all.

`save_pretrained` writes the setting into config.json, and one number of the configuration is replaced there by a
sentence. Whoever loads the folder without joformer gets that sentence in the error instead of a model that computes
something else; `load` puts the number back.
"""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

SETTING = "joformer"
SENTENCE = "the values of this model are transported: pip install joformer, then joformer.integrations.load(folder)"


def mark_saves(model: nn.Module) -> None:
    """From now on `model.save_pretrained` writes the setting."""
    if hasattr(type(model), "save_pretrained"):
        model.__dict__["save_pretrained"] = partial(_save_marked, model)


def unmark_saves(model: nn.Module) -> None:
    model.__dict__.pop("save_pretrained", None)


def load(folder: str | Path, **kwargs: Any) -> Any:
    """The model that `save_pretrained` wrote to `folder`, with its values transported as they were.

    Further arguments go to transformers' `from_pretrained`; with `output_loading_info=True` the result is a pair, as it
    is there. A folder without the setting is refused: it needs only transformers. Its tokenizer is loaded with
    `AutoTokenizer.from_pretrained(folder, config=model.config)`.

    >>> from tempfile import TemporaryDirectory
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from joformer.integrations import strength_of, transport_values
    >>> model = LlamaForCausalLM(
    ...     LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    ... )
    >>> with TemporaryDirectory() as folder:
    ...     transport_values(model, 0.5).save_pretrained(folder)
    ...     strength_of(load(folder))
    0.5
    """
    import transformers

    from joformer.integrations.transport import transport_values

    path = Path(folder) / "config.json"
    try:
        plain = transformers.PreTrainedConfig._dict_from_json_file(path)  # it writes infinity in a way of its own
    except OSError as error:
        raise ValueError(f"{folder} has no config.json: give a folder that save_pretrained wrote") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    setting = plain.pop(SETTING, None) if isinstance(plain, dict) else None
    if not isinstance(setting, dict) or not {"strength", "field", "value"} <= set(setting):
        raise ValueError(f"{path} says nothing of transport: load it with transformers, then transport_values(model)")
    plain[setting["field"]] = setting["value"]
    names = plain.get("architectures") or []
    cls = getattr(transformers, names[0], None) if names else None
    if cls is None:
        raise ValueError(f"{path} names no architecture that this transformers has: {names}")
    config = cls.config_class.from_dict(plain)
    loaded = cls.from_pretrained(str(folder), **{"config": config, **kwargs})
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    transport_values(model, setting["strength"])
    return loaded


def _save_marked(model: Any, *args: Any, **kwargs: Any) -> Any:
    from joformer.integrations.transport import strength_of

    strength = strength_of(model)
    save = type(model).save_pretrained
    if not strength:  # at 0 the model is what it was
        return save(model, *args, **kwargs)
    config = model.config
    field, value = _number(config)

    def to_json_file(path: str | Path, use_diff: bool = True) -> None:
        # After the configuration's own checks, which are what will refuse the sentence when it is loaded.
        del config.__dict__["to_json_file"]
        plain = json.loads(config.to_json_string(use_diff=use_diff))
        plain |= {field: SENTENCE, SETTING: {"strength": strength, "field": field, "value": value}}
        Path(path).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    config.__dict__["to_json_file"] = to_json_file
    try:
        return save(model, *args, **kwargs)
    finally:
        config.__dict__.pop("to_json_file", None)


def _number(config: Any) -> tuple[str, int | float]:
    """A field of the configuration that must be a number, and is of this class alone."""
    from transformers import PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    own = [field.name for field in dataclasses.fields(config) if field.name not in common]
    for name in sorted(own, key=lambda name: name != "hidden_size"):
        value = config.__dict__.get(name)
        if type(value) in (int, float):
            return name, value
    raise ValueError(f"{type(config).__name__} has no number to keep the setting with: this model cannot be saved")
