"""The loop, in this process: the same command gives the same bits, its arithmetic is that of the formulas, it refuses
what it could not do exactly, and it stops where a number is none."""

import json
import math
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from runner import RECIPE, config_of, lm_task, logged, recipe_of, vit_task
from safetensors.torch import load_file

from joformer._io import read_sealed, sealed
from joformer.models import JoFormerLM, initialise
from joformer.training import LanguageTask, Processes, Recipe, learning_rate, load_images, loop, open_run, state, train
from joformer.training.recipe import groups
from joformer.training.state import State

FOREIGN = {"config.json": '{"model_type": "llama"}', "metrics.jsonl": '{"mine": 1}'}
TASKS = {"lm": lm_task, "vit": vit_task}


pytestmark = pytest.mark.usefixtures("one_thread")


def run(out, kind="lm", *, config=None, task=None, seed=0, heard=None, **recipe):
    options = {key: recipe.pop(key) for key in ("drift", "notes") if key in recipe}
    task = TASKS[kind](**task) if isinstance(task, dict) else task or TASKS[kind]()
    with logged([] if heard is None else heard):
        return train(config_of(kind, config or {}), task, recipe_of(recipe), out, seed=seed, **options)


@pytest.fixture(params=[False, True], ids=["read at once", "deferred"])
def deferred(request, monkeypatch):
    """Numbers are read at every step as on the CPU, or left where they are as on a GPU."""
    if request.param:
        monkeypatch.setattr(state, "DEFERRED", ("cpu",))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def steps(out: Path) -> list[int]:
    return sorted(int(path.name) for path in (out / "checkpoints").iterdir())


def never(*_):
    pytest.fail("training began")


def refused(*args, match, **kwargs) -> str:
    with pytest.raises(ValueError, match=match) as refusal:
        run(*args, **kwargs)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.fixture(scope="module")
def done(fast_folder):
    """A run that has ended, to be copied."""
    with fast_folder() as folder:
        run(folder / "run")
        yield folder / "run"


@pytest.fixture
def half(done, memory):
    """The same, at its step 8 of 12: as if it had been killed there."""
    out = shutil.copytree(done, memory / "half")
    (out / "model.safetensors").unlink()
    for step in (10, 12):
        shutil.rmtree(out / "checkpoints" / f"{step:08d}")
    return out


# -- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lm", "vit"])
def test_the_same_command_gives_the_same_bits(memory, result_of, kind):
    outs = [memory / name for name in "abc"]
    run(outs[0], kind)
    # Whatever the process did before, and threw of any dice, is of no account.
    for dice in (torch.manual_seed, random.seed, np.random.seed):
        dice(123)
    torch.rand(7), random.random()
    run(memory / "between", kind, seed=7, evaluate_every=1, steps=2)
    run(outs[1], kind)
    assert result_of(outs[0]) == result_of(outs[1])
    run(outs[2], kind, seed=1)
    other = weights(outs[2])
    assert not any(torch.equal(value, other[key]) for key, value in weights(outs[0]).items() if value.dim() == 2)


def test_numbers_read_late_are_the_same(done, memory, result_of, monkeypatch):
    """Bits do not depend on when the host looks, and it looks where something is logged, saved or evaluated."""
    monkeypatch.setattr(state, "DEFERRED", ("cpu",))
    looks, read = [], loop._Run._read
    monkeypatch.setattr(loop._Run, "_read", lambda self: looks.append(self.step) or read(self))
    run(memory / "run")
    assert result_of(memory / "run") == result_of(done)
    assert looks == [2, 4, 5, 6, 8, 10, 12]
    looks.clear()
    run(memory / "other", log_every=99, save_every=99, evaluate_every=99)
    assert looks == [10, 12]


