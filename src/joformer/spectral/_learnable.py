"""Transforms with trained angles, axis by axis.

    y = x B_1 on axis 1, then B_2 on axis 2, …        B_a (n_a, K_a): B_nk = c_k part w_n e^{iθ_k(n+s)}
    θ = θ(regular) + δ                                 δ trained, 0 at the start

Paper: "Discrete Fourier Transform", "Learnable Generalization". A grid of n_1 × n_2 points costs n_1 n_2 (K_1 + K_2),
never n_1 n_2 K_1 K_2. The parameter is the *offset* from the regular spectrum: it starts exactly at the transform in
any dtype (π/4096 in float32, times 4,095 points, would be off by 1e-4), keeps its relative precision near 0, and weight
decay pulls towards the transform instead of towards zero angles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Inexact
from torch import Tensor, nn

from joformer._precision import KeepsPrecision, exact_device, without_autocast
from joformer.algebra._checks import whole_numbers
from joformer.spectral._checks import given_dtype, power_of_two, real_input, require_norm
from joformer.spectral._spectrum import KINDS, Spectrum, spectrum
from joformer.spectral._walsh import sequency_rows


class LearnableTransform(KeepsPrecision):
    """y = x B_1 on axis 1, then B_2 on axis 2, …: a transform that starts as `kind` and trains its angles.

    There is one parameter per axis, `offsets[a]` (K_a,), and for Hadamard (log₂ n_a, 2): its axes are binary. An angle
    whose basis is at an extremum, the constant one of a DCT, has no gradient there and stays.

    Args:
        kind: "dft", "idft", "dct1" … "dst4", "hadamard" or "walsh" (the former in order of sequency).
        shape: Length of the last axis, or one length for each of the last axes.
        norm: None, "backward", "ortho" or "forward".
        outputs: Number of frequencies to keep per axis, those with the smallest k; all by default.

    Raises:
        ValueError: If the arguments are incompatible.

    Example:
        >>> transform = LearnableTransform("dct2", (8, 6), outputs=(4, 3))
        >>> transform(torch.ones(2, 8, 6)).shape, [tuple(p.shape) for p in transform.parameters()]
        (torch.Size([2, 4, 3]), [(4,), (3,)])
    """

    def __init__(
        self,
        kind: str,
        shape: int | Sequence[int],
        *,
        norm: str | None = None,
        outputs: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        require_norm(norm)
        self.kind, self.norm = kind, norm
        self.shape = _lengths(shape, "shape")
        keep = self.shape if outputs is None else _lengths(outputs, "outputs")
        if kind not in (*KINDS, "walsh"):
            raise ValueError(f"kind {kind!r} is unknown: use one of {', '.join((*KINDS, 'walsh'))}")
        if len(keep) != len(self.shape):
            raise ValueError(f"outputs {keep} do not fit shape {self.shape}: give one number for each axis")
        if self.binary and keep != self.shape:
            raise ValueError(f"outputs {keep} with kind {kind!r}: its axes are binary, outputs must be {self.shape}")
        self.outputs = keep
        sizes = [(power_of_two(n), 2) if self.binary else (k,) for n, k in zip(self.shape, keep, strict=True)]
        self.offsets = nn.ParameterList(nn.Parameter(torch.empty(*size, dtype=torch.float32)) for size in sizes)
        self._regular(torch.device("cpu"))  # raises for lengths and outputs that no spectrum has
        self.reset_parameters()

    @property
    def binary(self) -> bool:
        """Whether each axis is log₂ n axes of two points, as in the Hadamard transform."""
        return self.kind in ("hadamard", "walsh")

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets all offsets to 0: the regular spectrum."""
        for offset in self.offsets:
            offset.zero_()

    def angles(self) -> list[Tensor]:
        """The angles θ of each axis.

        Returns:
            One float64 tensor per axis: (K,), for Hadamard (log₂ n, 2).

        Example:
            >>> (LearnableTransform("dct4", 2).angles()[0] / torch.pi).tolist()
            [0.25, 0.75]
        """
        return [angles for _, angles in self._trained()]

    def _trained(self) -> list[tuple[Spectrum, Tensor]]:
        """The regular spectrum of each axis, and the angles to use instead of its own."""
        # mps has no float64: there the angles are computed on the CPU, and only the basis is moved back.
        device = torch.device(exact_device(self.offsets[0].device) or "cpu")
        pairs = zip(self._regular(device), self.offsets, strict=True)
        return [(one, one.angles + delta.to(device).double()) for one, delta in pairs]

    def forward(self, x: Tensor) -> Inexact[Tensor, "..."]:
        """The transform of the last axes.

        Args:
            x: Numbers, ``(..., *shape)``; may be complex for "dft" and "idft" only.

        Returns:
            ``(..., *outputs)``, complex for "dft" and "idft", else in the dtype of `x`.

        Raises:
            ValueError: If `x` has the wrong shape.
        """
        axes = len(self.shape)
        if not isinstance(x, Tensor) or tuple(x.shape[-axes:]) != self.shape:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"input is {given}: this transform needs (..., {', '.join(map(str, self.shape))})")
        y = x if x.is_complex() and self.kind in ("dft", "idft") else real_input(x, self.kind)
        with without_autocast(x.device):
            for a, (one, angles) in enumerate(self._trained()):
                y, n = y.movedim(a - axes, -1), self.shape[a]
                if self.binary:
                    y = self._binary_axis(y, one, angles, n)
                else:
                    y = _product(y, replace(one, angles=angles).basis(n))
                y = y.movedim(-1, a - axes)
        return y if y.is_complex() else given_dtype(y, x)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return f"{self.kind!r}, {self.shape}, norm={self.norm!r}, outputs={self.outputs}"

    def _regular(self, device: torch.device) -> list[Spectrum]:
        if self.binary:
            return [spectrum("hadamard", 2, norm=self.norm, device=device)] * len(self.shape)
        pairs = zip(self.shape, self.outputs, strict=True)
        return [spectrum(self.kind, n, norm=self.norm, device=device).lowest(k) for n, k in pairs]

    def _binary_axis(self, y: Tensor, one: Spectrum, angles: Tensor, n: int) -> Tensor:
        for row in angles:
            # The leading binary axis is transformed and becomes the last: after all axes the order is restored.
            basis = replace(one, angles=row).basis(2)
            y = _product(y.unflatten(-1, (2, n // 2)).mT, basis).flatten(-2)
        return y if self.kind == "hadamard" else y.index_select(-1, sequency_rows(n, y.device))


def _lengths(given: object, name: str) -> tuple[int, ...]:
    listed = given if isinstance(given, Sequence) else (given,)
    lengths = whole_numbers(listed, len(listed), name)  # type: ignore[arg-type]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"{name} {lengths} is empty: give one length for each axis, 1 or more")
    return lengths


def _product(x: Tensor, basis: Tensor) -> Tensor:
    if x.is_complex() or not basis.is_complex():
        return x @ basis.to(x.device, x.dtype)
    return torch.complex(x @ basis.real.to(x.device, x.dtype), x @ basis.imag.to(x.device, x.dtype))
