"""Video: clips made by formulas and read from files, what is wrong with them, and runs that resume to the same bits."""

import io
import json
import struct
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from joformer.models import VideoConfig
from joformer.training import (
    ClipAugment,
    Clips,
    Processes,
    Recipe,
    VideoTask,
    generator,
    load_clips,
    load_labelled,
    open_run,
    resolve,
    train,
)
from joformer.training.data import Labelled
from joformer.training.data.clips import decode_clip, has_classes
from joformer.training.data.moving import MIRRORED, moving

BRIGHT = torch.full((3, 1, 7, 7), 255, dtype=torch.uint8)
POINT = torch.zeros(3, 1, 7, 7, dtype=torch.uint8)
POINT[:, :, 3, 3] = 255


def made(question, count=24, size=32, length=6, images=BRIGHT):
    return moving(images, count, question, size=size, length=length, draws=generator("test", question))


def direction(clip):
    """Which way the part that moves goes: the centre of all light, whose other part stands still."""
    light = clip[0].double()
    axes = [torch.arange(n, dtype=torch.float64) for n in light.shape[:2]]
    row = (light.sum(1) * axes[0][:, None]).sum(0) / light.sum((0, 1))
    column = (light.sum(0) * axes[1][:, None]).sum(0) / light.sum((0, 1))
    turn = torch.atan2(column[-1] - column[0], row[0] - row[-1])  # up is 0, then clockwise
    return round(turn.item() / (torch.pi / 4)) % 8


def apart(clips):
    """Clips in which the two never hide each other: two points of light in every picture."""
    return (clips.long().sum((1, 2, 3)) == 2 * 255).all(1).nonzero()[:, 0].tolist()


def test_the_class_is_where_it_went_and_reversed_axes_are_other_classes():
    clips, labels = made("class", 64, size=16, images=POINT)
    seen = apart(clips)
    assert len(seen) > 40
    assert {int(labels[number]) for number in seen} == set(range(8))
    for number in seen:
        label = int(labels[number])
        assert direction(clips[number]) == label
        for axis in range(3):
            assert direction(clips[number].flip(axis + 1)) == MIRRORED[axis][label]
    assert labels.bincount().tolist() == [8] * 8


def test_both_bounce_between_the_walls_step_by_step():
    clips, labels = made("next", 40, length=30)
    assert labels.sum() == 0
    way, step = 32 - 14, 0.1 * 18
    draws = generator("test", "next")
    torch.randint(3, (40, 2), generator=draws)
    place = torch.rand(40, 2, 1, 2, generator=draws, dtype=torch.float64)[:, :, 0] * way
    turn = torch.rand(40, 2, 1, generator=draws, dtype=torch.float64)[..., 0] * 2 * torch.pi
    speed = torch.stack((-turn.cos(), turn.sin()), -1) * step
    for time in range(30):
        field = torch.zeros(40, 32, 32, dtype=torch.uint8)
        for clip in range(40):
            for digit in range(2):
                row, column = (round(value) for value in place[clip, digit].tolist())
                field[clip, row : row + 14, column : column + 14] = 255
        assert torch.equal(clips[:, 0, ..., time], field)
        place = place + speed  # and off the walls
        speed = torch.where((place < 0) | (place > way), -speed, speed)
        place = torch.where(place < 0, -place, torch.where(place > way, 2 * way - place, place))


def test_made_clips_are_the_same_always_and_handwriting_is_apart(tmp_path):
    first, again = (load_clips("moving", question="class", count=32) for _ in range(2))
    assert torch.equal(first.train.images, again.train.images)
    assert first.fingerprint == again.fingerprint
    assert first.train.images.shape == (32, 1, 16, 16, 6)
    assert first.mirrored == MIRRORED
    others = [load_clips("moving", count=32), load_clips("moving", question="class", count=32, length=5)]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 3
    assert others[0].classes == ()
    for split, value in (("train", 255), ("test", 90)):
        for name in "ab":
            (tmp_path / "still" / split / name).mkdir(parents=True)
            Image.fromarray(np.full((14, 14), value, np.uint8)).save(tmp_path / "still" / split / name / "1.png")
    still = load_clips(tmp_path / "still", size=32, length=3, count=8, cache=tmp_path / "cache")
    assert still.train.images.unique().tolist() == [0, 255]
    assert still.test.images.unique().tolist() == [0, 90]


# -- files ------------------------------------------------------------------------------------------------------------


