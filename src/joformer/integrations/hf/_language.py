"""JoFormerForCausalLM: our language model in transformers, with its caches, masks, generation and Trainer.

JoFormerModel is the same without its head, for servers (vLLM, SGLang).

    cumulative frames     θ_t = base·t + Σ_{s<t} φ(x_s)      the sum so far is kept in the cache, beside keys and values

For transformers that sum is the state of a causal convolution of width 1: it reorders, crops and resets it like keys
and values. Paper: "JoFormer Wikipedia Language Modeling".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from joformer.attention import JourneyAttention
from joformer.frames import Frames
from joformer.integrations.hf._config import JoFormerConfig
from joformer.integrations.hf._modeling import JoFormerPreTrainedModel
from joformer.models import JoFormerLM
from joformer.models._blocks import LayerFrames
from joformer.positions import NOWHERE

FULL, WINDOW, REAL = "full_attention", "sliding_attention", "real_tokens"


class _Language(JoFormerPreTrainedModel):
    """Tokens → hidden states."""

    config_class = JoFormerConfig
    model_class = JoFormerLM
    causal = True
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012 (theirs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (batch, tokens, hidden_size) after the last norm.

        The arguments are those of `JoFormerForCausalLM`.

        >>> model = JoFormerModel(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> len(model(torch.randint(50, (3, 7)), output_hidden_states=True).hidden_states)
        3
        """
        requested = self._requested(output_attentions, output_hidden_states)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, not both")
        cache = self._cache(past_key_values, use_cache)
        x = self.body.embed(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            seen = 0 if cache is None else cache.get_seq_length()
            position_ids = (torch.arange(x.shape[1], device=x.device) + seen).unsqueeze(0)
        self._require_own_angle(position_ids, cache, kwargs)
        masks = (
            attention_mask
            if isinstance(attention_mask, dict)
            else self.create_masks_for_generate(self.config, x, attention_mask, cache, position_ids)
        )
        where = position_ids.unsqueeze(-1)
        frames = _CachedFrames(self.body.frames, where, x, real=masks.get(REAL), cache=cache)

        def options(attention: JourneyAttention) -> dict[str, Any]:
            if attention.window is None:
                return {**kwargs, "cache": cache, "mask": masks[FULL]}
            return {**kwargs, "cache": cache, "mask": masks[WINDOW], "sliding_window": attention.window}

        states, weights = self._run_blocks(frames, x, options)
        states[-1] = self.body.norm(states[-1])
        return BaseModelOutputWithPast(
            last_hidden_state=states[-1], past_key_values=cache, **requested(states, weights)
        )

    @staticmethod
    def create_masks_for_generate(
        config: JoFormerConfig,
        inputs_embeds: Tensor,
        attention_mask: Any,
        past_key_values: Cache | None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """One mask per kind of layer, and which of the new tokens are not padding.

        >>> config = JoFormerConfig(layers=2, pattern="WF", window=4, attn_implementation="eager")
        >>> masks = JoFormerForCausalLM.create_masks_for_generate(config, torch.zeros(1, 9, 256), None, None)
        >>> [(masks[kind] == 0).sum().item() for kind in (FULL, WINDOW)]
        [45, 30]
        """
        given = {
            "config": config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask,
            "past_key_values": past_key_values, "position_ids": position_ids,
        }  # fmt: skip
        kinds, masks = config.layer_types or [], {}
        windowed = ["sliding" in kind for kind in kinds]
        # With the layer whose length counts: transformers 5.23 takes a static hybrid layer for one without attention.
        if False in windowed:
            masks[FULL] = create_causal_mask(**given, layer_idx=windowed.index(False))
        if True in windowed:
            masks[WINDOW] = create_sliding_window_causal_mask(**given, layer_idx=windowed.index(True))
        new, padded = inputs_embeds.shape[1], isinstance(attention_mask, Tensor) and attention_mask.dim() == 2
        if {"hybrid", "hybrid_sliding"} & set(kinds) and padded and new > 1:  # a single new token is never padding
            masks[REAL] = attention_mask[:, -new:].to(torch.bool)
        return masks

    def _require_own_angle(self, positions: Tensor, cache: Cache | None, options: dict[str, Any]) -> None:
        """Raise where attention keeps the keys of requests and nothing keeps the angle that each has reached.

        Servers put the tokens of many requests into one row, and continue them in another call: the sums of cumulative
        frames would then continue from one request into the next.
        """
        if cache is not None or not any(module.stateful for module in self.body.frames):
            return
        name = self.config._attn_implementation
        served = "attention_instances" in options  # of vLLM and SGLang
        if not served and name not in ("eager", "sdpa", "flex_attention") and "flash" not in name:
            first = torch.arange(positions.shape[-1], device=positions.device)
            served = not torch.compiler.is_compiling() and bool((positions != first).any())
        if served:
            raise ValueError(
                f"cumulative frames need the angle that each request has reached, which {name} attention does not "
                "keep: serve a model with other frames, or generate with transformers"
            )

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        if self.gradient_checkpointing and self.training and (given is not None or use_cache):
            raise ValueError(
                "gradient checkpointing would fill the cache twice: set use_cache=False, or call model.eval()"
            )
        if given is not None and not isinstance(given, Cache):
            raise ValueError(f"past_key_values must be a Cache of transformers, got {type(given).__name__}")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        return DynamicCache(config=self.config) if use_cache and given is None else given


class _CachedFrames(LayerFrames):
    """The frames of each layer; transformers' cache keeps the angle that cumulative ones have reached."""

    def __init__(
        self, modules: nn.ModuleList, positions: Tensor, x: Tensor, *, real: Tensor | None, cache: Cache | None
    ) -> None:
        super().__init__(modules, positions, x)
        self.cache, self.training = cache, modules.training
        self.counted = positions  # without padding, which must not be accumulated
        if real is not None:
            self.counted = torch.where(real.unsqueeze(-1), positions.to(torch.float64), NOWHERE)

    def by_content(self, layer: int, x: Tensor) -> Frames:
        """The frames of a layer whose module reads the tokens."""
        module, cache = self.modules[layer], self.cache
        if not module.stateful:
            return super().by_content(layer, x)
        if cache is None:
            return module(self.counted, x)
        held: Any = cache.layers[layer] if layer < len(cache.layers) else None
        if not hasattr(held, "update_conv_state"):
            raise ValueError(
                f"cumulative frames need a cache that keeps their angle, which {type(cache).__name__} here does not: "
                f"make it from the configuration, e.g. DynamicCache(config=model.config)"
            )
        # From the layer itself: the cache's own methods for these came after transformers 5.16.
        state = held.conv_states[0] if held.has_previous_state[0] else None
        if state is not None:
            if self.training and torch.is_grad_enabled():
                raise ValueError(
                    "transformers' caches do not carry the gradients of cumulative angles: train on whole sequences "
                    "with use_cache=False, or call this under torch.no_grad()"
                )
            state = state[..., -1:].mT.unflatten(-1, (module.heads, module.planes))
        frames = module(self.counted, x, state=state, every=held.record_past)
        cache.update_conv_state(frames.end.detach().flatten(2).mT, layer, conv_kernel_size=1)
        return frames


class JoFormerModel(_Language):
    """`JoFormerLM` without its head, as a transformers model: the `AutoModel` of a `JoFormerConfig`.

    It holds our model's parts directly, so that a folder of `JoFormerForCausalLM` can be loaded as this and vice versa.

    Example:
        >>> model = JoFormerModel(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)).eval()
        >>> model(torch.randint(50, (3, 7))).last_hidden_state.shape
        torch.Size([3, 7, 32])
    """

    _keys_to_ignore_on_load_unexpected = [r"(^|\.)head\.weight$"]  # noqa: RUF012 (theirs)

    def _hold(self, ours: Any) -> None:
        self.embed, self.frames, self.blocks, self.norm = ours.embed, ours.frames, ours.blocks, ours.norm

    @property
    def body(self) -> Any:
        """The module that holds blocks and frames."""
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding of the tokens.

        >>> JoFormerModel(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)).get_input_embeddings()
        Embedding(50, 32)
        """
        return self.embed

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the embedding of the tokens.

        >>> model = JoFormerModel(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model.set_input_embeddings(nn.Embedding(60, 32))
        >>> model.get_input_embeddings()
        Embedding(60, 32)
        """
        self.embed = value

    def to_joformer(self) -> Any:
        """Raises ValueError: our own model has a head."""
        raise ValueError("JoFormerModel has no head: load the folder as JoFormerForCausalLM")


class JoFormerForCausalLM(_Language, GenerationMixin):
    """`JoFormerLM` as a transformers model; `self.model` holds it, so weight names begin with `model.`.

    Example:
        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)).eval()
        >>> tokens = torch.randint(50, (3, 7))
        >>> model(tokens).logits.shape, model.generate(tokens, max_new_tokens=5, do_sample=False).shape
        (torch.Size([3, 7, 50]), torch.Size([3, 12]))
        >>> ours = model.to_joformer()
        >>> torch.equal(ours(tokens), JoFormerForCausalLM.from_joformer(ours)(tokens).logits)
        True
    """

    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}  # noqa: RUF012 (theirs)

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the embedding of the tokens.

        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model.set_input_embeddings(nn.Embedding(60, 32))
        >>> model.get_input_embeddings(), model.model.config.vocab
        (Embedding(60, 32), 60)
        """
        self.model.embed = value
        self.model.config = replace(self.model.config, vocab=value.num_embeddings)

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that returns the logits.

        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model.get_output_embeddings()
        Linear(in_features=32, out_features=50, bias=False)
        """
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replaces the layer that returns the logits, as `resize_token_embeddings` does.

        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model.resize_token_embeddings(60, mean_resizing=False)
        Embedding(60, 32)
        >>> model.get_output_embeddings().out_features, model.config.vocab_size
        (60, 60)
        """
        self.model.head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (batch, tokens, vocab), and the loss if `labels` are given.

        Args:
            input_ids: ``(batch, tokens)``.
            attention_mask: ``(batch, all tokens)``, 0 for padding, or masks from `create_masks_for_generate`.
            position_ids: ``(batch or 1, tokens)``, by default after those in the cache. Padding to the left needs them;
                `generate` passes them.
            past_key_values: A cache of transformers, which the call extends.
            inputs_embeds: ``(batch, tokens, dim)`` in place of `input_ids`.
            labels: ``(batch, tokens)``.
            use_cache: Make a cache where none is given; by default as configured, except in training.
            logits_to_keep: How many of the last tokens get logits, 0 for all, or which.
            output_attentions: Return the weights of attention too; by default as configured.
            output_hidden_states: Return what each block reads too, and the output of the last; likewise.
            kwargs: For transformers' attention and loss.

        Raises:
            ValueError: If the arguments do not fit together, or the cache does not fit the frames.

        Example:
            >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
            >>> tokens = torch.randint(50, (3, 7))
            >>> model(tokens, labels=tokens).loss.shape, model(tokens, logits_to_keep=1).logits.shape
            (torch.Size([]), torch.Size([3, 1, 50]))
        """
        out = super().forward(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_attentions,
            output_hidden_states, return_dict=True, **kwargs,
        )  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = self.model.head(out.last_hidden_state[:, kept]), None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        optional = {"hidden_states": out.hidden_states, "attentions": out.attentions}
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=out.past_key_values, **optional)