def test_processes_look_at_the_same_steps():
    """A signal that one of them received changes nothing about when: the others would not know."""
    recipe = Recipe(steps=40, log_every=15, save_every=40, evaluate_every=32)
    for count, received, steps in ((2, 0, [10, 15, 20, 30, 32, 40]), (2, 15, [10, 15, 20, 30, 32, 40]), (1, 15, None)):
        due = []
        for step in range(1, 41):
            found = SimpleNamespace(recipe=recipe, step=step, stage=0, processes=SimpleNamespace(count=count))
            due += [step] * loop._Run._due(found, received)
        assert due == (steps or list(range(1, 41)))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_broken_update_is_left_out_and_so_are_all_after_it(scaled):
    processes, model = Processes(), torch.nn.Linear(3, 1)
    processes.scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=4.0)
    made = State(model, Recipe(), processes)
    seen = []
    for broken in (False, True, False):
        processes.scaler.scale(model(torch.ones(1, 3)).sum() * (torch.nan if broken else 1.0)).backward()
        norm = made.norm()
        assert bool(norm.isfinite()) == (not broken)
        made.update(0.1, ~norm.isfinite())
        moments = made.tensors()["optimizer"]
        seen.append([model.weight.detach().clone(), *(moments[name] for name in sorted(moments))])
    assert all(value.isfinite().all() for value in seen[0])
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*seen, strict=True))


def test_saving_and_evaluating_change_nothing(done, memory):
    out = memory / "run"
    run(out, save_every=1, keep=9)
    assert steps(out) == list(range(4, 13))
    assert (out / "metrics.jsonl").read_bytes() == (done / "metrics.jsonl").read_bytes()
    for name in ("model", "optimizer", "averaged"):
        file = f"checkpoints/00000012/{name}.safetensors"
        assert (out / file).read_bytes() == (done / file).read_bytes()
    run(memory / "often", evaluate_every=1, log_every=1)
    assert (memory / "often" / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()


def test_continuing_in_the_same_process(half, done, result_of):
    heard = []
    run(half, heard=heard, save_every=3, keep=7)  # neither decides anything
    assert heard == [f"resuming {half} at step 8 of 12"]
    assert steps(half) == [8, 9, 12]
    assert (half / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()
    assert (half / "metrics.jsonl").read_bytes() == (done / "metrics.jsonl").read_bytes()
    assert run(half, save_every=3, keep=7) == metrics(done)[-1]


def test_a_run_of_version_0_1_resumes(memory):
    """Its checkpoints hold the name of a vision model where there are four fields now."""
    run(memory / "whole", "vit")
    out = shutil.copytree(memory / "whole", memory / "before")
    (out / "model.safetensors").unlink()
    for step in (10, 12):
        shutil.rmtree(out / "checkpoints" / f"{step:08d}")
    state = out / "checkpoints" / "00000008" / "state.json"
    content = read_sealed(state)
    config = content["settings"]["config"]
    for name in ("frames", "split", "per_layer"):
        del config[name]
    config |= {"model": "joformer_perlayer", "transport": None}
    state.write_bytes(sealed(content))
    heard = []
    run(out, "vit", heard=heard)
    assert heard == [f"resuming {out} at step 8 of 12"]
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / name).read_bytes() == (memory / "whole" / name).read_bytes()
    refused(out, "vit", config={"model": "joformer"}, match="config.per_layer = True, not False")


def test_a_crash_between_two_saves(memory, done, result_of):
    class Crashes(LanguageTask):
        def batch(self, seed, step, part, parts):
            if step == at:
                raise RuntimeError("a fault of ours")
            return super().batch(seed, step, part, parts)

    task, out = lm_task(), memory / "run"
    task.__class__ = Crashes
    for at in (0, 1, 5, 5, 7, 11):  # noqa: B007
        with pytest.raises(RuntimeError, match="a fault of ours"):
            run(out, task=task)
    at = None
    run(out, task=task)
    assert result_of(out) == result_of(done)


def test_what_a_run_leaves(done):
    lines = metrics(done)
    assert [line["step"] for line in lines] == [4, 5, 8, 10, 12, 12]
    assert [sorted(line) for line in lines[:2]] == [
        ["bits_per_byte", "loss", "perplexity", "step"],
        ["gradient", "lr", "step", "train_loss"],
    ]
    assert not [key for line in lines for key in line if "time" in key or "second" in key]
    speed = [json.loads(line) for line in (done / "speed.jsonl").read_text().splitlines()]
    assert [line["step"] for line in speed] == [4, 5, 8, 10, 12]
    assert all(line["seconds_per_step"] > 0 for line in speed)
    assert sorted(path.name for path in done.iterdir() if not path.name.startswith(".")) == [
        "checkpoints",
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "model.safetensors",
        "speed.jsonl",
        "tokenizer.json",
    ]
    about = json.loads((done / "config.json").read_text())
    assert about["model"] == "JoFormerLM"
    assert about["run"]["recipe"]["lr"] == Recipe().lr


def test_what_is_opened_is_what_was_evaluated(done, half):
    task = lm_task()
    processes = Processes()
    for place, step, line in ((done, None, -1), (half, 8, 2), (done / "checkpoints" / "00000012", 12, -1)):
        with logged(pytest.fail):
            opened = open_run(place)
        assert opened.step == step
        with torch.no_grad():
            found = task.evaluate(opened.model, processes)["loss"]
        assert found == pytest.approx(metrics(done)[line]["loss"], rel=1e-6)  # in the run, in parts as in training


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"lr": 2e-3}, "recipe.lr = 0.001, not 0.002"),
        ({"steps": 13}, "recipe.steps"),
        ({"average": 0.8}, "recipe.average"),
        ({"accumulate": 1}, "recipe.accumulate"),
        ({"evaluate_every": 3}, "recipe.evaluate_every"),
        ({"clip": None}, "recipe.clip = 1.0, not None"),
        ({"stages": ["12:1e-3"]}, "recipe.stages"),
        ({"seed": 1}, "seed = 0, not 1"),
        ({"config": {"dim": 32}}, "config.dim = 16, not 32"),
        ({"config": {"frames": "fixed"}}, "config.frames"),
        ({"task": {"context": 8}}, "task.context = 16, not 8"),
        ({"task": {"batch": 8}}, "task.batch = 4, not 8"),
        ({"task": {"fingerprint": "cubes"}}, "holds a run on other data: give the same"),
        ({"kind": "vit"}, "recipe|model|task"),
    ],
    ids=str,
)
def test_other_settings_are_refused_by_name(half, done, changes, names):
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    refused(half, **changes, match=names)
    refused(half, **changes, drift=True, match=names)  # drift is about machines, not about settings
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


