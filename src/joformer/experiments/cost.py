"""What a step takes: several models taking turns in one process, the best turn of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from joformer._seeding import reseed
from joformer.bench._measure import fastest, keep_freed_memory
from joformer.models import initialise
from joformer.training import Processes

if TYPE_CHECKING:
    from joformer.experiments.tables import Cell

TURNS = 20


def measure(cell: Cell, turns: int = TURNS, warmup: int = 2) -> dict[str, dict[str, float]]:
    """Of each rival of the cell: milliseconds of a training step, how many times those of `cell.config`, parameters.

    Where the recipe has more than one step, also the hours that all of them would take.

    All models take turns, forward, backward and AdamW, and the best of their turns counts: what else happens on the
    machine only ever adds time.
    """
    keep_freed_memory()
    processes, task = Processes(cell.recipe.precision), cell.source.task()
    task.to(processes.device)
    batch = task.batch(cell.seed, 0, 0, 1)
    counts: dict[str, int] = {}

    def step_of(name: str, config: Any) -> Callable[[], object]:
        model = initialise(config.build(), cell.seed).to(processes.device).train()
        counts[name] = sum(weight.numel() for weight in model.parameters())
        if cell.recipe.compile:
            model.compile()
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

    steps = {name: step_of(name, config) for name, config in (("", cell.config), *cell.rivals)}
    best = fastest(steps, turns, warmup)
    return {
        name: {
            "ratio": best[name] / best[""],
            "ms": 1000 * best[name],
            **({"hours": best[name] * cell.recipe.total / 3600} if cell.recipe.total > 1 else {}),
            "parameters": float(counts[name]),
            "extra_parameters": float(counts[name] - counts[""]),
        }
        for name, _ in cell.rivals
    }
