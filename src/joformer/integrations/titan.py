"""torchtitan: journey attention in its language models, loaded by path, without a fork.

    torchrun --nproc_per_node 8 -m torchtitan.train --module joformer.integrations.titan --config llama3_8b

    q, k, v = W x  →  A_j k_j, A_i q_i, A_j v_j  →  torchtitan's own attention  →  A_i⁻¹ per head  →  W_o

Only the attention of the model is replaced, by torchtitan's mechanism for that (`override.imports`): its trainer,
parallelism, checkpoints, conversion to Hugging Face and weights stay as they are. So any model whose attention is its
`GQAttention` (Llama 3, Qwen3) can have it, with any of its configurations:

    … -m torchtitan.train --module qwen3 --config qwen3_0_6b \\
        --override.imports 'joformer.integrations.titan.journey_attention={"transport": "values"}'

torchtitan itself comes with no extra of ours: it needs Python 3.11, and torch and its other needs at its versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.distributed.tensor import DTensor
from torchtitan.config.override import derive, override
from torchtitan.models.common.attention import GQAttention
from torchtitan.models.common.rope import ComplexRoPE, RoPE
from torchtitan.models.llama3 import config_registry as llama3
from torchtitan.protocols.module import Module
from torchtitan.trainer import Trainer

from joformer.attention._functional import attend
from joformer.attention._options import Options, Transport, sides
from joformer.frames import FixedFrames, FlatFrames
from joformer.frequencies import Llama3, Scaling, YaRN
from joformer.positions import sequence
from joformer.rotation import rotate

__all__ = ["JourneyAttention", "PackedAttention", "RotaryFrames", "journey_attention"]


class RotaryFrames(FixedFrames, Module):
    """``θ_tp = ω_p t`` with the frequencies of torchtitan's RoPE, made in each forward pass: no table is kept.

    Angles are float64 up to their sine, where torchtitan's are float32: beyond some thousand tokens these differ.

    Args:
        config: torchtitan's, with its base and scaling.

    Raises:
        ValueError: For a scaling that torchtitan has and we do not.

    Example:
        >>> frames = RotaryFrames(ComplexRoPE.Config(dim=8, max_seq_len=16, theta=500000.0, scaling="llama"))
        >>> frames(sequence(5))
        FlatFrames(batch=1, tokens=5, heads=1, planes=4, layout='interleaved')
    """

    def __init__(self, config: RoPE.Config) -> None:
        layout: Literal["interleaved", "half"] = "interleaved" if isinstance(config, ComplexRoPE.Config) else "half"
        super().__init__(config.dim, base=config.theta, scaling=_scaling(config), layout=layout)


def _scaling(config: RoPE.Config) -> Scaling | None:
    if config.scaling == "llama":
        fast, slow = config.high_freq_factor, config.low_freq_factor
        return Llama3(config.scaling_factor, config.original_max_position_embeddings, fast=fast, slow=slow)
    if config.scaling == "yarn" and config.rope_factor > 1:
        if not config.truncate:
            raise ValueError("YaRN with truncate=False has cutoffs between planes, ours between whole planes only")
        return YaRN(config.rope_factor, config.original_seq_len, fast=config.beta_fast, slow=config.beta_slow)
    return None


class PackedAttention(Module):
    """Causal attention within each packed document by SDPA: where FlexAttention has no backward, as on a processor.

    Its mask is tokens × tokens; on a GPU keep torchtitan's own.

    Example:
        >>> import torch
        >>> q, k, v = torch.rand(3, 2, 5, 4, 8).unbind()
        >>> two_documents = torch.tensor([[0, 1, 2, 0, 1]]).expand(2, 5)
        >>> PackedAttention.Config().build()(q, k, v, positions=two_documents).shape
        torch.Size([2, 5, 4, 8])
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        """There is nothing to choose."""

    def __init__(self, config: Config) -> None:
        super().__init__()

    # torchtitan shards these three by their names.
    def forward(
        self,
        q_BLNH: Float[Tensor, "batch tokens heads head_dim"],
        k_BLNH: Float[Tensor, "batch tokens kv_heads head_dim"],
        v_BLNH: Float[Tensor, "batch tokens kv_heads head_dim"],
        *,
        positions: Int[Tensor, "_batch tokens"] | None = None,
        scale: float | None = None,
        **unused: Any,
    ) -> Float[Tensor, "batch tokens heads head_dim"]:
        """``Σ_j α_ij v_j`` over the tokens j ≤ i of the same document; a document begins where positions are 0."""
        if q_BLNH.shape[1] != k_BLNH.shape[1]:
            raise ValueError("attention='sdpa' has no context parallelism: omit it, torchtitan's own attention has it")
        segments = None if positions is None else (positions == 0).cumsum(-1)
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        return attend(q_BLNH, k_BLNH, v_BLNH, Options(True, None, segments, None, scale, 0.0, "softmax", None), "sdpa")


