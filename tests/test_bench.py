"""The bench measures what it says: its arithmetic, its counting of memory, and the command around it."""

import gc
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from joformer import bench, cli
from joformer.bench._counts import Count, Counting
from joformer.bench._measure import (
    Effort,
    Ratio,
    Row,
    compare,
    fastest,
    geometric_mean,
    peak_bytes,
    ratio,
    take_turns,
    timed,
)
from joformer.bench._models import Transformer, peers, training_step
from joformer.bench._place import SHAPES, Place, Shape
from joformer.bench._rows import decoding, rotation, training, window
from joformer.bench._running import looping
from joformer.bench._traffic import traffic
from joformer.bench._training import CONFIG, generating, llama, llama_of, starting, transporting, update
from joformer.models import JoFormerLM, LMConfig

KEYS = {"name", "value", "low", "high", "rounds", "verdict", "bar", "ok"}
ONCE = Effort(rounds=1, seconds=0)
TINY = Shape("tiny", batch=1, tokens=5, dim=16, heads=2, axes=1)


@pytest.fixture
def joformer(monkeypatch, capsys):
    """The command in this process: words in; output and errors out, once the exit code is checked."""

    def run(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["joformer", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        found = capsys.readouterr()
        assert (end.value.code or 0) == code, found.err
        return found

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


# -- rounds, with clocks and noise that are made up --------------------------------------------------------------------


@pytest.fixture
def uncollected(monkeypatch):
    """Collections before a measurement that is made up would be nearly all of its time."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


class Machine:
    """A clock that only moves when something runs on it, and disturbs what runs as a busy machine does."""

    def __init__(self, seed, noise=0.03, spikes=0.1, drift=0.0):
        self.now, self.draw = 0.0, random.Random(seed)
        self.noise, self.spikes, self.drift = noise, spikes, drift

    def runs(self, seconds):
        def sample():
            took = seconds * math.exp(self.draw.gauss(0, self.noise) + self.drift * self.now)
            if self.draw.random() < self.spikes:
                took *= 1 + self.draw.expovariate(2.0)
            self.now += took
            return took

        return sample

    def ratio(self, a, b, *, bar=None, rounds=30, seconds=math.inf):
        effort = Effort(rounds, seconds, lambda: self.now)
        return ratio(take_turns({"a": self.runs(a), "b": self.runs(b)}, {("a", "b"): bar}, effort)["a", "b"])


def covered(true, seeds, **options):
    found = [Machine(seed).ratio(true, 1.0, **options) for seed in range(seeds)]
    return sum(one.low <= true <= one.high for one in found) / seeds


@pytest.mark.usefixtures("uncollected")
def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 300 intervals that cover with 95 %, 276 to 294 do, with probability 0.99; a bootstrap covers a bit less."""
    for rounds in (8, 30):
        assert 0.90 <= covered(1.04, 300, rounds=rounds, bar=9.0) <= 0.99
    few = [Machine(seed).ratio(1.04, 1.0, rounds=1, seconds=1e-9) for seed in range(3)]
    assert [(one.low, one.high, one.rounds) for one in few] == [(None, None, 1)] * 3


def test_the_interval_is_that_of_a_slow_bootstrap():
    """Resampled with Python's own generator, the middle half averaged by hand: equal within its own noise."""
    logs = [0.02 + 0.01 * random.Random(n).gauss(0, 1) for n in range(41)]
    draw = random.Random(1)

    def middle(some):
        kept = sorted(some)[len(some) // 4 : len(some) - len(some) // 4]
        return math.fsum(kept) / len(kept)

    slow = sorted(middle(draw.choices(logs, k=len(logs))) for _ in range(4000))
    found = ratio(logs, resamples=4000)
    assert math.log(found.value) == pytest.approx(middle(logs), abs=1e-12)
    assert math.log(found.low) == pytest.approx(slow[100], abs=4e-4)
    assert math.log(found.high) == pytest.approx(slow[-100], abs=4e-4)
    assert found == ratio(logs, resamples=4000)  # the seed is fixed


def test_the_geometric_mean_of_shapes_has_an_interval_of_its_own():
    shapes = [[shift + 0.01 * random.Random(f"{n}{shift}").gauss(0, 1) for n in range(40)] for shift in (0.0, 0.1, 0.2)]
    alone = [ratio(logs) for logs in shapes]
    mean = ratio(*shapes)
    assert mean.value == pytest.approx(geometric_mean([one.value for one in alone]))
    width = [math.log(one.high / one.low) for one in (*alone, mean)]
    assert width[3] == pytest.approx(sum(width[:3]) / 3 / math.sqrt(3), rel=0.2)  # independent errors
    assert mean.low < math.exp(0.1) < mean.high


@pytest.mark.usefixtures("uncollected")
def test_a_clear_difference_is_settled_with_the_least_rounds_and_a_fine_one_with_more():
    clear = [Machine(seed).ratio(1.5, 1.0, bar=1.03) for seed in range(20)]
    assert {one.rounds for one in clear} == {30}
    fine = [Machine(seed).ratio(1.05, 1.0, bar=1.03) for seed in range(20)]
    assert min(one.rounds for one in fine) > 40
    assert all(math.log(one.high / one.low) < abs(math.log(one.value / 1.03)) for one in fine)
    assert all(Row.of("x", one, 1.03).ok is False for one in fine)


@pytest.mark.usefixtures("uncollected")
def test_a_planted_difference_is_found_and_equals_are_within_noise():
    """Within the time of some 150 rounds, on a machine that slows down: the shuffled order is fair to both."""
    planted = [Machine(seed, drift=1e-4).ratio(1.05, 1.0, seconds=310) for seed in range(20)]
    assert [Row.of("x", one).verdict for one in planted].count("slower") == 20
    faster = [Machine(seed).ratio(1.0, 1.05, seconds=310) for seed in range(10)]
    assert [Row.of("x", one).verdict for one in faster].count("faster") == 10
    equal = [Machine(seed, drift=1e-4).ratio(1.0, 1.0, seconds=310) for seed in range(60)]
    assert [Row.of("x", one).verdict for one in equal].count("within noise") >= 52


@pytest.mark.usefixtures("uncollected")
def test_the_limit_of_time_is_kept_and_no_round_is_cut():
    machine = Machine(0, noise=0.3)
    found = machine.ratio(1.0, 1.0, bar=1.001, seconds=100.0)
    assert 100 <= machine.now - 2 < 110  # one warm-up of each; the last round may end late
    assert 20 < found.rounds < 50
    assert Machine(0).ratio(60.0, 60.0, seconds=100.0).rounds == 8  # an interval needs as many
    assert Machine(0).ratio(60.0, 60.0, rounds=2, seconds=100.0).rounds == 2  # unless fewer are requested


def test_all_take_turns_in_an_order_that_is_shuffled():
    order = []

    def sampler(name):
        return lambda: order.append(name) or 1.0

    names = "abc"
    take_turns({n: sampler(n) for n in names}, {("a", "b"): None, ("c", "b"): 1.1}, Effort(rounds=60, seconds=60))
    assert order[:3] == list(names)  # the warm-up
    rounds = ["".join(order[at : at + 3]) for at in range(3, len(order), 3)]
    assert {"".join(sorted(one)) for one in rounds} == {names}
    assert all(rounds.count("".join(one)) >= 3 for one in itertools.permutations(names))


def test_what_is_short_is_repeated_and_the_first_runs_do_not_count():
    class Clock:
        now, runs = 0.0, 0

        def run(self):
            self.runs += 1
            self.now += 16.0 if self.runs == 1 else 2.0**-13

    clock = Clock()
    sample = timed(clock.run, lambda: clock.now)
    assert sample() == 2.0**-13
    before = clock.runs
    assert sample() == 2.0**-13
    assert clock.runs - before == 42  # 5 ms, after one that does not count
    long = Clock()
    slow = timed(lambda: setattr(long, "now", long.now + 1.0), lambda: long.now)
    slow()
    at = long.now
    assert (slow(), long.now - at) == (1.0, 1.0)


def test_collection_waits_for_the_end_of_a_measurement():
    seen = []
    take_turns({"a": lambda: seen.append(gc.isenabled()) or 1.0, "b": lambda: 1.0}, {("a", "b"): None}, ONCE)
    assert seen == [True, False]  # warm-up, round
    assert gc.isenabled()


def test_rows_tell_noise_from_figures():
    def row(low, high, bar=None, higher=False, rounds=30):
        value = None if low is None else math.sqrt(low * high)
        return Row.of("x", Ratio(value or 1.0, low, high, rounds), bar, higher=higher)

    assert [row(*b).verdict for b in ((1.01, 1.03), (0.97, 0.99), (0.99, 1.01), (None, None))] == [
        "slower",
        "faster",
        "within noise",
        "within noise",
    ]
    assert row(1.2, 1.3, higher=True).verdict == "faster"
    assert row(0.8, 0.9, higher=True).verdict == "slower"
    assert [row(*b, 1.03).ok for b in ((1.0, 1.03), (1.031, 1.05), (1.02, 1.04), (None, None))] == [
        True,
        False,
        None,
        None,
    ]
    assert [row(*b, 1.1, True).ok for b in ((1.1, 1.2), (1.0, 1.09), (1.05, 1.2))] == [True, False, None]
    plain = {"low": None, "high": None, "rounds": None, "verdict": None}
    assert Row("bytes", 1.0, 1.05).as_json() == {"name": "bytes", "value": 1.0, "bar": 1.05, "ok": True, **plain}
    full = row(1.01, 1.03, 1.05).as_json()
    assert [full[key] for key in ("low", "high", "rounds", "verdict", "bar")] == [1.01, 1.03, 30, "slower", 1.05]


def test_the_loop_is_measured_step_by_step(monkeypatch):
    monkeypatch.setattr("joformer.bench._running.CONFIG", LMConfig(vocab=256, dim=16, layers=1, heads=2))
    monkeypatch.setattr("joformer.bench._running.STEPS", 4)
    (row,) = looping(ONCE)
    assert row.rounds == 2  # of the four, the first two have no pair
    assert row.bar == 1.03


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
    assert set(Row("x", 1.0, 2.0).as_json()) == KEYS
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
def test_shapes_are_those_of_the_paper(shape):
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
    training_step(Transformer(TINY, "none", found["Hugging Face"]), TINY)()


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


def test_rows_beside_llama_measure_whole_steps_and_whole_texts(monkeypatch, caplog):
    tiny = LMConfig(vocab=50, dim=32, layers=1, heads=2)
    monkeypatch.setattr("joformer.bench._training.CONFIG", tiny)
    monkeypatch.setattr("joformer.bench._training.GENERATED", 8)
    caplog.set_level("INFO", "joformer")
    (row,) = llama(ONCE)
    assert (row.bar, row.higher) == (1.1, True)
    assert row.value > 0
    rows = list(generating(ONCE))
    assert [(row.bar, row.higher) for row in rows] == [(1.2, True), (None, True)]
    assert len(caplog.messages) == 3
    rows = list(transporting(ONCE))
    assert [row.bar for row in rows] == [1.04, 1.05, 1.1, 1.1, None, 1.05, 1.05]
    assert ["bf16" in row.name for row in rows] == [False, False, False, True, False, False, True]
    assert ["strength 0.5" in row.name for row in rows] == [False, False, True, False, False, True, False]
    assert len({row.name for row in rows}) == 7
    assert all(row.value > 0 and row.rounds == 1 for row in rows)
    model, tokens = JoFormerLM(tiny), torch.randint(50, (2, 8))
    before = [p.detach().clone() for p in model.parameters()]
    update(model, lambda: model(tokens, targets=tokens))()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    theirs = llama_of(tiny, 85).eval()
    more = theirs.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=9, do_sample=False)
    assert more.shape == model.generate(tokens, 9, temperature=0).shape == (2, 17)


# -- traffic -----------------------------------------------------------------------------------------------------------


@pytest.mark.compiled
def test_traffic_counts_ours_generated_kernels_and_peers():
    found = {row.name: row for row in traffic(ONCE)}

    def counted(name, what="q, k, v and o"):
        names = [(f"bytes per element of {what} in bf16, {name}, {way}", way) for way in ("forward", "backward")]
        return [(found[bytes].value, found[f"launches per layer, {name}, {way}"].value) for bytes, way in names]

    assert all(row.ok for row in found.values() if row.bar is not None)
    assert sum(row.bar is not None for row in found.values()) == 4  # our kernel, forward
    forward, backward = counted("kernel, fixed angles")
    assert forward == (4.0, 2)
    assert 4.0 <= backward[0] <= 5.0
    assert 2 <= backward[1] <= 3
    assert counted("kernel, learned angles")[1][0] <= 7.75
    # Each entry is read once and written once by a generated kernel; o cannot be fused with q, k and v, which come
    # before attention. Of the backward, gradients are packed without positions too.
    assert counted("compiled, fixed angles") == [(4.0, 2), (4.0, 2)]
    forward, backward = counted("compiled, learned angles")
    assert forward == (4.0, 2)
    assert 6.0 <= backward[0] <= 8.0  # results are read beside the gradients
    assert counted("compiled, no positions") == [(0.0, 0), (3.0, 1)]
    assert [ours > 8 * 4.0 for ours, _ in counted("eager, fixed angles")] == [True, True]
    assert counted("Hugging Face", "q and k")[0] == (20.5, 10)
    assert counted("Liger 0.8.5 (read)", "q and k") == [(4.0, 1)] * 2
    assert counted("Liger 0.8.5 of one projection (read)", "q and k") == [(8.0, 3), (4.0, 1)]  # copied first
    assert counted("flash-attention 2.8, in place (read)", "q and k") == [(4.0, 1)] * 2


@pytest.mark.compiled  # our operator is not registered under the shape checks
def test_a_torch_that_plans_its_kernels_otherwise_leaves_rows_out(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "joformer.bench._generated", None)
    caplog.set_level("INFO", "joformer")
    names = [row.name for row in traffic(ONCE)]
    assert not any("compiled" in name for name in names)
    assert sum("flash-attention" in name for name in names) == 4  # the others are there
    (line,) = caplog.messages
    assert line.startswith(f"compiled rows are left out: torch {torch.__version__}")


def test_operations_are_counted_by_what_they_read_and_write():
    x = torch.zeros(16, device="meta", dtype=torch.bfloat16)
    with Counting() as counted:
        y = x.view(4, 4).t() + x[:4].expand(4, 4)  # what is expanded is read once
        y.mul_(2)
        y.copy_(x.view(4, 4))
        torch.cat([x, x])
    assert counted.count == Count(bytes=2 * ((16 + 4 + 16) + (16 + 16) + (16 + 16) + (32 + 32)), launches=4)


def test_the_command_starts_within_its_bar():
    (row,) = starting(ONCE)
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
    with pytest.raises(ValueError, match="0 or more"):
        bench.run(["drift"], seconds=float("nan"))


def test_command_prints_json_for_machines_and_a_table_for_people(joformer):
    rows = json.loads(joformer("bench", "--only", "drift", "--json").out)
    assert [set(row) for row in rows] == [KEYS] * len(rows)
    assert "score drift" in joformer("bench", "--only", "drift").out


def test_command_explains_itself_and_a_mistake_is_one_line(joformer):
    text = joformer("bench", "--help").out
    assert "default" in text
    assert "Example" in text
    assert all(name in text for name in bench.FIGURES)
    wrong = joformer("bench", "--only", "speed", code=2)
    assert wrong.err.count("\n") == 1
    assert "choose from" in wrong.err
    among = joformer("bench", "--only", "drift", "speed", code=2)
    assert (among.err, among.out) == (wrong.err, "")
    assert joformer("bench", "--repeats", "0", code=2).err.startswith("joformer: repeats must be")


def test_the_list_of_options_is_guarded():
    """An option more is a decision, not an accident."""
    import dataclasses

    from joformer.cli import Bench

    assert [f.name for f in dataclasses.fields(Bench)] == ["only", "repeats", "seconds", "threads", "gpu", "json"]


# -- on a GPU ----------------------------------------------------------------------------------------------------------

ELSEWHERE = Place(torch.device("meta"), torch.bfloat16, (Shape("image", 1, 5, 16, 2, axes=2),), ((16, 2),), cached=8)
"""A device that is not the CPU and always there: a tensor that is left on the CPU raises."""


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(joformer):
    found = joformer("bench", "--gpu", code=2)
    assert (found.out, found.err.count("\n")) == ("", 1)
    assert found.err.startswith("joformer: torch finds no GPU here")


def test_figures_leave_nothing_on_the_cpu(monkeypatch):
    # It asks for autocast, which this device lacks.
    monkeypatch.setitem(sys.modules, "x_transformers.x_transformers", None)
    figures = (partial(training, compiled=False), rotation, decoding, window)
    rows = [row for figure in figures for row in figure(ONCE, ELSEWHERE)]
    assert "step eager: Hugging Face on q and k / none, geometric mean" in {row.name for row in rows}
    assert "one decoded token at 8 cached, 16 wide: both / none" in {row.name for row in rows}
    assert all(row.rounds == 1 for row in rows)


def test_a_figure_that_fails_on_a_card_is_left_out(monkeypatch, caplog):
    def failing(effort, at):
        yield Row("before", 1.0)
        raise torch.OutOfMemoryError(f"no room on {at.device}\nmore")

    monkeypatch.setitem(bench.FIGURES, "memory", failing)
    monkeypatch.setitem(bench.FIGURES, "window", lambda effort, at: iter([Row("after", 2.0)]))
    assert [row.name for row in bench.run(["memory", "window"], place=ELSEWHERE)] == ["before", "after"]
    assert caplog.messages == ["memory is left out: no room on meta"]
    with pytest.raises(torch.OutOfMemoryError):
        bench.run(["memory"])
    with pytest.raises(ValueError, match="1 or more"):
        bench.run(["window"], repeats=0, place=ELSEWHERE)


def test_the_card_and_a_table_to_paste(joformer, monkeypatch):
    monkeypatch.setattr(bench, "gpu", lambda: Place(shapes=(TINY,)))
    monkeypatch.setitem(bench.FIGURES, "memory", lambda effort, at: iter([Row(at.shapes[0].name, 1.25, 1.5)]))
    monkeypatch.setitem(bench.FIGURES, "window", lambda effort, at: iter([Row.of("w", Ratio(1.2, 1.1, 1.3, 9), 1.0)]))
    words = ("bench", "--gpu", "--only", "window", "memory")
    lines = joformer(*words).out.splitlines()
    assert lines[0].startswith("card cpu, precision float32, torch ")
    assert lines[1:] == [
        "",
        "| figure | value [95 %] | verdict |",
        "|---|---|---|",
        "| tiny | 1.25 |  |",
        "| w | 1.2 [1.1, 1.3] | slower |",
    ]
    found = json.loads(joformer(*words, "--json").out)
    assert found["torch"] == torch.__version__
    assert [(row["name"], row["value"]) for row in found["rows"]] == [("tiny", 1.25), ("w", 1.2)]
    assert "choose from memory, eager" in joformer("bench", "--gpu", "--only", "drift", code=2).err


def test_a_clock_waits_for_the_device(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    compare("a / b", lambda: None, lambda: None, Effort(1, 0, ELSEWHERE.clock))
    assert set(waited) == {ELSEWHERE.device}
    before = len(waited)
    Place().clock()
    assert len(waited) == before


TRITON = Path(os.environ.get("JOFORMER_TRITON", Path(sys.prefix) / "triton"))
INTERPRETED = """
import sys
from joformer import bench, cli
from joformer.rotation import _triton

launch, started = _triton.launch, []
_triton.launch = lambda *given: (started.append(1), launch(*given))
shapes = (bench.Shape("tiny", batch=1, tokens=5, dim=16, heads=2, axes=1),)
bench.gpu = lambda: bench.Place(shapes=shapes, decoded=((16, 2),), cached=8)
sys.argv = "joformer bench --gpu --json --repeats 1 --seconds 0 --only memory eager rotation decoding".split()
try:
    cli.main()
finally:
    print(len(started), "launches", file=sys.stderr)
"""


@pytest.mark.skipif(not (TRITON / "triton").is_dir(), reason="no Triton here: pip install --target .venv/triton triton")
@pytest.mark.compiled
def test_the_command_for_gpus_with_our_kernel_interpreted():
    """All of it but the card: the kernel runs in Triton's interpreter, in a process of its own (see test_triton.py)."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(TRITON))))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "JOFORMER_KERNELS": "triton"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["triton"]
    assert int(re.search(r"([0-9]+) launches", done.stderr)[1]) > 20
    rows = {row["name"]: row["value"] for row in found["rows"]}
    assert {
        "step eager, tiny: both / none",
        "one decoded token at 8 cached, 16 wide: both / none",
        "rotation of q, k, v, o / Hugging Face's of q, k, geometric mean",
    } <= set(rows)
    assert 1 <= rows["peak memory of a training step: both / none, worst shape"] < 1.5
