"""`joformer compare`: the grid of frames and transport on data of one's own."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from joformer._log import logger
from joformer.cli.console import say
from joformer.cli.grid import Engine, chosen, published, run_plans, show


@dataclass(frozen=True)
class Compare:
    """Whether transport helps on your data: every kind of frames on every side of attention, parameters, steps and
    seeds matched; one sentence each: better, worse or undecided, by how much, and at what cost.

    Small models, some minutes; interrupted, the same command goes on. Example:
    joformer compare --data notes.txt --seeds 5 --steps 500
    """

    data: str
    """Text, images or sounds (a folder a class): a file, a folder, parquet; or stdlib, digits, tones, words."""
    seeds: int = 5
    """How many seeds: 0, 1, …"""
    steps: int = 300
    """Steps of every run."""
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
    baseline: str = "scores, fixed"
    """What all are compared with: RoPE."""
    only: tuple[str, ...] = ()
    """Run these cells alone, by name or pattern: 'compare/*-fixed/*'"""
    jobs: int | None = None
    """Processes at work at once; as many as there are GPUs, or cores, by default."""
    engine: Engine = "local"
    """local: processes here. ray: the cluster of RAY_ADDRESS, or a small one started here."""
    out: Path = Path("runs/compare")
    """Where everything is kept; the report too."""
    json: bool = False
    """Print the report as JSON instead of sentences."""

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        if self.seeds < 1 or self.steps < 1:
            raise ValueError(f"--seeds and --steps are 1 or more, got {self.seeds} and {self.steps}")
        from joformer.experiments import ImageSource, TextSource
        from joformer.experiments.compare import answers, is_name, is_text, plans
        from joformer.training import Recipe

        # A path that leads there from everywhere: other processes, on other machines, have folders of their own.
        path = Path(self.data).expanduser()
        data = str(path.resolve()) if path.exists() and not is_name(self.data) else self.data
        source: TextSource | ImageSource
        if is_text(data):
            source = TextSource(data, vocab=self.vocab, context=self.context, batch=self.batch or 16)
        else:
            source = ImageSource(data, batch=self.batch or 64, label=self.label, size=self.size)
        source.load()
        every = max(1, self.steps // 4)
        recipe = Recipe(
            steps=self.steps, lr=self.lr, end=0.1, warmup=self.steps // 12, weight_decay=0.01, evaluate_every=every,
            save_every=every, keep=1,
        )  # fmt: skip
        shape = {"dim": self.dim, "layers": self.layers, "heads": self.heads}
        planned = plans(source, range(self.seeds), recipe, baseline=self.baseline, **shape)
        planned = chosen(planned, self.only, self._command())
        if not planned:
            raise ValueError(f"--only {' '.join(self.only)} is no cell: they are called like compare/both-fixed/seed-0")
        failed = run_plans(planned, self.out, jobs=self.jobs, engine=self.engine)
        show(self.out, as_json=self.json)
        if not self.json:
            say("")
            for line in answers(self.out):
                say(line)
        if failed:
            logger.warning(f"{failed} cells failed; the same command tries them again")
        return 1 if failed else 0

    def _command(self) -> str:
        plain = Compare(data=self.data)
        words = ["compare", "--data", published(Path(self.data))]
        for name in (
            "seeds",
            "steps",
            "dim",
            "layers",
            "heads",
            "context",
            "vocab",
            "batch",
            "label",
            "size",
            "lr",
            "baseline",
        ):
            if getattr(self, name) != getattr(plain, name):
                words += [f"--{name}", str(getattr(self, name))]
        return shlex.join(words)
