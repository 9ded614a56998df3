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
    path_transport,
    scan,
    scores_path,
    ssm_kernel,
    value_path,
)
from joformer.attention import JourneyAttention, journey_attention
from joformer.frames import (
    DenseFrames,
    FixedFrames,
    FlatFrames,
    Frames,
    FramesModule,
    LearnedFrames,
    ProjectedFrames,
    TreeFrames,
)
from joformer.models import JourneySSM, RotatE
from joformer.rotation import rotate
from joformer.verify._claims import Draw, Measured, Section, gap, worst

claim = Section("attention")


def scores(q: Tensor, k: Tensor, frames: Frames) -> Tensor:
    """(A_i q_i)ᵀ(A_j k_j) with the library's rotation; q, k (batch, tokens, heads, dim) → (batch, heads, i, j)."""
    return torch.einsum("bihd,bjhd->bhij", rotate(q, frames), rotate(k, frames))


def heads(draw: Draw, tokens: int, dim: int = 8, count: int = 3) -> tuple[Tensor, ...]:
    """`count` tensors (2, tokens, 2 heads, dim)."""
    return draw.noise(count, 2, tokens, 2, dim).unbind()


@claim(
    13,
    "eq:score, eq:value-agg",
    "C",
    "(A_i q)ᵀ(A_j k) = qᵀ A_i⁻¹A_j k, and A_i⁻¹ Σ α A_j v = Σ α P_{j→i} v",
    "the first for orthogonal operators only, the second for any invertible ones",
    gap="with operators that are not orthogonal the scores are off by",
)
def score_and_value_identities(draw: Draw) -> Measured:
    q, k, v = heads(draw, 5)
    with draw.torch_seed():
        dense = DenseFrames(8, axes=2).double()
        nn.init.normal_(dense.generators)
    flat, bent = FlatFrames.of(draw.noise(1, 5, 1, 4)), dense(draw.noise(5, 2))
    off = []
    groups: list[tuple[Frames, Group, Tensor]] = [
        (flat, Torus(4), flat.angles[:, :, 0].unsqueeze(1)),
        (bent, Orthogonal(8), bent.matrices[:, :, 0, 0].unsqueeze(1)),
    ]
    for frames, group, at in groups:
        by_journey = scores_path(q.transpose(1, 2), k.transpose(1, 2), group=group, src=at, dst=at)
        weights = (by_journey / 8**0.5).softmax(-1)
        values = value_path(weights, v.transpose(1, 2), group=group, src=at, dst=at).transpose(1, 2)
        off += [gap(scores(q, k, frames), by_journey), gap(journey_attention(q, k, v, frames), values)]
    general = torch.eye(4, dtype=torch.float64) + 0.3 * draw.noise(5, 4, 4)
    a, b, back = draw.noise(5, 4), draw.noise(5, 4), torch.linalg.inv(general)
    moved = torch.einsum("iab,ib,jac,jc->ij", general, a, general, b)
    conjugated = torch.einsum("ia,iab,jbc,jc->ij", a, back, general, b)
    weights = draw.noise(5, 5)
    at_once = torch.einsum("ij,iab,jbc,jc->ia", weights, back, general, b)
    carried = torch.einsum("iab,ij,jbc,jc->ia", back, weights, general, b)
    return Measured(worst(*off, gap(at_once, carried)), gap=gap(moved, conjugated))


