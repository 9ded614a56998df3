"""JoFormerForImageClassification: our vision transformer in transformers, arrays with any number of axes included."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils import can_return_tuple

from joformer.integrations.hf._config import JoFormerViTConfig
from joformer.integrations.hf._modeling import JoFormerPreTrainedModel
from joformer.models import JoFormerViT


class JoFormerForImageClassification(JoFormerPreTrainedModel):
    """`JoFormerViT` as a model of transformers; `self.model` is one, its state's names come after `model.`.

    >>> config = JoFormerViTConfig(shape=(8, 8), patch=(4, 4), channels=1, dim=32, layers=2, heads=2, num_labels=10)
    >>> model, x = JoFormerForImageClassification(config).eval(), torch.rand(3, 1, 8, 8)
    >>> model(x).logits.shape, model(torch.rand(3, 1, 12, 20)).logits.shape
    (torch.Size([3, 10]), torch.Size([3, 10]))
    >>> ours = model.to_joformer()
    >>> torch.equal(ours(x), JoFormerForImageClassification.from_joformer(ours)(x).logits)
    True
    """

    config_class = JoFormerViTConfig
    model_class = JoFormerViT
    causal = False
    main_input_name = "pixel_values"
    input_modalities = ("image",)

    def get_input_embeddings(self) -> torch.nn.Linear:
        """The layer that reads the patches.

        >>> config = JoFormerViTConfig(shape=(8, 8), patch=(4, 4), dim=32, layers=2, heads=2)
        >>> JoFormerForImageClassification(config).get_input_embeddings()
        Linear(in_features=48, out_features=32, bias=True)
        """
        return self.model.embed

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        """Pixels (batch, channels, *shape) → logits (batch, num_labels), with `labels` (batch,) the loss.

        Other shapes than the configured one are welcome as long as they divide into patches: frames follow the grid.

        >>> config = JoFormerViTConfig(shape=(8, 8), patch=(4, 4), channels=1, dim=32, layers=2, heads=2, num_labels=10)
        >>> JoFormerForImageClassification(config)(torch.rand(3, 1, 8, 8), labels=torch.tensor([1, 2, 3])).loss.shape
        torch.Size([])
        """
        if pixel_values is None:
            raise ValueError("give pixel_values (batch, channels, *shape)")
        output_attentions, output_hidden_states = self._outputs_asked(output_attentions, output_hidden_states)
        kwargs.pop("interpolate_pos_encoding", None)  # frames need no interpolation
        tokens, frames = self.model.start(pixel_values.to(self.model.embed.weight.dtype))
        states, weights = self._run_blocks(
            self.model.blocks, frames, tokens, lambda layer, attention, its: self._inner(attention, its, **kwargs)
        )
        tokens = states[-1] = self.model.norm(states[-1])
        logits = self.model.head(self.model.pooled(tokens))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=tuple(states) if output_hidden_states else None,
            attentions=tuple(weights) if output_attentions else None,
        )
