"""Identities are worth what they catch: each of these wrong rotations must fail, in every identity meant for it."""

import sys

import pytest
import torch

from joformer import FixedFrames, FlatFrames, journey_attention, positions, rotate
from joformer.rotation import _eager as kernels
from joformer.testing import (
    assert_inverse,
    assert_is_rotation,
    assert_matches_reference,
    assert_norm_preserved,
    assert_shift_invariant,
    assert_telescopes,
)


def by_planes(x, frames, formula):
    cos, sin = frames.angles.cos().to(x.dtype), frames.angles.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack(formula(a, b, cos, sin), -1).flatten(-2)


def one_sign_flipped(x, frames, inverse=False):
    s = -1 if inverse else 1
    return by_planes(x, frames, lambda a, b, c, sin: (a * c + b * s * sin, a * s * sin + b * c))


def inverse_ignored(x, frames, inverse=False):
    return rotate(x, frames)


def turned_the_other_way(x, frames, inverse=False):
    return rotate(x, frames, inverse=not inverse)


def planes_mispaired(x, frames, inverse=False):
    return rotate(x, FlatFrames.of(frames.angles, layout="half"), inverse)


def positions_off(x, frames, inverse=False):
    return rotate(x, FlatFrames.of(frames.angles.sin()), inverse)


WRONG = {
    one_sign_flipped: {"is_rotation", "norm", "inverse", "telescopes", "shift"},
    inverse_ignored: {"inverse", "telescopes", "shift"},
    turned_the_other_way: {"is_rotation"},
    planes_mispaired: {"is_rotation"},
    positions_off: {"is_rotation", "shift"},
}


def identities(rotate):
    torch.manual_seed(0)
    frames = FlatFrames.of(torch.randn(1, 6, 1, 4, dtype=torch.float64))
    x = torch.randn(2, 6, 2, 8, dtype=torch.float64)
    shift = torch.tensor([3.0], dtype=torch.float64)
    return {
        "is_rotation": lambda: assert_is_rotation(frames, x, rotate=rotate),
        "norm": lambda: assert_norm_preserved(frames, x, rotate=rotate),
        "inverse": lambda: assert_inverse(frames, x, rotate=rotate),
        "telescopes": lambda: assert_telescopes(frames, x, rotate=rotate),
        "shift": lambda: assert_shift_invariant(
            FixedFrames(8), positions.sequence(6), shift, rotate=rotate, dtype=torch.float64
        ),
    }


def fails(check):
    try:
        check()
    except AssertionError:
        return True
    return False


def test_the_right_rotation_passes_all():
    assert not [name for name, check in identities(rotate).items() if fails(check)]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda f: f.__name__)
def test_wrong_rotations_are_caught(wrong):
    caught = {name for name, check in identities(wrong).items() if fails(check)}
    assert caught == WRONG[wrong]


def flipped_kernels():
    """Every sign of the arithmetic itself, flipped one at a time, forward or backward."""
    rotate_into, inverse_of = kernels.rotate_into, kernels.inverse_of
    real, gradient = kernels.rotate_real, kernels._angle_gradient

    def other_way(x, rotation, out):
        rotate_into(x, inverse_of(rotation), out)

    return {
        "forward": ("rotate_into", other_way),
        "angle gradient": ("_angle_gradient", lambda *a, **k: -gradient(*a, **k)),
        "inverse": ("inverse_of", lambda rotation: rotation._replace(inverse=not rotation.inverse)),
        "inverse of cos": ("inverse_of", lambda rotation: inverse_of(rotation._replace(unit=-rotation.unit))),
        "real": ("rotate_real", lambda x, unit, layout, inverse: real(x, unit, layout, not inverse)),
    }


@pytest.mark.parametrize("which", flipped_kernels())
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_a_flipped_sign_in_the_hot_path_is_caught_by_the_reference(which, layout, monkeypatch):
    name, wrong = flipped_kernels()[which]
    monkeypatch.setattr(kernels, name, wrong)
    # The modules that imported the kernel.
    for module in ("joformer.rotation._rotate", "joformer.rotation._prepared"):
        monkeypatch.setattr(sys.modules[module], name, wrong, raising=False)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 5, 2, 8, dtype=torch.float64)
    angles = torch.randn(1, 5, 1, 4, dtype=torch.float64)

    def values_and_angle_gradient():
        # Scores alone are blind to turning everything the other way round twice; one-sided transports are not.
        still = FlatFrames.of(torch.zeros_like(angles), layout=layout)
        for options in ({}, {"value_frames": still}, {"value_frames": still, "value_key_frames": still}):
            assert_matches_reference(q, k, v, FlatFrames.of(angles, layout=layout), **options)
        a = angles.clone().requires_grad_()
        both = [
            torch.autograd.grad(
                journey_attention(q, k, v, FlatFrames.of(a, layout=layout), backend=backend).square().sum(), a
            )[0]
            for backend in ("auto", "reference")
        ]
        assert torch.allclose(*both, atol=1e-10)
        assert_is_rotation(FlatFrames.of(angles, layout=layout), q)
        together = torch.vmap(lambda q: rotate(q, FlatFrames.of(angles, layout=layout)))(q[None])[0]
        assert torch.allclose(together, rotate(q, FlatFrames.of(angles, layout=layout)))

    with pytest.raises(AssertionError):
        values_and_angle_gradient()


def test_the_same_checks_pass_unflipped():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 5, 2, 8, dtype=torch.float64)
    assert_matches_reference(q, k, v, FlatFrames.of(torch.randn(1, 5, 1, 4, dtype=torch.float64)))


def test_the_old_name_of_the_inverse_still_works():
    from joformer import testing

    with pytest.warns(DeprecationWarning, match="assert_inverse"):
        assert testing.assert_undone is assert_inverse
