"""Sound as pictures: clips → log-mel spectrograms, uint8, (n, 1, bands, frames), with low bands first.

    clip       mixed down to one channel in [−1, 1], resampled to `rate`; its first T = (frames − 1)h + w samples,
               zeros after its end;      w = 32 ms, h = w/2 by default (256 and 128 samples at 8 kHz: 64 frames are
               1.04 s)
    power      P[k, t] = |Σₙ hann[n] x[th + n] e^(−2πikn/4w)|²                          k = 0 … 2w
    mel        m(f) = 2595 log₁₀(1 + f/700);  `bands` triangles of height 1, corners equally spaced in m, 0 to rate/2,
               their sides straight in f;  E[b, t] = Σₖ Λ_b(k·rate/4w) P[k, t]
    decibels   D = 10 log₁₀ E;  pixel = round(255·clamp(1 + (D − max D)/80, 0, 1)),  the maximum over the clip;
               silence is 0

The Fourier transform is four times as long as the window, so that the narrow low triangles have frequencies in them.
Sources are those of `joformer.training.data.examples`, and "tones" and "words", which are made here from formulas. wav
is read by scipy; flac, ogg and mp3 by soundfile (the extra `audio`).
"""

from __future__ import annotations

import io
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from joformer._io import one_line
from joformer._log import logger
from joformer.training.data import embedded as made
from joformer.training.data.examples import Records, Split
from joformer.training.data.files import Place, content_hash, suffix_of
from joformer.training.data.images import Images, Made, finished, kept, stored
from joformer.training.data.sources import CODED, ENCODED, WAV, Source, resolve

RANGE, STREAM_RANGE = 80.0, 100.0  # decibels from white to black
RATES = 1_000, 768_000  # samples per second that a recording can have; a header may say anything
UNKNOWN = 1 << 48  # samples that the decoder claims where the header names none
EMBEDDED = (1200, 300)  # clips that train and that test


def load_audio(
    source: Place | Source,
    *,
    label: str | None = None,
    rate: int = 8000,
    seconds: int | float | None = None,
    bands: int = 64,
    hop: int | float | None = None,
    frames: int | None = None,
    cache: Place | None = None,
) -> Images:
    """The spectrograms of all clips of a source, usable like images.

    Args:
        source: A name, a path, or what `resolve` returned.
        label: The class column; "folder" or "name" if folders and file names both could be the class.
        rate: Samples per second.
        seconds: How much of each clip is read, from its start; 1.04 by default.
        bands: Number of frequency bands.
        hop: Milliseconds from one frame to the next; 16 by default, half a window.
        frames: The number of frames, instead of `seconds`; 64 by default.
        cache: Cache folder for spectrograms.

    Returns:
        Both splits, as images of bands × frames. The share of sound that was cut off is logged.

    Example:
        >>> data = load_audio("tones", frames=16)
        >>> data.train.images.shape, data.classes
        (torch.Size([1200, 1, 64, 16]), ('pure-low', 'pure-high', 'odd-low', 'odd-high', 'full-low', 'full-high'))
    """
    mel_filters(rate, bands)
    window = _window(rate)
    step = step_of(rate, hop)
    if seconds is not None and frames is None and seconds > 0:
        frames = 1 + max(0, round((seconds * rate - window) / step))
    elif seconds is not None:
        raise ValueError(f"seconds is {seconds}: give more than 0 (--seconds), or frames instead")
    frames = 64 if frames is None else frames
    if frames < 1:
        raise ValueError(f"frames is {frames}: give 1 or more")
    source = resolve(source, kind="sounds", label=label)
    settings = (rate, bands, frames) if step == window // 2 else (rate, bands, frames, step)
    if source.spec in made.SOUNDS:
        if source.label is not None:
            raise ValueError(f"{source.spec} have only one kind of label: leave out label (--label)")
        sound, classes = made.SOUNDS[source.spec]

        def synthesise(_: Path) -> Made:
            logger.info(f"making {sum(EMBEDDED):,} {source.spec} (once)")
            splits = [sound(count, split)[:2] for count, split in zip(EMBEDDED, ("train", "test"), strict=True)]
            clips = [[resampled(wave, made.RATE, rate) for wave in waves] for waves, _ in splits]
            train, test = (spectrograms(some, rate, bands, frames, step) for some in clips)
            return Made((train, splits[0][1]), (test, splits[1][1]), classes)

        # They are kept as long as the formulas are these.
        formulas = (Path(file).read_bytes() for file in (str(made.__file__), __file__))
        key = content_hash(source.spec, str((EMBEDDED, *settings)), *formulas)
        return finished(source, stored(f"sounds-{key}", synthesise, cache=cache))

    def make(records: Records) -> Made:
        train, test, classes, notes = records
        logger.info(f"reading {len(train) + len(test):,} clips (once)")
        limit = (frames - 1) * step + window
        lengths: list[float] = []
        splits = []
        for part in (train, test):
            clips = [_clip(part, row, rate, limit + 1, lengths) for row in range(len(part))]
            splits.append((spectrograms(clips, rate, bands, frames, step), part.labels))
        longer = [length - limit / rate for length in lengths if round(length * rate) > limit]
        if longer:
            text = f"{len(longer):,} of {len(lengths):,} clips last longer than {limit / rate:.2f} s and lose their end"
            share = f"{sum(longer) / sum(lengths):.0%} of all sound"
            notes += ((logging.WARNING, f"{text}, {share}: give more seconds (--seconds)"),)
        return Made(splits[0], splits[1], classes, notes)

    return kept(source, "wav", settings, make, cache=cache)


