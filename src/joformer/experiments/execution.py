"""How tables are run on the hardware that is there.

    Execution(processes=8, accumulate=2)    speed and memory alone: no part of what a cell is
    adapted(table, batch=256)               another optimisation: other cells, described as such

The global batch is a table's own or the one that was given, whatever the number of processes and of parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from joformer.experiments.tables import Cell, Table
from joformer.training import Recipe
from joformer.training.recipe import Precision


@dataclass(frozen=True)
class Execution:
    """How a cell is run, as far as that changes no more of its result than the last bits, and what dropout drops.

    Attributes:
        processes: How many processes share the batch of a cell.
        shard: Give each of them a shard of the model (FSDP2) instead of a copy (DDP).
        accumulate: Parts in which each works through its share of the batch.
        workers: Processes that decode streamed images for each of them; None for as many as their share of the cores.
        drift: Resume a cell although its bits cannot be the same, as with another number of processes.

    Raises:
        ValueError: If a number is too small, or one process should have a shard.

    Example:
        >>> Execution(processes=4, accumulate=2).parts
        8
    """

    processes: int = 1
    shard: bool = False
    accumulate: int = 1
    workers: int | None = None
    drift: bool = False

    def __post_init__(self) -> None:
        for name in ("processes", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"--workers must be 0 or more, got {self.workers}")
        if self.shard and self.processes == 1:
            raise ValueError("--shard divides a model among processes: give --processes 2 or more")

    @property
    def parts(self) -> int:
        """Into how many parts a batch is divided."""
        return self.processes * self.accumulate

    def of(self, cell: Cell) -> Execution:
        """That of this cell: times are measured in one process, on the whole batch."""
        return replace(self, processes=1, shard=False, accumulate=1) if cell.alone else self

    def check(self, tables: Iterable[Table]) -> None:
        """Raises ValueError, before anything is run, where a batch of these tables cannot be divided."""
        for table in tables:
            divided = {cell.source: cell for cell in table.cells if self.of(cell).parts > 1}
            for source, cell in divided.items():
                try:
                    source.task().check(cell.config, range(self.parts), self.parts)
                except ValueError as error:
                    raise ValueError(f"{table.name}: {error}") from None


def adapted(
    table: Table,
    *,
    batch: int | None = None,
    precision: Precision | None = None,
    compiled: bool = False,
    deterministic: bool = True,
    same_steps: bool = False,
) -> Table:
    """The table with cells of another recipe, where one is asked for, and a note that says so.

    With another batch the samples seen are as many: everything counted in steps is multiplied by old / new, unless
    `same_steps`. The learning rate stays, and the paper's figures no longer stand beside ours.

    >>> from joformer.experiments import ImageSource, plan
    >>> cell = Cell("a", "", 0, source=ImageSource("digits", batch=128), recipe=Recipe(steps=100, warmup=10))
    >>> other = adapted(plan("t", "T", "accuracy", [cell], comparable=True), batch=32)
    >>> other.cells[0].source.batch, other.cells[0].recipe.steps, other.cells[0].recipe.warmup, other.comparable
    (32, 400, 40, False)
    """
    if batch is not None and batch < 1:
        raise ValueError(f"--batch must be 1 or more, got {batch}")

    def changed(cell: Cell) -> Cell:
        recipe, source = cell.recipe, cell.source
        if batch is not None and batch != source.batch:
            recipe = recipe if same_steps or cell.alone else _stretched(recipe, source.batch / batch)
            source = replace(source, batch=batch)
        recipe = replace(
            recipe,
            precision=precision or recipe.precision,
            compile=compiled or recipe.compile,
            deterministic=recipe.deterministic and (deterministic or cell.alone),  # times are measured without it
        )
        return replace(cell, source=source, recipe=recipe)

    cells = tuple(map(changed, table.cells))
    if cells == table.cells:
        return table
    before, after = table.cells[0], cells[0]
    same = before.source.batch == after.source.batch
    notes = [] if same else [_of_batch(before, after, same_steps)]
    if after.recipe.precision != before.recipe.precision:
        notes.append(f"Run in {after.recipe.precision}; the table has {before.recipe.precision}.")
    if after.recipe.compile != before.recipe.compile:
        notes.append("Models are compiled.")
    if after.recipe.deterministic != before.recipe.deterministic:
        notes.append("Not deterministic: the same command may give other last bits.")
    return replace(table, cells=cells, comparable=table.comparable and same, notes=(*notes, *table.notes))


def _stretched(recipe: Recipe, ratio: float) -> Recipe:
    """The recipe with all that is counted in steps multiplied by the ratio."""

    def times(steps: int | str) -> int:
        return max(1, round(int(steps) * ratio))

    every: dict[str, Any] = {
        name: times(getattr(recipe, name)) for name in ("log_every", "evaluate_every", "save_every")
    }
    warmup = times(recipe.warmup) if recipe.warmup else 0
    if not recipe.stages:
        return replace(recipe, steps=times(recipe.steps), warmup=warmup, **every)
    written = (stage.partition(":") for stage in recipe.stages)
    return replace(recipe, stages=tuple(f"{times(steps)}:{rest}" for steps, _, rest in written), warmup=warmup, **every)


def _of_batch(before: Cell, after: Cell, same_steps: bool) -> str:
    new, old = after.recipe.total, before.recipe.total
    how = f"{new:,} steps instead of {old:,}, so that as many samples are seen, and the same learning rate"
    if same_steps:
        how = "as many steps and the same learning rate"
    what = f"Run with a batch of {after.source.batch}, not the table's {before.source.batch}"
    return (
        f"{what if after.alone else f'{what}: {how}'}. "
        "That is not the paper's recipe; steps and batch in the notes below are the table's own."
    )
