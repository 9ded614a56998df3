"""`joformer reproduce`: the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Literal

import tyro

from joformer._log import logger
from joformer.cli.grid import Engine, chosen, finish, run_tables, show_cells


@dataclass(frozen=True)
class Reproduce:
    """The tables of the paper, with seeds and intervals: mnist, cifar100, imagenet, wikipedia, length, overhead; and
    which side of attention does the work (transport), the paper's hierarchy trained (hierarchy), knowledge graphs
    (relations), sounds (speech). All of them, unless some are named.

    On embedded data in ten minutes on two cores; interrupted, the same command resumes. Example:
    joformer reproduce mnist wikipedia --data ~/data --seeds 5 --out runs/mine

    Attributes:
        tables: Which tables; all by default.
        scale: laptop: small models, short runs, the same code. paper: its models, data and recipes, for GPUs.
        data: A folder that holds mnist, cifar100, imagenet, enwik8, wikitext-2 or fsdd, or for one table its
            data itself; what is not there is embedded data or, at the paper's scale, the hub's.
        seeds: How many seeds: 0, 1, …
        steps: Steps of every run, instead of the scale's.
        only: Run these cells alone, by name or pattern: mnist/learned/*
        jobs: Processes at work at once; as many as there are GPUs, or cores, by default.
        engine: local: processes here. ray: the cluster of RAY_ADDRESS, or a small one started here.
        out: Where everything is kept; the report too.
        dry_run: Print the cells and stop.
        json: Print the report as JSON instead of sentences.
    """

    tables: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    scale: Literal["laptop", "paper"] = "laptop"
    data: Path | None = None
    seeds: int = 3
    steps: int | None = None
    only: tuple[str, ...] = ()
    jobs: int | None = None
    engine: Engine = "local"
    out: Path = Path("runs/reproduce")
    dry_run: bool = False
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer.experiments import TABLES

        names = self.tables or tuple(TABLES)
        unknown = [name for name in names if name not in TABLES]
        if unknown:
            raise ValueError(f"there is no table {unknown[0]!r}: choose from {', '.join(TABLES)}")
        if self.seeds < 1 or (self.steps is not None and self.steps < 1):
            raise ValueError(f"--seeds and --steps are 1 or more, got {self.seeds} and {self.steps}")
        # Data of tables of which nothing is wanted need not be there.
        wanted = [name for name in dict.fromkeys(names) if not self.only or any(_of(name, one) for one in self.only)]
        made = {
            name: TABLES[name](self.scale, self.data, range(self.seeds), self.steps, len(names) == 1)
            for name in wanted or names
        }
        every = [table for several in made.values() for table in several]
        if self.data is not None and not any(Path(table.cells[0].source.data).is_absolute() for table in every):
            known = "mnist, cifar100, imagenet, enwik8, wikitext-2 or fsdd"
            raise ValueError(f"--data {self.data} has nothing for {', '.join(names)}: give a folder that holds {known}")
        tables = [table for name, several in made.items() for table in chosen(several, self, tables=[name])]
        if not tables:
            like = every[0].cells[0].name
            raise ValueError(f"--only {' '.join(self.only)} is no cell of these tables: they are called like {like}")
        if self.dry_run:
            show_cells(tables)
            return 0
        if self.data is not None:
            for table in tables:
                logger.info(f"{table.name}: {table.cells[0].source.data}")
        return finish(self.out, run_tables(tables, self), as_json=self.json, only=self.only)


def _of(table: str, pattern: str) -> bool:
    """Whether a pattern of cells may mean cells of this table, or of one that belongs to it, on whatever data."""
    first = pattern.partition("/")[0]
    return fnmatch(table, first) or first.startswith(f"{table}-") or first.endswith(f"-{table}")
