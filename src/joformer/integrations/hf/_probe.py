"""Finding, in a transformers model, where rotary positions come from and where values go: by trying, not by names.

Every attention that is handed `position_embeddings` is called on a few made-up tokens, with its projections giving
numbers that can be recognised and with an attention function that notes what reaches it:

    which projection, and which of its channels, the values are     (fused projections too)
    which part takes the output
    whether the keys turn as R(θ) would turn them, in which layout  (a layer whose keys do not turn has no positions)
    whether rotating what the projection gives rotates the values and nothing else, be the numbers small or large

All but the projections computes in float32 meanwhile, whatever the model's precision is. What cannot be told is refused
with a line that says what is missing. Nothing in the model changes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

import torch
from torch import Tensor, nn

from joformer.frames import FlatFrames, Layout
from joformer.integrations.hf._patch import (
    Angles,
    Around,
    Heads,
    Journey,
    Spread,
    Strength,
    Table,
    frames_of,
    planes_of,
    spread_of,
)
from joformer.rotation import rotate

KEYWORD = "position_embeddings"
WATCH = "joformer_probe"
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
    positions: Tensor | None
    """(1, tokens); None where they are places in an image."""
    kind: str | None = None
    """The type of layer it is for, where the embedding knows several."""
    frequencies: str = ""
    """The embedding's buffer that its positions are multiplied with to get the angles."""


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
    """The modules that are handed `position_embeddings` and attend: the innermost that read them.

    A layer may be handed them and pass them on to nobody, as one whose attention looks at an image; what is inside an
    attention and reads them too (an indexer) is a part of it.
    """
    takers = {
        name: module
        for name, module in model.named_modules()
        if KEYWORD in inspect.signature(module.forward).parameters and _mentions(module, KEYWORD)
    }
    attending = [name for name, module in takers.items() if _mentions(module, "ALL_ATTENTION_FUNCTIONS", False)]
    inside = {name for name in takers for around in attending if name.startswith(around + ".")}
    outer = {name[:at] for name in takers.keys() - inside for at, letter in enumerate(name) if letter == "."}
    layers = {type(takers[name]) for name in outer & set(takers)}  # some may hold no attention but another mixer
    return {name: m for name, m in takers.items() if name not in outer | inside and type(m) not in layers}


def _mentions(module: nn.Module, name: str, unknown: bool = True) -> bool:
    """Whether the code of a module's forward reads a variable; `unknown` where the code is not at hand."""
    tree = _tree(inspect.unwrap(getattr(module.forward, "__func__", module.forward)))
    return unknown if tree is None else any(isinstance(at, ast.Name) and at.id == name for at in ast.walk(tree))


@cache
def _tree(function: Any) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None


def _unpacks(owner: nn.Module, child: str) -> bool:
    """Whether a module takes what its rotary embedding gives apart, `cos, sin = self.child(…)`: it is three to us."""
    methods = [f for cls in type(owner).__mro__ if cls.__module__ == type(owner).__module__ for f in vars(cls).values()]
    return any(
        isinstance(at, ast.Assign)
        and isinstance(at.targets[0], ast.Tuple)
        and isinstance(at.value, ast.Call)
        and isinstance(at.value.func, ast.Attribute)
        and at.value.func.attr == child
        for method in methods
        if inspect.isfunction(method) and (tree := _tree(inspect.unwrap(method))) is not None
        for at in ast.walk(tree)
    )


