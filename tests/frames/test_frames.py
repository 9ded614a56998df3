"""What each kind of frames promises beyond what all of them do."""

import math

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from joformer import (
    CumulativeFrames,
    CurvedFrames,
    DenseFrames,
    FixedFrames,
    JourneyAttention,
    LearnedFrames,
    ProjectedFrames,
    TreeFrames,
    journey_attention,
    positions,
    rotate,
)
from joformer.algebra import Generators, Torus, absolute, is_flat, path_transport
from joformer.frequencies import Linear
from joformer.testing import assert_close


@given(st.integers(1, 3), st.integers(1, 12), st.sampled_from(["axial", "combined", "diagonal"]), st.data())
@settings(max_examples=150)
def test_fixed_angles_are_the_absolute_operators(axes, planes, split, data):
    """A_n = R_1^{n_1} ⋯ R_D^{n_D} by the algebra, on real coordinates."""
    if split == "axial" and planes < axes:
        return
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    module = FixedFrames(2 * planes, axes=axes, split=split, base=50.0)
    where = 20 * torch.randn(4, axes, dtype=torch.float64)
    per_axis = module.frequencies()
    steps = torch.zeros(axes, module.planes, dtype=torch.float64)
    for axis in range(axes):
        if split == "axial":
            each = module.planes // axes
            steps[axis, axis * each : (axis + 1) * each] = per_axis[axis]
        else:
            steps[axis] = per_axis[axis]
    expected = absolute(Generators.torus(steps), where)
    got = module(where).angles[0, :, 0]
    assert Torus(module.planes).distance(got, expected).max() < 1e-11


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_angles_are_reduced_before_they_are_rounded(axes):
    """Far from the origin: cos and sin are right to the last bit of fp32."""
    where = positions.grid(*[2] * axes) + 1_000_000
    frames = FixedFrames(32 * axes, axes=axes)(where)
    exact = where[:, :, None] * FixedFrames(32 * axes, axes=axes).frequencies()
    exact = exact.flatten(1)
    assert (frames.cos_sin[0, :, 0, :, 0].double() - exact.cos()).abs().max() < 6.1e-8
    assert (frames.cos_sin[0, :, 0, :, 1].double() - exact.sin()).abs().max() < 6.1e-8


