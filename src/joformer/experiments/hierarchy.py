"""The value-path hierarchy, trained side by side: attention, linear and selective recurrences, JoFormer, at equal size.

    joformer reproduce hierarchy                              Python's own source, 2 layers of 64, 3 seeds: two minutes
    joformer reproduce hierarchy --data DATA                  DATA/enwik8 or DATA/wikitext-2, 1,500 steps: two hours
    joformer reproduce hierarchy --scale paper                Wikipedia, 4 layers of 256, 20,000 steps: GPUs

Expect: see docs/results.md.

Paper: "Value-Path Hierarchy and SSM Bridge", which compares what these can express and trains none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from joformer.experiments.places import find
from joformer.experiments.sources import Scale, TextSource
from joformer.experiments.tables import Cell, Table, parameters, plan
from joformer.experiments.variants import matched, variant
from joformer.models import LMConfig
from joformer.training import Recipe

GRID = ("none", "alibi", "shaw", "scores, fixed", "both, fixed", "both, cumulative")
OTHERS = {
    "linear ssm": {"pattern": "R"},
    "selective ssm": {"pattern": "S"},
    "linear attention, scores": {"pattern": "L", "transport": "scores"},
    "linear attention, both": {"pattern": "L", "transport": "both"},
}
MODELS = (
    *GRID[:1],
    "linear ssm",
    "selective ssm",
    *GRID[1:],
    *(name for name in OTHERS if name.startswith("linear a")),
)
TEXTS = ("wikipedia", "enwik8", "wikitext-2")


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run."""
    where = find(data, TEXTS, scale, hub="wikipedia", embedded="stdlib", sole=sole)
    if scale == "paper":
        source, (dim, layers) = TextSource(where, vocab=8000, context=512), (256, 4)
        total, rate, every = steps or 20_000, 1e-3, 2000
    else:
        small = where == "stdlib"
        source = TextSource(where, context=128 if small else 256, batch=16, held_out=100 if small else 200)
        total, rate, (dim, layers) = steps or (120 if small else 1500), 3e-3, (64, 2)
        every = max(1, total // (2 if small else 15))
    recipe = Recipe(
        steps=total, lr=rate, end=0.1, warmup=total // 12, weight_decay=0.01, log_every=10, evaluate_every=every,
        save_every=every, keep=1, precision="bf16" if scale == "paper" else "fp32",
    )  # fmt: skip
    none = LMConfig(vocab=source.load().tokenizer.vocab, dim=dim, layers=layers, heads=4, transport="none")
    made = {name: variant(none, name) for name in GRID}
    made |= {name: matched(replace(none, **changes), parameters(none)) for name, changes in OTHERS.items()}  # type: ignore[arg-type]
    cells = [Cell(name, "", seed, made[name], source, recipe) for name in MODELS for seed in seeds]
    return [
        plan(
            "hierarchy",
            "The hierarchy of value paths",
            "bits_per_byte",
            cells,
            scale=scale,
            baseline="scores, fixed",
            pairs=(("linear attention, scores", "linear attention, both"),),
            notes=(
                f"{total} steps of {source.batch} windows of {source.context} tokens for all; feed-forward widths "
                "are adjusted so that parameters match: a recurrence has two projections where attention has four.",
                "The recurrences are the paper's: no gate, no convolution, a state of one vector per head. Mamba and "
                "its kin have more of everything.",
                "Shaw's distances are clipped at 16.",
            ),
        )
    ]
