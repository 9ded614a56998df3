"""Where a number stopped being finite: the layer at which a forward or backward pass first went wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def where_it_broke(model: nn.Module, forward: Callable[[], list[Tensor]]) -> tuple[int, str]:
    """The first layer with a NaN or infinity: in its weights (0), its output (1), the loss (2), its gradient (3).

    `forward` computes the losses again, with the same randomness. Of several processes the least result has the cause.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> _ = nn.init.constant_(model[1].weight, torch.inf)
    >>> where_it_broke(model, lambda: [model(torch.ones(1, 2)).sum()])
    (0, 'the weights of 1')
    """
    weights = [name for name, parameter in model.named_parameters() if not finite(parameter)]
    broken: list[str] = []
    passed: list[str] = []

    def look(name: str, output: object) -> None:
        (passed if finite(output) else broken).append(name)

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: look(name, output))
        for name, module in model.named_modules()
        if name
    ]
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            losses = forward()
    finally:
        for hook in hooks:
            hook.remove()
    if weights:  # known before, but the shards of a model go forward together or not at all
        return 0, f"the weights of {weights[0].rpartition('.')[0] or weights[0]}"
    if broken:
        return 1, f"the output of {broken[0]}"
    if not finite(losses):
        return 2, f"the loss, after the output of {passed[-1] if passed else 'the model'}"
    # The last layer of those with a bad gradient is where backward met it first.
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not finite(p.grad)]
    return (3, f"the gradient of {bad[-1].rpartition('.')[0] or bad[-1]}") if bad else (4, "the update")


def finite(value: object) -> bool:
    """Whether all numbers of a tensor, or of those in a tuple or list, are finite in this process.

    >>> finite([torch.ones(2), torch.tensor(torch.nan)])
    False
    """
    if isinstance(value, Tensor):
        return bool((value.to_local() if hasattr(value, "to_local") else value).isfinite().all())
    return all(map(finite, value)) if isinstance(value, (tuple, list)) else True
