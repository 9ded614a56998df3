"""What probing models of transformers and of timm has in common."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


def unsupported(model: nn.Module, why: str) -> ValueError:
    """The error for a model that cannot be transported."""
    return ValueError(f"{type(model).__name__} cannot transport its values: {why}")


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; at the end all parts have their attributes, tensors and hooks back.

    That includes what a rotary embedding remembers of the longest text so far.
    """
    stores = [
        store for part in module.modules() for store in (vars(part), *vars(part).values()) if isinstance(store, dict)
    ]
    before = [dict(store) for store in stores]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for store, held in zip(stores, before, strict=True):
            store.clear()
            store.update(held)


@cache
def source_of(function: Any) -> ast.AST | None:
    """The syntax tree of a function; None where its source is not available."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def methods_of(cls: type, home: str | None = None) -> list[Any]:
    """The functions of a class and its bases below `nn.Module`; with `home` only of those in that Python module."""
    bases = [base for base in cls.__mro__ if base not in nn.Module.__mro__ and home in (None, base.__module__)]
    return [inspect.unwrap(f) for base in bases for f in vars(base).values() if inspect.isfunction(f)]


def signature_of(module: nn.Module, ignored: tuple[str, ...] = ()) -> Any:
    """What decides the behaviour of a module, apart from the numbers in its weights; hashable.

    Its class, its attributes and those of its parts, the shapes of its parameters and which of all these are one and
    the same. An object that cannot be compared stands for itself: modules are equal only where all is known.

    >>> one, two, other = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(2, 4)
    >>> signature_of(one) == signature_of(two), signature_of(one) == signature_of(other)
    (True, False)
    """
    numbers: dict[int, int] = {}  # of modules and tensors, in the order in which they are met

    def attributes(owner: nn.Module, ignored: tuple[str, ...] = ()) -> Any:
        projects = hasattr(owner, "in_features")
        return type(owner), tuple((key, frozen(v, projects)) for key, v in vars(owner).items() if key not in ignored)

    def frozen(value: Any, projects: bool) -> Any:
        if isinstance(value, nn.Module | Tensor):
            number = numbers.setdefault(id(value), len(numbers))
            if isinstance(value, nn.Module):
                return number, attributes(value)
            weight = projects or isinstance(value, nn.Parameter)
            content = () if weight else tuple(value.flatten().tolist()) if value.numel() <= 256 else id(value)
            return number, value.shape, value.dtype, value.device, content
        if isinstance(value, dict):
            return tuple((key, frozen(each, projects)) for key, each in value.items())
        if isinstance(value, list | tuple | set):
            return tuple(frozen(each, projects) for each in value)
        plain = isinstance(value, str | int | float | type | torch.dtype | torch.device | None)
        return (type(value), value) if plain else id(value)

    return attributes(module, ignored)
