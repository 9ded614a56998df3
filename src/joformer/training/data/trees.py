"""Trees: kinds and names of nodes, and the path from the root to each, for three splits that share no file."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from joformer._io import LIMITS, allowed, one_line
from joformer._log import Progress
from joformer._seeding import hashed
from joformer.training.data.cache import cached
from joformer.training.data.documents import stdlib_files, stdlib_root
from joformer.training.data.files import Place, content_hash
from joformer.training.data.sources import SPLITS, SUFFIXES, Note, Source, log, resolve, summary
from joformer.training.data.syntax import Nodes, pieces, python_nodes, read_nodes, variables

NODES, LEAST = 96, 12
"""How many nodes a tree has at most, and at least."""
DEPTH, BRANCHES = 12, 16
"""How deep a node may lie, and how many branches a node has."""
CUT = 10
"""Where there is no valid and no test split, one file in so many goes into each."""
EMBEDDED = 4_000_000
"""Bytes of the standard library that stdlib-trees parses: some seconds."""
ALL = 1 << 25
"""Nodes of all trees together."""
NAMES = 1 << 31
"""Names are known by a hash below this."""
FORMAT = 2
SPLIT_NAMES: tuple[Split, ...] = ("train", "valid", "test")
FIELDS = ("counts", "kinds", "names", "parents", "branches", "variables")

Split = Literal["train", "valid", "test"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some trees side by side, padded to the longest: ``(trees, nodes)``.

    Attributes:
        kinds: Numbers of kinds; 0 where there is no node.
        names: Hashes of names, 0 for none.
        where: Paths from the root, NaN below the node, ``(trees, nodes, depth)``: positions for tree frames.
        real: Which nodes there are.
        variables: The number of the variable that a node binds or uses, −1 for none.
    """

    kinds: Int64[Tensor, "trees nodes"]
    names: Int64[Tensor, "trees nodes"]
    where: Float64[Tensor, "trees nodes depth"]
    real: Bool[Tensor, "trees nodes"]
    variables: Int64[Tensor, "trees nodes"]


class Forest:
    """The trees of a split, one after the other; `rows` gives some of them side by side.

    Args:
        counts: How many nodes each tree has.
        kinds: The kind of each node of all trees, in pre-order.
        names: Hashes of their names.
        parents: The node above each in its own tree, −1 for roots.
        branches: The branch into each.
        variables: The variable that each binds or uses.
        depth: How long a path may be.

    Example:
        >>> one = torch.tensor([0, 1, 1])
        >>> forest = Forest(torch.tensor([3]), one, one, torch.tensor([-1, 0, 1]), torch.tensor([0, 0, 1]), one, 2)
        >>> forest.rows(torch.tensor([0])).where.tolist()
        [[[nan, nan], [0.0, nan], [0.0, 1.0]]]
    """

    def __init__(
        self,
        counts: Int64[Tensor, " trees"],
        kinds: Int64[Tensor, " nodes"],
        names: Int64[Tensor, " nodes"],
        parents: Int64[Tensor, " nodes"],
        branches: Int64[Tensor, " nodes"],
        variables: Int64[Tensor, " nodes"],
        depth: int,
    ) -> None:
        self.counts, self.kinds, self.names = counts, kinds, names
        self.parents, self.branches, self.variables = parents, branches, variables
        self.starts = counts.cumsum(0) - counts
        first = self.starts.repeat_interleave(counts)
        above = torch.where(parents < 0, torch.arange(len(parents)), parents + first)
        # Level by level: a path is that of the node above and one branch more.
        self.paths = torch.full((len(parents), depth), torch.nan, dtype=torch.float64)
        level, at = parents.clamp(max=0) + 1, above  # 0 for roots; then how deep each node lies
        while (on := parents[at] >= 0).any():
            level, at = level + on, above[at]
        for deep in range(1, depth + 1):
            here = level == deep
            self.paths[here] = self.paths[above[here]]
            self.paths[here, deep - 1] = branches[here].double()

    def __len__(self) -> int:
        return len(self.counts)

    def renumbered(self, table: Int64[Tensor, " kinds"]) -> Forest:
        """The same trees with other numbers for their kinds."""
        other = copy.copy(self)
        other.kinds = table[self.kinds]
        return other

    def rows(self, trees: Int64[Tensor, " trees"]) -> Rows:
        """These trees, padded to the longest of them."""
        counts, starts = self.counts[trees], self.starts[trees]
        places = torch.arange(int(counts.max()))
        real = places < counts[:, None]
        at = torch.where(real, starts[:, None] + places, starts[:, None])
        held = (torch.where(real, field[at], fill) for field, fill in ((self.kinds, 0), (self.names, 0)))
        kinds, names = held
        where = self.paths[at].masked_fill(~real[..., None], torch.nan)
        return Rows(kinds, names, where, real, torch.where(real, self.variables[at], -1))


