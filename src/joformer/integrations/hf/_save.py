"""Saving a model whose values are transported, so that it is loaded as such or not at all.

`save_pretrained` writes into config.json which attentions are transported, by name, and replaces one number of the
configuration there by a sentence. Whoever loads the folder without joformer gets that sentence in the error instead of
a model that computes something else; `load` puts the number back.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joformer._io import one_line

CONFIG = "config.json"
SETTING = "joformer"
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
SENTENCE = "the values of this model are transported: pip install joformer, then joformer.integrations.load(folder)"


def follow() -> None:
    """From now on `save_pretrained` writes the setting of every model of which any part is transported.

    Of the class and not of a model: who transports a part has no way to reach the models it is in.
    """
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        from joformer.integrations.hf import _adapters as adapters

        wrap(transformers.PreTrainedModel, "save_pretrained", _save_marked)
        adapters.follow()


def wrap(cls: type, name: str, around: Callable[..., Any]) -> None:
    """Let `cls.name(…)` call `around(own, …)` with its own method first; done once, and where there is such a method.

    >>> class Greeter:
    ...     def greet(self, name):
    ...         return f"hello {name}"
    >>> for _ in range(2):
    ...     wrap(Greeter, "greet", lambda own, self, name: own(self, name) + "!")
    >>> Greeter().greet("you")
    'hello you!'
    """
    raw = cls.__dict__.get(name)
    own = raw.__func__ if isinstance(raw, classmethod) else raw
    if own is not None and not hasattr(own, "_joformer"):

        @functools.wraps(own)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(own, *args, **kwargs)

        wrapped._joformer = True  # type: ignore[attr-defined]
        setattr(cls, name, classmethod(wrapped) if isinstance(raw, classmethod) else wrapped)


def load(folder: str | Path, **kwargs: Any) -> Any:
    """The model that `save_pretrained` wrote to `folder`, with its values transported as they were.

    Its tokenizer is loaded with `AutoTokenizer.from_pretrained(folder, config=model.config)`.

    Args:
        folder: Weights are read from safetensors only, no code in it is run, and nothing is fetched.
        kwargs: For transformers' `from_pretrained`; with `output_loading_info=True` the result is a pair, as there.

    Raises:
        ValueError: In one line: the folder says nothing of transport (it needs only transformers), or it is damaged.

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
    from joformer.integrations._transport import transport_values, transported

    if kwargs.get("use_safetensors") not in (None, True):
        raise ValueError("use_safetensors must be True: a pickle can run code when it is loaded, and is never read")
    path, plain = Path(folder) / CONFIG, _configuration(Path(folder))
    setting = plain.pop(SETTING, None)
    if not isinstance(setting, dict) or not {"field", "value", "transported"} <= set(setting):
        raise ValueError(f"{path} says nothing of transport: load it with transformers, then transport_values(model)")
    if plain.get(str(setting["field"])) != SENTENCE or not is_transported(setting["transported"]):
        raise ValueError(f"{path} is damaged: its {SETTING!r} is not what save_pretrained writes")
    plain[setting["field"]] = setting["value"]
    cls = architecture(plain)
    if cls is None:
        raise ValueError(f"{path} names no architecture that this transformers has: {plain.get('architectures')}")
    model, found = read(cls, Path(folder), plain, **kwargs)
    strange = sorted(found["unexpected_keys"])
    if strange:
        raise ValueError(f"{folder} has {len(strange)} weights that {CONFIG} knows nothing of, such as {strange[0]}")
    for entry in setting["transported"]:
        try:
            part = model.get_submodule(entry["part"])
        except AttributeError:
            raise ValueError(
                f"{path} says that {entry['part']} is transported, and the model has no such part"
            ) from None
        transport_values(part, entry["strength"])
    if transported(model) != setting["transported"]:
        raise ValueError(
            f"{path} names other attentions than those that this transformers gives the model: load it with "
            f"transformers {plain.get('transformers_version')}"
        )
    return (model, found) if kwargs.get("output_loading_info") else model


def architecture(plain: dict[str, Any]) -> Any:
    """The class of transformers that a configuration names first, or None.

    >>> architecture({"architectures": ["LlamaForCausalLM"]}).__name__, architecture({"architectures": ["AutoConfig"]})
    ('LlamaForCausalLM', None)
    """
    import transformers

    names = plain.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    return cls if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel) else None


