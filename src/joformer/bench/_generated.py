"""Bytes of the kernels that `torch.compile` generates for an attention layer on a GPU, counted without one.

The layer is traced on tensors without data, its graphs of forward and backward are moved to a GPU that is described
and not there, and inductor plans its kernels for it: which operations each fuses, which buffers it reads and writes.
Then it is stopped; nothing is built or run. A buffer counts once per kernel, however often the kernel reads it.

All of this is inductor's own business and may change with any release: whoever calls `generated` expects it to fail.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._dynamo.device_interface import CudaInterface
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor import compile_fx, config, graph, scheduler
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from joformer.attention import JourneyAttention
from joformer.attention._options import Transport
from joformer.bench._counts import BATCH, HEAD_DIM, HEADS, TOKENS, Count
from joformer.frames import FlatFrames

GPU = torch.device("cuda")
TABLE = 4 * TOKENS * HEAD_DIM // 2
"""Bytes of the cosines: a kernel that touches nothing as large belongs to attention."""
LARGE = BATCH * TOKENS * HEADS * HEAD_DIM
"""Bytes of half of q, k, v or o: what is smaller is cos, sin or a gradient of angles."""
_CARD = SimpleNamespace(
    name="A100",
    gcnArchName="",
    major=8,
    minor=0,
    multi_processor_count=108,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
)


class _Planned(BaseException):
    """Inductor has planned its kernels: there is nothing more to do."""


def generated(transport: Transport, learned: bool) -> tuple[Count, Count]:
    """What the kernels generated for one layer read and write in bf16, forward and backward.

    Args:
        transport: What is transported; "none" gives what a layer without positions moves.
        learned: Whether the angles get a gradient.

    Returns:
        Of the forward and of the backward. Tables of cos and sin are made once for all layers: their making is counted
        as `Count.tables` and not as a launch.
    """
    counts = {False: Count(), True: Count()}

    class Plan(graph.GraphLowering):
        """A graph whose tensors are on a GPU, and whose kernels are counted instead of built."""

        def __init__(self, module: Any, *, example_inputs: Sequence[Any], **options: Any) -> None:
            for node in module.graph.nodes:
                if "val" in node.meta:
                    node.meta["val"] = tree_map(_moved, node.meta["val"])
                if "device" in node.kwargs:
                    node.update_kwarg("device", GPU)
            super().__init__(module, example_inputs=[*map(_moved, example_inputs)], **options)

        def run(self, *args: Any, **options: Any) -> Any:
            return super().run(*map(_moved, args), **options)

        def compile_to_module(self) -> Any:
            self._update_scheduler()
            for kernel in self.scheduler.nodes:
                if not kernel.is_extern():
                    _add(counts[self.is_backward], kernel, self.is_backward)
            raise _Planned

    def count(module: Any, inputs: Sequence[Any], **options: Any) -> Any:
        runs = make_boxed_func(copy.deepcopy(module).forward)
        with patch.object(compile_fx, "GraphLowering", Plan), _described_gpu(), suppress(_Planned):
            compile_fx.compile_fx_inner(module, inputs, **options)
        return runs

    uncached = config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False)
    with FakeTensorMode(), uncached[0], uncached[1]:
        angles = torch.zeros(1, TOKENS, 1, HEAD_DIM // 2, requires_grad=learned)
        x = torch.zeros(BATCH, TOKENS, HEADS * HEAD_DIM, dtype=torch.bfloat16, requires_grad=True)
        layer = JourneyAttention(HEADS * HEAD_DIM, HEADS, transport=transport, causal=True)
        for linear in (layer.qkv, layer.out):
            linear.weight = nn.Parameter(linear.weight.to(torch.bfloat16))

        @torch.compile(backend=lambda g, i: compile_fx.compile_fx(g, i, inner_compile=count), fullgraph=True)
        def forward(x: Tensor, angles: Tensor) -> Tensor:
            return layer(x, FlatFrames.of(angles, layout="half"))

        y = forward(x, angles)
        torch.autograd.grad(y, [x, *layer.parameters(), *[angles] * learned], torch.zeros_like(y))
    return counts[False], counts[True]


def _add(count: Count, kernel: Any, backward: bool) -> None:
    bytes = kernel.get_read_write_buffer_accesses(include_reads=True, include_writes=True).values()
    most = max(bytes, default=0)
    if most >= TABLE:
        large = sum(one for one in bytes if one >= LARGE)
        count.bytes += large
        count.tables += sum(bytes) - large
        count.launches += most >= LARGE or backward


def _moved(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    with value.fake_mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)


@contextmanager
def _described_gpu() -> Iterator[None]:
    """Answers what inductor asks of a card, where there is none."""
    answers: list[tuple[Any, str, Any]] = [
        (CudaInterface, "get_device_properties", _CARD),
        (CudaInterface, "is_bf16_supported", True),
        (torch.cuda, "get_device_properties", _CARD),
        (torch.cuda, "get_device_capability", (_CARD.major, _CARD.minor)),
        (torch.cuda, "current_device", 0),
        (scheduler, "has_triton", True),
    ]
    with ExitStack() as stack:
        for place, name, answer in [] if torch.cuda.is_available() else answers:
            stack.enter_context(patch.object(place, name, lambda *_, answer=answer, **__: answer))
        yield
