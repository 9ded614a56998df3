"""Every throw of the dice is a function of the run's seed and of where the run is, and of nothing that came before.

    generator(seed, "batch", step)      the same numbers in every process, in every run, after every restart

A run that is killed and started again has no state of dice to lose, evaluation cannot disturb training, and two
processes draw what one would have drawn.
"""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def seed_of(*place: int | str) -> int:
    """63 bits that depend on every part of `place`, the same on every machine.

    >>> seed_of(0, "batch", 7) == seed_of(0, "batch", 7), seed_of(0, "batch", 7) == seed_of(0, "batch", 8)
    (True, False)
    """
    digest = hashlib.blake2b("/".join(f"{type(part).__name__}:{part}" for part in place).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


def generator(*place: int | str) -> torch.Generator:
    """A generator on the CPU that starts at `seed_of(*place)`.

    >>> draws = [torch.rand(1, generator=generator(0, "batch", 7)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return torch.Generator().manual_seed(seed_of(*place))


def reseed(*place: int | str) -> None:
    """Start the global dice of torch (all devices), Python and, where it is loaded, NumPy at `place`.

    >>> reseed(0, "dropout", 7)
    """
    seed = seed_of(*place)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        # For devices that are not there torch would write down who asked, at every step, and never let go of it.
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)
