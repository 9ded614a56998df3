"""Knowledge graphs: relations as rotations that commute (RotatE), and as rotations that need not.

    joformer reproduce relations                              a family of four generations, 3 seeds: a minute
    joformer reproduce relations --data DATA                  DATA/kg/nations, kinships and umls: 45 minutes

Expect: blocks of 4 some three points ahead of planes on Kinships, whose relations do not commute, and two behind on
UMLS (docs/results.md).

Not a table of the paper, which names RotatE as a special case. Ranks are filtered; models are compared on the valid
split, and those of the test split, which is what others publish, stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from joformer._remote import Store, is_address
from joformer.experiments.sources import GraphSource, Scale
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import RelationsConfig
from joformer.training import Recipe

GRAPHS = ("nations", "kinships", "umls")
MODELS = {"planes": 2, "blocks of 4": 4}
"""Entries that a relation rotates together."""
FAMILY = GraphSource("family", batch=128, negatives=16)
"""What is embedded: 852 triples of 77 entities, for which the batches of larger graphs would be a waste."""


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """One table per graph."""
    sources = [FAMILY if place == FAMILY.data else GraphSource(place) for place in _places(data, sole)]
    return [table(source, scale, seeds, steps) for source in sources]


def table(source: GraphSource, scale: Scale, seeds: Sequence[int], steps: int | None, named: bool = True) -> Table:
    """The table of one graph."""
    graph = source.load()
    total, dim = steps or (300 if source.data == "family" else 2000), 128
    every = max(1, total // 10)
    recipe = Recipe(
        steps=total, lr=1e-2, end=0.0, betas=(0.9, 0.999), weight_decay=0.0, clip=None, log_every=20,
        evaluate_every=every, save_every=every, keep=1,
    )  # fmt: skip
    cells = [
        Cell(
            name, "", seed, RelationsConfig(len(graph.entities), len(graph.relations), dim, block), source, recipe
        )
        for name, block in MODELS.items()
        for seed in seeds
    ]  # fmt: skip
    return plan(
        "relations",
        "Which entity completes a triple",
        "mrr",
        cells,
        named=named,
        scale=scale,
        baseline="planes",
        also=("test_mrr", "test_hits_1", "test_hits_3", "test_hits_10"),
        notes=(
            f"{total} steps of {source.batch} triples with {source.negatives} wrong tails and heads each; vectors of "
            f"{dim}; filtered ranks, compared on the valid split.",
            "A relation has dim / 2 angles in planes and three times as many in blocks of 4; entities are what counts.",
        ),
    )


def _places(data: str | Path | None, sole: bool) -> list[str]:
    """The graphs below the folder (or below kg in it), the folder itself where this table alone is requested."""
    if data is None:
        return ["family"]
    if is_address(data):
        store = Store(str(data))
        below = [f"{above}{name}" for above in ("", "kg/") for name in GRAPHS if store.has(f"{above}{name}")]
        return [f"{store.address}/{name}" for name in below] or [store.address if sole else "family"]
    data = Path(data)
    found = [place for above in (data, data / "kg") for name in GRAPHS if (place := above / name).is_dir()]
    if not found and sole:
        if not data.exists():
            raise ValueError(f"--data {data} does not exist: give a folder of triples, or one with {', '.join(GRAPHS)}")
        found = [data]
    return [str(place.resolve()) for place in found] or ["family"]