@claim(
    14,
    "ssec:journey, ssec:toral, sec:intro",
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
    """margin − Σ_planes |h e^{iθ_r} − t|, and e^{iθ_r} as the transport along a path of one step, relation r."""
    with draw.torch_seed():
        model = RotatE(5, 3, 8)
    h, r, t = draw.whole(3, 6, low=0, high=3).unbind()
    head, tail = (torch.view_as_complex(model.entities[n].detach().unflatten(-1, (-1, 2))) for n in (h, t))
    steps = torch.stack([path_transport(model.generators, [int(n)]) for n in r]).detach()
    expected = model.margin - (head * torch.exp(1j * steps) - tail).abs().sum(-1)
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
    "thm:toral, lem:cocycle, app:cocycle-primitives",
    "H",
    "bilinear, invariant under toral frames, a cocycle, norm-preserving: then B is a block rotation, θ_k(s) − θ_k(s'); "
    "a cocycle factors as R_s R_s'⁻¹; invertible and composable is a cocycle",
    "as printed; the commutant has dimension d, and θ_k(s) may be any function of s",
    gap="a B outside the torus, one that stretches, and one that cannot be inverted each break an axiom by",
)
def toral_classification(draw: Draw) -> Measured:
    torus, eye = Torus(3), torch.eye(6, dtype=torch.float64)
    basis = commutant(torus.matrix(draw.noise(4, 3)))
    dimension = abs(len(basis) - torus.dim)
    member = torch.einsum("n,nij->ij", draw.noise(len(basis)), basis)
    a, b = member.diagonal()[::2], member.diagonal(-1)[::2]
    stretch = torch.hypot(a, b).repeat_interleave(2)[:, None]
    rotation = torus.matrix(torch.atan2(b, a))
    gauge = draw.noise(3, 3)  # θ(s) for three positions, any numbers
    pair = lambda s, t: torus.matrix(torus.multiply(gauge[s], torus.inverse(gauge[t])))  # noqa: E731
    frame = torus.matrix(draw.noise(3))
    holds = worst(
        dimension,
        gap(member, rotation * stretch),  # frame invariance leaves a rotation and a stretch in every plane
        gap(member / stretch @ (member / stretch).mT, eye),  # norm preservation leaves the rotation
        gap(pair(0, 1) @ pair(1, 2), pair(0, 2)),
        gap(pair(1, 1), eye),
        gap(frame.mT @ pair(0, 1) @ frame, pair(0, 1)),
        gap(pair(0, 2) @ torch.linalg.inv(pair(1, 2)), pair(0, 1)),  # the factors R_s = B_{s,s₀}
    )
    outside, projection = draw.rotations(dim=6), torch.diag(torch.tensor([1.0] * 5 + [0.0])).double()
    composes = gap(projection @ projection, projection)
    return Measured(
        worst(holds, composes),
        gap=min(gap(frame.mT @ outside @ frame, outside), gap(member @ member.mT, eye), gap(projection, eye)),
    )


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
    toral = Torus(2).matrix(draw.uniform(2, low=1.0, high=2.0))
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
        """The largest change of the output under four shifts."""
        shifts = torch.tensor([[0, 0], [7, -4], [1, 0], [0, 1], [2, 5]])
        places = (absolute(generators, cells + shift) for shift in shifts)
        here, *there = (value_path(weights, v, group=generators.group, src=at, dst=at) for at in places)
        return max(gap(here, out) for out in there)

    def round_the_circle(angles: Tensor) -> float:
        line = Generators.torus(angles)
        at, w = absolute(line, torch.arange(6)[:, None]), draw.uniform(6, low=0.5, high=1.5)
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
    between = max(round_the_circle(regular + draw.uniform(1, 2, low=0.3, high=0.6)) for _ in range(4))
    return Measured(
        worst(moved(draw.flat(2)), round_the_circle(regular)),
        gap=min(moved(draw.curved(2)), between, reflected),
    )


