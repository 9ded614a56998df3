"""The bench measures what it says: its arithmetic, its counting of memory, and the command around it."""

import json
import subprocess
import sys
import time

import pytest
import torch

from joformer import bench
from joformer.bench.measure import Row, fastest, geometric_mean, peak_bytes
from joformer.bench.models import SHAPES, PeerTransformer, Shape, Transformer, peers, training_step

TINY = Shape("tiny", batch=1, tokens=5, dim=16, heads=2, axes=1)


def joformer(*words, check=None):
    run = subprocess.run([sys.executable, "-m", "joformer.cli", *words], capture_output=True, text=True, check=False)
    if check is not None:
        assert run.returncode == check, run.stderr
    return run


def test_fastest_takes_the_best_and_lets_all_take_turns():
    order = []

    def sleeper(name, seconds):
        def run():
            order.append(name)
            time.sleep(seconds)

        return run

    best = fastest({"quick": sleeper("quick", 0.001), "slow": sleeper("slow", 0.01)}, repeats=3, warmup=0)
    assert best["slow"] > 3 * best["quick"]
    assert order == ["quick", "slow", "slow", "quick", "quick", "slow"]


def test_peak_counts_what_is_held_at_once():
    def step():
        a = torch.zeros(1000)
        del a
        b, c = torch.zeros(500), torch.zeros(250)
        return b, c

    assert peak_bytes(step) == 4000
    assert peak_bytes(lambda: (torch.zeros(1000), torch.zeros(1000))) == 8000


def test_rows_know_their_direction():
    assert Row("x", 1.0, 1.0).ok
    assert Row("x", 1.1, 1.0).ok is False
    assert Row("x", 300.0, 200.0, higher=True).ok
    assert set(Row("x", 1.0, 2.0).as_json()) == {"name", "value", "bar", "ok"}
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def test_variants_differ_in_transport_alone():
    """Same weights, same parameters: none, scores and both compute different things from the same model."""
    models = {t: Transformer(TINY, t) for t in ("none", "scores", "both")}
    for model in models.values():
        model.load_state_dict(models["none"].state_dict(), strict=True)
    x, where = torch.randn(1, 5, 16), TINY.positions()
    losses = {t: m(x, where).item() for t, m in models.items()}
    assert len({round(v, 9) for v in losses.values()}) == 3
    for model in models.values():
        training_step(model, TINY)()
        assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_shapes_are_those_asked_for(shape):
    assert shape.positions().shape == (shape.tokens, shape.axes)
    assert (shape.tokens, shape.dim, shape.heads) in {(197, 384, 6), (65, 128, 4), (512, 256, 4)}


def test_peers_rotate_like_rope():
    found = peers(TINY)
    assert "Hugging Face" in found
    q, k = torch.randn(2, 1, 2, 5, 8)
    for apply in found.values():
        rq, rk = apply(q, k)
        torch.testing.assert_close(rq.norm(dim=-1), q.norm(dim=-1))
        assert not torch.equal(rk[:, :, 1:], k[:, :, 1:])
    training_step(PeerTransformer(TINY, found["Hugging Face"]), TINY)()


def test_drift_row_is_within_its_bar_and_unknown_figures_are_refused():
    rows = bench.run(["drift"])
    assert rows[0].ok
    assert rows[1].value > 10 * rows[0].value
    with pytest.raises(ValueError, match="choose from drift"):
        bench.run(["speed"])
    with pytest.raises(ValueError, match="1 or more"):
        bench.run(["drift"], repeats=0)


def test_command_prints_json_for_machines_and_a_table_for_people():
    rows = json.loads(joformer("bench", "--only", "drift", "--json", check=0).stdout)
    assert [set(row) for row in rows] == [{"name", "value", "bar", "ok"}] * len(rows)
    assert "score drift" in joformer("bench", "--only", "drift", check=0).stdout


def test_command_explains_itself_and_a_mistake_is_one_line():
    text = joformer("bench", "--help", check=0).stdout
    assert "default" in text
    assert "Example" in text
    wrong = joformer("bench", "--only", "speed", check=2)
    assert wrong.stderr.count("\n") == 1
    assert "choose from" in wrong.stderr
    assert joformer("bench", "--repeats", "0", check=2).stderr.startswith("joformer: repeats must be")


def test_the_list_of_options_is_guarded():
    """An option more is a decision, not an accident."""
    import dataclasses

    from joformer.cli import Bench

    assert [f.name for f in dataclasses.fields(Bench)] == ["only", "repeats", "threads", "json"]
