"""`joformer evaluate`: a trained model on data that was held out, a language model at any context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from joformer._log import Progress, logger
from joformer.cli.console import say
from joformer.cli.options import Place

if TYPE_CHECKING:
    from joformer.training import Opened


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained model on held-out data: perplexity and bits per byte, accuracy, or ranks.

    At several lengths the same tokens are scored, as many as the shortest has, with more of the text before them.

    Example: joformer evaluate runs/enwik8 --lengths 512 1024 2048 4096 --split test

    Attributes:
        checkpoint: The folder or address of a run, or of one of its checkpoints.
        lengths: Contexts of a language model, in tokens; the trained one by default.
        data: Other data than it was trained on; a language model keeps its tokenizer.
        column: The column of a table that holds the text; by default that of training.
        label: The column of the classes, or folder or name for sounds; by default that of training.
        split: Which part of the text; of images and sounds it is always test.
        windows: Windows of text, spread evenly over the split.
        json: Print a list of {length, loss, …} instead of lines.
    """

    checkpoint: Annotated[Place, tyro.conf.Positional]
    lengths: tuple[int, ...] = ()
    data: str | None = None
    column: str | None = None
    label: str | None = None
    split: Literal["valid", "test"] = "valid"
    windows: int = 200
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        if self.windows < 1 or any(length < 1 for length in self.lengths):
            raise ValueError(f"--lengths and --windows are 1 or more, got {self.lengths} and {self.windows}")
        from joformer.models import JoFormerLM, RotatE
        from joformer.training import open_run
        from joformer.training.trained_on import source_of

        opened = open_run(self.checkpoint)
        if opened.step is not None:
            logger.info(f"weights of step {opened.step}")
        data = source_of(opened, self.data)
        if self.lengths and not isinstance(opened.model, JoFormerLM):
            held = type(opened.model).__name__
            raise ValueError(f"--lengths are for language models, {self.checkpoint} holds {held}")
        measure = {JoFormerLM: self._text, RotatE: self._graph}.get(type(opened.model), self._images)
        rows = measure(opened, data)
        if self.json:
            say(json.dumps(rows, indent=2), lines=True)
        for row in [] if self.json else rows:
            shown = {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}
            say("  ".join(f"{key} {value}" for key, value in shown.items()))
        return 0

    def _text(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import LanguageTask, Processes
        from joformer.training.trained_on import text_of

        text = text_of(opened, self.data, column=self.column)
        lengths = self.lengths or (opened.run.get("task", {}).get("context", 512),)
        # Checked for all before the first is measured.
        task = LanguageTask(text, context=1, batch=max(lengths), held_out=self.windows)
        for length in lengths:
            task.fits(self.split, length)
        processes, rows = Processes(), []
        task.to(processes.device)
        model = opened.model.to(processes.device)
        with Progress("evaluating", len(lengths), unit="lengths") as progress:
            for length in lengths:
                (found,) = task.by_length(
                    model, processes, (length,), split=self.split, targets=min(lengths), longest=max(lengths)
                ).values()
                del found["by_position"]
                rows.append({"length": length, "split": self.split, **found})
                progress.advance()
        return rows

    def _graph(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import Processes, RelationsTask, load_graph

        graph, processes = load_graph(data), Processes()
        if graph.fingerprint != opened.run.get("task", {}).get("graph"):
            raise ValueError(f"{data} is another graph than the model was trained on: its numbers mean other entities")
        task = RelationsTask(graph)
        task.to(processes.device)
        found = task.evaluate(opened.model.to(processes.device), processes, split=self.split)
        return [{"split": self.split, **found}]

    def _images(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import Processes
        from joformer.training.trained_on import images_of

        task = images_of(opened, self.data, label=self.label)
        processes = Processes()
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]
