"""Transforms as compositions: DFT, DCT, DST, Hadamard and Walsh, fast at regular frequencies or learnable.

    y_k = c_k · part Σ_n w_n e^{iθ_k(n+s)} x_n        one axis: R = diag(R(θ_k)), composed over n

Paper: "Unifying View" and the sections after it, with numpy's sign and scipy's normalisation. `composed` composes
element by element with `joformer.algebra`; `dft`, `dct`, `dst`, `hadamard` compute the same with the FFT or a few small
matrix products; `LearnableTransform` starts there and trains the angles θ.

>>> import torch
>>> x = torch.arange(6.0)
>>> torch.allclose(dct(x), composed(x, "dct2"), atol=1e-5)
True
>>> torch.allclose(LearnableTransform("dct2", 6)(x), dct(x), atol=1e-5)
True
"""

from joformer.spectral._composed import composed
from joformer.spectral._fourier import dft, idft
from joformer.spectral._learnable import LearnableTransform
from joformer.spectral._spectrum import Spectrum, spectrum
from joformer.spectral._trigonometric import dct, dst, idct, idst
from joformer.spectral._walsh import hadamard, sequency_rows

__all__ = [
    "LearnableTransform",
    "Spectrum",
    "composed",
    "dct",
    "dft",
    "dst",
    "hadamard",
    "idct",
    "idft",
    "idst",
    "sequency_rows",
    "spectrum",
]
