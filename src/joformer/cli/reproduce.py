"""`joformer reproduce`: the tables of the paper."""

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
    """Run the paper's tables, with seeds and intervals: mnist, cifar100, imagenet, wikipedia, length, overhead; and
    knowledge graphs (relations) and sounds (speech). All of these run by default. Others run only if named: which side
    of attention does the work (transport), the paper's hierarchy, trained (hierarchy), what one layer can
    do (separation), and other domains: sets in space (points), keywords in a stream (spotting), video, syntax trees
    (trees), images with text (pairs).

    Takes ten minutes with embedded data on two cores; if interrupted, the same command resumes. Example:
    joformer reproduce mnist wikipedia --data ~/data --seeds 5 --out runs/mine

    Attributes:
        tables: Which tables; by default all except transport, hierarchy, separation and those of other domains.
        scale: laptop: small models, short runs, the same code. paper: its models, data and recipes, for GPUs.
        data: A folder or an address that holds mnist, cifar100, imagenet, enwik8, wikitext-2 or fsdd, or, for one
            table, the data itself. For anything missing, embedded data is used, or the hub's at the paper's scale.
        seeds: Number of seeds, 0, 1, …, three by default; or several numbers, which are the seeds themselves: 42 43 44.
            To run one seed only: --seeds 43 --only '*/seed-42'.
        steps: Steps per run, instead of the scale's.
        batch: Global batch size: samples per step over all processes, instead of the table's. The number of samples
            seen stays the same, in more or fewer steps, unless --steps is given; the learning rate stays as it is, and
            the paper's figures are not shown.
        precision: Precision of matrix products, instead of the table's.
        compile: Compile the models.
        deterministic: Use only deterministic operations. --no-deterministic allows others, which may be faster on
            GPUs; the same command may then give other bits.
        processes: Processes per run, one per GPU if there are GPUs; they share its batch.
        shard: Give each process of a run a shard of the model (FSDP2) instead of a copy (DDP).
        accumulate: Gradient accumulation: split each process's share of a batch into this many parts, to save memory.
        workers: Processes that decode streamed images, per process of a run; by default its share of the cores.
        drift: Resume runs even if their bits cannot be the same: with other processes, threads or machine than before.
        only: Run only these, by name or pattern: mnist/learned/*
        jobs: Number of runs in parallel; by default as many as there are GPUs, or cores, with --processes for each.
        engine: local: processes on this machine. ray: the cluster at RAY_ADDRESS, or a small one started here. slurm:
            one job per run.
        slurm: Options of sbatch for --engine slurm: time=MINUTES partition=NAME account=NAME …
        out: Where to keep everything, including the report: a folder or an address (s3://…).
        dry_run: Print which models would be run, with their parameters, steps and seeds, and stop.
        smoke: Rehearse: two steps and one evaluation of every setting on stand-ins for the data, or on --data, and a
            table of the memory, hours and disk that the real runs need. Nothing is written to --out.
        throughput: TFLOP/s that a GPU reaches in 16-bit precision, for the hours estimated by --smoke.
        json: Print the report (with --dry-run, what would be run) as JSON instead of sentences.
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
            raise ValueError(f"--smoke reads a folder and {self.data} is an address: download a part, or leave it out")
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
        # Tables without selected cells do not need their data.
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
            show_cells(tables, self.json)
            return 0
        if self.smoke:
            return show_rehearsal(tables, execution, self.throughput, as_json=self.json)
        if self.data is not None:
            for table in tables:
                logger.info(f"{table.name}: {table.cells[0].source.data}")
        return finish(self.out, run_tables(tables, self, execution), as_json=self.json, only=self.only)


def _seeds(given: tuple[int, ...]) -> Sequence[int]:
    """The seeds: one number is a count, several numbers are the seeds themselves."""
    if len(given) == 1 and given[0] > 0:
        return range(given[0])
    if len(given) < 2 or min(given) < 0 or len({*given}) < len(given):
        found = " ".join(map(str, given)) or "nothing"
        raise ValueError(f"--seeds takes a number of seeds, 1 or more, or several different seeds, got {found}")
    return given


def _is_given(data: str) -> bool:
    """Whether this is the user's own data, neither embedded nor from the hub."""
    return is_address(data) or Path(data).is_absolute()


def _of(table: str, pattern: str) -> bool:
    """Whether a pattern of cells may match cells of this table, or of one of its variants, on any data."""
    first = pattern.partition("/")[0]
    return fnmatch(table, first) or first.startswith(f"{table}-") or first.endswith(f"-{table}")
