"""Detecting by probing, not by names, where a model of transformers makes rotary positions and where its values go.

An attention that is handed `position_embeddings` is called on a few made-up tokens (`Trial`), to find out

    which projection, and which of its channels, the values are      (fused projections too)
    which part takes the output
    whether its keys are rotated by R(θ), and in which layout        (without that it has no positions)
    whether rotating the projection's output rotates the values and nothing else, for small and for large numbers

once for all attentions that cannot differ (`signature_of`). What is not supported raises ValueError with the reason.
Nothing in the model changes.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor, nn

from joformer.frames import FlatFrames, Layout
from joformer.integrations._journey import Heads, Journey, Selection, Strength, frames_of, planes_of, repeat_of
from joformer.integrations._probing import methods_of, restored, signature_of, source_of, unsupported
from joformer.integrations.hf._patch import KEYWORD, Angles, AttentionSpec, EmbeddingSpec
from joformer.integrations.hf._trial import BETWEEN, LARGE, Pair, Tables, Trial, UnsupportedError, width_of
from joformer.rotation import rotate


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that are handed `position_embeddings` and attend: the innermost that read them.

    A layer may be handed them and pass them to nobody, as one whose attention looks at an image; what is inside an
    attention and reads them too (an indexer) is a part of it.
    """
    takers = {
        name: module
        for name, module in model.named_modules()
        if KEYWORD in inspect.signature(module.forward).parameters and _mentions(module, KEYWORD)
    }
    attending = [name for name, module in takers.items() if _mentions(module, "ALL_ATTENTION_FUNCTIONS", False)]
    inside = {name for name in takers for outer in attending if name.startswith(outer + ".")}
    outer = {name[:at] for name in takers.keys() - inside for at, letter in enumerate(name) if letter == "."}
    layers = {type(takers[name]) for name in outer & set(takers)}  # some may hold no attention but another mixer
    return {name: m for name, m in takers.items() if name not in outer | inside and type(m) not in layers}


def _mentions(module: nn.Module, name: str, unknown: bool = True) -> bool:
    """Whether the code of a module's forward reads a variable; `unknown` where there is no source."""
    tree = source_of(inspect.unwrap(getattr(module.forward, "__func__", module.forward)))
    return unknown if tree is None else any(isinstance(at, ast.Name) and at.id == name for at in ast.walk(tree))


def _unpacks(owner: nn.Module, child: str) -> bool:
    """Whether a module unpacks what its rotary embedding returns, `cos, sin = self.child(…)`: we return three."""
    trees = [source_of(method) for method in methods_of(type(owner), type(owner).__module__)]
    return any(
        isinstance(at, ast.Assign)
        and isinstance(at.targets[0], ast.Tuple)
        and isinstance(at.value, ast.Call)
        and isinstance(at.value.func, ast.Attribute)
        and at.value.func.attr == child
        for tree in trees
        if tree is not None
        for at in ast.walk(tree)
    )


def _depends_on_index(module: nn.Module) -> bool:
    """Whether an attention may behave differently because of its `layer_idx`: it uses it for more than its cache.

    Layers that share keys and values look those of other layers up, perhaps by their index.
    """
    trees = [source_of(method) for method in methods_of(type(module)) if method.__name__ != "__init__"]
    if None in trees or "shared_kv_states" in inspect.signature(module.forward).parameters:
        return True
    nodes = [node for tree in trees if tree is not None for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    cached = {id(argument) for call in calls if call.func.attr == "update" for argument in call.args}  # type: ignore[attr-defined]
    used = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "layer_idx"]
    return any(id(node) not in cached for node in used)


@dataclass
class _Candidate:
    """Tables to try attentions with, and what these share: later ones may take their values from earlier ones."""

    tables: Tables
    unrotated: dict[Any, Any] = field(default_factory=dict)
    rotated: dict[Any, Any] = field(default_factory=dict)
    values: list[tuple[Tensor, Heads]] = field(default_factory=list)


