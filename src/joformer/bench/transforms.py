"""What the transforms and the monoidal embedding cost, beside the FFT and beside rotating every pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from joformer.algebra import Generators, absolute
from joformer.bench.measure import Row, fastest, peak_bytes
from joformer.models import JourneySSM
from joformer.monoidal import MonoidalEmbedding
from joformer.spectral import dct, dft, dst, hadamard

Report = Callable[[str], None]


def spectral(repeats: int, say: Report) -> Iterator[Row]:
    """Transforms of 4,096 real points against `torch.fft.fft` of the same points; the slowest of each family counts."""
    families: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "DFT": [dft],
        "DCT, DST II to IV": [partial(f, type=kind) for f in (dct, dst) for kind in (2, 3, 4)],
        "DCT, DST I": [partial(f, type=1) for f in (dct, dst)],
        "Hadamard, Walsh": [hadamard, partial(hadamard, order="sequency")],
    }
    for shape in ((4096,), (64, 4096)):
        say(f"transforms of {shape}")
        x = torch.randn(shape)
        runs = {(family, n): partial(f, x) for family, members in families.items() for n, f in enumerate(members)}
        best = fastest({"fft": partial(torch.fft.fft, x)} | {str(key): run for key, run in runs.items()}, 10 * repeats)
        for family, members in families.items():
            slowest = max(best[str((family, n))] for n in range(len(members)))
            size = "4,096 points" if len(shape) == 1 else "64 × 4,096 points"
            yield Row(f"{family} / torch.fft.fft, {size}", slowest / best["fft"], 1.5)


@torch.no_grad()
def monoidal(repeats: int, say: Report) -> Iterator[Row]:
    """28 × 28 images at d = 784: the embedding against turning every pixel's vector by its operator and summing."""
    side, dim, batch = 28, 784, 16
    x = torch.rand(batch, side, side)
    embeddings = {kind: MonoidalEmbedding(dim, (side, side), frequencies=kind) for kind in ("learned", "dft")}
    generators = Generators.torus(embeddings["learned"].angles.detach())
    content = torch.tensor([1.0, 0.0]).repeat(dim // 2)
    at = absolute(generators, torch.cartesian_prod(torch.arange(side), torch.arange(side)))

    def pixel_by_pixel() -> Tensor:
        return generators.group.act(at, x.flatten(1).unsqueeze(-1) * content).sum(-2)

    say("monoidal embedding")
    slow = fastest({"pixels": pixel_by_pixel}, max(3, repeats // 10), warmup=1)["pixels"]
    best = fastest({kind: partial(embed, x) for kind, embed in embeddings.items()}, repeats)
    for kind, seconds in best.items():
        yield Row(
            f"embedding 28 × 28 images, d = 784, {kind}: speed-up over every pixel", slow / seconds, 20.0, higher=True
        )
    growth = [peak_bytes(partial(MonoidalEmbedding(dim, (n, n)), torch.rand(1, n, n))) for n in (side, 4 * side)]
    yield Row("its peak memory, 16 × the pixels", growth[1] / growth[0], 4.5)


def recurrence(repeats: int, say: Report) -> Iterator[Row]:
    """A training step of `JourneySSM` at 8,192 tokens against one at 1,024."""
    say("recurrence")

    def step(tokens: int) -> Callable[[], None]:
        layer, x = JourneySSM(256, heads=4), torch.randn(1, tokens, 256)
        return lambda: layer(x)[0].square().mean().backward()

    best = fastest({str(n): step(n) for n in (1024, 8192)}, repeats)
    yield Row("JourneySSM: step at 8,192 tokens / at 1,024", best["8192"] / best["1024"], 9.0)