class JourneyAttention(GQAttention):
    """torchtitan's grouped-query attention with journeys: ``c_i = W_o A_i⁻¹ Σ_j α_ij A_j v_j``.

    Its weights are torchtitan's. Values rotate in the planes that Hugging Face's Llama has (entries i and i + d/2),
    so that torchtitan's conversion to it and `joformer.integrations.transport_values` there give the same model.

    Args:
        config: torchtitan's, and `transport`: "scores" rotates q and k (RoPE), "values" v and the result, "both" all,
            "none" nothing.

    Example:
        >>> import torch
        >>> from torchtitan.models.llama3 import llama3_configs
        >>> plain = llama3_configs["debugmodel"](attn_backend="flex").layers[0].attention
        >>> attention = journey_attention(plain, attention="sdpa").build()
        >>> attention(torch.rand(2, 5, 256), None).shape
        torch.Size([2, 5, 256])
    """

    @dataclass(kw_only=True, slots=True)
    class Config(GQAttention.Config):
        """torchtitan's, and what is transported."""

        transport: Transport = "both"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.transport = config.transport
        self.rope = RotaryFrames(config.rope)

    def forward(
        self,
        x_BLD: Float[Tensor, "batch tokens dim"],
        attention_masks: Any,
        positions: Int[Tensor, "_batch tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """The new tokens; positions are counted from each document's beginning, from the first token by default."""
        q, k, v = self.qkv_linear(x_BLD)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        scores, values = sides(self.transport)
        frames = self.rope(sequence(q.shape[1], device=q.device) if positions is None else positions.unsqueeze(-1))
        of_values = frames if frames.layout == "half" else FlatFrames.of(frames.angles, layout="half")
        if scores:
            q, k = _rotate(q, frames), _rotate(k, frames)
        if values:
            v = _rotate(v, of_values)
        out = self.inner_attention(
            q, k, v,
            attention_masks=attention_masks, positions=positions, scale=self.scaling, enable_gqa=self.enable_gqa,
        )  # fmt: skip
        if values:
            out = _rotate(out, of_values, inverse=True)
        return self.wo(out.flatten(2))

    def extra_repr(self) -> str:
        """What is transported."""
        return f"transport={self.transport!r}"


def _rotate(x: Tensor, frames: FlatFrames, inverse: bool = False) -> Tensor:
    """Each process rotates the heads it has; which these are stays as it is."""
    if not isinstance(x, DTensor):
        return rotate(x, frames, inverse)
    own = rotate(x.to_local(), frames, inverse)
    return DTensor.from_local(own, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride())


@override(target=GQAttention.Config, exact=True, description="journeys on scores and values")
def journey_attention(
    config: GQAttention.Config, *, transport: Transport = "both", attention: Literal["sdpa"] | None = None
) -> JourneyAttention.Config:
    """torchtitan's attention → ours, for its `override.imports`, where the arguments are given as JSON.

    Args:
        config: torchtitan's.
        transport: "scores" (RoPE), "values", "both" or "none".
        attention: "sdpa" for `PackedAttention` in place of what the model has (FlexAttention).

    Returns:
        The configuration of `JourneyAttention`, with everything that `config` says.

    Raises:
        ValueError: If an argument is not one of these.

    Example:
        >>> from torchtitan.models.llama3 import llama3_configs
        >>> plain = llama3_configs["debugmodel"](attn_backend="flex").layers[0].attention
        >>> journey_attention(plain, transport="values").transport
        'values'
    """
    sides(transport)
    if attention not in (None, "sdpa"):
        raise ValueError(f"attention must be 'sdpa', or omitted for the model's own, got {attention!r}")
    inner = config.inner_attention
    if attention == "sdpa":
        inner = PackedAttention.Config(sharding_config=inner.sharding_config)
    return derive(config, JourneyAttention.Config, transport=transport, inner_attention=inner)


def _transported(config: Trainer.Config) -> Trainer.Config:
    config.override.imports.append(f"{__name__}.{journey_attention.__name__}")
    return config


# What --config names: torchtitan's own, with journey attention.


def llama3_debugmodel() -> Trainer.Config:
    """Six layers of width 256, for trying."""
    return _transported(llama3.llama3_debugmodel())


def llama3_8b() -> Trainer.Config:
    """Llama 3, 8B."""
    return _transported(llama3.llama3_8b())


def llama3_70b() -> Trainer.Config:
    """Llama 3, 70B."""
    return _transported(llama3.llama3_70b())
