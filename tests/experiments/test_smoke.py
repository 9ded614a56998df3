"""The rehearsal: what is counted is what is measured, and nothing that fails is passed over."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from joformer.bench._measure import peak_bytes
from joformer.cli.grid import show_rehearsal
from joformer.experiments import Cell, ImageSource, TextSource, plan, smoke, standins
from joformer.experiments.execution import Execution
from joformer.experiments.footprint import _AsOnCuda, count
from joformer.models import ClassifierConfig, LMConfig, ViTConfig
from joformer.training import ImageTask, LanguageTask, Processes, Recipe, Text, Tokenizer, load_images
from joformer.training.state import State

# What registers an operator cannot be checked for shapes.
pytestmark = pytest.mark.compiled
SMALL = {"shape": (8, 8), "patch": (1, 1), "channels": 1, "classes": 10, "dim": 32, "layers": 2, "heads": 2}
DIGITS = ImageSource("digits", batch=64)


def digits(batch):
    task = ImageTask(load_images("digits"), batch=batch)
    return task, task.batch(0, 0, 0, 1)


def words():
    ids = np.arange(4000, dtype=np.uint8)
    task = LanguageTask(Text(ids, ids, ids, Tokenizer.of_bytes(), "numbers"), context=64, batch=32)
    return task, task.batch(0, 0, 0, 1)


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        (ViTConfig(model="joformer_old", **SMALL), "fp32"),
        (ViTConfig(model="cumulative", **SMALL), "bf16"),
        (LMConfig(vocab=4000, dim=32, layers=2, heads=2, frames="learned", pattern="WF", window=8), "fp32"),
    ],
)
@pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # which setting oneDNN's flags says
def test_the_count_is_what_the_allocator_saw(config, precision):
    recipe, (task, batch) = Recipe(precision=precision), words() if isinstance(config, LMConfig) else digits(32)
    processes, kept = Processes(precision), []

    def steps():
        state = State(config.build(), recipe, processes)
        for _ in range(2):
            with processes.autocast():
                loss = task.loss(state.model, batch)
            loss.backward()
            del loss
            state.norm()
            state.update(1e-3)
        kept.append(state)

    # Where a processor has no bf16 instructions oneDNN keeps copies of its own, which are no tensors of the model's.
    with torch.backends.mkldnn.flags(enabled=False):
        measured = peak_bytes(steps) + sum(one.numel() * one.element_size() for one in batch)
    found = count(config, task, recipe, batch, rows=32, cuda=False)
    assert found.peak == pytest.approx(measured, rel=0.02)
    tensors = [*kept[0].raw.parameters(), *kept[0].raw.buffers()]
    tensors += [one for its in kept[0].optimizer.state.values() for one in its.values()]
    assert found.state == sum(one.numel() * one.element_size() for one in tensors)
    assert found.parameters == sum(one.numel() for one in kept[0].raw.parameters())


def test_activations_grow_with_the_batch_and_state_does_not():
    config, (task, batch) = ViTConfig(**SMALL), digits(2)
    one, two, four = (count(config, task, Recipe(), batch, rows=rows) for rows in (64, 128, 256))
    assert one.state == two.state == four.state
    assert (four.peak - two.peak) / (two.peak - one.peak) == pytest.approx(2, rel=0.02)
    assert four.flops == 2 * two.flops == 4 * one.flops


def test_parts_averages_and_copies_of_gradients_are_counted():
    config, (task, batch) = ViTConfig(**SMALL), digits(2)
    plain = count(config, task, Recipe(), batch, rows=64)
    weights = 4 * plain.parameters
    averaged = count(config, task, Recipe(average=0.9), batch, rows=64)
    assert averaged.state - plain.state == averaged.peak - plain.peak == weights
    assert count(config, task, Recipe(), batch, rows=64, copies=True).peak - plain.peak == weights
    parted = count(config, task, Recipe(accumulate=4), batch, rows=64)
    assert parted.peak - plain.peak == pytest.approx(weights, rel=0.05)  # gradients of the parts before
    assert parted.flops == 4 * plain.flops


def test_products_are_counted_once_forward_and_twice_backward():
    config, (task, batch) = ViTConfig(**SMALL), digits(2)
    found = count(config, task, Recipe(), batch, rows=8, held=[[(8, 1, 8, 8), (8,)]])
    tokens, dim, layers = 8 * 65, 32, 2
    products = layers * 2 * tokens * 12 * dim * dim + 2 * 8 * 64 * dim + 2 * 8 * dim * 10
    attention = layers * 4 * tokens * 65 * dim
    assert found.evaluated == ((products + attention) / 8,)
    # No gradient goes to the pixels; the backward of attention makes its scores once more.
    assert found.flops == 3 * products - 2 * 8 * 64 * dim + attention * 7 // 2


def test_attention_as_on_cuda():
    def peak(width):
        config = LMConfig(vocab=256, dim=width, layers=1, heads=1, hidden=8)
        tokens = torch.zeros(1, 1024, dtype=torch.int64)
        task = LanguageTask.__new__(LanguageTask)
        task.parallel = None
        return count(config, task, Recipe(), (tokens, tokens), rows=4).peak

    scores = 4 * 4 * 1024**2
    assert peak(8) < scores < peak(6)  # no kernel takes heads of 6 in float32: the scores are kept
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.layer_norm(x, (4,)).dtype == torch.bfloat16
        with _AsOnCuda():
            assert F.layer_norm(x, (4,)).dtype == torch.float32
            assert F.linear(x, x).dtype == torch.bfloat16


def cells(**configs):
    return [
        Cell(name, "", seed, config, DIGITS, Recipe(steps=500)) for name, config in configs.items() for seed in (0, 1)
    ]


def test_a_setting_that_fails_is_named_and_the_others_run(capsys):
    broken = ClassifierConfig(dim=2, shape=(8, 8), classes=3)
    sound = replace(broken, classes=10)
    table = plan("t", "T", "accuracy", [replace(one, source=replace(DIGITS, cells=True))
                                        for one in cells(broken=broken, sound=sound)])  # fmt: skip
    assert show_rehearsal([table], Execution(), 40.0, as_json=True) == 1
    failed, passed = json.loads(capsys.readouterr().out)
    assert (failed["name"], failed["cells"], passed["cells"]) == ("digits-t/broken", 2, 2)
    assert failed["error"] == "the images have 10 classes, the model has 3: set classes=10"
    assert passed["error"] == ""
    assert passed["steps"] == 500
    assert passed["disk"] > passed["state"]
    assert show_rehearsal([replace(table, cells=table.cells[2:])], Execution(), 40.0, as_json=False) == 0
    assert "| digits-t/sound × 2 |" in capsys.readouterr().out


def test_a_card_with_too_little_room_is_told_how_many_parts():
    cell = replace(cells(vit=ViTConfig(**SMALL))[0], source=replace(DIGITS, batch=256))
    whole = smoke._needs(cell, 1, 1)
    enough = (whole.peak * 1.1 + 1e9) / 1e9
    assert [smoke._parts(cell, 1, 1, card) for card in (enough + 1e-6, enough - 1e-6, 1)] == [1, 2, None]
    assert smoke._needs(cell, 2, 1).flops == whole.flops // 2
    row = smoke.Rehearsed("t/vit", 2, parameters=1, batch=64, cards={24: 1, 40: 2, 80: None})
    assert "| yes   | ÷ 2   | no    |" in smoke.as_text([row])
    assert "| batch 32 |" in smoke.as_text([replace(row, timed=True)])


def test_stages_are_a_step_each():
    recipe = Recipe(stages=("100:5e-4", "50:5e-5:projected"), precision="fp16")
    short = smoke._short(recipe)
    assert short.stages == ("1:5e-4", "1:5e-5:projected")
    assert (short.precision, short.betas) == ("bf16", recipe.betas)


def test_mnist_of_the_paper_from_the_command_line(joformer, tmp_path):
    out = tmp_path / "out"
    typed = [
        "reproduce",
        "mnist",
        "--scale",
        "paper",
        "--smoke",
        "--out",
        str(out),
        "--only",
        "mnist/learned/*",
        "*/mlp/*",
    ]
    code, said, _ = joformer(*typed, "--json")
    rows = {row["name"]: row for row in json.loads(said)}
    assert (code, out.exists()) == (0, False)
    assert set(rows) == {"mnist/learned/d-2", "mnist/learned/d-8", "mnist/learned/d-32", "mnist/learned/d-784",
                         "mnist/mlp/d-784"}  # fmt: skip
    first = rows["mnist/learned/d-2"]
    assert (first["cells"], first["batch"], first["steps"], first["parameters"]) == (3, 128, 23438, 1676)
    assert first["peak"] > 70_000 * 28 * 28  # all of the real images stay on the card
    assert first["cards"] == {"24": 1, "40": 1, "80": 1}
    assert first["files"] == 2


def test_both_layouts_of_imagenet_give_the_same_samples(tmp_path):
    def source(name):
        folder = tmp_path / f"{standins.PREFIX}{name}"
        folder.mkdir()
        standins._imagenet(folder, classes=3, size=(40, 30), test=3)
        return ImageSource(str(folder / "imagenet"), batch=4, augment="imagenet", stream=16)

    right, wrong = source("right"), source("wrong")
    assert (len(right.load()), len(right.load().test)) == (6, 3)
    assert standins.true_size(right, 0) == 1_281_167
    smoke._require_flat(right)
    table = Path(wrong.data).parent / standins.FLAT / "labels.csv"
    lines = table.read_text().splitlines()
    file, _, split = lines[-1].split(",")
    table.write_text("\n".join([*lines[:-1], f"{file},{lines[1].split(',')[1]},{split}"]))
    with pytest.raises(ValueError, match="gives different images or labels from class folders"):
        smoke._require_flat(wrong)


def test_data_that_is_there_is_taken_and_the_rest_stands_in(tmp_path):
    data = tmp_path / "data"
    (data / "enwik8").mkdir(parents=True)
    with standins.standing_in(("wikipedia", "mnist"), data) as folder:
        assert sorted(one.name for one in folder.iterdir()) == ["enwik8", "mnist"]
        assert (folder / "enwik8").resolve() == data / "enwik8"
        assert ImageSource(str(folder / "mnist")).steps(50) == 23438
        assert ImageSource("digits", batch=128).steps(1) == 11
    assert not folder.exists()
    assert (data / "enwik8").exists()
    with standins.standing_in(("wikipedia",), data / "enwik8") as folder:
        assert folder == data / "enwik8"
    with standins.standing_in(("speech",), None) as folder:
        assert folder is None


def test_data_without_any_of_it_is_an_error(tmp_path):
    with (
        pytest.raises(ValueError, match="has nothing for mnist, length"),
        standins.standing_in(("mnist", "length"), tmp_path),
    ):
        pass


def test_stand_ins_have_words_enough_for_the_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))
    standins.MAKERS["wikipedia"](tmp_path)
    text = TextSource(str(Path(tmp_path, "wikipedia")), vocab=8000).load()
    assert text.tokenizer.vocab == 8000
    assert len(text.valid) > 8192
