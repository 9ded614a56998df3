"""docs/claims.md, "Attention and classification". Paper: "Journey Operator and Score/Value Attention" to "JoFormer"."""

from __future__ import annotations

from functools import partial

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
from joformer.frames import DenseFrames, FixedFrames, FlatFrames, Frames, LearnedFrames, ProjectedFrames, TreeFrames
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


def dense_frames(draw: Draw, dim: int) -> DenseFrames:
    """Curved frames on two axes with random generators."""
    with draw.torch_seed():
        module = DenseFrames(dim, axes=2).double()
        nn.init.normal_(module.generators)
    return module


@claim(13, "eq:score, eq:value-agg", "C")
def score_and_value_identities(draw: Draw) -> Measured:
    """Printed: (A_i q)ᵀ(A_j k) = qᵀ A_i⁻¹A_j k, and A_i⁻¹ Σ α A_j v = Σ α P_{j→i} v

    True: the first for orthogonal operators only, the second for any invertible ones
    Gap: with operators that are not orthogonal the scores are off by
    """
    q, k, v = heads(draw, 5)
    flat, bent = FlatFrames.of(draw.noise(1, 5, 1, 4)), dense_frames(draw, 8)(draw.noise(5, 2))

    def apart(frames: Frames, group: Group, operators: Tensor) -> float:
        """The fast path against the formulas, operators (batch, tokens, *element) shared by all heads."""
        at = operators.unsqueeze(1)
        by_journey = scores_path(q.transpose(1, 2), k.transpose(1, 2), group=group, src=at, dst=at)
        weights = (by_journey / 8**0.5).softmax(-1)
        values = value_path(weights, v.transpose(1, 2), group=group, src=at, dst=at).transpose(1, 2)
        return worst(gap(scores(q, k, frames), by_journey), gap(journey_attention(q, k, v, frames), values))

    orthogonal = worst(
        apart(flat, Torus(4), flat.angles[:, :, 0]), apart(bent, Orthogonal(8), bent.matrices[:, :, 0, 0])
    )
    general = torch.eye(4, dtype=torch.float64) + 0.3 * draw.noise(5, 4, 4)
    a, b, back = draw.noise(5, 4), draw.noise(5, 4), torch.linalg.inv(general)
    product = torch.einsum("iab,ib,jac,jc->ij", general, a, general, b)
    by_journey = torch.einsum("ia,iab,jbc,jc->ij", a, back, general, b)
    weights = draw.noise(5, 5)
    at_once = torch.einsum("ij,iab,jbc,jc->ia", weights, back, general, b)
    carried = torch.einsum("iab,ij,jbc,jc->ia", back, weights, general, b)
    return Measured(worst(orthogonal, gap(at_once, carried)), gap=gap(product, by_journey))


@claim(14, "ssec:journey, ssec:toral, sec:intro", "H")
def special_cases(draw: Draw) -> Measured:
    """Printed: RoPE, 2D-RoPE, tree encodings and RotatE are special cases

    True: as printed; 2D axial needs head_dim % 4 = 0; the last two are derived here, the paper only asserts them
    Gap: planes of a head of 6 that no axis of an axial grid rotates
    """
    q, k = heads(draw, 6, count=2)

    def apart(frames: Frames, angles: Tensor) -> float:
        """Our scores against complex numbers rotated by angles (tokens, planes)."""
        numbers = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (q, k))
        rotated = (torch.view_as_real(z * torch.exp(1j * angles)[:, None]).flatten(-2) for z in numbers)
        return gap(scores(q, k, frames), torch.einsum("bihd,bjhd->bhij", *rotated))

    omega = 10000.0 ** (-torch.arange(4, dtype=torch.float64) / 4)
    rope = apart(FixedFrames(8)(positions.sequence(6)), torch.arange(6.0).double()[:, None] * omega)
    cells, omega = positions.grid(2, 3), 100.0 ** (-torch.arange(2, dtype=torch.float64) / 2)
    axial = torch.cat([cells[:, :1] * omega, cells[:, 1:] * omega], -1)
    rope2d = apart(FixedFrames(8, axes=2, base=100.0)(cells), axial)
    without_axis = 3 - FixedFrames(6, axes=2)(cells).planes  # of the three planes of head_dim 6
    return Measured(worst(rope, rope2d, _tree(draw), _rotate_e(draw)), gap=float(without_axis))


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
    """The score margin − Σ_planes |h e^{iθ_r} − t|, e^{iθ_r} being the transport along one step, relation r."""
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


