"""Sets in space: every form gives the same sets, faults are named, and a run resumes to the same bits."""

import io
import json
import struct
import zipfile

import numpy as np
import pytest
import torch

from joformer.models import PointsConfig
from joformer.training import PointsTask, Processes, Recipe, load_images, load_labelled, load_points, open_run, resolve
from joformer.training import train as run
from joformer.training.data.arrays import read_array
from joformer.training.tasks.points import moved

DRAWS = np.random.default_rng(0)
COUNTS = [5, 3, 7, 4] * 10
SETS = [DRAWS.normal(size=(count, 2)).astype(np.float32) + 3 * (number % 2) for number, count in enumerate(COUNTS)]
LABELS = np.arange(40) % 2
SPLIT = np.array(["train"] * 30 + ["test"] * 10)


def ragged(**more):
    offsets = np.concatenate(([0], np.cumsum(COUNTS)))
    return {"points": np.concatenate(SETS), "offsets": offsets, "labels": LABELS, "split": SPLIT, **more}


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def written(folder, form):
    """SETS in this form: a third, train and test alike."""
    folder.mkdir()
    if form == "npz":
        saved(folder / "all.npz", **ragged())
    elif form == "packed npz, names":
        names = np.array(["0", "1"])[LABELS]
        np.savez_compressed(folder / "all.npz", **ragged(labels=names))
    elif form == "a file per split":
        for split in ("train", "test"):
            rows = [at for at in range(40) if SPLIT[at] == split]
            ends = np.concatenate(([0], np.cumsum([COUNTS[at] for at in rows])))
            points = np.concatenate([SETS[at] for at in rows])
            saved(folder / f"{split}.npz", points=points, offsets=ends, labels=LABELS[rows])
    else:
        for at, points in enumerate(SETS):
            place = folder / SPLIT[at] / str(LABELS[at])
            place.mkdir(parents=True, exist_ok=True)
            if form == "npy":
                np.save(place / f"{at:02d}.npy", points)
            else:
                np.savetxt(place / f"{at:02d}.xyz", points, fmt="%.9g")
    return folder


@pytest.mark.parametrize("form", ["npz", "packed npz, names", "a file per split", "npy", "xyz"])
def test_every_form_is_the_same_sets(form, tmp_path):
    source = resolve(written(tmp_path / "sets", form))
    assert source.kind == "points"
    found = load_points(source)
    assert found.classes == ("0", "1")
    for part, numbers in ((found.train, range(30)), (found.test, range(30, 40))):
        rows = sorted(numbers, key=lambda at: (LABELS[at], at)) if form in ("npy", "xyz") else numbers
        for row, at in enumerate(rows):
            assert part.counts[row] == COUNTS[at]
            assert part.labels[row] == LABELS[at]
            assert np.array_equal(part.points[row, : COUNTS[at]].numpy(), SETS[at])
            assert not part.points[row, COUNTS[at] :].any()


def test_splits_may_be_folders_and_what_is_in_both_is_a_fault(tmp_path, joformer):
    points, labels = np.random.default_rng(0).normal(size=(20, 5, 3)).astype(np.float32), np.arange(20) % 2
    for split, shift in (("train", 0), ("test", 1)):
        (tmp_path / split).mkdir()
        np.savez(tmp_path / split / "part.npz", points=points + shift, labels=labels)
    found = load_points(tmp_path)
    assert (len(found.train), len(found.test)) == (20, 20)
    assert joformer("check", tmp_path)[0] == 0
    np.savez(tmp_path / "test" / "part.npz", points=points[:10], labels=labels[:10])
    code, out, _ = joformer("check", tmp_path)
    assert code == 2
    assert "10 sets of the test split are also in the training split: take them out" in out
    np.savez(tmp_path / "train" / "part.npz", points=points, labels=labels, classes=np.array(["cat", "dog"]))
    with pytest.raises(ValueError, match="has classes that differ from the previous file's: give all files the same"):
        load_points(tmp_path)
    np.savez(tmp_path / "train" / "part.npz", points=points, labels=labels, classes=np.array(["cat", "cat"]))
    with pytest.raises(ValueError, match="classes has a name twice"):
        load_points(tmp_path)


