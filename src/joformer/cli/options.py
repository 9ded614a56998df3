"""Options: recorded by a run (as command-line words and as a TOML file), and shown by --help.

joformer compare --data notes.txt --seeds 5            writes OUT/command.toml
joformer compare --config OUT/command.toml --seeds 8   the same options; those given explicitly override them
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from joformer._io import one_line, write_whole
from joformer._remote import local

CONFIG, HEAD = "command.toml", "# joformer "
Place = str | Path
"""A folder, or an address, which stays a str: a Path would drop one of its slashes."""
ARG: Any = type(tyro.conf.arg())
ASIDE = frozenset({"json", "dry_run"})
"""Options that affect what is shown, not what is run."""


def changed(command: Any, aside: Sequence[str] = (), usual: Any = None) -> dict[str, Any]:
    """The options of a command that differ from their defaults, by name, including those of nested dataclasses.

    >>> from joformer.cli.compare import Compare
    >>> changed(Compare("notes.txt", seeds=5))
    {'data': 'notes.txt', 'seeds': 5}
    """
    found: dict[str, Any] = {}
    for field, name, _ in _options(type(command)):
        value, default = getattr(command, field.name), field.default
        if usual is not None:
            default = getattr(usual, field.name)
        elif field.default_factory is not MISSING:
            default = field.default_factory()
        if is_dataclass(value):
            found |= changed(value, usual=default if is_dataclass(default) else None)
        elif value != default:
            found[name] = _plain(value)
    return {name: value for name, value in found.items() if name not in (*ASIDE, *aside)}


def _options(command: Any) -> Iterator[tuple[Field[Any], str, Any]]:
    """Each field of a command, with its option name and annotation."""
    hints = get_type_hints(command, include_extras=True)
    for field in fields(command):
        markers = getattr(hints[field.name], "__metadata__", ())
        named = (marker.name for marker in markers if isinstance(marker, ARG) and marker.name)
        yield field, next(named, field.name), hints[field.name]


def words(given: dict[str, Any], positional: Sequence[str] = ()) -> list[str]:
    """The options as command-line words, positional ones first.

    >>> words({"data": "notes.txt", "grid": True, "only": ["a", "b"]})
    ['--data', 'notes.txt', '--grid', '--only', 'a', 'b']
    """
    first = [str(one) for name in positional if name in given for one in _listed(given[name])]
    return [*first, *(word for name in given if name not in positional for word in _typed(name, given[name]))]


def positional(command: Any) -> list[str]:
    """The names of the positional options of a command."""
    return [name for _, name, hint in _options(command) if tyro.conf.Positional in getattr(hint, "__metadata__", ())]


def claim(name: str, out: Place) -> None:
    """Raises ValueError if `out` holds the output of another command, which `name` would overwrite.

    >>> claim("compare", "runs/of/nobody")
    """
    folder = local(out)
    run, tables = (folder / "config.json").is_file(), any(folder.glob("*/table.json"))
    with suppress(OSError):
        written = folder.joinpath(CONFIG).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        if not written.startswith(HEAD) and not run and not tables:
            raise ValueError(f"{out} holds a {CONFIG} that joformer did not write: choose another --out")
        made_by = written.removeprefix(HEAD) if written.startswith(HEAD) else name
        if made_by != name:
            raise ValueError(f"{out} holds the output of joformer {made_by}: choose another --out")
    if name.startswith("train ") and tables:
        raise ValueError(f"{out} holds tables of compare or reproduce, not a run: choose another --out")
    if not name.startswith("train ") and run:
        raise ValueError(f"{out} holds a run of joformer train, not tables: choose another --out")


def write_config(command: Any, name: str, out: Place) -> None:
    """Writes the command's name and options into out/command.toml."""
    for word in words(changed(command)):
        if re.search("[\ud800-\udfff]", word):  # bytes of a name that are not UTF-8
            raise ValueError(f"the name {word} is not valid UTF-8: rename it")
    lines = [f"{option} = {json.dumps(value, ensure_ascii=False)}" for option, value in changed(command).items()]
    write_whole(local(out) / CONFIG, "".join(f"{line}\n" for line in (HEAD + name, *lines)).encode())


@contextmanager
def recorded(command: Any, name: str, out: Place) -> Iterator[None]:
    """`write_config`, undone if the command raises ValueError: the existing run does not have its options."""
    claim(name, out)
    place = local(out) / CONFIG
    before = place.read_bytes() if place.is_file() else None
    write_config(command, name, out)
    try:
        yield
    except ValueError:
        if before is not None:
            write_whole(place, before)
        raise


