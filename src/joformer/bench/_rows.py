"""The figures of the bench, each a function that yields rows; a bar is the ratio the project promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from joformer import positions
from joformer._log import logger
from joformer.algebra import Torus, scan
from joformer.attention import JourneyAttention, JourneyCache, journey_attention
from joformer.bench import _transforms as transforms
from joformer.bench._measure import Effort, Pair, Row, Run, compare, peak_bytes, ratio, take_turns, timed
from joformer.bench._models import Peer, Transformer, block_of, peers, training_step
from joformer.bench._place import CPU, Place, Shape
from joformer.bench._running import augmenting, looping
from joformer.bench._traffic import traffic
from joformer.bench._training import generating, llama, starting, transporting
from joformer.frames import FixedFrames, FlatFrames, NoFrames
from joformer.models._blocks import Block
from joformer.rotation import rotate, rotate_packed_

STEP_BARS: dict[Pair, float | None] = {("both", "none"): 1.03, ("both", "scores"): 1.02}
ROTATION_BARS = {"Hugging Face": 0.85}
DECODING_BARS = {768: 1.05}


def training(effort: Effort, at: Place = CPU, *, compiled: bool) -> Iterator[Row]:
    """A training step with both sides transported, against none and against scores alone."""
    how = "compiled" if compiled else "eager"
    logs: dict[Pair, list[list[float]]] = {}
    for shape in at.shapes:
        logger.info(f"training step, {how}, {shape.name}")
        others = {} if compiled else peers(shape, at=at)
        models = {t: Transformer(shape, t) for t in ("none", "scores", "both")}
        models |= {name: Transformer(shape, "none", peer) for name, peer in others.items()}
        torch._dynamo.reset()
        steps = {name: timed(training_step(model, shape, compiled, at), effort.clock) for name, model in models.items()}
        bars: dict[Pair, float | None] = STEP_BARS | {(peer, "none"): None for peer in sorted(others)}
        found = take_turns(steps, bars, effort)
        for pair in found:
            logs.setdefault(pair, []).append(found[pair])
        for over, under in STEP_BARS:
            yield Row.of(f"step {how}, {shape.name}: {over} / {under}", ratio(found[over, under]))
    for (over, under), groups in logs.items():
        named = over if (over, under) in STEP_BARS else f"{over} on q and k"
        bar = STEP_BARS.get((over, under))
        yield Row.of(f"step {how}: {named} / {under}, geometric mean", ratio(*groups), bar)


def rotation(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """q, k, v rotated and o rotated back, forward and backward, against each peer's rotation of q and k alone."""
    logs: dict[Pair, list[list[float]]] = {}
    for shape in at.shapes:
        logger.info(f"rotation alone, {shape.name}")
        runs = {name: timed(run, effort.clock) for name, run in _rotations(shape, at).items()}
        bars = {("ours", peer): ROTATION_BARS.get(peer) for peer in sorted(runs) if peer != "ours"}
        for pair, found in take_turns(runs, bars, effort).items():
            logs.setdefault(pair, []).append(found)
    for (_, peer), groups in logs.items():
        name = f"rotation of q, k, v, o / {peer}'s of q, k, geometric mean"
        yield Row.of(name, ratio(*groups), ROTATION_BARS.get(peer))


def _rotations(shape: Shape, at: Place) -> Mapping[str, Run]:
    frames = FixedFrames(shape.head_dim, axes=shape.axes)(shape.positions()).to(at.device)
    heads, widths = (shape.batch, shape.tokens, shape.heads, shape.head_dim), [(shape.heads, shape.head_dim)] * 3
    random = partial(torch.randn, dtype=at.dtype, device=at.device)
    qkv = random(shape.batch, shape.tokens, 3 * shape.dim, requires_grad=True)
    o = random(heads, requires_grad=True)
    q, k = (random(heads).transpose(1, 2).requires_grad_() for _ in range(2))
    gradient = random(heads)

    def ours() -> None:
        # A copy stands for the projection's fresh output, which the module rotates in place.
        parts = rotate_packed_(qkv.clone(), widths, [frames] * 3)
        out = rotate(o, frames, inverse=True)
        torch.autograd.grad((*parts, out), (qkv, o), (gradient,) * 4)

    def theirs(peer: Peer) -> None:
        torch.autograd.grad(peer(q, k), (q, k), (gradient.transpose(1, 2),) * 2)

    return {"ours": ours} | {name: partial(theirs, peer) for name, peer in peers(shape, at=at).items()}


