"""Augmentation: bit for bit what Pillow does one image at a time, plans that can be divided, mixing in pairs."""

import importlib.util
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.training.augment import Augment, Mix, MixPlan
from joformer.training.augment.images import FOURTEEN
from joformer.training.augment.operations import CODES, GEOMETRY, OPERATIONS, TIMM

Image = pytest.importorskip("PIL.Image")
from PIL import ImageEnhance, ImageOps

PLAIN = {"crop_pad": 0, "flip": 0.0, "erase": 0.0}


def dice(seed=0):
    return torch.Generator().manual_seed(seed)


def photos(n, channels=3, h=32, w=32, seed=0):
    """Noise of many brightnesses and contrasts, then a flat image, a two-valued one and one that is nearly flat."""
    draw = np.random.default_rng(seed)
    centre, spread = draw.uniform(0, 255, (n, channels, 1, 1)), draw.uniform(5, 120, (n, channels, 1, 1))
    x = np.clip(centre + spread * draw.standard_normal((n, channels, h, w)), 0, 255).astype(np.uint8)
    x[0], x[1] = 77, np.where(draw.random((channels, h, w)) < 0.5, 3, 200)
    x[2] = 100
    x[2, :, 0, :2] = 101
    return torch.from_numpy(x)


def only(channels=3, **settings):
    """Nothing but what is asked for, and values from 0 to 1 as they are."""
    return Augment(**{**PLAIN, "rand_ops": 0, "mean": (0.0,) * channels, "std": (1.0,) * channels, **settings})


def grey_levels(out):
    levels = out * 255
    assert (levels - levels.round()).abs().max() < 1e-3
    return levels.round().to(torch.uint8)


def to_pil(x):
    return Image.fromarray(x[0].numpy() if len(x) == 1 else x.permute(1, 2, 0).numpy())


def from_pil(image, like):
    return torch.from_numpy(np.asarray(image).copy()).view(*like.shape[1:], -1).permute(2, 0, 1)


def source(h, w, matrix):
    """Where Pillow's affine map takes each pixel's centre, (x, y), in float64."""
    y, x = np.mgrid[0:h, 0:w] + 0.5
    a, b, c, d, e, f = matrix
    return a * x + b * y + c, d * x + e * y + f


def matrix_of(name, s, h, w):
    if name == "Rotate":
        cos, sin = math.cos(math.radians(s)), math.sin(math.radians(s))
        return cos, -sin, w / 2 - cos * w / 2 + sin * h / 2, sin, cos, h / 2 - sin * w / 2 - cos * h / 2
    return {
        "ShearX": (1, s, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, s, 1, 0),
        "TranslateX": (1, 0, int(s * w), 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, int(s * h)),
    }[name]


def by_pillow(name, x, s):
    """The operation on one image, by Pillow, with our strength."""
    image = to_pil(x)
    if name == "Rotate":
        return from_pil(image.rotate(s), x)
    if name in GEOMETRY:
        return from_pil(image.transform(image.size, Image.Transform.AFFINE, matrix_of(name, s, *x.shape[1:])), x)
    if name == "SolarizeAdd":
        table = [min(255, i + int(s)) if i < 128 else i for i in range(256)]
        return from_pil(image.point(table * len(x)), x)
    done = {
        "Identity": lambda: image,
        "AutoContrast": lambda: ImageOps.autocontrast(image),
        "Equalize": lambda: ImageOps.equalize(image),
        "Posterize": lambda: ImageOps.posterize(image, int(s)),
        "Solarize": lambda: ImageOps.solarize(image, s),
        "Invert": lambda: ImageOps.invert(image),
        "Brightness": lambda: ImageEnhance.Brightness(image).enhance(s),
        "Contrast": lambda: ImageEnhance.Contrast(image).enhance(s),
        "Color": lambda: ImageEnhance.Color(image).enhance(s),
        "Sharpness": lambda: ImageEnhance.Sharpness(image).enhance(s),
    }[name]()
    return from_pil(done, x)


