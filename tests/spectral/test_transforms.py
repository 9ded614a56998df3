"""The fast transforms are numpy's and scipy's, and each is a composition of elements."""

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import spectral
from joformer.spectral import composed, dct, dft, dst, hadamard, idct, idft, idst
from joformer.spectral._fast import by_fft

NORMS = [None, "backward", "ortho", "forward"]
REAL = {
    "dct": (dct, scipy.fft.dct),
    "idct": (idct, scipy.fft.idct),
    "dst": (dst, scipy.fft.dst),
    "idst": (idst, scipy.fft.idst),
}
GRIDS = {"dct": scipy.fft.dctn, "idct": scipy.fft.idctn, "dst": scipy.fft.dstn, "idst": scipy.fft.idstn}
LENGTHS = [1, 2, 3, 4, 5, 8, 9, 64, 127, 128, 129, 130, 131, 133, 135, 243, 256, 257, 1000, 1001, 4096]


def close(ours, theirs, tol=1e-10):
    theirs = torch.as_tensor(theirs)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < tol * max(1.0, theirs.abs().max().item())


def skip_dct1_of_one(name, type, n):
    return type == 1 and n == 1 and "c" in name


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", LENGTHS)
def test_dft_is_numpys(n, norm):
    x = torch.randn(3, n, dtype=torch.float64)
    z = torch.randn(3, n, dtype=torch.complex128)
    close(dft(x, norm=norm), np.fft.fft(x.numpy(), norm=norm))
    close(dft(z, norm=norm), np.fft.fft(z.numpy(), norm=norm))
    close(idft(z, norm=norm), np.fft.ifft(z.numpy(), norm=norm))
    close(idft(dft(z, norm=norm), norm=norm), z)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("name", REAL)
def test_dct_and_dst_are_scipys(name, type, norm):
    ours, theirs = REAL[name]
    for n in LENGTHS:
        if not skip_dct1_of_one(name, type, n):
            x = torch.randn(3, n, dtype=torch.float64)
            close(ours(x, type, norm=norm), theirs(x.numpy(), type, norm=norm))
            close(ours(x[0], type, norm=norm), theirs(x[0].numpy(), type, norm=norm))


@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("norm", NORMS)
def test_inverses_undo(type, norm):
    for n in (2, 5, 8):
        x = torch.randn(3, n, dtype=torch.float64)
        close(idct(dct(x, type, norm=norm), type, norm=norm), x)
        close(idst(dst(x, type, norm=norm), type, norm=norm), x)


@pytest.mark.parametrize("m", range(11))
def test_hadamard_is_scipys_and_walsh_counts_sign_changes(m):
    n = 1 << m
    h = torch.as_tensor(scipy.linalg.hadamard(n), dtype=torch.float64)
    x = torch.randn(3, n, dtype=torch.float64)
    close(hadamard(x), x @ h.T)
    close(hadamard(x, norm="ortho"), x @ h.T / n**0.5)
    close(hadamard(hadamard(x), norm="forward"), x)
    walsh = hadamard(torch.eye(n, dtype=torch.float64), order="sequency").T
    assert ((walsh[:, 1:] != walsh[:, :-1]).sum(-1) == torch.arange(n)).all()
    assert sorted(map(tuple, walsh.tolist())) == sorted(map(tuple, h.tolist()))
    close(hadamard(hadamard(x, order="sequency", norm="ortho"), order="sequency", norm="ortho"), x)


