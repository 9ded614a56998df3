"""`joformer compare`: does value transport help, on data of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joformer.cli.grid import Engine, chosen, finish, run_tables, show_cells


@dataclass(frozen=True)
class Compare:
    """Does value transport help on your data? RoPE against RoPE with its values transported, on many seeds.

    Parameters, steps, data and seeds are matched. The answer is one sentence: better, worse, equivalent or
    inconclusive, by how much, after how many steps; then whether it lasts, and what a step takes. Small models, some
    minutes; interrupted, the same command resumes. --config FILE takes the options of another run's command.toml.
    Example: joformer compare --data notes.txt --steps 500
    """

    data: str
    """Text, images or sounds (one folder per class): a file, a folder, a table; or stdlib, digits, tones, words."""
    seeds: int = 8
    """How many seeds: 0, 1, …"""
    steps: int = 300
    """Steps of every run."""
    longer: int = 4
    """Run again for so many times the steps, to see whether it lasts; 1 does not look."""
    grid: bool = False
    """Every kind of frames (fixed, learned, projected, cumulative) on every side (scores, values, both)."""
    looks: int = 1
    """Look at the results so many times, adding --seeds seeds each time until it is decided; the level is adjusted."""
    dim: int = 64
    """The width of the models."""
    layers: int = 2
    """Their layers."""
    heads: int = 4
    """Their heads."""
    context: int = 128
    """Tokens in a window of text."""
    vocab: int = 256
    """256 is bytes; more trains a BPE of that size."""
    batch: int | None = None
    """In a step: 16 windows of text, or 64 images, by default."""
    label: str | None = None
    """The column of the classes, where there are several."""
    size: int | None = None
    """Side to which images of different sizes are brought."""
    lr: float = 1e-3
    """The highest learning rate."""
    only: tuple[str, ...] = ()
    """Run these cells alone, by name or pattern: 'compare/*-fixed/*'"""
    jobs: int | None = None
    """Processes at work at once; as many as there are GPUs, or cores, by default."""
    engine: Engine = "local"
    """local: processes here. ray: the cluster of RAY_ADDRESS, or a small one started here."""
    out: Path = Path("runs/compare")
    """Where everything is kept; the report too."""
    dry_run: bool = False
    """Print the cells and stop."""
    json: bool = False
    """Print the report as JSON instead of sentences."""

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        for name in ("seeds", "steps", "longer", "looks"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        from joformer.experiments import ImageSource, TextSource
        from joformer.experiments.compare import tables
        from joformer.training import Recipe

        source: TextSource | ImageSource
        data = _resolved(self.data)
        if _is_text(data):
            source = TextSource(data, vocab=self.vocab, context=self.context, batch=self.batch or 16)
        else:
            source = ImageSource(data, batch=self.batch or 64, label=self.label, size=self.size)
        every = max(1, self.steps // 4)
        recipe = Recipe(
            steps=self.steps, lr=self.lr, end=0.1, warmup=self.steps // 12, weight_decay=0.01, evaluate_every=every,
            save_every=every, keep=1,
        )  # fmt: skip
        shape = {"dim": self.dim, "layers": self.layers, "heads": self.heads}
        failed = 0
        for look in range(1, self.looks + 1):
            count = look * self.seeds
            planned = tables(
                source, range(count), recipe, longer=self.longer, grid=self.grid, looks=self.looks, **shape
            )
            planned = chosen(planned, self, seeds=count)
            if not planned:
                like = "compare/both-fixed/seed-0"
                raise ValueError(f"--only {' '.join(self.only)} is no cell: they are called like {like}")
            if self.dry_run:
                show_cells(planned)
                return 0
            failed = run_tables(planned, self, order=lambda cell: (cell.recipe.total, cell.seed))
            if looked(self.out, count):
                break
        return finish(self.out, failed, as_json=self.json, only=self.only)


def looked(out: Path, seeds: int) -> bool:
    """Whether the first question is decided; that the results of so many seeds were seen is written down."""
    from joformer._io import write_json
    from joformer.experiments.report import analysed
    from joformer.experiments.results import gather
    from joformer.experiments.tables import TABLE, read

    place = out / "compare" / TABLE
    if not place.is_file():  # times alone were asked for
        return True
    about = read(place)
    about["looked"] = list(dict.fromkeys([*about.get("looked", []), seeds]))
    write_json(place, about)
    effects = next(iter(analysed(gather([place.parent]))[0].about.effects.values()), [])
    return bool(effects) and effects[-1][2] != "inconclusive"


def _resolved(data: str) -> str:
    path = Path(data).expanduser()
    return str(path.resolve()) if path.exists() and data not in ("stdlib", "digits", "tones", "words") else data


def _is_text(data: str) -> bool:  # until the data's front door is there
    from joformer.training.data.records import CLIPS, IMAGES
    from joformer.training.data.sources import files_under, require_path

    if data in ("stdlib", "digits", "tones", "words"):
        return data == "stdlib"
    path = require_path(data)
    files = files_under(path) if path.is_dir() else [path]
    return not {file.suffix.lower() for file in files} & {*IMAGES.suffixes, *CLIPS.suffixes}
