"""Random numbers as a function of the seed and of where they are needed, and of nothing that came before.

    generator(seed, "batch", step)      the same numbers in every process, in every run, after every restart

A run that is killed and resumed has no random state to lose, evaluation cannot disturb training, and two processes draw
what one would have drawn.
"""

from __future__ import annotations

import hashlib
import random
import sys

import torch


def hashed(text: str) -> int:
    """63 bits that depend on every character of `text`, the same on every machine.

    >>> hashed("a") == hashed("a"), hashed("a") == hashed("b")
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_of(*place: int | str) -> int:
    """The seed of a place: 63 bits that depend on every part of it and its type.

    >>> seed_of(0, "batch", 7) == seed_of(0, "batch", 7), seed_of(0, "batch", 7) == seed_of(0, "batch", 8)
    (True, False)
    """
    return hashed("/".join(f"{type(part).__name__}:{part}" for part in place))


def generator(*place: int | str) -> torch.Generator:
    """A generator on the CPU that starts at `seed_of(*place)`.

    >>> draws = [torch.rand(1, generator=generator(0, "batch", 7)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return torch.Generator().manual_seed(seed_of(*place))


def reseed(*place: int | str) -> None:
    """Starts the global generators of torch (all devices), Python and, where it is loaded, NumPy at `place`.

    >>> reseed(0, "dropout", 7)
    """
    seed = seed_of(*place)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        # For devices that are absent torch would record every caller, at every step, and never free the records.
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)
