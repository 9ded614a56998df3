"""Finding, in a transformers model, where rotary positions come from and where values go: by trying, not by names.

Every attention that is handed `position_embeddings` is called once on a few made-up tokens, with its projections
giving numbers that can be recognised and with an attention function that notes what reaches it:

    which projection, and which of its channels, the values are     (fused projections too)
    which projection the output goes to
    whether the keys turn as R(θ) would turn them, in which layout  (a layer whose keys do not turn has no positions)
    whether rotating what the projection gives rotates the values and nothing else, be the numbers small or large

What cannot be told is refused with a line that says what is missing. Nothing in the model changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from joformer.integrations.carrying import (
    Angles,
    Around,
    Heads,
    Journey,
    Spread,
    Strength,
    Table,
    frames_of,
    spread_of,
)
from joformer.kernels import Layout
from joformer.rotation import rotate
from joformer.values import FlatFrames

KEYWORD = "position_embeddings"
WATCH = "joformer_looking"
SMALL, LARGE = 2.0**-16, 2.0**20  # of made-up numbers: no gate is wide open to the one, every clamp holds the other
BETWEEN = "does something between projecting its values and attending to them"


@dataclass(frozen=True)
class Tables:
    """What a rotary embedding gives for a few positions."""

    name: str
    cos: Tensor
    sin: Tensor
    angles: Tensor
    spread: Spread


def refused(model: nn.Module, why: str) -> ValueError:
    return ValueError(f"{type(model).__name__} cannot transport its values: {why}")


def embeddings(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that hold inverse frequencies: the rotary embeddings."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False))
    }


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The innermost modules that are handed `position_embeddings`."""
    takers = {name: m for name, m in model.named_modules() if KEYWORD in inspect.signature(m.forward).parameters}
    outer = {name[:at] for name in takers for at, letter in enumerate(name) if letter == "."}
    layers = {type(takers[name]) for name in outer & set(takers)}  # some may hold no attention but another mixer
    return {name: module for name, module in takers.items() if name not in outer and type(module) not in layers}


def look(model: nn.Module, strength: Strength) -> tuple[dict[str, Table], dict[str, Around]]:
    """How each rotary embedding writes its angles down, and what is around each attention."""
    rotary, takers = embeddings(model), attentions(model)
    if not takers:
        raise refused(model, f"no attention layer is handed rotary positions ({KEYWORD} in transformers, rope in timm)")
    if not rotary:
        raise refused(model, "it has no rotary embedding (a module with inverse frequencies)")
    if any(p.is_meta for p in model.parameters()):
        raise refused(model, "its weights are on the meta device: load them first, and offload them only afterwards")
    tables = [t for name, module in rotary.items() for t in _tables(model, name, module)]
    layouts: set[Layout] = set()
    around = {name: _attention(model, strength, module, tables, layouts) for name, module in takers.items()}
    if not layouts:
        raise refused(model, "no attention layer turns its keys by its rotary embedding")
    if len(layouts) > 1:
        raise refused(model, "its layers pair the entries of a head in different ways")
    (layout,) = layouts
    dims = {its.heads.dim for its in around.values() if its.heads is not None}
    found = {}
    for name in rotary:
        its = [table for table in tables if table.name == name]
        plain = all({table.cos.shape[-1]} == dims and torch.equal(table.cos, table.angles.cos()) for table in its)
        scales = tuple(key for key in rotary[name].__dict__ if key.endswith("attention_scaling"))
        found[name] = Table(strength, its[0].spread, layout, plain and its[0].spread == layout, scales)
    return found, around


def _tables(model: nn.Module, name: str, module: nn.Module) -> list[Tables]:
    """The tables of a rotary embedding for a few positions, for each type of layer it knows."""
    parameters = inspect.signature(module.forward).parameters
    like = next(model.parameters())
    x = torch.zeros(1, 3, 8, device=like.device)
    if "position_ids" in parameters:
        first = [x, torch.arange(1, 4, device=like.device)[None]]
    elif "pixel_values" in parameters:
        size = getattr(model.config, "patch_size", 16)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        first = [torch.zeros(1, 3, 2 * height, 2 * width, device=like.device)]
    else:
        raise refused(model, f"its {type(module).__name__} takes neither position_ids nor pixel_values")
    kinds = getattr(module, "layer_types", None) if "layer_type" in parameters else None
    found = []
    try:
        for kind in kinds or [None]:
            with torch.no_grad(), evaluating(module), Angles() as seen:
                pair = module(*first, *([] if kind is None else [kind]))
            if not (isinstance(pair, tuple) and len(pair) == 2 and seen.angles is not None):
                raise refused(model, f"its {type(module).__name__} does not give the cosine and sine of its angles")
            cos, sin = pair
            if not (isinstance(cos, Tensor) and cos.shape == sin.shape == seen.angles.shape and cos.dim() in (2, 3)):
                raise refused(model, f"the tables of its {type(module).__name__} are not (batch, tokens, width)")
            found.append(Tables(name, cos, sin, seen.angles, spread_of(seen.angles)))
    except (TypeError, RuntimeError, IndexError, KeyError) as error:
        raise refused(model, f"its {type(module).__name__} does not take plain positions ({error})") from error
    return found


