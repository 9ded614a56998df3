"""Value transport in a model of transformers, through its rotary embedding, its attentions and their projections.

    v'_j = R(s θ_j) v_j        before anything else reads the values: cache, repetition of heads, attention
    o_i  = R(s θ_i)⁻¹ o'_i     before the output projection

The embedding hands its tables to the layers as a pair (cos, sin); here the pair gets a third member, the journey, which
passes through every layer, checkpoint and device like the pair and is removed just before attention reads the pair. So
nothing is kept between two calls, and nothing is computed per layer that is the same for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from joformer._precision import is_traced
from joformer.frames import Layout
from joformer.integrations._journey import Heads, Journey, Repeat, Selection, Step, Strength, frames_of, planes_of
from joformer.integrations._parts import AttentionPart, Part, argument, join, replace_argument

KEYWORD = "position_embeddings"


class Angles(TorchFunctionMode):
    """Records the angles whose cosines are taken while it is active.

    >>> with Angles() as recorded:
    ...     _ = (2 * torch.ones(3)).cos()
    >>> recorded.angles
    tensor([2., 2., 2.])
    """

    def __init__(self) -> None:
        super().__init__()
        self.angles: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cos or func is torch.cos:
            self.angles = args[0]
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class EmbeddingSpec:
    """How a rotary embedding tabulates its angles.

    Attributes:
        strength: Of the model.
        repeat: How a table repeats the angle of each plane.
        layout: How attention pairs the entries of a head.
        plain: Whether its tables are as wide as a head, in the layout's order and not scaled: the frame itself.
        scales: Its attributes that scale the tables.
        dim: Of a head.
        frequencies: The buffer whose product with the positions gives the angles, by type of layer; empty if unknown.
        selection: Which angles the tables are of, where it has several kinds of positions.
    """

    strength: Strength
    repeat: Repeat
    layout: Layout
    plain: bool
    scales: tuple[str, ...] = ()
    dim: int = 0
    frequencies: dict[str | None, str] = field(default_factory=dict)
    selection: Selection | None = None


class Embedding(Part):
    """A rotary embedding that hands (cos, sin, journey) to the layers."""

    _spec: EmbeddingSpec

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The model's own tables, and the journey where the strength is not 0."""
        spec = self._spec
        if not spec.strength.on:
            return super().forward(*args, **kwargs)
        where = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        kind = kwargs.get("layer_type", args[2] if len(args) > 2 else None)
        name, dim = spec.frequencies.get(kind), 2 if spec.selection is None else 3
        if name and args and where is not None and (where.dim(), where.shape[-1]) == (dim, 1) and _allows_step(args[0]):
            cos, sin = super().forward(*args, **kwargs)
            ready = spec.plain and spec.strength.full and cos.dtype == torch.float32
            if ready and all(getattr(self, scale) == 1 for scale in spec.scales):
                return cos, sin, Step(cos, sin, spec.dim // 2, spec.layout)
            frequencies: Any = self._buffers[name]  # may be of lower precision, but angles never are
            angles = where.unsqueeze(-1) * frequencies.float()
            if spec.selection is not None:
                angles = planes_of(spec.selection.of(angles), spec.repeat)
            if not spec.strength.full:
                angles = angles * spec.strength.value
            return cos, sin, Step.of(angles, spec.layout, spec.dim)
        recorded = Angles()
        with recorded:  # not "with Angles() as recorded": the compiler loses the attributes of such a name
            cos, sin = super().forward(*args, **kwargs)
        if recorded.angles is None:
            raise RuntimeError(f"{type(self).__name__} took no cosine of angles: its values cannot be transported")
        angles = recorded.angles if spec.selection is None else spec.selection.of(recorded.angles)
        return cos, sin, Journey(frames_of(angles, spec.repeat, spec.layout, spec.strength.tensor))


def _allows_step(x: Tensor) -> bool:
    """Whether a product of matrices has the precision of x, and nothing differentiates or traces it."""
    return (
        x.dtype != torch.float64
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not is_traced()
        and not torch.is_autocast_enabled("cpu")
    )


@dataclass(frozen=True)
class AttentionSpec:
    """Where an attention gets its tables, and which of its children make its values and take its output.

    Attributes:
        strength: Of the model.
        index: Of the tables among the arguments of its forward.
        value: Empty where it reads values that an earlier attention has rotated.
        output: The output projection.
        heads: None where it has no positions: then the journey is only removed.
    """

    strength: Strength
    index: int
    value: str = ""
    output: str = ""
    heads: Heads | None = None

    @property
    def rotates(self) -> bool:
        """Whether its values are transported."""
        return self.heads is not None


class Attention(AttentionPart):
    """An attention that removes the journey from the tables and gives it to the projections around it."""

    _spec: AttentionSpec

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; RuntimeError where its values would silently not be transported."""
        spec = self._spec
        tables, journey = argument(args, kwargs, KEYWORD, spec.index), None
        if tables is not None and len(tables) == 3:
            journey = tables[2]
            args = replace_argument(args, kwargs, KEYWORD, spec.index, tables[:2])
        if spec.heads is None or tables is None:
            return super().forward(*args, **kwargs)
        if journey is None and spec.strength.on:
            raise RuntimeError(
                f"{type(self).__name__} got positions without a journey: a part of the model was replaced since then; "
                "call transport_values(model, off=True), then transport_values(model) again"
            )
        output: Any = self._modules[spec.output]
        value: Any = self._modules[spec.value] if spec.value else output
        ready = isinstance(output, Output) and (value is output or isinstance(value, Values))
        if torch.compiler.is_compiling():
            if not ready:
                raise RuntimeError(
                    "an adapter was added or removed after transport_values(model): call it again, then compile"
                )
            value._journey = output._journey = journey
            out = super().forward(*args, **kwargs)
            if value._journey is not None or output._journey is not None:
                raise self._bypassed()
            return out
        if not ready:
            join_projections(self)
        thread, at_value, at_output = get_ident(), value.__dict__["_journeys"], output.__dict__["_journeys"]
        at_value[thread] = at_output[thread] = journey  # nn.Module's own setattr would cost a decoded token a percent
        try:
            out = super().forward(*args, **kwargs)
            if journey is not None and (thread in at_value or thread in at_output):
                raise self._bypassed()
            return out
        except BaseException:
            at_value.pop(thread, None)
            at_output.pop(thread, None)
            raise

    def _bypassed(self) -> RuntimeError:
        return RuntimeError(
            f"{type(self).__name__} did not call the projections around it, so its values were not rotated: a fused "
            "kernel read their weights; switch it off, or call transport_values(model, off=True)"
        )


def join_projections(attention: nn.Module) -> None:
    """Patch the projections around an attention; an adapter may have replaced one since the last time."""
    spec = attention._spec
    if not isinstance(spec, AttentionSpec) or spec.heads is None:
        return
    output = attention.get_submodule(spec.output)
    if spec.value and not isinstance(value := attention.get_submodule(spec.value), Values):
        join(Values, value, spec.heads)
    if not isinstance(output, Output):
        join(Output, output, spec.heads.dim)


class Values(Part):
    """A projection that makes the values, and rotates them."""

    _spec: Heads
    _journey: Journey | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The projection's own output, with the values in it rotated."""
        y = super().forward(*args, **kwargs)
        journey = _taken(self)
        return y if journey is None else journey.rotate_values(y, self._spec)


class Output(Part):
    """A projection of attention's output, to which the inverse rotation is applied first."""

    _spec: int
    _journey: Journey | None = None

    def forward(self, o: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The projection's own output, of R(s θ)⁻¹ o."""
        journey = _taken(self)
        if journey is not None:
            o = journey.rotate_output(o, self._spec)
        return super().forward(o, *args, **kwargs)


def _taken(module: Any) -> Journey | None:
    """The journey of the attention call that runs in this thread; each is taken once."""
    journey: Journey | None
    if not torch.compiler.is_compiling():
        journey = module.__dict__["_journeys"].pop(get_ident(), None)
        if journey is not None or module._journey is None:
            return journey
    elif module._journeys:  # attention is not compiled: raising makes the compiler leave the projection uncompiled too
        raise RuntimeError("compile the model or its layers, but not the projections of a layer alone")
    journey, module._journey = module._journey, None  # attention is compiled
    return journey
