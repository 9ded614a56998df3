"""docs/claims.md, "ALiBi, information, order".

Paper: "ALiBi Expressivity Separation", "Additional Theoretical Results".
"""

from __future__ import annotations

from functools import partial
from itertools import combinations, permutations
from math import log

import torch
from torch import Tensor, nn

from joformer import positions
from joformer.algebra import (
    Element,
    Generators,
    Orthogonal,
    Torus,
    absolute,
    compose_grid,
    concatenate,
    journey,
    scan,
    scores_path,
    split,
    unroll,
)
from joformer.attention import journey_attention
from joformer.frames import CumulativeFrames, FixedFrames, FramesModule, NoFrames, ProjectedFrames
from joformer.monoidal import m_representation
from joformer.verify._claims import Draw, Measured, Section, gap, worst

claim = Section("order")


def toral_scores(q: Tensor, k: Tensor, angles: Tensor, n: Tensor) -> Tensor:
    """qᵀ Rⁿ k for every n (count,): the score of a key n steps after the query; q, k (dim,), angles (planes,)."""
    line = Generators.torus(angles[None])
    keys = k.expand(len(n), -1)
    src, dst = absolute(line, n[:, None]), absolute(line, n[:1, None] * 0)
    return scores_path(q[None], keys, group=line.group, src=src, dst=dst)[0]


@claim(26, "prop:alibi-separation (a)", "W")
def sine_coefficient(draw: Draw) -> Measured:
    """Printed: qᵀRⁿk = Σ α_b cos(nθ_b) + β_b sin(nθ_b) with β_b = q₁k₂ − q₂k₁

    True: β_b = q₂k₁ − q₁k₂
    """
    q, k, angles = draw.noise(6), draw.noise(6), draw.uniform(3, low=0.2, high=2.9)
    n = torch.arange(-5, 6).double()
    (q1, q2), (k1, k2) = q.view(-1, 2).unbind(-1), k.view(-1, 2).unbind(-1)
    cos, sin = (n[:, None] * angles).cos(), (n[:, None] * angles).sin()
    true, printed = (cos @ (q1 * k1 + q2 * k2) + sin @ beta for beta in (q2 * k1 - q1 * k2, q1 * k2 - q2 * k1))
    found = toral_scores(q, k, angles, n)
    return Measured(gap(found, true), gap=gap(found, printed))


def score_dimension(angles: Tensor) -> int:
    """The dimension of the space of functions n ↦ qᵀRⁿk over all q and k."""
    dim, n = 2 * len(angles), torch.arange(-20, 21).double()
    eye = torch.eye(dim, dtype=torch.float64)
    functions = [toral_scores(eye[i], eye[j], angles, n) for i in range(dim) for j in range(dim)]
    return int(torch.linalg.matrix_rank(torch.stack(functions), rtol=1e-9))


@claim(27, "prop:alibi-separation (a)", "C", margin=1.0)
def score_span(draw: Draw) -> Measured:
    """Printed: the toral score spans d dimensions

    True: if the θ_b are distinct and strictly inside (0, π)
    Gap: dimensions lost at 0, at π, at a pair θ, 2π − θ, and at two that are equal
    """
    inside = torch.linspace(0.3, 2.8, 3, dtype=torch.float64) + draw.uniform(3, low=-0.2, high=0.2)
    _, second, third = inside.tolist()
    firsts = (0.0, torch.pi, 2 * torch.pi - second, second)
    edges = (torch.tensor([first, second, third], dtype=torch.float64) for first in firsts)
    return Measured(abs(score_dimension(inside) - 6), gap=min(6 - score_dimension(edge) for edge in edges))


