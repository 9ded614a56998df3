"""How values travel in a model that is not ours: frames come from its own rotary angles, its projections act with them.

    v'_j = R(s θ_j) v_j        before anything else sees the values: cache, repetition of heads, attention
    o_i  = R(s θ_i)⁻¹ o'_i     before the output projection

θ are the angles whose cosines the model's rotary embedding takes, whatever scaling they have; s is the strength.
The embedding hands its tables to the layers as a pair (cos, sin); here the pair gets a third member, the journey, which
travels the same way through every layer, checkpoint and device and is taken off again just before attention reads the
pair. So nothing is kept between two calls, and nothing is computed once per layer that is the same for all.

The parts of the model that take part get a class mixed from their own: they are still what they were, their weights
have the same names, and taking the class off again leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from threading import get_ident
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from joformer._precision import is_traced
from joformer.frames import FlatFrames, Layout
from joformer.rotation import rotate


class Strength:
    """s, shared by every part of one model; a tensor too, which a compiled model follows without compiling again."""

    def __init__(self, value: float) -> None:
        self.set(value)

    def set(self, value: float) -> None:
        self.value, self.on, self.full = value, value != 0, value == 1
        self.tensor = torch.tensor(value, dtype=torch.float32, device="cpu")  # float64 is a constant to compilers


class Angles(TorchFunctionMode):
    """Sees of what cosines are taken while it is active.

    >>> with Angles() as seen:
    ...     _ = (2 * torch.ones(3)).cos()
    >>> seen.angles
    tensor([2., 2., 2.])
    """

    def __init__(self) -> None:
        super().__init__()
        self.angles: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cos or func is torch.cos:
            self.angles = args[0]
        return func(*args, **(kwargs or {}))


BYPASSED = (
    "{} did not call the projections around it, so its values were not rotated: a fused kernel read their weights; "
    "switch it off, or call transport_values(model, off=True)"
)
Spread = Literal["half", "interleaved", "once"]
"""How a table repeats the angle of each plane: as the layouts do, θ₁θ₂…θ₁θ₂… or θ₁θ₁θ₂θ₂…, or not at all."""


def spread_of(angles: Tensor) -> Spread:
    """How a table (…, width) of angles repeats them.

    >>> spread_of(torch.tensor([1.0, 2.0, 1.0, 2.0])), spread_of(torch.tensor([1.0, 1.0, 2.0, 2.0]))
    ('half', 'interleaved')
    """
    if angles.shape[-1] % 2:
        return "once"
    first, second = angles.chunk(2, -1)
    if torch.equal(first, second):
        return "half"
    return "interleaved" if torch.equal(angles[..., 0::2], angles[..., 1::2]) else "once"


def planes_of(angles: Tensor, spread: Spread) -> Tensor:
    """The angle of each plane, (…, planes), from a table of angles (…, width)."""
    if spread == "half":
        return angles[..., : angles.shape[-1] // 2]
    return angles[..., ::2] if spread == "interleaved" else angles


def frames_of(angles: Tensor, spread: Spread, layout: Layout, strength: Tensor | float = 1.0) -> FlatFrames:
    """Frames from a model's table of angles, (tokens, width) or (batch or 1, tokens, width)."""
    angles = planes_of(angles, spread)
    wide = angles if angles.dtype == torch.float64 else angles.float()
    while wide.dim() < 3:
        wide = wide.unsqueeze(0)
    return FlatFrames.of(wide.unsqueeze(2) * strength, layout=layout)