def look(model: nn.Module, strength: Strength) -> tuple[dict[str, Table], dict[str, Around]]:
    """How each rotary embedding writes its angles down, and what is around each attention."""
    rotary, takers = embeddings(model), attentions(model)
    if not takers:
        raise refused(model, f"no attention layer is handed rotary positions ({KEYWORD} in transformers, rope in timm)")
    if not rotary:
        raise refused(model, "it has no rotary embedding (a module with inverse frequencies)")
    if any(p.is_meta for p in model.parameters()):
        raise refused(model, "its weights are on the meta device: load them first, and offload them only afterwards")
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise refused(
            model, "its weights are split over processes: transport the values of a whole model, then split it"
        )
    tables = [t for name, module in rotary.items() for t in _tables(model, name, module)]
    layouts: set[Layout] = set()
    trials = [_Trial(table) for table in tables]
    around = {name: _attention(model, strength, module, trials, layouts) for name, module in takers.items()}
    for name in rotary:
        owner, _, child = name.rpartition(".")
        if _unpacks(model.get_submodule(owner), child):
            kind = type(model.get_submodule(owner)).__name__
            raise refused(
                model, f"its {kind} takes the tables of its rotary embedding apart, instead of handing them on"
            )
    for name, module in takers.items():
        wrapper = model.get_submodule(name.rpartition(".")[0])
        if _takes_anything(wrapper) and _reads(wrapper, tables[0]) > _reads(module, tables[0]) > 0:
            kinds = f"{type(wrapper).__name__} around its {type(module).__name__}"
            raise refused(model, f"{kinds} reads the rotary tables itself")
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
        known = len(dims) == 1 and all(table.frequencies for table in its)
        frequencies = {table.kind: table.frequencies for table in its} if known else {}
        plain = plain and its[0].spread == layout
        found[name] = Table(strength, its[0].spread, layout, plain, scales, max(dims), frequencies)
    return found, around


def _tables(model: nn.Module, name: str, module: nn.Module) -> list[Tables]:
    """The tables of a rotary embedding for a few positions, for each type of layer it knows."""
    parameters = inspect.signature(module.forward).parameters
    device = next(model.parameters()).device
    positions = None
    if "position_ids" in parameters:
        positions = torch.arange(1, 4, device=device)[None]
        first = [torch.zeros(1, 3, 8, device=device, dtype=torch.float32), positions]
    elif "pixel_values" in parameters:
        size = getattr(model.config, "patch_size", 16)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        first = [torch.zeros(1, 3, 2 * height, 2 * width, device=device, dtype=torch.float32)]
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
            spread = spread_of(seen.angles)
            frequencies = ""
            if positions is not None:
                each = planes_of(seen.angles, spread)
                frequencies = next(
                    (key for key, b in module._buffers.items() if b is not None and _product(positions, b, each)), ""
                )
            found.append(Tables(name, cos, sin, seen.angles, spread, positions, kind, frequencies))
    except (TypeError, RuntimeError, IndexError, KeyError) as error:
        raise refused(model, f"its {type(module).__name__} does not take plain positions ({error})") from error
    return found


def _product(positions: Tensor, frequencies: Tensor, angles: Tensor) -> bool:
    """Whether these positions times these frequencies are these angles."""
    fits = frequencies.is_floating_point() and frequencies.shape == angles.shape[-1:]
    return fits and torch.equal(positions[..., None] * frequencies.to(angles), angles)


@dataclass
class _Trial:
    """A table that attentions are tried with, and what they share: later ones may take their values from earlier."""

    table: Tables
    still: dict[Any, Any] = field(default_factory=dict)
    turned: dict[Any, Any] = field(default_factory=dict)
    values: list[tuple[Tensor, Heads]] = field(default_factory=list)