def one_operation(name, x, seed=0, **settings):
    augment = only(x.shape[1], rand_ops=1, rand_from=(name,), **{"rand_magnitude": 15, "rand_std": 8.0, **settings})
    plan = augment.plan(len(x), dice(seed))
    return grey_levels(augment(x, plan)), plan.strengths[:, 0].tolist()


# --- each operation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 32), (3, 20, 37), (1, 2, 9)])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in GEOMETRY])
def test_pointwise_and_blends_are_pillows_bit_for_bit(name, shape):
    x = photos(24, *shape)
    got, strengths = one_operation(name, x)
    for one, out, s in zip(x, got, strengths):
        assert torch.equal(out, by_pillow(name, one, s)), s


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 20, 37)])
@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_is_pillows_but_for_points_between_two_pixels(name, shape):
    x = photos(24, *shape)
    got, strengths = one_operation(name, x)
    assert min(strengths) < 0 < max(strengths)
    doubtful = 0
    for one, out, s in zip(x, got, strengths):
        column, row = source(*shape[1:], matrix_of(name, s, *shape[1:]))
        sure = torch.from_numpy((abs(column - column.round()) > 2e-3) & (abs(row - row.round()) > 2e-3))
        doubtful += int((~sure).sum())
        assert torch.equal(out[:, sure], by_pillow(name, one, s)[:, sure]), s
    assert doubtful <= 0.02 * x[:, 0].numel()


def test_kornias_functions_agree_within_a_grey_level():
    enhance = pytest.importorskip("kornia.enhance")
    x = photos(16)
    floats = x / 255.0
    for name, theirs, most in [
        ("Invert", lambda _: enhance.invert(floats), 0),
        ("Posterize", lambda s: enhance.posterize(floats, torch.tensor(s).int()), 0),
        ("Equalize", lambda _: enhance.equalize(floats), 0),
        ("Solarize", lambda s: enhance.solarize(floats, torch.tensor(s).clamp(max=255) / 255), 0),
        ("Brightness", lambda s: enhance.adjust_brightness_accumulative(floats, torch.tensor(s)), 1),
        ("Sharpness", lambda s: enhance.sharpness(floats, torch.tensor(s)), 1),
    ]:
        got, strengths = one_operation(name, x)
        expected = (theirs(strengths) * 255).clamp(0, 255).round()
        assert (got.float() - expected).abs().max() <= most, name


def test_kornias_geometry_agrees_inside():
    geometry = pytest.importorskip("kornia.geometry.transform")
    x = photos(16)
    got, strengths = one_operation("Rotate", x)
    # kornia turns about the middle of the corner pixels' centres: the same point, and the same sense.
    theirs = geometry.rotate(x.float(), torch.tensor(strengths), mode="nearest", align_corners=True)
    assert (got.float() == theirs.round()).float().mean() > 0.995
    got, strengths = one_operation("TranslateX", x)
    move = torch.tensor([[-float(int(s * 32)), 0.0] for s in strengths])
    theirs = geometry.translate(x.float(), move, mode="nearest", align_corners=True)
    assert (got.float() - theirs).abs().max() < 1e-2


def test_strengths_at_nine_of_thirty():
    expected = {
        "Posterize": {7.0},
        "Solarize": {179.2},
        "Rotate": {-9.0, 9.0},
        "ShearX": {-0.09, 0.09},
        "ShearY": {-0.09, 0.09},
        "TranslateX": {-45 / 331, 45 / 331},
        "TranslateY": {-45 / 331, 45 / 331},
        "SolarizeAdd": {33.0},
        **{name: {0.73, 1.27} for name in ("Brightness", "Contrast", "Color", "Sharpness")},
    }
    for name, values in expected.items():
        plan = Augment(rand_ops=1, rand_from=(name,)).plan(40, dice())
        assert {round(s, 5) for s in plan.strengths.flatten().tolist()} == {round(s, 5) for s in values}, name


def test_two_operations_are_the_second_of_the_first():
    x = photos(300)
    augment = only(rand_ops=2, rand_from=tuple(OPERATIONS))
    plan = augment.plan(300, dice(1))
    assert len({tuple(pair) for pair in plan.codes.tolist()}) > 150
    y = x
    for i in range(2):
        part = slice(i, i + 1)
        y = grey_levels(
            augment(
                y,
                replace(plan, codes=plan.codes[:, part], strengths=plan.strengths[:, part], turns=plan.turns[:, part]),
            )
        )
    assert torch.equal(grey_levels(augment(x, plan)), y)


