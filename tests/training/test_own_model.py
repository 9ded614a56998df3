"""A model of a user's own in the loop: the example, killed and resumed; its folder; what does not fit."""

import json

import pytest
import torch
from runner import RECIPE, config_of, lm_task, logged, own, recipe_of
from safetensors.torch import load_file
from torch import nn

from joformer.models import JoFormerLM, initialise, load
from joformer.training import Task, load_weights, open_run, train

pytestmark = pytest.mark.usefixtures("one_thread")


def run(out, model=None, task=None, *, start=None, loggers=(), **recipe):
    with logged(lines := []):
        model = config_of("own", {}) if model is None else model
        task = own().Repeat() if task is None else task
        return train(model, task, recipe_of(recipe), out, start=start, loggers=loggers), lines


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("batch", [3, 14, 24])  # before the first checkpoint, amid two, in the last step
def test_killed_and_resumed_it_has_the_same_bits(server, memory, result_of, batch):
    assert server.run(memory / "whole", kind="own").code == 0
    befall = {"send": "SIGKILL", "during": "batch", "times": batch}
    assert server.run(memory / "run", kind="own", befall=befall).code == -9
    assert server.run(memory / "run", kind="own").code == 0
    assert result_of(memory / "run") == result_of(memory / "whole")


def test_what_the_folder_of_its_run_has(memory):
    model = config_of("own", {})
    result, _ = run(memory, model)
    assert result == metrics(memory)[-1]
    about = json.loads((memory / "config.json").read_text())
    assert (about["model"], about["config"]) == ("Echo", {"tokens": 8, "width": 8})
    assert about["layout"]["embed.weight"] == "F32 (8, 8)"
    weights = load_file(memory / "model.safetensors")
    averaged = load_file(memory / "checkpoints" / "00000012" / "averaged.safetensors")
    last = load_file(memory / "checkpoints" / "00000012" / "model.safetensors")
    fresh, again = config_of("own", {}), config_of("own", {})
    load_weights(fresh, memory)
    assert run(memory, again)[0] == result  # finished: read, not trained
    for name, value in weights.items():
        assert torch.equal(value, averaged[name])
        assert not torch.equal(value, last[name])
        for one in (model, fresh, again):
            assert torch.equal(one.state_dict()[name], value), name
    # Unfinished, they are those of the newest good checkpoint, averaged too.
    for name in ("model.safetensors", "manifest.json"):
        (memory / name).unlink()
    load_weights(other := config_of("own", {}), memory)
    assert torch.equal(other.embed.weight, averaged["embed.weight"])
    for place in (memory, memory / "checkpoints" / "00000012"):
        with pytest.raises(ValueError, match=r"holds the model Echo, which only its own code .*load_weights"):
            open_run(place)  # only its own code can build it


@pytest.mark.refused
def test_another_architecture_is_one_line(memory):
    run(memory, save_every=12)
    (memory / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"holds a run with config\.width = 8, not 16") as one:
        run(memory, config_of("own", {"width": 16}))
    assert "\n" not in str(one.value)
    other = config_of("own", {"width": 16})
    other.config = {"tokens": 8, "width": 8}  # as where there is no config, or it does not tell
    with pytest.raises(
        ValueError, match=r"does not fit the model, first at 'embed\.weight' of model: .*\(8, 8\)"
    ) as one:
        run(memory, other)
    assert "\n" not in str(one.value)
    with pytest.raises(ValueError, match=r"does not fit Echo, first at 'embed\.weight': F32 of shape \(8, 8\)"):
        load_weights(config_of("own", {"width": 16}), memory)
    with pytest.raises(ValueError, match="a stage can change the frames of a language model, not of Echo"):
        run(memory / "b", stages=["2:1e-3", "2:1e-3:fixed"])


def test_a_module_of_ours_is_the_one_of_its_configuration(memory, result_of):
    config = config_of("lm", {})
    run(memory / "a", config, lm_task())
    run(memory / "b", initialise(JoFormerLM(config), 0), lm_task())
    assert result_of(memory / "a") == result_of(memory / "b")
    assert load(memory / "b").config == config


def test_a_task_needs_four_methods_and_is_prepared(memory):
    with pytest.raises(TypeError, match="abstract"):
        Task()
    calls = []

    class Prepared(own().Repeat):
        def prepare(self, model, step):
            calls.append((type(model), step, model.training))

    run(memory, task=Prepared(), steps=3, evaluate_every=2)
    assert calls == [(own().Echo, step, training) for step, training in
                     [(0, True), (1, True), (2, False), (2, True), (3, False)]]  # fmt: skip


def test_every_line_reaches_a_function(memory):
    heard = []
    run(memory, loggers=[heard.append])
    assert heard == metrics(memory)


# -- fine-tuning and extending -----------------------------------------------------------------------------------------


