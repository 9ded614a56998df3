"""Data that needs no network and no files: handwriting of scikit-learn, and sounds made from formulas.

    digits   1,797 handwritten digits, 8 × 8, values 0 … 16 scaled to 0 … 255; a fifth of each class tests
    pages    2 × 3 of these digits, any of them in any place, and their names in reading order
    tones    Σₖ cos(2πk f₀t + φₖ)/k over k = 1 (pure), 1, 3, 5, 7 (odd) or 1 … 8 (full), f₀ low or high, in noise
    words    ten words of 2 to 4 syllables; some are the same syllables in another order
    family   four generations as triples (person, relation, person)
    clouds   24 to 48 points on one of eight surfaces and curves in 3-D, in noise

A syllable is a voice Σₖ aₖ(t) cos(kθ(t)), θ′ = 2πf₀(t), whose harmonics pass three resonances F₁, F₂, F₃ (its vowel),
towards which they glide from those of its consonant:   aₖ = Σⱼ gⱼ exp(−(kf₀ − Fⱼ)²/2B²)/√k.   Speaker (f₀ 90–240 Hz,
resonances × 0.9–1.1), rate (0.8–1.25), loudness, onset and noise (10–30 dB below) are drawn for every clip.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log, pi

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from joformer._seeding import generator
from joformer.training.data.examples import hold_out

RATE = 8000
SAMPLES = 8192  # 1.024 s
HARMONICS = 40
BANDWIDTH = 90  # Hz
BLOCK = 32  # clips made at a time, which stay in the processor's cache
STEP = 64  # samples between two values of a resonance

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TONES = ("pure-low", "pure-high", "odd-low", "odd-high", "full-low", "full-high")
WORDS = ("bada", "daba", "bagu", "guba", "badagu", "gudaba", "dagumi", "mibadagu", "migudaba", "dagudami")

# Where the resonances of a syllable start (its consonant) and where they stay (its vowel), in Hz.
SYLLABLES = {
    "ba": ((300, 700, 2200), (750, 1200, 2500)),
    "da": ((300, 1800, 2700), (720, 1350, 2500)),
    "gu": ((250, 1500, 2000), (330, 850, 2300)),
    "mi": ((250, 1000, 2200), (300, 2200, 2950)),
}


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[str, ...]]:
    """(images, labels) that train, (images, labels) that test, and the classes.

    >>> train, test, classes = digits()
    >>> train[0].shape, test[0].dtype, len(test[1]), classes[-1]
    (torch.Size([1438, 1, 8, 8]), torch.uint8, 359, '9')
    """
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = torch.from_numpy(loaded.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.from_numpy(loaded.target).long()
    train, test = hold_out(labels, share=0.2)
    return (images[train], labels[train]), (images[test], labels[test]), tuple(map(str, range(10)))


def pages(count: int, split: str) -> tuple[UInt8[Tensor, "count 1 16 24"], list[str]]:
    """`count` pages of 2 × 3 handwritten digits, and their names in reading order; train and test have other writing.

    >>> images, captions = pages(3, "test")
    >>> images.shape, len(captions[0].split())
    (torch.Size([3, 1, 16, 24]), 6)
    """
    train, test, _ = digits()
    images, labels = test if split == "test" else train
    chosen = torch.randint(len(labels), (count, 6), generator=generator("pages", split))
    written = images[chosen, 0].unflatten(1, (2, 3)).permute(0, 1, 3, 2, 4).reshape(count, 1, 16, 24)
    return written, [" ".join(NAMES[digit] for digit in page) for page in labels[chosen].tolist()]


Clips = tuple[Float32[Tensor, "count samples"], Int64[Tensor, " count"], Float32[Tensor, "count 2"]]
"""Waves, their classes, and the seconds at which the sound in each begins and ends."""


def tones(count: int, split: str) -> Clips:
    """`count` clips of 1.024 s at 8 kHz, their classes in `TONES` (timbre by register), and where the tones are.

    Low is 200 Hz, high 600 Hz, each up to 0.4 octaves off; it starts and ends anywhere, noise is 0 to 20 dB below.

    >>> waves, labels, _ = tones(6, "train")
    >>> waves.shape, sorted(labels.tolist())
    (torch.Size([6, 8192]), [0, 1, 2, 3, 4, 5])
    """
    draws = generator("tones", split, count)
    labels = torch.arange(count)[torch.randperm(count, generator=draws)] % len(TONES)
    uniform = torch.rand(4, count, generator=draws, dtype=torch.float64)
    pitch = torch.where(labels % 2 == 0, 200.0, 600.0).double() * torch.exp2(0.8 * uniform[0] - 0.4)
    phase = 2 * pi * torch.rand(count, 8, generator=draws)
    time = torch.arange(SAMPLES, dtype=torch.float64) / RATE
    timbre = (labels // 2)[:, None]
    k = torch.arange(1, 9)
    has = (k == 1) | (timbre == 2) | ((timbre == 1) & (k % 2 == 1))
    heard = has * (k * pitch[:, None] < RATE / 2) / k
    waves = torch.zeros(count, SAMPLES)
    for some in range(0, count, BLOCK):
        block = slice(some, some + BLOCK)
        theta = (torch.frac(pitch[block, None] * time) * (2 * pi)).float()
        for n in range(8):
            waves[block] += heard[block, n, None] * torch.cos((n + 1) * theta + phase[block, n, None])
    start, length = 0.3 * uniform[1], 0.3 + 0.4 * uniform[2]
    waves *= _ramp(time - start[:, None]) * _ramp((start + length)[:, None] - time)
    return _in_noise(waves, 20 * uniform[3], draws), labels, torch.stack((start, start + length), 1).float()


def words(count: int, split: str) -> Clips:
    """`count` clips of 1.024 s at 8 kHz, their classes in `WORDS`, spoken by the voice of the module's head, and where.

    >>> waves, labels, _ = words(10, "train")
    >>> waves.shape, sorted(labels.tolist()) == list(range(10))
    (torch.Size([10, 8192]), True)
    """
    draws = generator("words", split, count)
    labels = torch.arange(count)[torch.randperm(count, generator=draws)] % len(WORDS)
    speaker, tract, rate, onset, fall, quiet, noise = torch.rand(7, count, generator=draws)
    pitch = 90 * (240 / 90) ** speaker
    rate = 0.8 * (1.25 / 0.8) ** rate
    names = list(SYLLABLES)
    table = torch.tensor([SYLLABLES[name] for name in names], dtype=torch.float32)
    spelled = torch.full((len(WORDS), 4), -1)
    for row, word in enumerate(WORDS):
        for place in range(len(word) // 2):
            spelled[row, place] = names.index(word[2 * place : 2 * place + 2])

    # Time in syllables of 0.17 s at rate 1; before the first and after the last the voice is silent.
    coarse = torch.arange(0, SAMPLES + 1, STEP) / RATE
    syllables = (spelled[labels] >= 0).sum(1, keepdim=True)
    onset = onset * (1.0 - 0.17 * syllables[:, 0] / rate)
    beat = (coarse - onset[:, None]) * rate[:, None] / 0.17
    inside = ((beat >= 0) & (beat < syllables)).float()
    which = spelled[labels].gather(1, beat.floor().long().clamp(0, 3)).clamp_min(0)
    within = beat - beat.floor()
    glide = (within / 0.35).clamp(0, 1)[..., None]
    formants = table[which, 0] * (1 - glide) + table[which, 1] * glide
    formants = formants * (0.9 + 0.2 * tract[:, None, None])
    envelope = inside * torch.sin(pi * within.clamp(0, 1)).sqrt()

    fundamental = pitch[:, None] * (1 - (0.1 + 0.2 * fall[:, None]) * coarse)
    fine = _fine(fundamental)
    theta = (torch.frac(fine.double().cumsum(1) / RATE) * (2 * pi)).float()
    waves, gains = torch.zeros(count, SAMPLES), torch.tensor([1.0, 0.6, 0.35])
    for some in range(0, count, BLOCK):
        block = slice(some, some + BLOCK)
        voice = torch.cos(theta[block])
        # cos((k+1)θ) = 2 cos θ cos kθ − cos((k−1)θ)
        before, now, twice = torch.ones_like(voice), voice, 2 * voice
        for k in range(1, HARMONICS + 1):
            pitches = k * fundamental[block]
            heard = (gains * torch.exp((pitches[..., None] - formants[block]) ** 2 / (-2 * BANDWIDTH**2))).sum(-1)
            heard *= envelope[block] * (pitches < RATE / 2) * k**-0.5
            waves[block] += _fine(heard) * now
            before, now = now, twice * now - before
    waves = waves / waves.abs().amax(1, keepdim=True)
    waves = _in_noise(waves, 10 + 20 * noise, draws) * torch.exp(-log(10) * quiet)[:, None]
    return waves, labels, torch.stack((onset, onset + 0.17 * syllables[:, 0] / rate), 1)


SOUNDS = {"tones": (tones, TONES), "words": (words, WORDS)}


def _fine(coarse: Tensor) -> Tensor:
    """From one value every `STEP` samples to one every sample, on straight lines."""
    return torch.lerp(coarse[:, :-1, None], coarse[:, 1:, None], torch.arange(STEP) / STEP).flatten(1)


def _ramp(time: Tensor) -> Tensor:
    return (time / 0.01).clamp(0, 1).float()


def _in_noise(waves: Tensor, decibels: Tensor, draws: torch.Generator) -> Tensor:
    """Waves with white noise so many decibels below them, in power over the whole clip."""
    power = waves.square().mean(1, keepdim=True)
    noise = torch.randn(waves.shape, generator=draws)
    return (waves + noise * (power * 10 ** (-decibels[:, None].float() / 10)).sqrt()) * 0.25


SHAPES = ("sphere", "box", "disc", "ring", "torus", "cylinder", "cone", "helix")


def clouds() -> tuple[list[tuple[Tensor, int, str]], tuple[str, ...]]:
    """(points, class, split) of 960 sets of 24 to 48 points in 3-D, 160 of them to test with; and the classes `SHAPES`.

    Every set is stretched by 0.8 to 1.25 along each axis, and its points are 0.05 off on average along each.

    >>> sets, classes = clouds()
    >>> len(sets), sets[0][0].shape[1], classes[sets[0][1]], {split for _, _, split in sets} == {"train", "test"}
    (960, 3, 'sphere', True)
    """
    draws, made = generator("clouds"), []
    for number in range(960):
        count = 24 + int(torch.randint(25, (), generator=draws))
        u, v = torch.rand(2, count, generator=draws)
        phi, around = 2 * pi * v, torch.stack((torch.cos(2 * pi * v), torch.sin(2 * pi * v)), -1)
        shape = SHAPES[number % len(SHAPES)]
        if shape == "sphere":
            z = 2 * u - 1
            points = torch.cat(((1 - z**2).sqrt()[:, None] * around, z[:, None]), -1)
        elif shape == "box":
            points = 2 * torch.rand(count, 3, generator=draws) - 1
            side = torch.arange(count) % 3
            points[torch.arange(count), side] = points[torch.arange(count), side].sign()
            points = 0.7 * points
        elif shape in ("disc", "ring"):
            points = torch.cat(((u.sqrt()[:, None] if shape == "disc" else 1.0) * around, torch.zeros(count, 1)), -1)
        elif shape == "torus":
            out, up = 0.75 + 0.3 * torch.cos(2 * pi * u), 0.3 * torch.sin(2 * pi * u)
            points = torch.cat((out[:, None] * around, up[:, None]), -1)
        elif shape == "cylinder":
            points = torch.cat((0.7 * around, (2 * u - 1)[:, None]), -1)
        elif shape == "cone":
            points = torch.cat((u.sqrt()[:, None] * around, (1 - 2 * u.sqrt())[:, None]), -1)
        else:
            points = torch.stack((torch.cos(2 * phi), torch.sin(2 * phi), 2 * v - 1), -1)
        stretch = torch.exp(log(1.25) * (2 * torch.rand(3, generator=draws) - 1))
        # What they are symmetric about is the first axis: rotations of the first two change them.
        points = points[:, [2, 0, 1]] * stretch + 0.05 * torch.randn(count, 3, generator=draws)
        made.append((points, number % len(SHAPES), "test" if number >= 800 else "train"))
    return made, SHAPES


def family() -> list[tuple[str, str, str]]:
    """A family over four generations as triples (person, relation, person): 16 kinds of kin, with inverses.

    Relations compose (the father's brother is an uncle) and do not commute (the brother's father is the father).

    >>> facts = family()
    >>> len(facts), len({relation for _, relation, _ in facts}), len({head for head, _, _ in facts})
    (946, 16, 77)
    """
    draws = generator("family")
    parents: dict[str, tuple[str, str]] = {}
    married, couples = [(f"0-{number}-f", f"0-{number}-m") for number in range(8)], list[tuple[str, str]]()
    for generation in (1, 2, 3):
        children: list[str] = []
        for couple in married:
            for _ in range(2 + int(torch.rand((), generator=draws) < 0.5)):
                children.append(f"{generation}-{len(children)}-{'fm'[len(children) % 2]}")
                parents[children[-1]] = couple
        couples += married
        women, men = ([child for child in children if child.endswith(sex)] for sex in "fm")
        pairs = zip(women, men[3:] + men[:3], strict=False)
        married = [pair for pair in pairs if parents[pair[0]] != parents[pair[1]]][:8]  # nobody marries a sibling
    facts: dict[tuple[str, str, str], None] = {}

    def add(person: str, woman: str, man: str, others: Iterable[str]) -> None:
        for other in others:
            facts[person, man if other.endswith("m") else woman, other] = None

    def siblings(person: str) -> list[str]:
        return [other for other, theirs in parents.items() if other != person and theirs == parents.get(person)]

    for wife, husband in couples:
        add(wife, "wife", "husband", [husband])
        add(husband, "wife", "husband", [wife])
    for child, two in parents.items():
        grand = [one for parent in two for one in parents.get(parent, ())]
        uncles = [one for parent in two for one in siblings(parent)]
        add(child, "mother", "father", two)
        add(child, "sister", "brother", siblings(child))
        add(child, "grandmother", "grandfather", grand)
        add(child, "aunt", "uncle", uncles)
        for others, woman, man in (
            (two, "daughter", "son"), (grand, "granddaughter", "grandson"), (uncles, "niece", "nephew")
        ):  # fmt: skip
            for other in others:
                add(other, woman, man, [child])
    return list(facts)
