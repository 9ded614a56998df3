"""The sum over a grid, one axis after the other, without storing one vector per cell.

    E_k = Σ_n v_nk e^{i n·θ_k} = Σ_{n_1} e^{i n_1 θ_1k} ( ⋯ Σ_{n_D} e^{i n_D θ_Dk} v_nk )

A plane is treated as a complex number. With real cells the innermost sum is one matrix product over the longest axis,
so that at most one vector is stored for each cell of the *other* axes. A single long axis is divided into a grid of
rows, whose generators are R^columns and R. Paper: "MNIST Monoidal Embedding", "Audio and Spectrograms", "Video".
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn.functional import pad

from joformer.algebra._checks import in_float64
from joformer.spectral._fast import as_complex, as_real


def compose_real(x: Float[Tensor, "..."], angles: Float[Tensor, "axes planes"]) -> Float[Tensor, "... _dim"]:
    """Σ_n x_n A_n e of real cells x (..., n_1, …, n_D) with e = (1, 0, 1, 0, …): (..., 2·planes).

    >>> half_turn = torch.tensor([[torch.pi]])
    >>> compose_real(torch.tensor([5.0, 2.0, 1.0]), half_turn).round(decimals=4) + 0
    tensor([4., 0.])
    """
    axes, planes = angles.shape
    batch = x.shape[: x.ndim - axes]
    size = math.prod(batch)
    rows = 1  # up to about √(n/size), where the table of the powers of R is as large as the remaining cells
    while axes == 1 and 4 * rows * rows * max(size, 1) <= x.shape[-1]:
        rows *= 2
    if rows > 1:
        columns = -(-x.shape[-1] // rows)
        x = pad(x, (0, rows * columns - x.shape[-1])).unflatten(-1, (rows, columns))
        angles, axes = torch.cat([in_float64(angles) * columns, in_float64(angles)]), 2
    grid = x.shape[x.ndim - axes :]
    longest = 0
    for k in range(1, axes):  # an explicit loop: the compiler cannot sort unknown lengths
        longest = k if grid[k] > grid[longest] else longest
    others = [k for k in range(axes) if k != longest]
    cells = x.reshape(size, *grid).permute(1 + longest, *(1 + k for k in others), 0)

    # Planes come first from here on: the remaining sums are then one small matrix product per plane, in which a
    # complex product is the 2 × 2 block [[cos, −sin], [sin, cos]], and every view below is free.
    left = math.prod(grid) // max(grid[longest], 1) * size
    basis = torch.stack(_cos_sin(angles[longest], grid[longest], x), 1).flatten(0, 1)
    partial = basis @ cells.reshape(grid[longest], left)
    for k in others:
        cos, sin = _cos_sin(angles[k], grid[k], x)
        operator = torch.stack([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)], 1)
        left //= max(grid[k], 1)
        partial = torch.bmm(operator, partial.view(planes, 2 * grid[k], left))
    return partial.view(planes, 2, size).permute(2, 0, 1).reshape(*batch, 2 * planes)


def compose_vectors(v: Float[Tensor, "... _dim"], angles: Float[Tensor, "axes planes"]) -> Float[Tensor, "... _dim"]:
    """Σ_n A_n v_n of cells v (..., n_1, …, n_D, 2·planes): (..., 2·planes).

    >>> quarter_turn = torch.tensor([[torch.pi / 2]])
    >>> compose_vectors(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), quarter_turn).round(decimals=4)
    tensor([1., 1.])
    """
    z = as_complex(v)
    for theta in angles.flip(0):
        z = (z * torch.complex(*_cos_sin(theta, z.shape[-2], v)).mT).sum(-2)
    return as_real(z)


def phases(angles: Float[Tensor, "*batch"], like: Tensor) -> Complex[Tensor, "*batch"]:
    """e^{iφ} of angles (...), computed in fp64, returned in the precision and on the device of `like`.

    >>> phases(torch.tensor([0.0, torch.pi]), torch.ones(1)).real
    tensor([ 1., -1.])
    """
    wide = in_float64(angles)
    return torch.complex(wide.cos().to(like), wide.sin().to(like))


def _cos_sin(theta: Tensor, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    steps = in_float64(theta)
    along = steps[:, None] * torch.arange(size, dtype=steps.dtype, device=steps.device)
    return along.cos().to(like), along.sin().to(like)
