"""The same cells on Ray, of this machine and of two: workers that die, a host that is cut off, a command that stops."""

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import mishaps
import pytest
import torch
from mishaps import AT, LONG, STEPS, attempts, steps_of

from joformer._io import Lock
from joformer.experiments import run
from joformer.experiments.cluster import STARTED, SWITCH, _cell, run_on_ray
from joformer.experiments.execution import Execution
from joformer.experiments.tables import RESULT

SCRIPT = Path(__file__).with_name("mishaps.py")


@pytest.fixture
def command(tmp_path):
    """`joformer reproduce mishaps --engine ray` in a process of its own: Ray's threads and warnings stay there."""
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: names of sockets are
    settings = {"RAY_TMPDIR": place, "JOFORMER_CACHE": str(tmp_path / "cache"), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | settings
    started = []

    def begin(log, *words, host="", program=(SCRIPT,), **more):
        inside = ["ip", "netns", "exec", host] if host else []
        with open(log, "w") as file:
            process = subprocess.Popen(
                [*inside, sys.executable, *program, *map(str, words)], stdout=file, stderr=file, env=environment | more
            )
        started.append(process)
        return process

    yield begin
    for process in reversed(started):
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


def test_a_command_on_ray_is_stopped(command, tmp_path):
    """One command, since a cluster takes long to start: workers are killed on the way, and the last cell is stopped."""
    pytest.importorskip("ray", reason="Ray is not installed")
    mark, out, log = tmp_path / "mark", tmp_path / "out", tmp_path / "log"
    mark.mkdir()
    words = ["reproduce", "mishaps", "--data", mark, "--seeds", 1, "--engine", "ray", "--jobs", 2, "--out", out]
    process = command(log, *words)
    until(lambda: len(steps_of(mark, "lingers")) > 4 or process.poll() is not None)
    until(lambda: log.read_text().count(": failed: ") == 3 or process.poll() is not None)
    until(lambda: len(list(out.glob(f"mishaps/*/*/{RESULT}"))) == 2 or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    workers, _ = below(process.pid)
    assert {pid for pid, _ in workers} >= set(attempts(out, "lingers"))
    # Whoever reaches a port of Ray's may run code here: nobody from outside does.
    heard = listening([process.pid, *(pid for pid, _ in workers)])
    assert len({pid for pid, _ in heard}) >= 4  # this command, the GCS, the raylet, a worker
    assert {address for _, address in heard if not address.is_loopback} == set()
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM, log.read_text()
    told = log.read_text()
    assert told.splitlines()[-1] == f"joformer: stopped with 2 of 6 runs finished in {out}; the same command resumes"
    assert "Traceback" not in told
    until(lambda: not workers & below(process.pid)[1])
    assert [len(attempts(out, fate)) for fate in mishaps.FATES] == [1, 2, 3, 1, 1, 1]
    assert steps_of(mark, "killed once") == [*range(AT + 1), *range(4, STEPS)]
    assert steps_of(mark, "killed") == [*range(AT + 1), 4, 5, AT, 4, 5, AT]
    lines = [line.partition("] ")[2] for line in told.splitlines() if ": failed: " in line]
    assert "mishaps/fails/seed-0: failed: RuntimeError: nobody foresaw this" in lines, told
    assert "mishaps/refused/seed-0: failed: there is no such data: look elsewhere" in lines, told
    assert any(line.startswith("mishaps/killed/seed-0: failed: Ray gave it up: ") for line in lines), told
    # Stopped in the middle, it had saved: no step is taken twice, and nothing of this is seen in the results.
    (mark / "open").touch()
    cells = {cell.model: cell for cell in planned(mark, 0)}
    _run(cells["lingers"], out)
    assert steps_of(mark, "lingers") == list(range(LONG))
    for fate in ("killed once", "lingers"):
        same_as_alone(cells[fate], out, tmp_path)


def test_a_host_is_cut_off_and_comes_back(command, hosts, tmp_path):
    """A cell on each of two hosts. The second goes on while nobody hears of it, and the first begins its cell anew."""
    pytest.importorskip("ray", reason="Ray is not installed")
    mark, out, log = tmp_path / "mark", tmp_path / "out", tmp_path / "log"
    mark.mkdir()
    (first, second), (here, there) = hosts.names, hosts.addresses
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_health_check_period_ms": "500"}
    settings |= {"RAY_health_check_timeout_ms": "3000", "RAY_health_check_failure_threshold": "3"}
    settings |= {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])}
    start = {"program": ("-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"), **settings}
    port = 6379
    command(
        tmp_path / "head", "--head", f"--port={port}", f"--node-ip-address={here}", "--include-dashboard=false",
        host=first, **start,
    )  # fmt: skip
    until(lambda: "Ray runtime started" in (tmp_path / "head").read_text())
    away = command(tmp_path / "node", f"--address={here}:{port}", f"--node-ip-address={there}", host=second, **start)
    until(lambda: "Ray runtime started" in (tmp_path / "node").read_text())
    words = ["reproduce", "mishaps", "--data", mark, "--seeds", 2, "--engine", "ray", "--out", out]
    process = command(log, *words, "--only", "mishaps/lingers/*", host=first, RAY_ADDRESS=f"{here}:{port}", **settings)
    until(lambda: all(len(steps_of(mark, "lingers", seed)) > 4 for seed in (0, 1)) or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    far = {int(pid) for pid in hosts.ip("netns", "pids", second).split()}
    (near,), (cut,) = ([seed for seed in (0, 1) if (attempts(out, "lingers", seed)[0] in far) == is_far]
                       for is_far in (False, True))  # fmt: skip

    hosts.ip("-n", first, "link", "set", "cable", "down")
    (mark / f"open-{near}").touch()
    until(lambda: "marked dead" in log.read_text())
    # Ray itself hears of it after some minutes, when its connections time out.
    subprocess.run(["ip", "netns", "exec", first, "ss", "-K", "dst", there], check=False, capture_output=True)
    until(lambda: "will be retried" in log.read_text() and list(out.glob(f"mishaps/lingers/seed-{near}/{RESULT}")))
    seen = len(steps_of(mark, "lingers", cut))
    until(lambda: len(steps_of(mark, "lingers", cut)) > seen + 9)
    assert len(attempts(out, "lingers", cut)) == 1  # the other waits

    hosts.ip("-n", first, "link", "set", "cable", "up")
    assert away.wait(120) != 0  # counted as dead: Ray ends it, and with it the cell
    until(lambda: len(attempts(out, "lingers", cut)) == 2 or process.poll() is not None)
    (mark / "open").touch()
    assert process.wait(120) == 0, log.read_text()
    assert "failed:" not in log.read_text()
    assert len(attempts(out, "lingers", near)) == 1
    assert attempts(out, "lingers", cut)[1] == attempts(out, "lingers", near)[0]  # the same worker of the first host
    steps = steps_of(mark, "lingers", cut)
    again = next(at for at in range(1, len(steps)) if steps[at] <= steps[at - 1])
    assert steps == [*range(again), *range(steps[again], LONG)]
    for cell in planned(mark, 0, 1):
        if cell.model == "lingers":
            same_as_alone(cell, out, tmp_path)


def planned(mark, *seeds):
    """The cells of the table, whose fate has been met."""
    (plan,) = mishaps.tables("laptop", mark, seeds, None, True)
    return plan.cells


def _run(cell, out):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(cell, out)
    finally:
        torch.set_num_threads(threads)


def same_as_alone(cell, out, tmp_path):
    """The bits are those of a run in this process to which nothing happens."""
    calm = replace(cell, source=replace(cell.source, fate="calm"))
    measured = _run(calm, tmp_path / "alone")["measured"]
    assert json.loads((out / cell.name / RESULT).read_text())["measured"] == measured
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / cell.name / name).read_bytes() == (tmp_path / "alone" / cell.name / name).read_bytes(), name


