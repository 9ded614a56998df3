"""Measuring side by side: ratios in one run, interleaved, the minimum over repeats.

Machines are noisy, and slowly so: what is measured minutes apart cannot be compared. Variants therefore take turns,
in an order that rotates, and each is judged by its best time.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Row:
    """One figure: `value` is good when it is at most `bar` (at least, where `higher`); no bar, no verdict.

    >>> Row("a ratio", 1.01, 1.03).ok, Row("a speed-up", 150.0, 200.0, higher=True).ok, Row("a peer", 1.1).ok
    (True, False, None)
    """

    name: str
    value: float
    bar: float | None = None
    higher: bool = False

    @property
    def ok(self) -> bool | None:
        if self.bar is None:
            return None
        return self.value >= self.bar if self.higher else self.value <= self.bar

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "value": self.value, "bar": self.bar, "ok": self.ok}


def fastest(variants: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2) -> dict[str, float]:
    """Seconds of the best run of each variant, taking turns.

    >>> sorted(fastest({"a": lambda: None, "b": lambda: None}, repeats=2))
    ['a', 'b']
    """
    best = dict.fromkeys(variants, math.inf)
    names = list(variants)
    for name in names:
        for _ in range(warmup):
            variants[name]()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(repeats):
            at = turn % len(names)
            for name in names[at:] + names[:at]:
                start = time.perf_counter()
                variants[name]()
                best[name] = min(best[name], time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return best


def keep_freed_memory() -> None:
    """Ask glibc not to hand freed memory back to the system, where there is a glibc.

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


def geometric_mean(values: Iterable[float]) -> float:
    """(∏ v)^(1/n).

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def peak_bytes(step: Callable[[], object]) -> int:
    """The most tensor memory that `step` holds at once beyond what was there before it, by the allocator's own count.

    >>> peak_bytes(lambda: torch.zeros(1000))
    4000
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its start and stop are no news
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    held = most = 0
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
