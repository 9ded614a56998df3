"""Sound as pictures: wav → log-mel spectrograms, uint8, (n, 1, bands, frames), with low bands first.

    clip       mixed down to one channel in [−1, 1], resampled to `rate`; its first T = (frames − 1)h + w samples,
               zeros after its end;      w = 32 ms, h = w/2  (256 and 128 samples at 8 kHz: 64 frames are 1.04 s)
    power      P[k, t] = |Σₙ hann[n] x[th + n] e^(−2πikn/4w)|²                          k = 0 … 2w
    mel        m(f) = 2595 log₁₀(1 + f/700);  `bands` triangles of height 1, corners equally spaced in m, 0 to rate/2,
               their sides straight in f;  E[b, t] = Σₖ Λ_b(k·rate/4w) P[k, t]
    decibels   D = 10 log₁₀ E;  pixel = round(255·clamp(1 + (D − max D)/80, 0, 1)),  the maximum over the clip;
               silence is 0

The Fourier transform is four times as long as the window, so that the narrow low triangles have frequencies in them.
Sources are those of `joformer.training.data.streamed`, and "tones" and "words", which are made here from formulas.
"""

from __future__ import annotations

import io
import math
import os
import warnings
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from joformer._io import one_line
from joformer._log import logger
from joformer.training.data.images import Images, Made, embedded, kept, stored
from joformer.training.data.records import CLIPS, Files, Rows
from joformer.training.data.sources import content_hash

RANGE = 80.0  # decibels from white to black
RATES = 1_000, 768_000  # samples a second that a recording can have; a header may say anything
EMBEDDED = (1200, 300)  # clips that train and that test


def load_audio(
    source: str | os.PathLike[str],
    *,
    label: str | None = None,
    rate: int = 8000,
    bands: int = 64,
    frames: int = 64,
    cache: str | os.PathLike[str] | None = None,
) -> Images:
    """The spectrograms of all clips of a source, which go wherever images go.

    `label` names the column of labels where a table has several, `rate` is in samples a second. Clips longer than
    `frames` lose their end, and how many is logged.

    >>> data = load_audio("tones", frames=16)
    >>> data.train.images.shape, data.classes
    (torch.Size([1200, 1, 64, 16]), ('pure-low', 'pure-high', 'odd-low', 'odd-high', 'full-low', 'full-high'))
    """
    mel_filters(rate, bands)
    if frames < 1:
        raise ValueError(f"frames is {frames}: give 1 or more")
    if source in ("tones", "words"):
        from joformer.training.data import embedded as made

        if label is not None:
            raise ValueError(f"{source} have one kind of label: leave out label")
        sound, classes = (made.tones, made.TONES) if source == "tones" else (made.words, made.WORDS)

        def synthesise(_: Path) -> Made:
            logger.info(f"making {sum(EMBEDDED):,} {source}, once")
            splits = []
            for count, split in zip(EMBEDDED, ("train", "test"), strict=True):
                waves, labels = sound(count, split)
                clips = [resampled(wave, made.RATE, rate) for wave in waves] if rate != made.RATE else list(waves)
                splits.append((spectrograms(clips, rate, bands, frames), labels))
            return Made(splits[0], splits[1], classes)

        # They are kept as long as the formulas are these.
        formulas = (Path(file).read_bytes() for file in (str(made.__file__), __file__))
        key = content_hash(str(source), str((EMBEDDED, rate, bands, frames)), *formulas)
        return embedded(stored(f"sounds-{key}", synthesise, cache=cache))

    def make(train: Files | Rows, test: Files | Rows, classes: tuple[str, ...]) -> Made:
        logger.info(f"reading {len(train) + len(test):,} clips, once")
        limit = _span(rate, frames)
        train_clips, test_clips = (
            [_clip(records, row, rate, limit + 1) for row in range(len(records))] for records in (train, test)
        )
        longer = sum(len(clip) > limit for clip in train_clips + test_clips)
        if longer:
            logger.warning(
                f"{longer:,} clips last longer than {frames} frames ({limit / rate:.2f} s) and lose their end"
            )
        splits = [spectrograms(clips, rate, bands, frames) for clips in (train_clips, test_clips)]
        return Made((splits[0], train.labels), (splits[1], test.labels), classes)

    return kept(source, CLIPS, (rate, bands, frames), make, label=label, cache=cache)


def _window(rate: int) -> int:
    return 2 * round(rate * 0.016)


