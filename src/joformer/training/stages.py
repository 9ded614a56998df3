"""What changes between the stages of a run: the frames of a language model, and nothing that was learned is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from joformer.models import LMConfig
from joformer.models._saving import blank, own_state
from joformer.training.schedules import Stage


def changed(config: Any, frames: Any) -> Any:
    """The configuration with these frames; as it is, where none are named.

    >>> from joformer.models import LMConfig
    >>> changed(LMConfig(), "projected").frames
    'projected'
    """
    if frames is None:
        return config
    if not isinstance(config, LMConfig):
        raise ValueError(f"a stage can change the frames of a language model, not of {type(config).__name__}")
    return replace(config, frames=frames)


def foresee(config: Any, sequence: Sequence[Stage], sharded: bool) -> None:
    """Raises ValueError now for what a later stage could not do, not after the stages before it.

    >>> from joformer.models import LMConfig
    >>> foresee(LMConfig(dim=16, heads=2, frames="learned"), [Stage(5, 1e-3, "projected")], sharded=False)
    Traceback (most recent call last):
    ValueError: the stage with projected frames would lose frames.0.frequencies: begin with fixed ones
    """
    for stage in sequence:
        after = changed(config, stage.frames)
        if after != config:
            if sharded:
                raise ValueError("frames cannot change while the model is sharded: run this stage unsharded")
            has, gets = (own_state(blank(one)) for one in (config, after))
            lost = [name for name in has if name not in gets or has[name].shape != gets[name].shape]
            if lost:
                raise ValueError(f"the stage with {stage.frames} frames would lose {lost[0]}: begin with fixed ones")
        config = after
