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

        opened = open_run(self.checkpoint)
        if opened.step is not None:
            logger.info(f"weights of step {opened.step}")
        data = self.data or opened.notes.get("data")
        if data is None:
            raise ValueError(f"{self.checkpoint} does not say what it was trained on: give --data")
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
        from joformer.training import LanguageTask, Processes, load_text, resolve

        trained = opened.run.get("task", {})
        if trained and "text" not in trained:
            raise ValueError(f"{self.checkpoint} was not trained on text: its metrics.jsonl has what was measured")
        tokenizer, vocab = opened.tokenizer(), opened.notes.get("vocab")
        source = resolve(data, kind="text", column=self.column or opened.notes.get("column"))
        text, cut = None, {"percent": percent} if (percent := opened.notes.get("percent")) else {}
        if self.data is None and vocab is not None:
            text = load_text(source, vocab=vocab, **cut)  # as it was prepared for training, if it is still the same
            if text.fingerprint != trained.get("text"):
                logger.warning(f"{data} has changed since the model was trained on it")
        if text is None or text.tokenizer != tokenizer:
            text = load_text(source, tokenizer=tokenizer, **({} if self.data else cut))
        lengths = self.lengths or (trained.get("context", 512),)
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
        from joformer.models import MonoidalClassifier
        from joformer.training import Images, ImageTask, Processes, Streamed, load_labelled, resolve

        notes, trained = opened.notes, opened.run.get("task", {})
        source = resolve(data, label=self.label or notes.get("label"))
        images: Images | Streamed
        if notes.get("stream"):
            images = Streamed(source, size=notes.get("size") or 224)
        else:
            sound = {name: notes.get(name) for name in ("rate", "seconds", "bands", "hop")}
            images = load_labelled(source, size=notes.get("size"), **sound)
        classes = opened.model.config.classes
        if len(images.classes) != classes:
            raise ValueError(f"{data} has {len(images.classes)} classes, the model knows {classes}: give other --data")
        if self.data is None and not notes.get("stream") and images.fingerprint != trained.get("images"):
            logger.warning(f"{data} has changed since the model was trained on it")
        task = ImageTask(images, cells=isinstance(opened.model, MonoidalClassifier), normalise=trained.get("normalise"))
        processes = Processes()
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]