def probe(model: nn.Module, strength: Strength) -> tuple[dict[str, EmbeddingSpec], dict[str, AttentionSpec]]:
    """What to patch: every rotary embedding and every attention, by name."""
    takers = attentions(model)
    rotary = {
        name: module
        for name, module in model.named_modules()
        if any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False))
    }
    if not takers:
        why = f"no attention layer is handed rotary positions ({KEYWORD} in transformers, rope in timm)"
        raise unsupported(model, why)
    if not rotary:
        raise unsupported(model, "it has no rotary embedding (a module with inverse frequencies)")
    if any(p.is_meta for p in model.parameters()):
        raise unsupported(
            model, "its weights are on the meta device: load them first, and offload them only afterwards"
        )
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        why = "its weights are split over processes: transport the values of a whole model, then split it"
        raise unsupported(model, why)
    tables = [t for name, module in rotary.items() for t in _tables(model, name, module)]
    candidates, layouts = [_Candidate(each) for each in tables], set[Layout]()
    probed: dict[Any, AttentionSpec] = {}
    specs = {}
    for name, module in takers.items():
        key = signature_of(module, () if _depends_on_index(module) else ("layer_idx",))
        if key not in probed:
            probed[key] = _attention(model, strength, module, candidates, layouts)
        specs[name] = probed[key]
        wrapper = model.get_submodule(name.rpartition(".")[0])
        if _takes_anything(wrapper) and _reads(wrapper, tables[0]) > _reads(module, tables[0]) > 0:
            kinds = f"{type(wrapper).__name__} around its {type(module).__name__}"
            raise unsupported(model, f"{kinds} reads the rotary tables itself")
    for name in rotary:
        owner = model.get_submodule(name.rpartition(".")[0])
        if _unpacks(owner, name.rpartition(".")[2]):
            why = "takes the tables of its rotary embedding apart, instead of handing them on"
            raise unsupported(model, f"its {type(owner).__name__} {why}")
    if not layouts:
        raise unsupported(model, "no attention layer rotates its keys by its rotary embedding")
    if len(layouts) > 1:
        raise unsupported(model, "its layers pair the entries of a head in different ways")
    (layout,) = layouts
    dims = {spec.heads.dim for spec in specs.values() if spec.heads is not None}
    embeddings = {}
    for name, module in rotary.items():
        own = [each for each in tables if each.name == name]
        plain = own[0].repeat == layout and all(
            {each.cos.shape[-1]} == dims and torch.equal(each.cos, each.angles.cos()) for each in own
        )
        scales = tuple(key for key in vars(module) if key.endswith("attention_scaling"))
        known = len(dims) == 1 and all(each.frequencies for each in own)
        frequencies = {each.kind: each.frequencies for each in own} if known else {}
        embeddings[name] = EmbeddingSpec(
            strength, own[0].repeat, layout, plain, scales, max(dims), frequencies, own[0].selection
        )
    return embeddings, specs


def _tables(model: nn.Module, name: str, module: nn.Module) -> list[Tables]:
    """The tables of a rotary embedding for a few positions, for each type of layer it knows."""
    kind, parameters = type(module).__name__, inspect.signature(module.forward).parameters
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
        raise unsupported(model, f"its {kind} takes neither position_ids nor pixel_values")
    found = []
    try:
        for layer_type in (getattr(module, "layer_types", None) if "layer_type" in parameters else None) or [None]:
            with restored(module), Angles() as recorded:
                pair = module(*first, *([] if layer_type is None else [layer_type]))
            angles = recorded.angles
            if not (isinstance(pair, tuple) and len(pair) == 2 and angles is not None):
                raise unsupported(model, f"its {kind} does not give the cosine and sine of its angles")
            cos, sin = pair
            chosen = None
            if positions is not None and angles.dim() == 4:
                chosen = _selection(module, first[0], len(angles))
                angles = angles if chosen is None else chosen.of(angles)
            if not (isinstance(cos, Tensor) and cos.shape == sin.shape == angles.shape and cos.dim() in (2, 3)):
                raise unsupported(model, f"the tables of its {kind} are not (batch, tokens, width)")
            repeat, buffers = repeat_of(angles), {} if positions is None else module._buffers
            planes = planes_of(angles, repeat)
            frequencies = next((key for key, b in buffers.items() if _gives(positions, b, planes)), "")
            found.append(Tables(name, cos, sin, angles, repeat, positions, layer_type, frequencies, chosen))
    except (TypeError, RuntimeError, IndexError, KeyError) as error:
        raise unsupported(model, f"its {kind} does not take plain positions ({error})") from error
    return found


