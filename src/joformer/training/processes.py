"""One process or many: device, precision, gradients in step, and tensors made whole again for the disk.

    joformer train …                                             one process, no process group
    torchrun --nproc-per-node 2 -m joformer.cli train …          a copy of the model in each (DDP)
    torchrun --nproc-per-node 2 -m joformer.cli train … --shard  a shard of the model in each (FSDP2)
    torchrun … -m joformer.cli train lm … --context-parallel 2   a share of each window's tokens in each of a team of 2

All of it is torch.distributed. accelerate did this before: its environment variables had to be hidden from it, its
sharding was not used (it has none on the CPU, and its mixed precision rounds learned frequencies to bfloat16), and its
optimiser was avoided, which looked for missing packages at every step. What was left is in this file.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from joformer._parallel import ContextParallel
from joformer._precision import KeepsPrecision

T = TypeVar("T")
TIMEOUT = "JOFORMER_TIMEOUT"
"""The environment variable with the seconds that a process waits for the others; half an hour by default."""


class Processes:
    """The processes that train together: this one is `rank` of `count`, on `device`, and in team `team` of `teams`.

    The processes of a team work on the same samples: a single process has whole samples, several share their tokens
    (`parallel`).

    Args:
        precision: Precision of matrix products: "fp32", "bf16" or "fp16".
        shard: Give each process a shard of the model (FSDP2) instead of a copy (DDP); no effect with one process.
        context: Number of processes that share the tokens of a sample.

    Raises:
        ValueError: If the device lacks this precision, the processes cannot be divided into teams, or the others do
            not answer.

    Example:
        >>> alone = Processes("fp32")
        >>> alone.rank, alone.count, alone.first(lambda: 7)
        (0, 1, 7)
    """

    def __init__(self, precision: str = "fp32", shard: bool = False, context: int = 1) -> None:
        self.timeout = _timeout()
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0")) if self.count > 1 else 0
        self.main, self.sharded = self.rank == 0, shard and self.count > 1
        self.teams, self.team = require_teams(context), self.rank // context
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.device = found or torch.device("cpu")
        if self.count > 1:
            self._join()
        self.parallel = self._teamed(context) if context > 1 else None
        kind = self.device.type
        self._dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        if precision == "fp16" and kind == "cpu":
            raise ValueError("fp16 is not available on the CPU: use bf16 or fp32")
        if precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported():
            raise ValueError("bf16 is not available on this GPU: use fp16 or fp32")
        self.scaler = torch.amp.GradScaler(kind, enabled=precision == "fp16")

    def _join(self) -> None:
        """Finds the device of this process, and the other processes."""
        if self.device.type != "cpu":
            self.device = torch.device(self.device.type, int(os.environ.get("LOCAL_RANK", "0")))
            torch.accelerator.set_device_index(self.device.index)
        if distributed.is_initialized():
            return
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        between = _interface()
        if between:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", between)
        with self._answered(
            f"the processes did not find each other within {self.timeout:g} s ({TIMEOUT}): end them all, and start as "
            "many as WORLD_SIZE says; between machines GLOO_SOCKET_IFNAME names the network interface"
        ):
            wait = timedelta(seconds=self.timeout)
            store, _, _ = next(rendezvous("env://", timeout=wait))
            store.set_timeout(wait)
            if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
                store = _fresh(store, self.rank, self.count, self.timeout)
            distributed.init_process_group(backend, store=store, rank=self.rank, world_size=self.count, timeout=wait)

    def _teamed(self, context: int) -> ContextParallel:
        """This process's team: as many neighbours as share the tokens of a sample."""
        group, _ = distributed.new_subgroups(context, timeout=timedelta(seconds=self.timeout))
        distributed.barrier()  # all find each other through the first process, which may end on bad input
        return ContextParallel(group)

    def wrap(self, model: nn.Module, compiled: bool = False) -> nn.Module:
        """The model on this device, with gradients synchronised across processes; parameters keep their names."""
        model.to(self.device)
        if self.sharded:
            _shard(model)
        if compiled:
            model.compile()
        if self.sharded or self.count == 1:
            return model
        devices = None if self.device.type == "cpu" else [self.device.index]
        # Else DDP regroups gradients after its first step: sums over three processes or more would then be in one order
        # in the first step after a resume and in another without it.
        beside = _Beside(model).to(self.device)
        return nn.parallel.DistributedDataParallel(beside, device_ids=devices, find_unused_parameters=True)

    @contextmanager
    def share(self, model: Any, last: bool) -> Iterator[None]:
        """Context in which backward accumulates gradients, and synchronises them only in the last part of the step."""
        if self.sharded:
            model.set_requires_gradient_sync(last)
        quiet = self.count > 1 and not self.sharded and not last
        with model.no_sync() if quiet else nullcontext(), self.autocast():
            yield

    def autocast(self) -> AbstractContextManager[object]:
        """Context in which matrix products are computed in the precision of the run."""
        return nullcontext() if self._dtype is None else torch.autocast(self.device.type, self._dtype)

    def total(self, values: Tensor) -> Tensor:
        """The sum over processes, bit-identical in each."""
        if self.count > 1:
            distributed.all_reduce(values := values.clone())
        return values

    def first(self, work: Callable[[], T]) -> T:
        """Runs `work` in process 0 and returns its result, or raises its error, in all processes."""
        if self.count == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.main:
            try:
                outcome[0] = work()
            except Exception as error:  # whatever it is, the others wait for it
                distributed.broadcast_object_list([None, f"{error}"], src=0)
                raise
        distributed.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise ValueError(outcome[1])
        return outcome[0]

    def watched(self) -> AbstractContextManager[None]:
        """Context in which a process that does not answer (it hangs or died) raises a one-line ValueError."""
        return self._answered(
            f"process {self.rank} of {self.count} waited in vain for another, which hangs or has died ({TIMEOUT} is "
            f"{self.timeout:g} s): end them all, and the same command resumes from the last checkpoint"
        )

    @contextmanager
    def _answered(self, otherwise: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            # What torch or gloo raises where another process does not answer; one of gloo's errors does not name it.
            known = any(word in str(error) for word in ("gloo", "timeout caused pair closure"))
            if not known and not isinstance(error, getattr(distributed, "DistError", ())):
                raise
            raise ValueError(otherwise) from None

    def everyone(self, value: T) -> list[T]:
        """The value of every process, in order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value)
        return found


def require_teams(context: int) -> int:
    """How many teams of `context` processes there are; raises ValueError where the processes do not divide into them.

    >>> require_teams(1)
    1
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if context < 1:
        raise ValueError(f"--context-parallel must be 1 or more, got {context}")
    if count % context:
        here = "is 1" if count == 1 else f"are {count}"
        raise ValueError(
            f"--context-parallel {context} needs a multiple of {context} processes, here {here}: torchrun "
            f"--nproc-per-node {context} starts as many"
        )
    return count // context


def _timeout() -> float:
    given = os.environ.get(TIMEOUT, "1800")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"{TIMEOUT} is {given!r}: give the seconds to wait for another process, above 0")
    return seconds