@dataclass(frozen=True, eq=False)
class Trees:
    """Trees of three splits that share no file.

    Attributes:
        kinds: The kinds of nodes by their numbers.
        train: The training split.
        valid: The held-out split for model selection.
        test: The held-out split for the final measurement.
        depth: Maximum length of a path.
        branches: Maximum number of branches of a node.
        fingerprint: A hash of the content.
    """

    kinds: tuple[str, ...]
    train: Forest
    valid: Forest
    test: Forest
    depth: int
    branches: int
    fingerprint: str

    def parse(self, source: str) -> Rows:
        """The first function in a piece of Python, or all of it if there is none, as a row with these kind numbers.

        Args:
            source: Python, which is parsed and not run.

        Returns:
            One row.

        Raises:
            ValueError: If it is not Python, or has kinds that these trees lack.
        """
        try:
            tree = python_nodes(source.encode())
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"the source is not Python that can be parsed: {one_line(error, first=True)}") from None
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        fields, _, _ = _piece(tree, next(pieces(tree, NODES, 1)), numbers)
        if unknown := [*numbers][len(self.kinds) :]:
            raise ValueError(f"the source has kinds that these trees lack: {', '.join(unknown)}")
        kinds, names, parents, branches, variables = map(torch.tensor, fields)
        forest = Forest(torch.tensor([len(kinds)]), kinds, names, parents, branches, variables, self.depth)
        return forest.rows(torch.tensor([0]))

    def renumbered(self, kinds: Sequence[str]) -> Trees:
        """The same trees with kinds numbered as in this list, as the model was trained with.

        Raises:
            ValueError: If there are kinds that the list lacks.
        """
        numbers = {kind: number for number, kind in enumerate(kinds)}
        if unknown := [kind for kind in self.kinds if kind not in numbers]:
            raise ValueError(f"the trees have kinds that the model lacks: {', '.join(unknown[:5])}")
        table = torch.tensor([numbers[kind] for kind in self.kinds])
        parts = {split: getattr(self, split).renumbered(table) for split in SPLIT_NAMES}
        return replace(self, kinds=tuple(kinds), **parts)


def load_trees(source: Place | Source, *, nodes: int = NODES, cache: Place | None = None) -> Trees:
    """The trees of Python and JSON files, in pre-order, with the path from the root to each node.

    A tree is a Python function or a JSON document. One with more than `nodes` nodes is cut into the largest parts
    that fit; parts of fewer than 12 are left out. Nodes deeper than 12 below the root of their tree are cut off,
    and branches beyond the sixteenth count as the sixteenth. Duplicate trees count once. Folders named train, valid
    and test are the splits; without them one file in ten, by a hash of its path, is valid and one is test.

    Args:
        source: "stdlib-trees" (Python's own library), a file or a folder of .py and .json, or what `resolve` returned.
        nodes: Maximum nodes per tree.
        cache: Cache folder for parsed trees.

    Returns:
        The trees.

    Raises:
        ValueError: If there are too few files or trees. Files that cannot be parsed are logged and left out.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     for name in "abc":
        ...         _ = Path(folder, f"{name}.py").write_text(f"def {name}(x, y):\\n    return {name} + x * y")
        ...     trees = load_trees(folder, cache=folder)
        >>> len(trees.train), trees.train.kinds.shape, trees.kinds[:3]
        (1, torch.Size([12]), ('Add', 'BinOp', 'FunctionDef'))
        >>> trees.parse("def f(x): return x").kinds.shape
        torch.Size([1, 5])
    """
    source = resolve(source, kind="trees")
    if nodes < LEAST:
        raise ValueError(f"a tree has at most {nodes} nodes: allow {LEAST} or more")
    files = _files(source)
    named = [part for item in files for part in item]
    settings = (FORMAT, nodes, LEAST, DEPTH, BRANCHES, CUT, *sys.version_info[:2])
    key = content_hash("trees", *settings, *named)
    folder = cached(f"trees-{key[:32]}", lambda made: _write(made, files, nodes), cache=cache)
    about = json.loads((folder / "trees.json").read_text(encoding="utf-8"))
    log([(level, line) for level, line in _summary(source, about)])
    parts = {split: _open(folder, split) for split in SPLIT_NAMES}
    return Trees(tuple(about["kinds"]), **parts, depth=DEPTH, branches=BRANCHES, fingerprint=about["fingerprint"])


