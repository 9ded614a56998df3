"""Value transport in timm's rotary vision transformers, which hand their layers one table `rope` = (sin θ, cos θ).

    o_i = R(s θ_i)⁻¹ Σ_j softmax_j(…) R(s θ_j) v_j        prefix tokens (classes, registers) are not rotated

A table has every sine and cosine twice, once for each entry of a plane. Here the angle takes the place of the second
copy, in two parts that lose nothing (little, where a model rounds its table):

    (sin sin cos cos)   →   (sin, cos, θ', θ − θ')        θ' is θ rounded to bfloat16

so that the table keeps its width and the model may do with it whatever it does: one per layer and head, tokens dropped,
a row per sample, checkpoints. Attention restores the second copies before it reads the table. Some of timm's attentions
project their values without calling a projection, so values are rotated where they are used: around
scaled_dot_product_attention, or around the product that follows the softmax.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from joformer.frames import FlatFrames, Layout
from joformer.integrations._journey import Journey, Strength, planes_of
from joformer.integrations._parts import AttentionPart, Part, argument, replace_argument

KEYWORD = "rope"
_SINES = (torch.sin, torch.Tensor.sin)
_COSINES = (torch.cos, torch.Tensor.cos)
_SOFTMAXES = (torch.softmax, torch.Tensor.softmax, F.softmax)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


class SplitAngles(TorchFunctionMode):
    """While it is active, sin θ gives θ', which is θ rounded to bfloat16, and cos θ gives θ − θ'.

    >>> with SplitAngles():
    ...     x = torch.tensor(1.0001)
    ...     parts = x.sin(), x.cos()
    >>> parts[0].item(), (sum(parts) == x).item()
    (1.0, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SINES or func in _COSINES:
            self.used = True
            angles = args[0]
            rounded = angles.detach().bfloat16().to(angles.dtype)
            return rounded if func in _SINES else angles - rounded
        return func(*args, **(kwargs or {}))


class RotateValues(TorchFunctionMode):
    """While it is active, attention sums rotated values, and the inverse rotation is applied to the sums."""

    def __init__(self, journey: Journey) -> None:
        super().__init__()
        self.journey = journey
        self.after_softmax = self.done = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            return self._rotate(func(query, key, self._rotate(value), *args[3:], **kwargs), inverse=True)
        if func in _PRODUCTS and self.after_softmax:
            self.after_softmax = False
            return self._rotate(func(args[0], self._rotate(args[1])), inverse=True)
        if func in _SOFTMAXES:
            self.after_softmax = True
        return func(*args, **kwargs)

    def _rotate(self, x: Tensor, inverse: bool = False) -> Tensor:
        self.done = inverse
        return self.journey.rotate(x.transpose(1, 2), inverse).transpose(1, 2)


def pack(parts: Tensor, table: Tensor | None, layout: Layout) -> Tensor:
    """(sin, cos, θ', θ − θ') from a table of parts (θ' θ', θ − θ' θ − θ'), and the model's own table, if kept."""
    rounded, rest = (planes_of(half, layout) for half in parts.chunk(2, -1))
    if table is not None:
        sin, cos = (planes_of(half, layout) for half in table.chunk(2, -1))
    else:
        angles = _sum(rounded, rest)
        sin, cos = angles.sin().to(parts.dtype), angles.cos().to(parts.dtype)
    return torch.cat((sin, cos, rounded.to(sin), rest.to(sin)), -1)


def unpack(packed: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The table that attention reads, and the angles (batch or 1, tokens, heads or 1, planes).

    The table is (tokens, 4 · planes), with heads in front where they have their own angles, and the batch before them.

    >>> theta = torch.tensor([[0.1, 7.0]])
    >>> parts = torch.cat((theta.bfloat16().float(), theta - theta.bfloat16().float()), -1)
    >>> table, angles = unpack(pack(parts.repeat_interleave(2, -1), None, "interleaved"), "interleaved")
    >>> torch.equal(angles[0, :, 0], theta), torch.equal(table[:, :4], theta.sin().repeat_interleave(2, -1))
    (True, True)
    """
    sin, cos, rounded, rest = packed.chunk(4, -1)
    if layout == "half":
        table = torch.cat((sin, sin, cos, cos), -1)
    else:
        both = torch.cat((sin, cos), -1)
        table = torch.stack((both, both), -1).flatten(-2)
    angles = _sum(rounded, rest)
    while angles.dim() < 4:
        angles = angles.unsqueeze(0)
    return table, angles.transpose(1, 2)


def _sum(rounded: Tensor, rest: Tensor) -> Tensor:
    return rounded + rest if rest.dtype == torch.float64 else rounded.float() + rest.float()


@dataclass
class RopeSpec:
    """How a rotary embedding tabulates its angles; `parts` of the angles, where it keeps a table."""

    strength: Strength
    layout: Layout
    parts: Tensor | None


class Rope(Part):
    """A rotary embedding that packs the angles into its tables."""

    _spec: RopeSpec

    def get_embed(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own table, packed where the strength is not 0."""
        return self._packed(super().get_embed, *args, **kwargs)  # type: ignore[misc]

    @property
    def get_batch_embeds(self) -> Any:
        """The module's own method, its tables packed; a property, since models ask whether an embedding has it."""
        return partial(self._packed, super().get_batch_embeds)  # type: ignore[misc]

    def update_feat_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Another image size: the parts of a table that is kept are computed again."""
        super().update_feat_shape(*args, **kwargs)  # type: ignore[misc]
        if self._spec.parts is not None:
            self._spec.parts = parts_of(self)

    def _packed(self, own: Any, *args: Any, **kwargs: Any) -> Any:
        spec = self._spec
        if not spec.strength.on:
            return own(*args, **kwargs)
        split = SplitAngles()
        with split:  # not "with SplitAngles() as split": the compiler loses the attributes of such a name
            tables = own(*args, **kwargs)
        if split.used:
            if isinstance(tables, list):
                return [pack(parts, None, spec.layout) for parts in tables]
            return pack(tables, None, spec.layout)
        if spec.parts is None or spec.parts.shape != tables.shape:
            raise RuntimeError(f"{type(self).__name__} took no cosine of angles: its values cannot be transported")
        if spec.parts.device != tables.device:
            spec.parts = spec.parts.to(tables.device)
        return pack(spec.parts, tables, spec.layout)


def parts_of(module: Any) -> Tensor:
    """The parts of the angles of an embedding that keeps a table: a copy of it computes the table again."""
    fresh = copy.copy(module)
    fresh.__class__ = next(cls for cls in type(module).__mro__ if not issubclass(cls, Part))
    fresh.__dict__.update(_buffers=dict(module._buffers), _non_persistent_buffers_set=set(), feat_shape=(0, 0))
    with torch.no_grad(), SplitAngles() as split:
        fresh.update_feat_shape(module.feat_shape)
        parts = fresh.get_embed()
    if not split.used:
        raise RuntimeError("it keeps a table, and does not compute it again for another shape")
    return parts


@dataclass(frozen=True)
class RopeAttentionSpec:
    """How an attention reads its table: `index` is that of the table among the arguments of its forward."""

    strength: Strength
    index: int
    layout: Layout
    rotates: ClassVar[bool] = True


class RopeAttention(AttentionPart):
    """An attention that unpacks the angles from its table, and rotates its values by them."""

    _spec: RopeAttentionSpec

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, of rotated values."""
        spec = self._spec
        packed = argument(args, kwargs, KEYWORD, spec.index)
        if packed is None or not spec.strength.on:
            return super().forward(*args, **kwargs)
        table, angles = unpack(packed, spec.layout)
        args = replace_argument(args, kwargs, KEYWORD, spec.index, table)
        rotation = RotateValues(Journey(FlatFrames.of(angles * spec.strength.tensor, layout=spec.layout)))
        with rotation:
            out = super().forward(*args, **kwargs)
        if not rotation.done:
            raise RuntimeError(f"{type(self).__name__} used an unknown attention function: its values were not rotated")
        return out
