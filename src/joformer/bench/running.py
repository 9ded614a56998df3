"""What surrounds a training step: the loop's own work, and augmentation.

loop            train() as a person calls it (batches from text, metrics, bar, checks of the loss) over the bare step:
                forward, backward, clipping, AdamW on one batch; the LM of 4 layers × 256 × 512 tokens
augmentation    all of Setup B (crop, flip, RandAugment, erasing, mixup; the draws too) over the step of the smallest
                ViT of that setup: dim 32, batch 128
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer.bench.measure import Row, fastest
from joformer.bench.training import CONFIG, update
from joformer.models import JoFormerLM, JoFormerViT, ViTConfig

Report = Callable[[str], None]

STEPS = 8


def looping(repeats: int, say: Report) -> Iterator[Row]:
    """The median step inside `train` over the median bare step, the two taking turns; the best turn of each counts."""
    say("the loop")
    import numpy as np

    from joformer.training import LanguageTask, Processes, Recipe, Text, Tokenizer, train
    from joformer.training.state import State

    class Timed(LanguageTask):
        """The task, noting when each step begins."""

        def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
            moments.append(time.perf_counter())
            return super().batch(seed, step, part, parts)

    moments: list[float] = []
    ids = np.random.default_rng(0).integers(256, size=100_000).astype(np.uint8)
    task = Timed(Text(ids, ids[:2000], ids[:2000], Tokenizer.of_bytes(), "random"), context=512, batch=8, held_out=1)
    # Logged at every step, ten times as often as by default: what it costs is to be seen.
    recipe = Recipe(steps=STEPS, log_every=1)

    def inside() -> float:
        moments.clear()
        with TemporaryDirectory() as folder:
            train(CONFIG, task, recipe, Path(folder) / "run", say=lambda line: None)
        return statistics.median(later - start for start, later in pairwise(moments[1:]))

    def bare() -> float:
        state = State(JoFormerLM(CONFIG), recipe, Processes())
        tokens, targets = task.batch(0, 0, 0, 1)
        took = []
        for _ in range(STEPS):
            start = time.perf_counter()
            state.model(tokens, targets=targets).backward()
            state.norm()
            state.update(1e-4)
            took.append(time.perf_counter() - start)
        return statistics.median(took[1:])

    best = {inside: float("inf"), bare: float("inf")}
    for turn in range(max(2, repeats // 8)):
        for one in (inside, bare) if turn % 2 else (bare, inside):
            best[one] = min(best[one], one())
    yield Row("a step of train() / the bare step", best[inside] / best[bare], 1.03)


def augmenting(repeats: int, say: Report) -> Iterator[Row]:
    """Augmentation of a batch over the training step it is for."""
    say("augmentation")
    from joformer.training import Augment, Mix

    dice = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8, generator=dice)
    labels = torch.randint(0, 100, (128,), generator=dice)
    augment, mix = Augment(), Mix()

    def augmented() -> tuple[Tensor, Tensor]:
        plan, mixing = augment.plan(128, dice), mix.plan(128, dice)
        return mix(augment(images, plan), labels, mixing, classes=100)

    x, targets = augmented()
    model: nn.Module = JoFormerViT(ViTConfig(shape=(32, 32), patch=(4, 4), dim=32, layers=4, heads=4, classes=100))
    step = update(model, lambda: F.cross_entropy(model(x), targets))
    best = fastest({"step": step, "augmentation": augmented}, repeats)
    share = best["augmentation"] / best["step"]
    yield Row("augmentation / training step, Setup B at D = 32, batch 128", share, 0.2)
    try:
        from kornia.augmentation.auto import RandAugment
    except ImportError:
        return
    say("augmentation by kornia")
    random, floats = RandAugment(n=2, m=9), images / 255
    theirs = fastest({"kornia": lambda: [random(image) for image in floats.split(1)]}, 3, warmup=1)["kornia"]
    yield Row("kornia's RandAugment alone, each image its own operations / training step", theirs / best["step"])
