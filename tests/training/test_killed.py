"""A run that is killed at any moment, however often, ends with the bits of one that never was: with real processes."""

import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from runner import DOMAINS

KINDS = ("lm", "vit")


@pytest.fixture(scope="module")
def reference(server, fast_folder, result_of):
    """For each kind of model: the result of a run that is never interrupted, and how long it took."""
    made = {}

    def of(kind):
        if kind not in made:
            out = folder / kind
            began = time.monotonic()
            ended = server.run(out, kind=kind)
            made[kind] = result_of(out), time.monotonic() - began, out
            assert ended.code == 0, ended.said
            assert len(made[kind][0]["metrics.jsonl"].splitlines()) == 6
        return made[kind]

    with fast_folder() as folder:
        yield of


def steps(out: Path) -> list[int]:
    folder = out / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []


def newest(out: Path) -> Path:
    return out / "checkpoints" / f"{steps(out)[-1]:08d}"


# -- SIGKILL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random_moments(server, memory, reference, result_of, kind):
    wanted, took, _ = reference(kind)
    dice = random.Random(kind)
    wished = {"lm": 16, "vit": 8}[kind]
    kills, amid, most, chain = 0, 0, 0, 0
    while kills < wished:
        out = memory / f"chain{chain}"
        again = 0
        while True:
            ended = server.kill(server.start(out, kind=kind), dice.uniform(0, 0.7 * took))
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended.said
            again += 1
            amid += bool(steps(out)) and not (out / "model.safetensors").exists()
        assert result_of(out) == wanted, f"chain {chain}, killed {again} times"
        kills, most, chain = kills + again, max(most, again), chain + 1
        assert chain < 40, "the runs end too early to be killed"
    print(f"{kind}: {kills} kills in {chain} chains, {amid} in the middle of a run, up to {most} of one run")
    assert amid >= wished // 4
    assert most >= 2


@pytest.mark.parametrize("then", ["before", "torn"])
def test_killed_at_every_operation_in_turn(server, memory, result_of, then):
    """The n-th start is killed at the n-th operation on files, until one comes through."""
    recipe = {"steps": 4, "save_every": 1, "keep": 2, "evaluate_every": 3}
    whole = memory / "whole"
    assert server.run(whole, kind="lm", recipe=recipe).code == 0
    out = memory / "run"
    for n in range(1, 200):
        ended = server.run(out, kind="lm", recipe=recipe, befall={"kill_at": n, "then": then})
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.said
    assert n > 20
    assert result_of(out) == result_of(whole)
    assert len(steps(out)) >= 2


def test_killed_at_every_operation_of_the_end(server, memory, result_of):
    """From the last checkpoint but one: killed at each operation of the last save and of the end, then continued."""
    recipe = {"steps": 3, "save_every": 1, "keep": 1, "average": 0.0}
    whole, start = memory / "whole", memory / "start"
    assert server.run(whole, kind="lm", recipe=recipe).code == 0
    stop = {"send": "SIGTERM", "during": "save", "times": 1}
    assert server.run(start, kind="lm", recipe=recipe, befall=stop).code == 143
    assert steps(start) == [2]
    wanted, left = result_of(whole), 0
    for n in range(1, 100):
        out = memory / f"run{n}"
        shutil.copytree(start, out)
        ended = server.run(out, kind="lm", recipe=recipe, befall={"kill_at": n, "then": "torn"})
        if ended.code == 0:
            break
        left += (out / "model.safetensors").exists() is False and steps(out)[-1] == 3
        assert server.run(out, kind="lm", recipe=recipe).code == 0
        assert result_of(out) == wanted, f"killed at operation {n}"
        names = {path.name for path in out.rglob("*")}
        assert not [name for name in names if name.startswith(".partial") or name.startswith(".model")], n
    assert n > 20
    assert left, "none was killed between the last checkpoint and the final weights"


@pytest.mark.parametrize("batch", [7, 8, 9, 10, 11, 12])
def test_killed_around_the_border_of_two_stages(server, memory, result_of, batch):
    """Fixed frames for four steps, projected ones for three; two batches a step, so that the border is before 9."""
    job = {"kind": "lm", "config": {"frames": "fixed"}, "recipe": {"stages": ["4:1e-2", "3:1e-2:projected"]}}
    job["recipe"]["save_every"] = 1 + batch % 2
    whole, out = memory / "whole", memory / "run"
    assert server.run(whole, **job).code == 0
    ended = server.run(out, **job, befall={"send": "SIGKILL", "during": "batch", "times": batch})
    assert ended.code == -signal.SIGKILL
    assert server.run(out, **job).code == 0
    assert result_of(out) == result_of(whole)


