"""How models start: weights that depend on the seed and on their own names alone, and models grown from others.

    initialise   every module draws from dice that start at hash(seed, its name)
    adapt        another configuration, every weight that was there kept

Two variants that share a module then start with the same weights in it, bit for bit, whatever else they contain, and
their difference after training is the variant's and not the draw's. A model grown by frames that begin at zero
computes what it computed before: the third stage of the paper's recipe ("Length Generalization") starts there.
"""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from joformer._seeding import hashed

Model = TypeVar("Model", bound=nn.Module)


def initialise(model: Model, seed: int) -> Model:
    """Draw all weights anew, in place, each module by its own `reset_parameters` with dice of (seed, its name).

    A part before the whole that holds it, which so has the last word on how its parts start. Torch's own dice stay
    where they are; on other devices than the CPU the weights are those of the CPU.

    >>> from joformer.models import JoFormerLM, LMConfig
    >>> fixed, learned = (
    ...     initialise(JoFormerLM(LMConfig(vocab=50, dim=32, heads=2, frames=frames)), seed=3)
    ...     for frames in ("fixed", "learned")
    ... )
    >>> all(torch.equal(weight, learned.get_parameter(name)) for name, weight in fixed.named_parameters())
    True
    """
    devices = {p.device.type for p in model.parameters()}
    if "meta" in devices:
        raise ValueError("the model is on the meta device and has no weights to draw: model.to_empty(device=…) first")
    drawn = model if devices <= {"cpu"} else copy.deepcopy(model).cpu()
    with torch.random.fork_rng(devices=[]):
        for name, module in reversed(list(drawn.named_modules())):
            if any(True for _ in module.parameters(recurse=False)) and not hasattr(module, "reset_parameters"):
                raise ValueError(
                    f"{name} ({type(module).__name__}) has parameters but no reset_parameters to draw them"
                )
            if hasattr(module, "reset_parameters"):
                # torch.manual_seed would start the generators of all devices.
                torch.default_generator.manual_seed(hashed(f"initial weights/{seed}/{name}"))
                module.reset_parameters()
    if drawn is not model:
        model.load_state_dict(drawn.state_dict())
    return model


def adapt(model: Model, /, *, seed: int = 0, **changes: Any) -> Model:
    """A new model with these fields of the configuration changed, and every weight of the old one in its place.

    What is new starts as `initialise(…, seed)` has it. Refused where a weight of the old model would be lost.

    >>> from joformer.models import JoFormerLM, LMConfig
    >>> model, tokens = JoFormerLM(LMConfig(vocab=50, dim=32, heads=2)), torch.randint(50, (1, 7))
    >>> torch.allclose(adapt(model, frames="projected")(tokens), model(tokens), atol=1e-6)
    True
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        raise ValueError(f"{type(model).__name__} has no configuration to change: adapt takes the models of joformer")
    unknown = sorted(changes.keys() - {field.name for field in fields(config)})
    if unknown:
        raise ValueError(f"{type(config).__name__} has no {unknown[0]!r}: see its fields")
    with torch.random.fork_rng(devices=[]):
        new = initialise(type(model)(replace(config, **changes)), seed)
    place = next((p for p in model.parameters()), torch.empty(0))
    new = new.to(device=place.device, dtype=place.dtype).train(model.training)
    here, there = model.state_dict(keep_vars=True), new.state_dict(keep_vars=True)
    taken: dict[int, Tensor] = {}
    with torch.no_grad():
        for name, weight in here.items():
            goal = there.get(name)
            # Two weights cannot both live on in one, as when untied ones are tied.
            if goal is None or goal.shape != weight.shape or taken.setdefault(id(goal), weight) is not weight:
                said = ", ".join(f"{field}={value!r}" for field, value in changes.items())
                raise ValueError(f"{said} would lose {name} {tuple(weight.shape)}: adapt only adds to a model")
            goal.copy_(weight)
    return new
