"""Value transport in timm's rotary vision transformers, which hand their layers one table `rope` = (sin θ, cos θ).

    o_i = R(s θ_i)⁻¹ Σ_j softmax_j(…) R(s θ_j) v_j        prefix tokens (classes, registers) do not turn

A table says every sine and cosine twice, once for each entry of a plane. Here the place of the second copy carries the
angle, in two parts that lose nothing (little, where a model rounds its table):

    (sin sin cos cos)   →   (sin, cos, θ', θ − θ')        θ' is θ rounded to bfloat16

so that the table is as wide as it was and goes wherever the model takes it: one per layer and head, tokens dropped,
a row per sample, checkpoints. Attention writes the second copies back before it reads the table. Some of timm's
attentions project their values without calling a projection, so the rotation happens where values are used: around
scaled_dot_product_attention, or around the product that follows the softmax.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from joformer.frames import FlatFrames, Layout
from joformer.integrations.hf._patch import Journey, Part, Strength

KEYWORD = "rope"
_SINES = (torch.sin, torch.Tensor.sin)
_COSINES = (torch.cos, torch.Tensor.cos)
_SOFTMAXES = (torch.softmax, torch.Tensor.softmax, F.softmax)
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


class Parts(TorchFunctionMode):
    """While it is active, sin θ gives θ', which is θ rounded to bfloat16, and cos θ gives θ − θ'.

    >>> with Parts():
    ...     x = torch.tensor(1.0001)
    ...     parts = x.sin(), x.cos()
    >>> parts[0].item(), (sum(parts) == x).item()
    (1.0, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.taken = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SINES or func in _COSINES:
            self.taken = True
            angles = args[0]
            rounded = angles.detach().bfloat16().to(angles.dtype)
            return rounded if func in _SINES else angles - rounded
        return func(*args, **(kwargs or {}))


class Turning(TorchFunctionMode):
    """While it is active, values are rotated when attention sums them, and the sums are rotated back."""

    def __init__(self, journey: Journey) -> None:
        super().__init__()
        self.journey = journey
        self.weighed = self.done = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key, value = args[:3]
            return self.back(func(query, key, self.there(value), *args[3:], **kwargs))
        if func in _PRODUCTS and self.weighed:
            self.weighed = False
            return self.back(func(args[0], self.there(args[1])))
        if func in _SOFTMAXES:
            self.weighed = True
        return func(*args, **kwargs)

    def there(self, value: Tensor) -> Tensor:
        return self.journey.act(value.transpose(1, 2)).transpose(1, 2)

    def back(self, o: Tensor) -> Tensor:
        self.done = True
        return self.journey.act(o.transpose(1, 2), inverse=True).transpose(1, 2)


def pack(parts: Tensor, table: Tensor | None, layout: Layout) -> Tensor:
    """(sin, cos, θ', θ − θ') from a table of parts (θ' θ', θ − θ' θ − θ'), and the model's own where it keeps one."""
    rounded, rest = (_once(half, layout) for half in parts.chunk(2, -1))
    if table is not None:
        sin, cos = (_once(half, layout) for half in table.chunk(2, -1))
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


def _once(repeated: Tensor, layout: Layout) -> Tensor:
    return repeated[..., : repeated.shape[-1] // 2] if layout == "half" else repeated[..., ::2]


def _sum(rounded: Tensor, rest: Tensor) -> Tensor:
    return rounded + rest if rest.dtype == torch.float64 else rounded.float() + rest.float()


@dataclass
class Table:
    """How a rotary embedding writes its angles down, and the parts of the angles where its table is made beforehand."""

    strength: Strength
    layout: Layout
    made: Tensor | None


class Rope(Part):
    """A rotary embedding that packs the angles into its tables."""

    _of: Table

    def get_embed(self, *args: Any, **kwargs: Any) -> Any:
        return self._packed(super().get_embed, *args, **kwargs)  # type: ignore[misc]

    @property
    def get_batch_embeds(self) -> Any:
        """A property, since models ask whether an embedding has it."""
        return partial(self._packed, super().get_batch_embeds)  # type: ignore[misc]

    def update_feat_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Another image size: what is made beforehand is made again."""
        super().update_feat_shape(*args, **kwargs)  # type: ignore[misc]
        if self._of.made is not None:
            self._of.made = made_again(self)

    def _packed(self, give: Any, *args: Any, **kwargs: Any) -> Any:
        of = self._of
        if not of.strength.on:
            return give(*args, **kwargs)
        seen = Parts()
        with seen:  # not "as seen", in which compilers lose what it keeps
            given = give(*args, **kwargs)
        if not seen.taken:
            if of.made is None or of.made.shape != given.shape:
                raise RuntimeError(f"{type(self).__name__} took no cosine of angles: its values cannot be transported")
            if of.made.device != given.device:
                of.made = of.made.to(given.device)
            return pack(of.made, given, of.layout)
        if isinstance(given, list):
            return [pack(parts, None, of.layout) for parts in given]
        return pack(given, None, of.layout)


@dataclass(frozen=True)
class Reading:
    """How an attention reads its table."""

    strength: Strength
    index: int
    layout: Layout


class RopeAttention(Part):
    """An attention that takes the angles off its table, and turns its values by them."""

    _of: Reading

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        of = self._of
        named = KEYWORD in kwargs
        packed = kwargs[KEYWORD] if named else args[of.index] if len(args) > of.index else None
        if packed is None or not of.strength.on:
            return super().forward(*args, **kwargs)
        table, angles = unpack(packed, of.layout)
        if named:
            kwargs[KEYWORD] = table
        else:
            args = (*args[: of.index], table, *args[of.index + 1 :])
        turning = Turning(Journey(FlatFrames.of(angles * of.strength.tensor, layout=of.layout)))
        with turning:
            out = super().forward(*args, **kwargs)
        if not turning.done:
            raise RuntimeError(
                f"{type(self).__name__} attended in a way that was not seen: its values were not rotated"
            )
        return out


def made_again(module: Any) -> Tensor:
    """The parts of the angles of which an embedding keeps a table made beforehand: a copy makes it again."""
    kind: Any = next(cls for cls in type(module).__mro__ if not issubclass(cls, Part))
    fresh = copy.copy(module)
    fresh.__class__ = kind
    shape = module.feat_shape
    fresh.__dict__.update(_buffers=dict(module._buffers), _non_persistent_buffers_set=set(), feat_shape=(0, 0))
    with torch.no_grad(), Parts() as seen:
        fresh.update_feat_shape(shape)
        parts = fresh.get_embed()
    if not seen.taken:
        raise RuntimeError("it keeps a table, and does not make it again for another shape")
    return parts
