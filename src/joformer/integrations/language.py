"""JoFormerForCausalLM: our language model in transformers, with its caches, masks, generation and Trainer.

    cumulative frames     θ_t = base·t + Σ_{s<t} φ(x_s)      the sum so far is kept in the cache, beside keys and values

For transformers that sum is the state of a causal convolution of width 1: it reorders, crops and resets it along with
the rest. Paper: "JoFormer Wikipedia Language Modeling".
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from joformer.frames import CumulativeFrames, Frames
from joformer.integrations.configuration import JoFormerConfig
from joformer.integrations.pretrained import JoFormerPreTrainedModel
from joformer.models import JoFormerLM
from joformer.positions import NOWHERE

FULL, WINDOW, REAL = "full_attention", "sliding_attention", "real_tokens"


class JoFormerForCausalLM(JoFormerPreTrainedModel, GenerationMixin):
    """`JoFormerLM` as a model of transformers; `self.model` is one, its state's names come after `model.`.

    >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)).eval()
    >>> tokens = torch.randint(50, (3, 7))
    >>> model(tokens).logits.shape, model.generate(tokens, max_new_tokens=5, do_sample=False).shape
    (torch.Size([3, 7, 50]), torch.Size([3, 12]))
    >>> ours = model.to_joformer()
    >>> torch.equal(ours(tokens), JoFormerForCausalLM.from_joformer(ours)(tokens).logits)
    True
    """

    config_class = JoFormerConfig
    model_class = JoFormerLM
    causal = True
    _tied_weights_keys = {"model.head.weight": "model.embed.weight"}  # noqa: RUF012 (theirs)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012 (theirs)

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding in place of the model's.

        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model.set_input_embeddings(nn.Embedding(60, 32))
        >>> model.get_input_embeddings(), model.model.config.vocab
        (Embedding(60, 32), 60)
        """
        self.model.embed = value
        self.model.config = replace(self.model.config, vocab=value.num_embeddings)

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that gives the logits.

        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> model.get_output_embeddings()
        Linear(in_features=32, out_features=50, bias=False)
        """
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Put another layer in its place, as `resize_token_embeddings` does.

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
        """Token numbers (batch, tokens), or their embeddings, → logits (batch, tokens, vocab), with `labels` the loss.

        `position_ids` (batch or 1, tokens) say where the tokens are, by default after those in the cache; padding to
        the left needs them, and `generate` gives them. `attention_mask` is (batch, all tokens), 0 for padding.

        >>> model = JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2))
        >>> tokens = torch.randint(50, (3, 7))
        >>> model(tokens, labels=tokens).loss.shape, model(tokens, logits_to_keep=1).logits.shape
        (torch.Size([]), torch.Size([3, 1, 50]))
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        output_attentions, output_hidden_states = self._outputs_asked(output_attentions, output_hidden_states)
        past_key_values = self._cache(past_key_values, use_cache)
        x = self.model.embed(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = (torch.arange(x.shape[1], device=x.device) + seen).unsqueeze(0)
        masks = (
            attention_mask
            if isinstance(attention_mask, dict)
            else self.create_masks_for_generate(self.config, x, attention_mask, past_key_values, position_ids)
        )
        where = position_ids.unsqueeze(-1)
        made: dict[int, Frames] = {}
        for module in self.model.frames:
            if not module.content and not any(True for _ in module.parameters()) and id(module) not in made:
                made[id(module)] = module(where, x)
        states, weights = [x], []
        for layer in range(len(self.model.blocks)):
            run = partial(
                self._layer, layer, where=where, made=made, masks=masks, cache=past_key_values, options=kwargs
            )
            x, its = self._run(layer, run, x)
            states.append(x)
            weights.append(its)
        x = states[-1] = self.model.norm(x)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.model.head(x[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
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
        """A mask for each kind of layer the model has, and which of the new tokens are none of the padding.

        >>> config = JoFormerConfig(layers=2, pattern="WF", window=4, attn_implementation="eager")
        >>> masks = JoFormerForCausalLM.create_masks_for_generate(config, torch.zeros(1, 9, 256), None, None)
        >>> [(masks[kind] == 0).sum().item() for kind in (FULL, WINDOW)]
        [45, 30]
        """
        given = {
            "config": config, "inputs_embeds": inputs_embeds, "attention_mask": attention_mask,
            "past_key_values": past_key_values, "position_ids": position_ids,
        }  # fmt: skip
        kinds, masks = set(config.layer_types or ()), {}
        if kinds & {"full_attention", "hybrid"}:
            masks[FULL] = create_causal_mask(**given)
        if kinds & {"sliding_attention", "hybrid_sliding"}:
            masks[WINDOW] = create_sliding_window_causal_mask(**given)
        new = inputs_embeds.shape[1]
        if (
            kinds & {"hybrid", "hybrid_sliding"}
            and new > 1
            and isinstance(attention_mask, Tensor)
            and attention_mask.dim() == 2
        ):
            masks[REAL] = attention_mask[:, -new:].to(torch.bool)  # a single new token is never padding
        return masks

    def _cache(self, given: Cache | None, use_cache: bool | None) -> Cache | None:
        again = self.gradient_checkpointing and self.training
        if again and (given is not None or use_cache):
            raise ValueError("gradient checkpointing would fill the cache twice: say use_cache=False, or model.eval()")
        if given is not None and not isinstance(given, Cache):
            raise ValueError(f"past_key_values must be a Cache of transformers, got {type(given).__name__}")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        return DynamicCache(config=self.config) if use_cache and given is None else given

    def _layer(
        self,
        layer: int,
        x: Tensor,
        *,
        where: Tensor,
        made: dict[int, Frames],
        masks: dict[str, Any],
        cache: Cache | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        module, block = self.model.frames[layer], self.model.blocks[layer]
        if isinstance(module, CumulativeFrames):
            frames = self._go_on(layer, module, x, where, masks.get(REAL), cache)
        else:
            frames = made[id(module)] if id(module) in made else module(where, x)
        weights: list[Tensor | None] = []
        window = block.attention.window
        if window is not None:
            options = {**options, "sliding_window": window}
        mask = masks[FULL if window is None else WINDOW]
        x = block(x, frames, inner=self._inner(block.attention, weights, mask=mask, cache=cache, **options))
        return x, weights[-1]

    def _go_on(
        self,
        layer: int,
        module: CumulativeFrames,
        x: Tensor,
        where: Tensor,
        real: Tensor | None,
        cache: Cache | None,
    ) -> Frames:
        """Cumulative frames from the angle that the cache holds, which then holds the angle they have reached."""
        if real is not None:
            where = torch.where(real.unsqueeze(-1), where.to(torch.float64), NOWHERE)
        if cache is None:
            return module(where, x)
        held = cache.layers[layer] if layer < len(cache.layers) else None
        if not hasattr(held, "update_conv_state"):
            raise ValueError(
                f"cumulative frames need a cache that keeps their angle, which {type(cache).__name__} here does not: "
                f"make it from the configuration, e.g. DynamicCache(config=model.config)"
            )
        state = cache.get_conv_state(layer)
        if state is not None:
            state = state[..., -1:].mT.unflatten(-1, (module.heads, module.planes))
        frames = module(where, x, state=state, every=cache.is_recording_past(layer))
        cache.update_conv_state(frames.end.detach().flatten(2).mT, layer, conv_kernel_size=1)
        return frames
