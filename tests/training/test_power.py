"""The power fails: whatever the disk promised to keep is enough to end with the bits of a run that never stopped."""

import json
import os
import shutil
import subprocess

import pytest
from power import Disk, put
from runner import config_of, lm_task, logged, recipe_of

from joformer._io import write_whole
from joformer.experiments.results import gather
from joformer.training import train

RECIPE = {"steps": 2, "save_every": 1, "evaluate_every": 1, "accumulate": 1, "log_every": 1, "keep": 1}


pytestmark = pytest.mark.usefixtures("one_thread", "no_board")


def run(out, heard=None, **changes):
    with logged([] if heard is None else heard):
        return train(config_of("lm", {}), lm_task(), recipe_of(RECIPE | changes), out)


def test_the_record_sees_what_is_not_synchronised(memory):
    """The oracle itself: a file written and renamed in the wrong order is lost, in the right order it is not."""
    (memory / "disk").mkdir()
    with Disk(memory / "disk") as disk:
        (memory / "disk" / "careless").write_bytes(b"lost")
        write_whole(memory / "disk" / "careful", b"kept")
        with open(memory / "disk" / "careful", "ab") as file:
            file.write(b", and more")
            file.flush()
            with open(memory / "disk" / "last", "wb") as other:
                os.fsync(other.fileno())
    last = disk.last
    assert last["strict"] == {"careful": b"kept", "careless": b""}  # its name came along with the other's
    assert last["early"] == {"careful": b"kept", "careless": b"", "last": b""}
    assert last["zeros"] == {"careful": b"kept" + bytes(10), "careless": bytes(4), "last": b""}


def test_the_power_fails_at_any_fsync(memory, result_of):
    """Also the folders above the run's are new: their names must come to the disk too."""
    (memory / "disk").mkdir()
    with Disk(memory / "disk") as disk:
        result = run(memory / "disk" / "new" / "run")
    wanted = result_of(memory / "disk" / "new" / "run")
    last = max(number for number, (moment, _) in enumerate(disk.moments) if "checkpoints" in moment)
    tried = [one for number, one in enumerate(disk.moments) if number % 3 == 0 or number > last]
    ended = 0
    for number, (moment, files) in enumerate(tried):
        root, said = memory / f"{number}", []
        put(files, root)
        out = root / "new" / "run"
        reported(out, result, moment)
        ended += (out / "manifest.json").exists()
        assert run(out, said) == result, (moment, said)
        assert result_of(out) == wanted, (moment, said)
        shutil.rmtree(root)
    print(f"{len(tried)} of {len(disk.moments)} moments, {ended} of them after the end")
    assert len(tried) > 30
    assert ended


def reported(out, result, moment):
    """A report of what is left says that it is not finished, or has the last numbers."""
    try:
        (table,) = gather([out])
    except ValueError:  # nothing measured yet, or nothing there
        return
    (cell,) = table.cells
    whole = {key: value for key, value in result.items() if key != "step"}
    assert cell.measured[""] == whole or any("is not finished" in note for note in table.notes), moment


def test_all_is_kept_when_the_command_has_ended(memory):
    (memory / "disk").mkdir()
    with Disk(memory / "disk") as disk:
        result = run(memory / "disk" / "run")
    files = disk.last["strict"]
    for name in ("metrics.jsonl", "model.safetensors", "config.json", "tokenizer.json", "manifest.json"):
        assert files[f"run/{name}"] == (memory / "disk" / "run" / name).read_bytes(), name
    assert json.loads(files["run/metrics.jsonl"].splitlines()[-1]) == result


# -- a file system of its own ------------------------------------------------------------------------------------------


@pytest.fixture
def mounted(tmp_path):
    """A function that mounts an image; all are unmounted in the end."""
    places = []

    def mount(image):
        place = tmp_path / f"{image.name}.mounted"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-o", "loop,commit=600", image, place], check=False, capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(not shutil.which("mkfs.ext4") or not shutil.which("mount"), reason="there is no ext4 to be made")
def test_an_ext4_whose_power_fails_after_the_end(tmp_path, mounted, result_of):
    """The image as it is when the command has ended, copied without waiting for anything."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    disk = mounted(image)
    for turn in range(3):
        out = disk / f"run{turn}"
        result = run(out, average=0.9 * (turn > 0))
        copy = tmp_path / f"copy{turn}"
        copy.write_bytes(image.read_bytes())
        left, said = mounted(copy) / out.name, []
        assert (left / "metrics.jsonl").read_bytes() == (out / "metrics.jsonl").read_bytes()
        assert run(left, said, average=0.9 * (turn > 0)) == result
        assert said == [f"{left} is already finished: 2 steps"]
        assert result_of(left) == result_of(out)
