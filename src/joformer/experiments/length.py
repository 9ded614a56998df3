"""Length: trained on short windows, measured on long ones; windowed layers with frames, and some without positions.

    joformer reproduce length                                 Python's own source, 6 layers, 3 seeds: three minutes
    joformer reproduce length --data DATA                     DATA/enwik8 or DATA/wikitext-2, 600 steps: half an hour
    joformer reproduce length --scale paper                   163M parameters, 200,000 steps for every row: GPUs

Expect: windowed layers do not see the length; what may grow is the loss of the layers without positions (docs/claims.md
row 58), and after so few steps it does not. All rows have the same steps and learning rates, unlike in the paper.

Paper: "Length Generalization".
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
    "rope": {"frames": "fixed", "transport": "scores"},
    "fixed": {"frames": "fixed"},
    "projected": {"frames": "fixed"},  # its third stage changes them
    "cumulative": {"frames": "cumulative"},
}
TEXTS = ("openwebtext", "enwik8", "wikitext-2")


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run."""
    where = find(data, TEXTS, scale, hub="openwebtext", embedded="stdlib", sole=sole)
    if scale == "paper":
        source = TextSource(where, vocab=50257, context=512, batch=32)
        total, rates, precision, pattern = steps or 200_000, (5e-4, 2e-4, 5e-5), "bf16", "WWWWWNWWWWWNWWWN"
        shape: dict[str, Any] = {"dim": 768, "layers": 16, "heads": 8}
        lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    else:
        small = where == "stdlib"
        source = TextSource(where, context=256, batch=8, held_out=10 if small else 50)
        total, rates, precision, pattern = steps or (100 if small else 600), (2e-3, 8e-4, 2e-4), "fp32", "WWWWWN"
        shape = {"dim": 64, "layers": 6, "heads": 4}
        lengths = (256, 512, 1024, 2048, 4096)
    vocab = source.load().tokenizer.vocab
    cells = [
        Cell(
            model, "", seed,
            LMConfig(vocab=vocab, pattern=pattern, window=32, **shape, **change), source,
            _recipe(model, total, rates, precision), lengths=lengths,
        )
        for model, change in MODELS.items()
        for seed in seeds
    ]  # fmt: skip
    printed = {
        model: {
            str(length * source.context // 512): value for length, value in zip(paper.LENGTHS, row[:4], strict=True)
        }
        for model, row in paper.LENGTH.items()
    }
    return [
        plan(
            "length",
            f"Trained at {source.context} tokens, measured up to {lengths[-1]}",
            "perplexity",
            cells,
            scale=scale,
            baseline="rope",
            paper=printed,
            paper_setting="OpenWebText, 163M parameters, trained at 512 tokens, one seed; projected 200,000 steps, "
            "rope 150,000",
            comparable=scale == "paper" and steps is None and Path(where).name == "openwebtext",
            notes=(
                f"{total} steps for every row and the same learning rates, in three stages of 2 : 1 : 1; the row of "
                "projected angles has fixed ones in the first two. Cumulative angles are there from the start.",
                f"Perplexity of {'bytes' if vocab == 256 else 'tokens'}; {source.held_out} windows at each length, "
                "other text at each: compare models at a length, not lengths of a model.",
                "The paper's figures are for the same multiple of the training length; it trains at 512.",
                "Content-dependent rows have more parameters, as in the paper.",
            ),
        )
    ]


def _recipe(model: str, total: int, rates: tuple[float, float, float], precision: Any) -> Recipe:
    first, second = total // 2, total // 4
    counts = (first, second, total - first - second)
    stages = tuple(f"{count}:{rate:g}" for count, rate in zip(counts, rates, strict=True))
    if model == "projected":
        stages = (*stages[:2], f"{stages[2]}:projected")
    every = max(1, total // 4)
    return Recipe(
        stages=stages, end=0.1, warmup=min(total // 20, *counts), weight_decay=0.01, precision=precision,
        log_every=10, evaluate_every=every, save_every=min(every, 5000), keep=1,
    )  # fmt: skip