@settings(max_examples=40)
@given(
    data=st.data(),
    shape=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    type=st.sampled_from([1, 2, 3, 4]),
    norm=st.sampled_from(NORMS),
    fp64=st.booleans(),
)
def test_any_axes_batched_and_not_contiguous(data, shape, type, norm, fp64):
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    axes = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    dtype, tol = (torch.float64, 1e-10) if fp64 else (torch.float32, 1e-4)
    x = torch.randn(*shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
    for name, theirs in GRIDS.items():
        ours = REAL[name][0](x, type, tuple(axes), norm=norm)
        assert ours.dtype == dtype
        close(ours, theirs(x.double().numpy(), type, axes=axes, norm=norm), tol)
    assert dft(x, tuple(axes)).dtype == dtype.to_complex()
    close(dft(x, tuple(axes), norm=norm), np.fft.fftn(x.double().numpy(), axes=axes, norm=norm), tol)
    close(idft(x, tuple(axes), norm=norm), np.fft.ifftn(x.double().numpy(), axes=axes, norm=norm), tol)


def test_hadamard_on_several_axes(dtype):
    x = torch.randn(4, 3, 8, dtype=dtype)
    h4, h8 = (torch.as_tensor(scipy.linalg.hadamard(n), dtype=dtype) for n in (4, 8))
    close(hadamard(x, (0, -1)), torch.einsum("ab,bcd,de->ace", h4, x, h8), 1e-5)
    assert hadamard(x, (0, -1)).dtype == dtype


@pytest.mark.parametrize("m", [8, 9, 11])
def test_hadamard_of_much_work_has_other_digits(m):
    x = torch.randn(100, 1 << m, dtype=torch.float64)
    close(hadamard(x), x @ torch.as_tensor(scipy.linalg.hadamard(1 << m), dtype=torch.float64))


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 130, 131])
def test_each_is_a_composition(n, norm, dtype):
    tol = 1e-10 if dtype == torch.float64 else 1e-5
    x = torch.randn(2, n, dtype=dtype)
    close(composed(x, "dft", norm=norm), dft(x, norm=norm), tol)
    close(composed(torch.complex(x, -2 * x), "idft", norm=norm), idft(torch.complex(x, -2 * x), norm=norm), tol)
    for type in (1, 2, 3, 4):
        if n > 1 or type > 1:
            close(composed(x, f"dct{type}", norm=norm), dct(x, type, norm=norm), tol)
        close(composed(x, f"dst{type}", norm=norm), dst(x, type, norm=norm), tol)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_each_grid_is_a_composition(norm):
    x = torch.randn(3, 2, 4, 5, dtype=torch.float64)
    for axes in [(-1, -2), (1, 3), (0, 3, 2)]:
        close(composed(x, "dft", dim=axes, norm=norm), dft(x, axes, norm=norm))
        for type in (1, 2, 3, 4):
            close(composed(x, f"dct{type}", dim=axes, norm=norm), dct(x, type, axes, norm=norm))
            close(composed(x, f"dst{type}", dim=axes, norm=norm), dst(x, type, axes, norm=norm))
    x = torch.randn(8, 3, 4, dtype=torch.float64)
    close(composed(x, "hadamard", dim=(0, -1), norm=norm), hadamard(x, (0, -1), norm=norm))
    close(composed(x, "walsh", dim=(0, -1), norm=norm), hadamard(x, (0, -1), order="sequency", norm=norm))
    close(composed(x[:1], "walsh", dim=0, norm=norm), x[:1])


def test_what_the_paper_prints_is_something_else():
    """docs/claims.md rows 38, 41 and 42, from the pieces."""
    n, k = 6, torch.arange(6, dtype=torch.float64)
    x, y = torch.randn(n, dtype=torch.float64), torch.randn(n, n, dtype=torch.float64)
    printed = spectral.Spectrum(2 * torch.pi * k / n)
    close(composed(x, printed), n * np.fft.ifft(x.numpy()))
    no_half = spectral.Spectrum(torch.pi * k / n, part="real")
    half = spectral.Spectrum(torch.pi * k / n, shift=0.5, part="real")
    assert (2 * composed(x, no_half) - dct(x)).abs().max() > 0.1
    close(2 * composed(x, half), dct(x))
    both = [spectral.Spectrum(s * torch.pi * k / n, shift=0.5) for s in (1, -1)]
    one_sign = 4 * composed(y, both[0], dim=(0, 1)).real
    other = 4 * composed(y, [both[1], both[0]], dim=(0, 1)).real
    assert (one_sign - dct(y, dim=(0, 1))).abs().max() > 0.1
    close((one_sign + other) / 2, dct(y, dim=(0, 1)))


