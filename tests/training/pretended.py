"""A pretended accelerator, for machines without one: it notes whenever the host would wait for the device.

    with Accelerator() as device:
        x = torch.ones(3, device="meta")      # says it is on "meta", and holds its numbers on the CPU
        x.sum().item()
    device.waits                              # ["_local_scalar_dense"]

Everything computes as on the CPU, so that results can be compared. What counts as waiting is what waits on CUDA:
reading a number, a shape that depends on numbers (nonzero, masks as indices, bincount), and copies that are not
non_blocking. Tensors of both places in one operation are an error, as there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PLACE = torch.device("meta")
READING = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "histc", "_unique",
    "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave.Tensor",
}  # fmt: skip
COPYING = {"_to_copy", "copy_", "copy"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


class There(Tensor):
    """A tensor on the pretended device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=PLACE, **layout)
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on the pretended device, outside of `with Accelerator()`")


class _Making(TorchFunctionMode):
    """Tensors made of Python's numbers are made on the host and copied, which dispatching does not show."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device is not None and not isinstance(args[0], Tensor):
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        if func is Tensor.new_tensor and isinstance(args[0], There):
            return torch.tensor(args[1], dtype=kwargs.get("dtype", args[0].dtype)).to(PLACE)
        return func(*args, **kwargs)


class Accelerator(TorchDispatchMode):
    """Within it there is a device "meta" that computes; `waits` are the operations that made the host wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._making = _Making()

    def __enter__(self) -> Accelerator:
        self._making.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._making.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        there = [leaf for leaf in leaves if isinstance(leaf, There)]
        here = [leaf for leaf in leaves if not isinstance(leaf, There)]
        name, overload = func.name().removeprefix("aten::").partition(".")[0], func.name().removeprefix("aten::")
        given = kwargs.get("device")
        if given is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        arrives = torch.device(given) == PLACE if given is not None else bool(there)
        if name in COPYING:
            both = len({isinstance(leaf, There) for leaf in leaves}) == 2 or (leaves and arrives != bool(there))
            blocking = not (kwargs.get("non_blocking") or (name != "_to_copy" and len(args) > 2 and args[2]))
            if both and blocking:
                self.waits.append(name)
        elif there and (name in READING or overload in READING):
            self.waits.append(name)
        elif there and name in INDEXING:
            if any(
                at is not None and (at.dtype in (torch.bool, torch.uint8) or not isinstance(at, There))
                for at in args[1]
            ):
                self.waits.append(name)
        elif there and any(leaf.dim() for leaf in here):
            raise RuntimeError(f"{func}: tensors of the device and of the host in one operation")

        known = {id(leaf.held): leaf for leaf in there}

        def wrapped(value: Any) -> Any:
            if not isinstance(value, Tensor) or not arrives:
                return value
            return known[id(value)] if id(value) in known else There(value)

        held = tree_map(lambda leaf: leaf.held if isinstance(leaf, There) else leaf, (args, kwargs))
        return tree_map(wrapped, func(*held[0], **held[1]))
