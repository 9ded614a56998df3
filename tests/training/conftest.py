"""Shared by the tests of training: processes that start at once, folders whose fsync costs nothing."""

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from runner import Server


@pytest.fixture(scope="session")
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="session")
def fast_folder():
    """A folder in memory where there is one: a kill is a kill there too, and thousands of fsyncs are free."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

    @contextmanager
    def made():
        with tempfile.TemporaryDirectory(prefix="joformer-", dir=place) as folder:
            yield Path(folder)

    return made


@pytest.fixture
def memory(fast_folder):
    with fast_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def one_thread():
    """Models this small are slower with more, and much slower beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_board(monkeypatch):
    """TensorBoard's threads are slow to start, and its files promise nothing."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)


@pytest.fixture(scope="session")
def result_of():
    """Everything of a run that must be the same to the bit: final weights, the last checkpoint's tensors, the log."""

    def result(out: Path) -> dict[str, bytes]:
        last = max(path for path in (out / "checkpoints").iterdir() if path.name.isdigit())
        state = json.loads((last / "state.json").read_text())
        del state["circumstances"], state["sha256"]
        found = {"state": json.dumps(state).encode(), "model": (out / "model.safetensors").read_bytes()}
        found |= {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
        return found | {name: (out / name).read_bytes() for name in ("metrics.jsonl", "config.json")}

    return result