def test_centre_and_radius_by_hand(tmp_path):
    found = load_points(saved(tmp_path / "a.npz", **ragged()))
    train = [points.astype(np.float64) for points in SETS[:30]]
    assert np.allclose(found.centre, np.concatenate(train).mean(0), rtol=1e-12)
    apart = np.concatenate([points - points.mean(0) for points in train])
    assert np.isclose(found.radius, np.sqrt((apart**2).sum(1).mean()), rtol=1e-12)


def test_whole_arrays_features_classes_and_what_is_held_out(tmp_path, caplog):
    points, names = DRAWS.normal(size=(40, 6, 3)), np.array(["cat", "dog"])
    features = DRAWS.normal(size=(40, 6, 2))
    caplog.set_level("INFO", logger="joformer")
    found = load_points(saved(tmp_path / "a.npz", points=points, labels=LABELS, features=features, classes=names))
    assert (found.axes, found.features, found.classes, len(found.train), len(found.test)) == (
        3,
        2,
        ("cat", "dog"),
        36,
        4,
    )
    assert "4 of 40 sets are held out, the same ones always" in caplog.text
    assert "sets of 6 points on 3 axes, 2 features" in caplog.text
    fewer = load_points(tmp_path / "a.npz", points=4)
    assert fewer.train.points.shape[1] == 4
    # Each is four different points of its set, with their own features.
    rows = (array.reshape(240, -1).astype(np.float32).tolist() for array in (points, features))
    where = {tuple(row): tuple(more) for row, more in zip(*rows)}
    for cloud, more in zip(fewer.train.points.tolist(), fewer.train.features.tolist()):
        assert len({tuple(point) for point in cloud}) == 4
        assert [where[tuple(point)] for point in cloud] == [tuple(one) for one in more]


def test_columns_after_the_coordinates_are_features(tmp_path):
    for at in range(8):
        (tmp_path / str(at % 2)).mkdir(exist_ok=True)
        np.save(tmp_path / str(at % 2) / f"{at}.npy", np.full((3, 5), at, dtype=np.float64))
    assert (load_points(tmp_path).axes, load_points(tmp_path).features) == (3, 2)
    assert (load_points(tmp_path, axes=2).axes, load_points(tmp_path, axes=2).features) == (2, 3)


def test_pixels_are_drawn_by_their_ink():
    images, found = load_images("digits"), load_points("digits", points=50, ink=True)
    where = ((found.test.points + 1) * 4).floor().long()  # back to rows and columns
    held = torch.stack([images.test.images[at, 0][tuple(rows.T)] for at, rows in enumerate(where)])
    assert (held > 0).all()
    assert torch.equal(found.test.features[..., 0], held / 255)
    assert torch.equal(found.train.labels, images.train.labels)
    # Of a pixel twice as dark there are twice as many, over all images.
    ink = images.train.images.flatten(1).double()
    expected = (ink / ink.sum(1, keepdim=True)).sum(0) * 50
    rows, columns = ((found.train.points + 1) * 4).floor().long().unbind(-1)
    drawn = torch.bincount((rows * 8 + columns).flatten(), minlength=64).double()
    assert ((drawn - expected).abs() < 5 * expected.sqrt() + 1).all()
    within = ((found.train.points + 1) * 4) % 1
    assert abs(within.mean() - 0.5) < 0.01
    assert torch.equal(found.train.points, load_points("digits", points=50).train.points)
    assert found.fingerprint != load_points("digits", points=50).fingerprint


