"""The embedding is Σ_n A_n v_n: against the algebra, cell by cell; its size, its speed's shape, its refusals."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import Generators, absolute, compose_grid
from joformer.bench._measure import peak_bytes
from joformer.monoidal import MonoidalEmbedding, concatenate, split
from joformer.monoidal._composition import compose_real, compose_vectors
from joformer.monoidal._embedding import lowest_modes

CLOSE = {torch.float32: 1e-4, torch.float64: 1e-10}
KINDS = ["learned", "dft", "diagonal"]
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def unit(dim, dtype=torch.float64):
    return torch.tensor([1.0, 0.0], dtype=dtype).repeat(dim // 2)


def slowly(x, angles, content):
    """Every cell's vector turned by its own absolute operator, then summed."""
    axes = len(angles)
    generators = Generators.torus(angles.double())
    grid = x.shape[x.ndim - axes :]
    cells = torch.cartesian_prod(*(torch.arange(n) for n in grid)).reshape(-1, axes)
    vectors = x.double().flatten(x.ndim - axes)[..., None] * content.double()
    return generators.group.act(absolute(generators, cells), vectors).sum(-2)


def gap(a, b):
    return float((a - b).detach().abs().max())


@settings(max_examples=40)
@given(shapes, st.integers(1, 5), st.sampled_from(KINDS), st.lists(st.integers(1, 3), max_size=2), st.booleans())
def test_real_cells_are_the_composition_of_the_grid(shape, planes, kind, batch, wide):
    dtype = torch.float64 if wide else torch.float32
    planes = min(planes, math.prod(shape)) if kind == "dft" else planes
    embed = MonoidalEmbedding(2 * planes, shape, frequencies=kind)
    x = torch.randn(*batch, *shape, dtype=dtype)
    out = embed(x)
    assert out.dtype == dtype
    assert out.shape == (*batch, 2 * planes)
    contents = x.double()[..., None] * unit(2 * planes)
    whole = compose_grid(contents, Generators.torus(embed.angles.detach().double())).content
    assert gap(out, whole) < CLOSE[dtype] * 10
    assert gap(out, slowly(x, embed.angles.detach(), unit(2 * planes))) < CLOSE[dtype] * 10


@settings(max_examples=30)
@given(shapes, st.integers(1, 4), st.sampled_from(KINDS), st.booleans())
def test_vector_cells_are_the_composition_of_the_grid(shape, planes, kind, wide):
    dtype = torch.float64 if wide else torch.float32
    planes = min(planes, math.prod(shape)) if kind == "dft" else planes
    embed = MonoidalEmbedding(2 * planes, shape, frequencies=kind, cells="vector")
    x = torch.randn(2, *shape, 2 * planes, dtype=dtype)
    whole = compose_grid(x.double(), Generators.torus(embed.angles.detach().double())).content
    assert embed(x).dtype == dtype
    assert gap(embed(x), whole) < CLOSE[dtype] * 10


@pytest.mark.parametrize("length", [1, 2, 63, 257, 1000])
@pytest.mark.parametrize("batch", [(), (1,), (5,), (2000,)])
def test_a_long_axis_cut_into_rows_is_the_same_sum(length, batch):
    x, angles = torch.randn(*batch, length, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    z = torch.polar(torch.ones(length, 3).double(), torch.arange(length).double()[:, None] * angles)
    assert gap(compose_real(x, angles), torch.view_as_real(x.to(z.dtype) @ z).flatten(-2)) < 1e-9


def test_a_plane_turns_forwards(dtype):
    """One cell at place 1 of an axis of quarter turns is (0, 1), and not (0, −1)."""
    quarter = torch.tensor([[torch.pi / 2]])
    x = torch.tensor([0.0, 1.0, 0.0], dtype=dtype)
    assert gap(compose_real(x, quarter), torch.tensor([0.0, 1.0])) < 1e-6
    assert gap(compose_vectors(x[:, None] * unit(2, dtype), quarter), torch.tensor([0.0, 1.0])) < 1e-6
    embed = MonoidalEmbedding(4, 4, frequencies="dft")  # k = 0 and k = 1
    assert gap(embed(torch.tensor([0.0, 1.0, 0.0, 0.0])), torch.tensor([1.0, 0.0, 0.0, 1.0])) < 1e-6


def test_row_39_the_full_dft_is_numpys_at_the_mirrored_frequency():
    for shape in [(6,), (4, 5), (3, 4, 2)]:
        embed = MonoidalEmbedding(2 * math.prod(shape), shape, frequencies="dft")
        x = torch.randn(*shape, dtype=torch.float64)
        z = torch.view_as_complex(embed(x).unflatten(-1, (-1, 2))).numpy()
        spectrum = np.fft.fftn(x.numpy())
        k = embed.modes.numpy()
        assert np.abs(z - np.conj(spectrum[tuple(k % np.array(shape)[:, None])])).max() < 1e-10
        assert len({tuple(c) for c in (k.T % np.array(shape))}) == math.prod(shape)


def test_row_40_the_printed_diagonal_is_no_2d_dft():
    """It cannot tell a step right from a step down; the true lowest frequencies can."""
    x = torch.randn(28, 28, dtype=torch.float64)
    for kind, blind in (("diagonal", True), ("dft", False)):
        embed = MonoidalEmbedding(32, (28, 28), frequencies=kind)
        assert (gap(embed(x), embed(x.mT)) < 1e-9) == blind
    angles = MonoidalEmbedding(32, (28, 28), frequencies="diagonal").angles
    assert gap(angles, 2 * math.pi * torch.arange(1, 17).double() / 32) < 1e-15


@settings(max_examples=40)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple))
def test_lowest_modes_take_each_pair_once_and_then_the_rest(shape):
    total = math.prod(shape)
    k = lowest_modes(shape, total, paired=True)
    keys = [tuple(c % n for c, n in zip(point, shape)) for point in k.tolist()]
    mirrors = [tuple(-c % n for c, n in zip(point, shape)) for point in k.tolist()]
    assert len(set(keys)) == total
    own = sum(key == mirror for key, mirror in zip(keys, mirrors))
    pairs = (total + own) // 2
    assert len({frozenset(p) for p in zip(keys[:pairs], mirrors[:pairs])}) == pairs
    size = k.square().sum(-1)
    assert bool((size[:pairs].diff() >= 0).all())
    assert bool((size[pairs:].diff() >= 0).all())
    assert bool((lowest_modes(shape, total, paired=False).square().sum(-1).diff() >= 0).all())


