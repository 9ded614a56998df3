"""Shared by all tests: deterministic Hypothesis, deterministic torch."""

import math
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

# Some virtual machines announce AMX but die of an illegal instruction in oneDNN's bfloat16 products that use it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Whoever runs the tests in the background of a shell ignores Ctrl-C, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from hypothesis import settings

from joformer import _log

settings.register_profile("joformer", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("joformer")


# They wait for processes of their own most of the time: begun first, and by every worker, the others fill the time.
WAITING = (
    "test_ray",
    "test_two_hosts",
    "test_distributed",
    "test_engine",
    "test_killed",
    "test_timm",
    "test_titan",
    "test_triton",
    "test_commands",
    "test_convert",
    "test_notebooks",
)


def pytest_collection_modifyitems(config, items):
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    waiting = [item for item in items if item.path.stem in WAITING]
    rest = [item for item in items if item.path.stem not in WAITING]
    cut = [len(rest) * worker // workers for worker in range(workers + 1)]
    items[:] = [
        item
        for worker in range(workers)  # xdist gives each the items of one stretch
        for item in [*waiting[worker::workers], *rest[cut[worker] : cut[worker + 1]]]
    ]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch):
    """Which only a slow machine would see among those that tests expect."""
    monkeypatch.setattr(_log, "LOGGED", math.inf)


@pytest.fixture
def joformer(monkeypatch, capsys):
    """The command in this process, as a function of its words: exit code, what it printed, what it logged."""

    def command(*words):
        from joformer import cli

        monkeypatch.setattr(sys, "argv", ["joformer", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return command


@pytest.fixture(params=[torch.float32, torch.float64], ids=["fp32", "fp64"])
def dtype(request):
    return request.param


@pytest.fixture
def hosts():
    """Two hosts: network namespaces with an address each and a cable between them; skipped where these may not be made.

    Nothing outside of the two sees their addresses.
    """
    addresses = ["10.231.7.1", "10.231.7.2"]
    names = [f"jo{os.getpid()}-{number}" for number in (1, 2)]
    made = []

    def ip(*words):
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout

    def remove():
        for name in made:
            ip("netns", "delete", name)

    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, addresses):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for link in ("lo", "cable"):
                ip("-n", name, "link", "set", link, "up")
    except (OSError, subprocess.CalledProcessError) as error:
        remove()
        pytest.skip(f"no network namespaces here: {(getattr(error, 'stderr', '') or str(error)).strip()}")
    yield SimpleNamespace(names=names, addresses=addresses, ip=ip)
    remove()
