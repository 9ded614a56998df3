"""Which side does the work: every kind of frames on every side of attention, at matched parameters and steps.

                 none    scores    values    both
    fixed         ·        RoPE       ·       JoFormer-fixed
    learned       ·         ·         ·       JoFormer-learned
    projected     ·         ·         ·       JoFormer-projected
    cumulative    ·         ·         ·       ·

A model that transports nothing has no frames: the first column is one model. Frames with parameters of their own give
them up again in the feed-forward, whose width is chosen so that all have as many as the model without. Beside the grid
stand two baselines for text: ALiBi's bias and Shaw's clipped distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joformer.experiments.tables import parameters
from joformer.models import VARIANTS, LMConfig, TreeConfig, ViTConfig

FRAMES = ("fixed", "learned", "projected", "cumulative")
SIDES = ("scores", "values", "both")


def grid_names(frames: Sequence[str]) -> tuple[str, ...]:
    """The cells of the grid of these frames.

    >>> grid_names(["fixed"])
    ('none', 'scores, fixed', 'values, fixed', 'both, fixed')
    """
    return ("none", *(f"{side}, {kind}" for kind in frames for side in SIDES))


NAMES = grid_names(FRAMES)
"""The cells of the grid of all frames."""
BASELINES = {"alibi": "A", "shaw": "C"}
"""Language models whose positions are no frames, by the letter of their layers."""

TREES = ("fixed", "tree", "tree-dense")
"""The frames of nodes; beside them stands Shiv and Quirk's code, which is added."""
ADDED = "shiv-quirk"

VISION = {"fixed": "joformer_old", "learned": "joformer_axial", "projected": "projected", "cumulative": "cumulative"}


def variant(config: Any, name: str, *, match: bool = True) -> Any:
    """The configuration with frames and transport by their name in the grid, and as many parameters as it had.

    >>> config = LMConfig(vocab=256, dim=64, heads=2, transport="none")
    >>> projected = variant(config, "both, projected")
    >>> projected.frames, projected.transport, projected.hidden
    ('projected', 'both', 206)
    >>> abs(parameters(projected) / parameters(config) - 1) < 0.002
    True
    """
    vision = isinstance(config, ViTConfig)
    known = (*NAMES, *BASELINES) if isinstance(config, LMConfig) else NAMES
    known = (*grid_names(TREES), ADDED) if isinstance(config, TreeConfig) else known
    if name not in known:
        raise ValueError(f"unknown variant {name!r}: choose from {'; '.join(known)}")
    side, _, frames = name.partition(", ")
    changed = replace(config, **vars(VARIANTS["none"]) if vision else {"transport": "none"})
    if name == "none":
        return changed
    if name == ADDED:
        made = replace(changed, frames=ADDED)
    elif name in BASELINES:
        made = replace(changed, pattern=BASELINES[name])
    else:
        made = replace(config, **vars(VARIANTS[VISION[frames]]) if vision else {"frames": frames})
        made = replace(made, transport=side)
    return matched(made, parameters(changed)) if match else made


def matched(config: Any, count: int) -> Any:
    """The configuration with the width of its feed-forward that brings its parameters nearest to `count`."""
    hidden = config.hidden or 4 * config.dim
    here = parameters(replace(config, hidden=hidden))
    per_unit = parameters(replace(config, hidden=hidden + 1)) - here
    wanted = hidden + round((count - here) / per_unit)
    if wanted < 1:
        raise ValueError(f"{count} parameters are too few for this model's frames: use a wider model")
    return config if wanted == hidden else replace(config, hidden=wanted)
