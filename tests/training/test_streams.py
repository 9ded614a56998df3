"""Streams: events where the table says they are, faults that name the row, F1 against every matching, the same bits."""

import csv
import itertools
import json

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import wavfile
from scipy.optimize import linear_sum_assignment
from test_audio import slow

from joformer.models import SpottingConfig
from joformer.training import (
    Processes,
    Recipe,
    SpottingTask,
    load_labelled,
    load_streams,
    open_run,
    resolve,
    train,
)
from joformer.training.data.audio import stream_spectrogram
from joformer.training.tasks.spotting import firings, hits

RATE, SOUND = 2000, {"rate": 2000, "bands": 8}
MODEL = SpottingConfig(classes=2, bands=8, patch=(4, 2), dim=16, layers=1, heads=2, window=8)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))


def tone(hertz, seconds):
    return np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE)


def wav(path, wave):
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, RATE, (wave * 8000).astype(np.int16))


def by_class(folder, count=12):
    """Low and high tones of different lengths, a folder per class."""
    for name, hertz in (("high", 600), ("low", 200)):
        for number in range(count):
            wav(folder / name / f"{number}.wav", tone(hertz + 3 * number, 0.2 + 0.02 * number))
    return folder


EVENTS = [  # file, start, end, label
    ("a.wav", 0.5, 1.0, "low"), ("a.wav", 1.5, 2.0, "high"), ("a.wav", 3.0, 3.5, "low"), ("a.wav", 4.2, 4.6, "high"),
    ("deep/b.wav", 0.2, 0.8, "high"), ("deep/b.wav", 4.3, 4.9, "low"),
]  # fmt: skip


def recorded(folder, form="csv", events=EVENTS, header=("file", "start", "end", "label")):
    """Two recordings of five seconds with EVENTS in them, and their table."""
    for name in dict.fromkeys(event[0] for event in EVENTS):
        wave = 0.01 * np.random.default_rng(1).normal(size=5 * RATE)
        for _, start, end, label in (event for event in EVENTS if event[0] == name):
            wave[round(start * RATE) : round(end * RATE)] += tone(200 if label == "low" else 600, end - start)
        wav(folder / name, wave)
    place = folder / f"events.{form}"
    if form == "jsonl":
        place.write_text("".join(json.dumps(dict(zip(header, event))) + "\n" for event in events))
    else:
        with open(place, "w", newline="") as file:
            csv.writer(file, delimiter="," if form == "csv" else "\t").writerows([header, *events])
    return folder


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_frame_is_that_of_the_plain_formula_whatever_else_is_heard():
    wave = np.random.default_rng(0).normal(size=900) * np.exp(-np.arange(900) / 300) * 0.3
    loud = np.concatenate((wave, np.full(600, 0.9)))
    step = 32
    got = stream_spectrogram(torch.from_numpy(wave).float(), RATE, 8, step)
    assert torch.equal(got, stream_spectrogram(torch.from_numpy(loud).float(), RATE, 8, step)[: len(got)])
    # `slow` is relative to the loudest pixel and reaches 80 decibels; a stream's reference is fixed, and reaches 100.
    relative = slow(wave, RATE, 8, len(got)).T
    decibels = 100 * (got.numpy() / 255 - 1)
    there = relative > 0
    offset = (decibels - 80 * (relative / 255 - 1))[there]
    assert there.mean() > 0.5
    assert np.ptp(offset) < 0.5  # rounding to 256 steps of 0.4 decibels
    sine = torch.from_numpy(tone(500, 0.5)).float()
    assert stream_spectrogram(sine, RATE, 8, step).max() == 255
    assert abs(int(stream_spectrogram(sine * 0.01, RATE, 8, step).max()) - 255 * 0.6) < 20  # 40 decibels


