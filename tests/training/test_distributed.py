"""Two processes, started as a person would start them: the same losses as one, and their own bits when killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

HERE = Path(__file__).parent
PLAIN = {"dropout": 0.0}
RECIPE = {"accumulate": 1, "log_every": 1, "steps": 6}
STAGES = {"stages": ["3:1e-3", "3:1e-3:projected"]}
JOBS = {
    "ddp": {"kind": "lm", "config": PLAIN, "recipe": RECIPE},
    "ddp accumulated": {"kind": "lm", "config": PLAIN, "recipe": RECIPE | {"accumulate": 2}},
    "ddp staged": {"kind": "lm", "config": PLAIN | {"frames": "fixed"}, "recipe": RECIPE | STAGES},
    "ddp vit": {"kind": "vit", "config": PLAIN | {"drop_path": 0.0}, "recipe": RECIPE},
    "fsdp": {"kind": "lm", "config": PLAIN, "recipe": RECIPE, "sharded": True},
    "fsdp accumulated": {"kind": "lm", "config": PLAIN, "recipe": RECIPE | {"accumulate": 2}, "sharded": True},
    "fsdp vit": {"kind": "vit", "config": PLAIN | {"drop_path": 0.0}, "recipe": RECIPE, "sharded": True},
}
LONG = {"steps": 30, "save_every": 3, "evaluate_every": 20}
DROPPED = {"ddp": {"kind": "lm", "recipe": LONG}, "fsdp": {"kind": "lm", "recipe": LONG, "sharded": True}}


def launch(folder: Path, *jobs: dict) -> subprocess.Popen:
    """Two processes for the jobs, in a process group of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with open(folder / "said", "w") as said:
        return subprocess.Popen(
            [*command, str(HERE / "two.py"), str(folder), *map(json.dumps, jobs)],
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def results(folder: Path, process: subprocess.Popen) -> list[list[dict]]:
    """What the jobs gave in each of the two processes."""
    assert process.wait(120) == 0, (folder / "said").read_text()
    return [json.loads((folder / f"results.{rank}.json").read_text()) for rank in range(2)]


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(fast_folder):
    with fast_folder() as made:
        yield made


@pytest.fixture(scope="module")
def together(folder):
    """All of JOBS and DROPPED, never interrupted, and two that cannot be done, in one launch of two processes."""
    jobs = JOBS | {f"{name} whole": job for name, job in DROPPED.items()}
    jobs = {name: {**job, "out": str(folder / name)} for name, job in jobs.items()}
    jobs |= {
        "poisoned": {"kind": "lm", "recipe": RECIPE, "out": str(folder / "poisoned"), "poison": 1},
        "nowhere": {"kind": "lm", "recipe": RECIPE, "out": "/proc/1/run"},
        "staged and sharded": JOBS["ddp staged"] | {"sharded": True, "out": str(folder / "staged and sharded")},
    }
    found = results(folder, launch(folder, *jobs.values()))
    return [dict(zip(jobs, one, strict=True)) for one in found]


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_are_one_with_the_same_batch(server, together, folder, name):
    assert together[0][name] == together[1][name]
    assert "result" in together[0][name], together[0][name]
    job = {key: value for key, value in JOBS[name].items() if key != "sharded"}
    # The parts of a batch add up in another order.
    alone = folder / f"{name} alone"
    ended = server.run(alone, **job)
    assert ended.code == 0, ended.said
    apart = 0.0
    for ours, theirs in zip(metrics(folder / name), metrics(alone), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=1e-5 if "loss" in key else 1e-3), key
            apart = max(apart, abs(ours[key] / value - 1)) if "loss" in key else apart
    print(f"{name}: losses differ by at most {apart:.1e}")
    ours, theirs = (load_file(out / "model.safetensors") for out in (folder / name, alone))
    assert ours.keys() == theirs.keys()
    assert all(value.dtype == theirs[key].dtype and value.shape == theirs[key].shape for key, value in ours.items())


def test_what_is_wrong_is_said_by_both(together):
    for one in together:
        assert "cannot write into /proc/1/run" in one["nowhere"]["error"]
        assert "frames cannot change while the model is sharded" in one["staged and sharded"]["error"]
        assert "the loss is nan" in one["poisoned"]["error"]
        assert "at step 1, first seen in" in one["poisoned"]["error"]
        assert not any("\n" in found.get("error", "") for found in one.values())


def test_killed_and_continued_they_end_with_their_own_bits(together, folder, result_of):
    jobs = [{**job, "out": str(folder / f"{name} killed")} for name, job in DROPPED.items()]
    for job in jobs:
        checkpoints = Path(job["out"]) / "checkpoints"
        process = launch(folder, job)
        while len(list(checkpoints.glob("0*"))) < 2:
            assert process.poll() is None, (folder / "said").read_text()
            time.sleep(0.01)
        kill_all(process)
        assert not (checkpoints.parent / "model.safetensors").exists()
    found = results(folder, launch(folder, *jobs))
    assert all("result" in one for rank in found for one in rank), found
    assert (folder / "said").read_text().count("continuing") == len(jobs)
    for name in DROPPED:
        assert result_of(folder / f"{name} killed") == result_of(folder / f"{name} whole")


def kill_all(process: subprocess.Popen) -> None:
    """SIGKILL for the launcher and the two it started, in sessions of their own; waits until they are gone."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait(30)
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        time.sleep(0.01)


@pytest.mark.parametrize("name", DROPPED)
def test_a_checkpoint_of_two_continues_in_one(server, together, folder, memory, name):
    whole = folder / f"{name} whole"
    out = shutil.copytree(whole, memory / "run")
    (out / "model.safetensors").unlink()
    shutil.rmtree(out / "checkpoints" / "00000030")
    job = {"kind": "lm", "recipe": LONG}
    ended = server.run(out, **job)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "was made with processes = 2, here it is 1" in ended.said
    ended = server.run(out, **job, drift=True)
    assert ended.lines == [f"continuing {out} at step 27 of 30"]
    assert ended.code == 0
    assert metrics(out)[-1]["loss"] == pytest.approx(metrics(whole)[-1]["loss"], rel=1e-3)
