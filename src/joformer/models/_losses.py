"""Cross-entropy of a linear head without full logits: tokens are processed in chunks that accumulate the gradients.

    z = W h          L = mean_n (log Σ_v e^{z_nv} − z_n,target)
    g = e^{z − m} / s − onehot(target),    s = Σ_v e^{z_v − m},    m = max_v z_v
    ∂L/∂h_n = Wᵀ g_n / N          ∂L/∂W = Σ_n g_n h_nᵀ / N

The gradient is known as soon as the loss is, so that (tokens, vocab) is never materialised, forward or backward:
8 × 512 tokens and 8,000 words are 131 MB of logits and as much again for their gradient; here it is 16 MB.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor
from torch.nn import functional as F

from joformer._precision import is_traced, without_autocast

IGNORED = -100
"""The target of an ignored token, as everywhere in torch."""

# At 8,000 words the fastest of 64 … 1,024 on one core; on two within 4 % of 1,024, which needs twice the memory.
ROWS = 512


def linear_cross_entropy(
    hidden: Float[Tensor, "*tokens dim"], weight: Float[Tensor, "vocab dim"], targets: Integer[Tensor, "*tokens"]
) -> Float[Tensor, ""]:
    """L = mean_n −log softmax(W h_n)[target_n] over the tokens whose target is not −100.

    Computes the same as `F.cross_entropy(hidden @ weight.T, targets)`, faster and with a fraction of the memory. Under
    autocast the products are in its dtype; exponentials and sums are always fp32 or wider. Differentiable once.

    Args:
        hidden: The input of the output layer, ``(*tokens, dim)``.
        weight: The weights of the output layer, ``(vocab, dim)``.
        targets: Integers, ``(*tokens)``; −100 is ignored.

    Returns:
        A scalar, float32 or float64.

    Raises:
        ValueError: If shapes or dtypes are incompatible, or a target is out of range.

    Example:
        >>> hidden, weight = torch.eye(3).requires_grad_(), torch.eye(3)
        >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 1, -100]))
        >>> loss.backward()
        >>> round(loss.item(), 4), hidden.grad.abs().sum(-1).count_nonzero().item()
        (0.5514, 2)
    """
    y = _checked(hidden, weight, targets)
    x = hidden.flatten(0, -2)
    if torch._C._are_functorch_transforms_active():  # which can only trace plain operations
        return cross_entropy(F.linear(x, weight), y)
    return LinearCrossEntropy.apply(x, weight, y, torch.is_grad_enabled())


def cross_entropy(
    logits: Float[Tensor, "*tokens vocab"], targets: Integer[Tensor, "*tokens"], reduction: str = "mean"
) -> Float[Tensor, ""] | Float[Tensor, "*tokens"]:
    """mean_n −log softmax(z_n)[target_n] of given logits, in fp32 or wider, like `linear_cross_entropy`.

    >>> round(cross_entropy(torch.eye(3), torch.tensor([0, 1, -100])).item(), 4)
    0.5514
    """
    flat = logits.flatten(0, -2)
    wide, indices = flat.to(_wide(flat.dtype)), targets.flatten().to(torch.int64)
    losses = F.cross_entropy(wide, indices, ignore_index=IGNORED, reduction=reduction)
    return losses if reduction == "mean" else losses.view(targets.shape)


def token_losses(
    hidden: Float[Tensor, "*tokens dim"], weight: Float[Tensor, "vocab dim"], targets: Integer[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """−log softmax(W h_n)[target_n] of each token, 0 where the target is −100; their mean is `linear_cross_entropy`.

    Only the logits of tokens that are not ignored are computed, in chunks.

    >>> [round(loss, 4) for loss in token_losses(torch.eye(3), torch.eye(3), torch.tensor([0, 2, -100])).tolist()]
    [0.5514, 1.5514, 0.0]
    """
    y, x = _checked(hidden, weight, targets), hidden.flatten(0, -2)
    losses = torch.zeros(len(y), dtype=_wide(_dtype_of_products(hidden)), device=x.device)
    for rows in (y != IGNORED).nonzero()[:, 0].split(ROWS):
        logits = F.linear(x[rows], weight)
        losses[rows] = F.cross_entropy(logits.to(losses.dtype), y[rows], reduction="none")
    return losses.view(targets.shape)


class LinearCrossEntropy(torch.autograd.Function):
    """hidden (n, dim), weight (vocab, dim), targets (n,) → mean loss; backward scales precomputed gradients."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, gradients: bool) -> Tensor:
        """The loss and, where needed, both gradients."""
        device, dtype = hidden.device, _dtype_of_products(hidden)
        wide = _wide(dtype)
        to_hidden, to_weight = (gradients and needed for needed in ctx.needs_input_grad[:2])
        d_hidden = torch.empty(hidden.shape, dtype=wide, device=device) if to_hidden else None
        d_weight = torch.zeros(weight.shape, dtype=wide, device=device) if to_weight else None
        counts = targets != IGNORED
        at, live = torch.where(counts, targets, 0)[:, None], counts[:, None].to(wide)
        total = torch.zeros((), dtype=wide, device=device)
        with without_autocast(device):
            x, w = hidden.to(dtype), weight.to(dtype)
            # One buffer for all chunks: allocating each time would map and clear its pages again and again.
            products = torch.empty(min(ROWS, len(x)), len(w), dtype=dtype, device=device)
            buffer = products if dtype == wide else torch.empty_like(products, dtype=wide)
            for start in range(0, len(x), ROWS):
                part = slice(start, start + ROWS)
                here, y = x[part], at[part]
                product = torch.mm(here, w.T, out=products[: len(here)])
                z = product if dtype == wide else buffer[: len(here)].copy_(product)
                most, own = z.amax(-1, keepdim=True), z.gather(1, y)
                e = z.sub_(most).exp_()
                s = e.sum(-1, keepdim=True)
                total += ((most - own + s.log()) * live[part]).sum()
                if not (to_hidden or to_weight):
                    continue
                e.scatter_(1, y, (own - most).exp() - s)  # s·g: dividing the other factor instead is less work
                share = live[part] / s
                if dtype != wide:  # s may overflow in half precision
                    e, share = torch.mul(e, share, out=product), torch.ones_like(share, dtype=dtype)
                if d_hidden is not None:
                    d_hidden[part] = torch.mm(e, w) * share
                if d_weight is not None and dtype == wide:
                    d_weight.addmm_(e.T, here * share)
                elif d_weight is not None:
                    d_weight += e.T @ here
        count = counts.sum()
        ctx.save_for_backward(d_hidden, d_weight, count)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients from the forward, times that of the loss."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph: saved tensors are constant
            raise ValueError("linear_cross_entropy has no second derivative: use F.cross_entropy(hidden @ weight.T, …)")
        *sums, count = ctx.saved_tensors
        # Only now narrowed: a gradient of 1 / N underflows in fp16, unless the loss has been scaled up.
        scale = grad / count
        to = [None if d is None else (d * scale).to(dtype) for d, dtype in zip(sums, ctx.dtypes, strict=True)]
        return *to, None, None


