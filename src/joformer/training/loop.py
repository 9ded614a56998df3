"""The training loop: one function trains any model, and a killed run resumes to the same bits.

    batch     task.batch(seed, step, part, parts)    a function of the seed and the step, see _seeding.py
    update    clip(Σ ∇ loss / parts), AdamW          lr from the step, see stages.py
    average   a ← d a + (1 − d) w                    if the recipe has one
    state     weights, moments, averages, and the step; everything else follows from the seed and the step
    numbers   loss and norm stay on a GPU until they are logged or saved, ten steps at most: the host runs ahead, and
              a step that is not finite is left out there, and so is every later one

No state is carried between steps except what a checkpoint holds, so a run that is killed and restarted at any
moment, any number of times, ends bit-identical to an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joformer._io import MANIFEST, Lock, checksum, sealed, sweep, write_json, write_whole
from joformer._log import Progress, logger
from joformer._remote import is_address
from joformer._seeding import reseed
from joformer.models import adapt, initialise
from joformer.models._saving import MODELS, WEIGHTS, blank, save_weights, written_before
from joformer.training import checkpoints, recorder, runs
from joformer.training.checkpoints import STATE, Checkpoint, Unfit
from joformer.training.determinism import deterministic, only_one, signals
from joformer.training.diagnosis import finite, where_it_broke
from joformer.training.mirror import Mirror
from joformer.training.opened import Weights, load_weights
from joformer.training.processes import Processes, reshard
from joformer.training.recipe import NON_SEMANTIC_FIELDS, Recipe
from joformer.training.runs import CHECKPOINTS, CONFIG, KEPT, METRICS, SPEED, TOKENIZER, Log, Stopped
from joformer.training.stages import Stage, changed, foresee, learning_rate, stage_at
from joformer.training.state import State, require_fit
from joformer.training.tasks.task import Task


def train(
    model: Any,
    task: Task,
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    drift: bool = False,
    notes: Mapping[str, Any] | None = None,
    shard: bool = False,
    context_parallel: int = 1,
    start: str | os.PathLike[str] | None = None,
    loggers: Sequence[recorder.Logger] = ("tensorboard",),
) -> dict[str, Any]:
    """Trains a model, or resumes its run in `out`.

    A finished run is extended from its last checkpoint if only `recipe.steps` is larger.

    Args:
        model: A configuration of joformer's models, built and initialised by the seed; or any `nn.Module`, trained in
            place from its current weights (seed them, or a run killed before its first checkpoint restarts from other
            weights). Afterwards it holds the final weights, averaged if the recipe has an average.
        task: The training task.
        recipe: The training recipe.
        out: The run's folder; or an address, such as s3://BUCKET/RUN, to which it is published (mirror.py).
        seed: Seed of the initial weights of a configuration, the batches and all other randomness.
        drift: Resume even if the bits cannot be the same: with other processes or threads, or on another machine.
        notes: Written to config.json without other effect: for example, where the data was.
        shard: With several processes, give each a shard of the model instead of a copy.
        context_parallel: The number of processes that share the tokens of each sample, if it is too long for one.
        start: The folder or address of a run, or of a checkpoint, whose weights (averaged, if available) to start from.
        loggers: "tensorboard" (if installed), "wandb", "trackio", or functions called with every line.

    Returns:
        The last line of the metrics: the step, and what `task.evaluate` gave.

    Raises:
        ValueError: If something does not fit, before anything is computed; or if a number is not finite.
        Stopped: If SIGINT or SIGTERM was received; the run is saved.

    Example:
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
    mirror = Mirror(out)
    run = _Run(model, task, recipe, mirror, seed, drift, dict(notes or {}), shard, context_parallel, start, loggers)
    watched, exact = run.processes.watched(), deterministic(recipe.deterministic)
    with ExitStack() as held, only_one(), watched, closing(task), exact, signals() as received:
        # One run per folder; the first process holds the lock for all.
        run.processes.first(lambda: bool(held.enter_context(Lock(run.out)) and held.enter_context(mirror)))
        run.follow()
        run.begin()
        if not run.last:
            run.steps(received)
        elif run.damage:
            run.finish()
        elif isinstance(model, nn.Module):
            load_weights(model, run.out)
        run.processes.first(lambda: mirror.publish(last=True))
        return run.last


