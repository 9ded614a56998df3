"""Adapters of PEFT: with which transport they were trained is saved with them, and required where they are loaded.

    adapter_config.json     "joformer": {"transported": [part, strength and names], "peft_type": "LORA"}
                            "peft_type": a sentence, which is what PEFT without joformer stops with

An adapter is saved without its model, and computes something else on one that is transported in another way.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from joformer.integrations.hf._save import CONFIG, SETTING, is_transported, wrap

ADAPTER = "adapter_config.json"
SENTENCE = "trained with transported values: pip install joformer, joformer.integrations.transport_values(model) first"
_REMEMBERED = "_joformer_transported"

saving: ContextVar[list[dict[str, Any]]] = ContextVar("saving", default=[])  # noqa: B039 (never changed in place)
"""What is transported in the model that is being saved: adapters do not know the model they are in."""


def follow() -> None:
    """From now on PEFT writes and requires the setting, and transformers' Trainer compares it when it resumes."""
    if find_spec("peft") is not None:
        try:
            from peft import PeftModel
            from peft.config import PeftConfigMixin
            from peft.tuners.tuners_utils import BaseTuner
        except ImportError:  # one that does not fit this transformers
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
    from joformer.integrations._transport import transported

    token = saving.set(transported(_base(model)))
    try:
        return save(model, *args, **kwargs)
    finally:
        saving.reset(token)


def _to_dict(own: Callable[..., dict[str, Any]], config: Any) -> dict[str, Any]:
    plain, entries = own(config), saving.get()
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
    config.__dict__[_REMEMBERED] = [] if setting is None else setting["transported"]
    return config


def _add(own: Callable[..., Any], model: Any, adapter_name: str, peft_config: Any, *args: Any, **kwargs: Any) -> Any:
    _require(peft_config, _base(model))
    return own(model, adapter_name, peft_config, *args, **kwargs)


def _inject(own: Callable[..., Any], tuner: Any, model: Any, adapter_name: str, *args: Any, **kwargs: Any) -> Any:
    _require(tuner.peft_config[adapter_name], model)
    return own(tuner, model, adapter_name, *args, **kwargs)


def _base(model: Any) -> Any:
    """The model that an adapter is in; PEFT's own `get_base_model` fails while the first adapter is added."""
    inner = model.base_model if hasattr(model, "peft_type") else model
    return inner.model if hasattr(inner, "inject_adapter") else inner


def _require(config: Any, model: Any) -> None:
    """The transport that the adapter of this configuration was trained with; one that is new may have any."""
    from joformer.integrations._transport import transported

    trained = getattr(config, _REMEMBERED, None)
    if trained is None or _strengths(trained) == _strengths(now := transported(model)):
        return
    if trained:
        raise ValueError(
            f"the adapter was trained with {_told(trained)}, this {type(model).__name__} has {_told(now)}: "
            f"{_remedy(trained)} before the adapter is loaded"
        )
    # No error: joformer before this one wrote nothing.
    warnings.warn(f"an adapter saved without transport is loaded into a model with {_told(now)}", stacklevel=4)


def _resume(own: Callable[..., Any], trainer: Any, folder: str, model: Any = None, *args: Any, **kwargs: Any) -> Any:
    from joformer.integrations._annealing import Anneal
    from joformer.integrations._transport import transported

    result = own(trainer, folder, model, *args, **kwargs)
    if any(isinstance(callback, Anneal) for callback in trainer.callback_handler.callbacks):
        return result  # which sets the strength of every step
    now = transported(_base(trainer.accelerator.unwrap_model(trainer.model if model is None else model)))
    for path in (Path(folder) / CONFIG, Path(folder) / ADAPTER, *Path(folder).glob(f"*/{ADAPTER}")):
        trained = _written(path)
        if trained is not None and _strengths(trained) != _strengths(now):
            warnings.warn(
                f"{path.parent} was saved with {_told(trained)}, and the model that resumes from it has {_told(now)}: "
                f"{_remedy(trained)} before training",
                stacklevel=3,
            )
    return result


def _written(path: Path) -> list[dict[str, Any]] | None:
    """What a file says is transported; None where there is no such file, or it cannot be read."""
    try:
        setting = json.loads(path.read_text(encoding="utf-8")).get(SETTING)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    entries = [] if setting is None else setting.get("transported") if isinstance(setting, dict) else None
    return entries if not entries or is_transported(entries) else None


def _strengths(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Of every attention, by name: that one call or two made it so is all the same."""
    return {str(name): entry["strength"] for entry in entries for name in entry["attentions"]}


def _told(entries: list[dict[str, Any]]) -> str:
    """
    >>> _told([{"part": "", "strength": 0.5, "attentions": ["a", "b"]}]), _told([])
    ('the values of 2 attentions transported at strength 0.5', 'no values transported')
    """
    strengths = _strengths(entries)
    if not strengths:
        return "no values transported"
    which = " and ".join(f"{value:g}" for value in sorted(set(strengths.values())))
    return f"the values of {len(strengths)} attentions transported at strength {which}"


def _remedy(entries: list[dict[str, Any]]) -> str:
    """
    >>> _remedy([{"part": "encoder", "strength": 0.5, "attentions": []}])
    'call transport_values(model.encoder, 0.5)'
    """
    calls = [f"transport_values({'.'.join(['model', *filter(None, [e['part']])])}, {e['strength']:g})" for e in entries]
    return f"call {' and '.join(calls or ['transport_values(model, off=True)'])}"