def test_learned_starts_as_fixed_and_counts_as_the_table_says(dtype):
    fixed = FixedFrames(16, axes=2, base=100.0)(positions.grid(3, 4))
    learned = LearnedFrames(16, axes=2, heads=3, base=100.0)
    assert (learned(positions.grid(3, 4)).angles - fixed.angles).abs().max() < 1e-6
    heads, planes = 6, 32
    count = lambda **kw: sum(p.numel() for p in LearnedFrames(64, axes=2, heads=heads, **kw).parameters())  # noqa: E731
    assert count() == heads * planes
    assert count(split="combined") == 2 * heads * planes
    assert count(layers=4) == 4 * heads * planes
    assert LearnedFrames(64, axes=2, heads=heads, layers=4).frequencies.shape == (2, 4, heads, planes // 2)


def test_learned_layers_are_independent():
    module = LearnedFrames(8, layers=2)
    with torch.no_grad():
        module.frequencies[:, 1] += 1
    first, second = (module(positions.sequence(3), layer=i).angles for i in (0, 1))
    assert not torch.equal(first, second)
    first.sum().backward()
    assert module.frequencies.grad[:, 1].abs().max() == 0
    assert module.frequencies.grad[:, 0].abs().max() > 0


@pytest.mark.parametrize("base", ["fixed", "learned"])
def test_projected_starts_as_its_base_with_only_w2_at_zero(base):
    module = ProjectedFrames(24, 8, heads=3, on=base)
    x = torch.randn(2, 5, 24)
    frames = module(positions.sequence(5), x)
    assert Torus(4).distance(frames.angles.double(), FixedFrames(8)(positions.sequence(5)).angles).max() < 1e-6
    assert module.projector.w2.weight.abs().max() == 0
    assert module.projector.w2.bias is None
    assert module.projector.w1.weight.abs().max() > 0


def test_projected_without_base_does_not_start_at_zero():
    module = ProjectedFrames(24, 8, heads=3, on="none")
    assert module(positions.sequence(5), torch.randn(2, 5, 24)).angles.abs().max() > 0


def test_projector_has_about_one_and_a_half_d_squared_parameters():
    module = ProjectedFrames(64, 16, heads=4, on="none")
    weights = sum(p.numel() for n, p in module.named_parameters() if n.endswith(("w1.weight", "w2.weight")))
    assert weights == 1.5 * 64**2


def test_pure_projected_frames_are_permutation_equivariant_and_a_base_is_not(dtype):
    """docs/claims.md row 24: without base and mask the layer does not know order."""
    x = torch.randn(2, 7, 24, dtype=dtype)
    order = torch.randperm(7)
    attention = JourneyAttention(24, 3).to(dtype)

    def layer(x, base):
        torch.manual_seed(0)
        frames = ProjectedFrames(24, 8, heads=3, on=base).to(dtype)
        torch.nn.init.normal_(frames.projector.w2.weight)
        return attention(x, frames(positions.sequence(7), x))

    assert_close(
        layer(x[:, order], "none"), layer(x, "none")[:, order], tolerance=1e-5 if dtype == torch.float32 else None
    )
    assert (layer(x[:, order], "fixed") - layer(x, "fixed")[:, order]).abs().max() > 1e-3


def awake(module):
    torch.nn.init.normal_(module.projector.w2.weight)
    return module


def test_cumulative_is_the_running_sum(dtype):
    module = awake(CumulativeFrames(12, 8, heads=2)).to(dtype)
    x = torch.randn(2, 9, 12, dtype=dtype)
    frames = module(positions.sequence(9), x)
    steps = module.projector(x).unflatten(-1, (2, 4)).double()
    omega = FixedFrames(8).frequencies()[0]
    for t in range(9):
        expected = omega * t + steps[:, :t].sum(1)
        apart = Torus(4).distance(frames.angles[:, t].double(), expected)
        assert apart.max() < (1e-5 if dtype == torch.float32 else 1e-12)


def test_cumulative_sees_what_lies_between_and_projected_does_not():
    """docs/claims.md row 33: the journey from j to k changes with the content between them, only when accumulated."""
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    changed = x.clone()
    changed[:, 3] = torch.randn(12, dtype=torch.float64)
    where = positions.sequence(6)

    def journey_changes(module):
        before, after = (module(where, t).angles for t in (x, changed))
        return ((after[:, 5] - after[:, 1]) - (before[:, 5] - before[:, 1])).abs().max()

    torch.manual_seed(0)
    assert journey_changes(awake(CumulativeFrames(12, 8, heads=2)).double()) > 1e-3
    assert journey_changes(awake(ProjectedFrames(12, 8, heads=2)).double()) < 1e-12


@given(st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=30)
def test_cumulative_goes_on_from_its_state(first, rest):
    torch.manual_seed(0)
    module = awake(CumulativeFrames(12, 8, heads=2)).double()
    x = torch.randn(2, first + rest, 12, dtype=torch.float64)
    whole = module(positions.sequence(first + rest), x)
    head = module(positions.sequence(first), x[:, :first])
    tail = module(positions.sequence(rest, offset=first), x[:, first:], state=head.end)
    for part, at in ((head, slice(0, first)), (tail, slice(first, None))):
        assert Torus(4).distance(part.angles, whole.angles[:, at]).max() < 1e-12
    assert Torus(4).distance(tail.end, whole.end).max() < 1e-12


def moved(module):
    """With weights that are not at their start."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return module


def test_selective_steps_are_selective_rope(dtype):
    """θ_t = ω Σ_{s≤t} gate · W₂ W₁ x̂, written out token by token, head by head, as the authors' module computes it."""
    torch.manual_seed(0)
    module = moved(CumulativeFrames(12, 8, heads=3, steps="selective", base=500000.0)).double().to(dtype)
    x, part = torch.randn(2, 5, 12, dtype=dtype), module.projector
    frames = module(positions.sequence(5), x)
    for row in range(2):
        total = torch.zeros(3, 4, dtype=torch.float64)
        for t in range(5):
            heads = x[row, t].double().view(3, 4)
            unit = torch.cat([head / (head.square().sum() + 1e-6).sqrt() for head in heads])
            turned = (part.w2.weight.double() @ part.w1.weight.double() @ unit).view(3, 4)
            gate = 1 / (1 + torch.exp(-(part.gate.weight.double() @ unit + part.gate.bias.double())))
            for b in range(4):
                total[:, b] += 500000.0 ** (-b / 4) * gate * turned[:, b]
            distance = Torus(4).distance(frames.angles[row, t].double(), total).max()
            assert distance < (2e-6 if dtype.itemsize == 4 else 1e-12)


def test_carope_steps_are_carope(dtype):
    """φ_i(m) = Σ_{t≤m} f(x_t)^i with f = 1 / (softplus(x W) + 1), written out; i counts from 0."""
    torch.manual_seed(0)
    module = moved(CumulativeFrames(12, 8, heads=3, steps="carope")).double().to(dtype)
    x, part = torch.randn(2, 5, 12, dtype=dtype), module.projector
    frames = module(positions.sequence(5), x)
    for row in range(2):
        total = torch.zeros(3, 4, dtype=torch.float64)
        for t in range(5):
            z = part.w2.weight.double() @ x[row, t].double() + part.w2.bias.double()
            f = 1 / (torch.log(1 + torch.exp(z)) + 1)
            assert ((f > 0) & (f < 1)).all()
            total += torch.stack([f**i for i in range(4)], -1)
            distance = Torus(4).distance(frames.angles[row, t].double(), total).max()
            assert distance < (2e-6 if dtype.itemsize == 4 else 1e-12)


@pytest.mark.parametrize("base", [100.0, 10000.0])
def test_carope_starts_as_rope(base):
    """One step ahead of it, which is gauge."""
    module, x = CumulativeFrames(12, 16, heads=2, steps="carope", base=base).double(), torch.randn(1, 9, 12)
    q, k, v = torch.randn(3, 1, 9, 2, 16, dtype=torch.float64).unbind()
    where = positions.sequence(9)
    ours, rope = (journey_attention(q, k, v, m(where, x.double())) for m in (module, FixedFrames(16, base=base)))
    assert_close(ours, rope, tolerance=1e-6)


@pytest.mark.parametrize("steps", ["selective", "carope"])
def test_named_steps_continue_from_their_state(steps):
    torch.manual_seed(0)
    module, x = moved(CumulativeFrames(12, 8, heads=2, steps=steps)).double(), torch.randn(2, 7, 12).double()
    where = positions.sequence(7)
    where[2] = torch.nan  # adds nothing
    whole, first = module(where, x), module(where[:4], x[:, :4])
    rest = module(where[4:], x[:, 4:], state=first.end)
    assert_close(torch.cat((first.cos_sin, rest.cos_sin), 1), whole.cos_sin, tolerance=1e-6)
    every = module(where, x, every=True).end
    assert_close(every[:, 3:4], first.end)
    without = torch.cat((x[:, :2], x[:, 3:]), 1)
    assert_close(module(where[[0, 1, 3, 4, 5, 6]], without).cos_sin, whole.cos_sin[:, [0, 1, 3, 4, 5, 6]])


def test_defaults_of_content_frames_keep_their_weights_and_names():
    """The named steps are chosen; without them nothing is drawn or named anew."""
    for cls in (CumulativeFrames, ProjectedFrames):
        assert list(cls(12, 8, heads=2).state_dict()) == [
            "projector.norm.weight", "projector.norm.bias", "projector.w1.weight", "projector.w1.bias",
            "projector.w2.weight",
        ]  # fmt: skip
        assert cls(12, 8, heads=2).on == "fixed"


def test_cumulative_on_a_grid_walks_the_canonical_path():
    """θ_(i,j) accumulates φ₁ down the first column, then φ₂ along the row; against an explicit walk."""
    module = awake(CumulativeFrames(12, 8, heads=2, axes=2, on="none")).double()
    h, w = 3, 4
    x = torch.randn(2, 1 + h * w, 12, dtype=torch.float64)
    frames = module(positions.grid(h, w, prefix=1), x, grid=(h, w))
    steps = module.projector(x)[:, 1:].unflatten(-1, (2, 2, 4)).unflatten(1, (h, w))
    assert frames.angles[:, 0].abs().max() == 0
    for i in range(h):
        for j in range(w):
            walk = torch.zeros(2, 2, 4, dtype=torch.float64)
            for s in range(i):
                walk = walk + steps[:, s, 0, 0]
            for s in range(j):
                walk = walk + steps[:, i, s, 1]
            assert Torus(4).distance(frames.angles[:, 1 + i * w + j], walk).max() < 1e-12


def test_cumulative_with_constant_content_is_a_learned_frequency():
    """Every step the same: the frames of the grid are the path transport of the algebra."""
    module = awake(CumulativeFrames(12, 8, heads=1, axes=2, on="none")).double()
    x = torch.randn(1, 1, 12, dtype=torch.float64).expand(1, 6, 12)
    angles = module(positions.grid(2, 3), x, grid=(2, 3)).angles[0, :, 0]
    generators = Generators.torus(module.projector(x)[0, 0].view(2, 4).detach())
    assert Torus(4).distance(angles[5], path_transport(generators, [0, 1, 1])).max() < 1e-12


def test_tree_journeys_forget_what_both_ends_share():
    module = TreeFrames(8, branches=2).double()
    torch.nn.init.normal_(module.generators)
    where = positions.tree([-1, 0, 0, 1, 1, 3])
    angles = module(where).angles[0, :, 0]
    left, right = module.generators[0, 0]
    torus = Torus(4)
    assert torus.distance(torus.journey(angles[3], angles[4]), left - right).max() < 1e-12
    assert torus.distance(angles[5], 3 * left).max() < 1e-12
    assert angles[0].abs().max() == 0


def test_tree_by_depth_sees_the_order_of_branches_and_shared_does_not():
    where = positions.tree([-1, 0, 0, 1, 2], branches=[0, 0, 1, 1, 0])  # nodes 3: left-right, 4: right-left
    shared, by_depth = TreeFrames(8, branches=2), TreeFrames(8, branches=2, depth=2)
    a, b = shared(where).angles[0, 3:, 0]
    assert (a - b).abs().max() < 1e-12
    a, b = by_depth(where).angles[0, 3:, 0]
    assert (a - b).abs().max() > 1e-3


def test_dense_axial_is_shift_invariant_and_lie_is_the_exponential(dtype):
    torch.manual_seed(0)
    where = positions.grid(2, 3)
    axial = DenseFrames(8, axes=2, split="axial").to(dtype)
    q, k = torch.randn(2, 1, 6, 1, 8, dtype=dtype)
    score = lambda f: torch.einsum("bihd,bjhd->bij", rotate(q, f), rotate(k, f))  # noqa: E731
    assert_close(score(axial(where + 5)), score(axial(where)), tolerance=1e-4 if dtype == torch.float32 else 1e-10)
    lie = DenseFrames(8, axes=2).to(dtype)
    skew = (lie.generators - lie.generators.mT)[:, 0]
    expected = torch.matrix_exp(1 * skew[0] + 2 * skew[1])
    assert_close(lie(where).matrices[0, 5, 0, 0], expected)


def test_lie_generators_count_as_the_paper_says():
    """docs/claims.md row 52: LieRE64 on ViT-Tiny (12 layers, 6 heads of 64) has 0.59M generators."""
    assert 12 * sum(p.numel() for p in DenseFrames(64, axes=2, heads=6).parameters()) == 589_824


def test_joint_modalities_travel_by_the_modality_generator():
    """docs/claims.md row 47: P_{text→image} = R_mod⁻¹ A_image⁻¹ A_text, all commuting."""
    module = FixedFrames(16, axes=4)
    where = positions.joint(positions.sequence(3), positions.grid(2, 2))
    angles = module(where).angles[0, :, 0]
    text, image = angles[2], angles[6]
    own = lambda *at: module(torch.tensor([at], dtype=torch.float64)).angles[0, 0, 0]  # noqa: E731
    expected = own(0, 2, 0, 0) - own(0, 0, 1, 1) - own(1, 0, 0, 0)
    torus = Torus(8)
    assert torus.distance(torus.journey(text, image), expected).max() < 1e-12


def test_softplus_is_refused_with_content_and_allowed_without():
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    x = torch.randn(1, 5, 12)
    journey_attention(q, k, v, LearnedFrames(8)(positions.sequence(5)), weighting="softplus")
    for module in (ProjectedFrames(12, 8, heads=2), CumulativeFrames(12, 8, heads=2)):
        with pytest.raises(ValueError, match="softplus"):
            journey_attention(q, k, v, module(positions.sequence(5), x), weighting="softplus")


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: FixedFrames(7), "even"),
        (lambda: FixedFrames(8, axes=0), "axes"),
        (lambda: FixedFrames(8, axes=5), "split='combined'"),
        (lambda: FixedFrames(8, planes=5), "between 1 and"),
        (lambda: FixedFrames(8, split="diag"), "axial"),
        (lambda: FixedFrames(8, base=-1.0), "positive"),
        (lambda: FixedFrames(8, base=[1.0]), "frequencies="),
        (lambda: FixedFrames(8, layout="x"), "interleaved"),
        (lambda: FixedFrames(8, at="back"), "'front'.*'end'"),
        (lambda: FixedFrames(8)(torch.arange(5)), "unsqueeze"),
        (lambda: FixedFrames(8)([[0], [1]]), "got list"),
        (lambda: LearnedFrames(8, heads=0), "heads"),
        (lambda: LearnedFrames(8, layers=0), "layers"),
        (lambda: LearnedFrames(8, layers=2)(positions.sequence(2), layer=2), "0 … 1"),
        (lambda: ProjectedFrames(12, 8, heads=2, on="rope"), "'none', 'fixed' or 'learned'"),
        (lambda: ProjectedFrames(12, 8, heads=2)(positions.sequence(2), torch.zeros(1, 2, 11)), "dim=12"),
        (lambda: CumulativeFrames(12, 8, heads=2, axes=2)(positions.grid(2, 2), torch.zeros(1, 4, 12)), "grid="),
        (
            lambda: CumulativeFrames(12, 8, heads=2, axes=2)(positions.grid(2, 3), torch.zeros(1, 6, 12), grid=(3, 2)),
            "not a grid",
        ),
        (
            lambda: CumulativeFrames(12, 8, heads=2)(
                positions.sequence(2), torch.zeros(1, 2, 12), state=torch.zeros(2)
            ),
            "state must be",
        ),
        (lambda: CumulativeFrames(12, 8, heads=2, steps="mamba"), "'projected', 'selective' or 'carope'"),
        (lambda: CumulativeFrames(12, 8, heads=2, steps="carope", on="fixed"), "on='none'"),
        (lambda: CumulativeFrames(12, 8, heads=2, steps="selective", axes=2), "one axis"),
        (lambda: ProjectedFrames(12, 8, heads=2, steps="carope"), "use them in CumulativeFrames"),
        (lambda: CumulativeFrames(12, 8, heads=5, steps="selective"), "multiple of heads"),
        (
            lambda: CumulativeFrames(12, 8, heads=2, steps="selective")(positions.sequence(2), torch.zeros(1, 2, 10)),
            "dim=12",
        ),
        (
            lambda: CumulativeFrames(12, 8, heads=2, steps="carope")(positions.sequence(2), torch.zeros(1, 2, 10)),
            "dim=12",
        ),
        (lambda: CumulativeFrames(12, 8, heads=2, steps="carope", base=1.0), "base above 1"),
        (lambda: FixedFrames(8, scaling="ntk"), "joformer.frequencies"),
        (lambda: FixedFrames(8, base="10000"), "base must be a number"),
        (lambda: FixedFrames(8)(torch.zeros(3, 5, 1), torch.zeros(2, 5, 4)), "one row per position"),
        (lambda: TreeFrames(8, branches=0), "1 or more"),
        (lambda: TreeFrames(8, branches=2)(torch.tensor([[2.0]])), "0 … 1"),
        (lambda: TreeFrames(8, branches=2)(torch.tensor([[0.5]])), "whole numbers"),
        (lambda: TreeFrames(8, branches=2, depth=1)(positions.tree([-1, 0, 1])), "2 deep"),
        (lambda: DenseFrames(8, split="x"), "LieRE"),
        (lambda: DenseFrames(2, axes=2, split="axial"), "too narrow"),
        (lambda: DenseFrames(12, block=5), "blocks of 5 do not fill the 12 entries"),
        (lambda: DenseFrames(12, block=1), "at least 2 entries"),
        (lambda: DenseFrames(12, axes=2, split="axial", block=4), "blocks of 4 do not fill the 6 entries of axial"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["axial", "combined"])
