"""What the transforms and the monoidal embedding cost, beside the FFT and beside rotating every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from joformer._log import logger
from joformer.algebra import Generators, absolute
from joformer.bench._measure import Effort, Row, compare, peak_bytes, ratio, take_turns, timed
from joformer.models import JourneySSM
from joformer.monoidal import MonoidalEmbedding
from joformer.spectral import dct, dft, dst, hadamard


def spectral(effort: Effort) -> Iterator[Row]:
    """Transforms of 4,096 real points against `torch.fft.fft` of the same points; the slowest of each family counts."""
    families: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "DFT": [dft],
        "DCT, DST II to IV": [partial(f, type=kind) for f in (dct, dst) for kind in (2, 3, 4)],
        "DCT, DST I": [partial(f, type=1) for f in (dct, dst)],
        "Hadamard, Walsh": [hadamard, partial(hadamard, order="sequency")],
    }
    for shape in ((4096,), (64, 4096)):
        logger.info(f"transforms of {shape}")
        x = torch.randn(shape)
        members = {f"{family} {n}": partial(f, x) for family, fs in families.items() for n, f in enumerate(fs)}
        runs = {name: timed(run) for name, run in ({"fft": partial(torch.fft.fft, x)} | members).items()}
        found = take_turns(runs, {(name, "fft"): 1.5 for name in members}, effort)
        size = "4,096 points" if len(shape) == 1 else "64 × 4,096 points"
        for family, fs in families.items():
            ratios = [ratio(found[f"{family} {n}", "fft"]) for n in range(len(fs))]
            slowest = max(ratios, key=lambda one: one.value)
            yield Row.of(f"{family} / torch.fft.fft, {size}", slowest, 1.5)


@torch.no_grad()
def monoidal(effort: Effort) -> Iterator[Row]:
    """28 × 28 images at d = 784: the embedding against rotating every pixel's vector by its operator and summing."""
    side, dim, batch = 28, 784, 16
    x = torch.rand(batch, side, side)
    embeddings = {kind: MonoidalEmbedding(dim, (side, side), frequencies=kind) for kind in ("learned", "dft")}
    generators = Generators.torus(embeddings["learned"].angles.detach())
    content = torch.tensor([1.0, 0.0]).repeat(dim // 2)
    at = absolute(generators, torch.cartesian_prod(torch.arange(side), torch.arange(side)))

    def pixel_by_pixel() -> Tensor:
        return generators.group.act(at, x.flatten(1).unsqueeze(-1) * content).sum(-2)

    logger.info("monoidal embedding")
    runs = {kind: timed(partial(embed, x)) for kind, embed in embeddings.items()} | {"pixels": timed(pixel_by_pixel)}
    found = take_turns(runs, {("pixels", kind): 20.0 for kind in embeddings}, effort)
    for (_, kind), logs in found.items():
        name = f"embedding 28 × 28 images, d = 784, {kind}: speed-up over every pixel"
        yield Row.of(name, ratio(logs), 20.0, higher=True)
    growth = [peak_bytes(partial(MonoidalEmbedding(dim, (n, n)), torch.rand(1, n, n))) for n in (side, 4 * side)]
    yield Row("its peak memory, 16 × the pixels", growth[1] / growth[0], 4.5)


def recurrence(effort: Effort) -> Iterator[Row]:
    """A training step of `JourneySSM` at 8,192 tokens against one at 1,024."""
    logger.info("recurrence")

    def step(tokens: int) -> Callable[[], None]:
        layer, x = JourneySSM(256, heads=4), torch.randn(1, tokens, 256)
        return lambda: layer(x)[0].square().mean().backward()

    yield compare("JourneySSM: step at 8,192 tokens / at 1,024", step(8192), step(1024), effort, 9.0)