@claim(15, "thm:toral, lem:cocycle, app:cocycle-primitives", "H")
def toral_classification(draw: Draw) -> Measured:
    """Printed: bilinear, invariant under toral frames, a cocycle, norm-preserving: then B is a block rotation, θ_k(s) −
    θ_k(s'); a cocycle factors as R_s R_s'⁻¹; invertible and composable is a cocycle

    True: as printed; the commutant has dimension d, and θ_k(s) may be any function of s
    Gap: a B outside the torus, one that stretches, and one that cannot be inverted each break an axiom by
    """
    torus, eye = Torus(3), torch.eye(6, dtype=torch.float64)
    basis = commutant(torus.matrix(draw.noise(4, 3)))
    dimension = abs(len(basis) - torus.dim)
    member = torch.einsum("n,nij->ij", draw.noise(len(basis)), basis)
    a, b = member.diagonal()[::2], member.diagonal(-1)[::2]
    stretch = torch.hypot(a, b).repeat_interleave(2)[:, None]
    rotation = torus.matrix(torch.atan2(b, a))
    gauge = draw.noise(3, 3)  # θ(s) for three positions, any numbers

    def pair(s: int, t: int) -> Tensor:
        return torus.matrix(torus.multiply(gauge[s], torus.inverse(gauge[t])))

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


@claim(16, "thm:od-impossibility", "H")
def od_impossibility(draw: Draw) -> Measured:
    """Printed: with all of O(d) as frame symmetry, B is a multiple of the identity

    True: as printed; the commutant has dimension 1
    Gap: a toral B breaks the symmetry by
    """
    group = Orthogonal(4)
    basis = commutant(group.matrix(draw.rotations(3)))
    scalar = basis[0] / basis[0].diagonal().mean()
    toral = Torus(2).matrix(draw.uniform(2, low=1.0, high=2.0))
    frame = draw.rotations()
    return Measured(
        worst(abs(len(basis) - 1), gap(scalar, torch.eye(4, dtype=torch.float64))),
        gap=gap(frame.mT @ toral @ frame, toral),
    )


@claim(17, "app:v-rotation-proof", "C")
def equivariance(draw: Draw) -> Measured:
    """Printed: with displacement-only weights and commuting generators, value transport is translation equivariant

    True: on an unbounded grid; a circular one of N cells also needs R^N = I. The reflection counterexample is right
    Gap: curved, off the circle's grid, or reflected, it is off by
    """
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    table, v = draw.noise(5, 5), draw.noise(9, 4)
    delta = cells[None] - cells[:, None] + 2
    weights = table[delta[..., 0], delta[..., 1]]

    def changed(generators: Generators) -> float:
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

    eighth = Torus(1).matrix(torch.tensor([torch.pi / 4], dtype=torch.float64))
    counterexample = Generators.orthogonal(torch.stack([eighth, torch.diag(torch.tensor([1.0, -1.0])).double()]))
    group, at = counterexample.group, absolute(counterexample, [[1, 1], [0, 1], [1, 0], [0, 0]])
    reflected = gap(journey(group, src=at[0], dst=at[1]), journey(group, src=at[2], dst=at[3]))
    regular = 2 * torch.pi / 6 * torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    between = max(round_the_circle(regular + draw.uniform(1, 2, low=0.3, high=0.6)) for _ in range(4))
    holds = worst(changed(draw.flat(2)), round_the_circle(regular))
    return Measured(holds, gap=min(changed(draw.curved(2)), between, reflected))