def test_sounds_are_strung_together_and_their_places_are_known(tmp_path):
    streams = load_streams(by_class(tmp_path / "tones"), noise=40, **SOUND)
    again = load_streams(tmp_path / "tones", noise=40, **SOUND)
    assert streams.fingerprint == again.fingerprint
    assert streams.classes == ("high", "low")
    assert torch.equal(streams.test.pixels, again.test.pixels)
    for part, clips in ((streams.train, 22 * 4), (streams.test, 2)):
        assert len(part.events) == clips
        assert part.ends[-1] == len(part.pixels)
        assert (part.events[1:, 0] > part.events[:-1, 1]).all()
        loud = part.pixels.amax(1).float()
        for start, end, label in part.events.tolist():
            band = part.pixels[start + 2 : end - 2].float().mean(0).argmax().item()
            assert (band >= 4) == (label == 0)  # high or low
            assert loud[start + 2 : end - 2].min() > loud[end + 2 : end + 5].max() + 30
    softer = load_streams(tmp_path / "tones", noise=10, **SOUND)
    assert softer.fingerprint != streams.fingerprint
    assert softer.train.pixels.float().mean() > streams.train.pixels.float().mean() + 30


def test_embedded_words_are_cut_out_of_their_clips():
    streams = load_streams("tones", bands=8, rate=4000)
    lengths = (streams.train.events[:, 1] - streams.train.events[:, 0]) * streams.frame
    assert 0.27 < lengths.min() < lengths.max() < 0.73  # of clips of 1.024 s
    assert streams.train.events[:, 2].bincount().tolist() == [800] * 6


def test_only_keywords_are_listened_for(tmp_path):
    streams = load_streams(by_class(tmp_path / "tones"), **SOUND)
    some = load_streams(tmp_path / "tones", keywords=["low"], **SOUND)
    assert some.classes == ("low",)
    assert torch.equal(some.train.pixels, streams.train.pixels)
    assert torch.equal(some.train.events[:, :2], streams.train.events[streams.train.events[:, 2] == 1, :2])
    with pytest.raises(ValueError, match=r"there is no keyword 'lo': choose from high, low \(--keywords\)"):
        load_streams(tmp_path / "tones", keywords=["lo"], **SOUND)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_every_form_of_a_table_is_the_same_streams(form, tmp_path, caplog):
    caplog.set_level("INFO", logger="joformer")
    place = recorded(tmp_path / form, form)
    assert resolve(place).kind == "streams"
    streams = load_streams(place, **SOUND)
    assert streams.fingerprint == load_streams(recorded(tmp_path / "plain") / "events.csv", **SOUND).fingerprint
    assert "no test split: the last fifth of every recording is held out" in caplog.text
    assert streams.classes == ("high", "low")
    # The cuts are at 4 s: the last events of both are whole in the test split.
    frames = np.array([(start, end) for _, start, end, _ in EVENTS if end < 4]) * RATE / 32
    frames[3:] += 249  # the second recording begins there
    np.testing.assert_allclose(streams.train.events[:, :2], frames, atol=1)
    assert streams.train.events[:, 2].tolist() == [1, 0, 1, 0]
    assert streams.test.events[:, 2].tolist() == [0, 1]
    np.testing.assert_allclose(streams.test.events[0, :2], [0.2 * 62.5, 0.6 * 62.5], atol=2)  # a cut is at a frame
    for part in (streams.train, streams.test):
        for start, end, label in part.events.tolist():
            assert (part.pixels[start + 2 : end - 2].float().mean(0).argmax().item() >= 4) == (label == 0)


