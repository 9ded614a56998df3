"""Tables on the hardware that is there: other batches and precisions are other cells, several processes are not."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import stat
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import mishaps
import pytest
import torch
from mishaps import AT, LONG, STEPS, attempts, steps_of
from test_tables import IMAGES, TEXTS, images_like, text_like

from joformer.experiments import TABLES, Cell, ImageSource, TextSource, plan, run, slurm
from joformer.experiments.engine import run_local
from joformer.experiments.execution import Execution, adapted
from joformer.experiments.running import finished
from joformer.experiments.tables import RESULT
from joformer.experiments.team import Team
from joformer.models import LMConfig, ViTConfig
from joformer.training import Recipe, Stopped

EVIDENCE = Path(__file__).parents[2] / "results" / "evidence" / "report.json"
TWO = Execution(processes=2)


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory, monkeypatch):
    """Its own cache, and one thread, as the processes of a cell have it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(ImageSource, "load", images_like)
    monkeypatch.setattr(TextSource, "load", text_like)


@pytest.fixture
def mark(tmp_path):
    (tmp_path / "mark").mkdir()
    return tmp_path / "mark"


@pytest.fixture
def at_once(monkeypatch):
    """Processes that start at once, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["joformer.experiments.team"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)


def cell_of(mark, fate):
    (table,) = mishaps.tables("laptop", mark, (0,), None, True)
    return next(cell for cell in table.cells if cell.model == fate)


def calm(cell, tmp_path, execution):
    """The cell by itself in this process, and nothing happens to it."""
    return run(replace(cell, source=replace(cell.source, fate="calm")), tmp_path / "calm", execution)


@dataclass(frozen=True)
class Ending(mishaps.Fated):
    """One whose run ends at step AT, after a checkpoint."""

    def task(self):
        task = super().task()
        usual = task.batch
        task.batch = lambda seed, step, part, parts: 1 / (AT - step) and usual(seed, step, part, parts)
        return task


def weights(out, cell):
    return (out / cell.name / "model.safetensors").read_bytes()


# -- what is another cell, and what is not -----------------------------------------------------------------------------


def test_finished_cells_of_before_are_recognised(offline, monkeypatch, tmp_path):
    """Whatever was published: the tables made today, adapted to nothing, describe their cells as they did."""
    checked = 0
    for table in json.loads(EVIDENCE.read_text())["tables"]:
        about = table["about"]
        # The stand-in of sounds here has another shape; lengths are measured otherwise now, on purpose.
        if about["data"] == "fsdd" or about["recipe"] == "length":
            continue
        results = {cell["cell"].partition("/")[2]: cell for cell in table["cells"]}
        first = next(iter(results.values()))
        monkeypatch.setattr(TextSource, "identity", lambda _, first=first: first["described"]["source"]["data"])
        monkeypatch.setattr(ImageSource, "identity", lambda _, first=first: first["described"]["source"]["data"])
        assert about["data"] in (*IMAGES, *TEXTS)
        (tmp_path / about["data"]).mkdir(exist_ok=True)
        steps = first["steps"] if "--steps" in first["command"] else None
        for made in TABLES[about["recipe"]](about["scale"], tmp_path / about["data"], range(5), steps, True):
            assert adapted(made) is made
            for cell in made.cells:
                name = cell.name.partition("/")[2]  # before that is the data, or was not
                if name in results:
                    assert results[name]["described"] in list(cell.descriptions()), cell.name
                    checked += 1
    assert checked == 21 + 85 + 15


def test_another_batch_sees_as_many_samples(offline):
    (table,) = TABLES["imagenet"]("paper", None, (0,), None, True)
    assert table.comparable
    for batch in (256, 2048):
        other = adapted(table, batch=batch)
        (one, *_), (cell, *_) = table.cells, other.cells
        assert cell.source == replace(one.source, batch=batch)
        for name in ("total", "warmup", "evaluate_every", "save_every"):
            assert getattr(cell.recipe, name) * batch == pytest.approx(getattr(one.recipe, name) * 1024, abs=batch / 2)
        assert (cell.recipe.lr, cell.recipe.precision, cell.config) == (one.recipe.lr, "fp16", one.config)
        assert not other.comparable
        assert other.notes[1:] == table.notes
        assert f"a batch of {batch}, not the table's 1024: {cell.recipe.total:,} steps instead of" in other.notes[0]
        assert cell.describe() != one.describe()
    # The same batch is the same table; steps that were asked for stay.
    assert adapted(table, batch=1024) is table
    (some,) = TABLES["imagenet"]("paper", None, (0,), 70, True)
    assert {cell.recipe.total for cell in adapted(some, batch=256, same_steps=True).cells} == {70}


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("transport", "hierarchy")])  # slow to match
def test_every_table_takes_another_batch_and_precision(offline, name):
    for table in TABLES[name]("laptop", None, (0,), 10, True):
        other = adapted(table, batch=2, precision="bf16", same_steps=True)
        assert {(cell.source.batch, cell.recipe.precision) for cell in other.cells} == {(2, "bf16")}
        assert [cell.name for cell in other.cells] == [cell.name for cell in table.cells]


def test_stages_are_stretched_each(offline):
    table, _ = TABLES["length"]("paper", None, (0,), None, True)
    cells = {cell.model: cell for cell in adapted(table, batch=128).cells}
    assert cells["rope"].recipe.stages == ("25000:0.0005", "12500:0.0002", "12500:5e-05")
    assert cells["projected"].recipe.stages[2] == "12500:5e-05:projected"
    before = {cell.model: cell for cell in table.cells}
    assert all(cells[name].recipe.warmup * 4 == before[name].recipe.warmup for name in cells)


def test_a_recipe_without_warm_up_gets_none():
    cell = Cell("a", "", 0, LMConfig(), TextSource("stdlib", batch=32), Recipe(steps=3, log_every=1))
    recipe = adapted(plan("t", "T", "loss", [cell]), batch=64).cells[0].recipe
    assert (recipe.steps, recipe.warmup, recipe.log_every) == (2, 0, 1)


def test_precision_and_compilation_are_of_the_cell(offline):
    (table,) = TABLES["wikipedia"]("paper", None, (0,), None, True)
    other = adapted(table, precision="fp32", compiled=True, deterministic=False)
    for one, cell in zip(table.cells, other.cells, strict=True):
        assert cell.recipe == replace(one.recipe, precision="fp32", compile=True, deterministic=False)
    assert other.comparable
    assert other.notes[:3] == (
        "Run in fp32; the table has bf16.",
        "Models are compiled.",
        "Not deterministic: the same command may give other last bits.",
    )
    # Times are measured on another batch, in no other number of steps.
    (timed,) = TABLES["overhead"]("paper", None, (0,), None, True)
    other = adapted(timed, batch=64, deterministic=False)
    assert other.cells[0].recipe == timed.cells[0].recipe
    assert other.cells[0].source.batch == 64
    assert other.notes[0].startswith("Run with a batch of 64, not the table's 1024. That is not")


def test_times_are_measured_in_one_process(offline):
    (timed,) = TABLES["overhead"]("laptop", None, (0,), None, True)
    assert Execution(4, True, 3, workers=2).of(timed.cells[0]) == Execution(workers=2)
    Execution(3).check([timed])  # whatever 64 divided by 3 would be


def test_seeds_are_a_number_or_a_list(offline, joformer):
    def seeds(*given):
        code, said, _ = joformer("reproduce", "imagenet", "--dry-run", *given)
        assert code == 0
        *lines, total = said.splitlines()
        found = {re.search(r"steps, (\d seeds?.*), ", line)[1] for line in lines}
        assert total == f"Total: {len(lines) * int(min(found)[0])} runs"
        return found

    assert seeds() == seeds("--seeds", 3) == {"3 seeds"}
    assert seeds("--seeds", 42, 43, 44) == {"3 seeds (42, 43, 44)"}
    assert seeds("--seeds", 43, "--only", "*/seed-42") == {"1 seed (42)"}


@pytest.mark.refused
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "4", "4"], "--seeds takes a number of seeds, 1 or more, or several different seeds, got 4 4"),
        (["--batch", "0"], "--batch must be 1 or more, got 0"),
        (["--processes", "0"], "--processes must be 1 or more, got 0"),
        (["--accumulate", "-1"], "--accumulate must be 1 or more, got -1"),
        (["--workers", "-1"], "--workers must be 0 or more, got -1"),
        (["--shard"], "--shard divides a model among processes: give --processes 2 or more"),
        (["--slurm", "time=5"], "--slurm is for --engine slurm: give both, or none"),
        (["--engine", "slurm"], "--engine slurm needs a time limit, after which a job is queued again: --slurm time="),
        (["--engine", "slurm", "--slurm", "time=1h"], "--engine slurm needs a time limit, after which a job is queued"),
        (["--engine", "slurm", "--slurm", "gpu"], "--slurm takes KEY=VALUE, such as partition=gpu, got gpu"),
    ],
)
def test_a_mistake_is_one_line(offline, joformer, tmp_path, words, said):
    code, out, told = joformer("reproduce", "imagenet", *words, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert told.startswith(f"joformer: {said}")
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.refused
def test_a_batch_that_does_not_divide_is_said_before_anything_is_run(joformer, tmp_path):
    out = tmp_path / "out"
    for words, said in (
        (["mnist", "--processes", 3], "digits-mnist: a batch of 128 does not divide into 3 parts"),
        (["mnist", "--processes", 2, "--accumulate", 128], "digits-mnist: a batch of 128 does not divide into 256 "),
        (
            ["imagenet", "--accumulate", 128],
            "digits-imagenet: samples are mixed in pairs: 128 / 128 samples per part must be",
        ),
    ):
        code, _, told = joformer("reproduce", *words, "--out", out)
        assert code == 2
        assert told.splitlines()[-1].startswith(f"joformer: {said}")
        assert not out.exists()


@pytest.mark.refused
def test_too_few_gpus_are_said(monkeypatch, mark, joformer, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setitem(TABLES, "mishaps", mishaps.tables)
    words = ["reproduce", "mishaps", "--data", mark, "--processes", 4, "--out", tmp_path / "out"]
    code, _, told = joformer(*words, "--only", "mishaps/plain/*")
    assert code == 2
    assert told.splitlines()[-1] == "joformer: --processes 4 needs as many GPUs, but there are 2: use fewer"


# -- several processes, and parts --------------------------------------------------------------------------------------


def test_workers_decode_for_the_cell_that_runs(tmp_path, monkeypatch):
    """Streamed images are decoded by so many processes, which no description knows of."""
    from PIL import Image

    for number in range(12):
        (tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        shade = Image.new("RGB", (8, 8), (20 * number, 0, 0))
        shade.save(tmp_path / "data" / "ab"[number % 2] / f"{number}.png")
    source = ImageSource(str(tmp_path / "data"), batch=4, stream=8)
    config = ViTConfig(shape=(8, 8), patch=(4, 4), dim=8, layers=1, heads=1, classes=2)
    cell = Cell("a", "", 0, config, source, Recipe(steps=1))
    seen = []
    monkeypatch.setattr("joformer.experiments.running.train", lambda _, task, *__, **___: seen.append(task) or {})
    for workers in (0, 3):
        run(cell, tmp_path / f"{workers}", Execution(workers=workers))
        assert seen[-1].images.workers == seen[-1].images.test.workers == workers
    assert "workers" not in json.dumps(cell.describe())


def test_a_team_is_stopped_killed_and_ends_with_the_same_bits(tmp_path, mark, at_once):
    """Two processes; all are stopped, then one of them is killed. In the end, what one process has in two parts."""
    cell, out = cell_of(mark, "killed once"), tmp_path / "out"

    def ask():
        while len(steps_of(mark, "killed once")) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    (mark / "slowly").touch()
    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(Stopped, match=r"saved .*killed-once/seed-0; the same command resumes it"):
        Team(cell, out, TWO).result()
    taken = steps_of(mark, "killed once")
    assert taken == list(range(len(taken)))
    assert 2 <= len(taken) <= AT
    (mark / "slowly").unlink()
    # Alone it would not have the same bits.
    with pytest.raises(ValueError, match=r"was made with processes = 2, but here it is 1: .* or use --drift to resume"):
        run(cell, out)

    result = Team(cell, out, TWO).result()
    assert steps_of(mark, "killed once") == [*range(AT + 1), *range(max(4, len(taken)), STEPS)]
    assert len(attempts(out, "killed once")) == 4  # that which was refused, too
    assert result == finished(cell, out)
    assert list(result["machine"].items())[-3:] == [("processes", 2), ("shard", False), ("accumulate", 1)]
    assert "drifted" not in result
    # The global batch is the same: two halves in one process are the same sums, the whole is the same but for rounding.
    halves = calm(cell, tmp_path, Execution(accumulate=2))
    assert weights(out, cell) == weights(tmp_path / "calm", replace(cell, source=replace(cell.source, fate="calm")))
    assert halves["measured"][""] == pytest.approx(result["measured"][""], rel=1e-12)
    assert (halves["recipe"]["accumulate"], halves["machine"]["accumulate"]) == (2, 2)
    assert halves["described"]["recipe"]["accumulate"] == 1
    shutil.rmtree(tmp_path / "calm")
    whole = calm(cell, tmp_path, None)
    assert [line["train_loss"] for line in whole["curve"] if "train_loss" in line] == pytest.approx(
        [line["train_loss"] for line in result["curve"] if "train_loss" in line], rel=1e-5
    )


def test_cells_of_two_processes_each(tmp_path, mark, at_once):
    """As the engine has them, sharded; with other processes than before, if that is what is wanted."""
    cell, out = cell_of(mark, "plain"), tmp_path / "out"
    with pytest.raises(ZeroDivisionError):
        run(replace(cell, source=Ending(**asdict(cell.source))), out)
    how = Execution(processes=2, shard=True, drift=True)
    (event,) = (event for event in run_local([cell], out, jobs=1, execution=how) if event is not None)
    assert event.error == ""
    assert event.result["machine"]["shard"]
    ((step, before),) = (one.values() for one in event.result["drifted"])
    assert (step, before["processes"], before["sharded"]) == (4, 1, False)
    assert event.result["measured"][""] == pytest.approx(calm(cell, tmp_path, None)["measured"][""], rel=1e-5)


def test_an_error_of_one_process_ends_the_cell(tmp_path, mark, at_once):
    """The other would wait half an hour for it."""
    cell = cell_of(mark, "fails")
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"^RuntimeError: nobody foresaw this$"):
        Team(cell, tmp_path / "out", TWO).result()
    assert time.monotonic() - begun < 120
    assert len(attempts(tmp_path / "out", "fails")) == 1


# -- Slurm -------------------------------------------------------------------------------------------------------------


def test_a_job_that_is_preempted_resumes(tmp_path, mark, monkeypatch):
    """submitit's own executor of this machine, its signal, and its queue."""
    pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setattr(slurm, "CLUSTER", "local")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    cell, out = cell_of(mark, "lingers"), tmp_path / "out"
    events = []
    for event in slurm.run_by_slurm([cell], out, options={"time": "30"}):
        events.append(event)
        begun = attempts(out, "lingers")
        if len(begun) == 1 and len(steps_of(mark, "lingers")) > 4 and not (mark / "open").exists():
            (mark / "open").touch()
            job = int(Path(f"/proc/{begun[0]}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(job, signal.SIGUSR2)
    (done,) = (event for event in events if event is not None)
    assert done.error == ""
    assert done.result == finished(cell, out)
    assert steps_of(mark, "lingers") == list(range(LONG))  # it had saved: no step was taken twice
    assert len(attempts(out, "lingers")) == 2
    assert done.result["measured"] == calm(cell, tmp_path, None)["measured"]
    assert stat.S_IMODE((out / "slurm").stat().st_mode) == 0o700


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Commands of Slurm that only write down what they were given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, does in {
        "sbatch": f'cat "$1" >> {tmp_path}/submitted; echo "Submitted batch job 7"',
        "srun": "exit 1",
        "scancel": f'echo "$@" >> {tmp_path}/cancelled',
        "sacct": 'printf "JobID|State|NodeList\\n7_0|CANCELLED|a\\n7_1|CANCELLED|a\\n7|CANCELLED|a\\n"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_what_slurm_is_asked_for(pretended, mark, monkeypatch):
    submitit = pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 0)  # of a job that has left no result
    (table,) = mishaps.tables("laptop", mark, (0, 1), None, True)
    given = slurm.options(["time=600", "--partition=gpu", "cpus-per-task=16"])
    events = slurm.run_by_slurm(
        table.cells[:2], pretended / "out", jobs=1, execution=Execution(processes=8), options=given
    )
    found = next(event for event in events if event is not None)
    assert found.result is None
    assert found.error.startswith("its job 7_0 ended as CANCELLED: ")
    assert "\n" not in found.error
    events.close()
    lines = (pretended / "submitted").read_text().splitlines()
    for line in ("partition=gpu", "time=600", "gpus-per-node=8", "cpus-per-task=16", "array=0-1%1", "signal=USR2@90"):
        assert f"#SBATCH --{line}" in lines
    assert not [line for line in lines if "exclusive" in line]
    assert (pretended / "cancelled").read_text().split() == ["7_1"]


@pytest.mark.refused
def test_without_slurm_or_submitit_it_is_said(monkeypatch, mark, tmp_path):
    (table,) = mishaps.tables("laptop", mark, (0,), None, True)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"^--engine slurm needs submitit: pip install 'joformer\[slurm\]'$"):
        next(slurm.run_by_slurm(table.cells, tmp_path, options={"time": "5"}))
    monkeypatch.undo()
    pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"^there is no Slurm here \(srun\): run the command on a machine that sub"):
        next(slurm.run_by_slurm(table.cells, tmp_path, options={"time": "5"}))
    assert not list(tmp_path.rglob(RESULT))