def _attention(
    model: nn.Module, strength: Strength, module: nn.Module, tables: list[Tables], layouts: set[Layout]
) -> Around:
    """What one attention does; without heads where its keys do not turn, since it has no positions."""
    kind = type(module).__name__
    index = list(inspect.signature(module.forward).parameters).index(KEYWORD)
    trouble = ""
    for table in tables:
        try:
            still, turned = _Watch(module).run(table, turning=False), _Watch(module).run(table, turning=True)
        except _Unseen as error:
            raise refused(model, f"{kind} {error}") from error
        except Exception as error:
            trouble = f"{kind} could not be called with its rotary tables ({type(error).__name__}: {error})"
            continue
        if torch.equal(still.key, turned.key):
            return Around(strength, KEYWORD, index)
        layout = _layout(still.key, turned.key, table)
        try:
            value, heads = still.values()
            if layout is None:
                trouble = f"{kind} does not turn its keys by pairs of entries as R(θ) does"
                continue
            if still.key.shape[-1] != heads.dim:
                raise _Unseen(f"has values of {heads.dim} entries a head but keys of {still.key.shape[-1]}")
            _commutes(still, table, value, heads, layout)
            output = still.output()
        except _Unseen as error:
            raise refused(model, f"{kind} {error}") from error
        layouts.add(layout)
        return Around(strength, KEYWORD, index, value, output, heads)
    raise refused(model, trouble)


def _commutes(small: _Watch, table: Tables, value: str, heads: Heads, layout: Layout) -> None:
    """Rotating what the projection gives rotates the values that attention gets, and changes nothing else.

    Both with small numbers and with large ones: a clamp is nothing to the small, an epsilon nothing to the large.
    """
    tokens, planes = table.cos.shape[-2], frames_of(table.angles, table.spread, layout).planes
    angles = torch.linspace(0.5, 2.5, tokens * planes, device=small.value.device, dtype=torch.float32)
    frames = FlatFrames.of(angles.view(1, tokens, 1, planes), layout=layout)
    for still in (small, _Watch(small.module).run(table, turning=False, unit=LARGE)):
        moved = _Watch(small.module).run(table, turning=False, unit=still.unit, moved=(value, heads, Journey(frames)))
        if not (torch.equal(still.key, moved.key) and torch.equal(still.query, moved.query)):
            raise _Unseen("makes its keys or queries of the same numbers as its values")
        if not all(_same(a, b) for a, b in zip(still.rest, moved.rest, strict=True)):
            raise _Unseen("makes its mask of the same numbers as its values")
        expected = rotate(still.value.transpose(1, 2), frames).transpose(1, 2)
        if not torch.allclose(expected, moved.value, rtol=0, atol=1e-4 * float(still.value.abs().max())):
            raise _Unseen(f"{BETWEEN}, which their rotation does not pass through (a clamp, a norm with weights?)")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)


def _layout(still: Tensor, turned: Tensor, table: Tables) -> Layout | None:
    """In which layout R(θ) takes the one (batch, heads, tokens, head_dim) to the other."""
    for layout in get_args(Layout):
        frames = frames_of(table.angles, table.spread, layout)
        if 2 * frames.planes > still.shape[-1]:
            continue
        expected = rotate(still.transpose(1, 2).float(), frames).transpose(1, 2)
        if torch.allclose(expected, turned.float(), rtol=0, atol=2e-2 * float(still.abs().max())):
            return layout
    return None


