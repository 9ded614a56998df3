"""docs/claims.md, "Remarks and proofs": what the paper says in passing, or within a proof."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from joformer import positions
from joformer.algebra import Generators, Invertible, Orthogonal, absolute, compose_grid, journey, scan
from joformer.attention import journey_attention
from joformer.frames import FixedFrames, FlatFrames
from joformer.monoidal import align
from joformer.spectral import composed, dst
from joformer.verify._claims import Draw, Measured, Section, gap, worst

claim = Section("remarks")


@claim(60, "app:toral, after the orientation convention", "H")
def repeated_components(draw: Draw) -> Measured:
    """Printed: with repeated isotypic components the commutant, and with it the classification, changes

    True: as printed: one angle for all P planes has a commutant of dimension 2P² instead of 2P, and orthogonal maps in
    it that are no block rotations
    Gap: such a map has entries outside its blocks of
    """
    planes = 3
    angles = draw.uniform(planes, low=0.2, high=1.0).cumsum(0)  # distinct, and none another's negative

    def dimension(its: Tensor) -> int:
        """How many independent matrices commute with the rotation by these angles."""
        rotation = torch.block_diag(*_rotations(its))
        eye = torch.eye(2 * planes, dtype=torch.float64)
        commutator = torch.kron(rotation, eye) - torch.kron(eye, rotation.mT.contiguous())
        return 4 * planes**2 - int(torch.linalg.matrix_rank(commutator, tol=1e-9))

    unitary = torch.linalg.qr(torch.complex(draw.noise(planes, planes), draw.noise(planes, planes)))[0]
    real, imaginary = unitary.real.contiguous(), unitary.imag.contiguous()
    mixing = torch.kron(real, torch.eye(2).double()) + torch.kron(imaginary, _rotations(torch.pi / 2))
    shared = torch.block_diag(*_rotations(angles[:1].expand(planes)))
    beside = mixing.clone()
    for plane in range(planes):
        beside[2 * plane : 2 * plane + 2, 2 * plane : 2 * plane + 2] = 0
    return Measured(
        worst(
            abs(dimension(angles) - 2 * planes),
            abs(dimension(angles[:1].expand(planes)) - 2 * planes**2),
            gap(shared @ mixing, mixing @ shared),
            gap(mixing.mT @ mixing, torch.eye(2 * planes, dtype=torch.float64)),
        ),
        gap=float(beside.abs().max()),
    )


def _rotations(angles: Tensor | float) -> Tensor:
    """R(φ), (…, 2, 2)."""
    angles = torch.as_tensor(angles, dtype=torch.float64)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((cos, -sin, sin, cos), -1).unflatten(-1, (2, 2))


@claim(61, "app:toral, orientation convention", "H")
def gauge_angle(draw: Draw) -> Measured:
    """Printed: with A_t = R^t the gauge variable R_s = P_{0→s} has the angle −ωs, and P_{s'→s} = R_s R_s'⁻¹ rotates by
    ω(s' − s)

    True: as printed
    Gap: with +ωs in its place the journey is off by
    """
    line = draw.flat(1, planes=3)
    group, omega = line.group, line.power(0, 1)
    s, other = int(draw.whole(low=1, high=6)), int(draw.whole(low=7, high=12))
    at = absolute(line, torch.arange(13)[:, None])
    gauge = journey(group, src=at[0], dst=at[s])
    found = journey(group, src=at[other], dst=at[s])
    factored = group.multiply(gauge, group.inverse(journey(group, src=at[0], dst=at[other])))
    return Measured(
        worst(
            group.distance(gauge, -s * omega),
            group.distance(found, factored),
            group.distance(found, (other - s) * omega),
        ),
        gap=float(group.distance(found, (s - other) * omega)),
    )


class _Products(TorchDispatchMode):
    """Counts matrix products, however many matrices each multiplies at once."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm)
        return func(*args, **(kwargs or {}))


@claim(62, "prop:ssm-bridge, proof", "H", margin=1.0)
def scan_depth(draw: Draw) -> Measured:
    """Printed: all prefix products take O(log N) parallel steps

    True: as printed: at most 2 log₂ N + 1 batched products one after the other, counted in `algebra.scan`
    Gap: products one after the other that it saves
    """
    off, saved = [], []
    for n in (16, 64, 256):
        steps = draw.rotations(n)
        with _Products() as products:
            prefixes = scan(Orthogonal(4), steps, exclusive=False)
        off += [gap(prefixes[-1], reduce(torch.matmul, steps)), max(0.0, products.count - 2 * log2(n) - 1)]
        saved.append(n - 1 - products.count)
    return Measured(worst(*off), gap=float(min(saved)))


@claim(63, "prop:mse-gap, equality", "C", tolerance=1e-6)
def equality_of_the_gap(draw: Draw) -> Measured:
    """Printed: MSE_DFT = MSE_opt as N → ∞ if and only if the DFT's frequencies already sample the K largest values of S

    True: with the corrected error of row 32, ties included; the printed error tends to 0 for every choice, so that
    equality would always hold
    Gap: missing one of the largest values costs
    """
    keep, noise, n = 3, 0.5, 10**9
    spectrum = draw.uniform(4, low=0.1, high=1.0).sort().values.tolist()
    spectrum += [1.5, 2.0, 2.0, 2.5]  # two of the largest are alike
    subsets = list(combinations(range(8), keep))
    errors = {c: sum(spectrum) - sum(n * spectrum[i] ** 2 / (noise + n * spectrum[i]) for i in c) for c in subsets}
    printed = {c: sum(noise * spectrum[i] / (noise + n * spectrum[i]) for i in c) for c in subsets}
    best = min(errors.values())
    largest = sorted(spectrum)[-keep:]
    equal = [c for c in subsets if sorted(spectrum[i] for i in c) == largest]
    return Measured(
        worst(*(errors[c] - best for c in equal), max(printed.values()) - min(printed.values())),
        gap=min(errors[c] - best for c in subsets if c not in equal),
    )


@claim(64, "prop:context-sep (b)", "H")
def context_separation_in_gl(draw: Draw) -> Measured:
    """Printed: for operators in GL(d) P − P' = L (R_s − R_s') M, so that P v ≠ P' v for v outside a proper subspace

    True: as printed, the product ascending (it is P_{k→j}, row 33); a change of rank one is not seen by a whole
    hyperplane of v
    Gap: a generic v sees it by
    """
    d, s = 4, 3
    group, r = Invertible(d), torch.eye(4).double() + 0.3 * draw.noise(6, d, d)
    other = r.clone()
    other[s] += torch.outer(draw.noise(d), row := draw.noise(d))
    at, changed = (scan(group, steps, exclusive=False)[-1] for steps in (r, other))
    before, after = reduce(torch.matmul, r[:s]), reduce(torch.matmul, r[s + 1 :])
    v = draw.noise(d)
    normal = after.mT @ row
    unseen = v - normal * (normal @ v) / (normal @ normal)
    return Measured(
        worst(gap(changed - at, before @ (other[s] - r[s]) @ after), gap(changed @ unseen, at @ unseen)),
        gap=gap(changed @ v, at @ v),
    )


@claim(65, "app:dst", "C")
def dst_2d(draw: Draw) -> Measured:
    """Printed: since the sine rotations commute, the multi-dimensional DST is the 1D one along each axis

    True: with the imaginary part taken between the axes, or as ½[Re E(−θˣ, θʸ) − Re E(θˣ, θʸ)]
    Gap: the imaginary part of the commuting rotations alone is off by
    """
    n = 4
    x, i = draw.noise(n, n), torch.arange(n).double()
    angles = torch.pi * (i + 1) / n
    sines = (angles[:, None] * (i + 0.5)).sin()
    truth = 4 * sines @ x @ sines.T

    def both(sign: float) -> Tensor:
        """E at all pairs of frequencies, half a sample on."""
        rows, columns = (torch.exp(1j * side * angles[:, None] * (i + 0.5)) for side in (1.0, sign))
        return rows @ x.to(rows.dtype) @ columns.T

    averaged = 2 * (both(-1.0) - both(1.0)).real
    return Measured(
        gap(truth, averaged, composed(x, "dst2", dim=(-2, -1)), dst(x, type=2, dim=(-2, -1))),
        gap=gap(4 * both(1.0).imag, truth),
    )


@claim(66, "app:multimodal", "C")
def fusion_order(draw: Draw) -> Measured:
    """Printed: commutativity makes fusing text-then-audio the same as audio-then-text

    True: of axes: composing each modality first or each moment first gives the same; which modality stands first along
    its axis does matter, with commuting generators too
    Gap: the modalities exchanged, or generators that do not commute, change the embedding by
    """
    v = draw.noise(2, 3, 4)  # modality, time
    flat, bent = draw.flat(2), draw.curved(2)

    def fused(x: Tensor, generators: Generators, last: int) -> Tensor:
        return compose_grid(x, generators, order=(1 - last, last)).content

    text_first = fused(v, flat, 0)
    return Measured(
        gap(text_first, fused(v, flat, 1)),
        gap=min(gap(text_first, fused(v.flip(0), flat, 0)), gap(fused(v, bent, 0), fused(v, bent, 1))),
    )


@claim(67, "app:alignment", "C")
def alignment_on_axes(draw: Draw) -> Measured:
    """Printed: on D axes align by Y' = R_1^{s_1} ⋯ R_D^{s_D} Y; the order of the shifts does not matter

    True: for commuting generators, and unique only modulo each axis's period where the planes tell the axes apart: with
    the same angles on all axes only s_1 + ⋯ + s_D is seen
    Gap: with the same angles on both axes another shift scores as high; curved shifts in the other order are off by
    """
    n = 4
    y, shift = draw.noise(n, n), [int(draw.whole(low=1, high=n)) for _ in range(2)]
    x = y.roll(shift, (0, 1))
    omega = 2 * torch.pi * torch.arange(n).double() / n
    content = torch.tensor([1.0, 0.0]).double().repeat(n * n)
    grid = Generators.torus(torch.cartesian_prod(omega, omega).T.contiguous())
    whole, part = (compose_grid(one[..., None] * content, grid).content for one in (x, y))
    found = align(whole, part, grid)
    same = Generators.torus(omega.expand(2, n))
    moved = [absolute(same, torch.tensor([shift, [shift[0] + 1, shift[1] - 1]]))]
    bent, start = draw.curved(2), draw.noise(4)
    orders = [
        bent.group.act(bent.power(a, shift[a]), bent.group.act(bent.power(1 - a, shift[1 - a]), start)) for a in (0, 1)
    ]
    score = float(whole @ grid.group.act(absolute(grid, torch.tensor([shift]))[0], part))
    return Measured(
        worst(
            *(abs(int(s) - wanted) for s, wanted in zip(found.shift.flatten(), shift, strict=True)),
            abs(score - float(found.surface.max())) / score,
            same.group.distance(*moved[0]),
        ),
        gap=gap(*orders),
    )


@claim(68, "ssec:variants", "U")
def softplus_weights(draw: Draw) -> Measured:
    """Printed: softplus is unstable with data-dependent angles, as unbounded weights accumulate across layers

    True: unbounded weights need no data-dependent angles: with fixed ones their sum grows with the number of keys, at
    least log 2 for every score that is not negative; softmax never exceeds the longest value, whatever the angles
    Gap: with fixed angles, 64 keys instead of 16 add weights of
    """
    d, frames = 8, FixedFrames(8)
    q, k, v = (draw.noise(1, 64, 1, d) for _ in range(3))
    ones = torch.ones_like(v)

    def total(keys: int) -> Tensor:
        """The sum of the softplus weights of every query."""
        q_frames, k_frames = frames(positions.sequence(64)), frames(positions.sequence(keys))
        return journey_attention(
            q, k[:, :keys], ones[:, :keys], q_frames, key_frames=k_frames, transport="scores", weighting="softplus"
        )[..., 0]

    def softmax(angles: Tensor) -> float:
        out = journey_attention(q, k, v, FlatFrames.of(angles))
        return float(out.norm(dim=-1).max() / v.norm(dim=-1).max())

    exceeds = [max(0.0, softmax(a) - 1) for a in (frames(positions.sequence(64)).angles, draw.noise(1, 64, 1, d // 2))]
    bound = (total(64) - total(16)).min()
    return Measured(worst(*exceeds, max(0.0, -float(bound))), gap=float(bound))