@pytest.mark.parametrize("n", [1, 4, 5])
def test_gradients(n):
    x = torch.randn(2, n, dtype=torch.float64, requires_grad=True)
    for type in (1, 2, 3, 4):
        for norm in (None, "ortho"):
            for f in (dct, dst, idct, idst):
                if not skip_dct1_of_one(f.__name__, type, n):
                    assert torch.autograd.gradcheck(lambda v, f=f, t=type, m=norm: f(v, t, norm=m), x)
    assert torch.autograd.gradcheck(dft, x)
    assert torch.autograd.gradcheck(idft, x.detach().to(torch.complex128).requires_grad_())


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("type", [2, 3, 4])
def test_by_fft_at_every_length_is_the_product_with_the_basis(type, sine):
    for n in range(1, 41):
        x = torch.randn(2, n, dtype=torch.float64)
        one = spectral.spectrum(f"{'dst' if sine else 'dct'}{type}", n, norm="ortho")
        close(by_fft(x, type, sine, (1 / n) ** 0.5, (2 / n) ** 0.5), x @ one.basis(n))
    for n in (1, 4, 5):
        x = torch.randn(2, n, dtype=torch.float64, requires_grad=True)
        for end, rest in ((2.0, 2.0), (1.0, 2.0)):
            f = lambda v, e=end, r=rest: by_fft(v, type, sine, e, r)  # noqa: E731
            assert torch.autograd.gradcheck(f, x, check_forward_ad=True)
            assert torch.autograd.gradgradcheck(lambda v, f=f: f(v).pow(3), x)
            close(torch.func.vmap(f)(x), f(x))
            close(torch.func.vmap(torch.func.grad(lambda v, f=f: f(v).sum()))(x), torch.autograd.grad(f(x).sum(), x)[0])


def test_gradients_on_several_axes_of_second_order_and_forward():
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    for f in (lambda v: dct(v, 2, (0, 1)), lambda v: dst(v, 3, (2, 1)), lambda v: dct(v, 4, (1, 2))):
        assert torch.autograd.gradcheck(f, x, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda v, f=f: f(v).pow(3), x)
    for order in ("natural", "sequency"):
        assert torch.autograd.gradcheck(lambda v, o=order: hadamard(v, (0, 1), order=o), x, check_forward_ad=True)


@pytest.mark.parametrize("f", [lambda v: dct(v, 2), lambda v: dst(v, 3), lambda v: dct(v, 4), hadamard])
def test_under_torch_func_nothing_leaks_into_the_tables(f):
    x = torch.randn(3, 256, dtype=torch.float64)
    spectral._tables._tables.clear()
    grad = torch.func.vmap(torch.func.grad(lambda v: f(v).pow(2).sum()))(x)
    matrix = torch.func.jacrev(f)(x[0])
    close(torch.func.jacfwd(f)(x[0]), matrix)
    close(grad, 2 * x @ matrix.T @ matrix)
    with torch.inference_mode():
        f(torch.randn(512, dtype=torch.float64))
    y = torch.randn(512, dtype=torch.float64, requires_grad=True)
    f(y).sum().backward()
    close(torch.func.vmap(f)(x), f(x))


def test_tables_are_bounded_and_keyed_on_everything():
    for n in range(1, 200):
        dct(torch.ones(n))
    assert len(spectral._tables._tables) <= spectral._tables.MOST_TABLES
    for x, norm in ((x, norm) for x in (torch.randn(8), torch.randn(300)) for norm in (None, "ortho")):
        for y in (x, x.double()):
            close(dct(y, norm=norm).double(), scipy.fft.dct(y.double().numpy(), norm=norm), 1e-5)


def test_other_dtypes_and_devices():
    x = torch.arange(4)
    close(dct(x), scipy.fft.dct(x.numpy()).astype("float32"), 1e-5)
    assert dct(x.bfloat16()).dtype == torch.bfloat16
    assert hadamard(x.half()).dtype == torch.float16
    assert dft(x.bfloat16()).dtype == torch.complex64
    for type in (1, 2, 3, 4):
        for n in (5, 200, 201):
            assert dct(torch.empty(3, n, device="meta"), type).device.type == "meta"


@pytest.mark.compiled
def test_compiles_whole():
    x = torch.randn(2, 256)
    for f in (lambda v: dct(v, 2), lambda v: dst(v, 3), lambda v: dct(v, 4), lambda v: hadamard(v, order="sequency")):
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        close(compiled(x), f(x), 1e-5)
        y = x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(f(y).pow(2).sum(), y)
        close(torch.autograd.grad(compiled(y).pow(2).sum(), y)[0], wanted, 1e-4)