@claim(
    18,
    "rem:operator-scope",
    "W",
    "with content-dependent weights no full equivariance guarantee remains for the layer",
    "too pessimistic: with positions as an argument F(x, pos + u) = F(x, pos) exactly for the whole softmax layer, "
    "with fixed or learned frames and with a base and projected angles",
    gap="what does change with the shift is a layer with curved frames, by",
)
def whole_layer(draw: Draw) -> Measured:
    x, where = draw.noise(2, 6, 16), positions.grid(2, 3)
    with draw.torch_seed():
        layer = JourneyAttention(16, 2)
        learned = LearnedFrames(8, axes=2, heads=2)
        projected = ProjectedFrames(16, 8, heads=2, axes=2).double()
        dense = DenseFrames(8, axes=2).double()
        for weights in (learned.frequencies, projected.projector.w2.weight, dense.generators):
            nn.init.normal_(weights)
    by = torch.tensor([113.0, -40.0], dtype=torch.float64)
    modules: list[FramesModule] = [FixedFrames(8, axes=2), learned, projected, dense]
    *flat, bent = (gap(layer(x, module(where + by, x)), layer(x, module(where, x))) for module in modules)
    return Measured(worst(*flat), gap=bent)


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
    "with the product descending, A_T ⋯ A_{t+1} (as the proof writes it, the proposition does not), and h_0 = 0",
    gap="with the product ascending, or h_0 ≠ 0, it is off by",
)
def ssm_unrolling(draw: Draw) -> Measured:
    a, v = draw.rotations(6), draw.noise(6, 4)

    def recurrence(start: Tensor) -> Tensor:
        states = [start]
        for step, value in zip(a, v, strict=True):
            states.append(step @ states[-1] + value)
        return torch.stack(states[1:])

    states = recurrence(torch.zeros(4, dtype=torch.float64))
    unrolled = torch.einsum("tij,tj->i", ssm_kernel(a), v)
    ascending = [torch.linalg.multi_dot([*a[t + 1 :], v[t, :, None]])[:, 0] for t in range(5)]
    everywhere = hierarchy("selective_ssm", v, group=Orthogonal(4), steps=a)
    with draw.torch_seed():
        layer, x = JourneySSM(8, heads=2).double(), draw.noise(1, 40, 8)
        projector = layer.transition.projector
        assert projector is not None
        nn.init.normal_(projector.w2.weight)
    angles, rates = (t.detach()[0].movedim(1, 0) for t in layer.transition(x))
    per_head = layer.values(x)[0].unflatten(-1, (2, 4)).movedim(1, 0)
    since = -rates.cumsum(-1)
    decay = (since.unsqueeze(-1) - since.unsqueeze(-2)).exp().tril()
    carried = hierarchy("selective_ssm", per_head, group=Torus(2), steps=angles, weights=decay)
    by_formula = layer.out(carried.movedim(0, 1).flatten(-2))
    by_steps, state = [], None
    for t in range(40):
        y, state = layer.step(x[:, t], state)
        by_steps.append(y[0])
    return Measured(
        worst(
            gap(unrolled, states[-1]),
            gap(everywhere, states),
            gap(layer(x)[0][0], by_formula),
            gap(torch.stack(by_steps), by_formula),
        ),
        gap=min(
            gap(torch.stack(ascending).sum(0) + v[5], states[-1]),
            gap(recurrence(torch.ones(4, dtype=torch.float64))[-1], unrolled),
        ),
    )


@claim(
    22,
    "app:value-path",
    "H",
    "the forward kernel K_{t→T} is the journey A_T⁻¹ A_t when A_t = R^{−t}",
    "as printed; in general C_t = (A_t ⋯ A_1)⁻¹ gives C_T⁻¹ C_t = K_{t→T}",
    gap="with A_t = R^t it is off by",
)
def forward_kernel(draw: Draw) -> Measured:
    group, a, v = Orthogonal(4), draw.rotations(6), draw.noise(6, 4)
    # (A_t ⋯ A_1)⁻¹ = A_1⁻¹ ⋯ A_t⁻¹, an inclusive scan of the inverses.
    c = scan(group, group.inverse(a), exclusive=False)
    constant, steps = a[:1].expand(6, 4, 4), torch.arange(1, 7)
    by_sign = {sign: gap(_to_last(group, group.power(a[0], sign * steps)), ssm_kernel(constant)) for sign in (-1, 1)}
    h, states = torch.zeros(4, dtype=torch.float64), []
    for value in v:
        h = a[0] @ h + value
        states.append(h)
    weights = draw.noise(6, 6).softmax(-1)
    journeys = torch.stack([journey(group, src=a, dst=a[i]) for i in range(6)])
    kernels = [
        gap(hierarchy("linear_ssm", v, group=group, steps=a[0]), torch.stack(states)),
        gap(hierarchy("attention", v, group=group, weights=weights), weights @ v),
        gap(
            hierarchy("joformer", v, group=group, operators=a, weights=weights),
            torch.einsum("ij,ijde,je->id", weights, journeys, v),
        ),
    ]
    return Measured(worst(gap(_to_last(group, c), ssm_kernel(a)), by_sign[-1], *kernels), gap=by_sign[1])


