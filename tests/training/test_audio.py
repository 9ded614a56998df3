"""Spectrograms against a slow, plain formula; wav files of every kind; refusals that name the file."""

import io
import math
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner import logged
from scipy.io import wavfile

from joformer.training.data.audio import decode_sound, load_audio, mel_filters, resampled, spectrograms

DATA = Path(os.environ.get("JOFORMER_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def wav(samples, rate=8000):
    data = io.BytesIO()
    wavfile.write(data, rate, samples)
    return data.getvalue()


def tone(hertz=440.0, seconds=0.3, rate=8000):
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def pcm24(samples, channels=1, rate=8000):
    """A 24-bit file, which scipy cannot write."""
    body = b"".join(int(value).to_bytes(3, "little", signed=True) for value in samples)
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, 3 * channels * rate, 3 * channels, 24)
    body = head + struct.pack("<4sI", b"data", len(body)) + body + b"\0" * (len(body) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def slow(samples, rate, bands, frames):
    """The formulas of the module's head, one frame, one triangle and one frequency at a time, in double precision."""
    width = 2 * round(0.016 * rate)
    hop = width // 2
    hann = np.array([0.5 - 0.5 * math.cos(2 * math.pi * n / width) for n in range(width)])
    mel = lambda f: 2595 * math.log10(1 + f / 700)  # noqa: E731
    corners = [700 * (10 ** (mel(rate / 2) * j / (bands + 1) / 2595) - 1) for j in range(bands + 2)]
    energy = np.zeros((bands, frames))
    padded = np.concatenate([samples, np.zeros(frames * hop + width)])
    turns = np.outer(np.arange(2 * width + 1), np.arange(width)) / (4 * width)
    for t in range(frames):
        power = np.abs(np.exp(-2j * np.pi * turns) @ (hann * padded[t * hop : t * hop + width])) ** 2
        for b in range(bands):
            left, peak, right = corners[b : b + 3]
            for k, f in enumerate(np.arange(2 * width + 1) * rate / (4 * width)):
                if left < f <= peak:
                    energy[b, t] += power[k] * (f - left) / (peak - left)
                elif peak < f < right:
                    energy[b, t] += power[k] * (right - f) / (right - peak)
    decibels = 10 * np.log10(np.maximum(energy, 1e-300))
    return 255 * np.clip(1 + (decibels - decibels.max()) / 80, 0, 1)


@pytest.mark.parametrize(
    ("rate", "bands", "frames", "length"), [(8000, 20, 5, 700), (8000, 64, 3, 2000), (11025, 16, 4, 900)]
)
def test_spectrograms_against_the_plain_formula(rate, bands, frames, length):
    clip = np.random.default_rng(0).normal(size=length) * np.exp(-np.arange(length) / 150)
    got = spectrograms([torch.from_numpy(clip).float()], rate, bands, frames)
    assert got.shape == (1, 1, bands, frames)
    assert got.dtype == torch.uint8
    want = slow(clip, rate, bands, frames)
    assert np.abs(got[0, 0].numpy() - want).max() < 0.51


def test_loudness_and_what_else_is_in_the_batch_do_not_matter():
    clips = [torch.from_numpy(tone(300 + 7 * k, 0.2 + 0.01 * k)).float() for k in range(5)]
    together = spectrograms(clips, 8000, 32, 16)
    for clip, picture in zip(clips, together):
        for factor in (1.0, 2.0**-100, 2.0**100):
            assert torch.equal(spectrograms([clip * factor], 8000, 32, 16)[0], picture)
    assert spectrograms([torch.zeros(4000)], 8000, 32, 16).max() == 0


def test_time_runs_right_and_pitch_runs_up():
    low_then_high = torch.from_numpy(np.concatenate([tone(300, 0.2), tone(2500, 0.2)])).float()
    picture = spectrograms([low_then_high], 8000, 64, 24)[0, 0].float()
    peaks = picture.argmax(0)
    assert peaks[3] < 20
    assert peaks[18] > 40


@pytest.mark.parametrize(("rate", "bands"), [(8000, 64), (16000, 80), (4000, 20), (44100, 128)])
def test_triangles_sum_to_one_between_the_outer_peaks(rate, bands):
    filters = mel_filters(rate, bands)
    inner = slice(int(filters[0].argmax()) + 1, int(filters[-1].argmax()))
    torch.testing.assert_close(filters.sum(0)[inner], torch.ones_like(filters[0])[inner], rtol=0, atol=1e-12)
    assert (filters.argmax(1).diff() > 0).all()


def test_wav_of_every_kind():
    wave = tone() * 0.5
    for data, close in [
        (wav(np.round(wave * 127 + 128).astype(np.uint8)), 0.01),
        (wav(np.round(wave * 2**15).astype(np.int16)), 1e-4),
        (wav(np.round(wave * 2**31).astype(np.int32)), 1e-6),
        (wav(wave.astype(np.float32)), 1e-6),
        (wav(wave), 1e-6),
        (pcm24(np.round(wave * 2**23)), 1e-6),
    ]:
        got, rate, length = decode_sound(data, "x")
        assert (rate, length) == (8000, 0.3)
        assert got.dtype == torch.float32
        assert np.abs(got.numpy() - wave).max() < close
    stereo = np.stack([wave, -0.5 * wave], 1).astype(np.float32)
    assert np.abs(decode_sound(wav(stereo), "x")[0].numpy() - 0.25 * wave).max() < 1e-6
    chunk = wav(np.round(wave * 2**15).astype(np.int16)) + b"LIST" + struct.pack("<I", 4) + b"INFO"
    assert len(decode_sound(chunk[:4] + struct.pack("<I", len(chunk) - 8) + chunk[8:], "x")[0]) == len(wave)


def test_resampling_keeps_the_sound():
    fast = torch.from_numpy(tone(440, 0.5, 22050)).float()
    assert np.abs(resampled(fast, 22050, 8000).numpy()[200:-200] - tone(440, 0.5)[200:-200]).max() < 2e-3
    assert resampled(fast, 22050, 22050) is fast


def fill(folder, names, rate=8000):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(wav((tone(200 + 50 * number, 0.1, rate) * 2**14).astype(np.int16), rate))
    return folder


def test_classes_by_name_and_by_folder(tmp_path):
    said = []
    flat = fill(
        tmp_path / "flat", [f"{digit}_{who}_{take}.wav" for digit in (3, 7) for who in "ab" for take in range(3)]
    )
    with logged(said):
        data = load_audio(flat, frames=4, bands=16, cache=tmp_path / "cache")
    assert said == [
        "reading 12 clips (once)",
        "data: flat, sounds as 1 × 16 × 4 bytes",
        "  2 classes: 3 (6), 7 (5)",
        "  train 11, test 1 examples",
        "  no test split with labels: 1 of 12 examples are held out, always the same ones",
        "  too few examples to be tested, accuracy says nothing of them: 3",
        "  12 of 12 clips last longer than 0.08 s and lose their end, 20% of all sound: give more seconds (--seconds)",
    ]
    assert data.classes == ("3", "7")
    assert data.train.images.shape == (11, 1, 16, 4)
    fill(tmp_path / "split" / "train", ["on/1.wav", "off/2.wav", "on/3.wav"])
    fill(tmp_path / "split" / "test", ["on/1.wav"], rate=16000)
    data = load_audio(tmp_path / "split", cache=tmp_path / "cache")
    assert data.classes == ("off", "on")
    assert data.test.labels.tolist() == [1]
    # The same tone at another rate is the same picture, but for the filter's edges.
    assert (data.test.images[0, 0, :, 1:3].float() - data.train.images[1, 0, :, 1:3].float()).abs().mean() < 12
    for split in ("train", "valid"):
        fill(tmp_path / "both" / split, ["3_a.wav", "7_b.wav"])
    assert load_audio(tmp_path / "both", cache=tmp_path / "cache").test.labels.tolist() == [0, 1]


def test_the_cache_knows_the_settings(tmp_path):
    flat = fill(tmp_path / "flat", [f"{digit}_{take}.wav" for digit in (3, 7) for take in range(3)])
    prints = {
        load_audio(flat, cache=tmp_path / "cache", **settings).fingerprint
        for settings in ({}, {"rate": 4000}, {"bands": 32}, {"frames": 8}, {})
    }
    assert len(prints) == 4


@pytest.mark.refused
def test_damaged_clips_are_refused_by_name(tmp_path):
    flat = fill(tmp_path / "flat", ["1_a.wav", "1_b.wav", "2_a.wav", "2_b.wav"])
    whole = (flat / "1_b.wav").read_bytes()
    for length in (0, 3, 10, 20, 40, 43, 44, 45, 46, len(whole) // 2, len(whole) - 2, len(whole) - 1):
        (flat / "1_b.wav").write_bytes(whole[:length])
        with pytest.raises(
            ValueError, match=r"1_b\.wav (is damaged, truncated or not a wav file \(.*\)|holds no)"
        ) as caught:
            load_audio(flat, cache=tmp_path / "cache")
        assert "\n" not in str(caught.value)
    for data, says in [
        (
            wav(np.zeros(0, np.int16)),
            r"1_b\.wav holds no sound \(0 samples at 8000 per second\): repair it or remove it$",
        ),
        (
            wav(np.array([0, np.nan], np.float32)),
            r"1_b\.wav holds samples that are not finite: repair it or remove it$",
        ),
        (b"ID3" + bytes(500), r"1_b\.wav is damaged, truncated or not a wav file"),
        (whole[:22] + b"\0\0" + whole[24:], r"1_b\.wav "),
        (whole[:24] + bytes(4) + whole[28:], r"1_b\.wav "),
    ]:
        (flat / "1_b.wav").write_bytes(data)
        with pytest.raises(ValueError, match=says) as caught:
            load_audio(flat, cache=tmp_path / "cache")
        assert "\n" not in str(caught.value)


@pytest.mark.refused
@given(st.lists(st.tuples(st.integers(0, 47), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=40)
def test_a_header_may_say_anything(changes):
    data = bytearray(wav((tone(seconds=0.01) * 2**14).astype(np.int16)))
    for place, value in changes:
        data[place] = value
    said = ""
    try:
        wave, rate, _ = decode_sound(bytes(data), "x.wav")
    except ValueError as error:
        said = str(error)
    assert re.fullmatch(r"x\.wav (is damaged|holds).*", said) if said else wave.isfinite().all() and rate > 0


@pytest.mark.refused
@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["1_a.wav", "noise.wav"],
            r"noise\.wav has no class before an underscore: name it class_noise\.wav, or use class",
        ),
        (
            ["1_a.wav", "on/2.wav"],
            r"1_a\.wav is not in a class folder: put every sound into a folder named after its class$",
        ),
        (
            ["on/1.wav", "on/cover.png"],
            r"on/cover\.png is not a supported sound file \(\.wav, .*\): move it out of the class folder$",
        ),
        (["train/1_a.wav", "train/2_a.wav", "test/3_a.wav"], r"test/3_a\.wav: class '3' is unknown to .*train: add"),
    ],
)
def test_folders_that_are_refused(tmp_path, names, says):
    with pytest.raises(ValueError, match=says):
        load_audio(fill(tmp_path / "set", names), cache=tmp_path / "cache")


@pytest.mark.refused
@pytest.mark.parametrize("settings", [{"rate": 100}, {"bands": 0}, {"frames": 0}, {"bands": 3000}, {"label": "x"}])
def test_settings_that_are_refused(settings):
    with pytest.raises(ValueError, match=r": (give|leave)"):
        load_audio("tones", **settings)


def test_real_digits(tmp_path):
    if not (DATA / "fsdd").is_dir():
        pytest.skip(f"{DATA / 'fsdd'} is not here")
    data = load_audio(DATA / "fsdd" / "test.parquet", bands=16, frames=16, cache=tmp_path)
    assert data.train.images.shape == (270, 1, 16, 16)
    assert data.classes == tuple("0123456789")
    assert data.test.labels.bincount().tolist() == [3] * 10
    assert (
        len(load_audio(DATA / "fsdd" / "test.parquet", label="speaker", bands=4, frames=4, cache=tmp_path).classes) == 6
    )
