"""On an accelerator the host runs ahead: no step waits for the device but those that read numbers. Pretended here."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pretended import PLACE, Accelerator, There
from runner import config_of, lm_task, recipe_of, vit_task

from joformer.models import ClassifierConfig, ViTConfig
from joformer.training import (
    Augment,
    ImageTask,
    LanguageTask,
    Mix,
    Processes,
    Streamed,
    load_images,
    loop,
    state,
    train,
)
from joformer.training.augment.operations import OPERATIONS
from joformer.training.transfer import to_device


def streamed(folder):
    """A few pictures, in two classes, decoded by this process while training."""
    for number in range(12):
        path = folder / ("train", "test")[number >= 8] / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    images = Streamed(folder, size=16, workers=0)
    task = ImageTask(images, batch=8, augment=Augment.imagenet(), mix=Mix.imagenet())
    small = {"dim": 16, "layers": 1, "heads": 2, "classes": 2}
    return ViTConfig(shape=(16, 16), patch=(8, 8), **small), task


CASES = {
    "lm": lambda _: (config_of("lm", {}), lm_task()),
    "lm, windows": lambda _: (config_of("lm", {"pattern": "WN", "window": 8, "frames": "cumulative"}), lm_task()),
    "vit": lambda _: (config_of("vit", {}), vit_task()),
    "streamed": streamed,
    "monoidal": lambda _: (ClassifierConfig(dim=16, shape=(8, 8)), ImageTask(load_images("digits"), cells=True)),
}
RECIPE = {"steps": 6, "log_every": 3, "evaluate_every": 6, "save_every": 6}


@pytest.fixture
def accelerator(monkeypatch):
    """A device for `train`, and what made the host wait for it within each step."""

    class Pretending(Processes):
        def __init__(self, *args):
            super().__init__(*args)
            self.device = PLACE

    device, waits, step = Accelerator(), {}, loop._Run._step

    def watched(run, *args):
        device.waits.clear()
        stop = step(run, *args)
        waits[run.step] = list(device.waits)
        return stop

    monkeypatch.setattr(loop._Run, "_step", watched)
    monkeypatch.setattr(loop, "Processes", Pretending)
    monkeypatch.setattr(state, "DEFERRED", (PLACE.type,))
    # AdamW asks for devices that have a fused kernel; this one has the CPU's.
    optimizer = sys.modules["torch.optim.optimizer"]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: [PLACE.type, "cpu"])
    device.steps = waits
    return device


def weights(out):
    from safetensors.torch import load_file

    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_a_step_waits_only_where_numbers_are_logged(case, memory, accelerator):
    config, task = CASES[case](memory / "data")
    with accelerator:
        train(config, task, recipe_of(RECIPE), memory / "run", loggers=())
    read = ["_to_copy"]  # all numbers of the steps since the last line, in one
    assert accelerator.steps == {1: [], 2: [], 3: read, 4: [], 5: [], 6: read}
    lines = [json.loads(line) for line in (memory / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6, 6]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert all(value.isfinite().all() for value in weights(memory / "run").values())


class Careless(LanguageTask):
    """The task, with something that makes the host wait."""

    how = staticmethod(lambda loss: loss.item())

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.how(loss.detach())
        return loss


@pytest.mark.parametrize(
    ("how", "wait"),
    [
        (lambda loss: loss.item(), "_local_scalar_dense"),
        (math.isfinite, "_local_scalar_dense"),
        (lambda loss: loss.isnan().any() and None, "_local_scalar_dense"),
        (lambda loss: loss.cpu(), "_to_copy"),
        (lambda loss: loss.tolist(), "_to_copy"),
        (lambda loss: torch.ones(3).to(loss.device), "_to_copy"),
        (lambda loss: torch.tensor([1.0], device=loss.device), "_to_copy"),
        (lambda loss: loss.expand(2)[loss.expand(2) > 0], "index"),
        (lambda loss: loss.nonzero(), "nonzero"),
    ],
)
def test_what_waits_is_found(how, wait, memory, accelerator):
    task = lm_task()
    task.__class__, task.how = Careless, how
    with accelerator:
        train(
            config_of("lm", {"layers": 1}), task, recipe_of({"steps": 2, "accumulate": 1}), memory / "run", loggers=()
        )
    assert accelerator.steps[1] == [wait]


EVERY = Augment(rand_from=tuple(OPERATIONS), rand_ops=3, rand_magnitude=15, erase_size=5)


@pytest.mark.parametrize(
    "augment",
    [EVERY, Augment.imagenet(crop_pad=3), Augment.deit(crop_pad=3, crop_border="zeros", rand_magnitude=20)],
    ids=["every operation", "imagenet", "deit"],
)
def test_augmentation_runs_on_the_device(augment):
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 3, 16, 20), dtype=torch.uint8, generator=random)
    labels, mix = torch.randint(0, 10, (64,), generator=random), Mix.imagenet()
    plan, mixing = augment.plan(64, random), mix.plan(64, random)
    assert len(plan.codes.unique()) == len(augment.rand_from) + (augment.rand_probability < 1)
    want = mix(augment(images, plan), labels, mixing, classes=10)
    with Accelerator() as device:
        there = to_device(images, PLACE), to_device(labels, PLACE)
        found = mix(augment(there[0], plan), there[1], mixing, classes=10)
        assert device.waits == []
        assert all(isinstance(one, There) for one in found)
        assert all(torch.equal(one.cpu(), other) for one, other in zip(found, want, strict=True))
