"""Sets in space: where the flat theory says that nothing changes, nothing does; where it does not, something does."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.models import JoFormerPoints, PointsConfig, adapt, initialise, load, save
from joformer.models._points import polar
from joformer.testing import assert_close

FLAT = [
    {"frames": frames, "split": split, "transport": transport}
    for frames, split, transport in itertools.product(
        ("fixed", "learned"), ("axial", "combined"), ("scores", "values", "both")
    )
]


def built(dtype=torch.float64, seed=3, **fields):
    model = initialise(JoFormerPoints(PointsConfig(dim=32, heads=2, classes=5, **fields)), seed).to(dtype).eval()
    with torch.no_grad():  # logits of a new model hardly differ: a test must see where it looks
        model.head.weight.mul_(10)
    return model


def clouds(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def rotated(points, angle):
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.eye(points.shape[-1], dtype=points.dtype)
    turn[:2, :2] = torch.tensor([[c, -s], [s, c]], dtype=points.dtype)
    return points @ turn.T


def far(one, other):
    return (one - other).abs().max().item()


@pytest.mark.parametrize("fields", FLAT, ids=lambda fields: " ".join(fields.values()))
def test_a_shift_changes_nothing(fields):
    for axes in (1, 2, 3):
        model, points, ink = built(axes=axes, features=1, **fields), clouds(3, 11, axes), clouds(3, 11, 1, seed=1)
        shift = clouds(3, 1, axes, seed=2) * 40
        assert far(model(points + shift, ink), model(points, ink)) < 1e-10
        # In float32 what is left is the rounding of the coordinates themselves.
        less = built(torch.float32, axes=axes, features=1, **fields)
        exact = (points.float() + shift.float()) - shift.float()
        assert far(less(exact + shift.float(), ink.float()), less(exact, ink.float())) < 2e-3
        assert far(model(points, ink), model(points * 1.3, ink)) > 1e-3


def test_what_is_not_invariant_is_not():
    points = clouds(3, 11, 2)
    known = built(inputs="coordinates", transport="none")
    assert far(known(points + 1), known(points)) > 0.1
    for split in ("axial", "combined"):
        model = built(split=split)
        assert far(model(rotated(points, 1.0)), model(points)) > 1e-2
        assert far(model(-points), model(points)) > 1e-2  # a half turn is no shift either


def test_a_rotation_turns_the_frequencies():
    """ω · R n = (Rᵀω) · n: a rotated set in one model is the set itself in another, whose frequencies are rotated."""
    model, points, angle = built(frames="learned", split="combined"), clouds(2, 9, 2), 0.7
    other = built(frames="learned", split="combined")
    c, s = math.cos(angle), math.sin(angle)
    with torch.no_grad():
        first, second = model.frames.frequencies.unbind(0)
        other.frames.frequencies.copy_(torch.stack((c * first + s * second, -s * first + c * second)))
    assert far(model(rotated(points, angle)), other(points)) < 1e-10


@settings(max_examples=10)
@given(angle=st.floats(-7, 7), axes=st.integers(2, 3), transport=st.sampled_from(["scores", "values", "both"]))
def test_polar_coordinates_make_a_rotation_a_shift(angle, axes, transport):
    model = built(axes=axes, coordinates="polar", features=1, transport=transport)
    points, ink = clouds(2, 9, axes), clouds(2, 9, 1, seed=1)
    there = rotated(points, angle) + 5
    assert far(model(there, ink), model(points, ink)) < 1e-10
    mirrored = points * torch.tensor([-1.0, *[1.0] * (axes - 1)], dtype=points.dtype)
    assert far(model(mirrored, ink), model(points, ink)) > 1e-3  # a reflection is no rotation


def test_polar_is_distance_and_angle():
    points = clouds(2, 7, 3)
    made, about = polar(points), points - points.mean(1, keepdim=True)
    assert_close(made[..., 0] * made[..., 1].cos(), about[..., 0])
    assert_close(made[..., 0] * made[..., 1].sin(), about[..., 1])
    assert_close(made[..., 2], about[..., 2])


@pytest.mark.parametrize("coordinates", ["cartesian", "polar"])
def test_points_that_carry_nothing_are_invisible_to_scores(coordinates):
    """All values are alike, and any average of them is the same: RoPE alone is no positions, to rounding."""
    points, other = clouds(3, 11, 2), clouds(3, 6, 2, seed=5)
    blind, none = (built(coordinates=coordinates, transport=transport) for transport in ("scores", "none"))
    assert far(blind(points), none(points)) < 1e-10
    assert far(blind(points), blind(other)) < 1e-10
    for transport in ("values", "both"):
        seeing = built(coordinates=coordinates, transport=transport)
        assert far(seeing(points), seeing(other)) > 1e-2


@pytest.mark.parametrize("fields", [{}, {"coordinates": "polar"}, {"inputs": "coordinates", "transport": "none"}])
def test_padding_and_order_count_for_nothing(fields):
    model, points, ink = built(features=1, **fields), clouds(3, 8, 2), clouds(3, 8, 1, seed=1)
    counts = torch.tensor([8, 3, 1])
    mask = torch.arange(8) < counts[:, None]
    odd = points.where(mask[..., None], math.nan), ink.where(mask[..., None], math.inf)
    together = model(*odd, mask=mask)
    for row, count in enumerate(counts.tolist()):
        alone = model(points[row : row + 1, :count], ink[row : row + 1, :count])
        assert far(together[row], alone[0]) < 1e-10
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    assert far(model(points[:, order], ink[:, order]), model(points, ink)) < 1e-10


def test_values_are_the_fourier_transform_of_the_set():
    """One head, scores that see nothing: out_t = mean_u R(θ_u − θ_t) v, by complex numbers."""
    from joformer import FixedFrames, journey_attention

    frames, points, v = FixedFrames(8, axes=2, base=32.0), clouds(1, 9, 2), clouds(8, seed=1)
    zero = torch.zeros(1, 9, 1, 8, dtype=torch.float64)
    value = v.expand(1, 9, 1, 8)
    out = journey_attention(zero, zero, value, frames(points), transport="values")[0, :, 0]
    omega = torch.tensor([1.0, 32.0**-0.5], dtype=torch.float64)
    angle = torch.cat([points[0, :, axis : axis + 1] * omega for axis in (0, 1)], 1)
    wave = torch.exp(1j * angle)
    expected = (wave.mean(0) / wave) * torch.view_as_complex(v.unflatten(-1, (-1, 2)))
    found = torch.view_as_complex(out.unflatten(-1, (-1, 2)).contiguous())
    assert far(found, expected) < 1e-10
    assert far(found, expected.conj()) > 0.1  # the sign can be told


def test_it_is_saved_grown_and_learns_through_every_parameter(tmp_path):
    model = initialise(JoFormerPoints(PointsConfig(dim=16, heads=2, frames="learned", features=2)), 0)
    points, ink = clouds(2, 5, 2, dtype=torch.float32), clouds(2, 5, 2, dtype=torch.float32, seed=1)
    model(points, ink).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())
    save(model, tmp_path / "m")
    assert torch.equal(load(tmp_path / "m")(points, ink), model.eval()(points, ink))
    grown = adapt(model, layers=3)
    assert torch.equal(grown.start, model.start)
    assert dataclasses.asdict(grown.config)["layers"] == 3


@pytest.mark.refused
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"coordinates": "polar", "frames": "learned"}, r"polar coordinates need 2 axes or more and frames='fixed'"),
        ({"coordinates": "polar", "axes": 1}, r"polar coordinates need 2 axes or more"),
        ({"features": -1}, r"features must be the number of features per point"),
        ({"fastest": 0.0}, r"fastest must be in radians per unit of length, above 0"),
        ({"frames": "dense"}, r"frames must be one of fixed, learned, got 'dense'"),
        ({"heads": 5}, r"dim=64 does not divide into 5 heads"),
        ({"axes": 40}, r"an axial split gives each of 40 axes its own planes"),
    ],
)
def test_bad_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        PointsConfig(**fields).build()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("points", "features"),
    [(torch.zeros(2, 3), None), (torch.zeros(2, 3, 3), None), (torch.zeros(2, 0, 2), None),
     (torch.zeros(2, 3, 2), torch.zeros(2, 3, 1))],
)  # fmt: skip
def test_bad_points(points, features):
    with pytest.raises(ValueError, match=r"points must be \(batch, 1 point or more, 2\) with 0 features each"):
        JoFormerPoints(PointsConfig())(points, features)
