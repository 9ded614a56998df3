"""`joformer compare`: does value transport help on your data?"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joformer._remote import local, require_place
from joformer.cli.grid import Engine, check_only, chosen, finish, run_tables, show_cells
from joformer.cli.growing import note_look
from joformer.cli.options import Place

if TYPE_CHECKING:
    from joformer.experiments import Table
    from joformer.experiments.sources import Source


@dataclass(frozen=True)
class Compare:
    """Does value transport help on your data? Compares RoPE with RoPE + values, on many seeds.

    Parameters, steps, data and seeds are matched. The answer is one sentence: better, worse, equivalent or
    inconclusive, by how much, after how many steps; then whether it lasts, and how long a step takes. Small models,
    a few minutes; if interrupted, the same command resumes. --config FILE reads the options from another run's
    command.toml. Example: joformer compare --data notes.txt --steps 500

    Attributes:
        data: Text, images or sounds: a file, a folder (one folder per class), a table; or stdlib, digits, tones, words.
            Video (a folder of clips, or moving): classes if there are class folders, otherwise the next picture.
            Images with text, or captions. Sets of points (npz), or clouds. Recordings with a table of events: keywords
            in a stream. Syntax trees, or stdlib-trees: RoPE runs over the sequence of all nodes. Triples of a knowledge
            graph, or family: relations that commute against those that need not. `joformer check` shows how your data
            is read.
        kind: How to read ambiguous data: trees for source code and JSON, which are text otherwise; spotting for sounds
            by class, which are strung together and searched for in the stream.
        question: Trees: masked (the kinds of hidden nodes) or misuse (which use of a variable is wrong).
        seeds: Number of seeds: 0, 1, …
        steps: Steps per run.
        longer: Run again for this many times the steps, to see whether the difference lasts; 1 skips this.
        grid: Compare every kind of frames (fixed, learned, projected, cumulative) on scores, values and both.
        looks: Look at the results up to this many times, adding --seeds seeds each time until it is decided; the level
            is adjusted.
        dim: Model width.
        layers: Number of layers.
        heads: Number of heads.
        context: Tokens in a window of text.
        vocab: 256, the default, means bytes; a larger number trains a BPE of that size. Captions have 1000 by default.
        batch: Samples per step: by default 16 windows of text, pieces of a stream or clips, or 64 images or pairs.
        column: The text column of a table; by default "text" (for images "caption"), or the only one.
        label: The class column, if a table has several. For sounds: folder or name, if both could be the class.
        size: Scale and crop all images to this side length; clips to 32 by default.
        length: Video: pictures per clip, 8 by default.
        rate: Sounds: samples per second, 8000 by default.
        seconds: Sounds: how much of each clip to use, from its start; 1.04 by default. Streams: length of the pieces
            that a step reads; 8 by default.
        bands: Sounds: number of frequency bands, 64 by default.
        hop: Sounds: milliseconds between frames, 16 by default.
        lr: Peak learning rate.
        only: Run only these, by name or pattern: 'compare/*-fixed/*'
        jobs: Number of runs in parallel; by default as many as there are GPUs, or cores.
        engine: local: processes on this machine. ray: the cluster at RAY_ADDRESS, or a small one started here. slurm:
            one job per run.
        slurm: Options of sbatch for --engine slurm: time=MINUTES partition=NAME account=NAME …
        out: Where to keep everything, including the report: a folder or an address (s3://…).
        dry_run: Print which models would be run, with their parameters, steps and seeds, and stop.
        json: Print the report (with --dry-run, what would be run) as JSON instead of sentences.
    """

    data: str
    kind: Literal["trees", "spotting"] | None = None
    question: Literal["masked", "misuse"] = "masked"
    seeds: int = 8
    steps: int = 300
    longer: int = 4
    grid: bool = False
    looks: int = 1
    dim: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 128
    vocab: int | None = None
    batch: int | None = None
    column: str | None = None
    label: str | None = None
    size: int | None = None
    length: int | None = None
    rate: int | None = None
    seconds: float | None = None
    bands: int | None = None
    hop: float | None = None
    lr: float = 1e-3
    only: tuple[str, ...] = ()
    jobs: int | None = None
    engine: Engine = "local"
    slurm: tuple[str, ...] = ()
    out: Place = "runs/compare"
    dry_run: bool = False
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        require_place(self.out)
        source = self.source()
        failed = 0
        for look in range(1, self.looks + 1):
            count = look * self.seeds
            tables = self.tables(source, count)
            check_only(self.only, tables)
            planned = chosen(tables, self, seeds=count)
            if self.dry_run:
                show_cells(planned, self.json)
                return 0
            failed = run_tables(planned, self, order=lambda cell: (cell.recipe.total, cell.seed))
            if look < self.looks:
                # Of a later look that broke off, cells may be there already.
                cells = {cell.name for table in planned for cell in table.cells}
                note_look(local(self.out), cells=cells)
                if decided(local(self.out), cells):
                    break
        return finish(self.out, failed, as_json=self.json, only=self.only)

    def tables(self, source: Source, count: int) -> list[Table]:
        """The tables for this many seeds, with all cells; the one that gives the answer comes first."""
        from joformer.experiments import GraphSource, relations
        from joformer.experiments.compare import tables
        from joformer.training import Recipe

        if isinstance(source, GraphSource):
            return [relations.table(source, "laptop", range(count), self.steps, named=False)]
        every = max(1, self.steps // 4)
        recipe = Recipe(
            steps=self.steps, lr=self.lr, end=0.1, warmup=self.steps // 12, weight_decay=0.01, evaluate_every=every,
            save_every=every, keep=1,
        )  # fmt: skip
        shape = {"dim": self.dim, "layers": self.layers, "heads": self.heads}
        return tables(source, range(count), recipe, longer=self.longer, grid=self.grid, looks=self.looks, **shape)

    def source(self) -> Source:
        """What the models are trained on, by the kind of data; raises ValueError if options make no sense."""
        for name in ("seeds", "steps", "longer", "looks"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("dim", "layers", "heads", "context", "batch", "vocab", "size", "length", "seconds"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"--{name} must be above 0, got {getattr(self, name)}")
        from joformer.experiments import (
            GraphSource,
            ImageSource,
            PairsSource,
            PointsSource,
            StreamSource,
            TextSource,
            TreeSource,
            VideoSource,
        )
        from joformer.training import resolve
        from joformer.training.data.clips import has_classes

        found = resolve(self.data, kind="trees" if self.kind == "trees" else None, label=self.label, column=self.column)
        kind, batch = "streams" if self.kind == "spotting" else found.kind, self.batch
        heard = {name: getattr(self, name) for name in ("rate", "bands", "hop")}
        labelled: dict[str, Any] = {"label": self.label}
        # Generated and embedded clips have their own size.
        small = (self.size, self.length) if found.path is None else (self.size or 32, self.length or 8)
        makers: dict[str, Callable[[], Source]] = {
            "text": lambda: TextSource(
                found.spec, vocab=self.vocab or 256, column=self.column, context=self.context, batch=batch or 16
            ),
            "graph": lambda: GraphSource(found.spec, batch=batch or 512),
            "pairs": lambda: PairsSource(
                found.spec, vocab=self.vocab or 1000, column=self.column, size=self.size, batch=batch or 64
            ),
            "points": lambda: PointsSource(found.spec, batch=batch or 64),
            "streams": lambda: StreamSource(
                found.spec, batch=batch or 16, seconds=self.seconds or 8.0, **labelled, **heard
            ),
            "trees": lambda: TreeSource(found.spec, question=self.question, batch=batch or 32),
            "video": lambda: VideoSource(
                found.spec, "class" if has_classes(found) else "next", batch=batch or 16, size=small[0],
                length=small[1], **labelled,
            ),
        }  # fmt: skip
        images = partial(ImageSource, found.spec, batch=batch or 64, size=self.size, **labelled, **heard)
        return makers.get(kind, lambda: images(seconds=self.seconds))()


def decided(out: Path, cells: Collection[str]) -> bool:
    """Whether these cells answer the first question; trivially so if only times were measured."""
    from joformer.experiments.report import analysed
    from joformer.experiments.results import gather

    known = [replace(table, cells=tuple(c for c in table.cells if c.name in cells)) for table in gather([out])]
    effects = [next(iter(words.about.effects.values()), []) for words in analysed(known)]
    return all(some[-1][2] != "inconclusive" for some in effects if some)