@pytest.mark.refused
def test_another_number_of_threads_is_refused(half):
    torch.set_num_threads(2)
    try:
        refused(half, match="was made with threads = 1, but here it is 2")
        assert run(half, drift=True)["step"] == 12
    finally:
        torch.set_num_threads(1)


@pytest.mark.refused
def test_an_altered_log_is_refused(half):
    path = half / "metrics.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"step": 5', b'"step": 6'))
    refused(half, match=r"metrics\.jsonl has changed since")
    path.unlink()
    refused(half, match=r"metrics\.jsonl has changed since")
    path.write_bytes(content + b"more, which a run wrote after its last checkpoint")
    assert run(half)["step"] == 12


@pytest.mark.refused
def test_folders_that_cannot_be_written_into(memory):
    """All said before the first batch is asked for."""
    task = lm_task()
    task.batch = never
    (memory / "file").touch()
    refused(memory / "file", task=task, match=r"file is a file: give a directory")
    refused(memory / "file" / "run", task=task, match=r"cannot write into .*Not a directory")
    refused(Path("/proc/1/run"), task=task, match=r"cannot write into /proc/1/run")
    (memory / "run").mkdir()
    (memory / "run" / "checkpoints").touch()
    refused(memory / "run", task=task, match=r"checkpoints is a file")
    (memory / "model").mkdir()
    (memory / "model" / "model.safetensors").write_bytes(b"somebody's")
    refused(memory / "model", task=task, match="holds a model but no good checkpoint")
    assert (memory / "model" / "model.safetensors").read_bytes() == b"somebody's"


