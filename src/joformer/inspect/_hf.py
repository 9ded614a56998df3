"""The same for causal language models from transformers, from the inputs of their attention function.

    q' = R(θ) q,  k' = R(θ) k        the inputs of attention; q and k are before rotation

Frames are read from the rotary embedding as value transport reads them (joformer.integrations). A model without
transport gets it at strength 0 during inspection, which is bit-identical to the original model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from joformer import positions
from joformer.frames import FlatFrames
from joformer.inspect._layers import Attended, number_of
from joformer.integrations import strength_of, transport_values
from joformer.integrations._journey import Journey, frames_of
from joformer.integrations._parts import argument, replace_argument
from joformer.integrations._record import find
from joformer.integrations.hf._patch import KEYWORD, Angles, Attention, Embedding
from joformer.integrations.hf._trial import UnsupportedError, attention_function
from joformer.rotation import rotate


def transported(model: nn.Module) -> dict[str, Attention]:
    """The attention modules of a transformers model whose values are rotated, by name."""
    on = {id(part) for record in find(model) if record.strength.on for part in record.attentions}
    found = ((name, part) for name, part in model.named_modules() if id(part) in on)
    return {name: part for name, part in found if isinstance(part, Attention) and part._spec.rotates}


def attended(model: Any, batch: Tensor) -> list[Attended]:
    """What every attention layer does with tokens (batch, tokens)."""
    names = {id(part): name for name, part in model.named_modules()}
    strength = strength_of(model) or 0.0
    current: dict[int, FlatFrames] = {}
    made: dict[int, tuple[Tensor, FlatFrames]] = {}
    found: list[Attended] = []

    def tabulated(module: Any, args: tuple[Any, ...], given: dict[str, Any], tables: Any) -> None:
        spec = module._spec
        with Angles() as recorded:
            super(Embedding, module).forward(*args, **given)
        angles: Any = recorded.angles
        angles = angles if spec.selection is None else spec.selection.of(angles)
        made[id(tables[0])] = tables[0], frames_of(angles, spec.repeat, spec.layout)

    def called(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        tables = argument(args, given, KEYWORD, module._spec.index)
        if tables is not None and module._spec.heads is not None and id(tables[0]) in made:
            current[id(module)] = made[id(tables[0])][1]

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Any:
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        if eager is None:
            raise ValueError(f"{type(module).__name__} has no eager attention: its weights cannot be read")
        frames, name = current.get(id(module)), names.get(id(module), "")
        own = [x.transpose(1, 2) for x in (q, k)]
        own = own if frames is None else [rotate(x, frames, inverse=True) for x in own]
        found.append(
            Attended(
                number_of(name, len(found)), name, own[0], own[1], frames, positions.sequence(q.shape[2]), None,
                frames is not None, strength if frames is not None else 0.0, True,
                options.get("scaling") or q.shape[-1] ** -0.5, lambda: eager(module, q, k, v, *rest, **options)[1],
            )
        )  # fmt: skip
        return eager(module, q, k, v, *rest, **options)

    with ExitStack() as stack:
        for record in stack.enter_context(_probed(model)):
            for embedding in record.embeddings:
                stack.callback(embedding.register_forward_hook(tabulated, with_kwargs=True).remove)
            for attention in record.attentions:
                stack.callback(attention.register_forward_pre_hook(called, with_kwargs=True).remove)
        try:
            stack.enter_context(attention_function(model, attend, "eager"))
        except UnsupportedError:
            raise ValueError(f"{type(model).__name__} is not a transformers model that can be read") from None
        model(input_ids=batch, use_cache=False)
    return found


@contextmanager
def _probed(model: nn.Module) -> Iterator[list[Any]]:
    """The transport records of a model; one without transport gets it at strength 0 within the context."""
    if found := find(model):
        yield found
        return
    try:
        transport_values(model, 0.0)
    except ValueError:  # no supported rotary positions: weights can still be read
        yield []
        return
    try:
        yield find(model)
    finally:
        transport_values(model, off=True)


def stilled(attention: nn.Module, args: tuple[Any, ...], given: dict[str, Any], still: Any) -> tuple[Any, Any]:
    """The arguments of an attention module with `still(frames, kv_heads)` in place of its value frames."""
    spec: Any = attention._spec
    tables = argument(args, given, KEYWORD, spec.index)
    if tables is None or len(tables) < 3 or not hasattr(tables[2], "frames"):
        raise ValueError("values can only be switched off for whole sequences of 2 tokens or more")
    journey = Journey(still(tables[2].frames, spec.heads.heads))
    return replace_argument(args, given, KEYWORD, spec.index, (*tables[:2], journey)), given