def test_dense_frames_of_several_heads_are_the_exponentials_of_their_own_generators(split):
    torch.manual_seed(3)
    module = DenseFrames(6, axes=3, heads=2, split=split).double()
    torch.nn.init.normal_(module.generators)
    where = torch.randn(4, 3, dtype=torch.float64)
    matrices = module(where).matrices.detach()
    for token in range(4):
        for head in range(2):
            skew = (module.generators - module.generators.mT)[:, head].detach()
            if split == "combined":
                expected = torch.matrix_exp((where[token, :, None, None] * skew).sum(0))[None]
            else:
                expected = torch.stack([torch.matrix_exp(where[token, axis] * skew[axis]) for axis in range(3)])
            torch.testing.assert_close(matrices[0, token, head], expected)


def axis_steps(module):
    """expm of each axis' S_k alone, on the whole head: what one step along the axis does."""
    units = module(torch.eye(module.axes, dtype=torch.float64)).matrices.detach()[0, :, 0]
    return Generators.orthogonal(torch.stack([torch.block_diag(*blocks) for blocks in units]))


@pytest.mark.parametrize("split", ["combined", "axial"])
def test_commuting_blocks_are_flat_and_comrope_s_formula(split):
    """Yu et al., 2025: R(x) = exp(Σ_i x_i A_i), A_i = diag(B_i1, …, B_im) with B_ij = θ_ij (P_j − P_jᵀ) (LD), or
    B_ij = P_j − P_jᵀ in the blocks of axis i and zero in the others (AP; there block j is of axis j mod N)."""
    torch.manual_seed(5)
    axes, block, dim = 3, 4, 24
    module = DenseFrames(dim, axes=axes, block=block, split=split, commuting=True).double()
    where = torch.randn(5, axes, dtype=torch.float64)
    m = dim // block
    angle = torch.zeros(axes, dim, dim, dtype=torch.float64)
    for axis in range(axes):
        for j in range(m):
            if split == "combined":
                p, theta = module.generators[0, j], module.rates[axis, 0, j]
            else:
                p, theta = module.generators[axis, 0, j % (m // axes)], float(j // (m // axes) == axis)
            at = slice(j * block, (j + 1) * block)
            angle[axis, at, at] = (theta * (p - p.T)).detach()
    expected = torch.matrix_exp((where[:, :, None, None] * angle).sum(1))
    found = module(where).matrices.detach()[0, :, 0]
    assert_close(torch.stack([torch.block_diag(*blocks) for blocks in found]), expected)
    assert is_flat(axis_steps(module))
    assert not is_flat(axis_steps(DenseFrames(dim, axes=axes, block=block).double()))
    assert (module(where).matrices - module(-where).matrices).abs().max() > 0.1


def test_blocks_of_lie_are_the_exponentials_of_their_own_generators():
    torch.manual_seed(3)
    module = DenseFrames(8, axes=2, heads=2, block=4).double()
    where = torch.randn(3, 2, dtype=torch.float64)
    skew = (module.generators - module.generators.mT).detach()
    for head in range(2):
        for block in range(2):
            expected = torch.matrix_exp((where[:, :, None, None] * skew[:, head, block]).sum(1))
            assert_close(module(where).matrices.detach()[0, :, head, block], expected)


def test_string_is_learned_frequencies_in_a_basis_that_projections_can_hold():
    """Schenck et al., 2025: R(r) = expm(Σ_k r_k L_k), commuting L_k; Cayley-STRING: P RoPE(r) Pᵀ."""
    torch.manual_seed(2)
    learned = LearnedFrames(8, axes=2, split="combined").double()
    where = torch.randn(5, 2, dtype=torch.float64)
    noise = torch.randn(8, 8, dtype=torch.float64)
    one = torch.eye(8, dtype=torch.float64)
    basis = (one - (noise - noise.T)) @ torch.linalg.inv(one + (noise - noise.T))  # Cayley
    frequencies = learned(torch.eye(2, dtype=torch.float64)).angles.detach()[0, :, 0]  # (axes, planes)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    steps = torch.stack([basis @ torch.block_diag(*(w * turn for w in axis)) @ basis.T for axis in frequencies])
    string = CurvedFrames(torch.matrix_exp((where[:, :, None, None] * steps).sum(1))[None, :, None, None])
    q, k, v = torch.randn(3, 2, 5, 2, 8, dtype=torch.float64)
    ours = journey_attention(q @ basis, k @ basis, v @ basis, learned(where)) @ basis.T
    assert_close(ours, journey_attention(q, k, v, string), tolerance=1e-12)


MODULES = {
    "fixed": lambda: FixedFrames(8),
    "learned": lambda: LearnedFrames(8),
    "projected": lambda: ProjectedFrames(12, 8, heads=2),
    "no base": lambda: ProjectedFrames(12, 8, heads=2, on="none"),
    "cumulative": lambda: CumulativeFrames(12, 8, heads=2),
    "dense": lambda: DenseFrames(8, axes=1),
    "tree": lambda: TreeFrames(8, branches=2),
}


@pytest.mark.refused
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODULES)
def test_positions_in_half_precision_raise(name, half):
    """They are other positions: 2²⁰ + 1 is 2²⁰ in bfloat16 and infinite in float16."""
    module, x = MODULES[name](), torch.randn(1, 2, 12)
    with pytest.raises(ValueError, match=rf"{half}.*float64.*cast_forward_inputs=False") as caught:
        module(torch.zeros(2, 1, dtype=half), x)
    assert "\n" not in str(caught.value)
    module(torch.zeros(2, 1), x)


@pytest.mark.refused
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [[math.inf], [-math.inf], [math.inf, -math.inf], [math.nan, math.inf]])
@pytest.mark.parametrize("name", MODULES)
def test_infinite_positions_raise(name, far, dtype):
    module, at = MODULES[name](), torch.tensor([*far, *[0.0] * (3 - len(far))], dtype=dtype).unsqueeze(-1)
    with pytest.raises(ValueError, match="infinite") as caught:
        module(at, torch.randn(1, 3, 12))
    assert "\n" not in str(caught.value)


