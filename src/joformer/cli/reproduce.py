"""`joformer reproduce`: the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from joformer._log import logger
from joformer._remote import is_address, require_place
from joformer.cli.grid import Engine, check_only, chosen, finish, run_tables, show_cells, show_rehearsal
from joformer.cli.options import Place


@dataclass(frozen=True)
class Reproduce:
    """The tables of the paper, with seeds and intervals: mnist, cifar100, imagenet, wikipedia, length, overhead; and
    knowledge graphs (relations) and sounds (speech). All of these, unless some are named; and, where they are named,
    which side of attention does the work (transport), the paper's hierarchy trained (hierarchy), what one layer can do
    (separation), and other domains: sets in space (points), keywords in a stream (spotting),
    video, syntax trees (trees), images with text (pairs).

    On embedded data in ten minutes on two cores; interrupted, the same command resumes. Example:
    joformer reproduce mnist wikipedia --data ~/data --seeds 5 --out runs/mine

    Attributes:
        tables: Which tables; all but transport, hierarchy, separation and those of other domains by default.
        scale: laptop: small models, short runs, the same code. paper: its models, data and recipes, for GPUs.
        data: A folder or an address that holds mnist, cifar100, imagenet, enwik8, wikitext-2 or fsdd, or for one table
            its data itself; what is not there is embedded data or, at the paper's scale, the hub's.
        seeds: How many seeds, 0, 1, …; or several numbers, which are the seeds themselves: 42 43 44. Three by default;
            one seed alone is --seeds 43 --only '*/seed-42'.
        steps: Steps of every run, instead of the scale's.
        batch: Samples per step of all processes together, instead of the table's. As many samples are seen, in more or
            fewer steps, unless --steps; the learning rate stays as it is, and the paper's figures are not shown.
        precision: What matrix products are computed in, instead of the table's.
        compile: Compile the models.
        deterministic: Use only operations whose result does not depend on chance; --no-deterministic allows others,
            which may be faster on GPUs, and the same command may then give other bits.
        processes: Processes of every run, on a GPU each where there are some; they share its batch.
        shard: Give each process of a run a shard of the model (FSDP2) instead of a copy (DDP).
        accumulate: Parts in which each process works through its share of a batch, to save memory.
        workers: Processes that decode streamed images, for each process of a run; its share of the cores by default.
        drift: Resume runs although their bits cannot be the same: other processes, threads or machine than before.
        only: Do these runs alone, by name or pattern: mnist/learned/*
        jobs: Runs at work at once; as many as there are GPUs, or cores, for --processes each, by default.
        engine: local: processes here. ray: the cluster of RAY_ADDRESS, or a small one started here. slurm: a job for
            every run.
        slurm: Options of sbatch for --engine slurm: time=MINUTES partition=NAME account=NAME …
        out: Where everything is kept, a folder or an address (s3://…); the report too.
        dry_run: Print which models would be run, their parameters, steps and seeds, and stop.
        smoke: Rehearse: two steps and an evaluation of every setting on stand-ins for the data, or on --data, and a
            table of the memory, hours and disk that the real runs need. Nothing is written into --out.
        throughput: TFLOP/s that a card reaches in 16 bits, for the hours of --smoke.
        json: Print the report as JSON instead of sentences.
    """

    tables: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    scale: Literal["laptop", "paper"] = "laptop"
    data: Place | None = None
    seeds: tuple[int, ...] = (3,)
    steps: int | None = None
    batch: int | None = None
    precision: Literal["fp32", "bf16", "fp16"] | None = None
    compile: bool = False
    deterministic: bool = True
    processes: int = 1
    shard: bool = False
    accumulate: int = 1
    workers: int | None = None
    drift: bool = False
    only: tuple[str, ...] = ()
    jobs: int | None = None
    engine: Engine = "local"
    slurm: tuple[str, ...] = ()
    out: Place = "runs/reproduce"
    dry_run: bool = False
    smoke: bool = False
    throughput: float = 40.0
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer.experiments import TABLES
        from joformer.experiments.standins import standing_in

        if not self.smoke:
            return self._run()
        given = None if self.data is None else Path(self.data)
        if given is not None and is_address(str(self.data)):
            raise ValueError(f"--smoke reads a folder and {self.data} is an address: fetch some of it, or leave it out")
        with standing_in(self.tables or tuple(TABLES), given) as data:
            return replace(self, data=data)._run()

    def _run(self) -> int:
        from joformer.experiments import NAMED_ONLY, TABLES
        from joformer.experiments.execution import Execution, adapted

        names = self.tables or tuple(name for name in TABLES if name not in NAMED_ONLY)
        unknown = [name for name in names if name not in TABLES]
        if unknown:
            raise ValueError(f"there is no table {unknown[0]!r}: choose from {', '.join(TABLES)}")
        seeds = _seeds(self.seeds)
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"--steps must be 1 or more, got {self.steps}")
        execution = Execution(self.processes, self.shard, self.accumulate, self.workers, self.drift)
        require_place(self.out)
        # Data of tables of which nothing is wanted need not be there.
        wanted = [name for name in dict.fromkeys(names) if not self.only or any(_of(name, one) for one in self.only)]
        made = {
            name: TABLES[name](self.scale, self.data, seeds, self.steps, len(names) == 1) for name in wanted or names
        }
        every = [table for several in made.values() for table in several]
        if self.data is not None and not any(_is_given(table.cells[0].source.data) for table in every):
            known = "mnist, cifar100, imagenet, enwik8, wikitext-2 or fsdd"
            raise ValueError(f"--data {self.data} has nothing for {', '.join(names)}: give a folder that holds {known}")
        check_only(self.only, every)
        tables = [table for name, several in made.items() for table in chosen(several, self, tables=[name])]
        other: dict[str, Any] = {"batch": self.batch, "precision": self.precision, "compiled": self.compile}
        other |= {"deterministic": self.deterministic, "same_steps": self.steps is not None}
        tables = [adapted(table, **other) for table in tables]
        execution.check(tables)
        if self.dry_run:
            show_cells(tables)
            return 0
        if self.smoke:
            return show_rehearsal(tables, execution, self.throughput, as_json=self.json)
        if self.data is not None:
            for table in tables:
                logger.info(f"{table.name}: {table.cells[0].source.data}")
        return finish(self.out, run_tables(tables, self, execution), as_json=self.json, only=self.only)


def _seeds(given: tuple[int, ...]) -> Sequence[int]:
    """The seeds: as many as one number says, or several numbers themselves."""
    if len(given) == 1 and given[0] > 0:
        return range(given[0])
    if len(given) < 2 or min(given) < 0 or len({*given}) < len(given):
        found = " ".join(map(str, given)) or "nothing"
        raise ValueError(f"--seeds takes a number of seeds, 1 or more, or several different seeds, got {found}")
    return given


def _is_given(data: str) -> bool:
    """Whether it is the user's own, and neither embedded nor the hub's."""
    return is_address(data) or Path(data).is_absolute()


def _of(table: str, pattern: str) -> bool:
    """Whether a pattern of cells may mean cells of this table, or of one that belongs to it, on whatever data."""
    first = pattern.partition("/")[0]
    return fnmatch(table, first) or first.startswith(f"{table}-") or first.endswith(f"-{table}")
