"""One vector for a whole grid: every cell rotated by the generators of its position, and summed.

    E = Σ_n A_n v_n,   A_n = R_1^{n_1} ⋯ R_D^{n_D},          in plane k:   E_k = Σ_n v_nk e^{i n·θ_k}

    learned     θ (axes, planes) is a parameter, initialised uniformly in [−spread, spread]
    dft         θ_k = 2π k_a / n_a, the lowest points k of the product grid of frequencies
    diagonal    θ_k = 2π k / d on every axis, k = 1 … d/2: as printed in the paper

Paper: "MNIST Monoidal Embedding", "Audio and Spectrograms", "Video". The paper calls its fixed frequencies the 2D DFT.
They are the diagonal of one, and do not match the grid of 28 pixels; `dft` is the actual 2D DFT (docs/claims.md rows
39, 40).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from joformer._precision import KeepsPrecision, default_dtype, exact_device, without_autocast
from joformer.algebra import Element, Generators
from joformer.algebra._checks import in_float64, require_tensor, whole_numbers
from joformer.monoidal._composition import compose_real, compose_vectors
from joformer.spectral._fast import as_complex, as_real

Frequencies = Literal["learned", "dft", "diagonal"]
Cells = Literal["real", "vector"]


class MonoidalEmbedding(KeepsPrecision):
    """E = Σ_n A_n v_n over a grid with any number of axes, as one vector.

    With "dft" and real cells the sum is an FFT and costs next to nothing. Otherwise at most one vector is stored for
    each cell of the axes other than the longest.

    Args:
        dim: Length of the vector, 2·planes.
        shape: Length of the axis, or one length per axis.
        frequencies: The angles: "learned", "dft" (the lowest of the product grid) or "diagonal" (the paper's).
        cells: "real" if a cell is one number x_n, with the content x_n·e, or "vector" if it is `dim` numbers.
        content: e of real cells: "constant" for (1, 0, 1, 0, …), "learned" starting there, or a vector ``(dim,)``.
        spread: Half-width of the uniform distribution that learned angles are initialised from, in radians per step.
            With few planes it determines what they learn, so sweep it. By default the box filled by as many DFT
            frequencies, π·min(1, dim/cells)^{1/D}.

    Raises:
        ValueError: If the arguments are incompatible.

    Example:
        >>> embed = MonoidalEmbedding(64, (28, 28))
        >>> embed(torch.rand(16, 28, 28)).shape, embed.frequencies.shape
        (torch.Size([16, 64]), torch.Size([2, 32]))
        >>> video = MonoidalEmbedding(8, (4, 6, 5), frequencies="dft", cells="vector")
        >>> video(torch.rand(2, 4, 6, 5, 8)).shape
        torch.Size([2, 8])
    """

    frequencies: Tensor
    modes: Tensor
    bins: Tensor
    conjugate: Tensor

    def __init__(
        self,
        dim: int,
        shape: int | Sequence[int],
        *,
        frequencies: Frequencies = "learned",
        cells: Cells = "real",
        content: Literal["constant", "learned"] | Tensor = "constant",
        spread: int | float | None = None,
    ) -> None:
        super().__init__()
        self.shape = whole_numbers(shape, len(shape) if isinstance(shape, Sequence) else 1, "shape")
        self.dim, self.kind, self.cells = dim, frequencies, cells
        if not isinstance(dim, int) or dim < 2 or dim % 2:
            raise ValueError(f"dim {dim} cannot be split into planes: it must be a whole number, even, 2 or more")
        if not self.shape or min(self.shape) < 1:
            raise ValueError(f"shape {self.shape} holds no cells: give the length of each axis, 1 or more")
        if frequencies not in get_args(Frequencies):
            raise ValueError(f"unknown frequencies {frequencies!r}: use one of {', '.join(get_args(Frequencies))}")
        if cells not in get_args(Cells):
            raise ValueError(f"unknown cells {cells!r}: use 'real' for (..., *shape), 'vector' for (..., *shape, dim)")
        if frequencies == "dft" and dim // 2 > (count := math.prod(self.shape)):
            raise ValueError(f"dim {dim} needs more frequencies than {self.shape} has: it must be {2 * count} or less")
        if spread is not None and (frequencies != "learned" or not 0 <= spread < math.inf):
            raise ValueError(f"spread {spread} with frequencies {frequencies!r}: 0 or more, for learned ones only")
        self.spread = math.pi * min(1.0, dim / math.prod(self.shape)) ** (1 / self.axes) if spread is None else spread
        if frequencies == "learned":
            self.frequencies = nn.Parameter(torch.empty(self.axes, dim // 2, dtype=default_dtype()))
        else:
            # Integers, so that the exact angles survive a change of the module's dtype.
            self.register_buffer("modes", torch.empty(self.axes, dim // 2, dtype=torch.long), persistent=False)
        if frequencies == "dft":
            self.register_buffer("bins", torch.empty(dim // 2, dtype=torch.long), persistent=False)
            self.register_buffer("conjugate", torch.empty(dim // 2, dtype=torch.bool), persistent=False)
        self._take_content(content)
        self.reset_parameters()

    @property
    def axes(self) -> int:
        """The number of axes D."""
        return len(self.shape)

    @property
    def angles(self) -> Float[Tensor, "axes planes"]:
        """θ (axes, planes), radians per step: the parameter itself if learned, float64 if fixed."""
        if self.kind == "learned":
            return self.frequencies
        modes = self.modes.to(exact_device(self.modes.device))
        lengths = self.shape if self.kind == "dft" else (self.dim,) * self.axes
        return modes.double() * 2 * math.pi / torch.tensor(lengths, dtype=torch.float64, device=modes.device)[:, None]

    @property
    def generators(self) -> Generators:
        """The axis-step generators R_1 … R_D on the torus, for use with the algebra and the rest of this package.

        A copy in float64: further training does not change it.

        >>> MonoidalEmbedding(2, 4, frequencies="diagonal").generators.power(0, 1)
        tensor([3.1416], dtype=torch.float64)
        """
        return Generators.torus(in_float64(self.angles).clone())

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws learned angles, sets fixed ones, and initialises learned content.

        Args:
            generator: Random generator; torch's default one if None.

        Example:
            >>> embed = MonoidalEmbedding(4, 3, spread=0.1)
            >>> embed.reset_parameters(torch.Generator().manual_seed(0))
            >>> bool(embed.frequencies.abs().max() <= 0.1)
            True
        """
        if self.kind == "learned":
            self.frequencies.uniform_(-self.spread, self.spread, generator=generator)
        elif self.kind == "dft":
            self.modes.copy_(lowest_modes(self.shape, self.dim // 2, paired=self.cells == "real").T)
            self._find_bins()
        else:
            self.modes.copy_(torch.arange(1, self.dim // 2 + 1).expand(self.axes, -1))
        if isinstance(self.content, nn.Parameter):
            self.content.copy_(torch.tensor([1.0, 0.0]).repeat(self.dim // 2))

    def forward(self, x: Tensor) -> Float[Tensor, "... _dim"]:
        """The embedding E of a grid.

        The grid may differ from `shape`: angles are per step. The DFT keeps the angles of `shape`: a smaller grid acts
        as if padded with zeros, and a larger one wraps, so that cells a whole length apart are summed.

        Args:
            x: Real cells ``(..., *grid)``, or vectors ``(..., *grid, dim)``.

        Returns:
            Vectors ``(..., dim)`` in the dtype of `x`.

        Raises:
            ValueError: If `x` has too few axes, an empty axis, or is not floating point.

        Example:
            >>> embed = MonoidalEmbedding(2, (3, 3), frequencies="diagonal")           # half turns
            >>> embed(torch.eye(3)).round(decimals=4) + 0
            tensor([3., 0.])
        """
        grid = self._grid(x)
        with without_autocast(x.device):
            wide = x.to(torch.promote_types(x.dtype, torch.float32))
            if self.cells == "vector":
                return compose_vectors(wide, self.angles).to(x.dtype)
            fits = all(n <= length for n, length in zip(grid, self.shape, strict=True))
            by_fft = self.kind == "dft" and fits and x.numel()
            embedded = self._by_fft(wide) if by_fft else compose_real(wide, self.angles)
            if self.content is not None:
                embedded = as_real(as_complex(embedded) * as_complex(self.content.to(wide)))
            return embedded.to(x.dtype)

    def tile(self, x: Tensor, origin: int | Sequence[int] | None = None) -> Element:
        """The embedding of a part of a grid as an element of the algebra.

        The content is relative to the tile's own origin, so that `concatenate` and `split` apply directly: the
        embedding of the whole is the concatenation of its tiles.

        Args:
            x: The cells of the tile, as in the call.
            origin: Where the tile starts, one number per axis; zeros by default.

        Returns:
            An element with the content ``(..., dim)``, the origin and the extent of the tile.

        Example:
            >>> from joformer.monoidal import concatenate
            >>> embed, x = MonoidalEmbedding(8, (4, 6)), torch.rand(4, 6)
            >>> left, right = embed.tile(x[:, :2]), embed.tile(x[:, 2:], origin=(0, 2))
            >>> torch.allclose(concatenate([left, right], axis=1).content, embed(x), atol=1e-5)
            True
        """
        content = self(x)
        start = (0,) * self.axes if origin is None else (origin,) if isinstance(origin, int) else tuple(origin)
        return Element(content, start, self._grid(x), self.generators)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        start = f", spread={self.spread:.3g}" if self.kind == "learned" else ""
        return f"{self.dim}, {self.shape}, frequencies={self.kind!r}, cells={self.cells!r}{start}"

    def _by_fft(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfftn(x, s=self.shape, dim=tuple(range(-self.axes, 0))).flatten(-self.axes)
        real, imaginary = torch.view_as_real(spectrum.index_select(-1, self.bins)).unbind(-1)
        return torch.stack([real, torch.where(self.conjugate, -imaginary, imaginary)], -1).flatten(-2)

    def _find_bins(self) -> None:
        # torch's kernel is e^{−i}: the embedding is its value at −k, or the conjugate at k, whichever half is stored.
        lengths, last = self.modes.new_tensor(self.shape)[:, None], self.shape[-1]
        self.conjugate.copy_(self.modes[-1] % last <= last // 2)
        stored = torch.where(self.conjugate, self.modes, -self.modes) % lengths
        place = stored[0]
        for k in range(1, self.axes):
            place = place * (self.shape[k] if k < self.axes - 1 else last // 2 + 1) + stored[k]
        self.bins.copy_(place)

    def _grid(self, x: Tensor) -> tuple[int, ...]:
        tail = (self.dim,) if self.cells == "vector" else ()
        wanted = ", ".join(["...", *map(str, self.shape + tail)])
        require_tensor(x, "x", f"({wanted})")
        if not x.is_floating_point():
            what = "real" if x.is_complex() else "floating point, e.g. the bytes of an image divided by 255"
            raise ValueError(f"x has dtype {x.dtype}: cells must be {what}")
        if x.ndim < self.axes + len(tail) or tuple(x.shape[x.ndim - len(tail) :]) != tail:
            raise ValueError(f"x has shape {tuple(x.shape)}: {self.cells} cells need ({wanted}), or another grid")
        grid = tuple(x.shape[x.ndim - self.axes - len(tail) : x.ndim - len(tail)])
        if not min(grid):
            raise ValueError(f"x has shape {tuple(x.shape)}: its grid {grid} is empty, each axis needs at least 1 cell")
        return grid

    def _take_content(self, content: str | Tensor) -> None:
        self.content: Tensor | None
        if isinstance(content, Tensor):
            if self.cells == "vector":
                raise ValueError("a content vector is for real cells: vector cells are their own content")
            if content.shape != (self.dim,) or not content.is_floating_point():
                shape = tuple(content.shape)
                raise ValueError(f"content is {content.dtype} {shape}: it must be real numbers, ({self.dim},)")
            self.register_buffer("content", content.detach().clone())
        elif content == "learned" and self.cells == "real":
            self.content = nn.Parameter(torch.empty(self.dim, dtype=default_dtype()))
        elif content == "constant":
            self.content = None
        else:
            raise ValueError(
                f"content {content!r} with {self.cells} cells: real cells take 'constant', 'learned' or a vector "
                f"({self.dim},), vector cells are their own content"
            )


def lowest_modes(shape: Sequence[int], count: int, *, paired: bool) -> Int[Tensor, "count axes"]:
    """The `count` lowest points k of the grid of frequencies 2π k_a/n_a, −n_a/2 < k_a ≤ n_a/2.

    In order of |k|², ties in order of k. For real cells k and −k are redundant: with `paired`, the smaller of the two
    comes after everything else, so that no redundant point is used before all pairs are covered, and all points are the
    full DFT.

    >>> lowest_modes((4, 4), 4, paired=True).tolist()
    [[0, 0], [0, 1], [1, 0], [1, -1]]
    >>> lowest_modes((3,), 3, paired=True).tolist()
    [[0], [1], [-1]]
    """
    along = [torch.arange(n) - (n - 1) // 2 for n in shape]
    k = torch.stack(torch.meshgrid(*along, indexing="ij"), -1).flatten(0, -2)
    order = k.square().sum(-1).argsort(stable=True)
    if paired:
        lengths = torch.tensor(shape)
        mirror = (-k) % lengths
        mirror = torch.where(mirror > lengths // 2, mirror - lengths, mirror)
        differs = (k != mirror).long()
        first = differs.argmax(-1, keepdim=True)
        spare = (k.gather(-1, first) < mirror.gather(-1, first)).squeeze(-1)
        order = order[spare[order].long().argsort(stable=True)]
    return k[order[:count]]
