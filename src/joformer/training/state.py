"""What a run carries from step to step: weights, AdamW's moments, and the moving average a ← d a + (1 − d) w."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from joformer.models._saving import layout, own_state
from joformer.training.checkpoints import Checkpoint
from joformer.training.processes import Processes, fill, whole
from joformer.training.recipe import Recipe, groups

DEFERRED = ("cuda",)
"""Devices on which numbers stay until they are needed: those whose fused AdamW leaves out an update by itself."""


class State:
    """The model `raw` ready to train: `model` is what is called, `parameters` are named as in `raw`.

    Where `deferred`, reading a number would stop the device: `update` is told by a tensor what to leave out.

    >>> state = State(nn.Linear(2, 2), Recipe(average=0.9), Processes())
    >>> state.model(torch.ones(1, 2)).sum().backward()
    >>> state.norm() > 0
    tensor(True)
    >>> state.update(rate=0.1)
    >>> sorted(state.tensors()["optimizer"])[:2], sorted(state.tensors()["averaged"])
    (['exp_avg/bias', 'exp_avg/weight'], ['bias', 'weight'])
    """

    def __init__(self, raw: nn.Module, recipe: Recipe, processes: Processes) -> None:
        self.recipe, self.processes = recipe, processes
        self.raw, self.model = raw, processes.wrap(raw, recipe.compile)
        self.parameters = dict(raw.named_parameters())
        kind = processes.device.type
        self.deferred = kind in DEFERRED
        fused = self.deferred or (kind == "cpu" and not processes.sharded)
        self.optimizer = torch.optim.AdamW(groups(raw, recipe.weight_decay), betas=recipe.betas, fused=fused)
        self.optimizer.register_step_pre_hook(self._leave_out)
        self._broken: Tensor | None = None
        self.average = [p.detach().clone() for p in self.parameters.values()] if recipe.average else []

    @property
    def size(self) -> int:
        """About how many bytes a checkpoint has."""
        weights = sum(p.numel() * p.element_size() for p in self.parameters.values())
        return weights * (4 if self.average else 3)

    def norm(self) -> Tensor:
        """The norm of the gradient, which is not changed yet: where it is not finite, the cause can still be found."""
        self.processes.scaler.unscale_(self.optimizer)
        self._norm = nn.utils.get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
        return self._norm.full_tensor() if hasattr(self._norm, "full_tensor") else self._norm

    def update(self, rate: float, broken: Tensor | None = None) -> None:
        """One step of AdamW at this learning rate; gradients larger than the recipe's norm are scaled down to it.

        Where `broken` is true, a bool on the device, weights and moments stay as they are, in this step and from now
        on; the host does not look at it.
        """
        if broken is not None:
            self._broken = broken.float() if self._broken is None else self._broken.maximum(broken)
        if self.recipe.clip is not None:
            nn.utils.clip_grads_with_norm_(self.parameters.values(), self.recipe.clip, self._norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.processes.scaler.step(self.optimizer)
        self.processes.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average:
            now = [p.detach() for p in self.parameters.values()]
            torch._foreach_lerp_(self.average, now, 1 - self.recipe.average)

    def _leave_out(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Before AdamW's step: what is broken counts as the infinity that a scaler finds, for which it has a way."""
        if self._broken is not None:
            scaled = self.processes.scaler.is_enabled()
            found = optimizer.found_inf.maximum(self._broken) if scaled else self._broken  # type: ignore[attr-defined]
            optimizer.found_inf = found  # type: ignore[attr-defined]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the model has the averaged weights, where there are any."""
        kept = [p.detach().clone() for p in self.parameters.values()] if self.average else []
        self.settle()
        try:
            yield
        finally:
            self._put(kept)

    def settle(self) -> None:
        """Replaces the weights by their averages, where there are any: the run is over."""
        self._put(self.average)

    def _put(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters.values(), values, strict=False):
            parameter.detach().copy_(value)

    def weights(self) -> dict[str, Tensor]:
        """Every parameter and persistent buffer, whole; all processes must call it, the first one gets them."""
        return self._whole(own_state(self.raw))

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything, whole, as a checkpoint holds it; all processes must call it, the first one gets it."""
        kept = self.optimizer.state
        moments = {f"{kind}/{name}": value for name, p in self.parameters.items() for kind, value in kept[p].items()}
        averaged = dict(zip(self.parameters, self.average, strict=False))
        return {"model": self.weights(), "optimizer": self._whole(moments), "averaged": self._whole(averaged)}

    def _whole(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies on the CPU in the first process; the others send their shards and get nothing."""
        sent = values if self.processes.main or self.processes.sharded else {}
        copies = {key: whole(value) for key, value in sent.items()}
        return copies if self.processes.main else {}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Puts back what `tensors` gave; that it fits was found by `require_fit`."""
        own = own_state(self.raw)
        for key, value in checkpoint.tensors("model").items():
            fill(own[key], value)
        fused = self.optimizer.param_groups[0]["fused"]
        for key, value in checkpoint.tensors("optimizer").items():
            kind, _, name = key.partition("/")
            parameter = self.parameters[name]
            state = self.optimizer.state[parameter]
            if kind == "step":
                state[kind] = value.to(parameter.device if fused else "cpu")
            else:
                state[kind] = torch.zeros_like(parameter, requires_grad=False)
                fill(state[kind], value)
        averaged = checkpoint.tensors("averaged")
        for name, value in zip(self.parameters, self.average, strict=False):
            fill(value, averaged[name])

    def follow(self, before: State) -> None:
        """Takes over the average of the weights that were there before the model grew."""
        known = dict(zip(before.parameters, before.average, strict=False))
        for name, value in zip(self.parameters, self.average, strict=False):
            if name in known:
                fill(value, known[name])


def require_fit(checkpoint: Checkpoint, model: nn.Module, averaged: bool) -> None:
    """Raises `Unfit` where the headers of the checkpoint's files are not those of this model, which may be on meta.

    A tensor of one number would otherwise be broadcast over a whole weight, and one of another dtype rounded.
    """
    parameters = layout(dict(model.named_parameters()))
    moments = checkpoint.layout("optimizer")
    trained = [name for name in parameters if f"step/{name}" in moments]  # the others had no gradient
    wanted = {f"{kind}/{name}": parameters[name] for name in trained for kind in ("exp_avg", "exp_avg_sq")}
    wanted |= {f"step/{name}": (moments[f"step/{name}"][0], ()) for name in trained}
    checkpoint.require("model", layout(own_state(model)))
    checkpoint.require("averaged", parameters if averaged else {})
    checkpoint.require("optimizer", wanted)