def test_order_against_pillow():
    names = tuple(name for name in FOURTEEN if name not in GEOMETRY)
    x = photos(100)
    augment = only(rand_ops=3, rand_from=names, rand_std=5.0)
    plan = augment.plan(100, dice(2))
    got, by_code = grey_levels(augment(x, plan)), list(OPERATIONS)
    backwards = 0
    for one, out, codes, strengths in zip(x, got, plan.codes.tolist(), plan.strengths.tolist()):
        forth = back = one
        for code, s in zip(codes, strengths):
            forth = by_pillow(by_code[code], forth, s)
        for code, s in zip(codes[::-1], strengths[::-1]):
            back = by_pillow(by_code[code], back, s)
        assert torch.equal(out, forth)
        backwards += torch.equal(forth, back)
    assert backwards < 60


# --- crop, flip, normalisation, erasing -------------------------------------------------------------------------------


@pytest.mark.parametrize(("border", "mode"), [("reflect", "reflect"), ("zeros", "constant")])
@pytest.mark.parametrize("pad", [0, 1, 4])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 7, 12)])
def test_crop_and_flip_against_slices(pad, shape, border, mode):
    x = photos(40, *shape)
    augment = only(shape[0], crop_pad=pad, crop_border=border, flip=0.5)
    plan = augment.plan(40, dice())
    got = grey_levels(augment(x, plan))
    assert 5 < plan.flipped.sum() < 35
    assert plan.moved.unique().tolist() == list(range(-pad, pad + 1))
    for one, out, (down, across), flipped in zip(x.numpy(), got.numpy(), plan.moved.tolist(), plan.flipped):
        padded = np.pad(one, ((0, 0), (pad, pad), (pad, pad)), mode=mode)
        crop = padded[:, pad + down : pad + down + shape[1], pad + across : pad + across + shape[2]]
        assert (out == (crop[..., ::-1] if flipped else crop)).all()


def test_normalisation():
    x = photos(4)
    augment = Augment()
    mean, std = (np.array(v).reshape(3, 1, 1) for v in (augment.mean, augment.std))
    np.testing.assert_allclose(augment.normalise(x), (x.numpy() / 255 - mean) / std, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("size", "h", "w"), [(16, 32, 32), (5, 5, 9), (None, 32, 32), (None, 10, 40), (None, 3, 2)])
def test_erasing_against_a_loop(size, h, w):
    x = photos(200, 3, h, w)
    augment = Augment(crop_pad=0, flip=0.0, rand_ops=0, erase=0.5, erase_size=size)
    plan = augment.plan(200, dice())
    got, areas = augment(x, plan), []
    expected = augment.normalise(x)
    for i in range(200):
        if not plan.erased[i]:
            continue
        a, b = (
            (size, size)
            if size
            else (min(round(s * math.sqrt(h * w)), n) for s, n in zip(plan.sides[i].tolist(), (h, w)))
        )
        top, left = (int(u * (n - side + 1)) for u, n, side in zip(plan.corner[i].tolist(), (h, w), (a, b)))
        expected[i, :, top : top + a, left : left + b] = 0
        areas.append(a * b / (h * w))
    assert torch.equal(got, expected)
    assert 70 < len(areas) < 130
    if size is None and min(h, w) > 4:
        assert min(areas) < 0.06
        assert 0.25 < max(areas) < 0.37