def _window(rate: int) -> int:
    return 2 * round(rate * 0.016)


def mel_filters(rate: int, bands: int) -> Float[Tensor, "bands bins"]:
    """Λ of the module's head: the weight of every frequency k·rate/4w, k = 0 … 2w, in every band.

    >>> mel_filters(8000, 64).shape, bool((mel_filters(8000, 64).sum(1) > 0).all())
    (torch.Size([64, 513]), True)
    """
    if rate < 500 or bands < 1:
        raise ValueError(f"--rate is {rate} and --bands {bands}: give at least 500 samples per second and 1 band")
    window = _window(rate)
    frequency = torch.arange(2 * window + 1, dtype=torch.float64) * (rate / (4 * window))
    top = 2595 * torch.log10(torch.tensor(1 + rate / 1400, dtype=torch.float64))
    corner = 700 * (10 ** (torch.linspace(0, 1, bands + 2, dtype=torch.float64) * top / 2595) - 1)
    left, peak, right = corner[:-2, None], corner[1:-1, None], corner[2:, None]
    filters = torch.minimum((frequency - left) / (peak - left), (right - frequency) / (right - peak)).clamp_min(0)
    if (filters.sum(1) == 0).any():
        raise ValueError(f"{bands} bands are too many for {rate} samples per second: give fewer (--bands)")
    return filters


def spectrograms(
    clips: list[Tensor], rate: int, bands: int, frames: int, step: int | None = None
) -> UInt8[Tensor, "n 1 bands frames"]:
    """The spectrograms of clips of any length, by the formulas of the module's head; `step` is h in samples.

    >>> beep = torch.sin(torch.arange(4000) * (2 * torch.pi * 1000 / 8000))
    >>> picture = spectrograms([beep], 8000, 64, 64)
    >>> picture.shape, picture[0, 0, :, 10].argmax().item(), picture[0, 0, :, 40].max().item()
    (torch.Size([1, 1, 64, 64]), 29, 0)
    """
    window = _window(rate)
    step = window // 2 if step is None else step
    span, margin = (frames - 1) * step + window, (4 * window - window) // 2
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
        energy = _energy(waves, filters, window, step)
        loudest = energy.amax((1, 2), keepdim=True)
        decibels = 10 * torch.log10(energy / loudest.clamp_min(1e-30)).clamp_min(-RANGE / 10)
        pictures[start : start + 256, 0] = (255 * (1 + decibels / RANGE)).round().to(torch.uint8)
    return pictures


