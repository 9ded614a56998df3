"""Language models: RoPE, values transported by fixed, learned and content-dependent angles.

    joformer reproduce wikipedia                              Python's own source, n100 L2, 3 seeds: two minutes
    joformer reproduce wikipedia --data DATA                  DATA/enwik8 or DATA/wikitext-2, 600 steps: half an hour
    joformer reproduce wikipedia --scale paper                Wikipedia, n100 to n500, 200,000 steps: GPUs

Expect: values transported as well as scores a tenth of a bit ahead early in training, the printed projected angles far
behind (docs/results.md). The paper's perplexities are implausible as what they are called
(docs/claims.md row 59): compare differences, not values.

Paper: "JoFormer Wikipedia Language Modeling".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joformer import paper
from joformer.experiments.places import find
from joformer.experiments.sources import Scale, TextSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import LMConfig
from joformer.training import Recipe

MODELS: dict[str, dict[str, Any]] = {
    "roformer": {"frames": "fixed", "transport": "scores"},
    "values only": {"frames": "fixed", "transport": "values"},
    "fixed": {"frames": "fixed"},
    "learned": {"frames": "learned"},
    "projected": {"frames": "projected", "projected_base": "none"},
    "projected on fixed": {"frames": "projected", "projected_base": "fixed"},
    "cumulative": {"frames": "cumulative", "projected_base": "fixed"},
}
TEXTS = ("wikipedia", "enwik8", "wikitext-2")


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run."""
    where = find(data, TEXTS, scale, hub="wikipedia", embedded="stdlib", sole=sole)
    if scale == "paper":
        source = TextSource(where, vocab=8000, context=512, batch=32, held_out=None, percent=1)
        total = steps or 200_000
        recipe = Recipe(
            steps=total, lr=2e-4, end=0.1, betas=(0.9, 0.95), weight_decay=0.01, clip=None, precision="bf16",
            log_every=100, evaluate_every=5000, save_every=5000, keep=1,
        )  # fmt: skip
        sizes = {"n100, L2": (100, 2), "n200, L2": (200, 2), "n200, L4": (200, 4), "n250, L4": (250, 4),
                 "n500, L2": (500, 2), "n500, L4": (500, 4)}  # fmt: skip
    else:
        small = where == "stdlib"
        source = TextSource(where, context=128 if small else 256, batch=16, held_out=100 if small else 200)
        total = steps or (100 if small else 600)
        recipe = Recipe(
            steps=total, lr=3e-3 if small else 1e-3, end=0.1, warmup=total // 12, betas=(0.9, 0.95), weight_decay=0.01,
            log_every=10, evaluate_every=max(1, total // (2 if small else 4)), save_every=100, keep=1,
        )  # fmt: skip
        sizes = {"n100, L2": (100, 2)}
    vocab = source.load().tokenizer.vocab
    cells = [
        Cell(model, size, seed, LMConfig(vocab=vocab, dim=dim, layers=layers, heads=1, **change), source, recipe)
        for size, (dim, layers) in sizes.items()
        for model, change in MODELS.items()
        for seed in seeds
    ]  # fmt: skip
    printed: dict[str, dict[str, float]] = {}
    for size, row in paper.WIKIPEDIA.items():
        if size in sizes:
            for model, value in zip(("roformer", "fixed", "learned", "projected"), row, strict=True):
                printed.setdefault(model, {})[size] = value
    return [
        plan(
            "wikipedia",
            "Language models",
            "bits_per_byte",
            cells,
            scale=scale,
            baseline="roformer",
            paper=printed,
            paper_metric="perplexity",
            also=("perplexity",),
            paper_setting="English Wikipedia, BPE of 8,000, 200,000 steps, one seed",
            comparable=scale == "paper" and steps is None and Path(where).name == "wikipedia",
            notes=(
                f"{total} steps of {source.batch} windows of {source.context} tokens; vocabulary of {vocab}.",
                "Held out is the last 1 % of the text, and all of it is scored; another 1 % is left for a test."
                if scale == "paper"
                else f"Scored are {source.held_out} windows, spread evenly over what is held out.",
                "Perplexity is per token and compares models of one vocabulary; bits per byte compare any.",
                "As in the paper, content-dependent models have more parameters; the table of transport matches them.",
                "projected is the printed formula, without a base; projected on fixed begins as fixed (row 23).",
            ),
        )
    ]
