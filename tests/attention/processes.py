"""What the processes of test_parallel.py run: `python processes.py COUNT FOLDER`; a process that fails exits with 1.

Each compares its share of a sequence with the whole, which it computes too. Processes are forked: one import for all.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings

import torch
from torch import distributed

from joformer import (
    CumulativeFrames,
    FixedFrames,
    JourneyAttention,
    LearnedFrames,
    ProjectedFrames,
    journey_attention,
    positions,
)
from joformer.attention import ContextParallel
from joformer.models import LMConfig

BATCH, HEADS, KV, HEAD, DIM = 2, 4, 2, 8, 12
FRAMES = {
    "fixed": lambda: FixedFrames(HEAD),
    "learned": lambda: LearnedFrames(HEAD, heads=KV),
    "projected": lambda: ProjectedFrames(DIM, HEAD, heads=KV, on="learned"),
    "cumulative": lambda: CumulativeFrames(DIM, HEAD, heads=KV, on="learned"),
}


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float, what: str) -> None:
    error = (found - wanted).abs().max().item() / max(wanted.abs().max().item(), 1e-3)
    assert error < tolerance, f"{what}: {error:.1e}"


def perturbed(module: torch.nn.Module) -> torch.nn.Module:
    """The module with no weight at zero, the same in every process."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return module


def summed(module: torch.nn.Module) -> list[torch.Tensor]:
    """The gradients of the parameters, summed over the processes."""
    found = [weight.grad for weight in module.parameters()]
    for gradient in found:
        distributed.all_reduce(gradient)
    return found


def attention(
    parallel: ContextParallel, frames: str, dtype=torch.float32, tolerance=1e-5, tokens=48, **options
) -> None:
    """The rows, and the gradients of q, k, v, the content and the angles, are those of the whole sequence."""
    torch.manual_seed(0)
    module = perturbed(FRAMES[frames]())
    q, weight = torch.randn(2, BATCH, tokens, HEADS, HEAD, dtype=dtype).unbind()
    k, v = torch.randn(2, BATCH, tokens, KV, HEAD, dtype=dtype).unbind()
    x, where = torch.randn(BATCH, tokens, DIM, dtype=dtype), positions.sequence(tokens)

    def run(tensors, where, **parallel):
        *leaves, weight = (t.clone() for t in tensors)
        module.zero_grad()
        q, k, v, x = (t.requires_grad_() for t in leaves)
        out = journey_attention(q, k, v, module(where, x, **parallel), **options, **parallel)
        (out * weight).sum().backward()
        return [out.detach(), *(t.grad for t in leaves if t.grad is not None)]

    share, tensors = parallel.share, (q, k, v, x, weight)
    whole = run(tensors, where)
    wanted = [weight.grad for weight in module.parameters()]
    found = run([share(t) for t in tensors], share(where, 0), parallel=parallel)
    what = f"{frames} {dtype} {options}"
    assert len(found) == len(whole)
    for name, mine, all_ in zip("oqkvx", found, whole, strict=False):
        close(mine.double(), share(all_).double(), tolerance, f"{what} {name}")
    for mine, all_ in zip(summed(module), wanted, strict=True):
        close(mine.double(), all_.double(), max(tolerance, 1e-6), f"{what} angles")


def model(parallel: ContextParallel, **config) -> None:
    """The mean over processes of a language model's loss, and of its gradients, is that of one process."""
    torch.manual_seed(0)
    tokens, targets = torch.randint(50, (2, BATCH, 48)).unbind()
    segments = torch.arange(48) // 20
    lm = perturbed(LMConfig(vocab=50, dim=16, layers=2, heads=2, **config).build())
    for whose in (None, segments):
        lm.zero_grad()
        loss = lm(tokens, targets=targets, segments=whose)
        loss.backward()
        wanted = [weight.grad.clone() for weight in lm.parameters()]
        lm.zero_grad()
        mine = parallel.share
        found = lm(mine(tokens), targets=mine(targets), segments=whose, parallel=parallel)
        found.backward()
        distributed.all_reduce(found := found.detach().clone())
        close(found / parallel.count, loss.detach(), 1e-6, f"the loss of {config}")
        for (name, _), ours, theirs in zip(lm.named_parameters(), summed(lm), wanted, strict=True):
            close(ours / parallel.count, theirs, 1e-5, f"the gradient of {name} of {config}")


def layer(parallel: ContextParallel) -> None:
    """The module's own path, which rotates packed and in place, with a mask whose rows are this process's."""
    torch.manual_seed(0)
    attend, x = JourneyAttention(DIM, HEADS, kv_heads=KV, head_dim=HEAD, causal=True), torch.randn(BATCH, 48, DIM)
    frames, mask = FRAMES["fixed"](), torch.rand(BATCH, 1, 48, 48) > 0.3
    where, share = positions.sequence(48), parallel.share
    attend(x, frames(where), mask=mask).square().mean().backward()
    wanted = [weight.grad.clone() for weight in attend.parameters()]
    attend.zero_grad()
    rows = share(mask, 2)
    attend(share(x), frames(share(where, 0)), mask=rows, parallel=parallel).square().mean().backward()
    for ours, theirs in zip(summed(attend), wanted, strict=True):
        close(ours / parallel.count, theirs, 2e-6, "weights")


def check(parallel: ContextParallel) -> None:
    rank, count = parallel.rank, parallel.count
    order = parallel.share(torch.arange(4 * count), dim=0)
    assert order.tolist() == [2 * rank, 2 * rank + 1, 4 * count - 2 - 2 * rank, 4 * count - 1 - 2 * rank]
    assert parallel.gather(order, dim=0).tolist() == [*range(4 * count)]
    for name in FRAMES:
        attention(parallel, name, causal=True)
    attention(parallel, "learned", torch.float64, 1e-12, causal=True)
    attention(parallel, "learned", torch.bfloat16, 0.03, causal=True)
    attention(parallel, "learned", transport="scores", format="bthd")
    attention(parallel, "fixed", causal=True, weighting="softplus", transport="values")
    attention(parallel, "learned", causal=True, segments=torch.arange(48) // 20)
    for tokens in (48, 384):  # one block of the window's, and several
        attention(parallel, "learned", tokens=tokens, causal=True, window=5)
    layer(parallel)
    model(parallel, frames=("projected", "cumulative"))
    model(parallel, pattern="WN", window=7)


def main() -> None:
    count, folder = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    rank = next((rank for rank in range(1, count) if os.fork() == 0), 0)
    code = 1
    try:
        store = distributed.FileStore(f"{folder}/store", count)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=count)
        check(ContextParallel())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        if rank:
            os._exit(code)
    ended = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(1, count)]
    os._exit(max(code, *ended))  # gloo's threads end badly with the interpreter once in a while


if __name__ == "__main__":
    main()
