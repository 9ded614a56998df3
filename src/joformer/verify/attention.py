"""CLAIMS.md, "Attention and classification". Paper: "Journey Operator and Score/Value Attention" to "JoFormer"."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joformer import positions
from joformer.algebra import (
    Generators,
    Group,
    Orthogonal,
    Torus,
    absolute,
    hierarchy,
    journey,
    scan,
    scores_path,
    ssm_kernel,
    value_path,
)
from joformer.attention import JourneyAttention, journey_attention
from joformer.frames import DenseFrames, FixedFrames, FramesModule, LearnedFrames, ProjectedFrames, TreeFrames
from joformer.models import RotatE
from joformer.rotate import rotate
from joformer.values import FlatFrames, Frames
from joformer.verify.claims import Draw, Measured, Section, gap, worst

claim = Section("attention")


def scores(q: Tensor, k: Tensor, frames: Frames) -> Tensor:
    """(A_i q_i)ᵀ(A_j k_j) with the library's rotation; q, k (batch, tokens, heads, dim) → (batch, heads, i, j)."""
    return torch.einsum("bihd,bjhd->bhij", rotate(q, frames), rotate(k, frames))


def heads(draw: Draw, tokens: int, dim: int = 8, count: int = 3) -> tuple[Tensor, ...]:
    """`count` tensors (2, tokens, 2 heads, dim)."""
    return draw.noise(count, 2, tokens, 2, dim).unbind()


@claim(
    13,
    "eq:score",
    "C",
    "(A_i q)ᵀ(A_j k) = qᵀ A_i⁻¹A_j k, and A_i⁻¹ Σ α A_j v = Σ α P_{j→i} v",
    "for orthogonal operators only",
    gap="with operators that are not orthogonal it is off by",
)
def score_and_value_identities(draw: Draw) -> Measured:
    q, k, v = heads(draw, 5)
    frames = FlatFrames.of(draw.noise(1, 5, 1, 4))
    at = frames.angles[:, :, 0].unsqueeze(1)
    by_journey = scores_path(q.transpose(1, 2), k.transpose(1, 2), group=Torus(4), src=at, dst=at)
    weights = (by_journey / 8**0.5).softmax(-1)
    values = value_path(weights, v.transpose(1, 2), group=Torus(4), src=at, dst=at).transpose(1, 2)
    general = draw.noise(5, 4, 4)
    a, b = draw.noise(5, 4), draw.noise(5, 4)
    moved = torch.einsum("iab,ib,jac,jc->ij", general, a, general, b)
    conjugated = torch.einsum("ia,iab,jbc,jc->ij", a, torch.linalg.inv(general), general, b)
    return Measured(
        worst(gap(scores(q, k, frames), by_journey), gap(journey_attention(q, k, v, frames), values)),
        gap=gap(moved, conjugated),
    )


@claim(
    14,
    "ssec:journey",
    "H",
    "RoPE, 2D-RoPE, tree encodings and RotatE are special cases",
    "as printed; 2D axial needs head_dim % 4 = 0; the last two are derived here, the paper only asserts them",
    gap="planes of a head of 6 that no axis of an axial grid turns",
)
def special_cases(draw: Draw) -> Measured:
    q, k = heads(draw, 6, count=2)
    omega = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    turned = [_rope(x, torch.arange(6.0).double()[:, None] * omega) for x in (q, k)]
    rope = gap(scores(q, k, FixedFrames(8)(positions.sequence(6))), torch.einsum("bihd,bjhd->bhij", *turned))
    cells = positions.grid(2, 3)
    omega = 100.0 ** (-torch.arange(2, dtype=torch.float64) / 2)
    turned = [_rope(x, torch.cat([cells[:, :1] * omega, cells[:, 1:] * omega], -1)) for x in (q, k)]
    rope2d = gap(scores(q, k, FixedFrames(8, axes=2, base=100.0)(cells)), torch.einsum("bihd,bjhd->bhij", *turned))
    unturned = 3 - FixedFrames(6, axes=2)(cells).planes  # head_dim 6: one of three planes belongs to no axis
    return Measured(worst(rope, rope2d, _tree(draw), _rotate_e(draw)), gap=float(unturned))


