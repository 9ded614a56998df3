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
    """`JoFormerViT` as a transformers model; `self.model` holds it, so weight names begin with `model.`.

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
        """Logits (batch, num_labels), and the loss if `labels` are given.

        Args:
            pixel_values: ``(batch, channels, *shape)``; other shapes than the configured one are allowed if they
                divide into patches: frames follow the grid.
            labels: ``(batch,)``.
            output_attentions: Return the weights of attention too; by default as configured.
            output_hidden_states: Return what each block reads too, and the output of the last; likewise.
            kwargs: For transformers' attention and loss.

        Example:
            >>> config = JoFormerViTConfig(
            ...     shape=(8, 8), patch=(4, 4), channels=1, dim=32, layers=2, heads=2, num_labels=10
            ... )
            >>> model, labels = JoFormerForImageClassification(config), torch.tensor([1, 2, 3])
            >>> model(torch.rand(3, 1, 8, 8), labels=labels).loss.shape
            torch.Size([])
        """
        if pixel_values is None:
            raise ValueError("give pixel_values (batch, channels, *shape)")
        requested = self._requested(output_attentions, output_hidden_states)
        kwargs.pop("interpolate_pos_encoding", None)  # frames need no interpolation
        tokens, frames = self.model.start(pixel_values.to(self.model.embed.weight.dtype))
        states, weights = self._run_blocks(frames, tokens, lambda attention: kwargs)
        states[-1] = self.model.norm(states[-1])
        logits = self.model.head(self.model.pooled(states[-1]))
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return ImageClassifierOutput(loss=loss, logits=logits, **requested(states, weights))
