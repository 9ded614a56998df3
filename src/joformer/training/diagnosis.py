"""Where a number stopped being one: the layer at which a forward or backward pass first went wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def where_it_broke(model: nn.Module, forward: Callable[[], object]) -> tuple[int, str]:
    """The first layer with a NaN or infinity: in its weights (0), else its output (1), else its gradient (2).

    `forward` computes the losses again, with the dice as they were. Of several processes the least has the cause.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> _ = nn.init.constant_(model[1].weight, torch.inf)
    >>> where_it_broke(model, lambda: model(torch.ones(1, 2)).sum())
    (0, 'the weights of 1')
    """
    weights = [name for name, parameter in model.named_parameters() if not _finite(parameter)]
    broken: list[str] = []
    hooks = [
        module.register_forward_hook(
            lambda module, inputs, output, name=name: broken.append(name) if not _finite(output) else None
        )
        for name, module in model.named_modules()
        if name
    ]
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            forward()
    finally:
        for hook in hooks:
            hook.remove()
    if weights:  # known before, but the shards of a model go forward together or not at all
        return 0, f"the weights of {weights[0].rpartition('.')[0] or weights[0]}"
    if broken:
        return 1, f"the output of {broken[0]}"
    # The last layer of those with a bad gradient is where backward met it first.
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    return (2, f"the gradient of {bad[-1].rpartition('.')[0] or bad[-1]}") if bad else (3, "the loss itself")


def _finite(value: object) -> bool:
    if isinstance(value, Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value
        return not value.is_floating_point() or bool(value.isfinite().all())
    return all(map(_finite, value)) if isinstance(value, (tuple, list)) else True