def test_noise_fills_the_rectangle_and_nothing_else():
    x = photos(400, 3, 12, 14)
    settings = {"crop_pad": 0, "flip": 0.0, "rand_ops": 0, "erase": 0.5, "erase_size": None}
    by_zeros, by_noise = Augment(**settings), Augment(**settings, erase_with="noise")
    plan = by_noise.plan(400, dice())
    zeros = by_zeros(x, plan)
    assert torch.equal(by_zeros.plan(400, dice()).corner, plan.corner), "the other draws stay as they are"
    got, rectangle = by_noise(x, plan), (zeros == 0).all(1, keepdim=True).expand_as(zeros)
    assert torch.equal(torch.where(rectangle, zeros, got), zeros)
    drawn = got[rectangle]
    assert len(drawn) > 10_000
    # N(0, 1) by its moments, and by how much lies below each of a few quantiles.
    moments = [drawn.double().pow(k).mean().item() for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.12)
    for q, share in ((-1.0, 0.1587), (0.0, 0.5), (2.0, 0.9772)):
        assert (drawn < q).double().mean().item() == pytest.approx(share, abs=0.012)
    # Neither channels nor neighbours nor samples share theirs.
    each = got[plan.erased]
    assert len(drawn.unique()) > 0.8 * min(len(drawn), 65536 * (1 - math.exp(-len(drawn) / 65536)))
    assert not torch.equal(each[0], each[1])
    assert abs(torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1]) < 0.03


def timm_operations():
    """timm's own file of them, alone: the package around it would import torchvision."""
    root = Path(os.environ.get("JOFORMER_TIMM", Path(sys.prefix) / "timm"))
    file = root / "timm" / "data" / "auto_augment.py"
    if not file.is_file():
        pytest.skip("no timm here: pip install --no-deps --target .venv/timm timm torchvision")
    spec = importlib.util.spec_from_file_location("auto_augment_of_timm", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_deit_is_timms_randaugment(monkeypatch):
    """Every operation of "rand-m9-mstd0.5-inc1", by timm's own code, with our magnitudes and signs."""
    theirs = timm_operations()
    mean, fill = Augment.deit().mean, (124, 116, 104)
    ops = theirs.rand_augment_transform("rand-m9-mstd0.5-inc1", {"img_mean": fill, "interpolation": Image.BICUBIC}).ops
    ours = {name.removesuffix("Increasing").removesuffix("Rel"): name for name in (op.name for op in ops)}
    assert set(ours) == set(Augment.deit().rand_from)
    assert {(op.prob, op.magnitude, op.magnitude_std, op.magnitude_max) for op in ops} == {(0.5, 9, 0.5, None)}
    x = photos(12, 3, 20, 37)
    for name, known in ours.items():
        augment = only(rand_ops=1, rand_from=(name,), rand_as="timm", rand_magnitude=20, rand_std=8.0)
        augment = replace(augment, mean=mean, std=(1.0, 1.0, 1.0))  # whose colour fills
        plan = augment.plan(12, dice(3))
        got = grey_levels(augment(x, plan) + torch.tensor(mean).view(3, 1, 1))
        rest, slope, _ = {**OPERATIONS, **TIMM}[name]
        for one, out, strength in zip(x, got, plan.strengths[:, 0].tolist()):
            level = 10 * (strength - rest) / slope if slope else 0.0
            monkeypatch.setattr(theirs, "_randomly_negate", lambda v, s=level: math.copysign(v, s) if v else v)
            op = next(op for op in ops if op.name == known)
            if name == "Posterize":  # its number of bits is whole, so the level is one of several
                assert strength in (0, 1, 2, 3, 4)
                level = 10 * (4 - strength) / 4
            args = op.level_fn(abs(level), op.hparams) if op.level_fn else ()
            expected = from_pil(op.aug_fn(to_pil(one), *args, **op.kwargs), one)
            apart = (out.int() - expected.int()).abs()
            if name in GEOMETRY:  # float32 and truncation: a level off, and at the very border one inside, one out
                assert (apart > 1).float().mean() <= 0.003, (name, strength)
                assert (apart > 0).float().mean() <= 0.02, (name, strength)
            else:
                assert apart.max() <= (1 if name in ("Color", "Sharpness", "Brightness", "Contrast") else 0), name
    posterised = replace(Augment.deit(), rand_from=("Posterize",), rand_probability=1.0).plan(2000, dice())
    assert posterised.strengths.unique().tolist() == [0, 1, 2]
    assert (posterised.strengths == 1).float().mean() > 0.9


def test_a_square_reaches_every_corner():
    augment = only(erase=1.0, erase_size=3)
    gone = augment(torch.full((200, 3, 5, 5), 255, dtype=torch.uint8), augment.plan(200, dice())) == 0
    assert (gone.sum((1, 2, 3)) == 27).all()
    assert all(gone[:, 0, y, x].any() for y in (0, 4) for x in (0, 4))


# --- plans ------------------------------------------------------------------------------------------------------------

AUGMENTS = {
    "setup B": Augment(),
    "grey": Augment(mean=(0.5,), std=(0.25,), erase_size=4),
    "imagenet": Augment.imagenet(),
    "deit": Augment.deit(),
    "setup A": Augment(crop_border="zeros", rand_ops=0, erase=0.0),
    "all operations": Augment(rand_ops=3, rand_from=tuple(OPERATIONS), rand_std=9.0, erase_size=None),
}


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(AUGMENTS)),
    seed=st.integers(0, 10_000),
    count=st.integers(3, 40),
    cut=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    shape=st.sampled_from([(32, 32), (17, 23)]),
)
def test_a_part_of_the_plan_is_the_plan_of_the_part(name, seed, count, cut, shape):
    augment = AUGMENTS[name]
    x = photos(count, len(augment.mean), *shape, seed=seed)
    plan = augment.plan(count, dice(seed))
    a, b = sorted(cut)
    whole = augment(x, plan)
    assert len(plan[a:b]) == len(x[a:b])
    assert torch.equal(augment(x[a:b], plan[a:b]), whole[a:b])
    assert torch.equal(augment(x, augment.plan(count, dice(seed))), whole)


