"""`joformer evaluate`: a trained model on held-out data, a language model at any context length."""

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
    """Evaluate a trained model on held-out data: perplexity and bits per byte, accuracy, ranks, F1 of events,
    retrieval, the error of predicted pictures.

    With several --lengths the same tokens are scored at each, as many as fit the shortest, with more preceding text at
    the longer ones.

    Example: joformer evaluate runs/enwik8 --lengths 512 1024 2048 4096 --split test

    Attributes:
        checkpoint: The folder or address of a run, or of one of its checkpoints.
        lengths: Context lengths of a language model, in tokens; the trained one by default.
        data: Other data than the training data; a language model keeps its tokenizer.
        column: The text column of a table; by default the one used in training.
        label: The class column, or folder or name for sounds; by default the one used in training.
        split: Which split of text, graphs and trees; for all other data it is always test.
        windows: Number of text windows, spread evenly over the split.
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
            raise ValueError(f"--lengths and --windows must be 1 or more, got {self.lengths} and {self.windows}")
        from joformer.models import (
            JoFormerLM,
            JoFormerPairs,
            JoFormerPoints,
            JoFormerSpotter,
            JoFormerTree,
            JoFormerVideo,
            RotatE,
        )
        from joformer.training import open_run
        from joformer.training.trained_on import source_of

        opened = open_run(self.checkpoint)
        if opened.step is not None:
            logger.info(f"weights of step {opened.step}")
        data = source_of(opened, self.data)
        if self.lengths and not isinstance(opened.model, JoFormerLM):
            held = type(opened.model).__name__
            raise ValueError(f"--lengths is for language models, and {self.checkpoint} holds a {held}")
        measure = {
            JoFormerLM: self._text,
            JoFormerPairs: self._pairs,
            JoFormerPoints: self._points,
            JoFormerSpotter: self._streams,
            JoFormerTree: self._trees,
            JoFormerVideo: self._video,
            RotatE: self._graph,
        }
        rows = measure.get(type(opened.model), self._images)(opened, data)
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
            raise ValueError(f"{data} is not the graph that the model was trained on: its ids mean other entities")
        task = RelationsTask(graph)
        task.to(processes.device)
        found = task.evaluate(opened.model.to(processes.device), processes, split=self.split)
        return [{"split": self.split, **found}]

    def _points(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import PointsTask, Processes, load_points

        trained, processes = opened.run.get("task", {}), Processes()
        points = load_points(data, **{name: opened.notes.get(name) for name in ("points", "axes")},
                             ink=bool(opened.notes.get("ink")))  # fmt: skip
        if self.data is None and points.fingerprint != trained.get("points"):
            logger.warning(f"{data} has changed since the model was trained on it")
        task = PointsTask(points, normalise=trained.get("normalise"))
        task.check(opened.model.config, range(1), 1)
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]

    def _streams(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import Processes, SpottingTask, load_streams

        notes, trained, config = opened.notes, opened.run.get("task", {}), opened.model.config
        sound = {name: value for name in ("rate", "hop", "noise") if (value := notes.get(name)) is not None}
        streams = load_streams(
            data, label=self.label or notes.get("label"), keywords=notes.get("keywords") or (), bands=config.bands,
            **sound,
        )  # fmt: skip
        if len(streams.classes) != config.classes:
            many = f"{data} has {len(streams.classes)} classes, the model has {config.classes}"
            raise ValueError(f"{many}: give other --data")
        if self.data is None and streams.fingerprint != trained.get("streams"):
            logger.warning(f"{data} has changed since the model was trained on it")
        asked = {name: trained[name] for name in ("tolerance", "normalise") if name in trained}
        task, processes = SpottingTask(streams, patch=config.patch[1], **asked), Processes()
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]

    def _video(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import Processes, VideoTask, load_clips

        config, trained = opened.model.config, opened.run.get("task", {})
        made = {name: opened.notes.get(name) for name in ("size", "length", "count")}
        if self.data is not None:
            made |= {"size": config.shape[0], "length": config.shape[2], "count": None}
        clips = load_clips(data, question=config.question, label=self.label or opened.notes.get("label"), **made)
        if config.question == "class" and len(clips.classes) != config.classes:
            have = f"{len(clips.classes)} classes, the model has {config.classes}"
            raise ValueError(f"{data} has {have}: give other --data")
        if self.data is None and clips.fingerprint != trained.get("images"):
            logger.warning(f"{data} has changed since the model was trained on it")
        task, processes = VideoTask(clips, question=config.question, normalise=trained.get("normalise")), Processes()
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]

    def _trees(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer._io import check_folder, one_line, read_json
        from joformer.training import Processes, TreeTask, load_trees, resolve
        from joformer.training.data.trees import NODES

        trained, processes = opened.run.get("task", {}), Processes()
        trees = load_trees(resolve(data, kind="trees"), nodes=opened.notes.get("nodes") or NODES)
        if self.data is None and trees.fingerprint != trained.get("trees"):
            logger.warning(f"{data} has changed since the model was trained on it")
        place = opened.folder / "trees.json"
        check_folder(opened.folder, [place.name])
        try:
            kinds = read_json(place)["kinds"]
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"cannot read {place} ({one_line(error)}): train the model again") from None
        if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
            raise ValueError(f"{place} holds no list of kinds: train the model again")
        trees = trees.renumbered(kinds)
        task = TreeTask(trees, question=trained.get("question", "masked"), share=trained.get("share", 0.15))
        task.to(processes.device)
        found = task.evaluate(opened.model.to(processes.device), processes, split=self.split)
        return [{"split": self.split, **found}]

    def _pairs(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import PairsTask, Processes, load_pairs, resolve

        notes, trained, processes = opened.notes, opened.run.get("task", {}), Processes()
        source = resolve(data, column=self.column or notes.get("column"), label=self.label or notes.get("label"))
        more = {name: notes[name] for name in ("size", "length") if notes.get(name) is not None}
        pairs = load_pairs(source, tokenizer=opened.tokenizer(), **more)
        if self.data is None and pairs.fingerprint != trained.get("pairs"):
            logger.warning(f"{data} has changed since the model was trained on it")
        task = PairsTask(pairs, **{name: trained[name] for name in ("hide", "held_out") if name in trained})
        task.check(opened.model.config, (0,), 1)
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]

    def _images(self, opened: Opened, data: str) -> list[dict[str, Any]]:
        from joformer.training import Processes
        from joformer.training.trained_on import images_of

        task = images_of(opened, self.data, label=self.label)
        processes = Processes()
        task.to(processes.device)
        return [task.evaluate(opened.model.to(processes.device), processes)]