@claim(28, "prop:alibi-separation (b)", "H")
def periodic_separation(draw: Draw) -> Measured:
    """Printed: cos(2πn/p), p ≥ 3, is a toral score and no ALiBi score

    True: as printed
    Gap: the best affine fit is off by
    """
    period = int(draw.whole(low=3, high=9))
    n = torch.arange(4 * period).double()
    wave = (2 * torch.pi * n / period).cos()
    e = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    toral = toral_scores(e, e, torch.tensor([2 * torch.pi / period, 0.7], dtype=torch.float64), n)
    affine = torch.stack([torch.ones_like(n), n], -1)
    fitted = affine @ torch.linalg.lstsq(affine, wave[:, None]).solution
    return Measured(gap(toral, wave), gap=gap(fitted[:, 0], wave))


@claim(29, "prop:alibi-separation (c)", "C")
def alibi_approximation(draw: Draw) -> Measured:
    """Printed: a toral score comes within ε of qᵀk − m·n on |n| ≤ N

    True: with the corrected sign of β the printed bound is right; the constant needs a plane with θ = 0
    Gap: with the printed sign, or the constant in a plane that rotates, it is off by
    """
    slope, reach, epsilon = float(draw.uniform(low=0.1, high=1.0)), 16, 0.01
    theta = (6 * epsilon / (slope * reach**3)) ** 0.5
    n = torch.arange(-reach, reach + 1).double()
    constant = float(draw.uniform(low=1.0, high=3.0))

    def error(sign: float, still: float) -> float:
        # q₂k₁ − q₁k₂ = −m/θ in the first plane; the constant in the second.
        q = torch.tensor([sign * slope / theta, 0.0, constant, 0.0], dtype=torch.float64)
        k = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
        angles = torch.tensor([theta, still], dtype=torch.float64)
        return gap(toral_scores(q, k, angles, n), constant - slope * n)

    return Measured(max(0.0, error(1.0, 0.0) - epsilon), gap=min(error(-1.0, 0.0), error(1.0, 0.7)))


@claim(30, "prop:alibi-separation (d)", "H")
def alibi_values(draw: Draw) -> Measured:
    """Printed: ALiBi leaves P = I: its values carry no position

    True: as printed
    Gap: with journeys on the values the output changes by
    """
    q, k, v = draw.noise(3, 1, 6, 2, 8).unbind()
    n = torch.arange(6).double()
    bias = -0.5 * (n[:, None] - n[None]).abs()
    weights = (torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5 + bias).softmax(-1)
    plain = torch.einsum("bhij,bjhd->bihd", weights, v)
    out = journey_attention(q, k, v, NoFrames()(positions.sequence(6)), transport="none", mask=bias)
    transported = journey_attention(q, k, v, FixedFrames(8)(positions.sequence(6)), transport="values", mask=bias)
    return Measured(gap(out, plain), gap=gap(transported, plain))


def fourier(angles: Tensor, n: int) -> Tensor:
    """Φ (n, planes), e^{iθ_k t} from the absolute operators of one axis."""
    return torch.exp(1j * absolute(Generators.torus(angles[None]), torch.arange(n)[:, None]))


@claim(31, "prop:dft-sufficiency", "C", tolerance=1e-6)
def dft_sufficiency(draw: Draw) -> Measured:
    """Printed: for a white source any K distinct frequencies reach I → (d/2) log(1 + N S₀/σ²), equispaced ones among
    them

    True: read as I − (d/2) log(1 + N S₀/σ²) → 0: both sides grow without bound
    Gap: I itself still grows, from N to 16 N by
    """
    count, short, long = 4, 4096, 65536
    apart = torch.linspace(0.3, 5.5, count, dtype=torch.float64) + draw.uniform(count, low=-0.3, high=0.3)
    equispaced = 2 * torch.pi * torch.arange(count).double() / count
    power = float(draw.uniform(low=0.5, high=2.0))

    def information(angles: Tensor, n: int) -> float:
        phi = fourier(angles, n)
        return float(torch.logdet(torch.eye(count) + power * (phi.mH @ phi)).real)

    excess = {n: abs(information(apart, n) - count * log(1 + n * power)) for n in (short, long)}
    regular = abs(information(equispaced, long) - count * log(1 + long * power))
    return Measured(
        worst(excess[long], regular, max(0.0, excess[long] - excess[short])),
        gap=information(apart, long) - information(apart, short),
    )


