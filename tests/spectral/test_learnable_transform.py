"""Learnable transforms start as the transform, stay separable, and train."""

import copy
import math

import pytest
import torch

from joformer.spectral import LearnableTransform, dct, dft, dst, hadamard, idft
from joformer.spectral._spectrum import KINDS


def regular(kind, x, axes, norm=None):
    if kind in ("dft", "idft"):
        return (dft if kind == "dft" else idft)(x, axes, norm=norm)
    if kind in ("hadamard", "walsh"):
        return hadamard(x, axes, order="natural" if kind == "hadamard" else "sequency", norm=norm)
    return (dct if kind[:3] == "dct" else dst)(x, int(kind[3]), axes, norm=norm)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("kind", [*KINDS, "walsh"])
def test_starts_as_the_transform(kind, norm, dtype):
    x = torch.randn(2, 8, 4, dtype=dtype)
    y = LearnableTransform(kind, (8, 4), norm=norm)(x)
    wanted = regular(kind, x, (-2, -1), norm)
    assert y.dtype == wanted.dtype
    torch.testing.assert_close(y, wanted, atol=1e-10 if dtype == torch.float64 else 1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["dft", "dct4", "dst1"])
def test_starts_accurate_on_long_axes(kind):
    x = torch.randn(2, 1024)
    y, wanted = LearnableTransform(kind, 1024)(x), regular(kind, x.double(), -1)
    assert (y - wanted).abs().max() < 2e-4  # outputs are of size 50 to 100
    exact = LearnableTransform(kind, 1024)(x.double())
    assert (exact - wanted).abs().max() < 1e-9


def test_lowest_outputs_and_complex_input():
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    y = LearnableTransform("dct2", (6, 5), outputs=(2, 3))(x)
    torch.testing.assert_close(y, dct(x, 2, (-2, -1))[..., :2, :3])
    z = torch.complex(x, x.flip(0))
    torch.testing.assert_close(LearnableTransform("dft", 5, outputs=2)(z), dft(z)[..., :2])
    assert LearnableTransform("dct2", 5)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["dft", "idft", "dct1", "dct2", "dct3", "dct4", "dst1", "dst2", "hadamard", "walsh"])
def test_gradients_of_angles_and_input(kind):
    module = LearnableTransform(kind, (4, 2), norm="ortho").double()
    x = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True)
    offsets = [(0.3 * torch.randn_like(p)).requires_grad_() for p in module.parameters()]
    names = [name for name, _ in module.named_parameters()]

    def run(x, *offsets):
        return torch.func.functional_call(module, dict(zip(names, offsets)), x)

    assert torch.autograd.gradcheck(run, (x, *offsets))


@pytest.mark.parametrize("kind", [*KINDS, "walsh"])
def test_every_kind_has_a_gradient_at_the_start(kind):
    module = LearnableTransform(kind, 8)
    y = module(torch.randn(3, 8))
    (y.real if y.is_complex() else y).pow(3).sum().backward()
    assert all(p.grad.abs().max() > 1e-3 for p in module.parameters())


@pytest.mark.parametrize(("kind", "sign"), [("dft", -1), ("dct2", 1)])
def test_descent_finds_a_frequency_off_the_grid(kind, sign):
    n, wanted = 64, 2 * math.pi * 7.37 / 64
    steps = torch.arange(n) + (0.5 if kind == "dct2" else 0.0)
    x = torch.cos(wanted * steps)
    module = LearnableTransform(kind, n, norm="ortho")
    k = int(module(x).abs().argmax())
    if kind == "dft":
        k = min(k, n - k)
    start = abs(sign * module.angles()[0][k].item() - wanted)
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(300):
        optimiser.zero_grad()
        (-(module(x)[k].abs() ** 2)).backward()
        optimiser.step()
    assert start > 0.01
    # The peak of a finite window leans on its mirror image by about 1 / n²: a hundredth of the grid's spacing.
    assert abs(sign * module.angles()[0][k].item() - wanted) < 2e-3


def test_state_round_trip_and_reset():
    module, other = LearnableTransform("dst2", (4, 3)), LearnableTransform("dst2", (4, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.normal_()
    x = torch.randn(4, 3)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))
    other.reset_parameters()
    torch.testing.assert_close(other(x), dst(x, 2, (0, 1)), atol=1e-5, rtol=1e-5)


def test_moved_to_bfloat16_it_keeps_its_frequencies():
    module = LearnableTransform("dct4", 64)
    with torch.no_grad():
        module.offsets[0].uniform_(-0.01, 0.01)
    lowered = torch.nn.Sequential(copy.deepcopy(module)).bfloat16()[0]
    x = torch.randn(2, 64)
    assert torch.equal(lowered(x), module(x))
    assert module.double().offsets[0].dtype == torch.float64


def test_never_a_matrix_of_points_times_frequencies():
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, f, types, args=(), kwargs=None):
            nonlocal largest
            out = f(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    for kind in ("dft", "dct2", "hadamard"):
        with Watch():
            LearnableTransform(kind, (32, 32))(torch.randn(2, 32, 32))
    assert largest <= 2 * 32 * 32
