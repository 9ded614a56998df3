"""One vector for a whole grid: embedding, m-representation, alignment, concatenation.

    E = Σ_n A_n v_n,        A_n = R_1^{n_1} ⋯ R_D^{n_D}

Paper: "MNIST Monoidal Embedding", "Shift-Invariance and Order-Awareness", "Multi-Axis Alignment", "Structured
Concatenation". `concatenate` and `split` are those of the algebra; they take the elements that
`MonoidalEmbedding.tile` returns.

>>> import torch
>>> embed = MonoidalEmbedding(64, (28, 28))
>>> image = torch.rand(28, 28, generator=torch.Generator().manual_seed(0))
>>> top, bottom = embed.tile(image[:10]), embed.tile(image[10:], origin=(10, 0))
>>> whole = concatenate([top, bottom], axis=0)
>>> torch.allclose(whole.content, embed(image), atol=1e-3), whole.extent
(True, (28, 28))
>>> torch.allclose(split(whole, axis=0, left=top).content, bottom.content, atol=1e-3)
True
"""

from joformer.algebra import concatenate, split
from joformer.monoidal._alignment import Alignment, align
from joformer.monoidal._embedding import MonoidalEmbedding
from joformer.monoidal._representation import BlindSpots, blind_spots, m_representation

__all__ = [
    "Alignment",
    "BlindSpots",
    "MonoidalEmbedding",
    "align",
    "blind_spots",
    "concatenate",
    "m_representation",
    "split",
]