READ_EVERY = 10
"""Steps after which numbers are read from a GPU at the latest: a signal to stop is one of them."""

# What the state of a run's checkpoint has beside the step, and the type of each.
STATED = {
    "stage": int, "settings": dict, "circumstances": dict, "drifted": list, "extended": list, "recent": list,
    "scaler": dict, "metrics": dict,
}  # fmt: skip


@dataclass
class _Run:
    config: Any  # or a module; of the stage the run is in
    task: Task
    recipe: Recipe
    mirror: Mirror
    seed: int
    drift: bool
    notes: dict[str, Any]
    shard: bool
    context_parallel: int
    start: str | os.PathLike[str] | None
    loggers: Sequence[recorder.Logger]

    def __post_init__(self) -> None:
        self.out = self.mirror.folder
        self.processes = Processes(self.recipe.precision, self.shard, self.context_parallel)
        teams, start = self.processes.teams, self.start
        self.parts = teams * self.recipe.accumulate
        self.mine = range(self.processes.team, self.parts, teams)  # the parts of a step that this process works through
        self.task.divide(self.processes.parallel)
        ours = type(self.config) in MODELS.values()
        self.task.check(self.config.config if ours else self.config, self.mine, self.parts)
        if isinstance(self.config, nn.Module) and not any(p.requires_grad for p in self.config.parameters()):
            raise ValueError(f"{type(self.config).__name__} has no parameters to train")
        foresee(self.config, self.recipe.sequence, self.processes.sharded)
        for one in self.loggers:
            if isinstance(one, str):
                recorder.imported(one)
        fields = {key: value for key, value in asdict(self.recipe).items() if key not in NON_SEMANTIC_FIELDS}
        settings = {"seed": self.seed, "recipe": fields, **runs.described(self.config), "task": self.task.describe()}
        settings.pop("layout", None)  # which is compared tensor by tensor
        self.weights = None
        if start is not None:  # an address is fetched on every machine
            self.weights = Weights.of(start) if is_address(start) else self.processes.first(lambda: Weights.of(start))
        if self.weights is not None:
            settings["start"] = checksum(self.weights.files[-1])
        self.settings = json.loads(json.dumps(settings))
        self.circumstances = runs.circumstances(
            self.processes.device, self.processes.count, self.processes.sharded, self.context_parallel
        )
        self.log, self.speed = Log(self.out / METRICS), Log(self.out / SPEED)
        self.step = self.stage = 0
        self.last: dict[str, Any] = {}  # line of the log, once the run has ended
        self.damage: tuple[str, ...] = ()  # to the files of a run that has ended
        self.recent: list[float] = []  # losses since the last line of the log
        self.shown: dict[str, float] = {}  # the loss of the newest step that was read, beside the bar
        self.norm = 0.0  # of its gradient
        self.unread: list[tuple[int, Tensor]] = []  # steps, and what each left on the device
        self.saved: Path | None = None  # the newest checkpoint that is known to be good
        self.drifted: list[Any] = []
        self.extended: list[Any] = []

    # -- beginning and resuming --------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Fetches what the first process has, on machines that do not see its disk; all processes must call it."""
        wrong = ""
        if not self.processes.main and os.environ.get("LOCAL_RANK") == "0":
            try:
                self.mirror.fetch(follow=True)
            except ValueError as error:
                wrong = str(error)
        for one in self.processes.everyone(wrong):
            if one:
                raise ValueError(one)

    def begin(self) -> None:
        """Builds everything, as new or from the newest checkpoint, unless the run has ended and its files are whole."""
        newest, self.last, self.damage = self.processes.first(self._look)
        if newest is not None and not self.processes.main:  # whose working copy may lie elsewhere than the first's
            newest = replace(newest, folder=self.out / CHECKPOINTS / newest.folder.name)
        longer = None if newest is None else self._longer(newest)
        if self.damage or not self.last:
            self._build(newest)
        if longer is not None:
            self.extended.append(longer)
        self.processes.first(lambda: self._prepare(newest, longer))

    def _build(self, newest: Checkpoint | None) -> None:
        if newest is not None:
            self.step, self.stage = newest.step, newest.state["stage"]
        self.config = raw = self._config_of(self.stage)
        if not isinstance(raw, nn.Module):
            raw = initialise(raw.build(), self.seed)
        if self.weights is not None and newest is None:
            self.weights.into(raw)
        self.task.to(self.processes.device)
        self.state = State(raw, self.recipe, self.processes)
        self.state.model.train()
        if newest is not None:
            self.state.restore(newest)
            state, before = newest.state, newest.state["circumstances"]
            self.saved, self.recent, self.extended = newest.folder, state["recent"], state["extended"]
            drifted = [] if before == self.circumstances else [{"step": newest.step, "before": before}]
            self.drifted = state["drifted"] + drifted
            if state["scaler"]:
                self.processes.scaler.load_state_dict(state["scaler"])

    def _look(self) -> tuple[Checkpoint | None, dict[str, Any], tuple[str, ...]]:
        """The checkpoint to resume from, the log's last line if the run has ended, and what is damaged in the end."""
        try:
            newest = checkpoints.latest(self.out / CHECKPOINTS, self._fits)
        except Unfit as unfit:
            raise ValueError(f"{unfit}, and no other checkpoint fits: restore it, or choose another --out") from None
        if newest is None:
            if (self.out / WEIGHTS).is_file():
                raise ValueError(f"{self.out} holds a model but no good checkpoint to resume: choose another --out")
            runs.require_ours(self.out)
            return None, {}, ()
        if self._longer(newest) is None:
            runs.require_same(newest.state["settings"], self.settings, self.out)
        last, wrong = None, dict[str, str]()
        if newest.step == self.recipe.total:
            wrong = runs.damage(self.out)
            last = None if METRICS in wrong else self.log.last(newest.state["metrics"], newest.step)
        if last is None:  # else nothing is computed any more, and so the bits are what they are
            runs.require_exact(newest.state["circumstances"], self.circumstances, self.out, self.drift)
        return newest, last or {}, tuple(wrong.values())

    def _fits(self, checkpoint: Checkpoint) -> None:
        """Raises `Unfit` where a whole checkpoint is not one that a run like this saved, or its log is cut short."""
        state, place = checkpoint.state, checkpoint.folder / STATE
        state.setdefault("extended", [])
        for name, kind in STATED.items():
            if type(state.get(name)) is not kind:
                raise Unfit(f"{place} is not valid: its {name} is not a {kind.__name__}")
        earlier = json.loads(json.dumps(written_before(self.config)))
        if state["settings"] in ({**self.settings, **form} for form in earlier):
            state["settings"] = self.settings  # as version 0.1 wrote the same
        if state["settings"] != self.settings and self._longer(checkpoint) is None:
            return  # which is the user's to decide: see `require_same`
        step, metrics = checkpoint.step, state["metrics"]
        if not 1 <= step <= self.recipe.total or state["stage"] != stage_at(self.recipe.sequence, step - 1)[0]:
            raise Unfit(f"{place} is not valid: step {step} of {self.recipe.total} is not in stage {state['stage']}")
        if type(metrics.get("bytes")) is not int or metrics["bytes"] < 0 or type(metrics.get("sha256")) is not str:
            raise Unfit(f"{place} is not valid: its metrics lack bytes or sha256")
        if not all(type(loss) is float and math.isfinite(loss) for loss in state["recent"]):
            raise Unfit(f"{place} is not valid: its recent losses are not finite numbers")
        if self.log.is_shorter(metrics):
            raise Unfit(f"{self.log.path} is shorter than when {checkpoint.folder} was saved")
        config = self._config_of(state["stage"])
        require_fit(checkpoint, config if isinstance(config, nn.Module) else blank(config), bool(self.recipe.average))

    def _longer(self, checkpoint: Checkpoint) -> dict[str, Any] | None:
        """What is recorded where the checkpoint ends a run of fewer steps, all else the same; stages have their own."""
        settings, recipe = checkpoint.state["settings"], self.recipe
        before, steps = settings.get("recipe"), checkpoint.step
        if not isinstance(before, dict) or before.get("steps") != steps or recipe.stages or steps >= recipe.steps:
            return None
        if {**settings, "recipe": {**before, "steps": recipe.steps}} != self.settings:
            return None
        was, now = (
            learning_rate(Stage(many, recipe.lr), steps - 1, warmup=recipe.warmup, end=recipe.end)
            for many in (steps, recipe.steps)
        )
        return {"step": steps, "steps": recipe.steps, "lr_before": was, "lr": now}

    def _config_of(self, last: int) -> Any:
        """The configuration in this stage."""
        config = self.config
        for stage in self.recipe.sequence[: last + 1]:
            config = changed(config, stage.frames)
        return config

    def _prepare(self, newest: Checkpoint | None, longer: dict[str, Any] | None) -> None:
        """Removes what is not whole or no longer true from the folder, and logs what is done with it."""
        checkpoints.sweep(self.out / CHECKPOINTS)
        for name in (CONFIG, WEIGHTS, MANIFEST, *KEPT):
            sweep(self.out, name)
        if self.last and not self.damage:
            logger.info(f"{self.out} is already finished: {self.recipe.total} steps")
            return
        was_over = (self.out / WEIGHTS).is_file() or (self.out / MANIFEST).exists()
        if not self.last:
            if self.step < self.recipe.total:
                checkpoints.require_room(self.out / CHECKPOINTS, self.state.size, self._room())
            self.log.restore(None if newest is None else newest.state["metrics"])
            (self.out / MANIFEST).unlink(missing_ok=True)
        if newest is None:
            self.speed.restore(None)
            self._describe()
        elif longer is not None:
            (self.out / WEIGHTS).unlink(missing_ok=True)
            self._describe()
            logger.info(
                f"extending {self.out} from step {self.step} to {self.recipe.total}: the learning rate there was "
                f"{longer['lr_before']:.3g} and is {longer['lr']:.3g}, so the weights will differ from those of one "
                f"uninterrupted run of {self.recipe.total} steps"
            )
        elif newest.step == self.recipe.total and was_over:
            for line in self.damage:
                logger.warning(f"{line}; repaired from {newest.folder}")
        else:
            logger.info(f"resuming {self.out} at step {self.step} of {self.recipe.total}")

    def _room(self) -> int:
        """How many checkpoints there must be room for: at most `keep` are kept, beside one that is being written."""
        every, total, held = self.recipe.save_every, self.recipe.total, checkpoints.held(self.out / CHECKPOINTS)
        coming = total // every - self.step // every + (total % every > 0)
        return max(1, min(self.recipe.keep, held + coming) + 1 - held)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def steps(self, received: Callable[[], int]) -> None:
        """Takes all steps that are left; `received` gives the signal that came, 0 if none."""
        recipe, total, main = self.recipe, self.recipe.total, self.processes.main
        progress = Progress("training", total, done=self.step, shown=main)
        loggers = self.loggers if main else ()
        ends = {total, *(one["step"] for one in self.extended)}
        with recorder.Recorder(self.out, self.step, self.speed, loggers, self.settings) as record, progress:
            while True:
                # After the checkpoint of its step, and again where it was cut short: an evaluation may take long.
                if self.step and (self.step % recipe.evaluate_every == 0 or self.step in ends):
                    self._write(self.evaluate(), record)
                if self.step == total:
                    break
                stage, at = stage_at(recipe.sequence, self.step)
                if stage != self.stage:
                    self._next_stage(stage)
                rate = learning_rate(recipe.sequence[stage], at, warmup=recipe.warmup, end=recipe.end)
                self.task.prepare(self.state.raw, self.step)
                stop = self._step(rate, received())
                progress.update(self.step, None, **self.shown)
                if self.step % recipe.log_every == 0 or self.step == total:
                    mean = math.fsum(self.recent) / len(self.recent)
                    self._write({"step": self.step, "train_loss": mean, "lr": rate, "gradient": self.norm}, record)
                    self.recent = []
                if self.step % recipe.save_every == 0 or self.step == total or stop:
                    self.save()
                if stop and self.step < total:
                    raise Stopped(f"saved {self.out} at step {self.step}; the same command resumes it", 128 + stop)
        self.finish()

    def _step(self, rate: float, received: int) -> int:
        """One update of the weights; the signal if any process is known to have received one."""
        processes = self.processes
        loss = self._backward()
        values = torch.stack((loss, self.state.norm().to(loss), torch.full_like(loss, received)))
        if processes.count > 1:
            values = processes.total(values) / processes.count
        self.unread.append((self.step, values))
        if not self.state.deferred:
            stop = self._read()
            self.state.update(rate)
            self.step += 1
        else:
            self.state.update(rate, broken=~values[: self._judged].isfinite().all())
            self.step += 1
            stop = self._due(received) and self._read()
        return (received or signal.SIGTERM) if stop else 0

    @property
    def _judged(self) -> int:
        """How many of (loss, norm) must be finite: with a scaler an infinite gradient is how it finds its scale."""
        return 1 if self.processes.scaler.is_enabled() else 2

    def _due(self, received: int) -> bool:
        """Whether to read numbers after this step: the same in all processes, so that all learn of a signal at once."""
        recipe, step = self.recipe, self.step
        if step == recipe.total or stage_at(recipe.sequence, step)[0] != self.stage:
            return True
        if self.processes.count == 1 and received:
            return True
        return any(step % n == 0 for n in (recipe.log_every, recipe.save_every, recipe.evaluate_every, READ_EVERY))

    def _backward(self) -> Tensor:
        """The loss of this process's parts of the step, which leave their gradients."""
        loss = torch.zeros((), device=self.processes.device)
        for part in self.mine:
            batch = self._batch(part)
            with self.processes.share(self.state.model, last=part == self.mine[-1]):
                one = self.task.loss(self.state.model, batch) / self.recipe.accumulate
            self.processes.scaler.scale(one).backward()
            loss += one.detach()
        return loss

    def _read(self) -> bool:
        """Reads what steps left on the device, which is waited for; whether a signal came to any process.

        Raises ValueError for the first step whose numbers are not finite; there was no update from there on.
        """
        steps, values = zip(*self.unread, strict=True)
        self.unread = []
        for step, numbers in zip(steps, torch.stack(values).tolist(), strict=True):
            loss, self.norm, signalled = numbers
            if not all(map(math.isfinite, numbers[: self._judged])):
                if self.step != step:  # others came after it: its gradients have to be computed again
                    self.step = step
                    self.state.optimizer.zero_grad(set_to_none=True)
                    self._backward()
                    self.state.norm()
                raise self._broken(f"the loss is {loss} and the gradient norm {self.norm} at step {step + 1}")
            self.recent.append(loss)
            self.shown = {"loss": loss}
        return bool(signalled)

    def _batch(self, part: int) -> Any:
        """A part of this step's batch; the randomness of its loss is set."""
        batch = self.task.batch(self.seed, self.step, part, self.parts)
        parallel = self.processes.parallel
        reseed(self.seed, "step", self.step, part, *(() if parallel is None else (parallel.rank,)))
        return batch

    def _broken(self, what: str) -> ValueError:
        """The error that names the layer where a number stopped being finite; all processes must call it."""

        def loss(part: int) -> Tensor:
            batch = self._batch(part)
            with self.processes.autocast():
                return self.task.loss(self.state.raw, batch)

        layer = min(self.processes.everyone(where_it_broke(self.state.raw, lambda: list(map(loss, self.mine)))))[1]
        good = f"the last good checkpoint is {self.saved}" if self.saved else "there is no checkpoint yet"
        return ValueError(f"{what}, first seen in {layer}; {good}; a lower lr, a warm-up or a smaller clip may help")

    def _next_stage(self, stage: int) -> None:
        self.stage = stage
        before, self.config = self.config, changed(self.config, self.recipe.sequence[stage].frames)
        if self.config != before:
            raw, smaller = adapt(self.state.raw, seed=self.seed, frames=self.config.frames), self.state
            self.state = State(raw, self.recipe, self.processes)
            self.state.follow(smaller)

    # -- what is measured and kept -----------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Any]:
        """The line of the metrics for this step: what the task measures on held-out data, which is logged."""
        state = self.state
        state.model.eval()
        try:
            with torch.no_grad(), state.averaged(), self.processes.autocast():
                self.task.prepare(state.raw, self.step)
                found = self.task.evaluate(state.model, self.processes)
        finally:
            reshard(state.raw)
            state.model.train()
        for name, value in found.items():
            if not math.isfinite(value):
                raise self._broken(f"the {name} on held-out data is {value} at step {self.step}")
        if self.processes.main:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            logger.info(f"step {self.step:,} of {self.recipe.total:,}, held out: {shown}")
        self.last = {"step": self.step, **found}
        return self.last

    def _write(self, entry: dict[str, Any], record: recorder.Recorder) -> None:
        if self.processes.main:
            self.log.write(entry)
            record.write(entry)

    def save(self) -> None:
        """Saves a checkpoint of this step; all processes bring their shards, the first one writes."""
        if not all(self.processes.everyone(finite([*self.state.parameters.values()]))):
            raise self._broken(f"the weights are no longer finite at step {self.step}")
        tensors = self.state.tensors()
        state = {
            "stage": self.stage, "settings": self.settings, "circumstances": self.circumstances,
            "drifted": self.drifted, "extended": self.extended, "recent": self.recent,
            "scaler": self.processes.scaler.state_dict(),
        }  # fmt: skip

        def write() -> Path:
            saved = checkpoints.save(
                self.out / CHECKPOINTS, self.step, tensors, state | {"metrics": self.log.place()},
                runs.described(self.config), keep=self.recipe.keep,
            )  # fmt: skip
            self.mirror.publish()
            return saved

        self.saved = self.processes.first(write)

    def finish(self) -> None:
        """Writes what a finished run has; all processes bring their shards, the first one writes."""
        self.state.settle()
        weights = self.state.weights()

        def write() -> None:
            self.log.place()  # its last line must be on the disk before anything says that the run has ended
            self._describe()
            save_weights(weights, self.out)
            names = [CONFIG, METRICS, WEIGHTS, *(name for name in KEPT if (self.out / name).is_file())]
            files = {name: checksum(self.out / name) for name in sorted(names)}
            write_whole(self.out / MANIFEST, sealed({"steps": self.recipe.total, "files": files}))

        self.processes.first(write)

    def _describe(self) -> None:
        """Writes config.json, and what the task keeps beside the model."""
        content = {**runs.described(self.config), "run": self.settings, "notes": self.notes}
        write_json(self.out / CONFIG, content | ({"extended": self.extended} if self.extended else {}))
        self.task.keep(self.out)
        ours, theirs = self.out / TOKENIZER, (self.weights.folder if self.weights else self.out) / TOKENIZER
        if ours.is_file() and theirs.is_file() and ours.read_bytes() != theirs.read_bytes():
            raise ValueError(
                f"{theirs} is not the tokenizer of this text: load the text with it, as in "
                "load_text(data, tokenizer=open_run(RUN).tokenizer())"
            )
