"""Finding, in a timm model, where rotary tables come from and who reads them: by trying, not by names.

An attention is what is handed `rope`, a rotary embedding what has `get_embed` beside it. Every embedding is asked for a
small table, and every attention is called twice on a few made-up tokens, with a table that turns nothing and with the
small one, to see at scaled_dot_product_attention that queries and keys turn as R(θ) would turn them and values do not.
What cannot be told is refused with a line that says what is missing. Nothing in the model changes.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from joformer.frames import FlatFrames, Layout
from joformer.integrations.hf._patch import Strength, spread_of
from joformer.integrations.hf._probe import evaluating, refused
from joformer.integrations.timm._patch import KEYWORD, Parts, Reading, Table, made_again, pack, unpack
from joformer.rotation import rotate


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The innermost modules that are handed `rope`: empty where the model is not one of timm's rotary ones."""
    takers = {name: m for name, m in model.named_modules() if KEYWORD in inspect.signature(m.forward).parameters}
    outer = {name[:at] for name in takers for at, letter in enumerate(name) if letter == "."}
    return {name: module for name, module in takers.items() if name not in outer and name}


def look(model: nn.Module, strength: Strength) -> tuple[dict[str, Table], dict[str, Reading]]:
    """For each rotary embedding how it writes its angles, for each attention how it reads them; nothing changes."""
    if any(p.is_meta for p in model.parameters()):
        raise refused(model, "its weights are on the meta device: load them first")
    takers = attentions(model)
    tables: dict[str, Table] = {}
    packed = torch.empty(0)
    for name, module in _embeddings(model, takers).items():
        tables[name], packed = _table(model, module, strength)
    layouts = {table.layout for table in tables.values()}
    if len(layouts) > 1:
        raise refused(model, "its rotary embeddings repeat their angles in different ways")
    readings = {name: _reading(model, module, packed, strength, *layouts) for name, module in takers.items()}
    return tables, readings


def _embeddings(model: nn.Module, takers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The rotary embeddings (what has `get_embed`) of modules in which there are attentions that are handed `rope`."""
    found: dict[str, nn.Module] = {}
    served: set[str] = set()
    for name, module in model.named_modules():
        inside = [taker for taker in takers if ("." + taker).startswith(_parent(name))]
        if hasattr(module, "get_embed") and inside:
            found[name] = module
            served.update(inside)
    for taker in takers:
        if taker not in served:
            raise refused(model, f"{taker} takes rope, but there is no rotary embedding (get_embed) to hand it one")
    return found


def _parent(name: str) -> str:
    return ("." + name).rpartition(".")[0] + "."


def _table(model: nn.Module, module: Any, strength: Strength) -> tuple[Table, Tensor]:
    """How an embedding writes its angles, and a packed table of a few tokens."""
    kind = type(module).__name__
    with torch.no_grad(), evaluating(module):
        try:
            with Parts() as seen:
                plain = module.get_embed()
        except (AssertionError, TypeError):  # it wants to be told a shape
            seen.taken = True
        try:
            if seen.taken:
                made, plain = None, module.get_embed((2, 3))
                with Parts():
                    parts = module.get_embed((2, 3))
            else:
                parts = made = made_again(module)
        except (AssertionError, AttributeError, TypeError, RuntimeError) as error:
            raise refused(model, f"its {kind} does not give a table for a grid of patches ({error})") from error
        if not (isinstance(parts, Tensor) and isinstance(plain, Tensor) and parts.shape == plain.shape):
            raise refused(model, f"its {kind} does not give one table of sines and cosines")
        rounded, rest = parts.float().chunk(2, -1)
        layout = spread_of(rounded + rest)
        if layout == "once":
            raise refused(model, f"its {kind} does not say every angle twice")
        packed = pack(parts, None, layout)
        if not torch.allclose(unpack(packed, layout)[0].float(), plain.float(), rtol=0, atol=_loose(plain)):
            raise refused(model, f"the table of its {kind} is not (sin θ, cos θ)")
        while packed.dim() > 3:  # one of the layers
            packed = packed[0]
    return Table(strength, layout, made), packed[..., -6:, :]


def _reading(model: nn.Module, module: nn.Module, packed: Tensor, strength: Strength, layout: Layout) -> Reading:
    """Try an attention on a few tokens: its keys turn by the table and its values do not."""
    kind = type(module).__name__
    table, angles = unpack(packed, layout)
    sin, cos = table.chunk(2, -1)
    try:
        still = _Watch.of(module, torch.cat((torch.zeros_like(sin), torch.ones_like(cos)), -1))
        turned = _Watch.of(module, table)
    except Exception as error:
        why = f"{kind} could not be called with a rotary table ({type(error).__name__}: {error})"
        raise refused(model, why) from error
    if not still.seen or not turned.seen:
        raise refused(model, f"{kind} does not attend by scaled_dot_product_attention")
    if still.value.dim() != 4 or still.value.shape != still.query.shape:
        raise refused(model, f"{kind} has values {tuple(still.value.shape)} for queries {tuple(still.query.shape)}")
    if not torch.equal(still.value, turned.value):
        raise refused(model, f"{kind} turns its values already")
    frames = FlatFrames.of(F.pad(angles, (0, 0, 0, 0, still.key.shape[2] - angles.shape[1], 0)), layout=layout)
    for before, after in ((still.key, turned.key), (still.query, turned.query)):
        fits = frames.heads in (1, before.shape[1]) and 2 * frames.planes <= before.shape[3]
        expected = rotate(before.transpose(1, 2), frames).transpose(1, 2) if fits else after * torch.nan
        if not torch.allclose(expected, after, rtol=0, atol=_loose(table) * float(before.abs().max())):
            raise refused(model, f"{kind} does not turn its queries and keys by pairs of entries as R(θ) does")
    return Reading(strength, list(inspect.signature(module.forward).parameters).index(KEYWORD), layout)


def _loose(table: Tensor) -> float:
    return 1e-4 if table.dtype in (torch.float32, torch.float64) else 5e-2


class _Watch(TorchFunctionMode):
    """One call of an attention on made-up tokens, and what reached scaled_dot_product_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.seen = True
            self.query, self.key, self.value = (t.detach().float() for t in args[:3])
        return func(*args, **(kwargs or {}))

    @classmethod
    def of(cls, module: Any, table: Tensor) -> _Watch:
        width = next(child.in_features for child in module.children() if hasattr(child, "in_features"))
        like = next((p for p in module.parameters() if p.is_floating_point()), table)
        tokens = table.shape[-2] + int(getattr(module, "num_prefix_tokens", 0))
        x = torch.linspace(-1, 1, tokens * width, device=like.device).view(1, tokens, width).to(like.dtype)
        fused = module.__dict__.get("fused_attn")
        watch = cls()
        try:
            if fused is not None:
                module.__dict__["fused_attn"] = True
            with torch.no_grad(), evaluating(module), watch:
                module(x, **{KEYWORD: table.to(like.device)})
        finally:
            if fused is not None:
                module.__dict__["fused_attn"] = fused
        return watch
