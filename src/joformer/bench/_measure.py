"""Measuring side by side: rounds of interleaved runs, and how far their noise lets a ratio be known.

    one round       every variant once, in shuffled order; a pair's log ratio is  l_i = log(seconds of a / seconds of b)
    ratio           exp(mean of the middle half of l_1 … l_n), which a round disturbed by other work does not change
    interval        95 % percentile interval of 1,000 bootstrap samples of the rounds (Efron), fixed seed
    rounds          more until the interval is narrower than the ratio's distance from its bar, or the time is up

Machines are noisy, and slowly so: what is measured minutes apart cannot be compared, and what a round measures is
compared within it. "Narrower than the distance" is some four standard errors, so that looking often decides nothing by
chance. The interval is that of one process; another one, with its memory elsewhere, may differ by more.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from joformer.bench._place import HOST

geometric_mean = statistics.geometric_mean

LEAST = 8
"""Rounds without which there is no interval: with fewer, the bootstrap's covers too little."""
FINE = 0.01
"""An interval narrower than this part of its ratio is narrow enough for any bar."""
SHORTEST = 0.005
"""Seconds that a measurement takes at least: what is quicker is repeated."""

Pair = tuple[str, str]
"""Two variants, the first over the second."""
Run = Callable[[], object]
"""One run of a variant."""
Sampler = Callable[[], float]
"""Runs a variant and returns how many seconds it took."""
Verdict = Literal["slower", "faster", "within noise"]


