"""What a training step needs of a GPU, counted on tensors without data: no GPU is there, and nothing is computed.

    state    weights + AdamW's two moments + averages                                exact
    peak     the most that is alive at once in a step: state, gradients, what autograd saves, and what passes
    seconds  max(FLOP / throughput, kernels · LAUNCH)                                an estimate

The step is the real one: the model of the cell at its real batch, its loss, backward, norm, AdamW, then an evaluation.
Only what a GPU does otherwise than this CPU is put in its place (`_AsOnCuda`): what autocast leaves in float32 there,
which kernel of attention is chosen, and our own kernel for rotations. Fused attention saves q, k, v, its output and one
number per query, no matrix of scores. Not counted: the workspace of kernels, CUDA's own memory and what its allocator
wastes, for which `MARGIN` and `RESERVED` are kept free; `--compile` saves less than is counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from joformer.bench._traffic import with_kernels
from joformer.rotation import _rotate
from joformer.training import Processes, Recipe, Task
from joformer.training.state import State

MARGIN, RESERVED = 0.1, 1_000_000_000
"""Of a card's memory, the share that fragments take, and the bytes that CUDA and its libraries take for themselves."""
LAUNCH = 1e-5
"""Seconds that eager PyTorch takes to start a kernel: small models wait for it, not for arithmetic."""
WIDE = 0.1
"""How fast products in float32 are beside those of 16 bits."""

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# What autocast computes in float32 on CUDA and not on the CPU, as far as models here use it.
_FLOAT32 = {
    F.layer_norm, F.group_norm, F.softmax, F.log_softmax, F.softplus, F.cross_entropy, F.nll_loss, F.normalize,
    *(getattr(where, name) for where in (torch, Tensor) for name in
      ("softmax", "log_softmax", "cumsum", "cumprod", "exp", "expm1", "log", "log1p", "norm", "pow", "prod",
       "reciprocal", "rsqrt", "sum", "tan")),
}  # fmt: skip
_FREE = ("empty", "new_empty", "detach", "_unsafe", "lift", "alias")


@dataclass(frozen=True)
class Footprint:
    """What one process needs for a step of its share of the batch, in bytes, and what the step computes.

    Attributes:
        parameters: How many numbers the model learns.
        state: Bytes of weights, moments and averages, which stay from step to step.
        peak: The most bytes alive at once, in training or in an evaluation.
        flops: Floating-point operations of a step, forward and backward.
        kernels: How many kernels forward and backward start; those of the update are few.
        evaluated: Floating-point operations per held-out sample, for each length at which they are evaluated.
    """

    parameters: int
    state: int
    peak: int
    flops: int
    kernels: int
    evaluated: tuple[float, ...]

    def fits(self, card: float) -> bool:
        """Whether it fits a card of so many bytes, with what is kept free for CUDA itself.

        >>> Footprint(1, 12, 20_000_000_000, 0, 0, ()).fits(24e9)
        True
        """
        return self.peak * (1 + MARGIN) + RESERVED <= card

    def seconds(self, precision: str, throughput: float) -> float:
        """About how long a step takes at so many FLOP per second in 16 bits.

        >>> Footprint(1, 12, 20, 10**12, 100, ()).seconds("bf16", 1e14)
        0.01
        """
        return max(self.flops / _rate(precision, throughput), self.kernels * LAUNCH)


def _rate(precision: str, throughput: float) -> float:
    return throughput * (WIDE if precision == "fp32" else 1)


class Live(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, real or fake, and the operations, while it is entered.

    Example:
        >>> with Live() as live:
        ...     a = torch.ones(256)
        ...     b = (a + 1).sum()
        >>> live.peak, live.now, live.kernels
        (2052, 1028, 3)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.flops = self.kernels = 0
        self._sizes: dict[int, int] = {}

    def hold(self, tensor: Tensor) -> None:
        """Counts a tensor until its memory is freed; one that is counted already, or a view of it, is not again."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._release, key).atexit = False

    def _release(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and counts what it returns."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        for one in tree_leaves(out):
            if isinstance(one, Tensor):
                self.hold(one)
        formula = _FLOPS.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        room, _, name = func._schema.name.partition("::")
        self.kernels += room in ("aten", "joformer") and not func.is_view and not name.startswith(_FREE)
        return out


def _attention_flops(queries: Tensor, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> int:
    """Both products of attention; a causal kernel skips half, which is not taken off."""
    rows, length = queries.shape[:-1].numel(), keys.shape[-2]
    return 2 * rows * length * (queries.shape[-1] + values.shape[-1])


def _attention_backward_flops(gradient: Tensor, *qkv: Any, **_: Any) -> int:
    """Scores once more, and four products for the three gradients."""
    return _attention_flops(*qkv[:3]) * 5 // 2


_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


class _AsOnCuda(TorchFunctionMode):
    """On the CPU, what CUDA's autocast and its choice of attention kernels would do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func in _FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = [_widened(one) for one in args]
            kwargs = {name: _widened(one) for name, one in kwargs.items()}
        return func(*args, **kwargs)

    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
        half, width = dtype in (torch.float16, torch.bfloat16), q.shape[-1]
        flash = half and attn_mask is None and width <= 256
        if flash or (width % (8 if half else 4) == 0 and not enable_gqa):
            # The CPU's kernel saves what CUDA's do. They keep the seed of dropout, no mask: here it is left out.
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        plain = torch.ops.aten._scaled_dot_product_attention_math
        q, k, v = (one.to(dtype) for one in (q, k, v))
        return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]