def npy(header, data=b""):
    text = (header + " " * (-(len(header) + 11) % 64) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.refused
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": None}, r"a.npz holds offsets, labels, split, but no points: save points \(n, p, axes\) and labels"),
        ({"labels": LABELS[:-1]}, r"a.npz has 39 labels for 40 sets: give one per set"),
        ({"labels": LABELS * 1.5}, r"labels are float64 \(40,\): give one whole number or name per set"),
        ({"labels": LABELS * 0}, r"holds one class, '0': there must be two or more"),
        ({"classes": np.array(["only"])}, r"labels must be whole numbers 0 … 0, because the file has classes"),
        ({"offsets": np.arange(41)}, r"offsets must rise from 0 to the number of points, 190"),
        ({"offsets": None}, r"points are \(190, 2\): give \(n, p, axes\), or rows of them and offsets"),
        ({"features": np.ones((3, 1))}, r"features are \(3, 1\), points \(190, 2\): all but the last must agree"),
        ({"split": np.array(["dev"] * 40)}, r"split names 'dev': give one of train"),
        ({"split": np.array(["test"] * 40)}, r"has no training sets: name the training split train"),
        ({"split": np.where(LABELS == 1, "train", "test")}, r"class '0' occurs in the test split only"),
        ({"points": np.concatenate(SETS).astype(str)}, r"points are text: give numbers"),
        ({"points": np.concatenate(SETS) * 1j}, r"array 'points' holds complex64, not real numbers or text"),
        (
            {"points": np.concatenate(SETS).astype(object)},
            r"array 'points' holds Python objects \(a pickle\), which are",
        ),
    ],
)
def test_bad_arrays_are_one_line(change, message, tmp_path):
    arrays = {name: array for name, array in ragged(**change).items() if array is not None}
    with pytest.raises(ValueError, match=message) as raised:
        load_points(saved(tmp_path / "a.npz", **arrays))
    assert "\n" not in str(raised.value)


@pytest.mark.refused
def test_a_bad_file_among_many_is_named(tmp_path, joformer):
    for number in range(8):
        place = tmp_path / "ab"[number % 2] / f"{number}.xyz"
        place.parent.mkdir(exist_ok=True)
        place.write_text("\ufeff1 2 3\n4 5 6\n" if number == 4 else "1 2 3\n4 5 6\n", encoding="utf-8")
    (tmp_path / "a" / "2.xyz").write_text("")
    (tmp_path / "b" / "3.xyz").write_text("1 2 3\nnan 5 6\n")
    code, out, _ = joformer("check", tmp_path)
    assert code == 2
    assert "a/2.xyz has no points: remove it" in out
    assert "b/3.xyz has coordinates or features that are not finite in float32: correct them" in out
    assert "4.xyz" not in out


@pytest.mark.refused
@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("1,2,3\n4,5,6\n", 3), ("1, 2, 3\n4, 5, 6\n", 3), (" 1,2\n 4,5 \n", 2), ("1.5 2 3\r\n4 5 -6e-1\r\n", 3),
        ("0,5 1,5 2,5\n", None), ("1 2 3\n1,5 2 3\n", None), ("1 2 3\n1 2 -3,5e1\r\n", None), ("1 2,5 3\n", None),
    ],
)  # fmt: skip
def test_commas_are_between_numbers_or_refused(text, width):
    """With decimal commas three numbers would be read as six."""
    from joformer.training.data.points import _rows

    if width:
        assert _rows(text.encode(), "a.xyz").shape[1] == width
    else:
        with pytest.raises(ValueError, match=r"a\.xyz has -?\d,5(e1)? between spaces: write decimals with a point"):
            _rows(text.encode(), "a.xyz")


@pytest.mark.refused
def test_bad_sets_are_all_named(tmp_path, joformer):
    points = np.concatenate(SETS).astype(np.float64)
    points[0, 1], points[7, 0] = np.nan, 1e300
    counts = [*COUNTS[:-1], 0]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    offsets[-2:] = len(points)
    saved(tmp_path / "a.npz", **ragged(points=points, offsets=offsets))
    with pytest.raises(ValueError, match=r"a.npz: set 0 \(0\) has coordinates or features that are not finite"):
        load_points(tmp_path / "a.npz")
    code, out, _ = joformer("check", tmp_path / "a.npz")
    assert code == 2
    assert [line.split(":")[1] for line in out.splitlines() if ": set " in line] == [
        " set 0 (0) has coordinates or features that are not finite in float32",
        " set 1 (1) has coordinates or features that are not finite in float32",
        " set 39 (1) has no points",
    ]
    assert "sets of 3 to" in out
    saved(tmp_path / "good.npz", **ragged())
    code, out, _ = joformer("check", tmp_path / "good.npz")
    assert (code, out.splitlines()[-1]) == (0, "no faults")