def test_other_grids(dtype):
    """Learned angles take any grid; those of the DFT pad a smaller one and wrap a larger one."""
    embed = MonoidalEmbedding(8, (4, 5))
    for grid in [(2, 3), (9, 5), (4, 11)]:
        x = torch.randn(2, *grid, dtype=dtype)
        assert gap(embed(x), slowly(x, embed.angles.detach(), unit(8))) < CLOSE[dtype]
    fixed = MonoidalEmbedding(8, (4, 5), frequencies="dft")
    small = torch.randn(2, 3, dtype=dtype)
    assert gap(fixed(small), fixed(torch.nn.functional.pad(small, (0, 2, 0, 2)))) < CLOSE[dtype]
    large = torch.randn(8, 5, dtype=dtype)
    assert gap(fixed(large), fixed(large[:4] + large[4:])) < CLOSE[dtype]
    assert gap(fixed(large), slowly(large, fixed.angles, unit(8))) < CLOSE[dtype]


@pytest.mark.parametrize("kind", KINDS)
def test_content(kind, dtype):
    given_content = torch.randn(6)
    embed = MonoidalEmbedding(6, (3, 4), frequencies=kind, content=given_content)
    x = torch.randn(2, 3, 4, dtype=dtype)
    assert gap(embed(x), slowly(x, embed.angles.detach(), given_content)) < CLOSE[dtype]
    assert "content" in embed.state_dict()
    learned = MonoidalEmbedding(6, (3, 4), frequencies=kind, content="learned")
    assert gap(learned.content, unit(6)) == 0
    learned(x).square().sum().backward()
    assert float(learned.content.grad.abs().sum()) > 0


def test_gradients():
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    line = torch.randn(1, 20, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compose_real, (x, angles))
    assert torch.autograd.gradcheck(compose_vectors, (v, angles))
    one = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compose_real, (line, one))
    content = MonoidalEmbedding(4, (3, 4), frequencies="dft", content="learned").double()
    assert torch.autograd.gradcheck(content, (x,))
    assert torch.autograd.gradcheck(
        lambda c: torch.func.functional_call(content, {"content": c}, (x,)), (one.new_ones(4).requires_grad_(),)
    )


def test_the_angles_learn():
    embed = MonoidalEmbedding(8, (5, 5))
    embed(torch.rand(2, 5, 5)).square().sum().backward()
    assert embed.frequencies.grad.shape == (2, 4)
    assert bool((embed.frequencies.grad.abs() > 0).all())


def test_spread_and_seed():
    assert MonoidalEmbedding(784, (28, 28)).spread == math.pi
    assert math.isclose(MonoidalEmbedding(2, (28, 28)).spread, math.pi / math.sqrt(392))
    torch.manual_seed(5)
    one = MonoidalEmbedding(64, (9,), spread=0.3)
    torch.manual_seed(5)
    assert torch.equal(MonoidalEmbedding(64, (9,), spread=0.3).frequencies, one.frequencies)
    assert 0.2 < float(one.frequencies.detach().abs().max()) <= 0.3
    one.reset_parameters(torch.Generator().manual_seed(1))
    two = MonoidalEmbedding(64, (9,), spread=0.3)
    two.reset_parameters(torch.Generator().manual_seed(1))
    assert torch.equal(one.frequencies, two.frequencies)


