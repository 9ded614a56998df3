"""The README.md beside a saved model: what it is, how to load it, its results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

NAME = "README.md"

TRANSPORTED = {
    "none": "nothing is rotated",
    "scores": "queries and keys are rotated (RoPE), values are not",
    "values": "values are rotated, and their sum by the inverse rotation; queries and keys are not",
    "both": "queries, keys and values are rotated, and the sum of the values by the inverse rotation",
}


def model_card(model: nn.Module) -> str:
    """The text of a model's card.

    Args:
        model: A `JoFormerForCausalLM` or `JoFormerForImageClassification`; the table holds `model.config.results`,
            name → {metric: value}.

    Example:
        >>> from joformer.integrations.hf._config import JoFormerConfig
        >>> from joformer.integrations.hf._language import JoFormerForCausalLM
        >>> config = JoFormerConfig(vocab=50, dim=32, layers=2, heads=2, results={"enwik8": {"bits per byte": 1.25}})
        >>> print(*model_card(JoFormerForCausalLM(config)).splitlines()[-3:], sep="\\n")
        |  | bits per byte |
        |---|---|
        | enwik8 | 1.25 |
    """
    config: Any = model.config
    ours, vision = config.to_joformer(), config.model_type == "joformer_vit"
    parameters = sum(p.numel() for p in model.parameters())
    task = "image-classification" if vision else "text-generation"
    auto = "AutoModelForImageClassification" if vision else "AutoModelForCausalLM"
    what = _vision(ours) if vision else _language(ours)
    transport = ours.transport
    lines = [
        "---", "library_name: transformers", f"pipeline_tag: {task}", "tags:", "- joformer",
        *(["- value-transport"] if transport in ("values", "both") else []), "---", "",
        f"# {type(model).__name__}", "",
        what, "",
        f"Transport `{transport}`: {TRANSPORTED[transport]}. {parameters:,} parameters.", "",
        "## Use", "",
        "```python", "import joformer.integrations.hf.models  # makes the model known to transformers",
        f"from transformers import {auto}", "",
        f'model = {auto}.from_pretrained("this folder")', "```", "",
        "## Results", "",
        *_table(config.results),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def write_card(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write the card into the folder, unless a README.md is there, which is never overwritten.

    >>> from tempfile import TemporaryDirectory
    >>> from joformer.integrations.hf._config import JoFormerConfig
    >>> from joformer.integrations.hf._language import JoFormerForCausalLM
    >>> with TemporaryDirectory() as folder:
    ...     write_card(JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)), folder)
    ...     (Path(folder) / NAME).read_text().splitlines()[1]
    'library_name: transformers'
    """
    place = Path(folder) / NAME
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(model_card(model), encoding="utf-8")


def _language(config: Any) -> str:
    frames = ", ".join(dict.fromkeys(config.names))
    window = f" (W within {config.window} tokens)" if "W" in config.letters else ""
    return (
        f"A JoFormer language model: {config.layers} layers of width {config.dim} with {config.heads} heads, "
        f"{config.vocab} tokens, frames {frames}, layer pattern {config.letters}{window}."
    )


def _vision(config: Any) -> str:
    shape, patch = (" × ".join(map(str, sides)) for sides in (config.shape, config.patch))
    return (
        f"A JoFormer vision transformer, variant `{config.name or config.variant}`: {config.layers} layers of width "
        f"{config.dim} with {config.heads} heads, images of {config.channels} × {shape} in patches of {patch}, "
        f"{config.classes} classes."
    )


def _table(results: dict[str, dict[str, Any]] | None) -> list[str]:
    if not results:
        return ["No results were recorded with this model."]
    metrics = list(dict.fromkeys(metric for row in results.values() for metric in row))
    return [
        "| " + " | ".join(["", *metrics]) + " |",
        "|" + "---|" * (1 + len(metrics)),
        *("| " + " | ".join([name, *(_cell(row.get(m)) for m in metrics)]) + " |" for name, row in results.items()),
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