def test_splits_by_column_and_by_folder(tmp_path, caplog):
    rows = [(*event, "valid" if event[0] == "deep/b.wav" else "train") for event in EVENTS]
    streams = load_streams(
        recorded(tmp_path / "column", events=rows, header=("path", "onset", "offset", "label", "split")), **SOUND
    )
    assert (len(streams.train.events), len(streams.test.events)) == (4, 2)
    folder = recorded(tmp_path / "named")
    (folder / "deep").rename(folder / "test")
    (folder / "a.wav").rename(folder / "train.wav")
    wav(folder / "unlisted.wav", tone(300, 1.0))
    moved = [(file.replace("deep", "test").replace("a.wav", "train.wav"), *rest) for file, *rest in EVENTS]
    with open(folder / "events.csv", "w", newline="") as file:
        csv.writer(file).writerows([("file", "start", "end", "label"), *moved])
    assert (len(load_streams(folder, **SOUND).test.events)) == 2
    assert "1 recordings are in no table of events and left aside" in caplog.text


def test_flac_too(tmp_path):
    place = recorded(tmp_path / "a")
    want = load_streams(place, **SOUND)
    for file in ("a.wav", "deep/b.wav"):
        rate, wave = wavfile.read(place / file)
        soundfile.write((place / file).with_suffix(".flac"), wave, rate)
        (place / file).unlink()
    (place / "events.csv").write_text((place / "events.csv").read_text().replace(".wav", ".flac"))
    assert load_streams(place, **SOUND).fingerprint == want.fingerprint


BAD = {
    "outside": (("a.wav", 4.8, 5.2, "low"), r"row 7: the event ends at 5.2 s, \S+a.wav at 5.00: correct it"),
    "overlapping": (("a.wav", 0.9, 1.1, "low"), r"row 7: the event overlaps the one at \S+events.csv, row 1: end one"),
    "no file": (
        ("c.wav", 0, 1, "low"),
        r"row 7: file names 'c.wav', which does not exist: correct it, or add the file",
    ),
    "elsewhere": (("../c.wav", 0, 1, "low"), r"row 7: file names '../c.wav'"),
    "no sound": (("events.csv", 0, 1, "low"), r"row 7: file names 'events.csv', which is not a sound file"),
    "backwards": (
        ("a.wav", 2.5, 2.2, "low"),
        r"row 7: an event from 2.5 to 2.2 s: start must be 0 or more, and end after",
    ),
    "no number": (("a.wav", "soon", 2.5, "low"), r"row 7: start is 'soon' and end '2.5': write seconds, such as 1.25"),
    "not finite": (("a.wav", 2.5, "inf", "low"), r"row 7: an event from 2.5 to inf s"),
    "no label": (("a.wav", 2.2, 2.5, ""), r"row 7: label is missing: fill it or remove the row"),
    "strange": (("a.wav", 4.7, 4.9, "other"), r"row 7: class 'other' is unknown to the training split: add events"),
}


@pytest.mark.refused
@pytest.mark.parametrize("name", BAD)
def test_a_row_that_makes_no_sense_is_named(name, tmp_path):
    row, said = BAD[name]
    with pytest.raises(ValueError, match=said):
        load_streams(recorded(tmp_path / "bad", events=[*EVENTS, row]), **SOUND)


@pytest.mark.refused
def test_check_lists_all_of_them(tmp_path, joformer):
    code, said, _ = joformer("check", recorded(tmp_path / "good"))
    assert code == 0
    assert "streams of 0.1 min (train) and 0.0 min (test)" in said
    place = recorded(tmp_path / "bad", events=[*EVENTS, *(row for row, _ in BAD.values())])
    (place / "deep" / "b.wav").write_bytes(b"RIFF....WAVEnonsense")
    code, said, _ = joformer("check", place)
    assert code == 2
    assert all(f"row {number}: " in said for number in range(7, 17))
    assert "b.wav is damaged, truncated or not a wav file" in said
    assert "11 faults" in said