@pytest.mark.refused
def test_what_cannot_be_done_is_said_first(memory):
    task = lm_task()
    task.batch = never
    refused(memory / "a", task=task, accumulate=3, match="a batch of 4 does not divide into 3 parts")
    if not torch.accelerator.is_available():
        refused(memory / "b", task=task, precision="fp16", match="fp16 is not available on the CPU")
    refused(memory / "b", task=task, precision="fp8", match="precision must be fp32, bf16 or fp16, got 'fp8'")
    refused(memory / "c", task=task, stages=["2:1e-3", "2:1e-3:spiral"], match="frames must be .*got 'spiral'")
    refused(memory / "d", "vit", stages=["2:1e-3", "2:1e-3:fixed"], match="a stage can change the frames of a lang")
    refused(memory / "e", stages=["2"], match="cannot read the stage '2'")
    refused(memory / "f", steps=0, match="steps must be 1 or more")


# -- arithmetic --------------------------------------------------------------------------------------------------------


def by_hand(config, recipe, steps, *, seed=0, task=None):
    """The loop as its formulas say, in float64; (weights, averages, losses, norms)."""
    model, task = initialise(JoFormerLM(config), seed).double(), task or lm_task()
    values = dict(model.named_parameters())
    first, second = ({name: torch.zeros_like(value) for name, value in values.items()} for _ in range(2))
    averages = {name: value.detach().clone() for name, value in values.items()}
    losses, norms = [], []
    for step in range(steps):
        loss = model(task.batch(seed, step, 0, 1)[0], targets=task.batch(seed, step, 0, 1)[1])
        gradients = dict(zip(values, torch.autograd.grad(loss, list(values.values()))))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        scale = min(1.0, recipe.clip / (norm + 1e-6)) if recipe.clip else 1.0
        rate = recipe.lr * (step + 1) / recipe.warmup if step < recipe.warmup else None
        if rate is None:
            share = (step - recipe.warmup) / (recipe.steps - recipe.warmup)
            rate = recipe.lr * (recipe.end + (1 - recipe.end) * 0.5 * (1 + math.cos(math.pi * share)))
        one, two = recipe.betas
        losses.append(loss.item())
        norms.append(norm)
        with torch.no_grad():
            for name, value in values.items():
                g = gradients[name] * scale
                first[name] = one * first[name] + (1 - one) * g
                second[name] = two * second[name] + (1 - two) * g * g
                # Matrices decay; norms (one axis) and frequencies do not.
                if value.dim() == 2 and "frequencies" not in name:
                    value.mul_(1 - rate * recipe.weight_decay)
                m, v = first[name] / (1 - one ** (step + 1)), second[name] / (1 - two ** (step + 1))
                value.sub_(rate * m / (v.sqrt() + 1e-8))
                averages[name] = recipe.average * averages[name] + (1 - recipe.average) * value
    return values, averages, losses, norms


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_loop_is_what_its_formulas_say(memory, clip):
    config = config_of("lm", {"dropout": 0.0})
    recipe = {"steps": 6, "clip": clip, "lr": 1e-2, "log_every": 1, "weight_decay": 0.5, "average": 0.7}
    run(memory, config={"dropout": 0.0}, **recipe)
    values, averages, losses, norms = by_hand(config, recipe_of(recipe), 6)
    lines = [line for line in metrics(memory) if "train_loss" in line]
    assert [line["train_loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
    assert [line["gradient"] for line in lines] == pytest.approx(norms, rel=1e-4)
    assert clip is None or min(norms) > clip  # or it would be no test of clipping
    found = load_file(memory / "checkpoints" / "00000006" / "model.safetensors")
    smoothed = load_file(memory / "checkpoints" / "00000006" / "averaged.safetensors")
    start = dict(initialise(JoFormerLM(config), 0).named_parameters())
    for name, value in values.items():
        # Against how far it moved: a wrong decay or a missing moment shows there, not in the weights themselves.
        moved = (value - start[name]).abs().max()
        assert (found[name].double() - value).abs().max() < 2e-3 * moved, name
        assert (smoothed[name].double() - averages[name]).abs().max() < 2e-3 * moved, name
        assert torch.equal(weights(memory)[name], smoothed[name])


def test_what_decays():
    model = JoFormerLM(config_of("lm", {"tied": False}))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, not_decaying = ([names[id(p)] for p in group["params"]] for group in groups(model, 0.1))
    assert "embed.weight" in decaying
    assert "head.weight" in decaying
    assert "frames.1.project.weight" in decaying or any("frames.1" in name for name in decaying)
    assert any("frames.0" in name for name in not_decaying)
    assert not [name for name in decaying if "norm" in name or name.endswith("bias") or "frequencies" in name]
    assert len(decaying) + len(not_decaying) == len(names)


def test_parts_add_up_to_the_whole(memory):
    for parts in (1, 2, 4):
        run(memory / str(parts), config={"dropout": 0.0}, accumulate=parts, log_every=1)
    losses = {parts: [line.get("train_loss", 0) for line in metrics(memory / str(parts))] for parts in (1, 2, 4)}
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
    assert losses[4] == pytest.approx(losses[1], rel=1e-5)


def test_rates_in_the_log(memory):
    recipe = recipe_of({"stages": ("4:1e-2", "5:1e-3"), "warmup": 2, "log_every": 1})
    run(memory, stages=["4:1e-2", "5:1e-3"], warmup=2, log_every=1)
    wanted = [learning_rate(stage, at, warmup=2, end=0.1) for stage in recipe.sequence for at in range(stage.steps)]
    assert [line["lr"] for line in metrics(memory) if "lr" in line] == wanted
    assert wanted[:2] == [5e-3, 1e-2]
    assert wanted[4] == 5e-4


def test_a_stage_changes_frames_and_nothing_else(memory):
    """With a rate of 0 in the second stage, every evaluation there is that of the first stage's end."""
    out = memory / "run"
    run(
        out, config={"frames": "fixed"}, stages=["4:1e-2", "3:0:projected"], evaluate_every=1, log_every=99, average=0.0
    )
    losses = [line["loss"] for line in metrics(out) if "loss" in line]
    assert len(losses) == 7
    assert losses[3:] == pytest.approx([losses[3]] * 4, rel=1e-6)
    assert losses[2] != losses[3]
    assert open_run(out).model.config.frames == "projected"
    before, after = (load_file(out / "checkpoints" / f"{n:08d}" / "model.safetensors") for n in (4, 7))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert after.keys() > before.keys()


def test_a_stage_learns_what_is_new_in_it(memory):
    out = memory / "run"
    run(out, config={"frames": "fixed"}, stages=["2:1e-2", "4:1e-2:projected"])
    new = [value for name, value in weights(out).items() if name.startswith("frames")]
    assert new
    assert any(value.abs().max() > 0 for value in new)


# -- precision and compilation -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lm", "vit"])
def test_bfloat16(memory, kind, result_of):
    run(memory / "a", kind, precision="bf16", steps=4)
    run(memory / "b", kind, precision="bf16", steps=4)
    run(memory / "c", kind, steps=4)
    assert result_of(memory / "a") == result_of(memory / "b")
    assert {value.dtype for value in weights(memory / "a").values()} <= {torch.float32, torch.float64}
    losses = [metrics(memory / name)[-1]["loss"] for name in "ac"]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_scaled_losses_are_the_same_update_and_an_infinite_one_is_none():
    """What fp16 needs, which the CPU does not have; the scale is a power of two, so the bits are the same."""
    found = []
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=1024.0)):
        processes, model = Processes(), torch.nn.Linear(3, 1)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.zeros_(model.bias)
        processes.scaler = scaler
        state = State(model, Recipe(clip=0.1), processes)
        for x in (1.0, torch.inf, 2.0):
            loss = state.model(torch.full((1, 3), 1.0)).sum() * x
            if not scaler.is_enabled() and x == torch.inf:
                continue
            processes.scaler.scale(loss).backward()
            norm = state.norm()
            assert bool(norm.isfinite()) == (x != torch.inf)
            state.update(0.1)
        found.append(model.weight.detach())
    assert scaler.get_scale() == 512.0
    assert torch.equal(*found)
    assert not torch.equal(found[0], torch.full((1, 3), 0.5))


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo tracing a Function
def test_compiled(memory, monkeypatch):
    usual = torch.nn.Module.compile
    # The compiler's first half: its second takes a minute, and is torch's own business.
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: usual(self, backend="aot_eager"))
    recipe = {"steps": 2, "save_every": 1, "accumulate": 1, "average": 0.0}
    config = {"layers": 1, "frames": "fixed", "dropout": 0.0}
    run(memory / "eager", config=config, **recipe)
    run(memory / "compiled", config=config, compile=True, **recipe)
    assert metrics(memory / "compiled")[-1]["loss"] == pytest.approx(metrics(memory / "eager")[-1]["loss"], rel=1e-4)
    assert weights(memory / "compiled").keys() == weights(memory / "eager").keys()


