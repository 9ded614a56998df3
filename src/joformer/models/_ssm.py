"""A state-space layer on the torus: content-dependent rotations, decay, and a scan.

    h_t = λ_t R(φ_t) h_{t−1} + v_t          v_t = W_v x_t,   y_t = W_o h_t
    φ_t = ω + W₂ GELU(W₁ LN(x_t))           λ_t = exp(−softplus(ρ + …))      per head; the last layer starts at zero

With Φ_t = φ_1 + ⋯ + φ_t and the frames C_t = R(−Φ_t) this is the selective kernel of the value-path hierarchy,

    h_t = C_t⁻¹ Σ_{s≤t} (λ_t ⋯ λ_{s+1}) C_s v_s,

that is: rotate the values by their frames, let them decay, rotate by the inverse. The angles are a prefix sum; the
decay is real and is summed in chunks. Paper: "Value-Path Hierarchy and SSM Bridge" (docs/claims.md rows 21, 22, 33).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import KeepsPrecision, widest, without_autocast
from joformer.algebra._checks import require_tensor
from joformer.frames import FlatFrames
from joformer.frames._base import wrap
from joformer.frames._projected import Projector
from joformer.frequencies import geometric
from joformer.rotation import own_projection, rotate, rotate_packed_, unrotate_linear

CHUNK = 32  # tokens summed by one matrix; measured fastest of 16 to 128, forward and backward
SLOWEST, FASTEST = 2.0**-10, 2.0**-3  # initial decay rates per token: memories from a thousand tokens down to eight


class Transition(KeepsPrecision):
    """The angles φ_t and the rates −log λ_t of each token, in float32 or wider.

    >>> angles, rates = Transition(8, heads=2, planes=3)(torch.rand(4, 5, 8))
    >>> angles.shape, rates.shape
    (torch.Size([4, 5, 2, 3]), torch.Size([4, 5, 2]))
    """

    def __init__(
        self, dim: int, *, heads: int, planes: int, decay: bool = True, content: bool = True, base: float = 10000.0
    ) -> None:
        super().__init__()
        self.heads, self.planes, self.base = heads, planes, base
        self.frequencies = nn.Parameter(torch.empty(heads, planes, dtype=torch.float32))
        self.rho = nn.Parameter(torch.empty(heads, dtype=torch.float32)) if decay else None
        self.projector = Projector(dim, heads * (planes + decay), zero=True) if content else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets geometric frequencies and rates, without dependence on content."""
        device = self.frequencies.device
        self.frequencies.copy_(geometric(self.planes, self.base, device=device).expand_as(self.frequencies))
        if self.rho is not None:
            spread = torch.linspace(0, 1, self.heads, device=device)
            self.rho.copy_((SLOWEST * (FASTEST / SLOWEST) ** spread).expm1().log())  # the inverse of softplus
        if self.projector is not None:
            self.projector.reset_parameters()

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> tuple[Tensor, Tensor | None]:
        """Angles (batch or 1, tokens or 1, heads, planes), and rates without planes, or None without decay."""
        angles, rates = self.frequencies[None, None], self.rho
        if self.projector is not None:
            projected = self.projector(x).unflatten(-1, (self.heads, -1))
            angles = angles + projected[..., : self.planes]
            rates = None if rates is None else rates + projected[..., -1]
        return angles, None if rates is None else F.softplus(rates).view(*angles.shape[:2], self.heads)


