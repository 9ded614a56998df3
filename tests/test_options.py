"""Options as they are typed, written down, read back and shown."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from joformer import cli
from joformer.cli.options import CONFIG, changed, meant, positional, read_config, with_config, words, write_config


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
    write_config(GIVEN, tmp_path)
    assert read_config(tmp_path / CONFIG) == changed(GIVEN)
    again = with_config(["--config", str(tmp_path / CONFIG), "--seeds", "9"], Command)
    assert again[:2] == ["--seeds", "9"]  # what is typed overrides the file
    assert again.count("--seeds") == 1
    assert again[2:] == [word for word in words(changed(GIVEN)) if word not in ("--seeds", "4")]


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