@dataclass(frozen=True)
class Effort:
    """How long to measure each set of variants: at least `rounds`, at most `seconds`.

    If the two conflict, time decides as soon as there are enough rounds for an interval (`LEAST`).

    >>> Effort(rounds=30).seconds
    60.0
    """

    rounds: int = 30
    seconds: int | float = 60.0
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Ratio:
    """A ratio of times and its 95 % interval, None where there were too few rounds for one."""

    value: float
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Row:
    """One figure: good if it is at most `bar` (at least, if `higher`); without a bar it is not judged.

    A measured ratio has an interval and rounds; if the interval covers the bar, `ok` is None: noise decides nothing.

    >>> Row("a count", 1.01, 1.03).ok, Row("a speed-up", 150.0, 200.0, higher=True).ok, Row("a peer", 1.1).ok
    (True, False, None)
    >>> row = Row("a ratio", 1.02, 1.03, low=0.99, high=1.05, rounds=30)
    >>> row.ok, row.verdict
    (None, 'within noise')
    """

    name: str
    value: float
    bar: float | None = None
    higher: bool = False
    low: float | None = None
    high: float | None = None
    rounds: int | None = None

    @staticmethod
    def of(name: str, ratio: Ratio, bar: float | None = None, *, higher: bool = False) -> Row:
        """The row of a measured ratio; `higher` where it is one of speeds instead of times.

        >>> Row.of("a ratio", Ratio(1.2, 1.1, 1.3, 40), 1.05).verdict
        'slower'
        """
        return Row(name, ratio.value, bar, higher, ratio.low, ratio.high, ratio.rounds)

    @property
    def ok(self) -> bool | None:
        """Whether the bar is met; None without a bar, or if the interval covers it."""
        low, high = (self.value, self.value) if self.rounds is None else (self.low, self.high)
        if self.bar is None or low is None or high is None:
            return None
        met, missed = (low >= self.bar, high < self.bar) if self.higher else (high <= self.bar, low > self.bar)
        return True if met else False if missed else None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of a measured ratio on its first variant: "within noise" if the interval covers 1."""
        if self.rounds is None:
            return None
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return "within noise"
        return "faster" if (self.value > 1) == self.higher else "slower"

    def as_json(self) -> dict[str, object]:
        """The row as plain values."""
        return {key: getattr(self, key) for key in ("name", "value", "low", "high", "rounds", "verdict", "bar", "ok")}


def timed(run: Run, clock: Callable[[], float] = time.perf_counter) -> Sampler:
    """Seconds of one run. The first call only warms up and finds how many runs a measurement needs.

    What takes less than `SHORTEST` is run several times, after a run that does not count: the one before it may have
    emptied the caches, or spent a container's share of the processor.

    >>> timed(lambda: None)() < 1
    True
    """
    repeats = 0

    def sample() -> float:
        nonlocal repeats
        if not repeats:
            run()
            run()
            start = clock()
            run()
            took = clock() - start
            repeats = max(1, math.ceil(SHORTEST / max(took, 1e-7)))
            return took
        if repeats > 1:
            run()
        start = clock()
        for _ in range(repeats):
            run()
        return (clock() - start) / repeats

    return sample


def take_turns(
    samplers: Mapping[str, Sampler], bars: Mapping[Pair, float | None], effort: Effort, *, seed: int = 0
) -> dict[Pair, list[float]]:
    """Log ratios of each pair in `bars`, round by round: all variants in each round, in an order that is shuffled.

    Args:
        samplers: Variants by name; `timed` makes a sampler of anything that runs.
        bars: The pairs to compare, each with the ratio it is to be distinguished from; None is 1.
        effort: How many rounds at least, how many seconds at most.
        seed: Of the shuffled order.

    Returns:
        For each pair ``log(seconds of the first / seconds of the second)``, one number per round.

    Example:
        >>> found = take_turns({"a": lambda: 2.0, "b": lambda: 1.0}, {("a", "b"): None}, Effort(rounds=8))
        >>> ratio(found["a", "b"])
        Ratio(value=2.0, low=2.0, high=2.0, rounds=8)
    """
    order, shuffling = list(samplers), random.Random(seed)
    for name in order:
        samplers[name]()

    def one_round() -> dict[Pair, list[float]]:
        shuffling.shuffle(order)
        took = {name: samplers[name]() for name in order}
        return {(over, under): [math.log(took[over] / took[under])] for over, under in bars}

    return gather(one_round, bars, effort)


def compare(name: str, over: Run, under: Run, effort: Effort, bar: float | None = None, *, higher: bool = False) -> Row:
    """The row of seconds of `over` / seconds of `under`, run side by side.

    >>> compare("a / b", lambda: None, lambda: None, Effort(rounds=1, seconds=0), 2.0).bar
    2.0
    """
    runs = {"over": timed(over, effort.clock), "under": timed(under, effort.clock)}
    found = take_turns(runs, {("over", "under"): bar}, effort)
    return Row.of(name, ratio(found["over", "under"]), bar, higher=higher)


def gather(
    take: Callable[[], Mapping[Pair, Iterable[float]]], bars: Mapping[Pair, float | None], effort: Effort
) -> dict[Pair, list[float]]:
    """Log ratios from `take`, called again and again until all of them are settled or the time is up.

    >>> found = gather(lambda: {("a", "b"): [0.5, 0.5]}, {("a", "b"): 1.1}, Effort(rounds=9))
    >>> len(found["a", "b"])
    10
    """
    found: dict[Pair, list[float]] = {pair: [] for pair in bars}
    start, look, rounds = effort.clock(), max(effort.rounds, LEAST), 0
    fewest = min(effort.rounds, LEAST)
    with _uncollected():
        while rounds < fewest or effort.clock() - start < effort.seconds:
            for pair, logs in take().items():
                found[pair] += logs
            rounds = min(map(len, found.values()))
            if rounds >= look:
                if all(settled(ratio(found[pair]), bar) for pair, bar in bars.items()):
                    break
                look = math.ceil(1.25 * rounds)  # what a look takes stays a small part of the whole
                gc.collect()
    return found


def settled(found: Ratio, bar: float | None) -> bool:
    """Whether the interval is narrower than the ratio's distance from its bar (1 without one), or fine enough for all.

    >>> settled(Ratio(1.5, 1.45, 1.55, 30), 1.03), settled(Ratio(1.02, 1.01, 1.035, 30), 1.03)
    (True, False)
    """
    if found.low is None or found.high is None:
        return False
    return math.log(found.high / found.low) < max(abs(math.log(found.value / (bar or 1.0))), FINE)


def ratio(*groups: Sequence[float], resamples: int = 1000, seed: int = 0) -> Ratio:
    """The ratio estimated from log ratios of rounds, with its interval; of several groups their geometric mean.

    Args:
        groups: Log ratios round by round, as `take_turns` gives them: one list, or one for each shape measured.
        resamples: How many bootstrap samples of the rounds.
        seed: Of these samples.

    Example:
        >>> found = ratio([0.01, 0.02, 0.03, 0.04, 0.01, 0.02, 0.03, 0.9])
        >>> round(found.value, 3), found.low < 1.025 < found.high
        (1.025, True)
    """
    generator = torch.Generator().manual_seed(seed)
    centre, samples = 0.0, torch.zeros(resamples, dtype=torch.float64)
    for logs in groups:
        values = torch.tensor(logs, dtype=torch.float64)
        centre += _middle(values).item() / len(groups)
        chosen = torch.randint(len(logs), (resamples, len(logs)), generator=generator)
        samples += _middle(values[chosen]) / len(groups)
    rounds = min(map(len, groups))
    if rounds < LEAST:
        return Ratio(math.exp(centre), None, None, rounds)
    low, high = samples.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Ratio(math.exp(centre), math.exp(low), math.exp(high), rounds)


def _middle(values: torch.Tensor) -> torch.Tensor:
    """The mean of the middle half of the last dimension: nearly as steady as the mean, and robust to outliers."""
    n = values.shape[-1]
    return values.sort(-1).values[..., n // 4 : n - n // 4].mean(-1)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection within a measurement."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def fastest(variants: Mapping[str, Run], repeats: int, warmup: int = 2) -> dict[str, float]:
    """Seconds of the fastest run of each variant, run in turns: for a time itself; for a ratio use `take_turns`.

    >>> sorted(fastest({"a": lambda: None, "b": lambda: None}, repeats=2))
    ['a', 'b']
    """
    best, names = dict.fromkeys(variants, math.inf), list(variants)
    for name in names:
        for _ in range(warmup):
            variants[name]()
    with _uncollected():
        for turn in range(repeats):
            at = turn % len(names)
            for name in names[at:] + names[:at]:
                start = time.perf_counter()
                variants[name]()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def keep_freed_memory() -> None:
    """Asks glibc not to hand freed memory back to the system, where there is a glibc.

    When it does is an accident of what else is on the heap, and the page faults that follow are larger than the
    differences to be measured. All variants run under the same setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim_threshold, mmap_threshold, most = -1, -3, 1 << 30
    mallopt(mmap_threshold, most)
    mallopt(trim_threshold, most)


def peak_bytes(step: Run, device: torch.device = HOST) -> int:
    """The most tensor memory that `step` holds at once beyond what was there before it, by the allocator's own count.

    >>> peak_bytes(lambda: torch.zeros(1000))
    4000
    """
    if device.type != "cpu":
        allocator = torch.get_device_module(device)
        allocator.reset_peak_memory_stats()
        before = allocator.memory_allocated()
        step()
        return int(allocator.max_memory_allocated() - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it logs its start and stop
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    held = most = 0
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
