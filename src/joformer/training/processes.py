"""One process or many: device, precision, gradients in step, and tensors made whole again for the disk.

    joformer train …                                                    this process alone
    torchrun --nproc-per-node 2 -m joformer.cli train …                 a copy of the model in each (DDP)
    accelerate launch --use_fsdp --fsdp_version 2 -m joformer.cli …     a shard of the model in each (FSDP2)

Devices, launching, mixed precision and DDP are accelerate's. Sharding is torch's own `fully_shard`, on every device:
accelerate's way to it is closed on the CPU, and its mixed precision would round learned frequencies to bfloat16.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from joformer._io import one_line
from joformer._precision import KeepsPrecision

T = TypeVar("T")
PATIENCE = "JOFORMER_TIMEOUT"
"""The environment variable that says for how many seconds a process waits for the others; half an hour by default."""


class Processes:
    """The processes that train together; `rank` of `count`, each with its `device`.

    >>> alone = Processes("fp32")
    >>> alone.rank, alone.count, alone.first(lambda: 7)
    (0, 1, 7)
    """

    def __init__(self, precision: str = "fp32") -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import InitProcessGroupKwargs

        self.patience = _patience()
        if precision == "fp16" and not torch.accelerator.is_available():
            raise ValueError("fp16 cannot be had on the CPU: take bf16, or fp32")
        # Not for accelerate to see: we shard ourselves, and what decides a run is what is written down in its folder.
        hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ACCELERATE_")}
        self.sharded = hidden.get("ACCELERATE_USE_FSDP", "").lower() in ("true", "1")
        AcceleratorState._reset_state()  # or a second run in this process could have no other precision
        try:
            self.accelerator = Accelerator(
                # Without being told so it overlooks on the CPU that torchrun started several.
                cpu=not torch.accelerator.is_available() or "ACCELERATE_USE_CPU" in hidden,
                mixed_precision="no" if precision == "fp32" else precision,
                kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=self.patience))],
            )
        except ValueError as error:
            raise ValueError(f"{precision} cannot be had on this device: {one_line(error, first=True)}") from None
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            raise ValueError(
                f"the processes did not find each other within {self.patience:g} s ({PATIENCE}): end them all, and "
                "start as many as WORLD_SIZE says"
            ) from None
        finally:
            os.environ.update(hidden)
        self.device = self.accelerator.device
        self.rank, self.count = self.accelerator.process_index, self.accelerator.num_processes
        self.sharded = self.sharded and self.count > 1
        self.main = self.rank == 0

    def wrap(self, model: nn.Module, compiled: bool = False) -> nn.Module:
        """The model on this device, its gradients shared with the other processes; parameters keep their names."""
        model.to(self.device)
        if self.sharded:
            _shard(model)
        if compiled:
            model.compile()
        return model if self.sharded else self.accelerator.prepare_model(model)

    @contextmanager
    def share(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Within it, backward adds to gradients, and sends them to the others only if it is the step's last."""
        if self.sharded:
            model.set_requires_gradient_sync(last)  # type: ignore[operator]
        quiet = self.count > 1 and not self.sharded and not last
        with self.accelerator.no_sync(model) if quiet else nullcontext(), self.accelerator.autocast():
            yield

    def backward(self, loss: Tensor) -> None:
        """The loss's gradients, scaled where half precision needs that."""
        if self.accelerator.scaler is None:
            loss.backward()
        else:
            self.accelerator.backward(loss)

    def autocast(self) -> AbstractContextManager[None]:
        """The precision that was asked for."""
        return self.accelerator.autocast()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes, the same bits in each."""
        return self.total(values) / self.count

    def total(self, values: Tensor) -> Tensor:
        """The sum over processes, the same bits in each."""
        return values if self.count == 1 else self.accelerator.reduce(values, "sum")

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives in process 0, in all of them; and its one-line error too, so that none waits for ever."""
        if self.count == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.main:
            try:
                outcome[0] = work()
            except Exception as error:  # whatever it is, the others wait to hear of it
                torch.distributed.broadcast_object_list([None, f"{error}"], src=0)
                raise
        torch.distributed.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise ValueError(outcome[1])
        return outcome[0]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, waiting in vain for another process (one that hangs, or died) is a ValueError in one line."""
        try:
            yield
        except RuntimeError as error:
            if not _is_lost(error):
                raise
            raise ValueError(
                f"process {self.rank} of {self.count} waited in vain for another, which hangs or has died "
                f"({PATIENCE} is {self.patience:g} s): end them all, and the same command goes on from the last "
                "checkpoint"
            ) from None

    def everyone(self, value: T) -> list[T]:
        """The value of every process, in order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, value)
        return found


def _is_lost(error: RuntimeError) -> bool:
    """Whether it is torch's or gloo's way to say that another process does not answer."""
    known = getattr(torch.distributed, "DistError", ())
    return isinstance(error, known) or "gloo" in str(error)


def _patience() -> float:
    given = os.environ.get(PATIENCE, "1800")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"{PATIENCE} is {given!r}: give the seconds to wait for another process, above 0")
    return seconds


def whole(value: Tensor) -> Tensor:
    """A copy on the CPU, put together from its shards where it has any; all processes must ask.

    >>> whole(torch.ones(2, requires_grad=True)).requires_grad
    False
    """
    value = value.detach()
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    return value.to("cpu", copy=True)


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Put the whole `value` into the target, each process its shard.

    >>> target = torch.zeros(2)
    >>> fill(target, torch.ones(2)); target
    tensor([1., 1.])
    """
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(target, DTensor)
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    target.copy_(value)


def reshard(model: nn.Module) -> None:
    """Drop the whole weights that a forward pass without a backward leaves behind: they would be used again.

    >>> reshard(nn.Linear(2, 2))
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()  # type: ignore[operator]


def _shard(model: nn.Module) -> None:
    from torch.distributed.fsdp import fully_shard

    # Frames give views of their frequencies, and nothing here writes into frames.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)
    # What one call shards must be of one dtype: frames keep their precision, so each is a unit of its own, with all
    # that is inside it, since frames ask those inside for more than their forward.
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, KeepsPrecision) and module not in inside and next(module.parameters(), None) is not None:
            inside.update(module.modules())
            fully_shard(module)
    for block in getattr(model, "blocks", ()):
        fully_shard(block)
    fully_shard(model)
