"""What surrounds a training step: the loop's own work, and augmentation.

loop            train() as a person calls it (batches from text, metrics, bar, checks of the loss) over the bare step:
                forward, backward, clipping, AdamW on one batch; the LM of 4 layers × 256 × 512 tokens
augmentation    all of Setup B (crop, flip, RandAugment, erasing, mixup; random numbers included) over the step of the
                smallest ViT of that setup: dim 32, batch 128
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._log import logger
from joformer.bench._measure import Effort, Pair, Row, compare, gather, ratio, timed
from joformer.bench._training import CONFIG, update
from joformer.models import JoFormerLM, JoFormerViT, ViTConfig

STEPS = 10


def looping(effort: Effort) -> Iterator[Row]:
    """A step inside `train` over the bare step that is taken, each time, before the next one of `train` begins."""
    logger.info("the loop")
    import numpy as np

    from joformer.training import LanguageTask, Processes, Recipe, Text, Tokenizer, train
    from joformer.training.state import State

    class Alternating(LanguageTask):
        """The task; when a step requests its batch, the one before it has ended, and a bare one is timed between."""

        def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
            ended = time.perf_counter()
            if step > 1:  # the first is slower, here and there
                logs.append(math.log((ended - begun[-1]) / bare()))
            begun.append(time.perf_counter())
            return super().batch(seed, step, part, parts)

    logs: list[float] = []
    begun: list[float] = []
    ids = np.random.default_rng(0).integers(256, size=100_000).astype(np.uint8)
    text = Text(ids, ids[:2000], ids[:2000], Tokenizer.of_bytes(), "random")
    task = Alternating(text, context=512, batch=8, held_out=1)
    # Logged at every step, ten times as often as by default, so that its cost shows.
    recipe = Recipe(steps=STEPS, log_every=1)
    state = State(JoFormerLM(CONFIG), recipe, Processes())
    tokens, targets = LanguageTask.batch(task, 0, 0, 0, 1)

    def step() -> None:
        state.model(tokens, targets=targets).backward()
        state.norm()
        state.update(1e-4)

    bare, pair = timed(step), ("train", "bare")
    bare()

    def trained() -> dict[Pair, list[float]]:
        logs.clear()
        with TemporaryDirectory() as folder:
            train(CONFIG, task, recipe, Path(folder) / "run")
        return {pair: list(logs)}

    found = gather(trained, {pair: 1.03}, effort)
    yield Row.of("a step of train() / the bare step", ratio(found[pair]), 1.03)


def augmenting(effort: Effort) -> Iterator[Row]:
    """Augmentation of a batch over the training step it is for."""
    logger.info("augmentation")
    from joformer.training import Augment, Mix

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (128, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 100, (128,), generator=generator)
    augment, mix = Augment(), Mix()

    def augmented() -> tuple[Tensor, Tensor]:
        plan, mixing = augment.plan(128, generator), mix.plan(128, generator)
        return mix(augment(images, plan), labels, mixing, classes=100)

    x, targets = augmented()
    model: nn.Module = JoFormerViT(ViTConfig(shape=(32, 32), patch=(4, 4), dim=32, layers=4, heads=4, classes=100))
    step = update(model, lambda: F.cross_entropy(model(x), targets))
    yield compare("augmentation / training step, Setup B at D = 32, batch 128", augmented, step, effort, 0.2)
    try:
        from kornia.augmentation.auto import RandAugment
    except ImportError:
        return
    logger.info("augmentation by kornia")
    random, floats = RandAugment(n=2, m=9), images / 255
    name = "kornia's RandAugment alone, each image its own operations / training step"
    yield compare(name, lambda: [random(image) for image in floats.split(1)], step, effort)