def test_a_run_starts_with_the_weights_of_another(memory):
    run(memory / "first")
    before = load_file(memory / "first" / "model.safetensors")
    run(memory / "second", start=memory / "first", lr=0.0, steps=2, average=0.0)
    after = load_file(memory / "second" / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items())
    settings = json.loads((memory / "second" / "config.json").read_text())["run"]
    manifest = json.loads((memory / "first" / "manifest.json").read_text())["files"]
    assert settings["start"] == manifest["model.safetensors"]
    # A checkpoint's, averaged; and another start is another run.
    with pytest.raises(ValueError, match="holds a run with start = "):
        run(memory / "second", start=memory / "first" / "checkpoints" / "00000008", lr=0.0, steps=2, average=0.0)
    run(memory / "third", start=memory / "first" / "checkpoints" / "00000008", lr=0.0, steps=2, average=0.0)
    averaged = load_file(memory / "first" / "checkpoints" / "00000008" / "averaged.safetensors")
    assert torch.equal(load_file(memory / "third" / "model.safetensors")["head.weight"], averaged["head.weight"])
    with pytest.raises(ValueError, match=r"does not fit Echo, first at 'embed\.weight'"):
        run(memory / "fourth", config_of("own", {"width": 16}), start=memory / "first")


@pytest.mark.refused
def test_a_text_in_other_tokens_does_not_start_there(memory):
    run(memory / "first", config_of("lm", {}), lm_task(), steps=2)
    run(memory / "second", config_of("lm", {}), lm_task(), steps=2, start=memory / "first")
    (memory / "first" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"first/tokenizer\.json is not the tokenizer of this text"):
        run(memory / "third", config_of("lm", {}), lm_task(), steps=2, start=memory / "first")


def test_a_finished_run_is_extended(memory, result_of):
    run(memory / "run", warmup=0, end=0.5)
    last = load_file(memory / "run" / "checkpoints" / "00000012" / "model.safetensors")
    result, lines = run(memory / "run", steps=20, warmup=0, end=0.5)
    assert result["step"] == 20
    (line,) = lines
    # From 1e-3 down to a half: at the 12th step nearly down, of 20 steps hardly half way.
    assert line == (
        f"extending {memory / 'run'} from step 12 to 20: the learning rate there was 0.000509 and is 0.000711, "
        "so the weights will differ from those of one uninterrupted run of 20 steps"
    )
    seen = [line["step"] for line in metrics(memory / "run")]
    assert seen == [4, 5, 8, 10, 12, 12, 15, 16, 20, 20]
    about = json.loads((memory / "run" / "config.json").read_text())
    (extended,) = about["extended"]
    assert (extended["step"], extended["steps"], about["run"]["recipe"]["steps"]) == (12, 20, 20)
    assert run(memory / "run", steps=20, warmup=0, end=0.5) == (
        result,
        [f"{memory / 'run'} is already finished: 20 steps"],
    )
    assert not torch.equal(last["head.weight"], load_file(memory / "run" / "model.safetensors")["head.weight"])
    run(memory / "run", steps=22, warmup=0, end=0.5)
    assert len(json.loads((memory / "run" / "config.json").read_text())["extended"]) == 2


def test_an_extension_that_is_killed_resumes_to_the_same_bits(server, memory, result_of):
    for name in ("whole", "run"):
        assert server.run(memory / name, kind="own").code == 0
    longer = {"kind": "own", "recipe": {"steps": 20, "save_every": 3}}
    assert server.run(memory / "whole", **longer).code == 0
    for times in (2, 9):  # before its first checkpoint, and after that
        befall = {"send": "SIGKILL", "during": "batch", "times": times}
        assert server.run(memory / "run", **longer, befall=befall).code == -9
        assert not (memory / "run" / "model.safetensors").exists()
    assert server.run(memory / "run", **longer).code == 0
    assert result_of(memory / "run") == result_of(memory / "whole")


@pytest.mark.refused
def test_what_cannot_be_extended(memory):
    run(memory / "run")
    for changes in ({"steps": 11}, {"steps": 20, "lr": 1e-2}, {"steps": 20, "stages": ["20:1e-3"]}):
        with pytest.raises(ValueError, match="holds a run with recipe") as one:
            run(memory / "run", **changes)
        assert "\n" not in str(one.value)
    run(memory / "staged", stages=["3:1e-3"])
    for changes in ({"steps": 20, "stages": ["3:1e-3"]}, {"stages": ["5:1e-3"]}):
        with pytest.raises(ValueError, match="holds a run with recipe"):
            run(memory / "staged", **changes)
    assert RECIPE["steps"] == 12


def test_nothing_to_train_is_one_line(memory):
    with pytest.raises(ValueError, match="Identity has no parameters to train"):
        run(memory, nn.Identity())