@claim(18, "rem:operator-scope", "W")
def whole_layer(draw: Draw) -> Measured:
    """Printed: with content-dependent weights no full equivariance guarantee remains for the layer

    True: too pessimistic: with positions as an argument F(x, pos + u) = F(x, pos) exactly for the whole softmax layer,
    with fixed or learned frames and with a base and projected angles
    Gap: what does change with the shift is a layer with curved frames, by
    """
    x, where = draw.noise(2, 6, 16), positions.grid(2, 3)
    with draw.torch_seed():
        layer = JourneyAttention(16, 2)
        learned = LearnedFrames(8, axes=2, heads=2)
        projected = ProjectedFrames(16, 8, heads=2, axes=2).double()
        dense = DenseFrames(8, axes=2).double()
        for weights in (learned.frequencies, projected.projector.w2.weight, dense.generators):
            nn.init.normal_(weights)
    by = torch.tensor([113.0, -40.0], dtype=torch.float64)
    modules = (FixedFrames(8, axes=2), learned, projected, dense)
    *flat, bent = (gap(layer(x, module(where + by, x)), layer(x, module(where, x))) for module in modules)
    return Measured(worst(*flat), gap=bent)


@claim(19, "ssec:variants", "C")
def score_ordering(draw: Draw) -> Measured:
    """Printed: KᵀQ ordering is equivalent to QᵀK

    True: the scalars are the same; the softmax must still run over the keys
    Gap: with the softmax over queries it is off by
    """
    q, k, v = heads(draw, 5)
    frames = FixedFrames(8)(positions.sequence(5))
    kq = torch.einsum("bjhd,bihd->bhji", rotate(k, frames), rotate(q, frames)) / 8**0.5
    over_keys, over_queries = (
        rotate(torch.einsum("bhji,bjhd->bihd", kq.softmax(dim), rotate(v, frames)), frames, inverse=True)
        for dim in (2, 3)
    )
    out = journey_attention(q, k, v, frames)
    return Measured(gap(over_keys, out), gap=gap(over_queries, out))


@claim(20, "sec:related", "C")
def liere(draw: Draw) -> Measured:
    """Printed: LieRE's dense rotations are path-dependent

    True: its operator is expm(Σ n_k S_k), not ∏ R_k^{n_k}: fixed by the end points, not by the displacement alone
    Gap: the same displacement elsewhere, or ∏ R_k^{n_k}, differs by
    """
    module, group = dense_frames(draw, 4), Orthogonal(4)
    n, m, via, n2, m2 = module(torch.tensor([[0.0, 1], [1, 0], [2, 2], [2, 2], [3, 1]]).double()).matrices[0, :, 0, 0]
    direct = journey(group, src=n, dst=m)
    legs = group.multiply(journey(group, src=via, dst=m), journey(group, src=n, dst=via))
    skew = (module.generators - module.generators.mT)[:, 0].detach()
    product = torch.matrix_exp(2 * skew[0]) @ torch.matrix_exp(2 * skew[1])
    return Measured(
        worst(gap(legs, direct), gap(via, torch.matrix_exp(2 * skew[0] + 2 * skew[1]))),
        gap=min(gap(journey(group, src=n2, dst=m2), direct), gap(via, product)),
    )


def recurrence(a: Tensor, v: Tensor, start: float) -> Tensor:
    """All states h_t = A_t h_{t−1} + v_t of steps a (T, d, d) and inputs v (T, d), every entry of h_0 being `start`."""
    states = [torch.full_like(v[0], start)]
    for step, value in zip(a, v, strict=True):
        states.append(step @ states[-1] + value)
    return torch.stack(states[1:])


@claim(21, "prop:ssm-bridge", "C")
def ssm_unrolling(draw: Draw) -> Measured:
    """Printed: h_T = Σ_t (∏_{s=t+1}^T A_s) v_t

    True: with the product descending, A_T ⋯ A_{t+1} (as the proof writes it, the proposition does not), and h_0 = 0
    Gap: with the product ascending, or h_0 ≠ 0, it is off by
    """
    a, v = draw.rotations(6), draw.noise(6, 4)
    states = recurrence(a, v, start=0.0)
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
    ours = gap(by_formula, layer(x)[0][0], torch.stack(by_steps))
    printed = torch.stack(ascending).sum(0) + v[5]
    return Measured(
        worst(gap(unrolled, states[-1]), gap(everywhere, states), ours),
        gap=min(gap(printed, states[-1]), gap(recurrence(a, v, start=1.0)[-1], unrolled)),
    )