def test_the_global_dice_and_the_images_are_left_alone():
    before, x = torch.get_rng_state(), photos(64)
    copy, augment, mix = x.clone(), Augment(crop_pad=0, flip=0.0), Mix(cutmix=1.0)
    out = augment(x, augment.plan(64, dice()))
    kept = out.clone()
    for seed in range(4):
        mix(out, torch.zeros(64, dtype=torch.int64), mix.plan(64, dice(seed)), classes=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(x, copy)
    assert torch.equal(out, kept)


def test_layout_does_not_matter():
    x, augment = photos(32), Augment()
    plan = augment.plan(32, dice())
    assert torch.equal(augment(x.contiguous(memory_format=torch.channels_last), plan), augment(x, plan))


def test_different_seeds_differ():
    x, augment = photos(32), Augment()
    assert not torch.equal(augment(x, augment.plan(32, dice(0))), augment(x, augment.plan(32, dice(1))))


@pytest.mark.parametrize(
    "settings",
    [
        {"rand_ops": 0},
        {"rand_probability": 0.0},
        # These have no magnitude, in any of the libraries: they act at 0 too.
        {"rand_magnitude": 0, "rand_from": tuple(set(OPERATIONS) - {"AutoContrast", "Equalize", "Invert"})},
    ],
)
def test_nothing_asked_nothing_done(settings):
    x = photos(200)
    augment = Augment(**PLAIN, **settings)
    assert torch.equal(augment(x, augment.plan(200, dice())), augment.normalise(x))


def test_draws_have_their_distributions():
    n = 40_000
    plan = Augment().plan(n, dice())
    near = {"abs": 4 * 0.5 / math.sqrt(n)}
    shares = plan.codes.flatten().bincount(minlength=len(OPERATIONS)) / (2 * n)
    assert shares[:14].tolist() == pytest.approx([1 / 14] * 14, **near)
    assert shares[14:].sum() == 0
    assert (plan.codes[:, 0] == plan.codes[:, 1]).float().mean() == pytest.approx(1 / 14, **near)
    assert plan.flipped.float().mean() == pytest.approx(0.5, **near)
    assert plan.erased.float().mean() == pytest.approx(0.5, **near)
    assert (plan.moved == 4).float().mean() == pytest.approx(1 / 9, **near)
    assert plan.corner.mean() == pytest.approx(0.5, **near)
    rotated = plan.strengths[plan.codes == CODES["Rotate"]]
    assert (rotated > 0).float().mean() == pytest.approx(0.5, abs=0.04)


def test_imagenet_is_deits():
    n = 20_000
    plan = Augment.imagenet().plan(n, dice())
    assert (plan.codes == CODES["Identity"]).float().mean() == pytest.approx(0.5, abs=0.01)
    assert len(plan.codes.unique()) == 16
    degrees = plan.strengths[plan.codes == CODES["Rotate"]].abs()
    assert degrees.max() == 30
    assert degrees.median() == pytest.approx(27, abs=0.3)
    assert degrees[degrees < 27].sub(27).square().mean().sqrt() == pytest.approx(1.5, abs=0.15)
    assert plan.erased.float().mean() == pytest.approx(0.25, abs=0.01)
    assert (plan.moved == 0).all()


def test_an_empty_part():
    augment = Augment()
    out = augment(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), augment.plan(4, dice())[4:])
    assert out.shape == (0, 3, 32, 32)