@pytest.mark.refused
def test_other_data_and_other_options(tmp_path, joformer):
    for header in (("file", "start", "label"), ("file", "end", "label")):
        place = recorded(tmp_path / header[1], events=[(e[0], e[1], e[3]) for e in EVENTS], header=header)
        with pytest.raises(
            ValueError, match=rf"has the columns file, {header[1]}, label: name the event columns file, "
        ):
            load_streams(place, **SOUND)
    place = recorded(tmp_path / "good")
    with pytest.raises(ValueError, match=r"holds recordings with events: give images or sounds, or train spotting"):
        load_labelled(place)
    (tmp_path / "notes.txt").write_text("prose\n" * 30)
    with pytest.raises(ValueError, match=r"notes.txt holds text: give sounds by class, or recordings with a table of"):
        load_streams(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match=r"noise is nan: give a number of decibels \(--noise\)"):
        load_streams(by_class(tmp_path / "tones"), noise=float("nan"), **SOUND)
    streams = load_streams(place, **SOUND)
    for given_, said in (
        ({"seconds": 0}, "seconds must be above 0"), ({"tolerance": -1.0}, "tolerance 0 or more"),
        ({"batch": 0}, "batch and patch must be 1 or more"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            SpottingTask(streams, **given_)
    task = SpottingTask(streams, batch=4, patch=2)
    for config, said in (
        (
            SpottingConfig(classes=1, bands=8, patch=(4, 2)),
            "the streams have 2 classes, the model has 1: set classes=2",
        ),
        (
            SpottingConfig(classes=2, bands=8, patch=(4, 4)),
            "the streams have 8 bands, 2 frames per patch; the model has 8 bands",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            train(config, task, Recipe(steps=1), tmp_path / "run")
    code, _, said = joformer("train", "vit", "--data", place, "--out", tmp_path / "vit")
    assert code == 2
    assert "train spotting" in said


# -- the task ----------------------------------------------------------------------------------------------------------


def small(tmp_path, **options):
    streams = load_streams(by_class(tmp_path / "tones"), noise=30, **SOUND)
    return SpottingTask(streams, **{"batch": 6, "seconds": 3.0, "patch": 2, "tolerance": 0.1} | options)


def test_answers_against_a_slow_reading(tmp_path):
    task = small(tmp_path)
    train_, near = task.streams.train, round(0.1 / task.streams.frame)
    pieces, answers, count = task.batch(3, 5, 0, 1)
    assert count == (answers != -100).sum()
    mean, scale = task.normalise
    # Where each piece was cut out: the only place with these pixels.
    pixels = ((pieces * scale + mean) * 255).round().to(torch.uint8)
    length = pixels.shape[1]
    windows = train_.pixels.unfold(0, length, 1).transpose(1, 2)
    for row in range(6):
        (at,) = (windows == pixels[row]).all(2).all(1).nonzero().tolist()
        recording = int((train_.ends <= at[0]).sum())
        assert at[0] + length <= train_.ends[recording]
        for time in range(length // 2):
            frame, want = at[0] + 2 * time + 1, task.nothing
            for start, end, label in train_.events.tolist():
                if max(start, end - 1 - near) <= frame < end + near:
                    want = label if start >= at[0] else -100
            assert answers[row, time] == want
    assert {0, 1, 2} <= {*answers.flatten().tolist()}
    share = (torch.cat([task.batch(0, step, 0, 1)[1].flatten() for step in range(30)]) == task.nothing).float().mean()
    assert 0.4 < share < 0.9


class EverySecond(torch.nn.Linear):
    """Logits from the last of two frames."""

    def forward(self, pieces):
        return super().forward(pieces[:, 1::2])


def test_a_batch_is_the_same_in_any_number_of_parts(tmp_path):
    task = small(tmp_path)
    whole, parts = task.batch(5, 7, 0, 1), [task.batch(5, 7, part, 3) for part in range(3)]
    assert all(torch.equal(torch.cat([part[at] for part in parts]), whole[at]) for at in (0, 1))
    assert not torch.equal(task.batch(5, 8, 0, 1)[0], whole[0])

    torch.manual_seed(0)
    model = EverySecond(whole[0].shape[-1], task.nothing + 1)
    losses = torch.stack([task.loss(model, part) for part in parts])
    torch.testing.assert_close(losses.mean(), task.loss(model, whole))
    kept = whole[1] != -100
    by_hand = torch.nn.functional.cross_entropy(model(whole[0])[kept], whole[1][kept])
    torch.testing.assert_close(task.loss(model, whole), by_hand)
    ignored = torch.full_like(parts[0][1], -100)
    assert task.loss(model, (parts[0][0], ignored, parts[0][2])) == 0  # not nan


def test_a_piece_longer_than_its_recording_ends_with_nothing_that_counts(tmp_path):
    streams = load_streams(recorded(tmp_path / "a"), **SOUND)
    pieces, answers, _ = SpottingTask(streams, batch=8, seconds=10.0, patch=2).batch(0, 0, 0, 1)
    lengths = (streams.train.ends - streams.train.starts).tolist()
    ends = {(row != -100).nonzero().max().item() + 1 for row in answers}
    assert ends <= {length // 2 for length in lengths}
    silence = -SpottingTask(streams).normalise[0] / SpottingTask(streams).normalise[1]
    torch.testing.assert_close(pieces[:, max(lengths) :], torch.full_like(pieces[:, max(lengths) :], silence))


EVENT = st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 1))


@settings(max_examples=60)
@given(spans=st.lists(EVENT, max_size=6), fired=st.lists(st.tuples(st.integers(0, 45), st.integers(0, 1)), max_size=9))
def test_hits_are_the_most_that_any_matching_finds(spans, fired):
    events = torch.tensor([(start, start + length, label) for start, length, label in spans]).long().view(-1, 3)
    when = torch.tensor(fired).long().view(-1, 2)
    fits = np.array(
        [[c == d and a <= at <= b for at, d in when.tolist()] for a, b, c in events.tolist()], dtype=float
    ).reshape(len(events), len(when))
    rows, columns = linear_sum_assignment(-fits)
    # Earliest deadlines first is best for deadlines in the order of the starts; others it may miss.
    ordered = all(a[0] <= b[0] for a, b in itertools.pairwise(sorted(events.tolist(), key=lambda event: event[1])))
    best = fits[rows, columns].sum()
    assert hits(when, events) == best if ordered else hits(when, events) <= best


def test_firings_begin_runs():
    answers = torch.tensor([2, 2, 0, 0, 1, 1, 2, 1, 2])
    assert firings(answers, 2).tolist() == [[2, 0], [4, 1], [7, 1]]
    assert firings(answers[:2], 2).tolist() == []


class Told(torch.nn.Module):
    """Answers that are read off a list, whatever is heard: one-hot logits."""

    def __init__(self, answers, classes):
        super().__init__()
        self.answers, self.classes = answers, classes

    def caches(self):
        self.at = 0
        return []

    def forward(self, x, caches):
        some = self.answers[:, self.at : self.at + x.shape[1] // 2]
        self.at += x.shape[1] // 2
        return torch.nn.functional.one_hot(some, self.classes + 1) * 9.0


def test_what_counts_is_events_not_silence(tmp_path, monkeypatch):
    task = SpottingTask(load_streams(recorded(tmp_path / "a"), **SOUND), patch=2, tolerance=0.1)
    monkeypatch.setattr("joformer.training.tasks.spotting.CHUNK", 7)  # several pieces
    test = task.streams.test
    lengths = (test.ends - test.starts) // 2
    times = int(lengths.max())
    assert len(test) == 2
    truth = torch.full((2, times), task.nothing)
    for row, first in enumerate(test.starts.tolist()):
        own = task.answers["test"][0, first + 1 : int(test.ends[row]) : 2]
        truth[row, : len(own)] = own
    order = lengths.argsort(stable=True)

    def measured(answers):
        return task.evaluate(Told(answers[order], 2), Processes())

    right = measured(truth)
    assert right["event_f1"] == right["precision"] == right["recall"] == right["frame_accuracy"] == 100
    silent = measured(torch.full_like(truth, task.nothing))
    assert silent["event_f1"] == silent["recall"] == 0
    assert silent["frame_accuracy"] > 50
    twice = truth.clone()  # the first word is said again before it has ended
    at = (twice[0] != task.nothing).nonzero()[:, 0]
    twice[0, at[2]] = task.nothing
    found = measured(twice)
    assert (found["recall"], found["precision"]) == (100, pytest.approx(200 / 3))
    assert found["event_f1"] == pytest.approx(200 * 2 / 5)
    late = torch.full_like(truth, task.nothing)  # after the tolerance
    late[0, at[-1] + 5] = truth[0, at[0]]
    assert measured(late)["event_f1"] == 0


def test_a_run_that_breaks_off_ends_with_the_same_bits_and_learns(tmp_path, joformer):
    recipe = Recipe(steps=60, lr=1e-2, end=0.0, save_every=20, evaluate_every=30)

    class Breaking(SpottingTask):
        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 47:
                raise KeyboardInterrupt
            return super().loss(model, batch)

    task = small(tmp_path)
    notes = {"data": str(tmp_path / "tones"), "noise": 30.0, "rate": RATE}
    found = train(MODEL, task, recipe, tmp_path / "whole", notes=notes)
    with pytest.raises(KeyboardInterrupt):
        train(MODEL, Breaking(task.streams, batch=6, seconds=3.0, patch=2, tolerance=0.1), recipe, tmp_path / "broken")
    assert train(MODEL, small(tmp_path), recipe, tmp_path / "broken") == found
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert found["event_f1"] > 60, found
    code, out, said = joformer("evaluate", tmp_path / "whole", "--json")
    assert code == 0
    assert "has changed" not in said
    assert json.loads(out)[0] == {name: value for name, value in found.items() if name != "step"}
    kept = json.loads((tmp_path / "whole" / "classes.json").read_text())
    assert kept["classes"] == ["high", "low"]
    assert (kept["frame"], kept["tolerance"]) == (0.016, 0.1)


def test_from_the_command_line(tmp_path, joformer):
    place = recorded(tmp_path / "recordings")
    small_ = ["--rate", RATE, "--bands", 8]
    code, out, _ = joformer(
        "train", "spotting", "--data", place, *small_, "--dim", 16, "--heads", 2, "--layers", 1, "--frames",
        "cumulative", "--window", 4, "--seconds", 2, "--steps", 2, "--batch", 4, "--out", tmp_path / "run", "--log",
        "none",
    )  # fmt: skip
    assert code == 0
    assert "event_f1" in out
    assert open_run(tmp_path / "run").model.config.frames == "cumulative"
    assert joformer("evaluate", tmp_path / "run")[0] == 0
    # A folder of classes is strung together where that is said; recordings with events need no word.
    shape = [*small_, "--dim", 16, "--heads", 2, "--layers", 1, "--longer", 1, "--seconds", 2, "--jobs", 1]
    code, out, _ = joformer(
        "compare", "--data", by_class(tmp_path / "tones"), "--kind", "spotting", "--dry-run", *shape
    )
    assert code == 0
    assert "compare/both-fixed  RoPE + values: " in out
    assert " steps, 8 seeds, " in out
    code, out, _ = joformer(
        "compare", "--data", place, *shape, "--steps", 2, "--seeds", 2, "--batch", 4, "--out", tmp_path / "c"
    )
    assert code == 0
    assert "Does value transport help: recordings, 2 steps." in out
    assert json.loads((tmp_path / "c" / "compare" / "table.json").read_text())["metric"] == "event_f1"
    code, out, _ = joformer("reproduce", "spotting", "--data", place, "--dry-run")
    assert code == 0
    assert "recordings-spotting/both-learned/1-s  " in out
