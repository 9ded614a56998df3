"""Shared by the tests of training: processes that start at once, folders whose fsync costs nothing."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from runner import Server


@pytest.fixture(scope="session")
def server():
    made = Server()
    yield made
    made.close()


@pytest.fixture
def memory(tmp_path):
    """A folder in memory where there is one: a kill is a kill there too, and thousands of fsyncs are free."""
    place = Path("/dev/shm")
    if not place.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="joformer-", dir=place))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


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
