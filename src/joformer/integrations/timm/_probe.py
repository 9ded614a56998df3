"""Detecting by probing, not by names, where a timm model makes rotary tables and which attentions read them.

An attention is what is handed `rope`, a rotary embedding what has `get_embed` beside it. Every embedding returns a
small table, with which attentions are called on a few made-up tokens (once for all that cannot differ, `signature_of`),
to see at scaled_dot_product_attention that queries and keys are rotated by R(θ) and values are not. What is not
supported raises ValueError with the reason. Nothing in the model changes.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from joformer.frames import FlatFrames, Layout
from joformer.integrations._journey import Strength, repeat_of
from joformer.integrations._probing import restored, signature_of, unsupported
from joformer.integrations.timm._patch import KEYWORD, RopeAttentionSpec, RopeSpec, SplitAngles, pack, parts_of, unpack
from joformer.rotation import rotate


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The innermost modules that are handed `rope`: empty where the model is not one of timm's rotary ones."""
    takers = {name: m for name, m in model.named_modules() if KEYWORD in inspect.signature(m.forward).parameters}
    outer = {name[:at] for name in takers for at, letter in enumerate(name) if letter == "."}
    return {name: module for name, module in takers.items() if name not in outer and name}


def probe(model: nn.Module, strength: Strength) -> tuple[dict[str, RopeSpec], dict[str, RopeAttentionSpec]]:
    """What to patch: every rotary embedding and every attention, by name."""
    if any(p.is_meta for p in model.parameters()):
        raise unsupported(model, "its weights are on the meta device: load them first")
    takers = attentions(model)
    tables: dict[str, RopeSpec] = {}
    packed = torch.empty(0)
    for name, module in _embeddings(model, takers).items():
        tables[name], packed = _table(model, module, strength)
    layouts = {table.layout for table in tables.values()}
    if len(layouts) > 1:
        raise unsupported(model, "its rotary embeddings repeat their angles in different ways")
    (layout,) = layouts
    probed = set()
    for module in takers.values():
        if (key := signature_of(module)) not in probed:
            _require_rotary(model, module, packed, layout)
            probed.add(key)
    index = {name: list(inspect.signature(m.forward).parameters).index(KEYWORD) for name, m in takers.items()}
    return tables, {name: RopeAttentionSpec(strength, index[name], layout) for name in takers}


def _embeddings(model: nn.Module, takers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The rotary embeddings (what has `get_embed`) of modules in which there are attentions that are handed `rope`."""
    found, served = {}, set()
    for name, module in model.named_modules():
        parent = ("." + name).rpartition(".")[0] + "."
        inside = [taker for taker in takers if ("." + taker).startswith(parent)]
        if hasattr(module, "get_embed") and inside:
            found[name] = module
            served.update(inside)
    for taker in takers:
        if taker not in served:
            raise unsupported(model, f"{taker} takes rope, but there is no rotary embedding (get_embed) to hand it one")
    return found


def _table(model: nn.Module, module: Any, strength: Strength) -> tuple[RopeSpec, Tensor]:
    """How an embedding tabulates its angles, and a packed table of a few tokens."""
    kind = type(module).__name__
    with restored(module):
        try:
            with SplitAngles() as split:
                plain = module.get_embed()
        except (AssertionError, TypeError):  # it needs a shape
            split.used = True
        try:
            if split.used:
                kept, plain = None, module.get_embed((2, 3))
                with SplitAngles():
                    parts = module.get_embed((2, 3))
            else:
                parts = kept = parts_of(module)
        except (AssertionError, AttributeError, TypeError, RuntimeError) as error:
            raise unsupported(model, f"its {kind} does not give a table for a grid of patches ({error})") from error
        if not (isinstance(parts, Tensor) and isinstance(plain, Tensor) and parts.shape == plain.shape):
            raise unsupported(model, f"its {kind} does not give one table of sines and cosines")
        rounded, rest = parts.float().chunk(2, -1)
        layout = repeat_of(rounded + rest)
        if layout == "once":
            raise unsupported(model, f"its {kind} does not give every angle twice")
        packed = pack(parts, None, layout)
        if not torch.allclose(unpack(packed, layout)[0].float(), plain.float(), rtol=0, atol=_tolerance(plain)):
            raise unsupported(model, f"the table of its {kind} is not (sin θ, cos θ)")
        while packed.dim() > 3:  # one of the layers
            packed = packed[0]
    return RopeSpec(strength, layout, kept), packed[..., -6:, :]


def _require_rotary(model: nn.Module, module: nn.Module, packed: Tensor, layout: Layout) -> None:
    """Call an attention on a few tokens: its keys are rotated by the table and its values are not."""
    kind = type(module).__name__
    table, angles = unpack(packed, layout)
    sin, cos = table.chunk(2, -1)
    try:
        plain = _Trial.of(module, torch.cat((torch.zeros_like(sin), torch.ones_like(cos)), -1))
        rotated = _Trial.of(module, table)
    except Exception as error:
        why = f"{kind} could not be called with a rotary table ({type(error).__name__}: {error})"
        raise unsupported(model, why) from error
    if not (plain.called and rotated.called):
        raise unsupported(model, f"{kind} does not use scaled_dot_product_attention")
    if plain.value.dim() != 4 or plain.value.shape != plain.query.shape:
        raise unsupported(model, f"{kind} has values {tuple(plain.value.shape)} for queries {tuple(plain.query.shape)}")
    if not torch.equal(plain.value, rotated.value):
        raise unsupported(model, f"{kind} rotates its values already")
    frames = FlatFrames.of(F.pad(angles, (0, 0, 0, 0, plain.key.shape[2] - angles.shape[1], 0)), layout=layout)
    for before, after in ((plain.key, rotated.key), (plain.query, rotated.query)):
        fits = frames.heads in (1, before.shape[1]) and 2 * frames.planes <= before.shape[3]
        expected = rotate(before.transpose(1, 2), frames).transpose(1, 2) if fits else after * torch.nan
        if not torch.allclose(expected, after, rtol=0, atol=_tolerance(table) * float(before.abs().max())):
            raise unsupported(model, f"{kind} does not rotate pairs of entries of its queries and keys as R(θ) does")


def _tolerance(table: Tensor) -> float:
    return 1e-4 if table.dtype in (torch.float32, torch.float64) else 5e-2


class _Trial(TorchFunctionMode):
    """One call of an attention on made-up tokens, and what reached scaled_dot_product_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.called = True
            self.query, self.key, self.value = (t.detach().float() for t in args[:3])
        return func(*args, **(kwargs or {}))

    @classmethod
    def of(cls, module: Any, table: Tensor) -> _Trial:
        width = next(child.in_features for child in module.children() if hasattr(child, "in_features"))
        like = next((p for p in module.parameters() if p.is_floating_point()), table)
        tokens = table.shape[-2] + int(getattr(module, "num_prefix_tokens", 0))
        x = torch.linspace(-1, 1, tokens * width, device=like.device).view(1, tokens, width).to(like.dtype)
        with restored(module), cls() as trial:
            if "fused_attn" in vars(module):
                module.__dict__["fused_attn"] = True
            module(x, **{KEYWORD: table.to(like.device)})
        return trial