def stream_spectrogram(
    wave: Float[Tensor, " samples"], rate: int, bands: int, step: int
) -> UInt8[Tensor, "time bands"]:
    """A recording of any length as it comes in: pixel = round(255·clamp(1 + 10 log₁₀(16 E / w²)/100, 0, 1)).

    The loudest sine is about white, whatever else is heard: each frame depends on its own w samples alone.

    >>> beep = torch.sin(torch.arange(4000) * (2 * torch.pi * 1000 / 8000))
    >>> picture = stream_spectrogram(beep, 8000, 64, 128)
    >>> picture.shape, picture[10].argmax().item(), picture[10].max().item()
    (torch.Size([30, 64]), 29, 255)
    """
    window, filters = _window(rate), mel_filters(rate, bands).float()
    margin, frames = (4 * window - window) // 2, 1 + max(0, len(wave) - window) // step
    wave = torch.nn.functional.pad(wave, (margin, margin + max(0, window - len(wave))))
    made = torch.empty(frames, bands, dtype=torch.uint8)
    for start in range(0, frames, 4096):  # an hour at once would take gigabytes
        some = made[start : start + 4096]
        first = start * step
        piece = wave[None, first : first + (len(some) - 1) * step + 4 * window]
        decibels = 10 * torch.log10(_energy(piece, filters, window, step)[0].clamp_min(1e-30) * (16 / window**2))
        some.copy_((255 * (1 + decibels / STREAM_RANGE).clamp(0, 1)).round().T)
    return made


def _energy(waves: Tensor, filters: Tensor, window: int, step: int) -> Tensor:
    """E of the module's head; `waves` have a margin of the transform on both sides."""
    shape = torch.hann_window(window, dtype=torch.float32)
    spectrum = torch.stft(waves, 4 * window, step, window, shape, center=False, onesided=True, return_complex=True)
    return filters @ (spectrum.real.square() + spectrum.imag.square())


def step_of(rate: int, hop: int | float | None) -> int:
    """Samples from one frame to the next, for `hop` milliseconds; half a window by default.

    >>> step_of(8000, None), step_of(8000, 10)
    (128, 80)
    """
    window = _window(rate)
    step = window // 2 if hop is None else round(rate * hop / 1000)
    if not 1 <= step <= window:
        raise ValueError(f"hop is {hop} ms: give more than 0 and at most 32, the window (--hop)")
    return step


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


def decode_sound(
    data: bytes, name: str, seconds: int | float | None = None
) -> tuple[Float[Tensor, " samples"], int, float]:
    """Samples in [−1, 1], stereo mixed down, their rate, and how many seconds the whole clip lasts.

    wav: PCM of 8, 16, 24 and 32 bits and floats. With `seconds`, no more than the first of so many.

    >>> import numpy, scipy.io.wavfile
    >>> file = io.BytesIO()
    >>> scipy.io.wavfile.write(file, 8000, numpy.array([0, 1 << 14, -1 << 15], dtype=numpy.int16))
    >>> decode_sound(file.getvalue(), "a.wav")[:2]
    (tensor([ 0.0000,  0.5000, -1.0000]), 8000)
    """
    import numpy as np

    suffix = suffix_of(name)
    coded = suffix in CODED or (suffix not in WAV and data.startswith(ENCODED))
    try:
        samples, rate, count = (_read_coded if coded else _read_wav)(data, seconds)
    except ImportError:
        kind = suffix.removeprefix(".") or "compressed sound"
        raise ValueError(f"{name} is {kind}: pip install 'joformer[audio]' to read it, or convert it to wav") from None
    except Exception as error:  # readers believe the header, and fail in many ways where it lies
        wanted = f"{'sound' if coded else 'wav'} file ({one_line(error)})"
        raise ValueError(f"{name} is damaged, truncated or not a {wanted}: repair it or remove it") from None
    wrong = ""
    if not samples.size or rate <= 0:
        wrong = f"holds no sound ({len(samples)} samples at {rate} per second)"
    elif not RATES[0] <= rate <= RATES[1]:
        wrong = f"claims {rate:,} samples per second, {RATES[0]:,} to {RATES[1]:,} are possible"
    elif samples.dtype.kind == "f" and not np.isfinite(samples).all():
        wrong = "holds samples that are not finite"
    if wrong:
        raise ValueError(f"{name} {wrong}: repair it or remove it")
    if seconds is not None:
        samples = samples[: math.ceil(seconds * rate)]
    # scipy gives 24 bits in the upper bits of 32; 8 bits have no sign.
    scale = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
    wave = samples.astype(np.float64) / scale - (samples.dtype.kind == "u")
    return torch.from_numpy(wave.reshape(len(wave), -1).mean(1)).float(), rate, count / rate


