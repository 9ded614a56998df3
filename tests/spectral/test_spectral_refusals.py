"""Bad input to the transforms: one line that says what is wrong and what would be right."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.spectral import (
    LearnableTransform,
    Spectrum,
    composed,
    dct,
    dft,
    dst,
    hadamard,
    idct,
    idft,
    idst,
    spectrum,
)

pytestmark = pytest.mark.refused
ALL = [dft, idft, dct, idct, dst, idst, hadamard]
x, z = torch.randn(2, 4), torch.randn(2, 4, dtype=torch.complex64)


def refused(match, f, *args, **options):
    with pytest.raises(ValueError, match=match) as error:
        f(*args, **options)
    assert "\n" not in str(error.value)


@settings(max_examples=30)
@given(n=st.integers(3, 200).filter(lambda n: n & (n - 1)))
def test_hadamard_of_other_lengths(n):
    message = f"length {n} is not a power of two: pad to {1 << n.bit_length()} or use dft"
    refused(message, hadamard, torch.ones(n))
    refused(message, composed, torch.ones(n), "hadamard")
    refused(message, LearnableTransform, "walsh", n)


@pytest.mark.parametrize("f", ALL)
def test_axes_norms_and_what_is_no_tensor(f):
    refused("dim 2 is not an axis of", f, x, dim=2)
    refused("dim -3 is not an axis of", f, x, dim=-3)
    refused("none twice", f, x, dim=(1, -1))
    refused("at least one axis", f, x, dim=())
    refused("not whole", f, x, dim=0.5)
    refused("norm 'unit' is unknown", f, x, norm="unit")
    refused("is empty", f, torch.ones(2, 0))
    nothing = torch.ones(0, 2)
    assert f(nothing).shape == (0, 2)  # an empty batch is no mistake
    assert f(nothing) is not nothing
    assert f(nothing).dtype == f(torch.ones(1, 2)).dtype
    refused("a single number", f, torch.tensor(1.0))
    refused("input is a list", f, [1.0, 2.0])


def test_complex_where_real_is_needed():
    for f in (dct, idct, dst, idst, hadamard):
        refused("complex64: the .* needs real numbers", f, z)
    for kind in ("dct2", "dst4", "hadamard", "walsh"):
        refused("complex64", composed, z, kind)
        refused("complex64", LearnableTransform(kind, 4), z)


def test_types_orders_kinds_and_lengths():
    for f in (dct, idct, dst, idst):
        refused("type 5 is unknown", f, x, 5)
    refused("order 'dyadic' is unknown", hadamard, x, order="dyadic")
    refused("too short", dct, torch.ones(3, 1), 1)
    refused("too short", spectrum, "dct1", 1)
    refused("kind 'dct5' is unknown", spectrum, "dct5", 4)
    refused("kind 'dct5' is unknown", composed, x, "dct5")
    refused("kind 'dct5' is unknown", LearnableTransform, "dct5", 4)
    refused("not one Hadamard axis", spectrum, "hadamard", 4)


def test_spectra_by_hand():
    angles = torch.zeros(3)
    refused("angles are", Spectrum, torch.zeros(2, 2))
    refused("angles are", Spectrum, torch.zeros(3, dtype=torch.long))
    refused("scale has shape", Spectrum, angles, scale=torch.ones(2))
    refused("weights have shape", Spectrum, angles, torch.ones(2, 2))
    refused("part 'modulus' is unknown", Spectrum, angles, part="modulus")
    refused("the axis has 4 points", composed, x, Spectrum(angles, torch.ones(5)))
    refused("do not fit", composed, x, [Spectrum(angles)] * 2)
    refused("do not fit", composed, x, [Spectrum(angles), Spectrum(angles, part="real")], dim=(0, 1))
    refused("is for a kind given by name", composed, x, Spectrum(angles), norm="ortho")


def test_learnable_shapes():
    refused("outputs is 5", LearnableTransform, "dct2", 4, outputs=5)
    refused(r"outputs \(0,\) is empty", LearnableTransform, "dct2", 4, outputs=0)
    refused("do not fit", LearnableTransform, "dct2", (4, 4), outputs=2)
    refused("outputs must be", LearnableTransform, "hadamard", 4, outputs=2)
    refused("norm", LearnableTransform, "dct2", 4, norm="unit")
    refused("needs .*4, 4", LearnableTransform("dct2", (4, 4)), torch.ones(4, 3))
    refused(r"shape \(0,\) is empty", LearnableTransform, "dct2", 0)


def test_an_empty_batch_is_held_to_the_same_lengths():
    refused("too short", dct, torch.ones(0, 1), 1)
    refused("not a power of two", hadamard, torch.ones(0, 3))