def film(seed, pictures=6, colour=False, side=20):
    """Black, white and the pure colours: eight, which even a gif keeps."""
    shape = (pictures, side, side, 3) if colour else (pictures, side, side)
    return np.random.default_rng(seed).integers(0, 2, shape, np.uint8) * 255


def encoded(array, form):
    file = io.BytesIO()
    if form == "npy":
        np.save(file, array)
    elif form == "npz":
        np.savez_compressed(file, clip=array)
    elif form == "gif":
        pictures = [Image.fromarray(one) for one in array]
        pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], optimize=False)
    else:
        av = pytest.importorskip("av")
        container, codec, pixels = {
            "mkv": ("matroska", "ffv1", "bgr0"), "mp4": ("mp4", "mpeg4", "yuv420p"), "avi": ("avi", "ffv1", "bgr0")
        }[form]  # fmt: skip
        with av.open(file, "w", format=container) as out:
            stream = out.add_stream(codec, rate=8)
            stream.height, stream.width = array.shape[1:3]
            stream.pix_fmt = pixels
            for one in array:
                rgb = np.ascontiguousarray(np.broadcast_to(one[..., None], (*one.shape, 3)) if one.ndim == 2 else one)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(rgb, format="rgb24")))
            out.mux(stream.encode())
    return file.getvalue()


def folder(place, form="npy", classes=("run", "wave"), each=4, **more):
    for number, name in enumerate(classes):
        (place / name).mkdir(parents=True)
        for count in range(each):
            data = encoded(film(10 * number + count, **more), form)
            (place / name / f"{count}.{form}").write_bytes(data)
    return place


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("form", ["npy", "npz", "gif", "mkv", "avi"])
def test_every_form_is_the_same_clip(form, colour):
    array = film(1, colour=colour)
    got = decode_clip(encoded(array, form), f"a.{form}", 20)
    assert np.array_equal(got, array if colour else array[..., None])


@pytest.mark.refused
@pytest.mark.parametrize("form", ["gif", "mkv", "avi", "mp4"])
def test_a_clip_that_breaks_off_is_never_a_shorter_clip(form):
    data = encoded(np.concatenate([film(one, side=32) for one in range(8)]), form)
    assert len(decode_clip(data, f"a.{form}", 16)) == 48
    for kept in np.linspace(1, 0.93 * len(data), 25).astype(int):
        with pytest.raises(ValueError, match=rf"^a\.{form} "):
            decode_clip(data[:kept], f"a.{form}", 16)