def test_looking_for_infinite_positions_stops_no_transform():
    """Their values cannot be read under vmap, in fake tensors and on meta devices."""
    module, where = FixedFrames(8), torch.rand(4, 3, 1, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(lambda at: module(at).angles)(where)[:, 0], module(where).angles)
    with FakeTensorMode():
        assert FixedFrames(8)(torch.rand(3, 1)).angles.shape == (1, 3, 1, 4)
    assert module(torch.rand(3, 1, device="meta")).angles.device.type == "meta"


@pytest.mark.refused
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("module", [FixedFrames(8), DenseFrames(8, axes=1)], ids=["flat", "curved"])
def test_frames_cast_to_half_precision_raise(module, backend):
    """What FSDP's cast_forward_inputs does to frames that are an argument of a module: they are a pytree."""
    frames = module(positions.sequence(5, offset=2**20))
    cast = pytree.tree_map(lambda t: t.bfloat16() if isinstance(t, torch.Tensor) else t, frames)
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    with pytest.raises(ValueError, match=r"bfloat16.*cast_forward_inputs=False") as caught:
        journey_attention(q, k, v, cast, backend=backend)
    assert "\n" not in str(caught.value)
    for call in (
        lambda: rotate(q, cast),
        lambda: JourneyAttention(16, 2)(torch.randn(1, 5, 16), cast),
        lambda: JourneyAttention(16, 2).bfloat16()(torch.randn(1, 5, 16).bfloat16(), cast),
    ):
        with pytest.raises(ValueError, match="cast_forward_inputs=False"):
            call()