def _rope(x: Tensor, angles: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.exp(1j * angles)[:, None]
    return torch.view_as_real(turned).flatten(-2)


def _tree(draw: Draw) -> float:
    """Σ cos(θ_src − θ_dst) = planes − ‖x_src − x_dst‖², x Shiv and Quirk's one-hot codes of the two paths."""
    parents = [-1, *(int(draw.whole(low=0, high=n)) for n in range(1, 7))]
    paths = positions.tree(parents)
    branches, depth = 6, paths.shape[1]
    module = TreeFrames.one_hot(branches=branches, depth=depth).double()
    module.reset_parameters()  # a quarter turn in float64
    frames = module(paths)
    code = (paths.unsqueeze(-1) == torch.arange(branches)).to(torch.float64).flatten(-2)
    e = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(branches * depth).expand(1, 7, 1, -1)
    return gap(scores(e, e, frames)[0, 0], branches * depth - torch.cdist(code, code).square())


def _rotate_e(draw: Draw) -> float:
    """margin − Σ_planes |R(θ_r) h − t| with the journey of a relation acting on the head."""
    with draw.torch_seed():
        model = RotatE(5, 3, 8)
    h, r, t = draw.whole(3, 6, low=0, high=3).unbind()
    moved = model.group.act(model.angles[r], model.entities[h]) - model.entities[t]
    expected = model.margin - moved.unflatten(-1, (-1, 2)).norm(dim=-1).sum(-1)
    return gap(model(h, r, t), expected)


def commutant(matrices: Tensor) -> Tensor:
    """A basis (dimension, d, d) of all X with X M = M X for the given M (count, d, d)."""
    d = matrices.shape[-1]
    eye = torch.eye(d, dtype=matrices.dtype)
    system = torch.cat([torch.kron(eye, m.mT.contiguous()) - torch.kron(m.contiguous(), eye) for m in matrices])
    _, sizes, basis = torch.linalg.svd(system)
    return basis[int((sizes > 1e-9).sum()) :].reshape(-1, d, d)


@claim(
    15,
    "thm:toral",
    "H",
    "bilinear, invariant under toral frames, a cocycle, norm-preserving: then B is a block rotation, θ_k(s) − θ_k(s')",
    "as printed; the commutant has dimension d, and θ_k(s) may be any function of s",
    gap="a rotation outside the torus breaks the frame invariance by",
)
def toral_classification(draw: Draw) -> Measured:
    torus = Torus(3)
    basis = commutant(torus.matrix(draw.noise(4, 3)))
    dimension = abs(len(basis) - torus.dim)
    member = torch.einsum("n,nij->ij", draw.noise(len(basis)), basis)
    a, b = member.diagonal()[::2], member.diagonal(-1)[::2]
    blocks = torus.matrix(torch.atan2(b, a)) * torch.hypot(a, b).repeat_interleave(2)[:, None]
    gauge = draw.noise(3, 3)  # θ(s) for three positions, any numbers
    pair = lambda s, t: torus.matrix(torus.multiply(gauge[s], torus.inverse(gauge[t])))  # noqa: E731
    frame = torus.matrix(draw.noise(3))
    cocycle = worst(
        gap(pair(0, 1) @ pair(1, 2), pair(0, 2)),
        gap(pair(1, 1), torch.eye(6, dtype=torch.float64)),
        gap(frame.mT @ pair(0, 1) @ frame, pair(0, 1)),
        gap(pair(0, 2) @ torch.linalg.inv(pair(1, 2)), pair(0, 1)),
    )
    outside = draw.rotations(dim=6)
    return Measured(worst(dimension, gap(member, blocks), cocycle), gap=gap(frame.mT @ outside @ frame, outside))


@claim(
    16,
    "thm:od-impossibility",
    "H",
    "with all of O(d) as frame symmetry, B is a multiple of the identity",
    "as printed; the commutant has dimension 1",
    gap="a toral B breaks the symmetry by",
)
def od_impossibility(draw: Draw) -> Measured:
    group = Orthogonal(4)
    basis = commutant(group.matrix(draw.rotations(3)))
    scalar = basis[0] / basis[0].diagonal().mean()
    toral = Torus(2).matrix(draw.noise(2))
    frame = draw.rotations()
    return Measured(
        worst(abs(len(basis) - 1), gap(scalar, torch.eye(4, dtype=torch.float64))),
        gap=gap(frame.mT @ toral @ frame, toral),
    )


@claim(
    17,
    "app:v-rotation-proof",
    "C",
    "with displacement-only weights and commuting generators, value transport is translation equivariant",
    "on an unbounded grid; a circular one of N cells also needs R^N = I. The reflection counterexample is right",
    gap="curved, off the circle's grid, or reflected, it is off by",
)
def equivariance(draw: Draw) -> Measured:
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    table, v = draw.noise(5, 5), draw.noise(9, 4)
    delta = cells[None] - cells[:, None] + 2
    weights = table[delta[..., 0], delta[..., 1]]

    def moved(generators: Generators) -> float:
        here, there = absolute(generators, cells), absolute(generators, cells + torch.tensor([7, -4]))
        outs = [value_path(weights, v, group=generators.group, src=at, dst=at) for at in (here, there)]
        return gap(*outs)

    def round_the_circle(angles: Tensor) -> float:
        line = Generators.torus(angles)
        at, w = absolute(line, torch.arange(6)[:, None]), draw.noise(6)
        ring = w[(torch.arange(6)[None] - torch.arange(6)[:, None]) % 6]
        v = draw.noise(6, 4)
        out, shifted = (value_path(ring, x, group=line.group, src=at, dst=at) for x in (v, v.roll(1, 0)))
        return gap(shifted, out.roll(1, 0))

    quarter, mirror = (
        Torus(1).matrix(torch.tensor([torch.pi / 4], dtype=torch.float64)),
        torch.diag(torch.tensor([1.0, -1.0])),
    )
    counterexample = Generators.orthogonal(torch.stack([quarter, mirror.double()]))
    group, at = counterexample.group, absolute(counterexample, [[1, 1], [0, 1], [1, 0], [0, 0]])
    reflected = gap(journey(group, src=at[0], dst=at[1]), journey(group, src=at[2], dst=at[3]))
    regular = 2 * torch.pi / 6 * torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    return Measured(
        worst(moved(draw.flat(2)), round_the_circle(regular)),
        gap=min(moved(draw.curved(2)), round_the_circle(regular + draw.uniform(1, 2, low=0.1, high=0.4)), reflected),
    )


@claim(
    18,
    "rem:operator-scope",
    "W",
    "no equivariance remains for the whole softmax layer",
    "with positions as an argument F(x, pos + u) = F(x, pos) exactly for the whole layer, with fixed or learned frames "
    "and with a base and projected angles",
    gap="what does change is an additive position code, by",
)
def whole_layer(draw: Draw) -> Measured:
    x, where = draw.noise(2, 6, 16), positions.grid(2, 3)
    with draw.torch_seed():
        layer = JourneyAttention(16, 2)
        projected = ProjectedFrames(16, 8, heads=2, axes=2).double()
        nn.init.normal_(projected.projector.w2.weight)
        learned = LearnedFrames(8, axes=2, heads=2)
        nn.init.normal_(learned.frequencies)
    modules: list[FramesModule] = [FixedFrames(8, axes=2), learned, projected]
    by = torch.tensor([113.0, -40.0], dtype=torch.float64)
    moved = [gap(layer(x, module(where + by, x)), layer(x, module(where, x))) for module in modules]
    still = FixedFrames(8, axes=2)(where * 0)
    additive = [layer(x + torch.cat([n.sin(), n.cos()], -1).repeat(1, 4), still) for n in (where, where + by)]
    return Measured(worst(*moved), gap=gap(*additive))


@claim(
    19,
    "ssec:variants",
    "C",
    "KᵀQ ordering is equivalent to QᵀK",
    "the scalars are the same; the softmax must still run over the keys",
    gap="with the softmax over queries it is off by",
)
def score_ordering(draw: Draw) -> Measured:
    q, k, v = heads(draw, 5)
    frames = FixedFrames(8)(positions.sequence(5))
    kq = torch.einsum("bjhd,bihd->bhji", rotate(k, frames), rotate(q, frames)) / 8**0.5
    attend = lambda weights: rotate(torch.einsum("bhji,bjhd->bihd", weights, rotate(v, frames)), frames, inverse=True)  # noqa: E731
    out = journey_attention(q, k, v, frames)
    return Measured(gap(attend(kq.softmax(2)), out), gap=gap(attend(kq.softmax(3)), out))


@claim(
    20,
    "sec:related",
    "C",
    "LieRE's dense rotations are path-dependent",
    "its operator is expm(Σ n_k S_k), not ∏ R_k^{n_k}: fixed by the end points, not by the displacement alone",
    gap="the same displacement elsewhere, or ∏ R_k^{n_k}, differs by",
)
def liere(draw: Draw) -> Measured:
    with draw.torch_seed():
        module = DenseFrames(4, axes=2).double()
        nn.init.normal_(module.generators)
    group = Orthogonal(4)
    n, m, via, n2, m2 = module(torch.tensor([[0.0, 1], [1, 0], [2, 2], [2, 2], [3, 1]]).double()).matrices[0, :, 0, 0]
    direct = journey(group, src=n, dst=m)
    legs = group.multiply(journey(group, src=via, dst=m), journey(group, src=n, dst=via))
    skew = (module.generators - module.generators.mT)[:, 0].detach()
    product = torch.matrix_exp(2 * skew[0]) @ torch.matrix_exp(2 * skew[1])
    return Measured(
        worst(gap(legs, direct), gap(via, torch.matrix_exp(2 * skew[0] + 2 * skew[1]))),
        gap=min(gap(journey(group, src=n2, dst=m2), direct), gap(via, product)),
    )


@claim(
    21,
    "prop:ssm-bridge",
    "C",
    "h_T = Σ_t (∏_{s=t+1}^T A_s) v_t",
    "with the product descending, A_T ⋯ A_{t+1}, and h_0 = 0",
)
def ssm_unrolling(draw: Draw) -> Measured:
    a, v = draw.rotations(6), draw.noise(6, 4)
    h, states = torch.zeros(4, dtype=torch.float64), []
    for step, value in zip(a, v, strict=True):
        h = step @ h + value
        states.append(h)
    unrolled = torch.einsum("tij,tj->i", ssm_kernel(a), v)
    ascending = (
        torch.stack([torch.linalg.multi_dot([*a[t + 1 :], v[t, :, None]])[:, 0] for t in range(5)]).sum(0) + v[5]
    )
    everywhere = hierarchy("selective_ssm", v, group=Orthogonal(4), steps=a)
    return Measured(worst(gap(unrolled, h), gap(everywhere, torch.stack(states))), gap=gap(ascending, h))


@claim(
    22,
    "app:value-path",
    "H",
    "the forward kernel K_{t→T} is the journey A_T⁻¹ A_t when A_t = R^{−t}",
    "as printed; in general C_t = (A_t ⋯ A_1)⁻¹ gives C_T⁻¹ C_t = K_{t→T}",
    gap="with A_t = R^t it is off by",
)
def forward_kernel(draw: Draw) -> Measured:
    group, a = Orthogonal(4), draw.rotations(6)
    # (A_t ⋯ A_1)⁻¹ = A_1⁻¹ ⋯ A_t⁻¹, an inclusive scan of the inverses.
    c = scan(group, group.inverse(a), exclusive=False)
    constant, steps = a[:1].expand(6, 4, 4), torch.arange(1, 7)
    by_sign = {sign: gap(_to_last(group, group.power(a[0], sign * steps)), ssm_kernel(constant)) for sign in (-1, 1)}
    return Measured(worst(gap(_to_last(group, c), ssm_kernel(a)), by_sign[-1]), gap=by_sign[1])


def _to_last(group: Group, at: Tensor) -> Tensor:
    return journey(group, src=at, dst=at[-1])


@claim(
    23,
    "eq:projected",
    "W",
    "θ = W₂ GELU(W₁ LN(x)) with zeroed weights matches the fixed angles",
    "θ = ω·t + MLP(x) with only W₂ zero does (zeroing both kills every gradient); W₂'s bias would be gauge",
)
def zero_initialised(draw: Draw) -> Measured:
    x, where = draw.noise(2, 6, 16), positions.sequence(6)
    q, k, v = heads(draw, 6)
    with draw.torch_seed():
        with_base, printed = (ProjectedFrames(16, 8, heads=2, base=base).double() for base in ("fixed", "none"))
    nn.init.zeros_(printed.projector.w2.weight)
    fixed = journey_attention(q, k, v, FixedFrames(8)(where), causal=True)
    starts = gap(journey_attention(q, k, v, with_base(where, x), causal=True), fixed)
    biased = FlatFrames.of(with_base(where, x).angles + draw.noise(2, 4), content=True)
    gauge = gap(journey_attention(q, k, v, biased, causal=True), fixed)

    def gradient(module: ProjectedFrames) -> float:
        out = journey_attention(q, k, v, module(where, x), causal=True)
        grads = torch.autograd.grad(out.square().sum(), [module.projector.w1.weight, module.projector.w2.weight])
        return max(float(g.abs().max()) for g in grads)

    learns = gradient(with_base)
    nn.init.zeros_(with_base.projector.w1.weight)
    nn.init.zeros_(with_base.projector.w1.bias)
    dead = gradient(with_base)
    unmatched = gap(journey_attention(q, k, v, printed(where, x), causal=True), fixed)
    return Measured(worst(starts, gauge, dead), gap=min(unmatched, learns))


@claim(
    24,
    "eq:projected",
    "W",
    "projected angles give the model order",
    "alone and bidirectional the layer is permutation-equivariant: it needs a base, or a causal mask",
    gap="with a base the order shows, by",
)
def projected_order(draw: Draw) -> Measured:
    x, where = draw.noise(2, 6, 16), positions.sequence(6)
    with draw.torch_seed():
        layer = JourneyAttention(16, 2)
        alone, based = (ProjectedFrames(16, 8, heads=2, base=base).double() for base in ("none", "fixed"))
        nn.init.normal_(alone.projector.w2.weight)
    order = torch.arange(6).roll(int(draw.whole(low=1, high=6)))

    def apart(module: ProjectedFrames) -> float:
        out, permuted = layer(x, module(where, x)), layer(x[:, order], module(where, x[:, order]))
        return gap(permuted, out[:, order])

    return Measured(apart(alone), gap=apart(based))


@claim(
    25,
    "ssec:variants",
    "H",
    "the projector adds about 1.5 d² parameters a layer",
    "as printed (relative difference at d = 768)",
    tolerance=0.01,
)
def projector_size(draw: Draw) -> Measured:
    with torch.device("meta"):
        projector = ProjectedFrames(768, 96, heads=8).projector
    return Measured(abs(sum(p.numel() for p in projector.parameters()) / (1.5 * 768**2) - 1))
