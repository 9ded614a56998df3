"""The examples: each runs as its docstring says, draws a picture, and beats its baseline by the margin it claims."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ("common", "annealing", "own_model"))
LINE = re.compile(r"^(.+?) +([\d.]+) % +\(([\d.]+) to ([\d.]+), (\d+) seeds\)$", re.M)

# Better, worse, and by how many percentage points on average; all claims of the docstrings.
MARGINS = {
    "spectrograms": [("scores and values (QKV)", "no positions", 15), ("scores and values (QKV)", "scores (QK)", 8)],
    "spotting": [("scores and values (QKV)", "no positions", 15), ("scores (QK)", "no positions", 10)],
    "video": [
        ("row, column, time: scores, values (QKV)", "row, column; no time", 25),
        ("row, column, time: scores, values (QKV)", "row, column, time: scores (QK)", 25),
        ("row, column; no time", "no positions", 8),
    ],
    "modalities": [
        ("shared axes, scores, values", "no positions", 40),
        ("separate axes, scores, values", "no positions", 20),
        ("separate axes, scores (QK)", "no positions", 15),
    ],
    "two_views": [
        ("camera frames: scores, values", "2-D RoPE", 30),
        ("camera frames: scores, values", "camera frames: scores", 8),
        ("camera frames, another world", "rays as input, another world", 25),
    ],
    "points": [
        ("scores and values (QKV)", "scores (QK)", 30),
        ("scores and values (QKV), shifted", "coordinates as input, shifted", 30),
        ("scores and values, polar, rotated", "scores and values (QKV), rotated", 10),
    ],
    "trees": [
        ("dense tree frames (QKV)", "RoPE on the sequence (QKV)", 6),
        ("dense tree frames (QKV)", "dense tree frames (QK)", 6),
    ],
    "relations": [
        ("planes: relations commute", "no rotation", 70),
        ("inverse found from the angles", "no rotation", 70),
    ],
    "alignment": [
        ("256 numbers: frequencies", "256 numbers: averages 2 × 2", 25),
        ("512 numbers: frequencies", "128 numbers: frequencies", 30),
        ("period 16: row modulo 16", "period 16: row", 8),
    ],
}


TWICE = """
import runpy, sys
folder, script = sys.argv[1:3]
sys.path.insert(0, folder)
sys.argv[:3] = [script]
for _ in range(2):
    runpy.run_path(script, run_name="__main__")
"""


def run(name, *arguments, cwd=None, twice=False):
    """An example in a process of its own; `twice` runs it two times there, for the imports of one."""
    script = EXAMPLES / f"{name}.py"
    command = ["-c", TWICE, EXAMPLES, script] if twice else [script]
    # Warnings are errors here as in all tests; the shape checks of the parent are not inherited.
    return subprocess.run(
        [sys.executable, "-W", "error", *map(str, [*command, *arguments])],
        capture_output=True, text=True, check=False, cwd=cwd, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def percent(text):
    return {name.strip(): float(mean) for name, mean, *_ in LINE.findall(text)}


def missed(name, found):
    """Which of its margins an example does not keep."""
    return [(better, worse) for better, worse, by in MARGINS[name] if found[better] - found[worse] < by]


def test_every_example_is_here():
    assert sorted(MARGINS) == NAMES
    readme = (EXAMPLES / "README.md").read_text()
    assert all(f"{name}.py" in readme for name in [*NAMES, "annealing", "own_model"])


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_draws_and_beats_its_baseline(name, tmp_path):
    from matplotlib.image import imread

    ran = run(name, "--seed", 3, "--seeds", 1, "--out", tmp_path / "picture.png", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    found = percent(ran.stdout)
    assert missed(name, found) == [], ran.stdout
    assert all(low <= float(mean) <= high for _, mean, low, high, _ in _numbers(ran.stdout))
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    pixels = imread(tmp_path / "picture.png")[..., :3]
    assert min(pixels.shape[:2]) > 400
    assert pixels.std() > 0.1
    # Marks in all four quarters: no empty panel.
    rows, columns = (n // 2 for n in pixels.shape[:2])
    for quarter in (pixels[:rows, :columns], pixels[:rows, columns:], pixels[rows:, :columns], pixels[rows:, columns:]):
        assert quarter.std() > 0.03


def test_a_llama_is_trained_on_four_ways_and_a_seed_that_is_done_is_not_redone(tmp_path):
    small = ["--width", "16", "--layers", "1", "--context", "32", "--pretrain", "6", "--steps", "16", "--seeds", "1"]
    given = [*small, "--results", tmp_path / "curves.json", "--out", tmp_path / "picture.png"]
    ran = run("annealing", *given, cwd=tmp_path, twice=True)
    assert ran.returncode == 0, ran.stderr
    curves = json.loads((tmp_path / "curves.json").read_text())["curves"]["0"]
    untouched, at_once, eighth, half = (list(curve.values()) for curve in curves.values())
    # All begin with the same weights: at once differs from the start, an eighth once it has begun, half after it.
    assert untouched[0] == eighth[0] == half[0] != at_once[0]
    assert len({untouched[2], at_once[2], eighth[2], half[2]}) == 4
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    first, again = ran.stdout[: len(ran.stdout) // 2], ran.stdout[len(ran.stdout) // 2 :]
    assert first == again
    assert ran.stderr.count("seed 0: ") == 1


def _numbers(text):
    return [(name, mean, float(low), float(high), int(seeds)) for name, mean, low, high, seeds in LINE.findall(text)]


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_says_what_was_seen(name):
    said = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    assert f"python examples/{name}.py --out {name}.png" in said
    assert re.search(r"about \d+ seconds", said)
    seen = {line.strip(): float(mean) for line, mean in re.findall(r"^ +(.+?) {2,}([\d.]+) %", said, re.M)}
    assert seen.keys() >= {each for better, worse, _ in MARGINS[name] for each in (better, worse)}
    assert missed(name, seen) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_check_can_fail(name):
    better, worse, _ = MARGINS[name][0]
    same = dict.fromkeys({each for margin in MARGINS[name] for each in margin[:2]}, 50.0)
    assert (better, worse) in missed(name, same)


@pytest.mark.refused
def test_a_missing_folder_is_one_line(tmp_path):
    ran = run("video", "--out", tmp_path / "nowhere" / "picture.png")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert re.fullmatch(r"video\.py: the folder \S+nowhere of --out does not exist: make it first\n", ran.stderr)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "."], "cannot write to ."),
        (["--out", "picture.gif"], "ends in .png"),
        (["--out", "taken.png"], "cannot write to taken.png"),
        (["--seed", "-1"], "--seed -1 --seeds 3: give 0 or more"),
        (["--seeds", "0"], "1 or more for how many"),
    ],
)
def test_other_bad_input_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "taken.png").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", ["alignment.py", *arguments])
    import common  # what all of them read their command line with

    with pytest.raises(SystemExit) as left:
        common.arguments("", "alignment.py")
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_all_read_their_command_line_alike():
    assert all("given = arguments(__doc__" in (EXAMPLES / f"{name}.py").read_text() for name in NAMES)


@pytest.mark.refused
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    ran = run("alignment", "--out", tmp_path / "picture.png")
    tmp_path.chmod(0o700)
    assert ran.returncode == 2
    assert "cannot write to" in ran.stderr
    assert ran.stderr.count("\n") == 1