def _dtype_of_products(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if cast and hidden.dtype != torch.float64 else hidden.dtype


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _checked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Int[Tensor, "_all"]:
    """The targets, flattened, as int64 indices."""
    shape, given = tuple(hidden.shape), tuple(targets.shape)
    if hidden.dim() < 2 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(f"hidden must be (…, dim) and weight (vocab, dim), got {shape} and {tuple(weight.shape)}")
    if hidden.dtype != weight.dtype and _dtype_of_products(hidden) == hidden.dtype:
        raise ValueError(f"hidden is {hidden.dtype} and weight {weight.dtype}: without autocast they must be the same")
    if given != shape[:-1] or targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"targets must be whole numbers {shape[:-1]}, one per token, got {targets.dtype} {given}")
    flat = targets.flatten().to(torch.int64)
    # Elsewhere reading values would wait for the device or break the graph; there `gather` raises.
    if type(flat) is Tensor and flat.device.type == "cpu" and len(flat) and not is_traced():
        least, most = torch.where(flat == IGNORED, 0, flat).aminmax()
        if least < 0 or most >= len(weight):
            within = f"within 0 … {len(weight) - 1}, or {IGNORED} for an ignored token"
            raise ValueError(f"targets go from {int(least)} to {int(most)}: they must be {within}")
    return flat
