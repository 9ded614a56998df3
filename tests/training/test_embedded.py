"""Sounds made from formulas: deterministic, of the pitch they say, and words told apart by the order of syllables."""

import pytest
import torch

from joformer.training.data.audio import load_audio, spectrograms
from joformer.training.data.embedded import RATE, SYLLABLES, TONES, WORDS, tones, words


@pytest.mark.parametrize("sound", [tones, words])
def test_clips_are_the_same_always_and_differ_between_splits(sound):
    before = torch.get_rng_state()
    waves, labels, _ = sound(20, "train")
    again, *_ = sound(20, "train")
    other, *_ = sound(20, "test")
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(waves, again)
    assert not torch.equal(waves, other)
    assert waves.isfinite().all()
    assert waves.abs().amax(1).min() > 0.005
    assert waves.abs().max() < 1
    assert labels.bincount().min() >= 2


def test_tones_have_the_pitch_and_the_harmonics_of_their_class():
    waves, labels, _ = tones(120, "train")
    spectrum = torch.fft.rfft(waves.double() * torch.hann_window(waves.shape[1], dtype=torch.float64)).abs()
    per_bin = RATE / waves.shape[1]
    for power, label in zip(spectrum, labels.tolist()):
        timbre, register = TONES[label].split("-")
        pitch = 200 if register == "low" else 600
        low, high = (int(pitch * 2**octaves / per_bin) for octaves in (-0.42, 0.42))
        peak = low + int(power[low:high].argmax())
        assert power[peak] > 0.7 * power.max()  # the fundamental is loudest
        second, third = (power[k * peak - k : k * peak + k + 1].max() / power[peak] for k in (2, 3))
        assert (second > 0.3) == (timbre == "full")
        assert (third > 0.2) == (timbre != "pure")


def test_words_are_spelled_in_syllables_and_some_are_permutations():
    spelled = [tuple(word[k : k + 2] for k in range(0, len(word), 2)) for word in WORDS]
    assert all(2 <= len(word) <= 4 and set(word) <= set(SYLLABLES) for word in spelled)
    assert len(set(spelled)) == 10
    bags = [tuple(sorted(word)) for word in spelled]
    assert sum(bags.count(bag) > 1 for bag in bags) >= 8


def test_order_of_syllables_is_what_tells_words_apart():
    """The nearest mean of bada and daba: told apart with time (aligned to the onset), not by which frames there are."""
    waves, labels, _ = words(400, "train")
    pictures = spectrograms(list(waves), RATE, 32, 64)[:, 0].float()
    pair = (labels == WORDS.index("guba")) | (labels == WORDS.index("bagu"))
    pictures, labels = pictures[pair], (labels[pair] == WORDS.index("guba")).long()
    loud = (pictures - pictures.flatten(1).median(1).values[:, None, None]).clamp_min(0)
    aligned = torch.stack([row.roll(-int((row.sum(0) > 0.3 * row.sum(0).max()).float().argmax()), 1) for row in loud])
    half = len(labels) // 2

    def score(features):
        means = torch.stack([features[:half][labels[:half] == c].mean(0) for c in (0, 1)])
        return (torch.cdist(features[half:], means).argmin(1) == labels[half:]).float().mean()

    assert score(aligned.flatten(1)) > 0.85
    assert score(loud.mean(2)) < 0.75


def test_they_load_as_spectrograms():
    data = load_audio("tones", bands=16, frames=8)
    assert data.train.images.shape == (1200, 1, 16, 8)
    assert len(data.test) == 300
    assert data.classes == TONES
    assert data.test.labels.bincount().tolist() == [50] * 6
