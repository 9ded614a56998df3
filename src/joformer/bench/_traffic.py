"""Bytes and launches of rotations on a GPU, ours and others', as `_counts` counts them.

kernel                  our kernel, as on a GPU, in an eager layer
eager                   the same layer with PyTorch's operations
compiled                the kernels `torch.compile` generates for a layer (`_generated`); without positions beside it
Hugging Face            `apply_rotary_pos_emb` of Llama, operation by operation
Liger 0.8.5             `LigerRopeFunction`, read: per token one program that rotates all heads of q and k in place. It
                        needs q and k contiguous with tokens before heads and copies them where they are not, as where
                        one projection holds q, k and v
flash-attention 2.8     `apply_rotary_emb_qkv_`, read: q and k as heads of one packed tensor, rotated in place; a
                        program has two heads, so that cos and sin are loaded again for every other head

The last two are Triton kernels that nobody can start here: the tensor operations around them are run, the kernel itself
is counted by its loads and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor, nn

from joformer._io import one_line
from joformer._log import logger
from joformer.bench._counts import BATCH, HEAD_DIM, HEADS, TOKENS, Count, Counting, size
from joformer.bench._measure import Effort, Row
from joformer.frames import FlatFrames
from joformer.rotation import _kernels, rotate_packed_, unrotate_linear

Formulation = Callable[[Counting, Tensor, Tensor, Tensor], object]
"""Counts a rotation of q and k, each (batch, heads, tokens, head_dim), by a table of cos or sin in bf16."""


@contextmanager
def with_kernels() -> Iterator[None]:
    """Within it, tensors without data are rotated by our kernel, as on a GPU; one that has data cannot be."""
    with patch.object(_kernels, "_WANTED", "triton"), patch.object(_kernels, "_triton_is_here", lambda: True):
        yield


def count(learned: bool, *, kernels: bool) -> tuple[Count, Count]:
    """What rotating q, k, v and rotating o back costs a layer in bf16, forward and backward.

    Args:
        learned: Whether the angles get a gradient.
        kernels: Whether our kernel is used, as on a GPU, or PyTorch's operations.

    Example:
        >>> forward, backward = count(learned=False, kernels=True)
        >>> forward.bytes / (4 * BATCH * TOKENS * HEADS * HEAD_DIM), forward.launches
        (4.0, 2)
    """
    device, dtype = torch.device("meta"), torch.bfloat16
    dim = HEADS * HEAD_DIM
    angles = torch.zeros(1, TOKENS, 1, HEAD_DIM // 2, device=device, requires_grad=learned)
    frames = FlatFrames.of(angles, layout="half")
    packed = torch.zeros(BATCH, TOKENS, 3 * dim, device=device, dtype=dtype, requires_grad=True)
    o = torch.zeros(BATCH, TOKENS, HEADS, HEAD_DIM, device=device, dtype=dtype, requires_grad=True)
    linear = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
    widths = [(HEADS, HEAD_DIM)] * 3
    with with_kernels() if kernels else patch.object(_kernels, "_WANTED", "eager"):
        for counting in (nullcontext(), Counting()):  # the first layer prepares what all share
            fresh = packed * 1
            with counting as forward:
                parts = rotate_packed_(fresh, widths, [frames] * 3)
                out = unrotate_linear(o, frames, linear)
        grads = [*(torch.zeros_like(part) for part in parts), torch.zeros_like(out)]
        with Counting() as backward:
            torch.autograd.grad([*parts, out], [fresh, o, linear.weight, *[angles] * learned], grads)
    assert forward is not None
    return forward.count, backward.count


def _liger(counting: Counting, q: Tensor, k: Tensor, table: Tensor) -> None:
    both = [x.transpose(1, 2).contiguous() for x in (q, k)]
    counting.count.add_kernel(both, both, tables=BATCH * size(table))  # of cos and of sin the first half each


def _flash(counting: Counting, q: Tensor, k: Tensor, table: Tensor) -> None:
    counting.count.add_kernel([q, k], [q, k], tables=BATCH * HEADS * size(table))


def peers() -> Iterator[tuple[str, Count, Count]]:
    """Others' rotations of q and k alone: name, forward, backward.

    >>> [name for name, *_ in peers()][-1]
    'flash-attention 2.8, in place (read)'
    """
    empty = torch.zeros(BATCH, TOKENS, 3, HEADS, HEAD_DIM, device="meta", dtype=torch.bfloat16)
    table = torch.zeros(TOKENS, HEAD_DIM, device="meta", dtype=torch.bfloat16)
    one = [part.transpose(1, 2) for part in empty.unbind(2)[:2]]
    apart = [part.contiguous().transpose(1, 2).requires_grad_() for part in empty.unbind(2)[:2]]
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    except ImportError:
        logger.info("Hugging Face's rows are left out: transformers is not installed")
    else:
        cos = table.expand(BATCH, -1, -1).contiguous()
        with Counting() as forward:
            rotated = apply_rotary_pos_emb(*apart, cos, cos)
        with Counting() as backward:
            torch.autograd.grad(rotated, apart, [torch.zeros_like(part) for part in rotated])
        yield "Hugging Face", forward.count, backward.count
    # Each with its q and k, then the gradients that attention returns: contiguous, or for flash-attention, which
    # attends to the packed tensor, in one.
    read: tuple[tuple[str, Formulation, list[Tensor], list[Tensor]], ...] = (
        ("Liger 0.8.5 (read)", _liger, apart, apart),
        ("Liger 0.8.5 of one projection (read)", _liger, one, apart),
        ("flash-attention 2.8, in place (read)", _flash, one, one),
    )
    for name, formulation, (q, k), (dq, dk) in read:
        with torch.no_grad():
            with Counting() as forward:
                formulation(forward, q, k, table)
            with Counting() as backward:
                formulation(backward, dq, dk, table)
        yield name, forward.count, backward.count


def traffic(effort: Effort) -> Iterator[Row]:
    """Bytes and launches per layer: our kernel, PyTorch's operations, generated kernels, and others' on q and k."""
    angles = ((False, "fixed angles"), (True, "learned angles"))
    for how, bar in (("kernel", 4.0), ("eager", None)):
        for learned, what in angles:
            yield from _rows(4, f"{how}, {what}", *count(learned, kernels=how == "kernel"), bar)
    try:
        from joformer.bench._generated import generated

        for learned, what in angles:
            yield from _rows(4, f"compiled, {what}", *generated("both", learned))
        yield from _rows(4, "compiled, no positions", *generated("none", learned=False))
    except Exception as error:  # private names of torch: any of them may be gone in another release
        why = f"torch {torch.__version__} plans its kernels otherwise: {one_line(error, first=True)}"
        logger.info(f"compiled rows are left out: {why}")
    for name, forward, backward in peers():
        yield from _rows(2, name, forward, backward)


def _rows(parts: int, name: str, forward: Count, backward: Count, bar: float | None = None) -> Iterator[Row]:
    """Bytes and launches, forward and backward; `bar` is that of the forward's bytes."""
    what, entries = {2: "q and k", 4: "q, k, v and o"}[parts], parts * BATCH * TOKENS * HEADS * HEAD_DIM
    for found, way, its in ((forward, "forward", bar), (backward, "backward", None)):
        yield Row(f"bytes per element of {what} in bf16, {name}, {way}", found.bytes / entries, its)
        yield Row(f"launches per layer, {name}, {way}", found.launches, None if its is None else 2.0)
