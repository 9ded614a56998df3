"""On an accelerator the host runs ahead: no step waits for the device but those that read numbers. Pretended here."""

import json
import math
import sys

import numpy as np
import pytest
from PIL import Image
from pretended import PLACE, Accelerator
from runner import config_of, lm_task, recipe_of, vit_task

from joformer.models import ClassifierConfig, ViTConfig
from joformer.training import Augment, ImageTask, Mix, Processes, Streamed, load_images, loop, state, train


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
    "vit, fixed": lambda _: (config_of("vit", {"model": "rope2d"}), vit_task(draw="randint")),
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
