"""MonoidalClassifier: a whole grid as one vector, followed by a small MLP.

    logits = W₂ ReLU(W₁ E + b₁) + b₂,        E = Σ_n A_n (x_n e), or the cells themselves (the paper's MLP baseline)

Paper: "MNIST Monoidal Embedding".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from joformer.models._blocks import require_counts
from joformer.monoidal import MonoidalEmbedding

Reading = Literal["learned", "dft", "diagonal", "pixels"]


@dataclass(frozen=True)
class ClassifierConfig:
    """Configuration of a `MonoidalClassifier`; the defaults are those of the paper for MNIST at d = 32.

    Attributes:
        dim: Length of the vector that represents a grid.
        shape: Shape of the grid.
        classes: Number of classes.
        hidden: Width of the hidden layer.
        frequencies: How a grid becomes a vector: the frequencies of `MonoidalEmbedding`, or "pixels" for the cells
            themselves (the paper's baseline).
        spread: Half-width of the initial distribution of learned frequencies; see `MonoidalEmbedding`.

    Example:
        >>> ClassifierConfig(dim=8).hidden
        128
    """

    dim: int = 32
    shape: tuple[int, ...] = (28, 28)
    classes: int = 10
    hidden: int = 128
    frequencies: Reading = "learned"
    spread: float | None = None

    def __post_init__(self) -> None:
        require_counts(self, "dim", "shape", "classes", "hidden")
        if self.frequencies == "pixels" and self.dim != prod(self.shape):
            raise ValueError(f"dim={self.dim} with pixels: a grid {self.shape} has {prod(self.shape)} of them")

    def build(self) -> MonoidalClassifier:
        """Builds a model with this configuration and random weights."""
        return MonoidalClassifier(self)


class MonoidalClassifier(nn.Module):
    """logits = W₂ ReLU(W₁ E + b₁) + b₂ of the embedding E of a grid.

    Args:
        config: The model's configuration.

    Example:
        >>> import torch
        >>> MonoidalClassifier(ClassifierConfig(dim=8))(torch.rand(3, 28, 28)).shape
        torch.Size([3, 10])
    """

    config_class = ClassifierConfig

    def __init__(self, config: ClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embed: nn.Module = nn.Flatten()
        if config.frequencies != "pixels":
            kind, spread = config.frequencies, config.spread
            self.embed = MonoidalEmbedding(config.dim, config.shape, frequencies=kind, spread=spread)
        dim, hidden = config.dim, config.hidden
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, config.classes))

    def forward(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch classes"]:
        """Logits of the classes.

        Args:
            x: Real cells, ``(batch, *shape)``.

        Returns:
            Logits ``(batch, classes)``.
        """
        return self.mlp(self.embed(x))
