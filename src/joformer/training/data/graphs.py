"""Knowledge graphs: entities, relations, and the triples of three splits as numbers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from joformer._seeding import generator
from joformer.training.data.embedded import family
from joformer.training.data.files import Fault, Place, content_hash, fault
from joformer.training.data.sources import SPLITS, Note, Source, log, resolve, split_of, summary
from joformer.training.data.triples import Triple, read_triples

CUT = 20
"""Where there is no valid and no test split, every so many triples one goes into each."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A knowledge graph; triples are the ids of head, relation and tail.

    Attributes:
        entities: Their names, sorted.
        relations: Their names, sorted.
        train: Training triples, ``(n, 3)``.
        valid: Held-out triples for model selection.
        test: Held-out triples for the final measurement.
        fingerprint: A hash of the content.
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: Int64[Tensor, "n 3"]
    valid: Int64[Tensor, "n_valid 3"]
    test: Int64[Tensor, "n_test 3"]
    fingerprint: str

    @property
    def known(self) -> Int64[Tensor, "n_all 3"]:
        """The triples of all splits, none of which counts as a wrong answer."""
        return torch.cat((self.train, self.valid, self.test))


def load_graph(source: Place | Source) -> Graph:
    r"""The graph in a file, or in the files of a folder (train, valid and test by their names).

    Args:
        source: "family" (embedded); lines "head TAB relation TAB tail"; CSV, TSV, JSON lines or parquet with columns of
            these names; or what `resolve` returned.

    Returns:
        The graph.

    Raises:
        ValueError: If a line is not a triple, or there are too few.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     facts = [f"{hour}\tnext\t{(hour + 1) % 24}\n" for hour in range(24)]
        ...     _ = Path(folder, "hours.tsv").write_text("".join(facts))
        ...     graph = load_graph(folder)
        >>> len(graph.entities), graph.relations, len(graph.train)
        (24, ('next',), 22)
    """
    graph, notes = read_graph(resolve(source, kind="graph"))
    log(notes)
    return graph


def read_graph(source: Source, fault: Fault = fault) -> tuple[Graph, list[Note]]:
    """The graph, and what was understood of it."""
    notes: list[Note] = []
    found: dict[str, dict[Triple, None]] = {"train": {}, "valid": {}, "test": {}}
    twice = 0
    if source.spec == "family":
        drawn = family()
        order = torch.randperm(len(drawn), generator=generator("family", "order"))
        found["train"] = dict.fromkeys(drawn[at] for at in order)
    for file in source.files:
        inside = file.relative_to(source.path) if source.path and source.path.is_dir() else file.name
        split = found[SPLITS[split_of(inside) or "train"]]
        for triple in read_triples(file, fault):
            twice += triple in split
            split[triple] = None
    if twice:
        notes.append((logging.INFO, f"{twice:,} triples occur twice in a split and count once"))
    splits = {name: list(triples) for name, triples in found.items()}
    _cut(splits, notes)
    for name, triples in splits.items():
        if not triples:
            raise ValueError(
                f"{source.name} has too few triples for {name}: give {CUT} or more, or files for each split"
            )
    for name in ("valid", "test"):
        if again := sum(triple in found["train"] for triple in found[name]):
            notes.append((logging.WARNING, f"{again:,} triples of {name} are also in train: they do not test anything"))
    entities = sorted({name for triples in splits.values() for head, _, tail in triples for name in (head, tail)})
    relations = sorted({relation for triples in splits.values() for _, relation, _ in triples})
    numbers = {name: number for number, name in enumerate(entities)}
    kinds = {name: number for number, name in enumerate(relations)}
    made = {
        name: torch.tensor([(numbers[h], kinds[r], numbers[t]) for h, r, t in triples])
        for name, triples in splits.items()
    }
    seen = {name for head, _, tail in splits["train"] for name in (head, tail)}
    if strangers := len(entities) - len(seen):
        notes.append((logging.WARNING, f"{strangers:,} entities are in no training triple: they stay untrained"))
    key = content_hash("graph", *entities, "", *relations, *(made[name].numpy().tobytes() for name in sorted(made)))
    graph = Graph(tuple(entities), tuple(relations), **made, fingerprint=key)
    sizes = {name: len(triples) for name, triples in splits.items()}
    about = f"graph of {len(entities):,} entities and {len(relations):,} relations"
    return graph, summary(source.name, about, sizes, "triples", notes)


def _cut(splits: dict[str, list[Any]], notes: list[Note]) -> None:
    """Valid and test splits from train, where there are none."""
    missing = [name for name in ("valid", "test") if not splits[name]]
    train = splits["train"]
    for place, name in enumerate(missing):
        splits[name] = [triple for at, triple in enumerate(train) if at % CUT == CUT // 2 + place]
    if missing:
        taken = {CUT // 2 + place for place in range(len(missing))}
        splits["train"] = [triple for at, triple in enumerate(train) if at % CUT not in taken]
        word = " and no ".join(missing)
        notes.append((logging.INFO, f"no {word} split: cut from train, one triple in {CUT} each"))