def test_turned_video_stands_upright():
    av = pytest.importorskip("av")
    data = bytearray(encoded(np.repeat(np.repeat(film(2, side=4), 8, 1), 8, 2), "mp4"))
    upright = decode_clip(bytes(data), "a.mp4", 32)
    at = data.index(b"tkhd") + 44  # version 0: flags, times, track, duration, layer, group, volume; then the matrix
    assert struct.unpack(">9i", data[at : at + 36]) == (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    data[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 32 << 16, 0, 1 << 30)  # (x, y) → (−y, x)
    with av.open(io.BytesIO(bytes(data))) as file:
        assert next(file.decode(video=0)).rotation == -90
    turned = decode_clip(bytes(data), "a.mp4", 32)
    assert np.array_equal(turned, np.rot90(upright, -1, (1, 2)))  # what stood above is on the right


def test_mp4_is_nearly_the_same():
    array = np.repeat(np.repeat(film(2, side=4), 8, 1), 8, 2)
    got = decode_clip(encoded(array, "mp4"), "a.mp4", 32)
    assert got.shape[:3] == (6, 32, 32)
    assert abs(got[..., 0].astype(int) - array).mean() < 12


def test_a_folder_of_clips_with_and_without_classes(tmp_path, caplog):
    place = folder(tmp_path / "clips", each=10)
    assert resolve(place).kind == "video"
    assert has_classes(resolve(place))
    caplog.set_level("INFO", logger="joformer")
    cache = {"cache": tmp_path / "cache"}
    clips = load_clips(place, question="class", size=20, length=3, **cache)
    assert clips.classes == ("run", "wave")
    assert (len(clips.train), len(clips.test)) == (18, 2)
    assert clips.train.images.shape[1:] == (1, 20, 20, 3)
    assert clips.mirrored == ()
    kept = {clip.numpy().tobytes() for clip in clips.train.images}
    spread = {film(seed)[[0, 2, 5]].transpose(1, 2, 0)[None].tobytes() for seed in (*range(10), *range(10, 20))}
    assert kept <= spread  # first, middle (2.5 to even) and last of six
    first = load_clips(place, size=20, length=3, **cache)
    assert first.classes == ()
    assert first.fingerprint != clips.fingerprint
    starts = {film(seed)[:3].transpose(1, 2, 0)[None].tobytes() for seed in range(20)}
    assert {clip.numpy().tobytes() for clip in first.train.images} <= starts
    assert "no test split: 2 of 20 clips are held out" in caplog.text
    again = load_clips(place, question="class", size=20, length=3, **cache)
    assert torch.equal(again.train.images, clips.train.images)


def test_named_splits_and_colour_among_grey(tmp_path):
    for split, seeds in (("train", (1, 2, 3)), ("test", (4,))):
        (tmp_path / "clips" / split).mkdir(parents=True)
        for seed in seeds:
            data = encoded(film(seed, colour=seed == 2), "npy")
            (tmp_path / "clips" / split / f"{seed}.npy").write_bytes(data)
    assert not has_classes(resolve(tmp_path / "clips"))
    clips = load_clips(tmp_path / "clips", size=20, length=6, cache=tmp_path / "cache")
    assert [tuple(part.images.shape) for part in (clips.train, clips.test)] == [(3, 3, 20, 20, 6), (1, 3, 20, 20, 6)]
    assert np.array_equal(clips.test.images[0, 1].numpy(), film(4).transpose(1, 2, 0))
    assert np.array_equal(clips.train.images[1].numpy(), film(2, colour=True).transpose(3, 1, 2, 0))


def test_still_gifs_are_images_and_moving_ones_are_clips(tmp_path):
    folder(tmp_path / "clips", "gif", each=2)
    folder(tmp_path / "still", "gif", each=2, pictures=1)
    assert resolve(tmp_path / "clips").kind == "video"
    assert resolve(tmp_path / "still").kind == "images"


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def pickled():
    file = io.BytesIO()
    np.save(file, np.array([Evil()], dtype=object), allow_pickle=True)
    return file.getvalue()


def packed(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as held:
        for name, data in members.items():
            held.writestr(f"{name}.npy", data)
    return file.getvalue()


def claiming(*shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue() + b"\0" * 10


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.mp4", lambda: encoded(film(0, side=32), "mp4")[:400], "a.mp4 cannot be decoded as a clip"),
        ("a.mp4", lambda: PLAYLIST, "a.mp4 cannot be decoded as a clip"),
        ("a.mkv", lambda: b"", "a.mkv cannot be decoded as a clip"),
        ("a.gif", lambda: b"GIF89a", "a.gif cannot be decoded as a clip"),
        ("a.npy", pickled, r"a.npy is object \(1,\): save it as uint8 \(time, rows, columns\)"),
        ("a.npz", lambda: packed(a=pickled()), r"a.npz is object \(1,\): save it as uint8"),
        ("a.npy", lambda: encoded(film(0)[0], "npy"), r"a.npy is uint8 \(20, 20\): save it as uint8 \(time"),
        ("a.npy", lambda: encoded(film(0).astype(float), "npy"), "a.npy is float64"),
        ("a.npy", lambda: encoded(film(0)[:0], "npy"), "a.npy holds no pictures"),
        ("a.npy", lambda: encoded(film(0)[:, :0], "npy"), r"a.npy has pictures of 0 × 20: 1 to"),
        ("a.npy", lambda: claiming(10**9, 20, 20), "a.npy is truncated: its header says"),
        ("a.npy", lambda: claiming(1, 10**5, 10**5), "a.npy has pictures of 100000 × 100000"),
        ("a.npz", lambda: packed(a=b"1", b=b"2"), "a.npz holds a.npy, b.npy: save one array in it"),
        ("a.npz", packed, "a.npz holds nothing: save one array in it"),
    ],
)  # fmt: skip
def test_clips_that_cannot_be_read_are_named(name, data, message, capsys):
    with pytest.raises(ValueError, match=message) as caught:
        decode_clip(data(), name, 16)
    assert "\n" not in str(caught.value)
    assert "code ran" not in capsys.readouterr().out


@pytest.mark.refused
def test_sizes_are_bounded(monkeypatch):
    from joformer.training.data import clips

    monkeypatch.setattr(clips, "PICTURES", 3)
    with pytest.raises(ValueError, match=r"a.npy has more than 3 pictures: cut it or, if you trust it, set"):
        decode_clip(encoded(film(0), "npy"), "a.npy", 16)
    assert len(decode_clip(encoded(film(0), "npy"), "a.npy", 16, most=2)) == 2
    monkeypatch.setattr(clips, "EXAMPLE", 1000)
    with pytest.raises(ValueError, match=r"a.npz expands to more than 1,000 bytes"):
        decode_clip(encoded(film(0), "npz"), "a.npz", 16)


@pytest.mark.refused
def test_without_pyav_one_line_says_what_to_install(monkeypatch):
    data = encoded(film(0), "mkv")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"a.mkv is mkv: pip install 'joformer\[video\]' to read it, or convert it"):
        decode_clip(data, "a.mkv", 16)


