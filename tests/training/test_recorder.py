"""What a person sees of a run, and the average that goes on when a model grows."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from joformer.models import JoFormerLM, LMConfig, adapt
from joformer.training import Processes, Recipe
from joformer.training.runs import Log
from joformer.training.state import State
from joformer.training.watching import Watch


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

        def close(self):
            told.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    return told


def watched(folder, shown):
    with Watch(folder, 2, 4, Log(folder / "speed.jsonl"), shown=shown) as watch:
        watch.step(3, 0.5)
        watch.step(4, 0.25)
        watch.metrics({"step": 4, "train_loss": 0.375, "lr": 0.1})


def test_a_terminal_shows_loss_rate_and_time_left(tmp_path, monkeypatch, capsys, board):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    watched(tmp_path, shown=True)
    out, err = capsys.readouterr()
    assert not out
    assert re.search(r"4/4 loss 0\.2500 \S+ steps/s \d:\d\d:\d\d", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err))


def test_no_terminal_and_other_processes_show_nothing(tmp_path, monkeypatch, capsys, board):
    watched(tmp_path, shown=True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    watched(tmp_path, shown=False)
    assert capsys.readouterr() == ("", "")
    assert board.count("closed") == 1


def test_the_board_hears_every_metric_and_forgets_what_was_lost(tmp_path, board):
    watched(tmp_path, shown=True)
    assert board == [("tensorboard", 3), ("train_loss", 0.375, 4), ("lr", 0.1, 4), "closed"]
    (line,) = (tmp_path / "speed.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 4


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