class JourneySSM(nn.Module):
    """h_t = λ_t R(φ_t) h_{t−1} + v_t, y_t = W_o h_t, in O(tokens).

    The layer has no gate, norm or residual connection: these belong to the surrounding block.

    Args:
        dim: Width of the tokens.
        heads: Number of heads.
        head_dim: Length of a head's state; must be even; dim / heads by default.
        decay: Whether the state decays; otherwise λ = 1.
        content: Whether angles and rates depend on the tokens.
        base: Base of the initial frequencies.

    Raises:
        ValueError: If the heads do not fit the width, or `head_dim` is odd.

    Example:
        >>> ssm = JourneySSM(16, heads=2)
        >>> x = torch.rand(3, 10, 16)
        >>> whole, _ = ssm(x)
        >>> start, state = ssm(x[:, :9])
        >>> last, state = ssm.step(x[:, 9], state)
        >>> torch.allclose(last, whole[:, 9], atol=1e-5), state.shape
        (True, torch.Size([3, 2, 8]))
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        head_dim: int | None = None,
        decay: bool = True,
        content: bool = True,
        base: float = 10000.0,
    ) -> None:
        super().__init__()
        if heads < 1 or (head_dim is None and dim % heads):
            raise ValueError(f"dim={dim} does not divide into {heads} heads: choose another number, or pass head_dim=")
        head_dim = dim // heads if head_dim is None else head_dim
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim must be even, because planes are pairs of entries, got {head_dim}")
        self.dim, self.heads, self.head_dim = dim, heads, head_dim
        self.values = nn.Linear(dim, heads * head_dim, bias=False)
        self.transition = Transition(dim, heads=heads, planes=head_dim // 2, decay=decay, content=content, base=base)
        self.out = nn.Linear(heads * head_dim, dim, bias=False)

    def reset_parameters(self) -> None:
        """Draws the projections, then resets the transition."""
        # The transition last, so that layers that differ only in it draw the same projections.
        for part in (self.values, self.out, self.transition):
            part.reset_parameters()

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], state: Float[Tensor, "batch heads head_dim"] | None = None
    ) -> tuple[Float[Tensor, "batch tokens dim"], Float[Tensor, "batch heads head_dim"]]:
        """The layer's output for a whole sequence, or for the next part of one.

        Args:
            x: Tokens, ``(batch, tokens, dim)``.
            state: h after the previous token, ``(batch, heads, head_dim)``; None at the start of a sequence.

        Returns:
            y ``(batch, tokens, dim)``, and the state after the last token.

        Raises:
            ValueError: If `x` or `state` has the wrong shape.
        """
        require_tensor(x, "x", f"(batch, tokens, {self.dim})")
        if x.dim() != 3 or x.shape[-1] != self.dim or not x.shape[1]:
            raise ValueError(f"x must be (batch, tokens, {self.dim}) with at least 1 token, got {tuple(x.shape)}")
        self._check_state(state, x.shape[0])
        angles, rates = self.transition(x)
        # Sums of thousands of angles lose digits in float32; devices without float64 stay in float32.
        wide = widest(x.device, angles.dtype)
        total = -prefix_sums(angles.to(wide).expand(-1, x.shape[1], -1, -1))
        frames = FlatFrames.of(wrap(total).to(angles.dtype), content=self.transition.projector is not None)
        (v,) = rotate_packed_(own_projection(self.values, x), [(self.heads, self.head_dim)], [frames])
        precise = torch.promote_types(v.dtype, torch.float32)
        # The frames start from the identity, in which the state is expressed: it enters unchanged.
        start = v.new_zeros(v.shape[0], *v.shape[2:], dtype=precise) if state is None else state.to(precise)
        with without_autocast(x.device):
            if rates is None:
                g = prefix_sums(v.to(precise)) + start.unsqueeze(1)
            else:
                g = decayed_sums(v.to(precise), -rates.to(wide).expand(-1, x.shape[1], -1), start)
            last = rotate(g[:, -1:], frames.select(slice(-1, None)), inverse=True).squeeze(1)
        return unrotate_linear(g.to(v.dtype), frames, self.out), last

    def step(
        self, x: Float[Tensor, "batch dim"], state: Float[Tensor, "batch heads head_dim"] | None = None
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch heads head_dim"]]:
        """Processes one token with the recurrence itself.

        Args:
            x: One token per sequence, ``(batch, dim)``.
            state: h after the previous token, ``(batch, heads, head_dim)``; None at the start of a sequence.

        Returns:
            y ``(batch, dim)``, and the state after this token.

        Raises:
            ValueError: If `x` or `state` has the wrong shape.

        Example:
            >>> ssm = JourneySSM(16, heads=2)
            >>> y, state = ssm.step(torch.rand(3, 16))
            >>> y, state = ssm.step(torch.rand(3, 16), state)
            >>> y.shape
            torch.Size([3, 16])
        """
        require_tensor(x, "x", f"(batch, {self.dim})")
        if x.dim() != 2 or x.shape[-1] != self.dim:
            raise ValueError(f"x must be (batch, {self.dim}), one token, got {tuple(x.shape)}: call the layer for more")
        self._check_state(state, x.shape[0])
        v = self.values(x).unflatten(-1, (self.heads, self.head_dim))
        h = v.to(torch.promote_types(v.dtype, torch.float32))
        if state is not None:
            angles, rates = self.transition(x.unsqueeze(1))
            before = rotate(state.to(h.dtype).unsqueeze(1), FlatFrames.of(angles)).squeeze(1)
            h = h + (before if rates is None else before * (-rates).exp().to(h.dtype).squeeze(1).unsqueeze(-1))
        return self.out(h.to(v.dtype).flatten(1)), h

    def _check_state(self, state: Tensor | None, batch: int) -> None:
        wanted = (batch, self.heads, self.head_dim)
        if state is not None and not isinstance(state, Tensor):
            raise ValueError(f"state is a {type(state).__name__}: give the second value that the layer returned")
        if state is not None and tuple(state.shape) != wanted:
            raise ValueError(f"state has shape {tuple(state.shape)}: it must be {wanted}, as the layer returned it")


def decayed_sums(
    u: Float[Tensor, "batch tokens heads head_dim"],
    log_decay: Float[Tensor, "_rows tokens heads"],
    start: Float[Tensor, "batch heads head_dim"],
) -> Float[Tensor, "batch tokens heads head_dim"]:
    """g_t = λ_t g_{t−1} + u_t from g_0 = start, λ = exp(log_decay), log_decay (batch or 1, tokens, heads) ≤ 0.

    Within a chunk this is one triangular matrix exp(L_t − L_s), with L the prefix sums of log_decay, so that no
    exponent is above 0. The last sums of the chunks follow the same recurrence, one step per chunk, solved recursively.

    >>> halves = torch.full((1, 4, 1), 0.5).log()
    >>> decayed_sums(torch.ones(1, 4, 1, 1), halves, torch.zeros(1, 1, 1)).flatten().tolist()
    [1.0, 1.5, 1.75, 1.875]
    """
    tokens, u = u.shape[1], _in_chunks(u)
    since = _in_chunks(log_decay).transpose(2, 3).cumsum(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=u.device).triu(1)
    # The difference is computed in the given precision: it may be small although its two terms are not.
    spans = (since.unsqueeze(-1) - since.unsqueeze(-2)).to(u.dtype).masked_fill(later, -torch.inf)
    sums = torch.einsum("bnhts,bnshd->bnthd", spans.exp(), u)
    before = start.unsqueeze(1)
    if tokens > CHUNK:
        before = torch.cat((before, decayed_sums(sums[:, :-1, -1], since[:, :-1, :, -1], start)), 1)
    reach = since.transpose(2, 3).unsqueeze(-1).to(u.dtype).exp()
    return torch.addcmul(sums, reach, before.unsqueeze(2)).flatten(1, 2)[:, :tokens]


def prefix_sums(u: Float[Tensor, "rows tokens *rest"]) -> Float[Tensor, "rows tokens *rest"]:
    """u_1 + ⋯ + u_t for every token, within chunks and then over their totals.

    A cumsum over one long strided dimension misses the cache at every step: ten times slower at 8,192 tokens.

    >>> prefix_sums(torch.ones(1, 70, 2))[0, -1].tolist()
    [70.0, 70.0]
    """
    tokens, within = u.shape[1], _in_chunks(u).cumsum(2)
    if tokens > CHUNK:
        # Shifted rather than subtracted: subtracting a chunk's own total would leave its rounding error.
        before = torch.cat((torch.zeros_like(within[:, :1, -1]), within[:, :-1, -1].cumsum(1)), 1)
        within = within + before.unsqueeze(2)
    return within.flatten(1, 2)[:, :tokens]


def _in_chunks(t: Tensor) -> Tensor:
    """(rows, tokens, ...) as (rows, chunks, CHUNK, ...), zeros after the end."""
    beyond = -t.shape[1] % CHUNK
    if beyond:
        t = F.pad(t, (0, 0) * (t.dim() - 2) + (0, beyond))
    return t.reshape(t.shape[0], t.shape[1] // CHUNK, CHUNK, *t.shape[2:])
