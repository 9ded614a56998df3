"""Patching a module of somebody else's model by a class mixed from ours and its own.

The module is still what it was, its weights have the same names, and removing the class again leaves no trace. Not by
forward hooks: they cost the same, but cannot surround a forward (where cosines are recorded) or another method than it
(timm's `get_embed`), and after a KeyboardInterrupt they do not run.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import nn


class Part(nn.Module):
    """Base of the classes that are mixed in; `_spec` holds what the probe found out about the module."""

    _spec: Any = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the two classes it is mixed from, since the mixed one is made at run time."""
        return _recreated, type(self).__bases__, self.__dict__


class AttentionPart(Part):
    """An attention with transported values, which its repr shows."""

    def extra_repr(self) -> str:
        """What the module itself shows, and the strength."""
        shown = f"transport={self._spec.strength.value:g}" if self._spec.rotates else ""
        return ", ".join(filter(None, (super().extra_repr(), shown)))


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], name: str, index: int) -> Any:
    """An argument that was passed by its name or its index; None where it was not."""
    return kwargs[name] if name in kwargs else args[index] if len(args) > index else None


def replace_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], name: str, index: int, value: Any
) -> tuple[Any, ...]:
    """Puts another value in place of such an argument; returns the new `args`, and changes `kwargs`.

    >>> replace_argument((1, 2, 3), {}, "name", 1, 5)
    (1, 5, 3)
    """
    if name not in kwargs:
        return (*args[:index], value, *args[index + 1 :])
    kwargs[name] = value
    return args


_mixed: dict[tuple[type, type], type[Part]] = {}


def _mix(part: type[Part], cls: type[nn.Module]) -> type[Part]:
    """`part` first, then the module's own class; made once."""
    if (part, cls) not in _mixed:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        _mixed[part, cls] = type(cls.__name__, (part, cls), names)
    return _mixed[part, cls]


def _recreated(part: type[Part], cls: type[nn.Module]) -> nn.Module:
    mixed = _mix(part, cls)
    return mixed.__new__(mixed)


def join(part: type[Part], module: nn.Module, spec: Any) -> None:
    """Mix `part` into the class of `module`."""
    forward = module.__dict__.get("_old_forward", module.__dict__.get("forward"))
    if forward is not None and not _is_own(module, forward):
        raise ValueError(f"{type(module).__name__}.forward was replaced on this model: restore it first")
    module.__dict__.update(_spec=spec, _journeys={})
    _change_class(module, _mix(part, type(module)))


def leave(module: nn.Module) -> None:
    """Give `module` its own class back; ValueError where another class was put on top of ours."""
    if isinstance(module, Part):
        if type(module) not in _mixed.values():
            raise ValueError(
                f"{type(module).__name__} changed its class since then (a parametrisation?): remove it first"
            )
        for name in ("_spec", "_journey", "_journeys"):
            module.__dict__.pop(name, None)
        _change_class(module, type(module).__bases__[1])


def _change_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Also rebinds a forward that is kept on the module itself.

    accelerate keeps it there (as `_old_forward`) while a model is spread over devices, and leaves it (as `forward`)
    when its hooks are removed.
    """
    kept = [name for name in ("forward", "_old_forward") if _is_own(module, module.__dict__.get(name))]
    module.__class__ = cls
    for name in kept:
        module.__dict__[name] = MethodType(cls.forward, module)


def _is_own(module: nn.Module, method: Any) -> bool:
    return isinstance(method, MethodType) and method.__self__ is module and method.__func__ is type(module).forward