def _widened(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


class _Nowhere(Processes):
    """One process on a CPU, whatever is here; models without data cannot be moved, and are not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")

    def wrap(self, model: nn.Module, compiled: bool = False) -> nn.Module:
        return model


def count(
    config: Any,
    task: Task,
    recipe: Recipe,
    batch: Sequence[Tensor],
    rows: int,
    held: Sequence[Sequence[tuple[int, ...]]] = (),
    *,
    copies: bool = False,
    cuda: bool = True,
) -> Footprint:
    """What a step of a model needs, and the evaluation after it.

    Args:
        config: The model.
        task: Its loss.
        recipe: Precision, parts, moments and averages are counted by it.
        batch: What `task.batch` gives, of two samples or more: shapes and dtypes are read, no numbers.
        rows: Samples of one part of a step.
        held: The shapes of a batch of held-out samples, one for each tensor of `batch`; several for several lengths.
        copies: Whether gradients are sent to other processes, from a copy.
        cuda: Count what a GPU does; False: what this CPU does.

    Returns:
        The count.

    Example:
        >>> from joformer.models import ViTConfig
        >>> from joformer.training import ImageTask, load_images
        >>> config = ViTConfig(shape=(8, 8), patch=(2, 2), channels=1, classes=10, dim=32, layers=1, heads=2)
        >>> task = ImageTask(load_images("digits"), batch=4)
        >>> found = count(config, task, Recipe(), task.batch(0, 0, 0, 1), rows=1024)
        >>> found.state // found.parameters, found.peak > 100 * found.state  # 4 bytes of a weight and of two moments
        (12, True)
    """
    dtype = _AUTOCAST[recipe.precision]
    with ExitStack() as modes:
        modes.enter_context(FakeTensorMode())
        # Else layers whose weights are of this kind would not be fused.
        modes.enter_context(patch.object(_rotate, "_PLAIN", (nn.Parameter, Tensor, FakeTensor)))
        if cuda:
            modes.enter_context(with_kernels())
            modes.enter_context(_AsOnCuda())
        live = modes.enter_context(Live())

        def autocast() -> AbstractContextManager[object]:
            return nullcontext() if dtype is None else torch.autocast("cpu", dtype)

        raw = config.build()
        state = State(raw, recipe, _Nowhere())
        weights = list(state.parameters.values())
        sent = [torch.empty_like(one) for one in weights] if copies else []
        inputs = tuple(
            torch.empty(shape, dtype=one.dtype) for shape, one in zip(shapes_of(batch, rows), batch, strict=True)
        )
        raw.train()
        live.flops = live.kernels = 0
        for _ in range(min(recipe.accumulate, 2)):  # the second finds the gradients of the first
            with autocast():
                loss = task.loss(raw, inputs)
            loss.backward()
            del loss
        flops, kernels, many = live.flops, live.kernels, min(recipe.accumulate, 2)
        before, most = live.now, live.peak
        state.norm()
        state.update(1e-3)
        gradients = sum(_bytes(one) for one in weights if one in state.optimizer.state)
        most = max(most + live.now + gradients - before, live.peak)  # moments are there from the second step on
        moments = [one for its in state.optimizer.state.values() for one in its.values()]
        kept = sum(map(_bytes, (*weights, *raw.buffers(), *moments, *state.average)))
        del inputs, sent
        live.peak = live.now
        raw.eval()
        evaluated = []
        with torch.no_grad(), autocast(), state.averaged():
            for shapes in held:
                live.flops = 0
                task.loss(raw, tuple(torch.empty(its, dtype=one.dtype) for its, one in zip(shapes, batch, strict=True)))
                evaluated.append(live.flops / shapes[0][0])
        return Footprint(
            sum(one.numel() for one in weights),
            kept,
            max(most, live.peak),
            flops * recipe.accumulate // many,
            kernels * recipe.accumulate // many,
            tuple(evaluated),
        )


def shapes_of(batch: Sequence[Tensor], rows: int) -> list[tuple[int, ...]]:
    """The shapes of a batch of so many samples, where `batch` has as many as its first tensor is long.

    >>> shapes_of([torch.empty(4, 3), torch.empty(2, 4, 64)], rows=512)
    [(512, 3), (2, 512, 64)]
    """
    size = len(batch[0])
    places = [list(one.shape).index(size) for one in batch]
    return [(*one.shape[:at], rows, *one.shape[at + 1 :]) for one, at in zip(batch, places, strict=True)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
