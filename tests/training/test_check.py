"""`joformer check`: all faults at once, each with its remedy."""

import json

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from joformer.cli.check import Check


def save(path, seed, size=(6, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def check(capsys):
    def run(data, **options):
        code = Check(str(data), json=True, **options).run()
        found = json.loads(capsys.readouterr().out)
        return code, found["summary"], found["faults"]

    return run


@pytest.fixture
def pictures(tmp_path):
    for number in range(8):
        save(tmp_path / "set" / ("train", "test")[number > 5] / "ab"[number % 2] / f"{number}.png", number)
    return tmp_path / "set"


def test_good_data_has_no_faults(check, pictures):
    assert check(pictures) == (
        0,
        ["data: set, images of 6 × 6", "  2 classes: a (3), b (3)", "  train 6, test 2 examples"],
        [],
    )


def test_every_fault_of_a_tree_at_once(check, pictures):
    train = pictures / "train"
    (train / "a" / "bad.png").write_bytes(b"\x89PNG")
    (train / "b" / "bad.jpg").write_bytes(b"")
    (train / "a" / "note.txt").write_text("mine")
    (train / "empty").mkdir()
    (pictures / "1.png").write_bytes((train / "a" / "0.png").read_bytes())
    (pictures / "test" / "a" / "6.png").write_bytes((train / "a" / "0.png").read_bytes())
    save(train / "b" / "wide.png", 9, (6, 9))
    code, summary, faults = check(pictures)
    assert code == 2
    wanted = [
        "1.png is next to the train folder", "train/empty holds no image files",
        "a/note.txt is not a supported image file",
        "a/bad.png cannot be decoded", "b/bad.jpg cannot be decoded",
        "a/6.png (test) is the same as ", "1 images are 9 × 6, not 6 × 6, such as ",
    ]  # fmt: skip
    assert [sum(part in line for line in faults) for part in wanted] == [1] * len(wanted)
    assert len(faults) == len(wanted)
    assert next(line for line in faults if "9 × 6" in line).endswith("wide.png: give --size, such as 224")
    assert summary[-1].startswith("  train ")
    assert not any("9 × 6" in line for line in check(pictures, size=8)[2])


def test_every_fault_of_tables(check, pictures, tmp_path):
    rows = ["train/a/0.png,x", "train/b/1.png,", "nowhere.png,y", "train/a/2.png,y", "../x.png,y", "train/b/3.png,x"]
    (pictures / "labels.csv").write_text("\n".join(["file,label", *rows]))
    code, summary, faults = check(pictures / "labels.csv")
    assert code == 2
    assert [line.partition("labels.csv, ")[2][:5] for line in faults] == ["row 2", "row 3", "row 5"]
    assert summary[1:4] == [
        "  2 classes: x (1), y (1)",
        "  train 2, test 1 examples",
        "  no test split with labels: 1 of 3 examples are held out, always the same ones",
    ]
    import pyarrow
    import pyarrow.parquet

    cells = [(pictures / "train" / "ab"[k % 2] / f"{k}.png").read_bytes() for k in range(6)]
    table = pyarrow.table({"image": cells, "label": [0, None, 1, -3, 0, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    code, _, faults = check(tmp_path / "t.parquet")
    assert (code, [line.partition(".parquet, ")[2] for line in faults]) == (
        2,
        ["row 1: label is missing: fill it or remove the row", "row 3: label is -3: labels count from 0"],
    )


def test_every_fault_of_text(check, tmp_path):
    for name, data in {
        "train/a.txt": b"fine\n", "train/b.txt": b"caf\xe9", "train/c.txt": b"%PDF-1.4", "train/d.txt": b"\xff\xfea",
        "valid/a.txt": b"other", "test/a.txt": b"fine\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    code, _, faults = check(tmp_path)
    parts = [
        "b.txt is not UTF-8 at byte 3",
        "c.txt is a PDF",
        "d.txt is damaged or not UTF-16",
        "test/a.txt (test) is the same as ",
    ]
    assert (code, [sum(part in line for line in faults) for part in parts], len(faults)) == (2, [1] * 4, 4)
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\nnot json\n{"text": 1}\n{"n": 1}\n')
    assert len(check(tmp_path / "rows.jsonl")[2]) == 3


def test_what_leaves_nothing_to_check_is_a_fault(check, tmp_path, capsys):
    code, summary, faults = check(tmp_path / "nowhere")
    assert (code, summary) == (2, [])
    assert "does not exist" in faults[0]
    wavfile.write(tmp_path / "a_1.wav", 8000, np.ones(80, np.int16))
    wavfile.write(tmp_path / "a_2.wav", 8000, np.ones(90, np.int16))
    assert "one class, 'a'" in check(tmp_path)[2][0]
    assert Check("digits").run() == 0
    assert capsys.readouterr().out == "no faults\n"