def _read_wav(data: bytes, seconds: int | float | None) -> tuple[Any, int, int]:
    from scipy.io import wavfile

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Chunk", wavfile.WavFileWarning)  # chunks that hold no sound
        warnings.filterwarnings("error", "Reached EOF", wavfile.WavFileWarning)
        rate, samples = wavfile.read(io.BytesIO(data))
    return samples, rate, len(samples)


def _read_coded(data: bytes, seconds: int | float | None) -> tuple[Any, int, int]:
    import soundfile

    if data.startswith(b"OggS"):
        _require_whole_ogg(data)
    held = io.BytesIO(data)
    try:
        with soundfile.SoundFile(held) as file:
            if file.frames > UNKNOWN:
                raise ValueError("its header does not say how long it is: encode it again")
            most = RATES[1] * 60 if seconds is None else math.ceil(seconds * file.samplerate)  # bytes may be hours
            samples = file.read(most, dtype="float32", always_2d=True)
            rate, count = file.samplerate, file.frames
            read = held.tell()
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from None  # its message has the address of the bytes as well
    # Where the bytes of an mp3 or ogg end, the decoder stops without an error.
    if len(samples) < 0.95 * min(most, count):
        raise ValueError(f"it ends after {len(samples):,} of {count:,} samples")
    # How long an mp3 is, the decoder guesses where no header says, and goes no further than that.
    cut = len(samples) < most and read < 0.95 * len(data) and not data.startswith((b"fLaC", b"OggS"))
    if cut and not any(header in data for header in (b"Xing", b"Info", b"VBRI")):
        raise ValueError("it does not say how long it is, and goes on after the estimate: encode it again")
    return samples, rate, max(len(samples), count)


def _require_whole_ogg(data: bytes) -> None:
    """Raises where the pages of an ogg file (RFC 3533) break off, or a second stream follows the first."""
    at, ended = 0, False
    while at < len(data):
        head = data[at : at + 27]
        size = 27 + head[26] + sum(data[at + 27 : at + 27 + head[26]]) if len(head) == 27 else 27
        if head[:4] != b"OggS" or at + size > len(data):
            raise ValueError(f"its pages break off after {at:,} of {len(data):,} bytes")
        if ended:
            raise ValueError("another stream follows the first")
        at, ended = at + size, bool(head[5] & 4)
    if not ended:
        raise ValueError("it has no last page")


def _clip(records: Split, row: int, rate: int, samples: int, lengths: list[float]) -> Tensor:
    """A clip at this rate, or so much of it that its first `samples` are those of the whole; `lengths` grows."""
    # The filter of resample_poly reaches ten samples of the lower rate to each side.
    seconds = samples / rate + 12 / min(rate, RATES[0])
    wave, have, length = decode_sound(records.read(row), records.name(row), seconds)
    lengths.append(length)
    return resampled(wave, have, rate)
