"""Context parallelism: a sequence shared by several processes, which tokens each of them has, and what they exchange.

    chunks     2N of equal length; process r of N has chunk r (its head) and chunk 2N − 1 − r (its tail)
    attention  c_i = A_i⁻¹ Σ_j α_ij (A_j v_j): each process rotates its own k and v; all processes gather all of them
    sums       Σ_{s≤t} x_s = Σ of t's own chunk up to t + the totals of the chunks before it

Keys and values are exchanged in the common frame, frames never are: each process makes those of its own tokens. In
causal attention chunk c sees c + ½ chunks; a head and a tail together see 2N, whichever process has them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

# torch 2.13 renamed both, and warns about the names that 2.6 has.
RENAMED = hasattr(distributed, "all_gather_single")
ALL_GATHER = "all_gather_single" if RENAMED else "all_gather_into_tensor"
REDUCE_SCATTER = "reduce_scatter_single" if RENAMED else "reduce_scatter_tensor"


class ContextParallel:
    """The processes that share the tokens of each sequence; this process is `rank` of `count`.

    Each sequence is divided into 2N equal chunks for N processes; process r has chunks r and 2N − 1 − r, in this order.
    All processes must call the same methods with tensors of the same shape.

    Args:
        group: The process group; by default all processes.

    Raises:
        ValueError: If there is no process group, or this process is not in it.

    Example:
        >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        >>> parallel = ContextParallel()
        >>> mine = parallel.share(torch.arange(8), dim=0)
        >>> mine, parallel.gather(mine, dim=0).equal(torch.arange(8))
        (tensor([0, 1, 2, 3, 4, 5, 6, 7]), True)
        >>> distributed.destroy_process_group()
    """

    def __init__(self, group: Any = None) -> None:
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ValueError("context parallelism needs processes: call torch.distributed.init_process_group first")
        self.group, self.rank, self.count = group, distributed.get_rank(group), distributed.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: pass a group that contains it")

    @property
    def chunks(self) -> tuple[int, int]:
        """Which of the 2N chunks this process has: its head and its tail."""
        return self.rank, 2 * self.count - 1 - self.rank

    def share(self, x: Tensor, dim: int = 1) -> Tensor:
        """The tokens of this process, its head and then its tail, out of all tokens along `dim`.

        Args:
            x: All tokens, the same in every process.
            dim: The token dimension.

        Returns:
            A tensor like `x` with 1/N of the tokens.

        Raises:
            ValueError: If the number of tokens is not divisible by 2N.
        """
        self.check(x.shape[dim])
        chunks = x.chunk(2 * self.count, dim)
        return torch.cat([chunks[number] for number in self.chunks], dim)

    def check(self, tokens: int) -> None:
        """Raises ValueError if a sequence of this many tokens cannot be divided into 2N chunks."""
        if not tokens or tokens % (2 * self.count):
            raise ValueError(
                f"{tokens} tokens do not divide into {2 * self.count} chunks, two for each of {self.count} processes "
                f"(context parallel): take a multiple of {2 * self.count}"
            )

    def gather(self, x: Tensor, dim: int = 1) -> Tensor:
        """All tokens in order, gathered from all processes: the inverse of `share`.

        Differentiable: the gradient of a token is the sum of its gradients in all processes.

        Args:
            x: The tokens of this process, as returned by `share`.
            dim: The token dimension.

        Returns:
            A tensor like `x` with N times the tokens, the same in every process.
        """
        stacked = _AllGather.apply(x.movedim(dim, 0), self)
        heads, tails = stacked.unflatten(1, (2, -1)).unbind(1)
        return torch.cat((heads, tails.flip(0))).flatten(0, 1).movedim(0, dim)

    def cumsum(self, x: Tensor, dim: int = 1) -> Tensor:
        """``Σ_{s≤t} x_s`` for this process's tokens t, over all tokens s; only the totals of chunks are exchanged.

        Args:
            x: The tokens of this process, as returned by `share`.
            dim: The token dimension.

        Returns:
            A tensor like `x`.
        """
        within = x.movedim(dim, 0).unflatten(0, (2, -1)).cumsum(1)
        totals = self.gather(within[:, -1], dim=0)
        before = self.share(totals.cumsum(0) - totals, dim=0)
        return (within + before[:, None]).flatten(0, 1).movedim(0, dim)


class _AllGather(torch.autograd.Function):
    """x (tokens, …) → (N, tokens, …); the gradient of each part is summed and returned to the process it came from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parallel: ContextParallel) -> Tensor:
        ctx.parallel = parallel
        out = x.new_empty(parallel.count * len(x), *x.shape[1:])
        getattr(distributed, ALL_GATHER)(out, x.contiguous(), group=parallel.group)
        return out.unflatten(0, (parallel.count, -1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        own = grad.new_empty(grad.shape[1:])
        getattr(distributed, REDUCE_SCATTER)(own, grad.flatten(0, 1).contiguous(), group=ctx.parallel.group)
        return own, None