@pytest.fixture
def plain(tmp_path, monkeypatch):
    (tmp_path / "mark").mkdir()
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))
    return next(cell for cell in planned(tmp_path / "mark", 0) if cell.model == "plain")


def test_a_cell_that_runs_elsewhere_is_waited_for(plain, tmp_path):
    """As when a host was cut off and goes on: the second attempt reads what the first made of it."""
    with Lock(tmp_path, STARTED), ThreadPoolExecutor(1) as thread:
        with Lock(tmp_path / plain.name, ".cell"):
            second = thread.submit(_cell, plain, str(tmp_path), Execution())
            result = _run(plain, tmp_path)
            time.sleep(0.2)
            assert not second.done()
        assert second.result(60) == (result, "")
    assert len(attempts(tmp_path, "plain")) == 1


def test_a_folder_that_is_not_shared_is_noticed(plain, tmp_path):
    result, error = _cell(plain, str(tmp_path), Execution())  # nobody holds its lock, as in another folder of that name
    assert result is None
    assert f" {tmp_path} is not the folder, or lacks the locks, of the machine that started this: share it" in error
    assert attempts(tmp_path, "plain") == []


@pytest.mark.refused
def test_without_ray_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"^--engine ray needs ray: pip install 'joformer\[ray\]', or use --engine"):
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
    with pytest.raises(ValueError, match=r"^Ray does not start: ZeroDivisionError: division by zero$"):
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