@contextmanager
def hooked(modules: dict[str, nn.Module], after: Any, before: Any) -> Iterator[None]:
    """Hooks for the time of a look: after(name, args, output), before(name, args)."""
    handles = []
    for name, module in modules.items():
        handles.append(module.register_forward_hook(lambda _m, args, y, name=name: after(name, args, y)))
        handles.append(module.register_forward_pre_hook(lambda _m, args, name=name: before(name, args)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout and random positions, for the time of a look; then every part is as it was.

    Its mode, and what a rotary embedding remembers of the longest text so far.
    """
    parts = [(part, dict(part.__dict__), dict(part._buffers)) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, its, buffers in parts:
            part.__dict__.clear()
            part.__dict__.update(its)
            part._buffers.clear()
            part._buffers.update(buffers)


class _Unseen(Exception):
    """What an attention did not do, in the words of the message."""


class _Watch:
    """One call of an attention on made-up tokens, and what was seen."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.unit = SMALL
        self.query = self.key = self.value = torch.empty(0)
        self.rest: list[Tensor] = []
        self.marks: dict[str, Tensor] = {}
        self.outputs: list[str] = []
        self.given = torch.empty(0)

    def run(
        self,
        table: Tables,
        *,
        turning: bool,
        unit: float = SMALL,
        moved: tuple[str, Heads, Journey] | None = None,
    ) -> _Watch:
        """Call it with a table or with one that turns nothing; what a projection gives may be rotated."""
        module = self.module
        cos, sin = table.angles.cos().to(table.cos), table.angles.sin().to(table.sin)
        if not turning:
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        children = dict(module.named_children())
        width: Any = next((c.in_features for c in children.values() if hasattr(c, "in_features")), None)
        if width is None:
            raise _Unseen("has no linear projections")
        tensors = [*module.parameters(), *module.buffers()]
        like = next((t for t in tensors if t.dtype.is_floating_point), cos)  # quantised weights may be integers
        dtype, tokens = like.dtype, cos.shape[-2]
        hidden = torch.linspace(-1, 1, tokens * width, device=like.device).view(1, tokens, width).to(dtype)
        self.dtype, self.unit = dtype, unit
        dice = torch.Generator().manual_seed(0)

        def after(name: str, args: Any, y: Any) -> Any:
            if not (args and args[0] is hidden and isinstance(y, Tensor) and y.dim() == 3):
                return None
            marks = torch.randn(y.shape, generator=dice, dtype=torch.float32).to(y.device) * unit
            self.marks[name] = marks
            return moved[2].there(marks, moved[1]) if moved is not None and name == moved[0] else marks.clone()

        def before(name: str, args: Any) -> None:
            if self.given.numel() and args and torch.equal(args[0].flatten(), self.given.flatten()):
                self.outputs.append(name)

        arguments = {
            name: None
            for name, p in inspect.signature(module.forward).parameters.items()
            if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and name not in ("hidden_states", KEYWORD)
        }
        with torch.no_grad(), evaluating(module), hooked(children, after, before), _attending(module, self._attend):
            module(hidden_states=hidden, **{KEYWORD: (cos, sin)}, **arguments)
        if not self.given.numel():
            raise _Unseen("does not go through transformers' attention functions")
        return self

    def _attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any) -> Any:
        self.query, self.key, self.value = query.detach(), key.detach(), value.detach()
        self.rest = [x.detach() for x in (*rest, *more.values()) if isinstance(x, Tensor)]
        batch, heads, tokens, _ = query.shape
        shape = (batch, tokens, heads, value.shape[-1])
        # Other numbers than the hidden states have, which a gate may read after this.
        given = torch.linspace(2, 4, batch * heads * tokens * value.shape[-1], device=value.device).view(shape)
        self.given = given.to(self.dtype)
        return self.given.clone(), None

    def values(self) -> tuple[str, Heads]:
        """The projection and the channels that the values are: each head is some neighbours, perhaps rescaled."""
        _, heads, _, dim = self.value.shape
        values = nn.functional.normalize(self.value[0].float(), dim=-1)  # (heads, tokens, dim)
        for name, marks in self.marks.items():
            if marks.shape[-1] < dim:
                continue
            windows = nn.functional.normalize(marks[0].unfold(-1, dim, 1), dim=-1)  # (tokens, starts, dim)
            alike, starts = torch.einsum("htd,tsd->hs", values, windows).div(values.shape[1]).abs().max(-1)
            if alike.min() < 1 - 1e-5:
                continue
            start = int(starts[0])
            stride = int(starts[1]) - start if heads > 1 else dim
            grouped = stride > dim and (marks.shape[-1] % stride or start + dim > stride)
            if stride < dim or grouped or starts.tolist() != [start + stride * head for head in range(heads)]:
                break
            return name, Heads(heads, dim, start, stride)
        raise _Unseen(BETWEEN)

    def output(self) -> str:
        """The projection that the output goes to as it is."""
        if len(self.outputs) != 1:
            raise _Unseen("does something between attention and projecting its output")
        return self.outputs[0]


@contextmanager
def _attending(module: nn.Module, function: Any) -> Iterator[None]:
    """The attention function of one module, for the time of a look."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "_attn_implementation_internal"):
        raise _Unseen("has no transformers configuration")
    was = config._attn_implementation_internal
    ALL_ATTENTION_FUNCTIONS[WATCH] = function
    config._attn_implementation_internal = WATCH
    try:
        yield
    finally:
        config._attn_implementation_internal = was
        del ALL_ATTENTION_FUNCTIONS[WATCH]
