"""Adapters of PEFT: the transport they were trained with is saved with them, and required where they are loaded.

An adapter is saved without its model, and computes something else on one that is transported in another way. In its
adapter_config.json a sentence takes the place of "peft_type", with which PEFT without joformer fails.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joformer.integrations._record import transported
from joformer.integrations.hf._setting import CONFIG, SETTING, Entries, is_transported, saved_entries, saving, wrap

ADAPTER = "adapter_config.json"
SENTENCE = "trained with transported values: pip install joformer, joformer.integrations.transport_values(model) first"
_TRAINED = "_joformer_transported"


def wrap_adapters() -> None:
    """From now on PEFT writes and requires the setting, and transformers' Trainer compares it when it resumes."""
    if find_spec("peft") is not None:
        try:
            from peft import PeftModel
            from peft.config import PeftConfigMixin
            from peft.tuners.tuners_utils import BaseTuner
        except ImportError:  # a version that does not fit this transformers
            return
        wrap(PeftModel, "save_pretrained", _save)
        wrap(PeftModel, "add_adapter", _add)
        wrap(BaseTuner, "inject_adapter", _inject)
        wrap(PeftConfigMixin, "to_dict", _to_dict)
        wrap(PeftConfigMixin, "from_json_file", _from_json_file)
        wrap(PeftConfigMixin, "from_peft_type", _from_peft_type)
    trainer = sys.modules.get("transformers.trainer")
    if trainer is not None:
        wrap(trainer.Trainer, "_load_from_checkpoint", _resume)


def _save(save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    with saving(transported(_base(model))):
        return save(model, *args, **kwargs)


def _to_dict(own: Callable[..., dict[str, Any]], config: Any) -> dict[str, Any]:
    plain, entries = own(config), saved_entries()
    if entries:
        plain |= {SETTING: {"transported": entries, "peft_type": plain["peft_type"]}, "peft_type": SENTENCE}
    return plain


def _from_json_file(own: Callable[..., dict[str, Any]], cls: type, path: Any, **kwargs: Any) -> dict[str, Any]:
    loaded = own(cls, path, **kwargs)
    setting = loaded.get(SETTING)
    if setting is not None:
        if not (isinstance(setting, dict) and is_transported(setting.get("transported"))):
            raise ValueError(f"{path} is damaged: its {SETTING!r} is not what save_pretrained writes")
        loaded["peft_type"] = setting.get("peft_type")
    return loaded


def _from_peft_type(own: Callable[..., Any], cls: type, **kwargs: Any) -> Any:
    setting = kwargs.pop(SETTING, None)
    config = own(cls, **kwargs)
    config.__dict__[_TRAINED] = [] if setting is None else setting["transported"]
    return config


def _add(own: Callable[..., Any], model: Any, adapter_name: str, peft_config: Any, *args: Any, **kwargs: Any) -> Any:
    _require_same(peft_config, _base(model))
    return own(model, adapter_name, peft_config, *args, **kwargs)


def _inject(own: Callable[..., Any], tuner: Any, model: Any, adapter_name: str, *args: Any, **kwargs: Any) -> Any:
    _require_same(tuner.peft_config[adapter_name], model)
    return own(tuner, model, adapter_name, *args, **kwargs)


def _base(model: Any) -> Any:
    """The model that an adapter is in; PEFT's own `get_base_model` fails while the first adapter is added."""
    inner = model.base_model if hasattr(model, "peft_type") else model
    return inner.model if hasattr(inner, "inject_adapter") else inner


def _require_same(config: Any, model: Any) -> None:
    """The transport that the adapter of this configuration was trained with; a new adapter may have any."""
    trained = getattr(config, _TRAINED, None)
    if trained is None or _strengths(trained) == _strengths(now := transported(model)):
        return
    if trained:
        raise ValueError(
            f"the adapter was trained with {_description(trained)}, this {type(model).__name__} has "
            f"{_description(now)}: {_remedy(trained)} before the adapter is loaded"
        )
    # No error: earlier versions of joformer wrote nothing.
    warnings.warn(f"an adapter saved without transport is loaded into a model with {_description(now)}", stacklevel=4)


def _resume(own: Callable[..., Any], trainer: Any, folder: str, model: Any = None, *args: Any, **kwargs: Any) -> Any:
    result = own(trainer, folder, model, *args, **kwargs)
    if any(getattr(callback, "sets_strength", False) for callback in trainer.callback_handler.callbacks):
        return result
    now = transported(_base(trainer.accelerator.unwrap_model(trainer.model if model is None else model)))
    for path in (Path(folder) / CONFIG, Path(folder) / ADAPTER, *Path(folder).glob(f"*/{ADAPTER}")):
        trained = _entries_in(path)
        if trained is not None and _strengths(trained) != _strengths(now):
            warnings.warn(
                f"{path.parent} was saved with {_description(trained)}, and the model that resumes from it has "
                f"{_description(now)}: {_remedy(trained)} before training",
                stacklevel=3,
            )
    return result


def _entries_in(path: Path) -> Entries | None:
    """The entries in a file; None where there is no such file, or it cannot be read."""
    try:
        setting = json.loads(path.read_text(encoding="utf-8")).get(SETTING)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    entries = [] if setting is None else setting.get("transported") if isinstance(setting, dict) else None
    return entries if not entries or is_transported(entries) else None


def _strengths(entries: Entries) -> dict[str, float]:
    """Of every attention, by name: whether one call or two transported them does not matter."""
    return {str(name): entry["strength"] for entry in entries for name in entry["attentions"]}


def _description(entries: Entries) -> str:
    """
    >>> _description([{"part": "", "strength": 0.5, "attentions": ["a", "b"]}]), _description([])
    ('the values of 2 attentions transported at strength 0.5', 'no values transported')
    """
    strengths = _strengths(entries)
    if not strengths:
        return "no values transported"
    which = " and ".join(f"{value:g}" for value in sorted(set(strengths.values())))
    return f"the values of {len(strengths)} attentions transported at strength {which}"


def _remedy(entries: Entries) -> str:
    """
    >>> _remedy([{"part": "encoder", "strength": 1.5, "attentions": []}])
    'call transport_values(model.encoder, 1.5, extrapolate=True)'
    """
    calls = [
        f"transport_values({'.'.join(filter(None, ['model', entry['part']]))}, {entry['strength']:g}"
        f"{'' if 0 <= entry['strength'] <= 1 else ', extrapolate=True'})"
        for entry in entries
    ]
    return f"call {' and '.join(calls or ['transport_values(model, off=True)'])}"
