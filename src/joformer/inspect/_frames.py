"""What the frames of a model learned: frequencies with their initial values, and the angles that content adds.

θ_t = ω·n_t + φ_t        ω of a spectrum, given or learned; φ from the content of the tokens
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.frames import FramesModule, is_flat
from joformer.frames._base import wrap
from joformer.inspect._layers import attended


@dataclass(frozen=True, eq=False)
class Frequencies:
    """ω of one frames module: radians per step.

    Attributes:
        name: Name of the module in the model.
        learned: Whether they are parameters.
        start: Initial values, ``(axes, layers, heads, planes of an axis)``, float64.
        now: Current values, of the same shape.
    """

    name: str
    learned: bool
    start: Float[Tensor, "axes layers heads planes"]
    now: Float[Tensor, "axes layers heads planes"]

    @property
    def moved(self) -> Float[Tensor, "axes layers heads planes"]:
        """``ω − ω_start``."""
        return self.now - self.start


@dataclass(frozen=True, eq=False)
class AngleField:
    """The angles of content-dependent frames in one layer.

    Attributes:
        layer: Number of the layer.
        name: Name of the layer's attention in the model.
        angles: θ in −π … π, ``(batch, tokens, heads, planes)``, float64.
        content: φ, the angle that content adds to ω·n, of the same shape and range.
        positions: ``(tokens, axes)``, NaN if a token has none; None if rows differ.
    """

    layer: int
    name: str
    angles: Float[Tensor, "batch tokens heads planes"]
    content: Float[Tensor, "batch tokens heads planes"]
    positions: Tensor | None


def frequencies(model: nn.Module) -> list[Frequencies]:
    """The frequencies ω of every frames module, at the start of training and now.

    Args:
        model: Any module. For other rotary models, the inverse frequencies are read, which do not change.

    Returns:
        One item per frames module that has frequencies; layers that share a module share the item.

    Example:
        >>> from joformer.models import LMConfig
        >>> found = frequencies(LMConfig(vocab=9, dim=16, layers=2, heads=2, frames="learned").build())
        >>> [(one.name, one.learned, tuple(one.now.shape), one.moved.abs().max().item()) for one in found][0]
        ('frames.0', True, (1, 1, 2, 4), 0.0)
    """
    found, inside = [], set[int]()
    for name, part in model.named_modules():
        if isinstance(part, FramesModule) and id(part) not in inside:
            inside |= {id(one) for one in part.modules()}
            ground, both = part.ground, part.spectra()
            if both is not None and ground is not None:
                found.append(Frequencies(name, any(True for _ in ground.parameters()), *both))
        elif not isinstance(part, FramesModule):
            for key, held in part.named_buffers(recurse=False):
                if key.endswith("inv_freq") and not key.startswith("original") and "_original_" not in key:
                    its = held.detach().double().cpu().flatten()[None, None, None]
                    found.append(Frequencies(f"{name}.{key}", False, its, its))
    return found


@torch.no_grad()
def angles(model: nn.Module, batch: Tensor) -> list[AngleField]:
    """The angle fields of content-dependent frames (projected, cumulative) over a batch.

    Args:
        model: A model built from `JourneyAttention`, called as ``model(batch)``.
        batch: The model's input, such as tokens ``(batch, tokens)`` or images.

    Returns:
        One item per layer whose angles depend on content; empty if there is none.

    Example:
        >>> from joformer.models import LMConfig
        >>> model = LMConfig(vocab=9, dim=16, layers=2, heads=2, frames=("fixed", "projected")).build()
        >>> [(one.layer, tuple(one.angles.shape)) for one in angles(model, torch.arange(8)[None])]
        [(1, (1, 8, 2, 4))]
    """
    found = []
    for one in attended(model, batch):
        if one.module is None or one.frames is None or not is_flat(one.frames) or not one.frames.content:
            continue
        whole, ground = wrap(one.frames.angles.double()), one.module.ground
        if ground is not None and one.positions is not None:
            base = ground(one.positions, layer=one.layer if ground.layers > 1 else 0)
            assert is_flat(base)
            content = wrap(whole - base.angles.to(whole))
        else:
            content = whole
        found.append(AngleField(one.layer, one.name, whole, content, one.positions))
    return found
