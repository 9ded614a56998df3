"""The loop: every model here is trained by this one function, and continued by it to the bit.

    batch     task.batch(seed, step, part, parts)    a function of the seed and the step, see draws.py
    update    clip(Σ ∇ loss / parts), AdamW          lr from the step, see schedules.py
    average   a ← d a + (1 − d) w                    where the recipe has one
    state     weights, moments, averages, and the step; everything else follows from the seed and the step

Nothing is remembered between steps but what a checkpoint holds, so that a run which is killed at any moment and
started again, however often, ends with the bits of one that never was.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joformer._io import MANIFEST, Lock, check_files, checksum, read_sealed, sealed, sweep, write_json, write_whole
from joformer._log import Progress, logger
from joformer._seeding import reseed
from joformer.models import adapt, initialise
from joformer.models._saving import MODELS, WEIGHTS, blank, save_weights, written, written_before
from joformer.training import checkpoints
from joformer.training.checkpoints import STATE, Checkpoint, Unfit
from joformer.training.determinism import deterministic, only_one, signals
from joformer.training.diagnosis import where_it_broke
from joformer.training.processes import Processes, reshard
from joformer.training.recipe import UNDECIDING, Recipe
from joformer.training.recorder import Recorder
from joformer.training.runs import (
    CHECKPOINTS,
    CONFIG,
    KEPT,
    METRICS,
    SPEED,
    Log,
    Stopped,
    circumstances,
    require_exact,
    require_same,
)
from joformer.training.schedules import learning_rate, stage_at
from joformer.training.stages import changed, foresee
from joformer.training.state import State, require_fit
from joformer.training.tasks import Task


def train(
    config: Any,
    task: Task,
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    drift: bool = False,
    notes: Mapping[str, Any] | None = None,
    shard: bool = False,
) -> dict[str, Any]:
    """Train the model of this configuration, or continue its run in `out`; returns the last line of its metrics.

    `drift` allows what cannot be exact: to go on with another number of processes or threads, or on another machine.
    `notes` are written into config.json and decide nothing: where the data was, say.

    >>> from tempfile import TemporaryDirectory
    >>> from joformer.models import LMConfig
    >>> from joformer.training import LanguageTask, load_text
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "text.txt"
    ...     written = path.write_text("the quick brown fox jumps over the lazy dog\\n" * 100)
    ...     task = LanguageTask(load_text(path, vocab=256, cache=folder), context=16, batch=4)
    ...     config = LMConfig(vocab=256, dim=16, layers=1, heads=2)
    ...     result = train(config, task, Recipe(steps=3), Path(folder) / "run")
    >>> result["step"], result["bits_per_byte"] < 10
    (3, True)
    """
    run = _Run(config, task, recipe, Path(out), seed, drift, dict(notes or {}), shard)
    watched, exact = run.processes.watched(), deterministic(recipe.deterministic)
    with only_one(), watched, run.alone(), closing(task), exact, signals() as asked:
        found = run.begin()
        if not found.measured:
            run.steps(asked)
        elif not found.sealed:
            run.finish()
        return run.result()


STATED = {
    "stage": int, "settings": dict, "circumstances": dict, "drifted": list, "recent": list, "scaler": dict,
    "metrics": dict,
}  # fmt: skip
"""What a checkpoint of a run says beside its step, and of which kind."""


@dataclass(frozen=True)
class _Found:
    """What is in the folder: the checkpoint to go on from, whether the log has its last line, what is wrong at the end.

    A run that has ended is `sealed`: all its files are what its manifest says.
    """

    newest: Checkpoint | None
    measured: bool = False
    damage: tuple[str, ...] = ()

    @property
    def sealed(self) -> bool:
        return self.measured and not self.damage


class _Run:
    def __init__(
        self,
        config: Any,
        task: Task,
        recipe: Recipe,
        out: Path,
        seed: int,
        drift: bool,
        notes: dict[str, Any],
        shard: bool,
    ) -> None:
        self.notes = notes
        self.config, self.task, self.recipe, self.out, self.seed, self.drift = config, task, recipe, out, seed, drift
        self.processes = Processes(recipe.precision, shard)
        self.parts = self.processes.count * recipe.accumulate
        task.check(config, range(self.processes.rank, self.parts, self.processes.count), self.parts)
        deciding = {key: value for key, value in asdict(recipe).items() if key not in UNDECIDING}
        self.settings = json.loads(
            json.dumps({"seed": seed, "recipe": deciding, **written(config), "task": task.describe()})
        )
        self.circumstances = circumstances(self.processes.device, self.processes.count, self.processes.sharded)
        self.log, self.speed = Log(out / METRICS), Log(out / SPEED)
        self.step = 0
        self.recent: list[float] = []  # losses since the last line of the log
        self.stage = 0
        self.saved: Path | None = None  # the newest checkpoint that is known to be good
        self.drifted: list[Any] = []
        foresee(config, recipe.sequence, self.processes.sharded)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One run a folder; the first process holds the lock for all."""
        with ExitStack() as held:

            def take() -> None:
                held.enter_context(Lock(self.out))

            self.processes.first(take)
            yield

    # -- beginning and continuing ------------------------------------------------------------------------------------

    def begin(self) -> _Found:
        """Build everything, as new or from the newest checkpoint, unless the run has ended."""
        found = self.processes.first(self._look)
        newest = found.newest
        if newest is not None:
            self.step, self.stage = newest.step, newest.state["stage"]
        if not found.sealed:
            self.config = self._config_of(self.stage)
            raw = MODELS[written(self.config)["model"]](self.config)
            initialise(raw, self.seed)
            self.task.to(self.processes.device)
            self.state = State(raw, self.recipe, self.processes)
            if newest is not None:
                self._restore(newest)
        self.processes.first(lambda: self._prepare(found))
        return found

    def _restore(self, newest: Checkpoint) -> None:
        self.state.restore(newest)
        self.saved, self.recent = newest.folder, list(newest.state["recent"])
        self.drifted = [*newest.state["drifted"], *self._drift(newest)]
        if newest.state["scaler"]:
            self.processes.scaler.load_state_dict(newest.state["scaler"])

    def _look(self) -> _Found:
        try:
            newest = checkpoints.latest(self.out / CHECKPOINTS, self._fits)
        except Unfit as unfit:
            raise ValueError(f"{unfit}, and no other checkpoint fits: put it back, or choose another --out") from None
        if newest is None:
            if (self.out / WEIGHTS).is_file():
                raise ValueError(f"{self.out} holds a model and no good checkpoint to continue: choose another --out")
            return _Found(None)
        require_same(newest.state["settings"], self.settings, self.out)
        measured, damage = False, dict[str, str]()
        if newest.step == self.recipe.total:
            damage = self._damage()
            measured = METRICS not in damage and self.log.ends(newest.state["metrics"], newest.step)
        if not (self.drift or measured):  # then nothing is computed any more, and so the bits are what they are
            require_exact(newest.state["circumstances"], self.circumstances, self.out)
        return _Found(newest, measured, tuple(damage.values()))

    def _fits(self, checkpoint: Checkpoint) -> None:
        """Raise `Unfit` where a whole checkpoint is not one that a run like this saved, or its log is cut short."""
        state, place = checkpoint.state, checkpoint.folder / STATE
        for name, kind in STATED.items():
            if type(state.get(name)) is not kind:
                raise Unfit(f"{place} makes no sense: its {name} is no {kind.__name__}")
        if state["settings"] in (
            {**self.settings, **json.loads(json.dumps(form))} for form in written_before(self.config)
        ):
            state["settings"] = self.settings  # as version 0.1 wrote the same
        if state["settings"] != self.settings:
            return  # which is the user's to decide: see `require_same`
        step, metrics = checkpoint.step, state["metrics"]
        if not 1 <= step <= self.recipe.total or state["stage"] != stage_at(self.recipe.sequence, step - 1)[0]:
            raise Unfit(f"{place} makes no sense: step {step} of {self.recipe.total} is not in stage {state['stage']}")
        if type(metrics.get("bytes")) is not int or metrics["bytes"] < 0 or type(metrics.get("sha256")) is not str:
            raise Unfit(f"{place} makes no sense: its metrics have no bytes, or no sha256")
        if not all(type(loss) is float and math.isfinite(loss) for loss in state["recent"]):
            raise Unfit(f"{place} makes no sense: its recent losses are no finite numbers")
        if self.log.is_shorter(metrics):
            raise Unfit(f"{self.log.path} is not what it was when {checkpoint.folder} was saved, but shorter")
        require_fit(checkpoint, blank(self._config_of(state["stage"])), bool(self.recipe.average))

    def _damage(self) -> dict[str, str]:
        """What is wrong with the files of the end, by name; the manifest itself where it is missing or damaged."""
        wrong = {}
        try:
            files = read_sealed(self.out / MANIFEST)["files"]
            if not isinstance(files, dict):
                raise TypeError
        except (ValueError, KeyError, TypeError) as error:
            place = self.out / MANIFEST
            said = str(error) if type(error) is ValueError else f"{place} is damaged: it lists no files"
            return {MANIFEST: said if place.exists() else f"{place} is missing"}
        for name in {CONFIG, METRICS, WEIGHTS, *files}:
            try:
                check_files(self.out, files, [name])
            except ValueError as error:
                wrong[name] = str(error)
        return dict(sorted(wrong.items()))

    def _config_of(self, last: int) -> Any:
        """The configuration in this stage."""
        config = self.config
        for stage in self.recipe.sequence[: last + 1]:
            config = changed(config, stage.frames)
        return config

    def _drift(self, newest: Checkpoint) -> list[Any]:
        """The trace that is left where a run goes on under other circumstances."""
        before = newest.state["circumstances"]
        return [] if before == self.circumstances else [{"step": newest.step, "before": before}]

    def _prepare(self, found: _Found) -> None:
        checkpoints.sweep(self.out / CHECKPOINTS)
        for name in (CONFIG, WEIGHTS, MANIFEST, *KEPT):
            sweep(self.out, name)
        if found.sealed:
            logger.info(f"{self.out} has ended after its {self.recipe.total} steps")
            return
        newest, was_over = found.newest, (self.out / WEIGHTS).is_file() or (self.out / MANIFEST).exists()
        if not found.measured:
            if self.step < self.recipe.total:
                checkpoints.require_room(self.out / CHECKPOINTS, self.state.size, self._room())
            self.log.restore(None if newest is None else newest.state["metrics"])
            (self.out / MANIFEST).unlink(missing_ok=True)
        if newest is None:
            self.speed.restore(None)
            self._describe()
            self.task.keep(self.out)
        elif newest.step == self.recipe.total and was_over:
            for line in found.damage:
                logger.warning(f"{line}; repaired from {newest.folder}")
        else:
            logger.info(f"continuing {self.out} at step {self.step} of {self.recipe.total}")

    def _room(self) -> int:
        """How many checkpoints there must be room for: at most `keep` are kept, beside one that is being written."""
        every, total, held = self.recipe.save_every, self.recipe.total, checkpoints.held(self.out / CHECKPOINTS)
        coming = total // every - self.step // every + (total % every > 0)
        return max(1, min(self.recipe.keep, held + coming) + 1 - held)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def steps(self, asked: Callable[[], int]) -> None:
        recipe, total = self.recipe, self.recipe.total
        main = self.processes.main
        progress = Progress("training", total, done=self.step, shown=main)
        with Recorder(self.out, self.step, self.speed, board=main) as recorder, progress:
            while True:
                # After the checkpoint of its step, and again where it was cut short: an evaluation may take long.
                if self.step and (self.step % recipe.evaluate_every == 0 or self.step == total):
                    self._write({"step": self.step, **self.evaluate()}, recorder)
                if self.step == total:
                    break
                stage, at = stage_at(recipe.sequence, self.step)
                if stage != self.stage:
                    self._next_stage(stage)
                rate = learning_rate(recipe.sequence[stage], at, warmup=recipe.warmup, end=recipe.end)
                loss, norm, stop = self._step(rate, asked())
                self.step += 1
                self.recent.append(loss)
                progress.update(self.step, loss=loss)
                if self.step % recipe.log_every == 0 or self.step == total:
                    mean = math.fsum(self.recent) / len(self.recent)
                    self._write({"step": self.step, "train_loss": mean, "lr": rate, "gradient": norm}, recorder)
                    self.recent = []
                if self.step % recipe.save_every == 0 or self.step == total or stop:
                    self.save()
                if stop and self.step < total:
                    raise Stopped(f"saved {self.out} at step {self.step}; the same command continues it", 128 + stop)
        self.finish()

    def _step(self, rate: float, asked: int) -> tuple[float, float, int]:
        """One update of the weights; the loss and the norm of its gradient, and whether anyone was asked to stop."""
        processes, recipe = self.processes, self.recipe
        loss = torch.zeros((), device=processes.device)
        for micro in range(recipe.accumulate):
            part = micro * processes.count + processes.rank
            batch = self.task.batch(self.seed, self.step, part, self.parts)
            reseed(self.seed, "step", self.step, part)
            with processes.share(self.state.model, last=micro == recipe.accumulate - 1):
                one = self.task.loss(self.state.model, batch) / recipe.accumulate
            processes.backward(one)
            loss += one.detach()
        norm = self.state.norm()
        values = torch.stack((loss, norm.to(loss), torch.tensor(float(asked), device=loss.device)))
        if processes.count > 1:
            values = torch.cat((processes.mean(values[:2]), processes.total(values[2:])))
        mean, size, stop = values.tolist()
        # With a scaler an infinite gradient is how it finds its scale, and the update is left out.
        if not math.isfinite(mean) or not (math.isfinite(size) or processes.scaler is not None):
            raise self._broken(f"the loss is {mean} and the norm of its gradient {size} at step {self.step + 1}")
        self.state.update(rate)
        return mean, size, (asked or signal.SIGTERM) if stop else 0

    def _broken(self, what: str) -> ValueError:
        """The error that says where a number stopped being one; all processes must ask."""

        def forward() -> list[Tensor]:
            losses = []
            for part in range(self.processes.rank, self.parts, self.processes.count):
                batch = self.task.batch(self.seed, self.step, part, self.parts)
                reseed(self.seed, "step", self.step, part)
                with self.processes.autocast():
                    losses.append(self.task.loss(self.state.raw, batch))
            return losses

        layer = min(self.processes.everyone(where_it_broke(self.state.raw, forward)))[1]
        good = f"the last good checkpoint is {self.saved}" if self.saved else "there is no checkpoint yet"
        return ValueError(f"{what}, first seen in {layer}; {good}; a lower lr, a warm-up or a smaller clip may help")

    def _next_stage(self, stage: int) -> None:
        self.stage = stage
        before, self.config = self.config, changed(self.config, self.recipe.sequence[stage].frames)
        if self.config != before:
            raw = adapt(self.state.raw, seed=self.seed, frames=self.config.frames)
            grown = State(raw, self.recipe, self.processes)
            grown.follow(self.state)
            self.state = grown

    # -- what is measured and kept -----------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        state = self.state
        state.model.eval()
        try:
            with torch.no_grad(), state.averaged(), self.processes.autocast():
                found = self.task.evaluate(state.model, self.processes)
        finally:
            reshard(state.raw)
            state.model.train()
        for name, value in found.items():
            if not math.isfinite(value):
                raise self._broken(f"the {name} on what was held out is {value} at step {self.step}")
        return found

    def _write(self, entry: dict[str, Any], recorder: Recorder) -> None:
        if self.processes.main:
            self.log.write(entry)
            recorder.write(entry)

    def save(self) -> None:
        """A checkpoint of this step; all processes bring their shards, the first one writes."""
        if not all(self.processes.everyone(self.state.finite())):
            raise self._broken(f"the weights are no longer finite at step {self.step}")
        tensors, scaler = self.state.tensors(), self.processes.scaler
        self.saved = self.processes.first(
            lambda: checkpoints.save(
                self.out / CHECKPOINTS,
                self.step,
                tensors,
                {
                    "stage": self.stage,
                    "settings": self.settings,
                    "circumstances": self.circumstances,
                    "drifted": self.drifted,
                    "recent": self.recent,
                    "scaler": {} if scaler is None else scaler.state_dict(),
                    "metrics": self.log.place(),
                },
                written(self.config),
                keep=self.recipe.keep,
            )
        )

    def finish(self) -> None:
        """Write what a finished run has; all processes bring their shards, the first one writes."""
        with torch.no_grad(), self.state.averaged():
            weights = self.state.weights()

        def write() -> None:
            self.log.place()  # its last line must be on the disk before anything says that the run has ended
            self._describe()
            self.task.keep(self.out)
            save_weights(weights, self.out)
            names = [CONFIG, METRICS, WEIGHTS, *(name for name in KEPT if (self.out / name).is_file())]
            files = {name: checksum(self.out / name) for name in sorted(names)}
            write_whole(self.out / MANIFEST, sealed({"steps": self.recipe.total, "files": files}))

        self.processes.first(write)

    def _describe(self) -> None:
        content = {**written(self.config), "run": self.settings, "notes": self.notes}
        write_json(self.out / CONFIG, content)

    def result(self) -> dict[str, Any]:
        return json.loads((self.out / METRICS).read_text().splitlines()[-1])