def _span(rate: int, frames: int) -> int:
    """Samples that so many frames look at."""
    return (frames - 1) * (_window(rate) // 2) + _window(rate)


def mel_filters(rate: int, bands: int) -> Float[Tensor, "bands bins"]:
    """Λ of the module's head: the weight of every frequency k·rate/4w, k = 0 … 2w, in every band.

    >>> mel_filters(8000, 64).shape, bool((mel_filters(8000, 64).sum(1) > 0).all())
    (torch.Size([64, 513]), True)
    """
    if rate < 500 or bands < 1:
        raise ValueError(f"rate is {rate} and bands {bands}: give at least 500 samples a second and 1 band")
    window = _window(rate)
    frequency = torch.arange(2 * window + 1, dtype=torch.float64) * (rate / (4 * window))
    top = 2595 * torch.log10(torch.tensor(1 + rate / 1400, dtype=torch.float64))
    corner = 700 * (10 ** (torch.linspace(0, 1, bands + 2, dtype=torch.float64) * top / 2595) - 1)
    left, peak, right = corner[:-2, None], corner[1:-1, None], corner[2:, None]
    filters = torch.minimum((frequency - left) / (peak - left), (right - frequency) / (right - peak)).clamp_min(0)
    if (filters.sum(1) == 0).any():
        raise ValueError(f"{bands} bands are finer than a clip at {rate} samples a second tells apart: give fewer")
    return filters


def spectrograms(clips: list[Tensor], rate: int, bands: int, frames: int) -> UInt8[Tensor, "n 1 bands frames"]:
    """The spectrograms of clips of any length, by the formulas of the module's head.

    >>> beep = torch.sin(torch.arange(4000) * (2 * torch.pi * 1000 / 8000))
    >>> picture = spectrograms([beep], 8000, 64, 64)
    >>> picture.shape, picture[0, 0, :, 10].argmax().item(), picture[0, 0, :, 40].max().item()
    (torch.Size([1, 1, 64, 64]), 29, 0)
    """
    window = _window(rate)
    span, margin = _span(rate, frames), (4 * window - window) // 2
    shape = torch.hann_window(window, dtype=torch.float32)
    filters = mel_filters(rate, bands).float()
    pictures = torch.empty(len(clips), 1, bands, frames, dtype=torch.uint8)
    for start in range(0, len(clips), 256):
        some = clips[start : start + 256]
        # torch.stft centres a short window in its long transform: a margin on both sides puts frame 0 at sample 0.
        waves = torch.zeros(len(some), span + 2 * margin)
        for row, clip in enumerate(some):
            waves[row, margin : margin + min(len(clip), span)] = clip[:span]
        # Loudness cancels in the maximum below; taken out first, float32 neither overflows nor vanishes.
        waves /= waves.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        spectrum = torch.stft(
            waves, 4 * window, window // 2, window, shape, center=False, onesided=True, return_complex=True
        )
        energy = filters @ (spectrum.real.square() + spectrum.imag.square())
        loudest = energy.amax((1, 2), keepdim=True)
        decibels = 10 * torch.log10(energy / loudest.clamp_min(1e-30)).clamp_min(-RANGE / 10)
        pictures[start : start + 256, 0] = (255 * (1 + decibels / RANGE)).round().to(torch.uint8)
    return pictures


def resampled(wave: Float[Tensor, " samples"], have: int, want: int) -> Float[Tensor, " _samples"]:
    """The same sound at another rate.

    >>> resampled(torch.zeros(16000), 16000, 8000).shape
    torch.Size([8000])
    """
    from scipy.signal import resample_poly

    if have == want:
        return wave
    common = math.gcd(have, want)
    return torch.from_numpy(resample_poly(wave.double().numpy(), want // common, have // common)).float()


def decode_wav(data: bytes, name: str, seconds: float | None = None) -> tuple[Float[Tensor, " samples"], int]:
    """Samples in [−1, 1], stereo mixed down, and the rate; PCM of 8, 16, 24 and 32 bits and floats.

    With `seconds`, no more than the first of so many.

    >>> import numpy, scipy.io.wavfile
    >>> file = io.BytesIO()
    >>> scipy.io.wavfile.write(file, 8000, numpy.array([0, 1 << 14, -1 << 15], dtype=numpy.int16))
    >>> decode_wav(file.getvalue(), "a.wav")
    (tensor([ 0.0000,  0.5000, -1.0000]), 8000)
    """
    import numpy as np
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Chunk", wavfile.WavFileWarning)  # chunks that hold no sound
            warnings.filterwarnings("error", "Reached EOF", wavfile.WavFileWarning)
            rate, samples = wavfile.read(io.BytesIO(data))
    except Exception as error:  # scipy believes the header, and fails in many ways where it lies
        reason = one_line(error)
        raise ValueError(f"{name} is damaged, cut short or no wav file ({reason}): repair it or take it out") from None
    if not samples.size or rate <= 0:
        raise ValueError(f"{name} holds no sound ({len(samples)} samples at {rate} a second): repair it or take it out")
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(
            f"{name} says that it has {rate:,} samples a second: {RATES[0]:,} to {RATES[1]:,} are possible, repair it "
            "or take it out"
        )
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise ValueError(f"{name} holds samples that are not finite: repair it or take it out")
    if seconds is not None:
        samples = samples[: math.ceil(seconds * rate)]
    if samples.dtype.kind == "f":
        wave = samples.astype(np.float64)
    else:
        # scipy gives 24 bits in the upper bits of 32; 8 bits have no sign.
        half = 2.0 ** (8 * samples.dtype.itemsize - 1)
        wave = samples / half - (samples.dtype.kind == "u")
    return torch.from_numpy(wave.reshape(len(wave), -1).mean(1)).float(), rate


def _clip(records: Files | Rows, row: int, rate: int, samples: int) -> Tensor:
    """A clip at this rate, or so much of it that its first `samples` are those of the whole."""
    # The filter of resample_poly reaches ten samples of the lower rate to each side.
    seconds = samples / rate + 12 / min(rate, RATES[0])
    wave, have = decode_wav(records.read(row), records.name(row), seconds)
    return resampled(wave, have, rate)
