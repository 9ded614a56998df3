"""Cumulative frames: θ_t = ω·t + Σ_{s<t} φ(x_s), so that a journey depends on everything between its ends.

Pointwise projected angles do not have the property that the paper proves for content-dependent operators
(context-sensitive separation); only accumulated angles do (docs/claims.md row 33). On a grid each axis accumulates
along the canonical path from the origin, axis 1 first:

    θ_(i,j) = ω·(i, j) + Σ_{s<i} φ₁(x_(s,0)) + Σ_{s<j} φ₂(x_(i,s))

which is a potential, hence flat for any φ (row 7). Only the first sum extends beyond a row: a grid that grows along
axis 1, like a stream in time, can be continued from that sum.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from joformer._precision import readable, widest
from joformer.frames._base import Inputs, wrap
from joformer.frames._projected import ContentFrames, Projector
from joformer.frames._steps import BoundedSteps, SelectiveSteps
from joformer.frames._types import FlatFrames
from joformer.positions import grid as make_grid
from joformer.positions import located


class CumulativeFrames(ContentFrames):
    """``θ_t = ω·t + Σ_{s<t} φ(x_s)``, ``φ = W₂ GELU(W₁ LN(x))``: (batch, tokens, heads, planes). φ starts at zero.

    Tokens are accumulated in order; a token at the identity adds nothing. To continue a sequence, pass the `end` of the
    previous frames as `state=`; a `JourneyCache` keeps it as `cache.angles`. With several axes, pass the shape of the
    `grid` that the last tokens form, e.g. ``grid=(14, 14)``; `state=` then continues it along its first axis. With
    ``every=True`` the `end` is the state after each token, (batch, tokens, heads, planes), for callers that may have to
    go back. With `parallel=` the tokens are those of one of several processes, and the sum is over the tokens of all.

    With ``steps="selective"`` or ``"carope"`` the angles are those of Selective RoPE (Movahedi et al. 2025) and CARoPE
    (Veisi et al. 2025), ``θ_t = Σ_{s≤t} φ(x_s)``: they use a different φ, include the token itself (s ≤ t, not s < t)
    and have no ω·t term. The papers rotate queries and keys; here the same frames also transport the values.

        selective   φ_b = ω_b σ(w·x̂ + c) (W₂ W₁ x̂)_b           of rank 16, a gate per head; x̂ has length 1 in each head
        carope      φ_b = f^b, f = 1 / (1 + softplus(w·x + c))    bounded, one f per head; starts as RoPE

    Args:
        dim: Width of the tokens x.
        head_dim: Width of a head; must be even.
        heads: Number of heads that have their own angles; with grouped queries, the number of key/value heads.
        axes: Number of coordinates per token.
        on: Which angles ω·t the content is added to: "fixed" (the default), "learned" or "none"; selective and carope
            accept "none" only. With "none" order enters through the sum alone, which for "projected" starts at zero.
        steps: φ: "projected" (ours), "selective" or "carope"; the last two need a single axis.
        split: How several axes share the planes; see `joformer.frequencies.per_axis`.
        base: Base of the spectrum ω; the authors of Selective RoPE use 500000.
        planes: Number of planes; fewer than head_dim / 2 rotate only 2·planes entries of each head.
        at: Which entries of a head are rotated: the first ("front") or the last ("end").
        layout: Which entries of a head form a plane; see `joformer.rotation`.
        frequency_base: Deprecated name of `base`.

    Raises:
        ValueError: If widths, axes, planes or heads are incompatible.

    Example:
        >>> from joformer import positions
        >>> module = CumulativeFrames(128, 32, heads=4)
        >>> x = torch.rand(2, 16, 128)
        >>> first = module(positions.sequence(10), x[:, :10])
        >>> rest = module(positions.sequence(6, offset=10), x[:, 10:], state=first.end)
        >>> rest.angles.shape
        torch.Size([2, 6, 4, 16])
    """

    stateful = True

    def make_projector(self, base: float) -> nn.Module:
        """Content to one step per axis; ours zero at the start."""
        if self.steps != "projected":
            kind = SelectiveSteps if self.steps == "selective" else BoundedSteps
            return kind(self.dim, self.heads, self.planes, base)
        return Projector(self.dim, self.axes * self.heads * self.planes, zero=True)

    def make(self, given: Inputs) -> FlatFrames:
        """The frames for one call."""
        x, known = self.checked(given)
        shape = (x.shape[0], 1, self.heads, self.planes)
        if given.parallel is not None and (given.state is not None or given.every or self.axes > 1):
            raise ValueError("parallel= is for whole sequences on one axis: leave it out, or state= and every=")
        if given.state is not None and tuple(given.state.shape) not in (shape, (1, *shape[1:])):
            raise ValueError(f"state must be the `end` of earlier frames, {shape}, got {tuple(given.state.shape)}")
        steps = self.projector(x).unflatten(-1, (self.axes, self.heads, self.planes))
        # Sums of thousands of angles lose digits in float32; devices without float64 stay in float32.
        own, wide = steps.dtype, widest(x.device, steps.dtype)
        steps = steps.to(wide) * known[..., None, None, None]
        end: Tensor | None = None
        if self.axes == 1:
            steps = steps.squeeze(2)
            after = steps.cumsum(1) if given.parallel is None else given.parallel.cumsum(steps)
            if given.state is not None:
                after = after + given.state.to(wide)
            angles = after - steps if self.steps == "projected" else after
            if given.parallel is None:  # else the sequence's last token may be another process's
                end = wrap(after if given.every else after[:, -1:])
        else:
            angles, after = _along_grid(steps, given.grid, given.positions, given.state)
            end = wrap(after)
        if self.base is not None:
            angles = angles + self.base.angles(given.positions, x).to(wide)
        # A token at the identity stays there whatever came before it.
        angles = wrap(angles * known[..., None, None]).to(own)
        return self.flat(angles, content=True, end=end)


def _along_grid(
    steps: Tensor, grid: tuple[int, ...] | None, positions: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The angle of each token, and that of the cell that would follow the first cell of the last row."""
    axes, tokens = steps.shape[2], steps.shape[1]
    if grid is None or len(grid) != axes or prod(grid) > tokens:
        raise ValueError(
            f"cumulative frames on {axes} axes need the shape of the grid that the last tokens form, "
            f"grid=(n_1, …, n_{axes}) with at most {tokens} cells; got {grid}"
        )
    prefix = tokens - prod(grid)
    if state is not None and prefix:
        raise ValueError(f"state continues a grid along its first axis: leave out the {prefix} tokens before it")
    # Reading values would stall a GPU and break a graph: only where it is free.
    if readable(positions):
        where = positions[..., prefix:, :].to(torch.float64)
        regular = torch.equal(where - where[..., :1, :], make_grid(*grid).expand_as(where))
        if not regular or located(positions)[..., :prefix].any():
            raise ValueError(
                f"positions are not a grid of {grid} after {prefix} tokens at the identity: see positions.grid"
            )
    cells = steps[:, prefix:].unflatten(1, grid)
    # (batch, 1 …, heads, planes): where the first row begins.
    start = steps.new_zeros(()) if state is None else state.to(steps.dtype).unflatten(1, (1,) * axes)
    total = start
    after = start
    for axis in range(axes):
        own = cells.select(1 + axes, axis)
        leg = own.cumsum(1 + axis)
        if axis == 0:
            end = (slice(None), slice(-1, None), *(slice(1),) * (axes - 1))
            after = start + leg[end]
        leg = leg - own
        for later in range(axis + 1, axes):
            leg = leg.narrow(1 + later, 0, 1)
        total = total + leg
    return torch.cat((steps[:, :prefix, 0] * 0, total.flatten(1, axes)), 1), after.flatten(1, axes)