def read(cls: Any, folder: Path, plain: dict[str, Any] | None = None, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """The model of this class in the folder, with every weight in its place, and what `from_pretrained` says of it.

    Args:
        cls: A class of transformers.
        folder: Weights as safetensors, which alone are read, and the configuration.
        plain: What is read in place of the configuration that is there.
        kwargs: For `from_pretrained`.

    Raises:
        ValueError: In one line, whatever is wrong with the folder.
    """
    tensors, layers = _tensors(folder), _layers(_configuration(folder) if plain is None else plain)
    if layers > len(tensors):
        raise ValueError(f"{folder / CONFIG} asks for {layers} layers, but there are {len(tensors)} tensors")
    how = {"local_files_only": True, **kwargs, "use_safetensors": True, "output_loading_info": True}
    try:
        if plain is not None and "config" not in kwargs:
            how["config"] = cls.config_class.from_dict(plain)
        model, found = cls.from_pretrained(str(folder), **how)
    except Exception as error:  # whatever a damaged folder makes of it
        raise ValueError(f"{folder} cannot be loaded: {one_line(error)}") from error
    mismatched = [] if kwargs.get("ignore_mismatched_sizes") else found.get("mismatched_keys") or []
    missing = sorted(map(str, [*found["missing_keys"], *mismatched]))
    if missing:
        raise ValueError(f"{folder} lacks {len(missing)} of its weights, such as {missing[0]}: fetch it again")
    for name, value in model.state_dict().items():  # transformers would convert the integers to floats
        if value.is_floating_point() and "F" not in tensors.get(name, "F"):
            raise ValueError(f"{folder} has {name} as {tensors[name]}, and {value.dtype} belongs there: fetch it again")
    return model, found


def _configuration(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{folder} has no {CONFIG}: give a folder that save_pretrained wrote")
    try:
        plain = json.loads(path.read_text(encoding="utf-8"), object_hook=_float)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {one_line(error)}") from error
    return plain if isinstance(plain, dict) else {}


def _float(given: dict[str, Any]) -> Any:
    """JSON has no infinity: transformers writes {"__float__": "Infinity"}."""
    if list(given) == ["__float__"] and given["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(given["__float__"])
    return given


def _layers(plain: Any) -> int:
    """The largest number of layers that a configuration, or one inside it, asks for: each takes time to build.

    >>> _layers({"num_hidden_layers": 2, "vision_config": {"n_layer": 7}})
    7
    """
    if not isinstance(plain, dict):
        return 0
    own = [n for name in LAYERS if isinstance(n := plain.get(name), int)]
    return max([0, *own, *map(_layers, plain.values())])


def _tensors(folder: Path) -> dict[str, str]:
    """Names and types in whole safetensors; no index leads elsewhere: transformers would read a pickle it names."""
    from safetensors import SafetensorError, safe_open

    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{folder} holds an adapter beside the model: give each a folder of its own")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no weights as safetensors, and others are not read: save it as such first")
    for index in folder.glob("*.safetensors.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder} cannot be loaded: {index.name} is damaged ({one_line(error)})") from error
        strange = sorted(map(str, named - {file.name for file in files}))
        if strange:
            raise ValueError(f"{index} names {strange[0]!r}, which is no safetensors in that folder: fetch it again")
    found: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as held:
                found |= {name: held.get_slice(name).get_dtype() for name in held.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder} cannot be loaded: {file.name} is damaged ({one_line(error)})") from error
    return found


def is_transported(entries: Any) -> bool:
    """Whether this is what `transported` gives, at least in form: a file may say anything.

    >>> is_transported([{"part": "", "strength": 1.0, "attentions": ["layers.0"]}]), is_transported([{"part": ""}])
    (True, False)
    """
    return (
        isinstance(entries, list)
        and bool(entries)
        and all(
            isinstance(entry, dict)
            and entry.keys() == {"part", "strength", "attentions"}
            and isinstance(entry["part"], str)
            and isinstance(entry["strength"], int | float)
            and isinstance(entry["attentions"], list)
            for entry in entries
        )
    )


def _save_marked(save: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    from joformer.integrations._transport import transported
    from joformer.integrations.hf._adapters import saving

    entries = transported(model)
    if not entries:  # at strength 0 the model is what it was
        return save(model, *args, **kwargs)
    config = model.config
    field, value = _number(config)

    def to_json_file(path: str | Path, use_diff: bool = True) -> None:
        # After the configuration's own checks, which are what will refuse the sentence when it is loaded.
        del config.__dict__["to_json_file"]
        plain = json.loads(config.to_json_string(use_diff=use_diff))
        plain |= {field: SENTENCE, SETTING: {"field": field, "value": value, "transported": entries}}
        Path(path).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    config.__dict__["to_json_file"] = to_json_file
    token = saving.set(entries)  # where adapters are all that is saved
    try:
        return save(model, *args, **kwargs)
    finally:
        saving.reset(token)
        config.__dict__.pop("to_json_file", None)


def _number(config: Any) -> tuple[str, int | float]:
    """A field of the configuration that must be a number, and is of this class alone."""
    from transformers import PreTrainedConfig

    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    own = [field.name for field in dataclasses.fields(config) if field.name not in common]
    for name in sorted(own, key=lambda name: name != "hidden_size"):
        value = config.__dict__.get(name)
        if type(value) in (int, float) and math.isfinite(value):
            return name, value
    raise ValueError(f"{type(config).__name__} has no number to keep the setting with: this model cannot be saved")
