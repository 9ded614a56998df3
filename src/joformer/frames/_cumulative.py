"""Cumulative frames: θ_t = base·t + Σ_{s<t} φ(x_s), so that a journey sees all that lies between its ends.

Pointwise projected angles do not have the property the paper proves for content-dependent operators
(context-sensitive separation); only the accumulated ones do (docs/claims.md row 33). On a grid each axis accumulates
along the canonical path from the origin, axis 1 first:

    θ_(i,j) = base·(i, j) + Σ_{s<i} φ₁(x_(s,0)) + Σ_{s<j} φ₂(x_(i,s))

which is a potential, hence flat whatever φ is (row 7).
"""

from __future__ import annotations

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._precision import widest
from joformer.frames._base import wrap
from joformer.frames._projected import ContentFrames, Projector
from joformer.frames._types import FlatFrames
from joformer.positions import grid as make_grid
from joformer.positions import located


class CumulativeFrames(ContentFrames):
    """θ_t = base·t + Σ_{s<t} φ(x_s), φ = W₂ GELU(W₁ LN(x)), zero at the start: (batch, tokens, heads, planes).

    Tokens are accumulated in their order; a token at the identity adds nothing. To go on where a sequence
    stopped, pass `state=` the `end` of the frames before (a `JourneyCache` keeps it as `cache.angles`). With
    several axes say which `grid` the last tokens form, e.g. grid=(14, 14). With `every=True` the end is that after each
    token, (batch, tokens, heads, planes), for who may have to go back.

    >>> from joformer import positions
    >>> module = CumulativeFrames(128, 32, heads=4)
    >>> x = torch.rand(2, 16, 128)
    >>> first = module(positions.sequence(10), x[:, :10])
    >>> rest = module(positions.sequence(6, offset=10), x[:, 10:], state=first.end)
    >>> rest.angles.shape
    torch.Size([2, 6, 4, 16])
    """

    stateful = True

    def make_projector(self) -> Projector:
        return Projector(self.dim, self.axes * self.heads * self.planes, zero=True)

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Float[Tensor, "batch 1 heads planes"] | None = None,
        every: bool = False,
    ) -> FlatFrames:
        located = self.located(positions, x)
        assert x is not None
        steps = self.projector(x).unflatten(-1, (self.axes, self.heads, self.planes))
        # Sums of thousands of angles lose float32 digits; devices without float64 keep what they have.
        wide = widest(x.device, steps.dtype)
        steps = steps.to(wide) * located[..., None, None, None]
        self._check_state(state, x.shape[0])
        if self.axes == 1:
            angles, after = _along_sequence(steps.squeeze(2), state)
            end = wrap(after if every else after[:, -1:])
        else:
            if state is not None:
                raise ValueError("state continues a sequence: frames on several axes see their whole grid at once")
            angles, end = _along_grid(steps, grid, positions), None
        if self.base is not None:
            angles = angles + self.base.angles(positions, x).to(wide)
        # A token at the identity stays there whatever came before it.
        angles = wrap(angles * located[..., None, None]).to(self.projector.w1.weight.dtype)
        return FlatFrames.of(angles, layout=self.layout, content=True, end=end)

    def _check_state(self, state: Tensor | None, batch: int) -> None:
        shape = (batch, 1, self.heads, self.planes)
        if state is not None and tuple(state.shape) not in (shape, (1, *shape[1:])):
            raise ValueError(f"state must be the `end` of earlier frames, {shape}, got {tuple(state.shape)}")


def _along_sequence(steps: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    after = steps.cumsum(1)
    if state is not None:
        after = after + state.to(after.dtype)
    return after - steps, after


def _along_grid(steps: Tensor, grid: tuple[int, ...] | None, positions: Tensor) -> Tensor:
    axes, tokens = steps.shape[2], steps.shape[1]
    if grid is None or len(grid) != axes or prod(grid) > tokens:
        raise ValueError(
            f"cumulative frames on {axes} axes need the shape of the grid the last tokens form, "
            f"grid=(n_1, …, n_{axes}) with at most {tokens} cells; got {grid}"
        )
    prefix = tokens - prod(grid)
    # Reading values would stall a GPU and break a graph, so only where it is free.
    if positions.device.type == "cpu" and not torch.compiler.is_compiling():
        cells = positions[..., prefix:, :].to(torch.float64)
        expected = make_grid(*grid)
        if (
            not torch.equal(cells - cells[..., :1, :], expected.expand_as(cells))
            or located(positions)[..., :prefix].any()
        ):
            raise ValueError(
                f"positions are not a grid of {grid} after {prefix} tokens at the identity: see positions.grid"
            )
    cells = steps[:, prefix:].unflatten(1, grid)
    total = torch.zeros((), dtype=steps.dtype, device=steps.device)
    for axis in range(axes):
        leg = cells.select(1 + axes, axis)
        leg = leg.cumsum(1 + axis) - leg
        for later in range(axis + 1, axes):
            leg = leg.narrow(1 + later, 0, 1)
        total = total + leg
    angles = total.flatten(1, axes)
    return torch.cat((steps[:, :prefix, 0] * 0, angles), 1)