def test_importing_needs_torch_alone():
    code = (
        "import torch, sys; before = set(sys.modules); import joformer.training.augment;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} & {'kornia', 'PIL', 'scipy', 'datasets'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# --- mixing -----------------------------------------------------------------------------------------------------------


def partner(i):
    return i + 1 - 2 * (i % 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_mixup_is_the_formula(smoothing):
    mix, x, labels = Mix(smoothing=smoothing), torch.randn(6, 3, 4, 5), torch.tensor([0, 1, 2, 2, 4, 0])
    plan = mix.plan(6, dice())
    lam = plan.share
    assert plan.kind == "mixup"
    assert 0 < lam < 1
    images, targets = mix(x, labels, plan, classes=5)
    hard = np.eye(5)[labels] * (1 - smoothing) + smoothing / 5
    for i in range(6):
        torch.testing.assert_close(images[i], lam * x[i] + (1 - lam) * x[partner(i)], rtol=0, atol=1e-6)
        np.testing.assert_allclose(targets[i], lam * hard[i] + (1 - lam) * hard[partner(i)], rtol=0, atol=1e-6)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(8, 8), (5, 9), (1, 3)]))
def test_cutmix_against_a_loop(seed, shape):
    h, w = shape
    mix, x, labels = (
        Mix(mixup=0.0, cutmix=1.0),
        torch.randn(4, 3, h, w, generator=dice(seed)),
        torch.tensor([0, 1, 2, 2]),
    )
    plan = mix.plan(4, dice(seed))
    images, targets = mix(x, labels, plan, classes=3)
    cy, cx = int(plan.centre[0] * h), int(plan.centre[1] * w)
    a, b = (int(n * math.sqrt(1 - plan.share)) // 2 for n in (h, w))
    expected, taken = x.clone(), 0
    for y in range(h):
        for z in range(w):
            if cy - a <= y < cy + a and cx - b <= z < cx + b:
                taken += 1
                for i in range(4):
                    expected[i, :, y, z] = x[partner(i), :, y, z]
    assert torch.equal(images, expected)
    left = 1 - taken / (h * w)
    torch.testing.assert_close(targets[:2, :2], torch.tensor([[left, 1 - left], [1 - left, left]]))
    assert torch.equal(targets[2:], torch.tensor([[0.0, 0.0, 1.0]] * 2))


@pytest.mark.parametrize("mix", [Mix(), Mix(mixup=0.0, cutmix=1.0), Mix.imagenet(), Mix(mixup=0.0, smoothing=0.2)])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_however_many_parts_the_samples_are_the_same(mix, parts):
    x, labels, size = torch.randn(16, 3, 7, 5), torch.arange(16) % 5, 16 // parts
    for seed in range(4):
        plan = mix.plan(16, dice(seed))
        images, targets = mix(x, labels, plan, classes=5)
        for start in range(0, 16, size):
            part = slice(start, start + size)
            mine, wanted = mix(x[part], labels[part], plan[part], classes=5)
            assert torch.equal(mine, images[part])
            assert torch.equal(wanted, targets[part])


def test_shares_are_beta_and_the_coin_is_fair():
    plans = [Mix(mixup=0.8, cutmix=0.3, probability=0.75).plan(2, dice(seed)) for seed in range(6000)]
    kinds = {kind: np.array([p.share for p in plans if p.kind == kind]) for kind in ("none", "mixup", "cutmix")}
    assert len(kinds["none"]) / 6000 == pytest.approx(0.25, abs=0.03)
    assert (kinds["none"] == 1).all()
    assert len(kinds["mixup"]) / 6000 == pytest.approx(0.375, abs=0.03)
    for kind, alpha in (("mixup", 0.8), ("cutmix", 0.3)):
        assert kinds[kind].mean() == pytest.approx(0.5, abs=0.03)
        assert kinds[kind].var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.07)


