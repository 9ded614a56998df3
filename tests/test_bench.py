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
from joformer.bench.training import CONFIG, generating, llama, llama_of, starting, transporting, update
from joformer.models import JoFormerLM, LMConfig

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


def test_the_language_models_side_by_side_have_the_same_shape():
    with torch.device("meta"):
        ours, theirs = JoFormerLM(CONFIG), llama_of(CONFIG, 680)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert abs(sizes[1] / sizes[0] - 1) < 0.003
    assert (CONFIG.layers, CONFIG.dim, CONFIG.heads, CONFIG.vocab) == (4, 256, 4, 8000)
    assert (CONFIG.transport, CONFIG.frames, CONFIG.tied) == ("both", "fixed", True)
    shape = theirs.config
    sizes = (shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads, shape.vocab_size)
    assert sizes == (4, 256, 4, 8000)
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight
    assert shape._attn_implementation == "sdpa"


def test_rows_beside_llama_measure_whole_steps_and_whole_texts(monkeypatch):
    tiny = LMConfig(vocab=50, dim=32, layers=1, heads=2)
    monkeypatch.setattr("joformer.bench.training.CONFIG", tiny)
    said = []
    (row,) = llama(1, said.append)
    assert (row.bar, row.higher) == (1.1, True)
    assert row.value > 0
    rows = list(generating(1, said.append))
    assert [(row.bar, row.higher) for row in rows] == [(1.2, True), (None, True)]
    assert len(said) == 3
    rows = list(transporting(1, said.append))
    assert [row.bar for row in rows] == [1.04, 1.05, None]
    assert all(row.value > 0 for row in rows)
    model, tokens = JoFormerLM(tiny), torch.randint(50, (2, 8))
    before = [p.detach().clone() for p in model.parameters()]
    update(model, lambda: model(tokens, targets=tokens))()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    theirs = llama_of(tiny, 85).eval()
    more = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=9, do_sample=False)
    assert more.shape == model.generate(tokens, 9, temperature=0).shape == (2, 17)


def test_the_command_starts_within_its_bar():
    (row,) = starting(1, lambda _: None)
    assert (row.bar, row.higher) == (1.0, False)
    assert 0 < row.value < 5


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
    assert all(name in text for name in bench.FIGURES)
    wrong = joformer("bench", "--only", "speed", check=2)
    assert wrong.stderr.count("\n") == 1
    assert "choose from" in wrong.stderr
    assert joformer("bench", "--repeats", "0", check=2).stderr.startswith("joformer: repeats must be")


def test_the_list_of_options_is_guarded():
    """An option more is a decision, not an accident."""
    import dataclasses

    from joformer.cli import Bench

    assert [f.name for f in dataclasses.fields(Bench)] == ["only", "repeats", "threads", "json"]