def memory(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """Peak memory of a training step, both against none."""
    ratios = []
    for shape in at.shapes:
        logger.info(f"memory, {shape.name}")
        peaks = {}
        for transport in ("none", "both"):
            model = Transformer(shape, transport)
            step = training_step(model, shape, at=at)
            step()
            model.zero_grad(set_to_none=True)  # memory from before the count must not be freed in it
            peaks[transport] = peak_bytes(step, at.device)
        ratios.append(peaks["both"] / peaks["none"])
        yield Row(f"peak memory, {shape.name}: both / none", ratios[-1])
    yield Row("peak memory of a training step: both / none, worst shape", max(ratios), 1.05)


def drift(effort: Effort) -> Iterator[Row]:
    """How far scores change when all positions shift by 1,048,576; relative to ‖q‖‖k‖, fp32."""
    logger.info("drift")
    shift, shape = 1_048_576, Shape("drift", batch=1, tokens=128, dim=256, heads=4, axes=1)
    q, k = torch.randn(2, 1, shape.tokens, 4, shape.head_dim, generator=torch.Generator().manual_seed(0))
    size = q.norm(dim=-1).transpose(1, 2)[..., :, None] * k.norm(dim=-1).transpose(1, 2)[..., None, :]

    def worst(score: Callable[[int], Tensor]) -> float:
        return ((score(shift) - score(0)).abs() / size).max().item()

    def ours(offset: int) -> Tensor:
        frames = FixedFrames(shape.head_dim)(positions.sequence(shape.tokens, offset))
        return torch.einsum("bihd,bjhd->bhij", rotate(q, frames), rotate(k, frames))

    def theirs(offset: int) -> Tensor:
        rotated = peers(shape, offset)["Hugging Face"](q.transpose(1, 2), k.transpose(1, 2))
        return torch.einsum("bhid,bhjd->bhij", *rotated)

    yield Row("score drift after a shift of 1,048,576, fp32", worst(ours), 1e-6)
    if "Hugging Face" in peers(shape):
        yield Row("score drift of Hugging Face", worst(theirs))


def window(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """Window 32: a training step at 8,192 tokens against one at 1,024."""
    logger.info("window")

    def step(tokens: int) -> Callable[[], None]:
        random = partial(torch.randn, 1, tokens, 4, 64, dtype=at.dtype, device=at.device)
        q, k, v = (random(requires_grad=True) for _ in range(3))
        frames, gradient = FixedFrames(64)(positions.sequence(tokens)).to(at.device), random()

        def run() -> None:
            out = journey_attention(q, k, v, frames, causal=True, window=32)
            torch.autograd.grad(out, (q, k, v), gradient)

        return run

    yield compare("window 32: step at 8,192 tokens / at 1,024", step(8192), step(1024), effort, 9.0)


def decoding(effort: Effort, at: Place = CPU) -> Iterator[Row]:
    """One decoded token after those cached, both against none, four layers; frames are made ahead for all positions.

    At the width of the paper's language model (768), and at 256, where a layer takes so little time that the
    interpreter's share in rotating one token shows.
    """
    layers = 4
    for dim, heads in at.decoded:
        logger.info(f"decoding, {dim} wide")
        room = at.cached + 256
        filled = torch.randn(1, at.cached, heads, dim // heads, dtype=at.dtype, device=at.device)
        variants: dict[str, Callable[[], Tensor]] = {}
        for transport in ("none", "both"):
            module = NoFrames() if transport == "none" else FixedFrames(dim // heads)
            frames = module(positions.sequence(room)).to(at.device)
            attentions = [JourneyAttention(dim, heads, causal=True, transport=transport) for _ in range(layers)]
            blocks = [block_of(attention).eval().to(at.device, at.dtype) for attention in attentions]
            caches = [JourneyCache(length=room) for _ in range(layers)]
            variants[transport] = partial(_token, filled.new_ones(1, 1, dim), frames, blocks, caches, filled)
        name = f"one decoded token at {at.cached:,} cached, {dim} wide: both / none"
        yield compare(name, variants["both"], variants["none"], effort, DECODING_BARS.get(dim))


@torch.no_grad()
def _token(x: Tensor, frames: FlatFrames, blocks: list[Block], caches: list[JourneyCache], filled: Tensor) -> Tensor:
    if caches[0].tokens in (0, caches[0].length):  # full: from the start again, an outlier now and then
        for cache in caches:
            cache.reset()
            cache.update(filled, filled)
    at = caches[0].tokens
    here = frames.select(slice(at, at + 1))
    for block, cache in zip(blocks, caches, strict=True):
        x = block(x, here, cache=cache)
    return x


def scanning(effort: Effort) -> Iterator[Row]:
    """All prefixes on the torus at once, against the loop that multiplies them one by one."""
    logger.info("scan")
    group, steps = Torus(32), torch.randn(65_536, 32)

    def loop() -> Tensor:
        at, prefixes = group.identity(), []
        for step in steps:
            prefixes.append(at)
            at = group.multiply(at, step)
        return torch.stack(prefixes)

    name = "scan of 65,536 steps × 32 planes: speed-up over the loop of Torus.multiply"
    yield compare(name, loop, lambda: scan(group, steps), effort, 200.0, higher=True)


def importing(effort: Effort) -> Iterator[Row]:
    """`import joformer` against `import torch`, each in a fresh interpreter."""
    logger.info("import")

    def fresh(code: str) -> Callable[[], object]:
        return partial(subprocess.run, [sys.executable, "-c", code], check=True)

    # joformer imports its names lazily: all of them are to be counted.
    yield compare("import joformer / import torch", fresh("from joformer import *"), fresh("import torch"), effort, 1.1)


FIGURES: dict[str, Callable[..., Iterator[Row]]] = {
    "drift": drift,
    "memory": memory,
    "eager": partial(training, compiled=False),
    "compiled": partial(training, compiled=True),
    "rotation": rotation,
    "window": window,
    "decoding": decoding,
    "scan": scanning,
    "spectral": transforms.spectral,
    "monoidal": transforms.monoidal,
    "recurrence": transforms.recurrence,
    "llama": llama,
    "generate": generating,
    "transport": transporting,
    "loop": looping,
    "augmentation": augmenting,
    "import": importing,
    "start": starting,
    "traffic": traffic,
}
ANYWHERE = ("memory", "eager", "compiled", "rotation", "window", "decoding", "llama", "generate", "transport")
"""Figures that take a place beside the effort: what a GPU is for."""