def test_without_mixing_any_number_will_do_and_labels_are_smoothed():
    mix, x = Mix(mixup=0.0, smoothing=0.2), torch.randn(3, 1, 2, 2)
    images, targets = mix(x, torch.tensor([0, 3, 1]), mix.plan(3, dice()), classes=4)
    assert torch.equal(images, x)
    torch.testing.assert_close(targets, torch.eye(4)[[0, 3, 1]] * 0.8 + 0.05)


# --- refused ----------------------------------------------------------------------------------------------------------


def one_line(call, *words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        call()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.refused
def test_bad_images_and_plans_are_refused():
    augment, x = Augment(), photos(4)
    plan = augment.plan(4, dice())
    one_line(lambda: augment(x.float(), plan), "torch.float32", "uint8")
    one_line(lambda: augment.normalise(x[0]), "(3, 32, 32)", "uint8")
    one_line(lambda: augment(x[:, :1], plan), "1 channels", "3")
    one_line(lambda: augment(x, plan[:2]), "2 samples", "4")
    one_line(lambda: augment(photos(4, 3, 15, 32), plan), "erase_size=16", "15 × 32")
    one_line(lambda: Augment(erase=0.0)(photos(4, 3, 4, 9), plan), "crop_pad=4", "4 × 9")
    one_line(lambda: plan[2], "sliced")
    four = Augment(mean=(0.5,) * 4, std=(0.5,) * 4)
    one_line(lambda: four(photos(4, 4), plan), "4", "rand_ops=0")
    one_line(lambda: augment.plan(-1, dice()), "-1")


@pytest.mark.refused
@pytest.mark.parametrize(
    "settings",
    [
        {"flip": 1.5},
        {"erase": -0.1},
        {"rand_probability": math.nan},
        {"rand_magnitude": 31},
        {"rand_std": -1.0},
        {"crop_pad": -1},
        {"crop_border": "wrap"},
        {"erase_with": "grey"},
        {"rand_as": "kornia"},
        {"rand_ops": -1},
        {"erase_size": 0},
        {"rand_from": ("Blur",)},
        {"rand_from": ()},
        {"mean": (0.5,)},
        {"std": (0.5, 0.0, 0.5)},
    ],
)
def test_bad_settings_are_refused(settings):
    one_line(lambda: Augment(**settings), next(iter(settings)))


@pytest.mark.refused
def test_bad_mixes_are_refused():
    mix, x, labels = Mix(), torch.randn(4, 3, 5, 5), torch.zeros(4, dtype=torch.int64)
    plan = mix.plan(4, dice())
    one_line(lambda: mix(photos(4), labels, plan, classes=3), "torch.uint8", "normalised")
    one_line(lambda: mix(x, labels[:2], plan, classes=3), "(2,)", "int64")
    one_line(lambda: mix(x, labels.float(), plan, classes=3), "torch.float32", "int64")
    one_line(lambda: mix(x[:2], labels[:2], plan, classes=3), "4 samples", "2")
    one_line(lambda: mix(x[:3], labels[:3], mix.plan(3, dice()), classes=3), "3 is odd")
    one_line(lambda: plan[1:3], "even indices")
    one_line(lambda: plan[0:3], "even indices")
    one_line(lambda: plan[::2], "even indices")
    one_line(lambda: plan[0], "even indices")
    one_line(lambda: Mix(mixup=-1.0), "mixup=-1.0")
    one_line(lambda: Mix(smoothing=1.0), "smoothing=1.0")
    assert plan[2:4] == MixPlan(2, "mixup", plan.share, plan.centre)