def _attention(
    model: nn.Module, strength: Strength, module: nn.Module, trials: list[_Trial], layouts: set[Layout]
) -> Around:
    """What one attention does; without heads where its keys do not turn, since it has no positions."""
    kind = type(module).__name__
    index = list(inspect.signature(module.forward).parameters).index(KEYWORD)
    trouble, cause = "", None  # type: str, Exception | None
    for trial in trials:
        table = trial.table
        try:
            still = _watch(module, table, turning=False, shared=trial.still)
            turned = _watch(module, table, turning=True, shared=trial.turned)
        except _Unseen as error:
            raise refused(model, f"{kind} {error}") from error
        except (AttributeError, LookupError, TypeError) as error:
            trouble = f"{kind} cannot be tried by itself: it needs more than hidden states, rotary tables and a mask"
            cause = error
            continue
        except Exception as error:
            trouble, cause = f"{kind} cannot be called with its rotary tables: {' '.join(str(error).split())}", error
            continue
        if torch.equal(still.key, turned.key):
            return Around(strength, KEYWORD, index)
        layout = _layout(still.key, turned.key, table)
        try:
            if not torch.equal(still.value, turned.value):
                raise _Unseen("turns its values already")
            if still.named:
                raise _Unseen("is handed its rotary tables by name, not as a pair")
            value, heads = still.values(trial.values)
            if layout is None:
                trouble, cause = f"{kind} does not turn its keys by pairs of entries as R(θ) does", None
                continue
            if still.key.shape[-1] != heads.dim:
                raise _Unseen(f"has values of {heads.dim} entries a head but keys of {still.key.shape[-1]}")
            if value:
                _commutes(module, still, table, (value, heads), layout)
            output = still.output()
        except _Unseen as error:
            raise refused(model, f"{kind} {error}") from error
        layouts.add(layout)
        trial.values.append((still.value, heads))
        return Around(strength, KEYWORD, index, value, output, heads)
    raise refused(model, trouble) from cause


def _commutes(module: nn.Module, small: _Watch, table: Tables, values: tuple[str, Heads], layout: Layout) -> None:
    """Rotating what the projection gives rotates the values that attention gets, and changes nothing else.

    Both with small numbers and with large ones: a clamp is nothing to the small, an epsilon nothing to the large.
    """
    tokens, planes = table.cos.shape[-2], frames_of(table.angles, table.spread, layout).planes
    angles = torch.linspace(0.5, 2.5, tokens * planes, device=small.value.device, dtype=torch.float32)
    frames = FlatFrames.of(angles.view(1, tokens, 1, planes), layout=layout)
    for still in (small, _watch(module, table, turning=False, unit=LARGE)):
        moved = _watch(module, table, turning=False, unit=still.unit, moved=(*values, Journey(frames)))
        if not (_same(still.key, moved.key) and _same(still.query, moved.query)):
            raise _Unseen("makes its keys or queries of the same numbers as its values")
        if not all(_same(a, b) for a, b in zip(still.rest, moved.rest, strict=True)):
            raise _Unseen("makes its mask of the same numbers as its values")
        expected = rotate(still.value.transpose(1, 2), frames).transpose(1, 2)
        if not torch.allclose(expected, moved.value, rtol=0, atol=1e-4 * float(still.value.abs().max())):
            raise _Unseen(f"{BETWEEN}, which their rotation does not pass through (a clamp, a norm with weights?)")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, perhaps in another shape."""
    return torch.equal(a.flatten(), b.flatten())


def _layout(still: Tensor, turned: Tensor, table: Tables) -> Layout | None:
    """In which layout R(θ) takes the one (batch, heads, tokens, head_dim) to the other."""
    for layout in get_args(Layout):
        frames = frames_of(table.angles, table.spread, layout).to(still.device)
        if 2 * frames.planes > still.shape[-1]:
            continue
        expected = rotate(still.transpose(1, 2).float(), frames).transpose(1, 2)
        if torch.allclose(expected, turned.float(), rtol=0, atol=2e-2 * float(still.abs().max())):
            return layout
    return None


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout and random positions, for the time of a look; then every part is as it was.

    Its mode, its tensors, and what a rotary embedding remembers of the longest text so far.
    """
    parts = [
        (part, dict(part.__dict__), [(store, dict(store)) for store in _stores(part)]) for part in module.modules()
    ]
    module.eval()
    try:
        yield
    finally:
        for part, its, stores in parts:
            part.__dict__.clear()
            part.__dict__.update(its)
            for store, tensors in stores:
                store.clear()
                store.update(tensors)


