"""One call of an attention of transformers on made-up tokens, and what reached its attention function."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from joformer.integrations._journey import Heads, Journey, Repeat, Selection
from joformer.integrations._probing import restored
from joformer.integrations.hf._patch import KEYWORD

NAME = "joformer_probe"
SMALL, LARGE = 2.0**-16, 2.0**20  # scale of made-up values: no gate saturates at the one, every clamp acts on the other
BETWEEN = "does something between projecting its values and attending to them"


class UnsupportedError(Exception):
    """What an attention does or lacks, as the rest of a sentence that begins with its class."""


@dataclass(frozen=True)
class Tables:
    """What a rotary embedding returns for a few positions.

    Attributes:
        name: Of the embedding.
        cos: ``(batch or 1, tokens, width)`` or ``(tokens, width)``.
        sin: As `cos`.
        angles: As `cos`.
        repeat: How they repeat the angle of each plane.
        positions: ``(1, tokens)``; None for places in an image.
        kind: The type of layer they are for, where the embedding knows several.
        frequencies: The embedding's buffer whose product with the positions gives the angles; may be empty.
        selection: Which of the embedding's angles these are, where it has several kinds of positions.
    """

    name: str
    cos: Tensor
    sin: Tensor
    angles: Tensor
    repeat: Repeat
    positions: Tensor | None
    kind: str | None = None
    frequencies: str = ""
    selection: Selection | None = None


class Pair(tuple[Tensor, Tensor]):
    """Rotary tables that count how often they are read."""

    reads = 0
    named = False

    def __iter__(self) -> Iterator[Tensor]:
        self.reads += 1
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):  # a dictionary with one pair per type of layer
            self.named = True
            return self
        self.reads += 1
        return super().__getitem__(key)


def width_of(module: nn.Module) -> int:
    """Of what the projections in a module read; 0 where it has none."""
    width: Any = next((part.in_features for part in module.modules() if hasattr(part, "in_features")), 0)
    return int(width)


class Trial:
    """Calls an attention with a table, or with one that rotates nothing.

    Its projections return random numbers, which are recognised in the values, and its attention function returns
    numbers that are recognised in the input of the output projection. All but the projections computes in float32.

    Args:
        module: The attention.
        tables: Whose angles it gets.
        rotating: Whether with those tables; else cos = 1, sin = 0.
        scale: Of the random numbers.
        rotated: A projection, the heads in its output and the journey to rotate them by.
        shared: What earlier attentions of the same model left for later ones.

    Attributes:
        query: What attention got, ``(batch, heads, tokens, head_dim)``; `key` and `value` likewise.
        others: All other tensors that attention got.
        named: Whether it looked its tables up by name.
    """

    def __init__(
        self,
        module: nn.Module,
        tables: Tables,
        *,
        rotating: bool,
        scale: float = SMALL,
        rotated: tuple[str, Heads, Journey] | None = None,
        shared: dict[Any, Any] | None = None,
    ) -> None:
        self.scale, self.rotated = scale, rotated
        width = width_of(module)
        if not width:
            raise UnsupportedError("has no linear projections")
        device = next((t.device for t in (*module.parameters(), *module.buffers())), tables.cos.device)
        angles = tables.angles if rotating else torch.zeros_like(tables.angles)
        pair, tokens = Pair(t.to(device, torch.float32) for t in (angles.cos(), angles.sin())), angles.shape[-2]
        self.hidden = torch.linspace(-1, 1, tokens * width, device=device, dtype=torch.float32).view(1, tokens, width)
        known = {"position_ids": tables.positions, "shared_kv_states": {} if shared is None else shared}
        try:
            out = self._call(module, pair, known)
        except (AttributeError, TypeError):  # it may need a mask: one that hides nothing
            if "attention_mask" not in inspect.signature(module.forward).parameters:
                raise
            out = self._call(module, pair, known | {"attention_mask": torch.zeros(1, 1, tokens, tokens, device=device)})
        self.named = pair.named
        if not self.output.numel():
            raise UnsupportedError("does not go through transformers' attention functions")
        first = out[0] if isinstance(out, tuple) else out
        self.unprojected = isinstance(first, Tensor) and _same_numbers(first, self.output)

    def _call(self, module: nn.Module, pair: Pair, known: dict[str, Any]) -> Any:
        self.query = self.key = self.value = self.output = torch.empty(0)
        self.others: list[Tensor] = []
        self.projected: dict[str, Tensor] = {}
        self.calls: Counter[str] = Counter()
        self.direct: set[str] = set()  # children that were called with the hidden states
        self.takers: list[str] = []  # children that were called with the output of attention
        self.generator = torch.Generator().manual_seed(0)
        arguments = {
            name: known.get(name)
            for name, p in inspect.signature(module.forward).parameters.items()
            if p.kind is p.POSITIONAL_OR_KEYWORD and name not in ("hidden_states", KEYWORD)
            if p.default is p.empty or known.get(name) is not None
        }
        with restored(module), attention_function(module, self._attend):
            for name, child in module.named_children():
                child.register_forward_pre_hook(partial(self._before, name))
                child.register_forward_hook(partial(self._after, name))
            _widen(module)
            return module(hidden_states=self.hidden, **{KEYWORD: pair}, **arguments)

    def _before(self, name: str, child: nn.Module, args: tuple[Any, ...]) -> Any:
        self.calls[name] += 1
        first = args[0] if args else None
        if first is self.hidden:
            self.direct.add(name)
        if isinstance(first, Tensor) and first.shape[:2] == self.output.shape[:2] and _same_numbers(first, self.output):
            self.takers.append(name)
        dtype = _precision(child)
        return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)

    def _after(self, name: str, child: nn.Module, args: Any, y: Any) -> Any:
        if not (isinstance(y, Tensor) and y.is_floating_point()):
            return None
        if name not in self.direct or y.dim() != 3:
            return y.float()
        self.direct.remove(name)
        numbers = torch.randn(y.shape, generator=self.generator, dtype=torch.float32).to(y.device) * self.scale
        self.projected[name] = numbers
        if self.rotated is not None and name == self.rotated[0]:
            return self.rotated[2].rotate_values(numbers, self.rotated[1])
        return numbers.clone()

    def _attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **more: Any) -> Any:
        self.query, self.key, self.value = query.detach(), key.detach(), value.detach()
        self.others = [x.detach() for x in (*rest, *more.values()) if isinstance(x, Tensor)]
        batch, heads, tokens, _ = query.shape
        shape = (batch, tokens, heads, value.shape[-1])
        # Other numbers than the hidden states have, which a gate may read after this.
        self.output = torch.linspace(2, 4, torch.Size(shape).numel(), device=value.device, dtype=torch.float32)
        self.output = self.output.view(shape)
        return self.output.clone(), None

    def values(self, earlier: list[tuple[Tensor, Heads]]) -> tuple[str, Heads]:
        """The projection whose output holds the values, and where: each head is neighbours in it, perhaps rescaled.

        No projection where they are the values of an earlier attention, which has rotated them.
        """
        _, heads, _, dim = self.value.shape
        values = nn.functional.normalize(self.value[0].float(), dim=-1)  # (heads, tokens, dim)
        for name, numbers in self.projected.items():
            if numbers.shape[-1] < dim:
                continue
            windows = nn.functional.normalize(numbers[0].unfold(-1, dim, 1), dim=-1)  # (tokens, starts, dim)
            alike, starts = torch.einsum("htd,tsd->hs", values, windows).div(values.shape[1]).abs().max(-1)
            if alike.min() < 1 - 1e-5:
                continue
            start = int(starts[0])
            stride = int(starts[1]) - start if heads > 1 else dim
            grouped = stride > dim and (numbers.shape[-1] % stride or start + dim > stride)
            if stride < dim or grouped or starts.tolist() != [start + stride * head for head in range(heads)]:
                break
            return name, Heads(heads, dim, start, stride)
        for their_values, their_heads in earlier:
            if torch.equal(their_values, self.value):
                return "", their_heads
        raise UnsupportedError(BETWEEN)

    def output_projection(self) -> str:
        """The part that the output goes to unchanged."""
        if self.unprojected:
            raise UnsupportedError("leaves its output projection to another module")
        if len(self.takers) != 1 or self.calls[self.takers[0]] != 1:
            raise UnsupportedError("does something between attention and the output projection")
        return self.takers[0]


def _same_numbers(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.flatten(), b.flatten())


def _precision(module: nn.Module) -> torch.dtype:
    """What a part computes in: projections keep their weights as they are, which may be quantised."""
    if not width_of(module):
        return torch.float32
    usual = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    return next((t.dtype for t in (*module.parameters(), *module.buffers()) if t.dtype in usual), torch.float32)


def _widen(module: nn.Module) -> None:
    """All but the projections in float32; parameters uneven, as training may make weights that are still all equal."""
    for part in (module, *(p for child in module.children() if not width_of(child) for p in child.modules())):
        for store, uneven in ((part._parameters, True), (part._buffers, False)):
            for name, held in store.items():
                if held is not None and held.is_floating_point():
                    more = torch.linspace(0.25, 0.75, held.numel(), device=held.device, dtype=torch.float32)
                    store[name] = held.detach().float() + (more.view(held.shape) if uneven else 0)  # type: ignore[assignment]


@contextmanager
def attention_function(module: nn.Module, function: Any, name: str = NAME) -> Iterator[None]:
    """Another attention function, by this name, for a module and all in it."""
    from transformers import AttentionInterface

    configs = {id(held): held for part in module.modules() if (held := getattr(part, "config", None)) is not None}
    before = [(config, config._attn_implementation_internal) for config in configs.values() if _chooses(config)]
    if not before:
        raise UnsupportedError("has no transformers configuration")
    AttentionInterface.register(name, function)  # of the class: a model may have its own table of functions
    for config, _ in before:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        del AttentionInterface._global_mapping[name]


def _chooses(config: Any) -> bool:
    """Whether a configuration says which attention function is called."""
    return hasattr(config, "_attn_implementation_internal")
