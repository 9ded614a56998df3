"""Options as they are typed, written down, read back and shown."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from joformer import cli
from joformer.cli.options import (
    CONFIG,
    changed,
    claim,
    meant,
    positional,
    read_config,
    recorded,
    with_config,
    words,
    write_config,
)


@dataclass(frozen=True)
class Part:
    lr: float = 0.1
    steps: int = 5
    clip: float | None = 1.0
    start: Annotated[Path | None, tyro.conf.arg(name="from")] = None


@dataclass(frozen=True)
class Command:
    data: str
    seeds: int = 3
    grid: bool = False
    exact: bool = True
    only: tuple[str, ...] = ()
    out: Path = Path("runs")
    recipe: Part = field(default_factory=lambda: Part(lr=0.5))
    json: bool = False


GIVEN = Command("a 'b'.txt", 4, True, False, ("x/*", "y"), Path("there"), Part(0.5, 7, None, Path("x")), json=True)


def test_what_was_changed_can_be_typed_again():
    assert changed(Command("a")) == {"data": "a"}
    found = changed(GIVEN)
    assert found == {"data": "a 'b'.txt", "seeds": 4, "grid": True, "exact": False, "only": ["x/*", "y"],
                     "out": "there", "steps": 7, "clip": "None", "from": "x"}  # fmt: skip
    typed = "--data|a 'b'.txt|--seeds|4|--grid|--no-exact|--only|x/*|y|--out|there|--steps|7|--clip|None|--from|x"
    assert words(found) == typed.split("|")
    assert words(found, ["only"])[:3] == ["x/*", "y", "--data"]


def test_a_file_of_options_is_what_the_run_was_given(tmp_path):
    write_config(GIVEN, "compare", tmp_path)
    assert (tmp_path / CONFIG).read_text().startswith("# joformer compare\n")
    assert read_config(tmp_path / CONFIG) == changed(GIVEN)
    again = with_config(["--config", str(tmp_path / CONFIG), "--seeds", "9"], Command)
    assert again[:2] == ["--seeds", "9"]  # what is typed overrides the file
    assert again.count("--seeds") == 1
    assert again[2:] == [word for word in words(changed(GIVEN)) if word not in ("--seeds", "4")]
    assert with_config([f"--config={tmp_path / CONFIG}", "--seeds=9"], Command) == ["--seeds=9", *again[2:]]
    # What the file switches on is switched off; what it switches off, on.
    off = with_config(["--config", str(tmp_path / CONFIG), "--no-grid", "--exact"], Command)
    assert not {"--grid", "--no-grid", "--no-exact"} & {*off}
    assert off.count("--exact") == 1


@pytest.mark.refused
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("train lm --steps -5 --out x", "--steps must be 1 or more, got -5"),
        ("train lm --dim 65 --out x", "dim=65 does not divide into 4 heads: choose another number"),
        ("train lm --lr abc --out x", "--lr must be a number, got abc"),
        ("train lm --steps 5.5 --out x", "--steps must be a whole number, got 5.5"),
        ("train lm --frames rope", "--frames must be one of cumulative, fixed, learned, projected; got rope"),
        ("train lm", "train lm needs --out PATH: joformer train lm --help lists the options"),
        ("convert", "convert needs MODEL_DIR and OUT: joformer convert --help lists the options"),
        ("convert x", "convert needs OUT (the folder to write): joformer convert --help lists the options"),
        ("compare --data a b c", "unrecognized options: b, c: joformer compare --help lists the options"),
        (
            "compare --seeds",
            "missing value for argument '--seeds'. Expected 1 values: joformer compare --help lists the options",
        ),
    ],
)
def test_a_value_that_cannot_be_is_one_line(typed, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["joformer", *typed.split()])
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capsys.readouterr()
    assert (left.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"joformer: {said}")


@pytest.mark.refused
def test_a_folder_of_another_command_is_left_alone(tmp_path):
    claim("compare", tmp_path / "new")
    write_config(GIVEN, "compare", tmp_path)
    claim("compare", tmp_path)
    for other in ("reproduce", "train lm"):
        with pytest.raises(ValueError, match="holds the output of joformer compare: choose another --out"):
            claim(other, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / CONFIG).write_text("my = 1")
    with pytest.raises(ValueError, match=r"holds a command\.toml that joformer did not write: choose another --out"):
        claim("train lm", tmp_path / "mine")
    # Written by Python, or by an earlier version: known by its files.
    run, tables = tmp_path / "run", tmp_path / "tables"
    for place in (run / "config.json", tables / "mnist" / "table.json"):
        place.parent.mkdir(parents=True)
        place.write_text("{}")
    claim("train lm", run)
    claim("reproduce", tables)
    with pytest.raises(ValueError, match="holds a run of joformer train, not tables"):
        claim("reproduce", run)
    with pytest.raises(ValueError, match="holds tables of compare or reproduce, not a run"):
        claim("train lm", tables)


def test_options_of_a_command_that_raises_are_not_kept(tmp_path):
    with recorded(Command("first"), "train lm", tmp_path):
        pass
    kept = (tmp_path / CONFIG).read_bytes()

    def run(data, error):
        with recorded(Command(data), "train lm", tmp_path):
            assert data in (tmp_path / CONFIG).read_text()
            raise error

    with pytest.raises(ValueError, match="other settings"):
        run("second", ValueError("other settings"))
    assert (tmp_path / CONFIG).read_bytes() == kept
    with pytest.raises(KeyboardInterrupt):
        run("third", KeyboardInterrupt())
    assert b"third" in (tmp_path / CONFIG).read_bytes()  # it resumes


@pytest.mark.refused
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["comprae"], "there is no joformer comprae: did you mean compare?"),
        (["xyz"], "there is no joformer xyz: choose from demo, check, compare, "),
        (["train", "mono"], "there is no joformer train mono: did you mean monoidal?"),
        (["compare", "--sead", "3"], "there is no option --sead: did you mean --seeds?"),
        (["train", "lm", "--leyers", "3", "--out", "x"], "there is no option --leyers: did you mean --layers?"),
        (["compare", "--config"], "--config needs a file: give the command.toml of a run"),
        (["compare", "--config", "nowhere.toml"], "cannot read --config nowhere.toml: No such file"),
        (["completion", "fish"], "joformer completion takes a shell: bash, zsh or tcsh"),
    ],
)
def test_a_mistake_is_one_line_with_what_was_meant(joformer, typed, said):
    code, out, told = joformer(*typed)
    assert (code, out) == (2, "")
    assert told.startswith(f"joformer: {said}")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "path", [[name] for name in cli.COMMANDS] + [["train", n] for n in ("lm", "vit", "monoidal", "spotting")]
)
def test_help_shows_nothing_of_the_parser(joformer, path):
    code, said, told = joformer(*path, "--help")
    assert (code, told) == (0, "")
    assert not re.search(r"\{None\}|tyro|dummy|default: \)|default: None|>>>", said), said
    if path != ["train"]:
        assert "--" in said


def test_help_names_every_command_and_the_version(joformer):
    code, said, _ = joformer("--help")
    assert code == 0
    assert all(re.search(rf"^{name} ", said, re.M) for name in cli.COMMANDS)
    assert "--version" in said
    assert joformer()[1] == said
    assert max(map(len, said.splitlines())) <= 100


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_options(joformer, shell):
    code, said, _ = joformer("completion", shell)
    assert not code
    assert all(word in said for word in ("compare", "reproduce", "--longer", "--context"))


def test_positional_options_are_told_apart():
    assert positional(cli.Reproduce) == ["tables"]
    assert meant("--seads", ["--seeds", "--steps"]) == ": did you mean --seeds?"
