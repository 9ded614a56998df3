"""What is recorded of a run beside its metrics, and the average that goes on when a model grows."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from joformer.models import JoFormerLM, LMConfig, adapt
from joformer.training import Processes, Recipe
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
