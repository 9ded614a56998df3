"""Two processes, started as a person would start them: the same losses as one, and their own bits when killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from joformer.training import Processes

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
    "ddp untransported": {"kind": "lm", "config": PLAIN | {"transport": "none"}, "recipe": RECIPE},
    "fsdp learned base": {
        "kind": "lm",
        "config": PLAIN | {"frames": "cumulative", "projected_base": "learned"},
        "recipe": RECIPE,
        "sharded": True,
    },
    "fsdp mean": {
        "kind": "vit",
        "config": PLAIN | {"drop_path": 0.0, "pool": "mean"},
        "recipe": RECIPE,
        "sharded": True,
    },
    "context": {"kind": "lm", "config": PLAIN, "recipe": RECIPE, "context": 2},
    "context cumulative": {
        "kind": "lm",
        "config": PLAIN | {"frames": "cumulative", "pattern": "FW", "window": 5},
        "recipe": RECIPE | {"accumulate": 2},
        "context": 2,
    },
    "context fsdp": {"kind": "lm", "config": PLAIN, "recipe": RECIPE, "context": 2, "sharded": True},
    "fsdp vit": {"kind": "vit", "config": PLAIN | {"drop_path": 0.0}, "recipe": RECIPE, "sharded": True},
}
LONG = {"steps": 24, "save_every": 3, "evaluate_every": 20}
DROPPED = {"ddp": {"kind": "lm", "recipe": LONG}, "fsdp": {"kind": "lm", "recipe": LONG, "sharded": True}}


def launch(folder: Path, *jobs: dict) -> subprocess.Popen:
    """Two processes for the jobs, in a process group of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with open(folder / "said", "w") as said:
        return subprocess.Popen(
            [*command, str(HERE / "two.py"), str(folder), *map(json.dumps, jobs)],
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def results(folder: Path, process: subprocess.Popen) -> list[list[dict]]:
    """What the jobs gave in each of the two processes."""
    assert process.wait(400) == 0, (folder / "said").read_text()
    return [json.loads((folder / f"results.{rank}.json").read_text()) for rank in range(2)]


def metrics(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_two_processes(server, memory, result_of):
    """One test, since each launch costs seconds: all of JOBS and DROPPED, uninterrupted, in the first."""
    jobs = JOBS | {f"{name} whole": job for name, job in DROPPED.items()}
    jobs = {name: {**job, "out": str(memory / name)} for name, job in jobs.items()}
    jobs |= {
        "ddp bf16": {"kind": "lm", "recipe": RECIPE | {"precision": "bf16"}, "out": str(memory / "ddp bf16")},
        "fsdp bf16": {
            "kind": "lm",
            "recipe": RECIPE | {"precision": "bf16"},
            "out": str(memory / "fsdp bf16"),
            "sharded": True,
        },
        "context bf16": {
            "kind": "lm",
            "recipe": RECIPE | {"precision": "bf16"},
            "out": str(memory / "context bf16"),
            "context": 2,
        },
        "context vit": {"kind": "vit", "recipe": RECIPE, "out": str(memory / "context vit"), "context": 2},
        "context 3": {"kind": "lm", "recipe": RECIPE, "out": str(memory / "context 3"), "context": 3},
        "context poisoned": {
            "kind": "lm",
            "recipe": RECIPE,
            "out": str(memory / "context poisoned"),
            "context": 2,
            "poison": 1,
        },
        "poisoned": {"kind": "lm", "recipe": RECIPE, "out": str(memory / "poisoned"), "poison": 1},
        "nowhere": {"kind": "lm", "recipe": RECIPE, "out": "/proc/1/run"},
        "staged and sharded": JOBS["ddp staged"] | {"sharded": True, "out": str(memory / "staged and sharded")},
    }
    first, second = (dict(zip(jobs, one)) for one in results(memory, launch(memory, *jobs.values())))
    assert first == second
    assert "find_unused_parameters" not in (memory / "said").read_text()  # DDP's warning
    for name in JOBS:
        assert "result" in first[name], (name, first[name])
        same_as_one(server, memory, name)
    for name in ("ddp bf16", "fsdp bf16", "context bf16"):
        assert first[name]["result"]["loss"] == pytest.approx(metrics(memory / "ddp")[-1]["loss"], rel=0.01)
    assert "cannot write into /proc/1/run" in first["nowhere"]["error"]
    assert "frames cannot change while the model is sharded" in first["staged and sharded"]["error"]
    assert first["context vit"]["error"] == "ImageTask has no sequences to divide: leave out --context-parallel"
    assert "--context-parallel 3 needs a multiple of 3 processes, here are 2: " in first["context 3"]["error"]
    for name in ("poisoned", "context poisoned"):
        assert first[name]["error"].startswith("the loss is nan")
        assert "at step 1, first seen in" in first[name]["error"]
    assert not any("\n" in found.get("error", "") for found in first.values())
    for name in DROPPED:
        continues_in_one(server, memory / f"{name} whole", memory / f"{name} in one")
    killed(memory)
    for name in DROPPED:
        assert result_of(memory / f"{name} killed") == result_of(memory / f"{name} whole"), name


def same_as_one(server, folder: Path, name: str, out: str | None = None) -> None:
    """The job's losses are those of one process with the same batch: its parts add up in another order."""
    ours, theirs = folder / (out or name), folder / f"{name} alone"
    ended = server.run(theirs, **{key: value for key, value in JOBS[name].items() if key not in ("sharded", "context")})
    assert ended.code == 0, ended.said
    apart = 0.0
    for here, there in zip(metrics(ours), metrics(theirs), strict=True):
        assert here.keys() == there.keys(), name
        for key, value in there.items():
            assert here[key] == pytest.approx(value, rel=1e-6 if "loss" in key else 1e-3), (name, key)
            apart = max(apart, abs(here[key] / value - 1)) if "loss" in key else apart
    print(f"{name}: losses differ by at most {apart:.1e}")
    values, wanted = (load_file(out / "model.safetensors") for out in (ours, theirs))
    assert [(key, value.dtype, value.shape) for key, value in sorted(values.items())] == [
        (key, value.dtype, value.shape) for key, value in sorted(wanted.items())
    ], name


def continues_in_one(server, whole: Path, out: Path) -> None:
    """The last checkpoint but one of two processes goes on in one, if that is said."""
    shutil.copytree(whole, out)
    (out / "model.safetensors").unlink()
    shutil.rmtree(out / "checkpoints" / f"{LONG['steps']:08d}")
    ended = server.run(out, kind="lm", recipe=LONG)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "was made with processes = 2, but here it is 1" in ended.said
    ended = server.run(out, kind="lm", recipe=LONG, drift=True)
    assert ended.code == 0
    assert ended.lines[0].endswith("from here on its bits are not those of an uninterrupted run")
    assert ended.lines[1:] == [f"resuming {out} at step {LONG['steps'] - LONG['save_every']} of {LONG['steps']}"]
    assert metrics(out)[-1]["loss"] == pytest.approx(metrics(whole)[-1]["loss"], rel=1e-3)


def killed(folder: Path) -> None:
    """Each of DROPPED killed on its way, then both continued to their end."""
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
    assert (folder / "said").read_text().count("resuming") == len(jobs)


def test_four_processes_in_teams_of_two(server, memory, result_of):
    """Each team has half of the batch, each process half of its tokens; killed and resumed, the bits are the same."""

    def start(out: Path, **job: object) -> list[int]:
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}", "WORLD_SIZE": "4"}
        common |= {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        own = ({"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(4))
        return [server.start(out, kind="lm", context=2, environment=common | one, **job) for one in own]

    def wait(ranks: list[int]) -> None:
        ended = [server.wait(rank) for rank in ranks]
        assert [one and one.code for one in ended] == [0] * 4, ended

    wait(start(memory / "teams", config=PLAIN, recipe=RECIPE))
    same_as_one(server, memory, "ddp", "teams")
    wait(start(memory / "whole", recipe=LONG))  # with dropout
    checkpoints, ranks = memory / "killed" / "checkpoints", start(memory / "killed", recipe=LONG)
    while len(list(checkpoints.glob("0*"))) < 2:
        time.sleep(0.01)
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    assert {server.wait(rank).code for rank in ranks} == {-signal.SIGKILL}
    wait(start(memory / "killed", recipe=LONG))
    assert result_of(memory / "killed") == result_of(memory / "whole")
    ended = [server.wait(rank) for rank in start(memory / "odd", task={"context": 18})]
    said = "18 tokens do not divide into 4 chunks, two for each of 2 processes (context parallel): take a multiple of 4"
    assert [(one.code, one.lines) for one in ended] == [(2, [said])] * 4


def kill_all(process: subprocess.Popen) -> None:
    """SIGKILL for the launcher and the two it started, in sessions of their own; waits until they are gone."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait(30)
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        time.sleep(0.01)


def test_one_that_hangs_is_not_waited_for_for_ever(memory):
    """Two processes on gloo, of which the second is stopped: the first says so in one line, and ends."""
    (memory / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    words = "train lm --data text --vocab 256 --context 16 --dim 16 --layers 1 --heads 2 --batch 4 --steps 100000"
    command = [sys.executable, "-m", "joformer.cli", *words.split(), "--save-every", "20", "--out", "run"]
    common = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{free_port()}"}
    common |= {"WORLD_SIZE": "2", "JOFORMER_TIMEOUT": "3", "JOFORMER_CACHE": str(memory / "cache")}
    started = []
    try:
        for rank in ("0", "1"):
            with open(memory / f"said.{rank}", "w") as said:
                own = {"RANK": rank, "LOCAL_RANK": rank, "TORCH_CPP_LOG_LEVEL": "ERROR"}
                started.append(subprocess.Popen(command, env=common | own, cwd=memory, stdout=said, stderr=said))
        while not (memory / "run" / "checkpoints" / "00000020").is_dir():
            assert started[0].poll() is None, (memory / "said.0").read_text()
            time.sleep(0.02)
        started[1].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        assert started[0].wait(60) == 2
        assert time.monotonic() - began < 30
        lines = [line for line in (memory / "said.0").read_text().splitlines() if line.startswith("joformer: ")]
        assert lines == [
            "joformer: process 0 of 2 waited in vain for another, which hangs or has died (JOFORMER_TIMEOUT is 3 s): "
            "end them all, and the same command resumes from the last checkpoint"
        ]
        # Whoever wakes up alone says the same.
        started[1].send_signal(signal.SIGCONT)
        assert started[1].wait(60) == 2
        said = (memory / "said.1").read_text()
        assert "process 1 of 2 waited in vain" in said.splitlines()[-1]
        assert "Traceback" not in said + (memory / "said.0").read_text()
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.mark.refused
@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "1e99"])
def test_a_patience_that_is_none(monkeypatch, given):
    monkeypatch.setenv("JOFORMER_TIMEOUT", given)
    with pytest.raises(ValueError, match="give the seconds to wait for another process, above 0"):
        Processes()