# -- numbers that are none ---------------------------------------------------------------------------------------------


class Poisoned(LanguageTask):
    """Does something to the model before the loss of a step; steps are told apart by how often `batch` is called."""

    at, poison = 6, staticmethod(lambda model: None)

    def batch(self, seed, step, part, parts):
        self.step = step
        return super().batch(seed, step, part, parts)

    def loss(self, model, batch):
        if self.step == self.at and torch.is_grad_enabled():
            self.poison(model)
        return super().loss(model, batch)


def infinite_weight(model):
    with torch.no_grad():
        model.blocks[1].up.weight[0, 0] = torch.inf


def broken_output(model):
    model.blocks[0].norm2.register_forward_hook(lambda module, inputs, output: output * torch.nan)


def broken_gradient(model):
    model.blocks[0].up.weight.register_hook(lambda gradient: gradient * torch.nan)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("poison", "layer"),
    [
        (infinite_weight, r"the weights of blocks\.1\.up"),
        (broken_output, r"the output of blocks\.0\."),
        (broken_gradient, r"the gradient of blocks\.0\.up"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_number_that_is_none_stops_the_run(memory, done, result_of, poison, layer, deferred):
    task, out = lm_task(), memory / "run"
    task.__class__, task.poison = Poisoned, poison
    last = out / "checkpoints" / "00000006"
    said = refused(out, task=task, match=rf"at step 7, first seen in {layer}.*; the last good checkpoint is {last}; ")
    assert "a lower lr" in said
    assert steps(out) == [2, 4, 6]
    assert not (out / "model.safetensors").exists()
    run(out)  # without the poison it goes on from there as if nothing had been
    assert result_of(out) == result_of(done)


@pytest.mark.refused
@pytest.mark.parametrize("lr", [1e18, 1e30, 3e38])
@pytest.mark.parametrize("evaluate_every", [1, 100])
def test_an_absurd_rate_stops_the_run(memory, lr, evaluate_every, deferred):
    """And leaves no checkpoint that is broken."""
    out = memory / "run"
    recipe = {"lr": lr, "warmup": 0, "save_every": 1, "keep": 9, "log_every": 1, "evaluate_every": evaluate_every}
    refused(out, **recipe, match=r"at step \d+, first seen in .*a lower lr")
    for step in steps(out):
        values = load_file(out / "checkpoints" / f"{step:08d}" / "model.safetensors").values()
        assert all(value.isfinite().all() for value in values)
    for line in metrics(out):
        assert all(math.isfinite(value) for value in line.values())


def test_no_tensorboard_is_fine(memory, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert run(memory, steps=1)["step"] == 1
    assert not (memory / "tensorboard").exists()


def test_images_as_cells_are_another_task():
    digits = load_images("digits")
    plain, cells = (vit_task(augment=None, mix=None, cells=cells).describe() for cells in (False, True))
    assert plain != cells
    assert plain["images"] == digits.fingerprint
    assert RECIPE["accumulate"] == 2


@pytest.mark.parametrize("name", FOREIGN)
def test_a_new_run_overwrites_nothing_that_is_not_a_runs(name, memory):
    (memory / name).write_text(FOREIGN[name])
    with pytest.raises(ValueError, match=rf"holds a {name} that is not of a run of joformer: choose another --out"):
        run(memory)
    assert (memory / name).read_text() == FOREIGN[name]
