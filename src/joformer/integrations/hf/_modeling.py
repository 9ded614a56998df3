"""What our models in transformers have in common: they are our own modules, run through its attention.

    q, k, v = W x  →  rotated  →  transformers' cache  →  transformers' attention  →  A_i⁻¹ per head  →  W_o

Keys and values enter the cache rotated, so that any cache and any attention works: neither needs the frames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from joformer.attention._module import Inner, JourneyAttention
from joformer.integrations.hf._card import write_card
from joformer.models import load
from joformer.models._blocks import LayerFrames, run_blocks


class JoFormerPreTrainedModel(PreTrainedModel):
    """`self.model` is one of our models; its attention and its cache are those of transformers."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 (theirs)
    _keep_in_fp32_modules_strict = ["frames"]  # noqa: RUF012 (theirs)
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _input_embed_layer = "embed"

    model: Any
    model_class: type[nn.Module]
    causal: bool

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._hold(self.model_class(config.to_joformer()))
        # Attributes that transformers' attention functions read from the module.
        for number, block in enumerate(self.body.blocks):
            block.attention.layer_idx, block.attention.is_causal = number, self.causal
            block.attention.num_key_value_groups = 1
        self.gradient_checkpointing, self._checkpointed_every = False, 1
        self.post_init()

    def _hold(self, ours: nn.Module) -> None:
        self.model = ours

    @property
    def body(self) -> Any:
        """The module that holds blocks and frames."""
        return self.model

    @classmethod
    def from_joformer(cls, source: nn.Module | str | os.PathLike[str], **changes: Any) -> Any:
        """One of our models as this class: the same weights, copied, and the same function.

        Args:
            source: The model, or its folder. The last measurement on held-out data in the folder of a finished run
                becomes `config.results`.
            changes: Other fields of the configuration, such as `eos_token_id`.

        Raises:
            ValueError: If it is another model than this class is for.

        Example:
            >>> from joformer.integrations.hf._language import JoFormerForCausalLM
            >>> from joformer.models import JoFormerLM, LMConfig
            >>> ours, tokens = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2)), torch.randint(50, (3, 7))
            >>> torch.equal(JoFormerForCausalLM.from_joformer(ours, eos_token_id=0)(tokens).logits, ours(tokens))
            True
        """
        model: Any = source if isinstance(source, nn.Module) else load(source)
        if not isinstance(model, cls.model_class):
            raise ValueError(f"{cls.__name__} is built from a {cls.model_class.__name__}, got {type(model).__name__}")
        if not isinstance(source, nn.Module) and "results" not in changes:
            changes["results"] = _measured(Path(source))
        new = cls(cls.config_class.from_joformer(model.config, **changes))
        place = next(model.parameters())
        new.to(device=place.device, dtype=place.dtype)
        weights = model.state_dict()
        new.body.load_state_dict({name: weights[name] for name in new.body.state_dict()})
        return new.train(model.training)

    def to_joformer(self) -> Any:
        """The same weights, copied, in one of our own models.

        >>> from joformer.integrations.hf._config import JoFormerConfig
        >>> from joformer.integrations.hf._language import JoFormerForCausalLM
        >>> type(JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)).to_joformer()).__name__
        'JoFormerLM'
        """
        new: Any = self.model_class(self.config.to_joformer()).to(device=self.device, dtype=self.dtype)
        new.load_state_dict(self.model.state_dict())
        return new.train(self.training)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """As in transformers, with a model card (README.md) where there is none.

        >>> from tempfile import TemporaryDirectory
        >>> from joformer.integrations.hf._config import JoFormerConfig
        >>> from joformer.integrations.hf._language import JoFormerForCausalLM
        >>> with TemporaryDirectory() as folder:
        ...     JoFormerForCausalLM(JoFormerConfig(vocab=50, dim=32, layers=2, heads=2)).save_pretrained(folder)
        ...     sorted(os.listdir(folder))
        ['README.md', 'config.json', 'generation_config.json', 'model.safetensors']
        """
        if is_main_process and not os.path.isfile(save_directory):
            write_card(self, save_directory)  # first, so that it is pushed too
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: Any) -> None:
        """As our own models start; transformers guards `torch.nn.init`, so that what was loaded stays."""
        own = list(module.parameters(recurse=False))
        if own and all(getattr(p, "_is_hf_initialized", False) for p in own):
            return  # not every reset_parameters goes through torch.nn.init
        if isinstance(module, nn.Embedding):  # also the one that `resize_token_embeddings` makes
            nn.init.normal_(module.weight, std=0.02)
        elif hasattr(module, "reset_parameters") and not getattr(module, "content", False):
            module.reset_parameters()  # not of frames by content: their parts were reset before, with other draws

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # Else modules without weights of their own would be skipped, and some reset their parts in a special way.
        super()._initialize_weights(module, is_custom_code=False)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func)
        self._checkpointed_every = every_n_layers

    def _run_blocks(
        self, frames: LayerFrames, x: Tensor, options: Callable[[JourneyAttention], dict[str, Any]]
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The input of the first block and the outputs of all, and the weights of each attention where there are any.

        `options` returns the arguments of transformers' attention for one of ours.
        """
        weights: list[Tensor | None] = []

        def call(layer: int, block: Any, x: Tensor) -> Tensor:
            def run(x: Tensor) -> tuple[Tensor, Tensor | None]:
                own: list[Tensor | None] = []
                inner = self._inner(block.attention, own, **options(block.attention))
                return block(x, frames(layer, x), inner=inner), own[-1]

            again = self.gradient_checkpointing and self.training and layer % self._checkpointed_every == 0
            x, own = self._gradient_checkpointing_func(run, x) if again else run(x)
            weights.append(own)
            return x

        return [x, *run_blocks(self.body.blocks, frames, x, call=call)], weights

    def _inner(
        self,
        attention: JourneyAttention,
        weights: list[Tensor | None],
        *,
        mask: Any = None,
        cache: Cache | None = None,
        **options: Any,
    ) -> Inner:
        """Transformers' cache and attention for one of our layers; appends its weights, or None, to the list."""
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = attention.dropout if attention.training else 0.0

        def inner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            if cache is not None:
                k, v = cache.update(k, v, attention.layer_idx)
            out, own = attend(attention, q, k, v, mask, scaling=attention.scale, dropout=dropout, **options)
            weights.append(own)
            batch, heads, tokens, _ = q.shape
            return out.reshape(batch, tokens, heads, -1)  # servers return (tokens, heads · dim)

        return inner

    def _requested(self, attentions: bool | None, hidden_states: bool | None) -> Callable[..., dict[str, Any]]:
        """Picks the optional outputs: called with states and weights after `_run_blocks`; None is as configured."""
        attentions = self.config.output_attentions if attentions is None else attentions
        hidden_states = self.config.output_hidden_states if hidden_states is None else hidden_states
        name = self.config._attn_implementation
        if attentions and name != "eager":
            raise ValueError(f"{name} attention returns no weights: model.set_attn_implementation('eager') does")
        return lambda states, weights: {
            "hidden_states": tuple(states) if hidden_states else None,
            "attentions": tuple(weights) if attentions else None,
        }


def _measured(folder: Path) -> dict[str, dict[str, Any]] | None:
    """The last measurement of a run on held-out data, under the run's name."""
    log = folder / "metrics.jsonl"
    # The last piece is empty, or the unfinished line of a run that was killed.
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").split("\n")[:-1]] if log.is_file() else []
    for metric in ("bits_per_byte", "accuracy", "loss"):
        last = next((line for line in reversed(lines) if metric in line), None)
        if last is not None:
            return {folder.resolve().name: {name: value for name, value in last.items() if name != "step"}}
    return None