def with_config(typed: Sequence[str], command: type) -> list[str]:
    """The typed words with `--config FILE` replaced by the options in the file, which typed options override."""
    typed = [part for word in typed for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in typed:
        return typed
    at = typed.index("--config")
    if at + 1 == len(typed):
        raise ValueError(f"--config needs a file: give the {CONFIG} of a run")
    given, rest = read_config(Path(typed[at + 1])), [*typed[:at], *typed[at + 2 :]]
    places = positional(command)
    if rest and not rest[0].startswith("-"):
        given = {name: value for name, value in given.items() if name not in places}
    own = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")}
    # --no-X takes back what the file switches on; where the default is off, there is no such option.
    back = {name for name in given if f"no_{name}" in own and given[name] is True}
    rest = [word for word in rest if word.replace("-", "_") not in {f"__no_{name}" for name in back}]
    return [*rest, *words({name: value for name, value in given.items() if name not in own | back}, places)]


def read_config(place: Path) -> dict[str, Any]:
    """The options in a TOML file."""
    try:
        tomllib: Any = import_module("tomllib")
    except ImportError:
        raise ValueError("--config needs Python 3.11 or later") from None
    try:
        return tomllib.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read --config {place}: {one_line(error)}") from None


def names_of(command: Any) -> list[str]:
    """The names of all options of a command, including those of nested dataclasses."""
    return [name for _, own, hint in _options(command) for name in (names_of(hint) if is_dataclass(hint) else [own])]


def check_options(typed: Sequence[str], command: type) -> None:
    """Raises ValueError for an unknown option, suggesting the one that was probably meant."""
    known = [f"--{name.replace('_', '-')}" for name in names_of(command)]
    for word in typed:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("--") and flag not in ("--help", *known) and f"--{flag.removeprefix('--no-')}" not in known:
            raise ValueError(f"there is no option {flag}{meant(flag, [*known, '--config']) or ': --help lists them'}")


def unboxed(box: str, path: str) -> str:
    """tyro's boxed error message on one line.

    >>> unboxed("╭─ Value error ──╮\\n│ Error parsing recipe: steps must be 1 or more, got -5 │\\n│ ──── │", "joformer")
    '--steps must be 1 or more, got -5'
    """
    if "╭" in box:
        rows = [line.strip().strip("│").rstrip() for line in box.splitlines() if not line.startswith(("╭", "╰"))]
        rows = [row.removeprefix(" ") for row in rows]
    else:  # without Unicode: the title, a rule, then indented lines
        rows = [line.removeprefix("  ").rstrip() for line in box.splitlines()[2:]]
    ends = [at for at, row in enumerate(rows) if not row.strip("─- ")]
    rows = rows[: ends[0] if ends else None]
    said = " ".join(row.strip() for row in rows)
    if said.startswith("Missing from "):
        needed = " and ".join(row.strip() for row in rows[1:] if re.match(r" {4}\S", row))
        about = " ".join(row.strip() for row in rows[1:] if re.match(r" {8}\S", row)).partition(". ")[0]
        about = about.removesuffix(" (required)").rstrip(".")
        place = about and "--" not in needed and " and " not in needed
        what = f"{needed} ({about[:1].lower()}{about[1:]})" if place else needed
        return f"{path.removeprefix('joformer ')} needs {what}: {path} --help lists the options"
    if found := re.fullmatch(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)\.", said):
        choices = sorted(choice.strip("' ") for choice in found[3].split(",") if choice.strip())
        return f"{found[2]} must be one of {', '.join(choices)}; got {found[1]}"
    option, _, wrong = said.removeprefix("Error parsing ").partition(": ")
    for message, kind in (
        (r"could not convert string to float: '(.*)'", "a number"),
        (r"invalid literal for int\(\) with base 10: '(.*)'", "a whole number"),
    ):
        if found := re.fullmatch(message, wrong):
            return f"{option} must be {kind}, got {found[1]}"
    if not said.startswith("Error parsing "):
        return f"{said[:1].lower()}{said[1:].rstrip('.')}: {path} --help lists the options"
    return f"--{wrong}" if re.match(r"[a-z_]+ must be ", wrong) else wrong


def meant(word: str, known: Sequence[str]) -> str:
    """A suggestion, if one of the known words is similar.

    >>> meant("comprae", ["compare", "report"]), meant("x", ["compare"])
    (': did you mean compare?', '')
    """
    near = get_close_matches(word, known, 1, cutoff=0.65)
    return f": did you mean {near[0]}?" if near else ""


WORDS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH", Place: "PATH"}


def polished(command: Any) -> Any:
    """The command with cleaned-up help: no default where there is none, and plain names for argument types."""
    command.__doc__ = (command.__doc__ or "").partition("\n\n    >>>")[0]
    for field, _, hint in [*_options(command)]:
        inner, *markers = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if is_dataclass(inner):
            polished(inner)
            continue
        kind, several = inner, False
        if Place | None == inner:
            kind = Place
        while kind != Place and (args := [one for one in get_args(kind) if one not in (NoneType, Ellipsis)]):
            if get_origin(kind) is Literal or len(args) > 1:
                break
            kind, several = args[0], several or get_origin(kind) is tuple
        word = WORDS.get(kind) or ("|".join(map(str, get_args(kind))) if get_origin(kind) is Literal else None)
        word = "True|False" if kind is bool is not inner else word
        word = field.name.upper() if kind in (Path, Place) and tyro.conf.Positional in markers else word
        own: Any = next((marker for marker in markers if isinstance(marker, ARG)), tyro.conf.arg())
        empty = several or field.default is None or field.default is False
        shown = replace(
            own, metavar=f"{word} …" if word and several else word, help_behavior_hint="" if empty else None
        )
        made: Any = Annotated  # star arguments in a subscript need Python 3.11
        rest = [marker for marker in markers if marker is not own]
        command.__annotations__[field.name] = made.__class_getitem__((inner, *rest, shown))
    return command


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return str(value) if value is None or isinstance(value, Path) else value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _typed(name: str, value: Any) -> Iterator[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        yield f"--{'' if value else 'no-'}{flag}"
    else:
        yield from (f"--{flag}", *map(str, _listed(value)))