def check_trees(source: Source, fault: Any) -> list[Note]:
    """Parses every file; each that cannot be is a fault. Returns the summary."""
    files, faults = _files(source), list[str]()
    _, about = _parse(files, NODES, faults)
    for line in faults:
        fault(line)
    return _summary(source, {**about, "faults": []})


def _files(source: Source) -> list[tuple[str, Path]]:
    """The files to be parsed, by their names in the folder."""
    if source.spec == "stdlib-trees":
        root, found = stdlib_root(), _some_of(stdlib_files(), stdlib_root())
    else:
        assert source.path is not None
        root = source.path if source.path.is_dir() else source.path.parent
        found = [file for file in source.files if file.suffix.lower() in SUFFIXES["trees"]]
    if len(found) < len(SPLIT_NAMES):
        many = f"{len(found)} files" if len(found) != 1 else "1 file"
        raise ValueError(f"{source.name} holds {many} of Python or JSON: give a folder of 3 or more (.py, .json)")
    return [(path.relative_to(root).as_posix(), path) for path in found]


def _some_of(files: Sequence[Path], root: Path) -> list[Path]:
    """Files of `EMBEDDED` bytes in all, from everywhere: those whose paths have the lowest hashes."""
    left, taken = EMBEDDED, []
    for path in sorted(files, key=lambda path: hashed(path.relative_to(root).as_posix())):
        left -= path.stat().st_size
        if left < 0:
            break
        taken.append(path)
    return sorted(taken)


