"""Saving a model whose values are transported, so that it is loaded as such or not at all.

`save_pretrained` writes into config.json which attentions are transported, by name, and replaces one number of the
configuration there by a sentence. Loading the folder without joformer fails with that sentence instead of returning a
model that computes something else; `load` puts the number back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joformer.integrations._record import transported
from joformer.integrations.hf._adapters import wrap_adapters
from joformer.integrations.hf._setting import SETTING, saving, wrap

SENTENCE = "the values of this model are transported: pip install joformer, then joformer.integrations.load(folder)"


def wrap_saving() -> None:
    """From now on `save_pretrained` writes the setting of every model of which any part is transported.

    The method of the class is wrapped, not that of a model: from a part there is no way to the models that hold it.
    """
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        wrap(transformers.PreTrainedModel, "save_pretrained", _save)
        wrap_adapters()


def _save(save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    entries = transported(model)
    if not entries:  # at strength 0 too
        return save(model, *args, **kwargs)
    config = model.config
    field, value = _number(config)

    def to_json_file(path: str | Path, use_diff: bool = True) -> None:
        # After the configuration's own validation, which is what will reject the sentence when it is loaded.
        del config.__dict__["to_json_file"]
        plain = json.loads(config.to_json_string(use_diff=use_diff))
        plain |= {field: SENTENCE, SETTING: {"field": field, "value": value, "transported": entries}}
        Path(path).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    config.__dict__["to_json_file"] = to_json_file
    try:
        with saving(entries):  # transformers may save only the adapters of the model
            return save(model, *args, **kwargs)
    finally:
        config.__dict__.pop("to_json_file", None)


def _number(config: Any) -> tuple[str, int | float]:
    """A field of the configuration that must be a number, and belongs to its class alone."""
    from transformers import PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    own = [field.name for field in dataclasses.fields(config) if field.name not in common]
    for name in sorted(own, key=lambda name: name != "hidden_size"):
        value = config.__dict__.get(name)
        if type(value) in (int, float) and math.isfinite(value):
            return name, value
    raise ValueError(f"{type(config).__name__} has no number to keep the setting with: this model cannot be saved")
