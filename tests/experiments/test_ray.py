"""The same cells on a Ray cluster of this machine: workers that die, a command that is stopped, what cells refuse."""

import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import mishaps
import pytest
from mishaps import AT, LONG, STEPS, attempts, steps_of

from joformer.experiments import run
from joformer.experiments.cluster import SWITCH, run_on_ray
from joformer.experiments.tables import RESULT

SCRIPT = Path(__file__).with_name("mishaps.py")


@pytest.fixture
def command(tmp_path):
    """`joformer reproduce mishaps --engine ray` in a process of its own: Ray's threads and warnings stay there."""
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: names of sockets are
    settings = {"RAY_TMPDIR": place, "JOFORMER_CACHE": str(tmp_path / "cache"), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | settings
    started = []

    def begin(log, *words, **more):
        with open(log, "w") as file:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, *map(str, words)], stdout=file, stderr=file, env=environment | more
            )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(120)
    shutil.rmtree(place, ignore_errors=True)


def until(reached, seconds=180):
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def below(pid):
    """The processes that a process started, and those that they started, with when they began: ids are used again."""
    stats = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            stats[int(place.parent.name)] = int(fields[1]), fields[19]
    found = {pid}
    while more := {one for one, (parent, _) in stats.items() if parent in found} - found:
        found |= more
    return {(one, stats[one][1]) for one in found - {pid} if one in stats}, {(one, s) for one, (_, s) in stats.items()}


def listening(pids):
    """The addresses at which these processes wait for connections: (process id, address)."""
    held = {}
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                held[os.readlink(handle)] = pid
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            pid = held.get(f"socket:[{rest[5]}]")
            if state == "0A" and pid is not None:  # LISTEN
                words = bytes.fromhex(local.partition(":")[0])
                raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ipaddress.ip_address(raw)
                found.add((pid, getattr(address, "ipv4_mapped", None) or address))
    return found


def test_listening_sockets_are_seen():
    with socket.create_server(("0.0.0.0", 0)), socket.create_server(("127.0.0.1", 0)):
        assert {str(address) for _, address in listening([os.getpid()])} >= {"0.0.0.0", "127.0.0.1"}


def test_a_command_on_ray_is_stopped_and_goes_on(command, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    mark, out = tmp_path / "mark", tmp_path / "out"
    mark.mkdir()
    words = ["reproduce", "mishaps", "--data", mark, "--seeds", 1, "--engine", "ray", "--jobs", 2, "--out", out]
    first, last = tmp_path / "first.log", tmp_path / "last.log"

    process = command(first, *words, "--only", "mishaps/plain/*", "mishaps/lingers/*")
    until(lambda: len(steps_of(mark, "lingers")) > 4 or process.poll() is not None)
    until(lambda: list(out.glob(f"mishaps/plain/*/{RESULT}")) or process.poll() is not None)
    assert process.poll() is None, first.read_text()
    workers, _ = below(process.pid)
    assert {pid for pid, _ in workers} >= set(attempts(out, "lingers"))
    # Whoever reaches a port of Ray's may run code here: nobody from outside does.
    heard = listening([process.pid, *(pid for pid, _ in workers)])
    assert len({pid for pid, _ in heard}) >= 4  # this command, the GCS, the raylet, a worker
    assert {address for _, address in heard if not address.is_loopback} == set()
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM, first.read_text()
    told = first.read_text()
    assert told.splitlines()[-1] == f"joformer: stopped with 1 of 2 cells finished in {out}; the same command resumes"
    assert "Traceback" not in told
    until(lambda: not workers & below(process.pid)[1])
    taken = steps_of(mark, "lingers")
    assert taken == list(range(len(taken)))
    kept = (out / "mishaps/plain/seed-0" / RESULT).stat().st_mtime_ns

    # All of them now: workers are killed on the way.
    (mark / "open").touch()
    process = command(last, *words)
    workers = set()
    while process.poll() is None:
        workers |= below(process.pid)[0]
        time.sleep(0.3)
    told = last.read_text()
    assert process.returncode == 1, told
    assert "Traceback" not in told
    until(lambda: not workers & below(process.pid)[1])
    # Stopped in the middle, it had saved: no step was taken twice.
    assert steps_of(mark, "lingers") == list(range(LONG))
    assert (out / "mishaps/plain/seed-0" / RESULT).stat().st_mtime_ns == kept
    assert [len(attempts(out, fate)) for fate in mishaps.FATES] == [1, 2, 3, 1, 1, 2]
    assert steps_of(mark, "killed once") == [*range(AT + 1), *range(4, STEPS)]
    assert steps_of(mark, "killed") == [*range(AT + 1), 4, 5, AT, 4, 5, AT]
    failed = {line.split()[-1] if ": failed: " not in line else line for line in told.splitlines() if "failed" in line}
    lines = [line.partition("] ")[2] for line in sorted(failed) if ": failed: " in line]
    assert any(line == "mishaps/fails/seed-0: failed: RuntimeError: nobody foresaw this" for line in lines), told
    assert any(line == "mishaps/refused/seed-0: failed: there is no such data: look elsewhere" for line in lines), told
    assert any(line.startswith("mishaps/killed/seed-0: failed: Ray gave it up: ") for line in lines), told
    assert len(lines) == 3
    # Nothing of this is seen in the results.
    (plan,) = mishaps.tables("laptop", mark, (0,), None, True)
    calm = {cell.model: cell for cell in plan.cells}
    for fate in ("killed once", "lingers"):
        result = json.loads((out / calm[fate].name / RESULT).read_text())
        assert result["measured"] == _alone(calm[fate], tmp_path)


def _alone(cell, tmp_path):
    from dataclasses import replace

    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calm = replace(cell, source=replace(cell.source, fate="calm"))
        return run(calm, tmp_path / "alone")["measured"]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.refused
def test_without_ray_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"^--engine ray needs ray: pip install 'joformer\[ray\]', or take --engine"):
        list(run_on_ray([], tmp_path))


@pytest.mark.refused
def test_one_that_would_listen_to_the_network_is_not_started(monkeypatch, tmp_path):
    """As where ray was imported before we could tell it: its own settings are read then."""
    started = []
    outside = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **given: started.append(given),
        util=SimpleNamespace(get_node_ip_address=lambda: "192.0.2.1"),
    )
    monkeypatch.setitem(sys.modules, "ray", outside)
    for name in ("RAY_ADDRESS", SWITCH):
        monkeypatch.delenv(name, raising=False)
    (plan,) = mishaps.tables("laptop", tmp_path, (0,), None, True)
    with pytest.raises(ValueError, match=r"^Ray would listen on 192\.0\.2\.1 .* set RAY_ENABLE_[A-Z_]+=0 .*$"):
        list(run_on_ray(plan.cells, tmp_path))
    assert started == []
    # Who says so gets it.
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(outside, "init", lambda **given: (started.append(given), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        list(run_on_ray(plan.cells, tmp_path))
    assert len(started) == 1


@pytest.mark.refused
def test_a_cluster_that_is_not_there_is_said(command, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "mark").mkdir()
    words = ["reproduce", "mishaps", "--data", tmp_path / "mark", "--engine", "ray", "--out", tmp_path / "out"]
    process = command(tmp_path / "log", *words, RAY_ADDRESS="auto")
    assert process.wait(180) == 2
    told = (tmp_path / "log").read_text()
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith("joformer: no Ray cluster at auto: "), told