def test_layout_dtype_and_device():
    embed = MonoidalEmbedding(8, (4, 6))
    x = torch.randn(3, 6, 4, dtype=torch.float64).mT
    assert gap(embed(x), embed(x.contiguous())) < 1e-12
    v = torch.randn(8, 4, 6, dtype=torch.float64).permute(1, 2, 0)
    vectors = MonoidalEmbedding(8, (4, 6), cells="vector")
    assert gap(vectors(v), vectors(v.contiguous())) < 1e-12
    for kind in KINDS:
        for cells, tail in (("real", ()), ("vector", (8,))):
            module = MonoidalEmbedding(8, (4, 6), frequencies=kind, cells=cells)
            sample = torch.randn(2, 4, 6, *tail)
            half = module(sample.bfloat16())
            assert half.dtype == torch.bfloat16
            assert gap(half.float(), module(sample.bfloat16().float())) < 0.1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert torch.equal(module(sample), module(sample.clone()))
                inside = module(sample)
            assert gap(inside, module(sample)) < 1e-5
            assert module.to("meta")(torch.empty(2, 4, 6, *tail, device="meta")).shape == (2, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch(kind):
    assert MonoidalEmbedding(8, (4, 6), frequencies=kind)(torch.empty(0, 4, 6)).shape == (0, 8)
    assert MonoidalEmbedding(8, (4, 6), frequencies=kind, cells="vector")(torch.empty(0, 4, 6, 8)).shape == (0, 8)


def test_fixed_angles_survive_a_change_of_dtype():
    embed = MonoidalEmbedding(8, (28, 28), frequencies="dft")
    exact = embed.angles.clone()
    assert torch.equal(embed.half().double().angles, exact)
    assert not embed.state_dict()
    remade = MonoidalEmbedding(8, (28, 28), frequencies="dft").to("meta").to_empty(device="cpu")
    remade.reset_parameters()
    assert torch.equal(remade.angles, exact)
    assert torch.equal(remade.bins, embed.bins)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", ["real", "vector"])
def test_row_36_the_whole_is_the_concatenation_of_its_tiles(kind, cells, dtype):
    embed = MonoidalEmbedding(8, (4, 5, 3), frequencies=kind, cells=cells)
    x = torch.randn(2, 4, 5, 3, *([8] if cells == "vector" else []), dtype=dtype)
    for axis, n in enumerate((4, 5, 3)):
        cuts = [0, 1, n]
        tiles = [
            embed.tile(x.narrow(1 + axis, a, b - a), origin=tuple(a if k == axis else 0 for k in range(3)))
            for a, b in pairwise(cuts)
        ]
        whole = concatenate(tiles, axis=axis)
        assert whole.content.dtype == dtype
        assert whole.extent == (4, 5, 3)
        assert gap(whole.content, embed(x)) < CLOSE[dtype]
        assert gap(split(whole, axis=axis, left=tiles[0]).content, tiles[1].content) < CLOSE[dtype]
        assert gap(split(whole, axis=axis, right=tiles[1]).content, tiles[0].content) < CLOSE[dtype]


def test_tiles_carry_gradients():
    embed, x = MonoidalEmbedding(6, (7,)), torch.rand(3, 7, requires_grad=True)
    whole = concatenate([embed.tile(x[:, :3]), embed.tile(x[:, 3:], origin=3)])
    (expected,) = torch.autograd.grad(embed(x).square().sum(), embed.frequencies)
    whole.content.square().sum().backward()
    assert gap(embed.frequencies.grad, expected) < 1e-4 * float(expected.abs().max())
    assert float(x.grad.abs().min()) > 0


def test_row_37_the_norm_depends_on_relative_positions_only(dtype):
    """Moving all cells by the same offset turns the embedding and keeps the norm of every plane."""
    embed = MonoidalEmbedding(8, (9, 9)).to(dtype)
    x = torch.randn(4, 4, dtype=dtype)
    moved = torch.nn.functional.pad(x, (5, 0, 3, 0))
    norms = [embed(c).unflatten(-1, (-1, 2)).norm(dim=-1) for c in (x, moved)]
    assert gap(*norms) < CLOSE[dtype]
    turned = embed.generators.group.act(absolute(embed.generators, torch.tensor([3, 5])), embed(x))
    assert gap(embed(moved), turned) < CLOSE[dtype]
    assert gap(embed(moved), embed(x)) > 0.1


def test_row_46_audio_and_video(dtype):
    """Σ_{t,f} R_time^t R_freq^f v_tf and Σ_{i,j,t} R_row^i R_col^j R_time^t v_ijt, 0-based."""
    for shape in [(12, 5), (3, 4, 6)]:
        embed = MonoidalEmbedding(6, shape, cells="vector")
        v = torch.randn(*shape, 6, dtype=dtype)
        total = torch.zeros(6, dtype=torch.float64)
        for cell in torch.cartesian_prod(*(torch.arange(n) for n in shape)):
            term = v[tuple(cell)].double()
            for k, n in enumerate(cell):
                term = embed.generators.group.act(embed.angles[k].detach().double() * n, term)
            total += term
        assert gap(embed(v), total) < CLOSE[dtype]


def test_memory_does_not_grow_with_cells_times_dim():
    """Four times the cells, twice the memory; far from one vector a cell; and an FFT holds no vectors at all."""
    dim, held = 256, {}
    for n in (32, 64):
        for kind in ("learned", "dft"):
            embed, x = MonoidalEmbedding(dim, (n, n), frequencies=kind), torch.rand(4, n, n)
            held[kind, n] = peak_bytes(lambda: embed(x))  # noqa: B023
    every_vector = 4 * 64 * 64 * dim * 4
    assert held["learned", 64] < 2.5 * held["learned", 32]
    assert held["learned", 64] < every_vector / 16
    assert held["dft", 64] < every_vector / 64
    line = MonoidalEmbedding(dim, (4096,))
    short, long = (peak_bytes(lambda: line(x)) for x in (torch.rand(1, 1024), torch.rand(1, 16384)))  # noqa: B023
    assert long < 5 * short


@pytest.mark.refused
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, (4,)), {}, "dim 3 cannot be split into planes"),
        ((0, (4,)), {}, "dim 0 cannot be split into planes"),
        ((4, ()), {}, "holds no cells"),
        ((4, (4, 0)), {}, "holds no cells"),
        ((4, (4.5,)), {}, "is not whole"),
        ((4, 4), {"frequencies": "fft"}, "unknown frequencies 'fft'"),
        ((4, 4), {"cells": "complex"}, "unknown cells 'complex'"),
        ((4, 4), {"spread": -1}, "spread -1"),
        ((4, 4), {"spread": 1.0, "frequencies": "dft"}, "for learned ones only"),
        ((10, 4), {"frequencies": "dft"}, "it must be 8 or less"),
        ((4, 4), {"content": torch.ones(3)}, r"it must be real numbers, \(4,\)"),
        ((4, 4), {"content": "random"}, "content 'random'"),
        ((4, 4), {"content": "learned", "cells": "vector"}, "their own content"),
        ((4, 4), {"content": torch.ones(4), "cells": "vector"}, "is for real cells"),
    ],
)
def test_refused_constructions(arguments, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        MonoidalEmbedding(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.refused
def test_refused_inputs():
    embed = MonoidalEmbedding(4, (3, 3))
    for x, message in [
        (torch.ones(3), r"real cells need \(..., 3, 3\)"),
        (torch.ones(3, 3, dtype=torch.uint8), "the bytes of an image divided by 255"),
    ]:
        with pytest.raises(ValueError, match=message):
            embed(x)
    vectors = MonoidalEmbedding(4, (3, 3), cells="vector")
    for shape in [(3, 3), (3, 4), (2, 3, 3)]:
        with pytest.raises(ValueError, match=r"vector cells need \(..., 3, 3, 4\)"):
            vectors(torch.ones(*shape))
    with pytest.raises(ValueError, match="origin"):
        embed.tile(torch.ones(3, 3), origin=(0, 0, 0))


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["learned", "dft"])
def test_one_graph_for_any_batch_and_length(kind):
    torch._dynamo.reset()
    for shape in [(6, 5), (30,)]:
        embed = MonoidalEmbedding(8, shape, frequencies=kind)
        compiled = torch.compile(embed, fullgraph=True, backend="aot_eager", dynamic=True)
        for batch in (2, 3):
            x = torch.randn(batch, *shape)
            assert gap(compiled(x), embed(x)) < 1e-5
        assert gap(torch.export.export(embed, (x,)).module()(x), embed(x)) < 1e-5


def test_bfloat16_moves_the_module_but_rounds_no_frequency():
    embed = MonoidalEmbedding(8, (4, 5))
    before = embed.frequencies.clone()
    assert torch.equal(embed.to(torch.bfloat16).frequencies, before)
    assert embed(torch.rand(4, 5).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("cells", ["real", "vector"])
def test_float32_embeddings_of_long_lines_keep_their_phases(cells):
    """Angles are multiplied out in float64: at the far end of a line float32 would have lost them."""
    torch.manual_seed(0)
    embed = MonoidalEmbedding(8, 20_000, cells=cells, spread=3.0)
    x = torch.zeros(20_000, *([8] if cells == "vector" else []))
    x[-1] = 1.0
    exact = embed(x.double())
    assert (embed(x) - exact).abs().max() < 1e-5
