"""What a step takes: a model and the one it is compared with, taking turns in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from joformer._seeding import reseed
from joformer.bench._measure import fastest, keep_freed_memory
from joformer.experiments.cells import Cell, parameters
from joformer.models import initialise
from joformer.models._saving import MODELS, written
from joformer.training import Processes

TURNS = 20


def measure(cell: Cell) -> dict[str, float]:
    """Milliseconds of a training step, and how many times those of `cell.against`: the best of turns taken by both."""
    keep_freed_memory()
    processes, task = Processes(cell.recipe.precision), cell.source.task()
    task.to(processes.device)
    batch = task.batch(cell.seed, 0, 0, 1)

    def step_of(config: Any) -> Callable[[], object]:
        model = initialise(MODELS[written(config)["model"]](config), cell.seed).to(processes.device).train()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            reseed(cell.seed, "cost")
            with processes.autocast():
                loss = task.loss(model, batch)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if processes.device.type == "cuda":
                torch.cuda.synchronize()

        return step

    best = fastest({"ours": step_of(cell.config), "theirs": step_of(cell.against)}, repeats=TURNS)
    ratio = best["ours"] / best["theirs"]
    return {
        "ratio": ratio,
        "ms": 1000 * best["ours"],
        "extra_parameters": float(cell.parameters - parameters(cell.against)),
    }