@pytest.mark.refused
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 3)}", b"\0" * 24), "but has 24 bytes"),
        (npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3)}"), "is damaged"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\x80\x04."), "a pickle"),
        (npy("{'descr': __import__('os').system('true')}"), "is damaged or not a NumPy array"),
        (npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 8), "not real numbers"),
        (b"\x93NUMPY\x01\x00\xff\xff", "is damaged or not a NumPy array"),
        (b"no array", "is damaged or not a NumPy array"),
    ],
)
def test_a_header_is_not_believed(content, message):
    with pytest.raises(ValueError, match=message) as raised:
        read_array(content, "a.npy")
    assert "\n" not in str(raised.value)


@pytest.mark.refused
def test_archives_are_bounded(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("points.npy", npy("{'descr': '|i1', 'fortran_order': False, 'shape': (9,)}") + b"\0" * 2**27)
    with pytest.raises(ValueError, match=r"bomb.npz expands from [\d,]+ to more than [\d,]+ bytes"):
        load_points(tmp_path / "bomb.npz")
    with zipfile.ZipFile(tmp_path / "odd.npz", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("points.npy", b"x")
    with pytest.raises(ValueError, match=r"odd.npz is damaged or not an npz file"):
        load_points(tmp_path / "odd.npz")
    whole = io.BytesIO()
    np.savez(whole, **ragged())
    (tmp_path / "cut.npz").write_bytes(whole.getvalue()[:-200])
    with pytest.raises(ValueError, match=r"cut.npz is damaged or not an npz file"):
        load_points(tmp_path / "cut.npz")
    many = {"points": np.zeros((1_000_000, 1), np.float32), "labels": np.arange(2000) % 2}
    saved(tmp_path / "uneven.npz", **many, offsets=np.append(np.arange(2000), 1_000_000))
    with pytest.raises(
        ValueError, match=r"sets of 1 to 998,001 points would be padded to 7,984,008,000 bytes: limit the points"
    ):
        load_points(tmp_path / "uneven.npz")
    assert load_points(tmp_path / "uneven.npz", points=2).train.points.shape[1] == 2


@pytest.mark.refused
def test_other_data_and_other_loaders(tmp_path):
    saved(tmp_path / "a.npz", **ragged())
    with pytest.raises(ValueError, match=r"a.npz holds points: give images or sounds, or train points"):
        load_labelled(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"stdlib holds text, not points: give other data"):
        load_points("stdlib")
    with pytest.raises(ValueError, match=r"a.npz has no pixels: leave out ink"):
        load_points(tmp_path / "a.npz", ink=True)
    with pytest.raises(ValueError, match=r"points is 0: give how many points"):
        load_points(tmp_path / "a.npz", points=0)
    one = load_points(saved(tmp_path / "line.npz", points=DRAWS.normal(size=(40, 6, 1)), labels=LABELS))
    with pytest.raises(ValueError, match=r"points on one axis cannot be rotated"):
        PointsTask(one, augment="rotate")
    with pytest.raises(ValueError, match=r"the points have 1 axes, the model reads 2: set axes=1"):
        run(PointsConfig(), PointsTask(one), Recipe(steps=1), tmp_path / "run")
    with pytest.raises(ValueError, match=r"the sets have 2 classes, the model has 1: set classes=2"):
        run(PointsConfig(axes=1, classes=1), PointsTask(one), Recipe(steps=1), tmp_path / "run")


def small(folder, **more):
    data = load_points(saved(folder / "a.npz", **ragged()))
    return data, PointsTask(data, batch=12, **more), PointsConfig(classes=2, dim=16, heads=2, layers=1)


@pytest.mark.parametrize("augment", ["none", "shift", "rotate"])
def test_a_batch_is_the_same_in_any_number_of_parts(augment, tmp_path):
    data, task, _ = small(tmp_path, augment=augment)
    whole = task.batch(5, 7, 0, 1)
    parts = [task.batch(5, 7, part, 3) for part in range(3)]
    for at in (0, 2, 3):
        assert torch.equal(torch.cat([part[at] for part in parts]), whole[at])
    plain = PointsTask(data, batch=12).batch(5, 7, 0, 1)
    assert torch.equal(whole[3], plain[3])
    apart = [torch.cdist(some[0], some[0]).where(some[2][:, None] & some[2][..., None], 0.0) for some in (whole, plain)]
    assert torch.allclose(*apart, atol=1e-4)  # neither changes a distance
    shifts = (whole[0] - plain[0]).where(whole[2][..., None], 0.0)
    assert (shifts.abs().sum((1, 2)) > 0).all() == (augment != "none")


def test_motions_by_hand():
    points, draws = torch.randn(4, 5, 3), torch.rand(4, 3)
    assert torch.allclose(moved(points, "shift", draws), points + (4 * draws - 2)[:, None])
    turned = moved(points, "rotate", draws)
    for cloud, there, (turn, *_) in zip(points, turned, draws.tolist()):
        plane = torch.view_as_complex(cloud[:, :2].contiguous()) * np.exp(2j * np.pi * turn)
        assert torch.allclose(there[:, :2], torch.view_as_real(plane), atol=1e-5)
        assert torch.equal(there[:, 2], cloud[:, 2])


def test_a_run_that_breaks_off_ends_with_the_same_bits_and_learns(tmp_path, joformer):
    data, _, config = small(tmp_path)
    recipe = Recipe(steps=40, lr=1e-2, end=0.0, weight_decay=0.0, save_every=15, evaluate_every=20)

    class Breaking(PointsTask):
        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 33:
                raise KeyboardInterrupt
            return super().loss(model, batch)

    make, notes = {"batch": 12, "augment": "rotate"}, {"data": str(tmp_path / "a.npz")}
    found = run(config, PointsTask(data, **make), recipe, tmp_path / "whole", notes=notes)
    with pytest.raises(KeyboardInterrupt):
        run(config, Breaking(data, **make), recipe, tmp_path / "broken")
    assert run(config, PointsTask(data, **make), recipe, tmp_path / "broken") == found
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # A shift is nothing to this model: not one answer changes.
    assert found["accuracy_shifted"] == found["accuracy"]
    code, out, _ = joformer("evaluate", tmp_path / "whole", "--json")
    assert code == 0
    task = PointsTask(data)
    assert json.loads(out)[0] == task.evaluate(open_run(tmp_path / "whole").model, Processes())
    assert json.loads((tmp_path / "whole" / "classes.json").read_text()) == {"classes": ["0", "1"]}
    # Other data is brought to the radius of training, not to its own.
    other = ragged(points=np.concatenate(SETS) * 3)
    code, out, _ = joformer("evaluate", tmp_path / "whole", "--data", saved(tmp_path / "b.npz", **other), "--json")
    scaled = PointsTask(load_points(tmp_path / "b.npz"), normalise=task.normalise)
    assert json.loads(out)[0] == scaled.evaluate(open_run(tmp_path / "whole").model, Processes())


def test_from_the_command_line(tmp_path, joformer):
    saved(tmp_path / "a.npz", **ragged())
    code, out, _ = joformer(
        "train", "points", "--data", tmp_path / "a.npz", "--dim", 16, "--heads", 2, "--coordinates", "polar", "--steps",
        2, "--batch", 8, "--out", tmp_path / "run", "--log", "none",
    )  # fmt: skip
    assert code == 0
    assert "accuracy_rotated" in out
    assert open_run(tmp_path / "run").model.config.coordinates == "polar"
    shape = ["--dim", 16, "--heads", 2, "--layers", 1, "--longer", 1]
    cell = ["--steps", 2, "--seeds", 1, "--jobs", 1, "--only", "compare/both-fixed/*"]
    code, out, _ = joformer("compare", "--data", tmp_path / "a.npz", *shape, *cell, "--out", tmp_path / "c")
    assert code == 0
    assert "RoPE + values" in out
    code, out, _ = joformer("compare", "--data", tmp_path / "a.npz", *shape, "--grid", "--dry-run")
    assert code == 0
    assert "compare/both-learned  " in out
    code, out, _ = joformer("reproduce", "points", "--dry-run")
    assert code == 0
    assert "digits-points/polar  " in out
    assert "digits-points-ink/coordinates  " in out