def _splits(names: Sequence[str]) -> dict[str, Split]:
    """The split of each file: by the folder it is in, else by the hash of its name."""
    above = {name: SPLITS.get(name.split("/")[0]) if "/" in name else None for name in names}
    given = {split for split in above.values() if split}
    if given - {"train"} and "train" in given:
        found: dict[str, Split] = {name: split for name, split in above.items() if split}  # type: ignore[misc]
        names = [name for name, split in found.items() if split == "train"]
    else:  # a folder of only one of these names is no split
        given, found = set(), dict.fromkeys(names, "train")
    ranked = sorted(names, key=lambda name: hashed(f"split/{name}"))
    share, at = max(1, len(names) // CUT), 0
    for split in SPLIT_NAMES[1:]:
        if split not in given:
            found |= dict.fromkeys(ranked[at : at + share], split)
            at += share
    return found


def _parse(
    files: Sequence[tuple[str, Path]], nodes: int, faults: list[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The fields of each split, and what is to be said of them; files that cannot be parsed go to `faults`."""
    splits = _splits([name for name, _ in files])
    parts: dict[str, list[tuple[list[int], ...]]] = {split: [] for split in SPLIT_NAMES}
    kinds: dict[str, int] = {}
    seen: set[bytes] = set()
    total = twice = deep = wide = 0
    most = allowed(ALL)
    # Training files first: of what stands in two splits the one that is learned from stays.
    order = sorted((item for item in files if item[0] in splits), key=lambda item: SPLIT_NAMES.index(splits[item[0]]))
    with Progress("parsing", len(order), unit="files") as progress:
        for name, path in order:
            progress.advance()
            try:
                tree = read_nodes(path)
            except ValueError as error:
                faults.append(str(error))
                continue
            for piece in pieces(tree, nodes, LEAST):
                one, cut, clipped = _piece(tree, piece, kinds)
                key = hashlib.sha256(np.array(one).tobytes()).digest()
                twice += key in seen
                if key in seen or len(one[0]) < LEAST:
                    continue
                seen.add(key)
                parts[splits[name]].append(one)
                total, deep, wide = total + len(one[0]), deep + cut, wide + clipped
                if total > most:
                    raise ValueError(f"the files hold more than {most:,} nodes: give fewer, or set {LIMITS}=10")
    for split, held in parts.items():
        if not held:
            why = f"; {len(faults):,} files cannot be parsed, such as {faults[0]}" if faults else ""
            raise ValueError(f"there are no trees of {LEAST} nodes or more for {split}: give more files{why}")
    order_of_kinds = sorted(kinds)
    ranks = np.argsort(np.argsort(list(kinds)))  # from the number at first sight to that in the sorted order
    fields: dict[str, dict[str, Any]] = {}
    for split, held in parts.items():
        flat = {name: np.concatenate([one[place] for one in held]) for place, name in enumerate(FIELDS[1:])}
        flat["kinds"] = ranks[flat["kinds"]]
        flat["counts"] = np.array([len(one[0]) for one in held])
        fields[split] = {name: flat[name].astype(np.int64 if name == "names" else np.int32) for name in FIELDS}
    raw = (fields[split][name].astype("<i8").tobytes() for split in SPLIT_NAMES for name in FIELDS)
    about = {
        "kinds": order_of_kinds,
        "fingerprint": content_hash("trees", *order_of_kinds, *raw),
        "sizes": {split: len(held) for split, held in parts.items()},
        "files": len(order),
        "aside": len(files) - len(order),
        "nodes": total,
        "twice": twice,
        "deep": deep,
        "wide": wide,
    }
    return fields, about


def _piece(tree: Nodes, piece: slice, kinds: dict[str, int]) -> tuple[tuple[list[int], ...], int, int]:
    """The fields of one tree, and how many of its nodes were too deep, and how many branches too far right."""
    depth: list[int] = []
    for parent in tree.parents[piece]:
        depth.append(depth[parent - piece.start] + 1 if depth else 0)
    kept = [at for at, level in enumerate(depth) if level <= DEPTH]
    number = {at: rank for rank, at in enumerate(kept)}
    words = [tree.kinds[piece.start + at] for at in kept]
    names = [tree.names[piece.start + at] for at in kept]
    parents = [number.get(tree.parents[piece.start + at] - piece.start, -1) for at in kept]
    branches = [tree.branches[piece.start + at] if at else 0 for at in kept]
    wide = sum(branch >= BRANCHES for branch in branches)
    made = (
        [kinds.setdefault(word, len(kinds)) for word in words],
        [_known(name) for name in names],
        parents,
        [min(branch, BRANCHES - 1) for branch in branches],
        variables(words, names),
    )
    return made, len(depth) - len(kept), wide


@lru_cache(maxsize=1 << 16)
def _known(name: str) -> int:
    return 1 + hashed(name) % (NAMES - 1) if name else 0


def _write(folder: Path, files: Sequence[tuple[str, Path]], nodes: int) -> None:
    faults: list[str] = []
    fields, about = _parse(files, nodes, faults)
    for split, arrays in fields.items():
        for name, array in arrays.items():
            np.save(folder / f"{split}-{name}.npy", array, allow_pickle=False)
    text = json.dumps({**about, "faults": [len(faults), *faults[:1]]})
    (folder / "trees.json").write_text(text, encoding="utf-8")


def _open(folder: Path, split: str) -> Forest:
    arrays = {name: np.load(folder / f"{split}-{name}.npy", allow_pickle=False) for name in FIELDS}
    return Forest(**{name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}, depth=DEPTH)


def _summary(source: Source, about: dict[str, Any]) -> list[Note]:
    notes: list[Note] = []
    if about["faults"] and about["faults"][0]:
        count, first = about["faults"]
        notes.append((logging.WARNING, f"{count:,} of {about['files']:,} files are left out: {first}"))
    if about["aside"]:
        notes.append((logging.WARNING, f"{about['aside']:,} files are in no folder of a split and are left aside"))
    rare: Iterable[tuple[int, str]] = (
        (about["twice"], "trees stand twice and count once"),
        (about["deep"], f"nodes are deeper than {DEPTH} and cut off"),
        (about["wide"], f"branches beyond {BRANCHES} count as the last"),
    )
    notes += [(logging.INFO, f"{count:,} {what}") for count, what in rare if count]
    kind = f"trees of {about['nodes']:,} nodes of {len(about['kinds'])} kinds"
    return summary(source.name, kind, about["sizes"], "trees", notes)
