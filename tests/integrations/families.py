"""Tiny models of real classes, and what transport must do to each, written out slowly.

`Family.build()` makes a model with random weights; `Family.angles` are its rotary angles in float64, from the numbers
in its configuration alone. `by_definition(model, ...)` makes attention compute the value path as the paper states it,

    o_i = Σ_j softmax_j(q_i·k_j) R(s (θ_j − θ_i)) v_j

for every pair (i, j), in an untouched model, from its own queries, keys, masks and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers as T
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TOKENS, VOCAB = 7, 64
BASE = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
GROUPED = dict(BASE, num_key_value_heads=2)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 5.0, 7.0],
}


# Frequencies, θ per step of position, in float64 -------------------------------------------------------------------


def plain(dim: int, base: float) -> Tensor:
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def llama3(dim: int, base: float) -> Tensor:
    """Long waves are slowed by the factor, short ones kept, those between in proportion."""
    old, factor, low, high = 32, 4.0, 1.0, 2.0
    out = []
    for w in plain(dim, base).tolist():
        turns = old * w / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        out.append(share * w + (1 - share) * w / factor)
    return torch.tensor(out, dtype=torch.float64)


def yarn(dim: int, base: float) -> Tensor:
    """As llama3, but the share is linear in the number of the plane; 32 turns and 1 turn are its ends."""
    old, factor = 16, 4.0

    def plane(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(plane(32.0)), 0), min(math.ceil(plane(1.0)), dim - 1)
    share = ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    w = plain(dim, base)
    return w * (1 - share) + w / factor * share


def dynamic(dim: int, base: float) -> Tensor:
    """The base grows with the length, here of TOKENS, beyond the 6 of the configuration."""
    return plain(dim, base * (2.0 * TOKENS / 6 - 1.0) ** (dim / (dim - 2)))


@dataclass(frozen=True)
class Family:
    build: Callable[[], Any]
    frequencies: Callable[[int], Tensor | None]
    """Of a layer, by its number; None where the layer has no positions."""
    layout: str = "half"
    implementation: str = "sdpa"
    image: bool = False
    prefix: int = 0

    def inputs(self, batch: int = 2, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        dice = torch.Generator().manual_seed(1)
        if self.image:
            return {"pixel_values": torch.randn(batch, 3, 16, 24, generator=dice, dtype=dtype)}
        return {"input_ids": torch.randint(2, VOCAB, (batch, TOKENS), generator=dice)}

    def made(self, dtype: torch.dtype = torch.float32) -> Any:
        """A model of its own weights, the same every time; norms and biases are not at rest."""
        torch.manual_seed(5)
        model = self.build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.set_attn_implementation(self.implementation)
        return model.to(dtype).eval()

    def angles(self, layer: int, positions: Tensor) -> Tensor:
        """(batch or 1, tokens, planes) in float64, for positions (batch or 1, tokens), or rows and columns."""
        w = self.frequencies(layer)
        if w is None:
            return positions.new_zeros(*positions.shape[:2], 0, dtype=torch.float64)
        if self.image:  # (1, patches, 2): first all angles of the row, then all of the column
            turned = (2 * math.pi * positions[..., None] * w).flatten(-2)
            return torch.cat((turned.new_zeros(1, self.prefix, turned.shape[-1]), turned), 1)
        return positions[..., None].double() * w

    def positions(self) -> Tensor:
        if not self.image:
            return torch.arange(TOKENS)[None]
        rows, columns = (torch.arange(n, dtype=torch.float64).add(0.5).mul(2 / n).sub(1) for n in (2, 3))
        return torch.cartesian_prod(rows, columns)[None]


def same(w: Tensor) -> Callable[[int], Tensor]:
    return lambda layer: w


def of_llama(**changes: Any) -> Callable[[], Any]:
    return lambda: T.LlamaForCausalLM(T.LlamaConfig(**{**GROUPED, **changes}))


def scaled(w: Tensor, max_position_embeddings: int = 64, **rope: Any) -> Family:
    return Family(of_llama(rope_parameters=rope, max_position_embeddings=max_position_embeddings), same(w))


def of(model: str, config: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(T, model)(getattr(T, config)(**settings))


REQUIRED = {
    "llama": Family(of_llama(), same(plain(8, 10000.0))),
    "mistral": Family(
        of("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=4, head_dim=8), same(plain(8, 10000.0))
    ),
    "qwen2": Family(of("Qwen2ForCausalLM", "Qwen2Config", **GROUPED), same(plain(8, 10000.0))),
    "qwen3": Family(of("Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=16), same(plain(16, 10000.0))),
    "gemma3": Family(
        of(
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            **GROUPED,
            head_dim=16,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
            },
        ),
        lambda layer: [plain(16, 50.0), plain(16, 1000.0) / 2][layer],
    ),
    "olmo2": Family(of("Olmo2ForCausalLM", "Olmo2Config", **GROUPED), same(plain(8, 10000.0))),
    "neox": Family(
        of(
            "GPTNeoXForCausalLM",
            "GPTNeoXConfig",
            **{**BASE, "num_attention_heads": 2},
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        ),
        same(plain(8, 100.0)),
    ),
    "phi3": Family(of("Phi3ForCausalLM", "Phi3Config", **GROUPED), same(plain(8, 10000.0))),
    "dinov3": Family(
        of(
            "DINOv3ViTModel",
            "DINOv3ViTConfig",
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=16,
            patch_size=8,
            num_register_tokens=3,
        ),
        same(plain(4, 100.0)),
        image=True,
        prefix=4,
    ),
}
SCALED = {
    "llama3": scaled(llama3(8, 100.0), **LLAMA3),
    "yarn": scaled(yarn(8, 100.0), **YARN),
    "linear": scaled(plain(8, 100.0) / 3, rope_type="linear", rope_theta=100.0, factor=3.0),
    "dynamic": scaled(dynamic(8, 100.0), 6, rope_type="dynamic", rope_theta=100.0, factor=2.0),
    "longrope short": Family(
        of(
            "Phi3ForCausalLM",
            "Phi3Config",
            **GROUPED,
            rope_parameters=LONG,
            max_position_embeddings=64,
            original_max_position_embeddings=16,
        ),
        same(plain(8, 100.0) / torch.tensor([1.0, 1.5, 2.0, 2.5])),
    ),
    "longrope long": Family(
        of(
            "Phi3ForCausalLM",
            "Phi3Config",
            **GROUPED,
            rope_parameters=LONG,
            max_position_embeddings=64,
            original_max_position_embeddings=4,
        ),
        same(plain(8, 100.0) / torch.tensor([2.0, 3.0, 5.0, 7.0])),
    ),
}
OTHERS = {
    "glm": Family(
        of("GlmForCausalLM", "GlmConfig", **GROUPED, head_dim=16), same(plain(8, 10000.0)), layout="interleaved"
    ),
    "cohere": Family(
        of("CohereForCausalLM", "CohereConfig", **GROUPED), same(plain(8, 500000.0)), layout="interleaved"
    ),
    "smollm3": Family(
        of("SmolLM3ForCausalLM", "SmolLM3Config", **GROUPED, no_rope_layers=[1, 0]),
        lambda layer: [plain(8, 2000000.0), None][layer],
    ),
    "gptoss": Family(
        of(
            "GptOssForCausalLM",
            "GptOssConfig",
            **GROUPED,
            head_dim=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0},
            experts_implementation="eager",
        ),
        same(plain(8, 100.0)),
        implementation="eager",
    ),
}
FAMILIES = REQUIRED | SCALED | OTHERS


# The definition ----------------------------------------------------------------------------------------------------


def journey(angles: Tensor, layout: str, dim: int) -> Tensor:
    """diag(R(φ_1), …, R(φ_P), 1, …) for angles (…, planes), as matrices (…, dim, dim)."""
    planes = angles.shape[-1]
    out = torch.eye(dim, dtype=torch.float64).expand(*angles.shape[:-1], dim, dim).clone()
    for plane in range(planes):
        a, b = (plane, plane + planes) if layout == "half" else (2 * plane, 2 * plane + 1)
        cos, sin = angles[..., plane].cos(), angles[..., plane].sin()
        out[..., a, a], out[..., a, b], out[..., b, a], out[..., b, b] = cos, -sin, sin, cos
    return out


@contextmanager
def by_definition(model: Any, family: Family, strength: float, positions: Tensor | None = None) -> Any:
    """Within it, attention in an untouched model is the value path, pair by pair."""
    name, was = "value_path_by_definition", model.config._attn_implementation
    numbers = {module: n for n, module in enumerate(attentions(model))}
    at = family.positions() if positions is None else positions

    def attend(module, query, key, value, attention_mask, scaling=None, **_):  # type: ignore[no-untyped-def]
        if module in numbers:
            theta = family.angles(numbers[module], at)
            pairs = journey(
                strength * (theta[:, None] - theta[:, :, None]), family.layout, value.shape[-1]
            )  # b i j d e
        else:  # it looks at something else than the text
            pairs = journey(torch.zeros(1, query.shape[2], key.shape[2], 0), family.layout, value.shape[-1])
        repeats = query.shape[1] // key.shape[1]
        q, k, v = query.double(), *(x.double().repeat_interleave(repeats, 1) for x in (key, value))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores + attention_mask.double()
        if getattr(module, "sinks", None) is not None:
            sink = module.sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out = torch.einsum("bhij,bijde,bhje->bihd", weights, pairs.expand(len(q), *pairs.shape[1:]), v)
        return out.to(query.dtype), None

    ALL_ATTENTION_FUNCTIONS[name] = attend
    AttentionMaskInterface.register(name, eager_mask)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(was)
        del ALL_ATTENTION_FUNCTIONS[name], AttentionMaskInterface._global_mapping[name]


def attentions(model: Any) -> list[Any]:
    """By name, since these are known families."""
    return [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in ("self_attn", "attention", "attn")]


def answer(model: Any, inputs: dict[str, Tensor], **kwargs: Any) -> Tensor:
    out = model(**inputs, **kwargs)
    return out.logits if "logits" in out else out.last_hidden_state


def trace(model: Any) -> dict[str, Any]:
    """Everything about the parts of a model that is not a number: what must come back as it was."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
             "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks",
             "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")  # fmt: skip
    return {
        name: (
            type(module), sorted(module.__dict__), module.training,
            {hook: list(module.__dict__[hook].items()) for hook in hooks},
            sorted(module._buffers), sorted(module._non_persistent_buffers_set), sorted(module._modules),
            {key: (id(p), p.requires_grad) for key, p in module._parameters.items() if p is not None},
        )
        for name, module in model.named_modules()
    } | {"": (type(model), sorted(model.__dict__), list(model.state_dict()), model.config.to_dict())}  # fmt: skip