@pytest.mark.parametrize("kind", DOMAINS)
def test_runs_of_every_domain_are_killed_and_resumed(server, memory, result_of, tmp_path, kind):
    job = {"kind": kind, "recipe": {"accumulate": 1, "average": 0.0}}
    if kind == "trees":
        for number in range(12):
            code = f"def f{number}(a, b):\n    c = a + {number}\n    return [c * b for b in range(c)]\n" * 3
            (tmp_path / f"m{number}.py").write_text(code)
        job["config"] = {"data": str(tmp_path)}
    whole, out = memory / "whole", memory / "run"
    ended = server.run(whole, **job)
    assert ended.code == 0, ended.said
    for batch in (4, 3, 5):  # each start is killed some steps further on, amid a step
        ended = server.run(out, **job, befall={"send": "SIGKILL", "during": "batch", "times": batch})
        assert ended.code == -signal.SIGKILL, ended.said
    assert 2 <= steps(out)[-1] < 12
    assert server.run(out, **job).code == 0
    assert result_of(out) == result_of(whole)


# -- disks that fill up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "fails"), [(2_000, "model"), (50_000, "optimizer")])
def test_a_disk_that_fills_up(server, memory, reference, result_of, limit, fails):
    out = memory / "run"
    ended = server.run(out, kind="lm", befall={"limit": limit, "limit_at": 3})
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "File too large" in ended.said, fails
    assert steps(out) == [2, 4]
    assert not list((out / "checkpoints").glob(".partial*"))
    ended = server.run(out, kind="lm")
    assert ended.code == 0
    assert f"resuming {out} at step 4 of 12" in ended.said
    assert result_of(out) == reference("lm")[0]


