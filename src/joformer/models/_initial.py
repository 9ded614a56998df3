"""Initialisation: weights that depend only on the seed and on their own names, and models extended from others.

    initialise   every module draws from a generator seeded by hash(seed, its name)
    adapt        another configuration, with every weight of the model kept

Two variants that share a module then start with bit-identical weights in it, whatever else they contain, and their
difference after training is due to the variant and not to the random initialisation. A model extended by frames that
start at zero computes the same function as before: the third stage of the paper's recipe ("Length Generalization")
starts there.
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
    """Draws all weights in place, each module by its `reset_parameters` with the seed hash(seed, its name).

    Submodules are drawn first; a module may then override their weights. The state of torch's generator is not changed,
    and the weights on any device are those drawn on the CPU.

    Args:
        model: Any module in which every part with parameters has `reset_parameters`.
        seed: The seed; the weights depend only on it and on the names of the modules.

    Returns:
        The same model.

    Raises:
        ValueError: If a module has parameters and no `reset_parameters`, or the model is on the meta device.

    Example:
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
        raise ValueError("the model is on the meta device and has no weights: call model.to_empty(device=…) first")
    drawn = model if devices <= {"cpu"} else copy.deepcopy(model).cpu()
    with torch.random.fork_rng(devices=[]):
        for name, module in reversed(list(drawn.named_modules())):
            reset: Any = getattr(module, "reset_parameters", None)
            if reset is not None:
                # torch.manual_seed would seed the generators of all devices.
                torch.default_generator.manual_seed(hashed(f"initial weights/{seed}/{name}"))
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                kind = type(module).__name__
                raise ValueError(f"{name} ({kind}) has parameters but no reset_parameters to draw them")
    if drawn is not model:
        model.load_state_dict(drawn.state_dict())
    return model


def adapt(model: Model, /, *, seed: int = 0, **changes: Any) -> Model:
    """A new model with some fields of the configuration changed, and every weight of the old one in its place.

    Args:
        model: A model of `joformer.models`.
        seed: New weights are drawn by `initialise` with this seed.
        **changes: Fields of the model's configuration.

    Returns:
        Another model, on the device and in the dtype of the old one.

    Raises:
        ValueError: If the configuration does not have a field, or a weight of the old model would be lost.

    Example:
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
            # Two weights cannot be kept in a single one, e.g. when tying untied weights.
            if goal is None or goal.shape != weight.shape or taken.setdefault(id(goal), weight) is not weight:
                change = ", ".join(f"{field}={value!r}" for field, value in changes.items())
                raise ValueError(f"{change} would lose {name} {tuple(weight.shape)}: adapt only adds to a model")
            goal.copy_(weight)
    return new