@claim(22, "app:value-path", "H")
def forward_kernel(draw: Draw) -> Measured:
    """Printed: the forward kernel K_{t→T} is the journey A_T⁻¹ A_t when A_t = R^{−t}

    True: as printed; in general C_t = (A_t ⋯ A_1)⁻¹ gives C_T⁻¹ C_t = K_{t→T}
    Gap: with A_t = R^t it is off by
    """
    group, a, v = Orthogonal(4), draw.rotations(6), draw.noise(6, 4)
    # (A_t ⋯ A_1)⁻¹ = A_1⁻¹ ⋯ A_t⁻¹, an inclusive scan of the inverses.
    c = scan(group, group.inverse(a), exclusive=False)
    constant, steps = a[:1].expand(6, 4, 4), torch.arange(1, 7)

    def apart(at: Tensor, transitions: Tensor) -> float:
        """The journeys to the last of these operators against the kernel."""
        return gap(journey(group, src=at, dst=at[-1]), ssm_kernel(transitions))

    backward, forward = (apart(group.power(a[0], sign * steps), constant) for sign in (-1, 1))
    weights = draw.noise(6, 6).softmax(-1)
    journeys = torch.stack([journey(group, src=a, dst=a[i]) for i in range(6)])
    joformer = torch.einsum("ij,ijde,je->id", weights, journeys, v)
    kernels = [
        gap(hierarchy("linear_ssm", v, group=group, steps=a[0]), recurrence(constant, v, start=0.0)),
        gap(hierarchy("attention", v, group=group, weights=weights), weights @ v),
        gap(hierarchy("joformer", v, group=group, operators=a, weights=weights), joformer),
    ]
    return Measured(worst(apart(c, a), backward, *kernels), gap=forward)


@claim(23, "Length Generalization, stage 3; eq:projected", "W")
def zero_initialised(draw: Draw) -> Measured:
    """Printed: θ = W₂ GELU(W₁ LN(x)) with a zero-initialised projector starts at the fixed angles

    True: the formula has no ω·t. θ = ω·t + MLP(x) with only W₂ zero does start there (zeroing both layers kills every
    gradient); W₂'s bias would be gauge and is left out
    Gap: the printed start, and the gradient that is left when both layers are zero, fall short by
    """
    x, where = draw.noise(2, 6, 16), positions.sequence(6)
    q, k, v = heads(draw, 6)
    with draw.torch_seed():
        with_base, printed = (ProjectedFrames(16, 8, heads=2, on=base).double() for base in ("fixed", "none"))
    nn.init.zeros_(printed.projector.w2.weight)
    attend = partial(journey_attention, q, k, v, causal=True)
    biased = FlatFrames.of(with_base(where, x).angles + draw.noise(2, 4), content=True)
    fixed = attend(FixedFrames(8)(where))
    starts = gap(fixed, attend(with_base(where, x)), attend(biased))

    def gradient(module: ProjectedFrames) -> float:
        out = attend(module(where, x))
        grads = torch.autograd.grad(out.square().sum(), list(module.projector.parameters()))
        return max(float(g.abs().max()) for g in grads)

    learns = gradient(with_base)
    nn.init.zeros_(with_base.projector.w1.weight)
    nn.init.zeros_(with_base.projector.w1.bias)
    dead, has_bias = gradient(with_base), with_base.projector.w2.bias is not None
    unmatched = gap(attend(printed(where, x)), fixed)
    return Measured(worst(starts, dead, has_bias), gap=min(unmatched, learns - dead))


@claim(24, "eq:projected", "W")
def projected_order(draw: Draw) -> Measured:
    """Printed: θ(x) alone serves as a position encoding

    True: alone and bidirectional the layer is permutation-equivariant: it needs a base (fixed or learned) or a causal
    mask
    Gap: with a base, or with a causal mask, the order shows by
    """
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


@claim(25, "ssec:variants", "H", tolerance=0.01)
def projector_size(draw: Draw) -> Measured:
    """Printed: the projector adds about 1.5 d² parameters per layer

    True: as printed (relative difference at d = 768)
    """
    with torch.device("meta"):
        projector = ProjectedFrames(768, 96, heads=8).projector
    return Measured(abs(sum(p.numel() for p in projector.parameters()) / (1.5 * 768**2) - 1))