@pytest.mark.refused
def test_folders_that_cannot_be_learned_from(tmp_path, joformer):
    cache = {"cache": tmp_path / "cache"}
    place = folder(tmp_path / "clips")
    with pytest.raises(ValueError, match=r"0.npy has 6 pictures, not 9: give fewer \(--length\), or remove it"):
        load_clips(place, size=16, length=9, **cache)
    one = folder(tmp_path / "one", classes=("run",))
    with pytest.raises(ValueError, match="holds one class, 'run': there must be two or more"):
        load_clips(resolve(one), question="class", length=4, **cache)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no clips: give"):
        load_clips(resolve(tmp_path / "empty", kind="video"), **cache)
    single = folder(tmp_path / "single", classes=("run",), each=1)
    with pytest.raises(ValueError, match="holds one clip, which leaves none for testing"):
        load_clips(single, length=4, **cache)
    with pytest.raises(ValueError, match=r"clips holds clips, so none are generated: leave out count"):
        load_clips(place, count=5, **cache)
    with pytest.raises(ValueError, match="holds text: give video, or images that will move"):
        load_clips("stdlib")
    with pytest.raises(ValueError, match="holds video: give images or sounds, or train video"):
        load_labelled(place)
    with pytest.raises(ValueError, match="--size 4 and --length 20: give 5 and 2 or more"):
        load_clips("moving", size=4, length=20)
    (place / "wave" / "1.npy").write_bytes(pickled())
    code, out, _ = joformer("check", place)
    assert code == 2
    assert "wave/1.npy is object (1,)" in out
    assert "1 fault" in out


# -- augmentation -----------------------------------------------------------------------------------------------------


def test_augmentation_by_hand():
    clips, labels = made("class", 8)
    plan = torch.tensor([[0.1, 0.9, 0.9, 0.5, 0.5], [0.9, 0.1, 0.1, 0.0, 0.999]] * 4)
    flipped, new = ClipAugment(flip=0.5)(clips, labels, plan, MIRRORED)
    assert torch.equal(flipped[0], clips[0].flip(1))
    assert torch.equal(flipped[1], clips[1].flip(2).flip(3))
    assert new.tolist()[:2] == [MIRRORED[0][labels[0]], MIRRORED[2][MIRRORED[1][labels[1]]]]
    unknown, same = ClipAugment(flip=0.5)(clips, labels, plan, ())
    assert torch.equal(unknown, clips)  # nobody knows what the classes would be
    assert torch.equal(same, labels)
    anyway, same = ClipAugment(flip=0.5)(clips, labels, plan, None)
    assert torch.equal(anyway, flipped)
    assert torch.equal(same, labels)
    moved, _ = ClipAugment(shift=0.125)(clips, labels, plan)
    assert torch.equal(moved[0], clips[0])
    by_hand = torch.zeros_like(clips[1])
    by_hand[:, :-4, 4:] = clips[1][:, 4:, :-4]  # 4 of 32 up, 4 to the right
    assert torch.equal(moved[1], by_hand)


@pytest.mark.refused
def test_augmentation_that_cannot_be():
    with pytest.raises(ValueError, match="flip must be a probability and shift a share below 1, got 2 and 0"):
        ClipAugment(flip=2)
    with pytest.raises(ValueError, match="augment must be one of none, flip, shift"):
        ClipAugment.named("crop")


# -- the task ---------------------------------------------------------------------------------------------------------


def small(question, **more):
    clips = load_clips("moving", question=question, count=40)
    config = VideoConfig(
        shape=(16, 16, 6), patch=(8, 8, 1), dim=24, layers=2, heads=2, classes=8, question=question, **more
    )
    return clips, config


@pytest.mark.parametrize("question", ["next", "class"])
def test_a_batch_is_the_same_in_any_number_of_parts(question):
    clips, _ = small(question)
    task = VideoTask(clips, question=question, batch=12, augment=ClipAugment(flip=0.5, shift=0.1))
    whole = task.batch(5, 7, 0, 1)
    parts = [task.batch(5, 7, part, 3) for part in range(3)]
    for number in range(2):
        assert torch.equal(torch.cat([part[number] for part in parts]), whole[number])
    assert not torch.equal(task.batch(5, 8, 0, 1)[0], whole[0])