def _interface() -> str:
    """The network interface on the way to the first process; "" if that is loopback, or not known.

    gloo would listen at the address of this machine's own name, which often is loopback: no other machine reaches that.
    """
    try:
        address = ipaddress.IPv4Address(socket.gethostbyname(os.environ.get("MASTER_ADDR", "")))
        routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    except (OSError, ValueError):  # nobody knows the name, or this is not Linux
        return ""
    to = int.from_bytes(address.packed, sys.byteorder)  # as the kernel prints addresses
    fit = [
        (int(mask, 16).bit_count(), name)
        for name, net, *_, mask, _, _, _ in routes
        if to & int(mask, 16) == int(net, 16)
    ]
    return "" if address.is_loopback else max(fit, default=(0, ""))[1]


def _fresh(store: Store, rank: int, count: int, timeout: float) -> Store:
    """A part of the store that only these processes use, named by the first of them.

    torchrun keeps one store for all its restarts, in which processes would find the addresses of those before them. So
    the first waits for a name that each other drew, and each other until its own name is among those that arrived.
    """
    mine = secrets.token_hex(8)
    if rank == 0:
        store.set("joformer", mine)
        store.set(f"{mine}/all", " ".join(store.get(f"{mine}/{other}").decode() for other in range(1, count)))
        return PrefixStore(mine, store)
    until = time.monotonic() + timeout
    while True:
        first = store.get("joformer").decode()  # which may have ended
        store.set(f"{first}/{rank}", mine)
        if store.check([f"{first}/all"]) and mine in store.get(f"{first}/all").decode().split():
            return PrefixStore(first, store)
        if time.monotonic() > until:
            raise distributed.DistStoreError("the first process did not answer")
        time.sleep(0.05)


def whole(value: Tensor) -> Tensor:
    """A copy on the CPU, put together from its shards where it has any; all processes must call it.

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


class _Beside(nn.Module):
    """A model and a parameter that it does not use: without any DDP warns that it need not have looked for some."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.unused = model, nn.Parameter(torch.zeros(1))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


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