@cache
def quarter_turn(planes: int, dim: int, layout: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
    """I and J (dim, dim) on rows: x (I cos θ + J sin θ) is x with every plane turned by θ, and the rest as it was.

    >>> rows = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> (rows @ quarter_turn(2, 5, "half", torch.device("cpu"))[1]).tolist()
    [-3.0, -4.0, 1.0, 2.0, 0.0]
    """
    with torch.inference_mode(False):
        identity = torch.eye(dim, device=device, dtype=torch.float32)
        turned = identity[: 2 * planes]
        first, second = turned.chunk(2) if layout == "half" else (turned[0::2], turned[1::2])
        return identity, first.T @ second - second.T @ first


@dataclass(frozen=True)
class Heads:
    """Where the values are in what a projection gives: entry d of head h is channel start + h·stride + d."""

    heads: int
    dim: int
    start: int
    stride: int


class Journey:
    """What the layers get: the frames of the tokens at hand."""

    def __init__(self, frames: FlatFrames) -> None:
        self.frames = frames
        self.padded: dict[int, FlatFrames] = {}

    def to(self, device: torch.device | str, **_: Any) -> Journey:
        """Where a model is spread over devices, its layers ask for this."""
        return Journey(self.frames.to(device))

    def act(self, x: Tensor, inverse: bool = False) -> Tensor:
        """Rotate x (batch, tokens, heads, dim), or rotate it back; tokens in front without a position do not turn."""
        frames = self.frames
        if frames.tokens != x.shape[1]:
            frames = self._padded(x.shape[1])
        return rotate(x, frames, inverse)

    def _padded(self, tokens: int) -> FlatFrames:
        """Frames for `tokens` tokens where those in front (classes, registers) have no position: not rotated."""
        ready = self.padded.get(tokens)
        if ready is None:
            angles = nn.functional.pad(self.frames.angles, (0, 0, 0, 0, tokens - self.frames.tokens, 0))
            ready = self.padded[tokens] = FlatFrames.of(angles, layout=self.frames.layout)
        return ready

    def there(self, y: Tensor, heads: Heads) -> Tensor:
        """y (batch, tokens, width), what a projection gives, with its values rotated."""
        if heads.stride == heads.dim:
            stop = heads.start + heads.heads * heads.dim
            whole = stop - heads.start == y.shape[2]
            inside = y if whole else y[..., heads.start : stop]
            turned = self.act(inside.unflatten(2, (heads.heads, heads.dim))).flatten(2)
            return turned if whole else torch.cat((y[..., : heads.start], turned, y[..., stop:]), -1)
        groups, stop = y.unflatten(2, (-1, heads.stride)), heads.start + heads.dim
        turned = self.act(groups[..., heads.start : stop])
        return torch.cat((groups[..., : heads.start], turned, groups[..., stop:]), -1).flatten(2)

    def back(self, o: Tensor, dim: int) -> Tensor:
        """o (batch, tokens, heads · dim), or (batch, tokens, heads, dim), rotated back."""
        return self.act(o.reshape(*o.shape[:2], -1, dim), inverse=True).view(o.shape)


class Step(Journey):
    """The journey of a single token for each row: one small matrix, which costs a decoded token least.

    It is float32, and so is its product with values of less: rounded as the values of many tokens are, once.
    """

    def __init__(self, cos: Tensor, sin: Tensor, planes: int, layout: Layout) -> None:
        """From the cosine and sine of each entry's angle, (rows, 1, dim): 1 and 0 where it does not turn."""
        identity, quarter = quarter_turn(planes, cos.shape[-1], layout, cos.device)
        self.forth = torch.addcmul(identity * cos, quarter, sin).squeeze(0)
        self.home = self.forth.mT

    @classmethod
    def of(cls, angles: Tensor, table: Table) -> Step:
        """From the angle of each plane, (rows, 1, planes), at full strength."""
        planes = angles.shape[-1]
        if not table.strength.full:
            angles = angles * table.strength.value
        angles = torch.cat((angles, angles), -1) if table.layout == "half" else angles.repeat_interleave(2, -1)
        if 2 * planes != table.dim:
            angles = nn.functional.pad(angles, (0, table.dim - 2 * planes))
        return cls(angles.cos(), angles.sin(), planes, table.layout)

    def to(self, device: torch.device | str, **_: Any) -> Journey:
        moved = Step.__new__(Step)
        moved.forth, moved.home = self.forth.to(device), self.home.to(device)
        return moved

    def act(self, x: Tensor, inverse: bool = False) -> Tensor:
        return self._product(x, self.home if inverse else self.forth, x.shape[3])

    def there(self, y: Tensor, heads: Heads) -> Tensor:
        if heads.heads * heads.dim == y.shape[2]:
            return self._product(y, self.forth, heads.dim)
        return super().there(y, heads)

    def back(self, o: Tensor, dim: int) -> Tensor:
        return self._product(o, self.home, dim)

    def _product(self, x: Tensor, matrix: Tensor, dim: int) -> Tensor:
        shape = (-1, dim) if matrix.dim() == 2 else (matrix.shape[0], -1, dim)
        multiply = torch.mm if matrix.dim() == 2 else torch.bmm
        if x.dtype == torch.float32:
            return multiply(x.reshape(shape), matrix).view_as(x)  # cheaper than to make a shape of Python's
        return multiply(x.reshape(shape).float(), matrix).type_as(x).view_as(x)


class Part(nn.Module):
    """A part of somebody's model that takes part in transport: the base of the classes that are mixed in."""

    _of: Any = None
    """What it has to know."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the classes it is mixed from, since its own is made as the program runs."""
        return _mixed_again, type(self).__bases__, self.__dict__


_mixed: dict[tuple[type, type], type[Part]] = {}


def mixed(part: type[Part], cls: type[nn.Module]) -> type[Part]:
    """The class of somebody's module that takes part: `part` first, then its own. Made once."""
    both = _mixed.get((part, cls))
    if both is None:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        both = _mixed[part, cls] = type(cls.__name__, (part, cls), names)
    return both


def _mixed_again(part: type[Part], cls: type[nn.Module]) -> nn.Module:
    both = mixed(part, cls)
    return both.__new__(both)


def join(part: type[Part], module: nn.Module, of: Any) -> None:
    """Make `module` take part."""
    forward = module.__dict__.get("_old_forward", module.__dict__.get("forward"))
    if forward is not None and not _own(module, forward):
        raise ValueError(f"{type(module).__name__}.forward was replaced on this model: put it back first")
    module.__dict__.update(_of=of, _journeys={})
    _become(module, mixed(part, type(module)))


def check_leave(module: nn.Module) -> None:
    """A module that took another class on top of ours cannot be made what it was."""
    if isinstance(module, Part) and type(module) not in _mixed.values():
        raise ValueError(f"{type(module).__name__} took another class since (a parametrisation?): take it off first")


def leave(module: nn.Module) -> None:
    """Make `module` what it was."""
    if not isinstance(module, Part):
        return
    for name in ("_of", "_journey", "_journeys"):
        module.__dict__.pop(name, None)
    _become(module, type(module).__bases__[1])


def _become(module: nn.Module, cls: type[nn.Module]) -> None:
    """Give `module` another class, and its forward also where it is kept on the module itself.

    There accelerate keeps it (as `_old_forward`) while a model is spread over devices, and leaves it (as `forward`)
    when its hooks are removed.
    """
    kept = [name for name in ("forward", "_old_forward") if _own(module, module.__dict__.get(name))]
    module.__class__ = cls
    for name in kept:
        module.__dict__[name] = MethodType(cls.forward, module)


def _own(module: nn.Module, method: Any) -> bool:
    """Whether this is the forward of the module's class, bound to it."""
    return isinstance(method, MethodType) and method.__self__ is module and method.__func__ is type(module).forward


@dataclass(frozen=True)
class Table:
    """How a rotary embedding writes its angles down."""

    strength: Strength
    spread: Spread
    layout: Layout
    plain: bool
    """Whether its tables are as wide as a head, in the layout's order, and not scaled: the frame itself."""
    scales: tuple[str, ...] = ()
    """Its attributes that scale the tables."""
    dim: int = 0
    """Of a head, where all have the same."""
    frequencies: dict[str | None, str] = field(default_factory=dict)
    """The buffer that positions are multiplied with to get the angles, by type of layer; empty where one has none."""


class Embedding(Part):
    """A rotary embedding that hands (cos, sin, journey) to the layers."""

    _of: Table

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        table = self._of
        if not table.strength.on:
            return super().forward(*args, **kwargs)
        where = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        kind = kwargs.get("layer_type", args[2] if len(args) > 2 else None)
        name = table.frequencies.get(kind)
        if name and where is not None and where.dim() == 2 and where.shape[1] == 1 and args and _plainly(args[0]):
            cos, sin = super().forward(*args, **kwargs)
            whole = table.plain and table.strength.full and cos.dtype == torch.float32
            if whole and all(getattr(self, scale) == 1 for scale in table.scales):  # the tables are all that is needed
                return cos, sin, Step(cos, sin, table.dim // 2, table.layout)
            frequencies: Any = self._buffers[name]  # perhaps of less precision, but angles are never
            return cos, sin, Step.of(where.unsqueeze(2) * frequencies.float(), table)
        seen = Angles()
        with seen:  # not "as seen": the compiler loses what such a name has
            cos, sin = super().forward(*args, **kwargs)
        if seen.angles is None:
            raise RuntimeError(f"{type(self).__name__} took no cosine of angles: its values cannot be transported")
        return cos, sin, Journey(frames_of(seen.angles, table.spread, table.layout, table.strength.tensor))


def _plainly(x: Tensor) -> bool:
    """Whether a product of matrices has the precision of x as it stands, and nobody differentiates or traces it."""
    return (
        x.dtype != torch.float64
        and x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and not is_traced()
        and not torch.is_autocast_enabled("cpu")
    )


@dataclass(frozen=True)
class Around:
    """What is around an attention: where its tables come in, which of its children make values and take its output."""

    strength: Strength
    keyword: str
    index: int
    value: str = ""
    """Empty where it takes the values that an earlier attention has rotated."""
    output: str = ""
    heads: Heads | None = None
    """None where it has no positions: then the journey is only taken off."""


class Attention(Part):
    """An attention that takes the journey off the pair and gives it to the projections around it."""

    _of: Around

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        around = self._of
        pair = kwargs.get(around.keyword)
        named = pair is not None or len(args) <= around.index
        if not named:
            pair = args[around.index]
        journey = None
        if pair is not None and len(pair) == 3:
            journey = pair[2]
            if named:
                kwargs[around.keyword] = pair[:2]
            else:
                args = (*args[: around.index], pair[:2], *args[around.index + 1 :])
        if around.heads is None or pair is None:
            return super().forward(*args, **kwargs)
        if journey is None and around.strength.on:
            raise RuntimeError(
                f"{type(self).__name__} got positions without a journey: a part of the model was replaced since; "
                "call transport_values(model, off=True), then transport_values(model) again"
            )
        output: Any = self._modules[around.output]
        value: Any = self._modules[around.value] if around.value else output
        ready = isinstance(output, Output) and (value is output or isinstance(value, Values))
        if torch.compiler.is_compiling():
            if not ready:
                raise RuntimeError("an adapter came or went since transport_values(model): call it again, then compile")
            value._journey = output._journey = journey
            out = super().forward(*args, **kwargs)
            if value._journey is not None or output._journey is not None:
                raise RuntimeError(BYPASSED.format(type(self).__name__))
            return out
        if not ready:
            surround(self)
        thread, here, there = get_ident(), value.__dict__["_journeys"], output.__dict__["_journeys"]
        here[thread] = there[thread] = journey  # past the checks of nn.Module, which cost a decoded token a percent
        try:
            out = super().forward(*args, **kwargs)
            if journey is not None and (thread in here or thread in there):
                raise RuntimeError(BYPASSED.format(type(self).__name__))
            return out
        except BaseException:
            here.pop(thread, None)
            there.pop(thread, None)
            raise


def surround(attention: nn.Module) -> None:
    """Let the two projections around an attention take part: an adapter may have come in the place of one."""
    around = attention._of
    if not isinstance(around, Around) or around.heads is None:
        return
    output = attention.get_submodule(around.output)
    if around.value and not isinstance(value := attention.get_submodule(around.value), Values):
        join(Values, value, around.heads)
    if not isinstance(output, Output):
        join(Output, output, around.heads.dim)


class Values(Part):
    """A projection that makes the values, and rotates them."""

    _of: Heads
    _journey: Journey | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        y = super().forward(*args, **kwargs)
        journey = _taken(self)
        return y if journey is None else journey.there(y, self._of)


class Output(Part):
    """A projection of attention's output, which is rotated back first."""

    _of: int
    _journey: Journey | None = None

    def forward(self, o: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        journey = _taken(self)
        if journey is not None:
            o = journey.back(o, self._of)
        return super().forward(o, *args, **kwargs)


def _taken(module: Any) -> Journey | None:
    """The journey of this call, which is under way in this thread, and forgotten once it is taken."""
    journey: Journey | None
    if torch.compiler.is_compiling():
        if module._journeys:  # attention runs uncompiled: so must this, and does when the compiler gives it up
            raise RuntimeError("compile the model, or its layers, but not the projections of a layer by themselves")
        journey, module._journey = module._journey, None
        return journey
    journey = module.__dict__["_journeys"].pop(get_ident(), None)
    if journey is None and module._journey is not None:  # attention is compiled, this is not
        journey, module._journey = module._journey, None
    return journey