def _to_last(group: Group, at: Tensor) -> Tensor:
    return journey(group, src=at, dst=at[-1])


@claim(
    23,
    "Length Generalization, stage 3; eq:projected",
    "W",
    "θ = W₂ GELU(W₁ LN(x)) with a zero-initialised projector starts at the fixed angles",
    "the formula has no ω·t. θ = ω·t + MLP(x) with only W₂ zero does start there (zeroing both layers kills every "
    "gradient); W₂'s bias would be gauge and is left out",
    gap="the printed start, and the gradient that is left when both layers are zero, fall short by",
)
def zero_initialised(draw: Draw) -> Measured:
    x, where = draw.noise(2, 6, 16), positions.sequence(6)
    q, k, v = heads(draw, 6)
    with draw.torch_seed():
        with_base, printed = (ProjectedFrames(16, 8, heads=2, on=base).double() for base in ("fixed", "none"))
    nn.init.zeros_(printed.projector.w2.weight)
    fixed = journey_attention(q, k, v, FixedFrames(8)(where), causal=True)
    starts = gap(journey_attention(q, k, v, with_base(where, x), causal=True), fixed)
    biased = FlatFrames.of(with_base(where, x).angles + draw.noise(2, 4), content=True)
    gauge = gap(journey_attention(q, k, v, biased, causal=True), fixed)

    def gradient(module: ProjectedFrames) -> float:
        out = journey_attention(q, k, v, module(where, x), causal=True)
        grads = torch.autograd.grad(out.square().sum(), list(module.projector.parameters()))
        return max(float(g.abs().max()) for g in grads)

    learns = gradient(with_base)
    nn.init.zeros_(with_base.projector.w1.weight)
    nn.init.zeros_(with_base.projector.w1.bias)
    dead = gradient(with_base)
    unmatched = gap(journey_attention(q, k, v, printed(where, x), causal=True), fixed)
    return Measured(
        worst(starts, gauge, dead, with_base.projector.w2.bias is not None), gap=min(unmatched, learns - dead)
    )


@claim(
    24,
    "eq:projected",
    "W",
    "θ(x) alone serves as a position encoding",
    "alone and bidirectional the layer is permutation-equivariant: it needs a base (fixed or learned) or a causal mask",
    gap="with a base, or with a causal mask, the order shows by",
)
def projected_order(draw: Draw) -> Measured:
    x, where = draw.noise(2, 6, 16), positions.sequence(6)
    with draw.torch_seed():
        layer, causal = JourneyAttention(16, 2), JourneyAttention(16, 2, causal=True)
        modules = {base: ProjectedFrames(16, 8, heads=2, on=base).double() for base in ("none", "fixed", "learned")}
        for module in modules.values():
            nn.init.normal_(module.projector.w2.weight)
    order = torch.randperm(6, generator=draw.generator)
    order = order.roll(1) if bool((order == torch.arange(6)).all()) else order

    def apart(base: str, layer: JourneyAttention = layer) -> float:
        module = modules[base]
        out, permuted = layer(x, module(where, x)), layer(x[:, order], module(where, x[:, order]))
        return gap(permuted, out[:, order])

    return Measured(apart("none"), gap=min(apart("fixed"), apart("learned"), apart("none", causal)))


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