def _stores(part: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return part._parameters, part._buffers


class _Unseen(Exception):
    """What an attention did not do, in the words of the message."""


class _Pair(tuple[Tensor, Tensor]):
    """Rotary tables that count how often they are read."""

    reads = 0
    named = False

    def __iter__(self) -> Iterator[Tensor]:
        self.reads += 1
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):  # a dictionary with one pair for each kind of layer
            self.named = True
            return self
        self.reads += 1
        return super().__getitem__(key)


def _takes_anything(module: nn.Module) -> bool:
    """Whether a module takes whatever keywords it is given, as what is put around another does, and nothing else."""
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds <= {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


def _reads(module: nn.Module, table: Tables) -> int:
    """How often the tables are read in a call of a module; 0 where it cannot be called like this."""
    like = next((p for p in module.parameters() if p.is_floating_point()), table.cos)
    width: Any = next((part.in_features for part in module.modules() if hasattr(part, "in_features")), 0)
    pair = _Pair(t.to(like) for t in (table.cos, table.sin))
    hidden = torch.zeros(1, table.cos.shape[-2], width, device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad(), evaluating(module):
            module(hidden_states=hidden, attention_mask=None, **{KEYWORD: pair})
    except Exception:
        return 0
    return pair.reads


def _watch(module: nn.Module, table: Tables, **how: Any) -> _Watch:
    """One call of an attention on made-up tokens; with a mask that hides nothing where it needs one."""
    try:
        return _Watch(module).run(table, None, **how)
    except (AttributeError, TypeError):
        if "attention_mask" not in inspect.signature(module.forward).parameters:
            raise
        tokens = table.cos.shape[-2]
        return _Watch(module).run(table, torch.zeros(1, 1, tokens, tokens, device=table.cos.device), **how)


class _Watch:
    """One call of an attention on made-up tokens, and what was seen."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.unit = SMALL
        self.query = self.key = self.value = torch.empty(0)
        self.rest: list[Tensor] = []
        self.marks: dict[str, Tensor] = {}
        self.calls: Counter[str] = Counter()
        self.outputs: list[str] = []
        self.given = torch.empty(0)
        self.back = self.named = False

    def run(
        self,
        table: Tables,
        mask: Tensor | None,
        *,
        turning: bool,
        unit: float = SMALL,
        moved: tuple[str, Heads, Journey] | None = None,
        shared: dict[Any, Any] | None = None,
    ) -> _Watch:
        """Call it with a table or with one that turns nothing; what a projection gives may be rotated."""
        module, self.unit = self.module, unit
        children = dict(module.named_children())
        width: Any = next((part.in_features for part in module.modules() if hasattr(part, "in_features")), None)
        if width is None:
            raise _Unseen("has no linear projections")
        device = next((t.device for t in (*module.parameters(), *module.buffers())), table.cos.device)
        cos, sin = (t.to(device, torch.float32) for t in (table.angles.cos(), table.angles.sin()))
        if not turning:
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        pair, tokens = _Pair((cos, sin)), cos.shape[-2]
        hidden = torch.linspace(-1, 1, tokens * width, device=device, dtype=torch.float32).view(1, tokens, width)
        dice = torch.Generator().manual_seed(0)
        direct = set()

        def before(name: str, args: tuple[Any, ...]) -> Any:
            self.calls[name] += 1
            first = args[0] if args else None
            if first is hidden:
                direct.add(name)
            if isinstance(first, Tensor) and first.shape[:2] == self.given.shape[:2] and _alike(first, self.given):
                self.outputs.append(name)
            dtype = _precision(children[name])
            return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)

        def after(name: str, y: Any) -> Any:
            if not (isinstance(y, Tensor) and y.is_floating_point()):
                return None
            if name not in direct or y.dim() != 3:
                return y.float()
            direct.discard(name)
            marks = torch.randn(y.shape, generator=dice, dtype=torch.float32).to(y.device) * unit
            self.marks[name] = marks
            return moved[2].there(marks, moved[1]) if moved is not None and name == moved[0] else marks.clone()

        parameters = inspect.signature(module.forward).parameters
        shared = {} if shared is None else shared
        known: dict[str, Any] = {"position_ids": table.positions, "attention_mask": mask, "shared_kv_states": shared}
        arguments = {
            name: known.get(name)
            for name, p in parameters.items()
            if p.kind is p.POSITIONAL_OR_KEYWORD and name not in ("hidden_states", KEYWORD)
            if p.default is p.empty or known.get(name) is not None
        }
        with torch.no_grad(), evaluating(module), _hooked(children, before, after), _attending(module, self._attend):
            _widen(module)
            out = module(hidden_states=hidden, **{KEYWORD: pair}, **arguments)
        self.named = pair.named
        if not self.given.numel():
            raise _Unseen("does not go through transformers' attention functions")
        first = out[0] if isinstance(out, tuple) else out
        self.back = isinstance(first, Tensor) and _alike(first, self.given)
        return self

    def _attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any) -> Any:
        self.query, self.key, self.value = query.detach(), key.detach(), value.detach()
        self.rest = [x.detach() for x in (*rest, *more.values()) if isinstance(x, Tensor)]
        batch, heads, tokens, _ = query.shape
        shape = (batch, tokens, heads, value.shape[-1])
        # Other numbers than the hidden states have, which a gate may read after this.
        self.given = torch.linspace(2, 4, query[..., :1].numel() * shape[-1], device=value.device, dtype=torch.float32)
        self.given = self.given.view(shape)
        return self.given.clone(), None

    def values(self, earlier: list[tuple[Tensor, Heads]]) -> tuple[str, Heads]:
        """The projection and the channels that the values are: each head is some neighbours, perhaps rescaled.

        No projection where they are those of an earlier attention, which has rotated them.
        """
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
        for theirs, its in earlier:
            if torch.equal(theirs, self.value):
                return "", its
        raise _Unseen(BETWEEN)

    def output(self) -> str:
        """The part that the output goes to as it is."""
        if self.back:
            raise _Unseen("leaves the projection of its output to another module")
        if len(self.outputs) != 1 or self.calls[self.outputs[0]] != 1:
            raise _Unseen("does something between attention and projecting its output")
        return self.outputs[0]


def _projects(module: nn.Module) -> bool:
    return any(hasattr(part, "in_features") for part in module.modules())


def _precision(module: nn.Module) -> torch.dtype:
    """What a part computes in: projections keep their weights as they are, which may be quantised."""
    if not _projects(module):
        return torch.float32
    usual = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    return next((t.dtype for t in (*module.parameters(), *module.buffers()) if t.dtype in usual), torch.float32)


def _widen(module: nn.Module) -> None:
    """All but the projections in float32, and uneven, as training may make weights that are still all alike."""
    for part in (module, *(p for child in module.children() if not _projects(child) for p in child.modules())):
        for store in _stores(part):
            for name, its in store.items():
                if its is None or not its.is_floating_point():
                    continue
                uneven = torch.linspace(0.25, 0.75, its.numel(), device=its.device, dtype=torch.float32)
                store[name] = its.detach().float() + (uneven.view(its.shape) if store is part._parameters else 0)


@contextmanager
def _hooked(modules: dict[str, nn.Module], before: Any, after: Any) -> Iterator[None]:
    """Hooks for the time of a look: before(name, args) -> args, after(name, output) -> output."""
    handles = []
    for name, module in modules.items():
        handles.append(module.register_forward_pre_hook(lambda _m, args, name=name: before(name, args)))
        handles.append(module.register_forward_hook(lambda _m, _args, y, name=name: after(name, y)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _attending(module: nn.Module, function: Any) -> Iterator[None]:
    """The attention function of one module, for the time of a look."""
    from transformers import AttentionInterface

    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "_attn_implementation_internal"):
        raise _Unseen("has no transformers configuration")
    was = config._attn_implementation_internal
    AttentionInterface.register(WATCH, function)  # not one table of functions: a model may have its own
    config._attn_implementation_internal = WATCH
    try:
        yield
    finally:
        config._attn_implementation_internal = was
        del AttentionInterface._global_mapping[WATCH]