@pytest.fixture
def small_disk(tmp_path):
    """A function that gives a file system of so many bytes, or makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()

    def mounted(size: int, *more: str) -> Path:
        options = ",".join((*more, f"size={size}"))
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        return place

    yield mounted
    if os.path.ismount(place):
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_real_full_disk(server, small_disk, memory, reference, result_of):
    size = sum(path.stat().st_size for path in newest(reference("lm")[2]).iterdir())
    disk = small_disk(9 * size)  # for the six of this run, if there were no one else
    out, other = disk / "run", disk / "other"
    befall = {"fill": str(other), "limit_at": 4}
    ended = server.run(out, kind="lm", recipe={"keep": 10}, befall=befall)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "No space left on device" in ended.said
    kept = steps(out)
    assert kept
    assert kept == [2, 4, 6][: len(kept)]
    again = server.run(out, kind="lm", recipe={"keep": 10})
    assert again.code == 2  # still full
    assert len(again.lines) == 1
    assert steps(out) == kept
    small_disk(other.stat().st_size + 20 * size, "remount")
    assert server.run(out, kind="lm", recipe={"keep": 10}).code == 0
    assert steps(out) == [2, 4, 6, 8, 10, 12]
    assert result_of(out) == reference("lm")[0]


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount")
def test_a_disk_too_small_from_the_beginning(server, small_disk, reference):
    size = sum(path.stat().st_size for path in newest(reference("lm")[2]).iterdir())
    out = small_disk(size) / "run"
    ended = server.run(out, kind="lm")
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "MB free" in ended.said
    assert not (out / "metrics.jsonl").exists()
    # Room for two, as it was once asked for, is not enough where more are kept.
    small_disk(4 * size, "remount")
    ended = server.run(out, kind="lm", recipe={"keep": 10})
    assert ended.code == 2
    assert "7 at a time: make room or choose another --out" in ended.said
    assert server.run(out, kind="lm", recipe={"keep": 1}).code == 0


# -- damage ------------------------------------------------------------------------------------------------------------


class _Marks:
    """What creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def truncated(place, _):
    path = place / "optimizer.safetensors"
    os.truncate(path, path.stat().st_size // 2)


def emptied(place, _):
    os.truncate(place / "model.safetensors", 0)


def flipped(place, _):
    path = place / "averaged.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def missing(place, _):
    (place / "model.safetensors").unlink()


def stateless(place, _):
    (place / "state.json").unlink()


def altered(place, _):
    path = place / "state.json"
    state = json.loads(path.read_text())
    state["recent"] = [0.0]
    path.write_text(json.dumps(state, indent=2) + "\n")


def other_step(place, _):
    shutil.copytree(place.with_name("00000010"), place, dirs_exist_ok=True)


def pickled(place, marker):
    (place / "model.safetensors").write_bytes(pickle.dumps(_Marks(marker)))


def pickled_state(place, marker):
    (place / "state.json").write_bytes(pickle.dumps(_Marks(marker)))


def pickled_whole(place, marker):
    shutil.rmtree(place)
    place.write_bytes(pickle.dumps(_Marks(marker)))


DAMAGES = (truncated, emptied, flipped, missing, stateless, altered, other_step, pickled, pickled_state, pickled_whole)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_seen_and_the_one_before_used(server, memory, reference, result_of, damage):
    wanted, _, finished = reference("lm")
    out, marker = memory / "run", memory / "unpickled"
    shutil.copytree(finished, out)
    (out / "model.safetensors").unlink()
    damage(newest(out), marker)
    ended = server.run(out, kind="lm")
    assert ended.code == 0, ended.said
    assert "00000012" in ended.lines[0]
    assert ended.lines[0].endswith("trying the previous one, 00000010"), ended.said
    assert ended.lines[1] == f"resuming {out} at step 10 of 12"
    assert len(ended.lines) == 2
    assert "pickle" not in damage.__name__ or "is never read" in ended.said
    assert not marker.exists()
    assert result_of(out) == wanted


def test_all_damaged_begins_anew(server, memory, reference, result_of):
    wanted, _, finished = reference("vit")
    out = memory / "run"
    shutil.copytree(finished, out)
    found = steps(out)
    for step, damage in zip(found, (truncated, altered, missing), strict=True):
        damage(out / "checkpoints" / f"{step:08d}", None)
    ended = server.run(out, kind="vit")
    assert ended.code == 2  # a run that has ended is not made anew: its weights may be all there is
    assert ended.lines[-1] == f"{out} holds a model but no good checkpoint to resume: choose another --out"
    (out / "model.safetensors").unlink()
    ended = server.run(out, kind="vit")
    assert ended.code == 0
    assert len(ended.lines) == len(found)
    assert "starting over" in ended.lines[-1]
    assert result_of(out) == wanted


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "during", "times", "kind", "saved"),
    [
        ("SIGTERM", "batch", 9, "lm", 6),  # the fifth step's first part: noticed when it is done, so after the next
        ("SIGINT", "batch", 10, "vit", 6),
        ("SIGTERM", "evaluate", 1, "lm", 5),
        ("SIGINT", "save", 3, "vit", 7),
        ("SIGTERM", "save", 6, "lm", 12),  # the last one: there is nothing left to stop
    ],
)
def test_a_signal_saves_and_stops(server, memory, reference, result_of, name, during, times, kind, saved):
    out = memory / "run"
    ended = server.run(out, kind=kind, befall={"send": name, "during": during, "times": times})
    if saved == 12:
        assert (ended.code, ended.said) == (0, "")
    else:
        assert ended.code == 128 + getattr(signal, name)
        assert ended.lines == [f"saved {out} at step {saved}; the same command resumes it"]
        assert steps(out)[-1] == saved
        assert not (out / "model.safetensors").exists()
        ended = server.run(out, kind=kind)
        assert ended.lines == [f"resuming {out} at step {saved} of 12"]
    assert result_of(out) == reference(kind)[0]


def test_stopped_and_continued_at_every_step(server, memory, reference, result_of):
    """SIGTERM in the first step of every start: a run in as many pieces as it has steps."""
    out, starts = memory / "run", 0
    while server.run(out, kind="lm", befall={"send": "SIGTERM", "during": "to"}).code == 143:
        starts += 1
        assert steps(out)[-1] == starts
    assert starts == 11
    assert result_of(out) == reference("lm")[0]


def test_ended_runs_stay_as_they_are(server, memory, reference, result_of):
    wanted, _, finished = reference("lm")
    out = memory / "run"
    shutil.copytree(finished, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    ended = server.run(out, kind="lm")
    assert (ended.code, ended.lines) == (0, [f"{out} is already finished: 12 steps"])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert result_of(out) == wanted


def test_two_runs_in_one_folder(server, memory, reference, result_of):
    out = memory / "run"
    first = server.start(out, kind="lm")
    while not steps(out):
        time.sleep(0.005)
    os.kill(first, signal.SIGSTOP)
    second = server.run(out, kind="lm")
    os.kill(first, signal.SIGCONT)
    assert second.code == 2
    assert second.lines == [f"{out} is in use by another run: wait for it, or choose another --out"]
    assert server.wait(first).code == 0
    assert result_of(out) == reference("lm")[0]