@claim(32, "prop:mse-gap", "W")
def learned_frequency_gain(draw: Draw) -> Measured:
    """Printed: MSE = Σ σ²S/(σ²+NS) falls as S grows, so the K largest S are best

    True: that term rises with S. MSE = Σ_all S − Σ_selected N S²/(σ²+N S); the K largest S are optimal
    Gap: choosing by the printed formula costs an error of
    """
    n, keep, noise = 16, 3, 0.5
    spectrum = draw.uniform(7, low=0.1, high=3.0).sort().values
    angles = 2 * torch.pi * torch.arange(1, 8).double() / n

    def error(chosen: tuple[int, ...]) -> float:
        """Σ of the posterior variances of the chosen coefficients, and the whole of the others."""
        phi = fourier(angles[list(chosen)], n)
        precision = torch.diag(1 / spectrum[list(chosen)]).to(phi.dtype) + phi.mH @ phi / noise
        rest = spectrum.sum() - spectrum[list(chosen)].sum()
        return float(torch.linalg.inv(precision).diagonal().real.sum() + rest)

    subsets, power = list(combinations(range(7), keep)), spectrum.tolist()
    corrected = {c: float(spectrum.sum()) - sum(n * power[i] ** 2 / (noise + n * power[i]) for i in c) for c in subsets}
    printed = {c: sum(noise * power[i] / (noise + n * power[i]) for i in c) for c in subsets}
    exact = {c: error(c) for c in subsets}
    best, by_print = (min(errors, key=errors.__getitem__) for errors in (exact, printed))
    agrees = worst(*(abs(exact[c] - corrected[c]) for c in subsets))
    return Measured(worst(agrees, set(best) != {4, 5, 6}), gap=exact[by_print] - exact[best])


@claim(33, "prop:context-sep", "C")
def context_separation(draw: Draw) -> Measured:
    """Printed: with content-dependent operators P_{j→k} = ∏_{t=j}^{k−1} R(x_t) sees what lies between j and k

    True: that product is P_{k→j}; fixed and pointwise projected angles do not see it, only cumulative ones, θ_t =
    Σ_{s<t} φ(x_s), do
    Gap: cumulative journeys see it, and P_{j→k} is not that product, by
    """
    where, x = positions.sequence(8), draw.noise(1, 8, 16)
    j, between, k = 1, 4, 6
    other = x.clone()
    other[:, between] += draw.noise(16)
    with draw.torch_seed():
        projected, cumulative = (kind(16, 8, heads=1).double() for kind in (ProjectedFrames, CumulativeFrames))
        for module in (projected, cumulative):
            nn.init.normal_(module.projector.w2.weight)
    torus = Torus(4)

    def changed(module: FramesModule) -> float:
        """How much the journey from k to j changes with what lies between."""
        angles = [module(where, content).angles[0, :, 0].detach() for content in (x, other)]
        return float(torus.distance(*(journey(torus, src=at[k], dst=at[j]) for at in angles)))

    steps = cumulative.projector(x)[0].detach()
    base = FixedFrames(8)(where).angles[0, :, 0]
    summed = torch.stack([base[t] + steps[:t].sum(0) for t in range(8)])
    sums = torus.distance(cumulative(where, x).angles[0, :, 0].detach(), summed).max()
    group, r = Orthogonal(4), draw.rotations(8)
    at, product = scan(group, r), torch.linalg.multi_dot(list(r[j:k]))
    return Measured(
        worst(changed(FixedFrames(8)), changed(projected), sums, gap(journey(group, src=at[k], dst=at[j]), product)),
        gap=min(changed(cumulative), gap(journey(group, src=at[j], dst=at[k]), product)),
    )


