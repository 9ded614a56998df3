"""The setting `joformer` in a saved configuration: which attentions are transported, by name.

config.json             "joformer": {"transported": [part, strength and names], "field": …, "value": …}
adapter_config.json     "joformer": {"transported": [part, strength and names], "peft_type": "LORA"}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

CONFIG = "config.json"
SETTING = "joformer"
Entries = list[dict[str, Any]]

# What is transported in the model that is being saved: adapters do not know the model they are in.
_saving: ContextVar[Entries | None] = ContextVar("saving", default=None)


@contextmanager
def saving(entries: Entries) -> Iterator[None]:
    """While a model with these entries is being saved."""
    token = _saving.set(entries)
    try:
        yield
    finally:
        _saving.reset(token)


def saved_entries() -> Entries:
    """The entries of the model that is being saved.

    >>> with saving([{"part": ""}]):
    ...     print(saved_entries())
    [{'part': ''}]
    """
    return _saving.get() or []


def is_transported(entries: Any) -> bool:
    """Whether this has the form of what `transported` returns: a file may hold anything.

    >>> is_transported([{"part": "", "strength": 1.0, "attentions": ["layers.0"]}]), is_transported([{"part": ""}])
    (True, False)
    """
    types = {"part": str, "strength": int | float, "attentions": list}
    return (
        isinstance(entries, list)
        and bool(entries)
        and all(isinstance(entry, dict) and entry.keys() == types.keys() for entry in entries)
        and all(isinstance(entry[key], kind) for entry in entries for key, kind in types.items())
    )


def wrap(cls: type, name: str, around: Callable[..., Any]) -> None:
    """Make `cls.name(…)` call `around(own, …)`, `own` being the method it has; once, and only where there is one.

    >>> class Greeter:
    ...     def greet(self, name):
    ...         return f"hello {name}"
    >>> for _ in range(2):
    ...     wrap(Greeter, "greet", lambda own, self, name: own(self, name) + "!")
    >>> Greeter().greet("you")
    'hello you!'
    """
    raw = cls.__dict__.get(name)
    own = raw.__func__ if isinstance(raw, classmethod) else raw
    if own is not None and not hasattr(own, "_joformer"):

        @functools.wraps(own)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(own, *args, **kwargs)

        wrapped._joformer = True  # type: ignore[attr-defined]
        setattr(cls, name, classmethod(wrapped) if isinstance(raw, classmethod) else wrapped)