def test_a_scaling_set_later_is_used():
    module, where = FixedFrames(8), positions.sequence(5)
    before = module(where).angles
    module.scaling = Linear(4.0)
    assert torch.equal(module(where).angles, FixedFrames(8, scaling=Linear(4.0))(where).angles)
    module.scaling = None
    assert torch.equal(module(where).angles, before)
    module.base = 100.0
    assert torch.equal(module(where).angles, FixedFrames(8, base=100.0)(where).angles)


def test_a_scaling_that_changes_itself_is_used():
    class Growing:
        factor = 1.0

        def apply(self, frequencies, base):
            return frequencies / self.factor

    module, where = FixedFrames(8, scaling=Growing()), positions.sequence(5)
    assert torch.equal(module(where).angles, FixedFrames(8)(where).angles)
    module.scaling.factor = 2.0
    assert torch.equal(module(where).angles, FixedFrames(8, scaling=Linear(2.0))(where).angles)


@pytest.mark.refused
def test_old_names_still_work_and_name_the_new_ones():
    """base was what projected frames stand on, frequency_base its number, and a table of angles in trees."""
    x, where = torch.randn(1, 5, 12), positions.sequence(5)
    for kind in (ProjectedFrames, CumulativeFrames):
        for on in ("none", "fixed", "learned"):
            with pytest.warns(DeprecationWarning, match=f"write on='{on}'") as caught:
                old = kind(12, 8, heads=2, base=on)
            assert caught[0].filename == __file__
            with pytest.warns(DeprecationWarning, match="base=50"):
                number = kind(12, 8, heads=2, on=on, frequency_base=50.0)
            for module, new in ((old, kind(12, 8, heads=2, on=on)), (number, kind(12, 8, heads=2, on=on, base=50.0))):
                assert list(module.state_dict()) == list(new.state_dict())
                new.load_state_dict(module.state_dict())
                assert torch.equal(module(where, x).angles, new(where, x).angles)
    table = torch.rand(1, 2, 4)
    with pytest.warns(DeprecationWarning, match="angles="):
        old = TreeFrames(8, branches=2, base=table)
    assert torch.equal(old.generators, TreeFrames(8, branches=2, angles=table).generators)


def test_what_content_stands_on_keeps_its_name_in_saved_files():
    assert "base.frequencies" in CumulativeFrames(12, 8, heads=2, on="learned").state_dict()


@pytest.mark.refused
def test_a_misspelt_argument_of_the_call_raises():
    for module in (FixedFrames(8), CumulativeFrames(12, 8, heads=2), TreeFrames(8, branches=2)):
        with pytest.raises(TypeError, match="sate"):
            module(positions.sequence(2), torch.randn(1, 2, 12), sate=None)