@claim(34, "thm:shift-inv", "H")
def shift_invariance(draw: Draw) -> Measured:
    """Printed: the circular m-representation does not change when the input is shifted along any axis

    True: as printed
    Gap: without circular windows it changes by
    """
    grid, x = draw.flat(2, planes=3), draw.noise(5, 6, 6)
    shifted = x.roll((int(draw.whole(low=1, high=5)), int(draw.whole(low=1, high=6))), (0, 1))
    both = [[m_representation(t, grid, window=3, circular=c) for t in (x, shifted)] for c in (True, False)]
    return Measured(gap(*both[0]), gap=gap(*both[1]))


@claim(35, "thm:order-aware", "C")
def order_awareness(draw: Draw) -> Measured:
    """Printed: with an irrational angle the m-representation tells permutations apart, generically

    True: but not a reversal of real (or collinear) content; a rational angle of order q > m is enough, q ≤ m is blind
    Gap: generic content, at an irrational angle and at order m + 1, tells every permutation apart by
    """
    m, planes = 4, 8  # the same angle in every plane, other content in each
    window = partial(m_representation, window=m, circular=False)

    def of_order(q: int) -> Generators:
        return Generators.torus(torch.full((1, planes), 2 * torch.pi / q, dtype=torch.float64))

    irrational = Generators.torus(draw.uniform(1, planes, low=0.5, high=2.5))
    generic, real = draw.noise(m, 2 * planes), draw.noise(m, 1) * draw.noise(2 * planes)
    blind = worst(
        gap(window(real, irrational), window(real.flip(0), irrational)),
        gap(window(generic, of_order(3)), window(generic[[3, 1, 2, 0]], of_order(3))),  # 0 and 3: a cycle of 3 apart
        gap(window(generic, of_order(m)), window(generic.roll(1, 0), of_order(m))),
    )
    reordered = torch.stack([generic[list(order)] for order in permutations(range(m))][1:])
    seen = [(window(reordered, g) - window(generic, g)).abs().amax(-1).min() for g in (irrational, of_order(m + 1))]
    return Measured(blind, gap=float(min(seen)))


@claim(36, "thm:concat-inv", "H")
def concatenation(draw: Draw) -> Measured:
    """Printed: either part of X ⊕_k Y is recovered from the other

    True: as printed
    Gap: with R_k^{n_k} in place of its inverse it is off by
    """
    grid = draw.curved(2, dim=8)
    x = Element(draw.noise(8), (0, 0), (2, 3), grid)
    y = Element(draw.noise(8), (2, 0), (5, 3), grid)
    whole = concatenate([x, y], axis=0)
    forward = grid.group.act(grid.power(0, 2), whole.content - x.content)
    right, left = split(whole, axis=0, left=x), split(whole, axis=0, right=y)
    return Measured(worst(gap(right.content, y.content), gap(left.content, x.content)), gap=gap(forward, y.content))


@claim(37, "app:classical-transforms", "H")
def embedding_norm(draw: Draw) -> Measured:
    """Printed: ‖E‖² = Σ v_tᵀ R^{t'−t} v_t' depends on relative positions only, yet on the order

    True: as printed
    Gap: among twenty other orders of the same contents one differs by
    """
    line, v = draw.flat(1, planes=3), draw.noise(6, 6)
    at = absolute(line, torch.arange(6)[:, None])
    pairwise = scores_path(v, v, group=line.group, src=at, dst=at).sum()
    square = compose_grid(v, line).content.square().sum()
    shifted = line.group.act(absolute(line, torch.arange(6)[:, None] + 11), v).sum(0).square().sum()
    orders = (torch.randperm(6, generator=draw.generator) for _ in range(20))
    permuted = max(gap(unroll(v[order], line).square().sum(), square) for order in orders)
    return Measured(gap(square, pairwise, shifted), gap=permuted)
