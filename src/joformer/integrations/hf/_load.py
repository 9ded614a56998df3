"""Loading a folder that a transported model was saved to, without running any code in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joformer._io import one_line
from joformer.integrations._record import transported
from joformer.integrations._transport import transport_values
from joformer.integrations.hf._save import SENTENCE
from joformer.integrations.hf._setting import CONFIG, SETTING, is_transported

LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")


def load(folder: str | Path, **kwargs: Any) -> Any:
    """Loads the model that `save_pretrained` wrote to `folder`, with the same value transport.

    Its tokenizer is loaded with `AutoTokenizer.from_pretrained(folder, config=model.config)`.

    Args:
        folder: Weights are read from safetensors only, no code in it is run, and nothing is downloaded.
        kwargs: Passed to `from_pretrained` of transformers.

    Returns:
        The model; with `output_loading_info=True` a pair, as from transformers.

    Raises:
        ValueError: If the folder is damaged, or does not mention transport (then transformers alone can load it).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from joformer.integrations import strength_of, transport_values
        >>> config = LlamaConfig(
        ...     vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        ... )
        >>> with TemporaryDirectory() as folder:
        ...     transport_values(LlamaForCausalLM(config), 0.5).save_pretrained(folder)
        ...     strength_of(load(folder))
        0.5
    """
    if kwargs.get("use_safetensors") not in (None, True):
        raise ValueError("use_safetensors must be True: a pickle can run code when it is loaded, and is never read")
    path, plain = Path(folder) / CONFIG, _configuration(Path(folder))
    setting = plain.pop(SETTING, None)
    if not isinstance(setting, dict) or not {"field", "value", "transported"} <= set(setting):
        raise ValueError(f"{path} does not mention transport: load it with transformers, then transport_values(model)")
    if plain.get(str(setting["field"])) != SENTENCE or not is_transported(setting["transported"]):
        raise ValueError(f"{path} is damaged: its {SETTING!r} is not what save_pretrained writes")
    plain[setting["field"]] = setting["value"]
    cls = architecture(plain)
    if cls is None:
        raise ValueError(
            f"{path} names no architecture that this version of transformers has: {plain.get('architectures')}"
        )
    model, found = read(cls, Path(folder), plain, **kwargs)
    strange = sorted(found["unexpected_keys"])
    if strange:
        raise ValueError(f"{folder} has {len(strange)} weights that {CONFIG} does not describe, such as {strange[0]}")
    for entry in setting["transported"]:
        try:
            part = model.get_submodule(entry["part"])
        except AttributeError:
            raise ValueError(f"{path} has {entry['part']} transported, but the model has no such part") from None
        transport_values(part, entry["strength"], extrapolate=True)
    if transported(model) != setting["transported"]:
        raise ValueError(
            f"{path} names attention layers that differ from those of this version of transformers: load it with "
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
    """The model in a folder, with every weight in its place, and the loading information of `from_pretrained`.

    Args:
        cls: A class of transformers.
        folder: Weights as safetensors, others are not read, and the configuration.
        plain: A configuration to use instead of that in the folder.
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
    except Exception as error:  # a damaged folder may raise anything
        raise ValueError(f"{folder} cannot be loaded: {one_line(error)}") from error
    mismatched = [] if kwargs.get("ignore_mismatched_sizes") else found.get("mismatched_keys") or []
    missing = sorted(map(str, [*found["missing_keys"], *mismatched]))
    if missing:
        raise ValueError(f"{folder} lacks {len(missing)} of its weights, such as {missing[0]}: fetch it again")
    for name, value in model.state_dict().items():  # transformers would convert the integers to floats
        if value.is_floating_point() and "F" not in tensors.get(name, "F"):
            raise ValueError(f"{folder} has {name} as {tensors[name]} instead of {value.dtype}: fetch it again")
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
    """The largest number of layers in a configuration or one inside it: each takes time to build.

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
        raise ValueError(f"{folder} holds an adapter next to the model: give each its own folder")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(
            f"{folder} has no safetensors weights, and other formats are not read: save it as safetensors first"
        )
    for index in folder.glob("*.safetensors.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder} cannot be loaded: {index.name} is damaged ({one_line(error)})") from error
        strange = sorted(map(str, named - {file.name for file in files}))
        if strange:
            raise ValueError(
                f"{index} names {strange[0]!r}, which is not a safetensors file in that folder: fetch it again"
            )
    found: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as held:
                found |= {name: held.get_slice(name).get_dtype() for name in held.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder} cannot be loaded: {file.name} is damaged ({one_line(error)})") from error
    return found