def test_errors_by_hand():
    """A model that repeats the picture it sees has the error of the copy; pixels count in 0 … 1."""
    clips, _ = small("next")
    task = VideoTask(clips, batch=8)

    class Repeats(torch.nn.Module):
        def forward(self, x):
            return x * task._scale + task._mean

    found = task.evaluate(Repeats(), Processes())
    pixels = clips.test.images.double() / 255
    by_hand = [(pixels[..., t] - pixels[..., t - 1]).square().sum((1, 2, 3)).mean() for t in (3, 4, 5)]
    assert abs(found["copy_error"] - sum(by_hand) / 3) < 1e-4 * found["copy_error"]
    assert abs(found["picture_error"] - found["copy_error"]) < 1e-4 * found["copy_error"]
    whole = (pixels[..., 1:] - pixels[..., :-1]).square().mean().item()
    assert abs(found["loss"] - whole) < 1e-4 * whole
    batch = task.batch(0, 0, 0, 1)
    pixels = batch[0] * task._scale + task._mean
    assert abs(task.loss(Repeats(), batch) - (pixels[..., 1:] - pixels[..., :-1]).square().mean()) < 1e-6


@pytest.mark.parametrize(("question", "attention"), [("next", "factorised"), ("class", "joint")])
def test_a_run_that_breaks_off_ends_with_the_same_bits(question, attention, tmp_path, joformer):
    clips, config = small(question, attention=attention)
    recipe = Recipe(steps=12, lr=3e-3, save_every=5, evaluate_every=6)

    class Breaking(VideoTask):
        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 9:
                raise KeyboardInterrupt
            return super().loss(model, batch)

    make = {"question": question, "batch": 8, "augment": ClipAugment(flip=0.5)}
    notes = {"data": "moving", "count": 40}
    found = train(config, VideoTask(clips, **make), recipe, tmp_path / "whole", notes=notes)
    with pytest.raises(KeyboardInterrupt):
        train(config, Breaking(clips, **make), recipe, tmp_path / "broken")
    assert train(config, VideoTask(clips, **make), recipe, tmp_path / "broken") == found
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    code, out, _ = joformer("evaluate", tmp_path / "whole", "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert row == {name: value for name, value in found.items() if name in row}
    assert (tmp_path / "whole" / "classes.json").exists() == (question == "class")


@pytest.mark.refused
def test_models_and_questions_that_do_not_fit(tmp_path):
    clips, config = small("next")
    with pytest.raises(ValueError, match="the clips have no classes: load them with question='class'"):
        VideoTask(clips, question="class")
    labelled, _ = small("class")
    with pytest.raises(ValueError, match="the model answers question='next', the task asks 'class': choose one"):
        train(config, VideoTask(labelled, question="class"), Recipe(steps=1), tmp_path / "run")
    split = Labelled(torch.zeros(2, 3, 16, 16, 6, dtype=torch.uint8), torch.tensor([0, 0]))
    with pytest.raises(ValueError, match="the images have 3 channels, the model reads 1"):
        train(config, VideoTask(Clips(split, split, (), "colour")), Recipe(steps=1), tmp_path / "run")


def test_from_the_command_line(tmp_path, joformer):
    place = folder(tmp_path / "clips", each=10)
    code, out, _ = joformer(
        "train", "video", "--data", place, "--size", 16, "--length", 4, "--patch", 8, "--dim", 24, "--layers", 2,
        "--heads", 2, "--steps", 2, "--batch", 4, "--attention", "factorised", "--transport", "scores",
        "--augment", "flip+shift", "--out", tmp_path / "run", "--log", "none",
    )  # fmt: skip
    assert code == 0
    assert "picture_error" in out
    config = open_run(tmp_path / "run").model.config
    assert (config.attention, config.transport, config.patch) == ("factorised", "scores", (8, 8, 1))
    code, out, _ = joformer("evaluate", tmp_path / "run", "--data", "moving")
    assert code == 0
    assert "copy_error" in out
    code, out, _ = joformer("check", place)
    assert code == 0
    assert "video of 6 pictures" in out
    code, out, _ = joformer("compare", "--data", place, "--dry-run", "--length", 4)
    assert code == 0
    assert "compare/both-fixed  " in out
    code, out, _ = joformer("reproduce", "video", "--dry-run")
    assert code == 0
    assert "moving-video-next/both-learned/factorised  " in out
    assert "moving-video-class/none/joint  " in out