def _selection(module: nn.Module, x: Tensor, kinds: int) -> Selection | None:
    """Which angle each entry of the tables is of, detected with other positions for each kind; None if it is of none.

    Positions are large, so that slow planes are told apart too.
    """
    positions = torch.randint(2**18, (kinds, 1, x.shape[1]), generator=torch.Generator().manual_seed(0))
    with restored(module), Angles() as recorded:
        cos, sin = (t.double() for t in module(x, positions.to(x.device)))
    if recorded.angles is None or recorded.angles.shape[:3] != positions.shape:
        return None
    angles, length = recorded.angles.double(), torch.hypot(cos, sin)  # longer than 1 where the tables are scaled
    apart = sum(
        (table / length).unsqueeze(-1).sub(own.permute(1, 2, 0, 3).flatten(2).unsqueeze(2)).abs().amax((0, 1))
        for table, own in ((cos, angles.cos()), (sin, angles.sin()))
    )
    least, which = apart.min(-1)  # over the angles of all kinds, for each entry
    if least.max() > 1e-4:
        return None
    planes = angles.shape[-1]
    return Selection(tuple((which // planes).tolist()), tuple((which % planes).tolist()))


def _gives(positions: Any, frequencies: Tensor | None, angles: Tensor) -> bool:
    """Whether these positions times these frequencies are these angles."""
    if frequencies is None or not frequencies.is_floating_point() or frequencies.shape != angles.shape[-1:]:
        return False
    return torch.equal(positions[..., None] * frequencies.to(angles), angles)


def _attention(
    model: nn.Module, strength: Strength, module: nn.Module, candidates: list[_Candidate], layouts: set[Layout]
) -> AttentionSpec:
    """What one attention does; without heads where its keys are not rotated, since it has no positions."""
    kind = type(module).__name__
    index = list(inspect.signature(module.forward).parameters).index(KEYWORD)
    problem, cause = "", None  # type: str, Exception | None
    for candidate in candidates:
        tables = candidate.tables
        try:
            plain = Trial(module, tables, rotating=False, shared=candidate.unrotated)
            rotated = Trial(module, tables, rotating=True, shared=candidate.rotated)
            if torch.equal(plain.key, rotated.key):
                return AttentionSpec(strength, index)
            if not torch.equal(plain.value, rotated.value):
                raise UnsupportedError("rotates its values already")
            if plain.named:
                raise UnsupportedError("is handed its rotary tables by name, not as a pair")
            value, heads = plain.values(candidate.values)
            layout = _layout(plain.key, rotated.key, tables)
            if layout is None:
                problem, cause = f"{kind} does not rotate its keys by pairs of entries as R(θ) does", None
                continue
            if plain.key.shape[-1] != heads.dim:
                raise UnsupportedError(f"has values of {heads.dim} entries per head but keys of {plain.key.shape[-1]}")
            if value:
                _require_commuting(module, plain, tables, (value, heads), layout)
            output = plain.output_projection()
        except UnsupportedError as error:
            raise unsupported(model, f"{kind} {error}") from error
        except (AttributeError, LookupError, TypeError) as error:
            problem = f"{kind} cannot be probed by itself: it needs more than hidden states, rotary tables and a mask"
            cause = error
            continue
        except Exception as error:  # whatever its code raises for tables of another embedding: reported at the end
            problem, cause = f"{kind} cannot be called with its rotary tables: {' '.join(str(error).split())}", error
            continue
        layouts.add(layout)
        candidate.values.append((plain.value, heads))
        return AttentionSpec(strength, index, value, output, heads)
    raise unsupported(model, problem) from cause


def _require_commuting(
    module: nn.Module, small: Trial, tables: Tables, values: tuple[str, Heads], layout: Layout
) -> None:
    """Rotating the projection's output rotates the values that attention gets, and changes nothing else.

    For small and for large numbers: a clamp leaves the small ones, an epsilon the large ones as they are.
    """
    tokens, planes = tables.cos.shape[-2], frames_of(tables.angles, tables.repeat, layout).planes
    angles = torch.linspace(0.5, 2.5, tokens * planes, device=small.value.device, dtype=torch.float32)
    frames = FlatFrames.of(angles.view(1, tokens, 1, planes), layout=layout)
    for plain in (small, Trial(module, tables, rotating=False, scale=LARGE)):
        rotated = Trial(module, tables, rotating=False, scale=plain.scale, rotated=(*values, Journey(frames)))
        if not (_same(plain.key, rotated.key) and _same(plain.query, rotated.query)):
            raise UnsupportedError("computes its keys or queries from the same numbers as its values")
        if not all(_same(a, b) for a, b in zip(plain.others, rotated.others, strict=True)):
            raise UnsupportedError("computes its mask from the same numbers as its values")
        expected = rotate(plain.value.transpose(1, 2), frames).transpose(1, 2)
        if not torch.allclose(expected, rotated.value, rtol=0, atol=1e-4 * float(plain.value.abs().max())):
            raise UnsupportedError(f"{BETWEEN}, which does not commute with rotation (a clamp, a norm with weights?)")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)


def _layout(plain: Tensor, rotated: Tensor, tables: Tables) -> Layout | None:
    """In which layout R(θ) takes the one (batch, heads, tokens, head_dim) to the other."""
    for layout in get_args(Layout):
        frames = frames_of(tables.angles, tables.repeat, layout).to(plain.device)
        if 2 * frames.planes > plain.shape[-1]:
            continue
        expected = rotate(plain.transpose(1, 2).float(), frames).transpose(1, 2)
        if torch.allclose(expected, rotated.float(), rtol=0, atol=2e-2 * float(plain.abs().max())):
            return layout
    return None


def _takes_anything(module: nn.Module) -> bool:
    """Whether a module takes any keywords and nothing else, as one that is put around another does."""
    kinds = {p.kind for p in inspect.signature(module.forward).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds <= {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


def _reads(module: nn.Module, tables: Tables) -> int:
    """How often the tables are read in a call of a module, or before it fails."""
    like = next((p for p in module.parameters() if p.is_floating_point()), tables.cos)
    pair = Pair(t.to(like) for t in (tables.cos, tables.sin))
    hidden = torch.zeros(1, tables.cos.shape[-2], width_of(module), device=like.device, dtype=like.dtype)
    try:
        with restored(module):
            module(hidden_states=hidden, attention_mask=None, **{KEYWORD: pair})
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        pass  # it needs more than this: it may have read the tables before
    return pair.reads
