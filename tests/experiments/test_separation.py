"""Questions about where tokens are: the answers are right, a guess is worth what is said, and what cannot be is not."""

from collections import Counter, defaultdict

import pytest
import torch

from joformer.experiments import SequenceSource
from joformer.experiments.running import run
from joformer.experiments.separation import MODELS, TITLES, tables
from joformer.experiments.sequences import KINDS, QUESTIONS, SequenceTask, draw
from joformer.models import LMConfig
from joformer.training import Processes, Recipe, generator, train


def answer(question, tokens, where):
    """One sequence, read by a person: kinds and places of all tokens, the last one asked."""
    back = [where[-1] - at for at in where[:-1]]
    kinds = tokens[:-1]
    return {
        "displacement": lambda: back[kinds.index(1)] - 1,
        "displacement-alone": lambda: back[0] - 1,
        "order": lambda: next(kind for kind in kinds if kind) - 1,
        "before": lambda: kinds[back.index(3)] - 1,
        "window": lambda: sum(kind == 1 and d <= 8 for kind, d in zip(kinds, back)),
        "window-alone": lambda: sum(d <= 8 for d in back),
        "presence": lambda: max(kinds) - 1,
    }[question]()


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_right(question):
    drawn = draw(question, 160, generator(0, question))
    tokens, where = drawn.tokens.tolist(), drawn.where[..., 0].tolist()
    assert [answer(question, *one) for one in zip(tokens, where)] == drawn.answers.tolist()
    assert (drawn.where.diff(dim=1) > 0).all(), "in order, each at a place of its own"
    assert drawn.tokens.max() < KINDS
    if question.endswith("alone"):
        assert (drawn.tokens == 1).all()
    if question not in ("order", "before"):
        assert drawn.answers.bincount().tolist() == [20] * 8


@pytest.mark.parametrize("question", ["displacement-alone", "order", "before", "window", "window-alone"])
def test_what_is_right_without_knowing_where_tokens_are(question):
    """The best guess from the last token and from which others there are, in whatever order."""
    drawn, seen = draw(question, 8000, generator(1, question)), defaultdict(Counter)
    for tokens, found in zip(drawn.tokens.tolist(), drawn.answers.tolist()):
        seen[(tokens[-1], *sorted(tokens[:-1]))][found] += 1
    best = 100 * sum(max(counts.values()) for counts in seen.values()) / len(drawn.answers)
    assert best == pytest.approx(TITLES[question][1], abs=0 if len(seen) == 1 else 3)


def test_a_batch_is_its_seed_and_step():
    task = SequenceTask("window", batch=16)
    whole, again, later = (task.batch(3, step, 0, 1) for step in (5, 5, 6))
    assert torch.equal(whole.tokens, again.tokens)
    assert not torch.equal(whole.tokens, later.tokens)
    parts = [task.batch(3, 5, part, 4) for part in range(4)]
    for name in ("tokens", "where", "answers"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


@pytest.mark.parametrize("question", ["displacement-alone", "window-alone"])
@pytest.mark.parametrize("name", [name for name in MODELS if name == "none" or name.startswith("scores")])
def test_alike_and_without_value_transport_all_sequences_are_one(question, name):
    """Whatever the weights, at both depths: so exactly one of eight is right."""
    for cell in next(table for table in tables("laptop", None, [0], None, True) if table.data == question).cells:
        if cell.model == name:
            model, task = cell.config.build().eval(), SequenceTask(question)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(0.3 * torch.randn(weight.shape, generator=generator(0, str(weight.shape))))
                logits = model(task.held_out.tokens, task.held_out.where)[:, -1]
            torch.testing.assert_close(logits, logits[:1].expand_as(logits), rtol=0, atol=1e-5)
            assert logits[0].std() > 0.1


def test_value_transport_answers_what_scores_alone_cannot(tmp_path):
    found = {}
    for side in ("scores", "both"):
        config = LMConfig(vocab=KINDS, dim=32, layers=1, heads=4, base=100.0, tied=False, transport=side)
        recipe = Recipe(steps=80, lr=3e-3, warmup=10, save_every=80, evaluate_every=80, log_every=40)
        found[side] = train(config, SequenceTask("displacement-alone"), recipe, tmp_path / side, seed=0)["accuracy"]
    assert found == {"scores": 12.5, "both": 100.0}


def test_a_cell_runs_and_keeps_its_curve(tmp_path):
    table = next(table for table in tables("laptop", None, [0], 4, True) if table.data == "order")
    cell = table.cells[0]
    result = run(cell, tmp_path)
    assert cell.name == "order-separation/none/1-layer/seed-0"
    assert result["task"] == cell.source.task().describe()
    assert result["task"]["sequences"] != SequenceTask("before").describe()["sequences"]
    assert [line["step"] for line in result["curve"] if "accuracy" in line] == [1, 2, 3, 4]
    assert 0 <= result["measured"]["1 layer"]["accuracy"] <= 100
    assert run(cell, tmp_path) == result


def test_every_question_has_one_table():
    every = tables("laptop", None, [0], None, True)
    assert [table.data for table in every] == list(TITLES) == list(QUESTIONS)
    for table in every:
        assert table.sizes == ("1 layer", "2 layers")
        assert len({cell.config.layers for cell in table.cells}) == 2
        for size in table.sizes:
            counts = [cell.parameters for cell in table.cells if cell.size == size]
            assert max(counts) / min(counts) < 1.002


@pytest.mark.refused
def test_misuse():
    with pytest.raises(ValueError, match=r"^there is no question 'odd': choose from displacement; "):
        SequenceTask("odd")
    with pytest.raises(ValueError, match=r"^batch and held_out must be 1 or more, got 0 and 1024$"):
        SequenceSource("order", batch=0).task()
    task = SequenceTask("order")
    with pytest.raises(ValueError, match=r"^there are 9 kinds of tokens, the model has 8: set vocab=9$"):
        task.check(LMConfig(vocab=8), [0], 1)
    with pytest.raises(ValueError, match=r"^a batch of 64 does not divide into 3 parts"):
        task.check(LMConfig(vocab=9), [0], 3)
    assert set(task.evaluate(LMConfig(vocab=9, dim=16, layers=1, heads=2).build(), Processes())) == {"loss", "accuracy"}


@pytest.mark.refused
def test_a_run_on_questions_cannot_be_evaluated_on_text(joformer, tmp_path):
    config, task = LMConfig(vocab=KINDS, dim=16, layers=1, heads=2), SequenceTask("order")
    train(config, task, Recipe(steps=1), tmp_path / "run", notes={"data": "order"})
    code, _, said = joformer("evaluate", tmp_path / "run")
    assert code == 2
    assert "was not trained on text: see its metrics.jsonl for what was measured" in said
