"""What is recorded of a run beside its metrics, and the average that goes on when a model grows."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from runner import lm_task

from joformer.models import JoFormerLM, LMConfig, adapt
from joformer.training import Processes, Recipe, train
from joformer.training.recorder import Recorder
from joformer.training.runs import Log
from joformer.training.state import State


@pytest.fixture
def board(monkeypatch):
    """TensorBoard as far as it is used: what it was made with and told."""
    told = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            told.append((folder.name, purge_step))

        def add_scalar(self, name, value, step):
            told.append((name, value, step))

        def flush(self):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            told.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    return told


def recorded(folder, *loggers):
    with Recorder(folder, 2, Log(folder / "speed.jsonl"), loggers, {"seed": 0}) as recorder:
        recorder.write({"step": 4, "train_loss": 0.375, "lr": 0.1})


def test_the_board_hears_every_metric_and_forgets_what_was_lost(tmp_path, board):
    recorded(tmp_path, "tensorboard")
    assert board == [("tensorboard", 3), ("train_loss", 0.375, 4), ("lr", 0.1, 4), "closed"]
    (line,) = (tmp_path / "speed.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 4


def test_other_processes_write_no_board(tmp_path, board):
    recorded(tmp_path)
    assert board == []
    assert (tmp_path / "speed.jsonl").exists()


def test_the_average_goes_on_when_the_model_grows():
    recipe, processes = Recipe(average=0.9), Processes()
    before = State(JoFormerLM(LMConfig(vocab=9, dim=8, layers=1, heads=2)), recipe, processes)
    for value in before.average:
        value.add_(1.0)
    grown = State(adapt(before.raw, frames="projected"), recipe, processes)
    grown.follow(before)
    known, new = dict(zip(before.parameters, before.average)), dict(zip(grown.parameters, grown.average))
    assert new.keys() > known.keys()
    for name, value in new.items():
        assert torch.equal(value, known.get(name, grown.parameters[name].detach())), name


# -- wandb and trackio, which have one API -----------------------------------------------------------------------------


@pytest.fixture(params=["wandb", "trackio"])
def elsewhere(request, monkeypatch):
    """The module as far as it is used: what was called, in order; `init` takes only the arguments it has."""
    calls = []
    known = {"project", "name", "config", "resume"} | ({"id", "dir"} if request.param == "wandb" else set())

    def init(**given):
        assert given.keys() == known
        calls.append(given)

    module = SimpleNamespace(
        init=init, log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finished")
    )
    monkeypatch.setitem(sys.modules, request.param, module)
    return request.param, calls


def test_metrics_go_elsewhere_and_a_resumed_run_is_the_same_one_there(tmp_path, elsewhere):
    name, calls = elsewhere
    for start in (0, 2, 0):
        with Recorder(tmp_path, start, Log(tmp_path / "speed.jsonl"), [name], {"seed": 3}) as recorder:
            recorder.write({"step": 4, "train_loss": 0.5, "lr": 0.1, "note": "text"})
    first, again, anew = calls[::3]
    assert calls[1:3] == [(4, {"train_loss": 0.5, "lr": 0.1}), "finished"]
    assert first["name"] == again["name"] != anew["name"]  # begun anew in the same folder, it is another run
    assert first["name"].startswith(f"{tmp_path.name}-")
    assert (first["config"], first["resume"]) == ({"seed": 3}, "allow")


@pytest.mark.refused
def test_what_is_not_installed_is_one_line_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"^wandb is not installed: pip install wandb, or choose another logger$"):
        train(LMConfig(vocab=256, dim=8, heads=2), lm_task(), Recipe(steps=1), tmp_path / "run", loggers=["wandb"])
    with pytest.raises(ValueError, match="there is no logger 'mlflow': choose tensorboard, wandb or trackio"):
        train(LMConfig(vocab=256, dim=8, heads=2), lm_task(), Recipe(steps=1), tmp_path / "run", loggers=["mlflow"])
    assert not (tmp_path / "run").exists()


def test_evaluations_are_logged_when_they_are_measured(tmp_path, caplog):
    with caplog.at_level("INFO", "joformer"):
        recipe = Recipe(steps=2, evaluate_every=1)
        result = train(LMConfig(vocab=256, dim=8, layers=1, heads=2), lm_task(), recipe, tmp_path / "run", loggers=())
    assert [line.partition(", held out: ")[0] for line in caplog.messages] == ["step 1 of 2", "step 2 of 2"]
    assert f"bits_per_byte {result['bits_per_byte']:.4g}" in caplog.messages[-1]
