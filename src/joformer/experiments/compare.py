"""The grid of transport on anyone's data: text, images or sounds, by name or by path.

    joformer compare --data notes.txt                         13 models, 5 seeds, 300 steps: some minutes

Every kind of frames on every side (variants.py), parameters, steps, data and seeds matched, each beside RoPE; and what
a step of each takes, measured on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from joformer.bench._measure import geometric_mean
from joformer.experiments.cells import Cell
from joformer.experiments.plans import Plan
from joformer.experiments.results import RESULT, TABLE, read
from joformer.experiments.sources import ImageSource, TextSource
from joformer.experiments.variants import NAMES, variant
from joformer.models import LMConfig, ViTConfig
from joformer.models._vit import eighths
from joformer.training import Recipe, resolve
from joformer.training.data.sources import is_name

__all__ = ["answers", "is_name", "is_text", "plans"]

ROUNDS = 2
"""How often the time of a step is measured, each time in a process of its own."""


def plans(
    source: TextSource | ImageSource,
    seeds: Sequence[int],
    recipe: Recipe,
    *,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    baseline: str = "scores, fixed",
) -> list[Plan]:
    """The table of what is learned, and that of what a step takes.

    >>> compared, timed = plans(TextSource("stdlib", context=32), (0, 1), Recipe(steps=5), dim=32)
    >>> len(compared.cells), len(timed.cells)
    (26, 24)
    """
    if baseline not in NAMES:
        raise ValueError(f"unknown baseline {baseline!r}: choose from {'; '.join(NAMES)}")
    loaded: Any = source.load()
    if isinstance(source, TextSource):
        metric = "bits_per_byte"
        plain: Any = LMConfig(vocab=loaded.tokenizer.vocab, dim=dim, layers=layers, heads=heads, transport="none")
    else:
        metric = "accuracy"
        channels, *sides = loaded.train.images.shape[1:]
        shape = tuple(sides)
        plain = ViTConfig(
            model="none", shape=shape, patch=eighths(shape), channels=channels, classes=len(loaded.classes), dim=dim,
            layers=layers, heads=heads, pool="mean",
        )  # fmt: skip
    made = {name: variant(plain, name) for name in NAMES}
    cells = [Cell("compare", name, "", seed, made[name], source, recipe) for name in NAMES for seed in seeds]
    # The cost is that of the model as it is, not of one made narrower elsewhere.
    full = {name: variant(plain, name, match=False) for name in NAMES}
    others = [name for name in NAMES if name != baseline]
    timed = [
        Cell("cost", name, "", turn, full[name], source, replace(recipe, steps=1), against=full[baseline])
        for name in others
        for turn in range(ROUNDS)
    ]
    sizes = f"{layers} layers of {dim}, {heads} heads"
    return [
        Plan(
            name="compare",
            title="Frames and transport",
            scale="laptop",
            source=source,
            metric=metric,
            models=NAMES,
            baseline=baseline,
            pairs=tuple(
                (f"scores, {kind}", f"both, {kind}")
                for kind in ("fixed", "learned", "projected", "cumulative")
                if f"scores, {kind}" != baseline
            ),
            notes=(
                f"{recipe.total} steps of {source.batch}; {sizes}; parameters matched by the feed-forward's width.",
                "scores, fixed is RoPE; both is scores and values; none is one model whatever the frames would be.",
            ),
            cells=tuple(cells),
        ),
        Plan(
            name="cost",
            title=f"What a step takes, beside {baseline}",
            scale="laptop",
            source=source,
            metric="ratio",
            models=tuple(others),
            reference=1.0,
            notes=(f"{ROUNDS} rounds, each a process of its own, the best of twenty turns; parameters not matched.",),
            cells=tuple(timed),
        ),
    ]


def answers(out: Path) -> list[str]:
    """One sentence for each variant: better, worse or undecided, by how much, with what confidence, at what cost."""
    from joformer.experiments.report import sentences

    if not (out / "compare" / TABLE).is_file():  # times alone were asked for
        return []
    results: dict[str, list[dict[str, Any]]] = {}
    for name in ("compare", "cost"):
        results[name] = [read(place) for place in sorted((out / name).glob(f"**/{RESULT}"))]
    times: dict[str, list[float]] = {}
    for result in results["cost"]:
        times.setdefault(result["model"], []).append(result["measured"][""]["ratio"])
    for result in results["compare"]:
        if result["model"] in times:
            result["measured"][""]["time_ratio"] = geometric_mean(times[result["model"]])
    about = read(out / "compare" / TABLE)
    return sentences(about, results["compare"], pairs=False)  # those are in the report


def is_text(data: str) -> bool:
    """Whether the data is text, rather than images or sounds with their classes.

    >>> is_text("stdlib"), is_text("digits")
    (True, False)
    """
    return resolve(data).kind == "text"
