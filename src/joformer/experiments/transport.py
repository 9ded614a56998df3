"""Which side does the work: {none, scores, values, both} × {fixed, learned, projected, cumulative}, matched.

    joformer reproduce transport                              Python's own source, 3 seeds: three minutes
    joformer reproduce transport --data DATA --seeds 5        DATA/enwik8 or DATA/wikitext-2: an hour

Expect: on embedded text hundredths of a bit, mostly inconclusive with three seeds. Parameters are equal within 0.2 %,
steps and data exactly.

Not in the paper, which compares scores with both. `joformer compare` runs the same grid on data of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joformer.experiments.places import find
from joformer.experiments.sources import Scale, TextSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.experiments.variants import NAMES, SIDES, variant
from joformer.models import LMConfig
from joformer.training import Recipe


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run."""
    where = find(data, ("wikipedia", "enwik8", "wikitext-2"), scale, hub="wikipedia", embedded="stdlib", sole=sole)
    small, shape = where == "stdlib", dict[str, Any]()
    if scale == "paper":
        source = TextSource(where, vocab=8000, context=512, batch=32)
        total, rate, every, shape = steps or 200_000, 2e-4, 5000, {"dim": 256, "layers": 4, "heads": 4}
    else:
        source = TextSource(where, context=128 if small else 256, batch=16, held_out=100 if small else 200)
        total, rate = steps or (100 if small else 600), 3e-3 if small else 1e-3
        every, shape = max(1, total // (2 if small else 4)), {"dim": 64, "layers": 2, "heads": 2}
    recipe = Recipe(
        steps=total, lr=rate, end=0.1, warmup=total // 12, weight_decay=0.01, log_every=10, evaluate_every=every,
        save_every=every, keep=1, precision="bf16" if scale == "paper" else "fp32",
    )  # fmt: skip
    plain = LMConfig(vocab=source.load().tokenizer.vocab, transport="none", **shape)
    cells = [Cell(name, "", seed, variant(plain, name), source, recipe) for name in NAMES for seed in seeds]
    frames = [name.partition(", ")[2] for name in NAMES if name.startswith(SIDES[0])]
    return [
        plan(
            "transport",
            "Which side does the work",
            "bits_per_byte",
            cells,
            scale=scale,
            baseline="scores, fixed",
            pairs=tuple((f"scores, {kind}", f"both, {kind}") for kind in frames),
            notes=(
                f"{total} steps of {source.batch} windows of {source.context} tokens for all; parameters matched by "
                "the width of the feed-forward.",
                "none transports nothing, and so is one model whatever the frames would be.",
                "scores, fixed is RoPE.",
            ),
        )
    ]
