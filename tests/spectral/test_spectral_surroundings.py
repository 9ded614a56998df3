"""The transforms in the company of autocast, fake tensors, other devices, batched gradients and the compiler."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from joformer.spectral import LearnableTransform, Spectrum, composed, dct, dst, hadamard, spectrum
from joformer.spectral._tables import _tables

TRANSFORMS = {
    "dct": dct,
    "dst": dst,
    "dct4": lambda x: dct(x, 4),
    "dst1": lambda x: dst(x, 1),
    "hadamard": hadamard,
    "walsh": lambda x: hadamard(x, order="sequency"),
    "learnable": lambda x: LearnableTransform("dct2", x.shape[-1])(x),
    "learnable dft": lambda x: LearnableTransform("dft", x.shape[-1])(x),
}


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_autocast_rounds_nothing(name, n):
    x = torch.randn(4, n)
    exact = TRANSFORMS[name](x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(TRANSFORMS[name](x), exact)


@pytest.mark.parametrize("n", [8, 256])
def test_no_fake_table_is_kept(n):
    _tables.clear()
    x = torch.randn(3, n)
    with FakeTensorMode(allow_non_fake_inputs=True):
        dct(x)
        hadamard(x)
    assert type(dct(x)) is type(hadamard(x)) is torch.Tensor


@pytest.mark.parametrize("n", [8, 256])
def test_tables_belong_to_a_device(n):
    _tables.clear()
    assert dct(torch.empty(3, n, device="meta")).device.type == "meta"
    assert dct(torch.ones(3, n)).device.type == "cpu"
    torch.set_default_device("meta")
    try:
        _tables.clear()
        assert dct(torch.ones(3, n, device="cpu")).device.type == "cpu"
        assert hadamard(torch.ones(3, n, device="cpu")).device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_no_table_of_a_transform_of_functions_is_kept():
    _tables.clear()
    x = torch.randn(2, 256)
    torch.func.grad(lambda v: dct(v).sum())(x)
    torch.vmap(dct)(x)
    assert all(type(part) is torch.Tensor for table in _tables.values() for part in table)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(p) for table in _tables.values() for p in table)
    torch.testing.assert_close(dct(x), composed(x, "dct2"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("type", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [16, 130, 131])
@pytest.mark.parametrize("f", [dct, dst])
def test_batched_gradients_and_forward_mode(f, n, type):
    x = torch.randn(n, dtype=torch.float64, requires_grad=True)
    matrix = f(torch.eye(n, dtype=torch.float64), type)  # row j is the transform of the unit vector j
    (batched,) = torch.autograd.grad(f(x, type), x, torch.eye(n, dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(batched, matrix.T)
    tangent = torch.randn(n, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        moved = forward_ad.unpack_dual(f(dual, type)).tangent
    torch.testing.assert_close(moved, tangent @ matrix)


@pytest.mark.compiled
def test_odd_lengths_of_type_4_compile_with_unknown_length():
    compiled = torch.compile(lambda x: dct(x, 4), fullgraph=True, backend="aot_eager")
    for n in (131, 133, 197):
        x = torch.randn(2, n)
        torch.testing.assert_close(compiled(x), dct(x, 4), atol=1e-4, rtol=1e-4)


def test_a_composition_is_no_view_of_its_input():
    x = torch.ones(3, 1)
    composed(x, "hadamard").zero_()
    assert x.sum() == 3


@pytest.mark.parametrize("kind", ["dct2", "dct3", "dst2", "dst1"])
def test_the_lowest_frequencies_keep_their_norm(kind):
    x, few = torch.randn(6, dtype=torch.float64), LearnableTransform(kind, 6, norm="ortho", outputs=4)
    f = dct if kind.startswith("dct") else dst
    torch.testing.assert_close(few(x), f(x, int(kind[3]), norm="ortho")[:4])


def test_complex_weights_have_an_imaginary_part_too():
    k, x = torch.arange(3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    weights = torch.randn(4, dtype=torch.complex128)
    whole = Spectrum(k, weights)
    turned = (x * weights * torch.exp(1j * k[:, None] * torch.arange(4))).sum(-1)
    torch.testing.assert_close(x.to(weights) @ whole.basis(4), turned)
    torch.testing.assert_close(x @ Spectrum(k, weights, part="imaginary").basis(4), turned.imag)
    torch.testing.assert_close(x @ Spectrum(k, weights, part="real").basis(4), turned.real)


@pytest.mark.parametrize("kind", ["hadamard", "walsh"])
def test_each_bit_has_its_own_angles(kind):
    """Moving the angles of one bit changes the transform as that binary axis says."""
    module = LearnableTransform(kind, 8).double()
    with torch.no_grad():
        module.offsets[0].copy_(0.3 * torch.randn(3, 2))
    x = torch.randn(8, dtype=torch.float64)
    one = spectrum("hadamard", 2)
    y = x.view(2, 2, 2)
    for bit, angles in enumerate(module.angles()[0].detach()):  # the first row is the highest bit, the first axis
        basis = Spectrum(angles, one.weights, one.scale, part="real").basis(2)
        y = torch.tensordot(y, basis, dims=([bit], [0])).movedim(-1, bit)
    expected = y.flatten()
    if kind == "walsh":
        expected = expected[torch.tensor([0, 4, 6, 2, 3, 7, 5, 1])]
    torch.testing.assert_close(module(x).detach(), expected)
