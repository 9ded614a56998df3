"""Trees in files: Python's syntax (`ast`, which parses and never runs) and JSON, as nodes in pre-order.

    def twice(x):            0 FunctionDef twice
        return x + x         1   arguments            a branch is a node's rank among its siblings
                             2     arg x
                             3   Return
                             4     BinOp              Load, Store and Del are no nodes: what is stored or deleted has a
                             5       Name x           kind of its own, "Name =", and a constant that of its type,
                             6       Add              "Constant str"
                             7       Name x

Of JSON the kinds are object, array, string, number, boolean and null, and a node's name is the key it stands under.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from joformer._io import one_line, read_file

LARGEST = 1 << 23
"""Bytes of one file: parsed they may take a hundred times as much."""
FUNCTIONS = ("FunctionDef", "AsyncFunctionDef")
USE, STORED = "Name", "Name ="
BOUND = ("arg", STORED)
"""Kinds of nodes that bind a variable."""
NAMED = ("id", "arg", "attr", "name")
"""Fields of `ast` that hold a name."""


class Nodes(NamedTuple):
    """The nodes of a tree in pre-order: a node's subtree is the `sizes[node]` nodes from it on.

    >>> python_nodes(b"x = 1").kinds
    ['Module', 'Assign', 'Name =', 'Constant int']
    """

    kinds: list[str]
    names: list[str]
    parents: list[int]
    branches: list[int]

    @property
    def sizes(self) -> list[int]:
        """How many nodes each subtree has."""
        sizes = [1] * len(self.parents)
        for node in range(len(sizes) - 1, 0, -1):
            sizes[self.parents[node]] += sizes[node]
        return sizes


def python_nodes(source: bytes) -> Nodes:
    """The syntax tree of Python; SyntaxError, ValueError, RecursionError or MemoryError where it is none.

    >>> tree = python_nodes(b"def twice(x): return x + x")
    >>> tree.kinds[1:], tree.names[1], tree.parents[6:]
    (['FunctionDef', 'arguments', 'arg', 'Return', 'BinOp', 'Name', 'Add', 'Name'], 'twice', [5, 5, 5])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that a later version will not take
        root = ast.parse(source)
    return _in_order(root, _python_children, _python_kind)


def json_nodes(source: bytes) -> Nodes:
    """The tree of a JSON document; ValueError or RecursionError where it is none.

    >>> json_nodes(b'{"a": [1, null]}')[:2]
    (['object', 'array', 'number', 'null'], ['', 'a', '', ''])
    """
    return _in_order(json.loads(source), _json_children, _json_kind)


READERS: dict[str, tuple[str, Callable[[bytes], Nodes]]] = {
    ".py": ("Python", python_nodes),
    ".json": ("JSON", json_nodes),
}
"""What a file is called and how it is parsed, by its suffix."""


def read_nodes(path: Path) -> Nodes:
    """The tree in a file; what is none is one line that names it.

    >>> read_nodes(Path(__file__)).kinds[0]
    'Module'
    """
    what, parse = READERS[path.suffix.lower()]
    try:
        return parse(read_file(path, LARGEST))
    except SyntaxError as error:
        said = f"{one_line(error, plain=(SyntaxError,), first=True)}"
    except (RecursionError, MemoryError):
        said = "it is nested too deeply"
    except OSError as error:
        raise ValueError(f"cannot read {path}: {one_line(error)}") from None
    except ValueError as error:
        said = one_line(error)
    raise ValueError(f"{path} is not {what} that can be parsed ({said}): fix it, or remove it")


def pieces(tree: Nodes, most: int, least: int) -> Iterator[slice]:
    """Subtrees of `least` to `most` nodes that do not overlap: functions of Python, else the whole, or parts of them.

    Of what has more nodes than `most` the largest parts that have not are taken. Functions within others belong to
    those; a file of Python without functions is taken as a whole.

    >>> tree = python_nodes(b"def f(x): return x\\ndef g(x): return x\\nh = f")
    >>> [tree.names[piece.start] for piece in pieces(tree, most=10, least=4)]
    ['f', 'g']
    >>> [tree.kinds[piece.start] for piece in pieces(tree, most=3, least=2)]
    ['arguments', 'Return', 'arguments', 'Return']
    """
    sizes = tree.sizes
    node, found = 0, any(kind in FUNCTIONS for kind in tree.kinds)
    inside = 0  # where the function ends that this node is in
    while node < len(sizes):
        if tree.kinds[node] in FUNCTIONS:
            inside = max(inside, node + sizes[node])
        if sizes[node] > most or (found and node >= inside):
            node += 1
            continue
        if sizes[node] >= least:
            yield slice(node, node + sizes[node])
        node += sizes[node]


def variables(kinds: Sequence[str], names: Sequence[str]) -> list[int]:
    """The number of the variable that each node binds or uses, −1 for all other nodes.

    Variables are what these nodes bind: arguments, and names that are assigned.

    >>> tree = python_nodes(b"for i in x: y = f(i)")
    >>> dict(zip(tree.names, variables(tree.kinds, tree.names)))
    {'': -1, 'i': 0, 'x': -1, 'y': 1, 'f': -1}
    """
    bound: dict[str, int] = {}
    for kind, name in zip(kinds, names, strict=True):
        if kind in BOUND:
            bound.setdefault(name, len(bound))
    of_variables = (*BOUND, USE)
    return [bound.get(name, -1) if kind in of_variables else -1 for kind, name in zip(kinds, names, strict=True)]


def _in_order(
    root: Any, children: Callable[[Any], list[tuple[Any, str]]], kind: Callable[[Any, str], tuple[str, str]]
) -> Nodes:
    """The nodes in pre-order, without recursion: a tree may be deeper than Python's stack."""
    made = Nodes([], [], [], [])
    kinds, names, parents, branches = made
    waiting: list[tuple[Any, str, int, int]] = [(root, "", -1, 0)]
    while waiting:
        node, key, parent, branch = waiting.pop()
        number = len(kinds)
        word, name = kind(node, key)
        kinds.append(word)
        names.append(name)
        parents.append(parent)
        branches.append(branch)
        below = children(node)
        for rank in range(len(below) - 1, -1, -1):
            waiting.append((*below[rank], number, rank))
    return made


def _python_children(node: ast.AST) -> list[tuple[ast.AST, str]]:
    return [(child, "") for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr_context)]


def _python_kind(node: ast.AST, _: str) -> tuple[str, str]:
    kind = type(node).__name__
    if isinstance(node, ast.Constant):
        return f"{kind} {type(node.value).__name__}", ""
    if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        kind = f"{kind} ="
    for field in NAMED:
        if field in node._fields and isinstance(name := getattr(node, field), str):
            return kind, name
    return kind, ""


def _json_children(node: Any) -> list[tuple[Any, str]]:
    if isinstance(node, dict):
        return [(value, key) for key, value in node.items()]
    return [(value, "") for value in node] if isinstance(node, list) else []


def _json_kind(node: Any, key: str) -> tuple[str, str]:
    if node is None or isinstance(node, bool):
        return "null" if node is None else "boolean", key
    known: dict[type, str] = {dict: "object", list: "array", str: "string"}
    return known.get(type(node), "number"), key
