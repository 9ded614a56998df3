"""The command `joformer`: one small dataclass per command; its docstring and defaults become the help."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from contextlib import redirect_stderr
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

try:
    import tyro
except ImportError:  # optional dependencies of the command line
    sys.exit("joformer: the command needs tyro and rich: pip install 'joformer[train]'")

import joformer
from joformer._io import one_line
from joformer._log import logger, tell, to_console
from joformer.cli.bench import Bench
from joformer.cli.check import Check
from joformer.cli.compare import Compare
from joformer.cli.console import say
from joformer.cli.convert import Convert
from joformer.cli.demo import Demo
from joformer.cli.evaluate import Evaluate
from joformer.cli.generate import Generate
from joformer.cli.inspect import Inspect
from joformer.cli.options import check_options, meant, polished, unboxed, with_config
from joformer.cli.report import Report
from joformer.cli.reproduce import Reproduce
from joformer.cli.verify import Verify


@dataclass(frozen=True)
class Train:
    """Train one model: lm (language), vit (images, sounds), video, pairs (images with text), points (sets in space),
    spotting (keywords in a stream), trees (syntax), relations (knowledge graphs) or monoidal. An interrupted run
    resumes with the same command and gives the same bits.
    """


COMMANDS: dict[str, type[Any]] = {
    "demo": Demo,
    "check": Check,
    "compare": Compare,
    "train": Train,
    "generate": Generate,
    "evaluate": Evaluate,
    "inspect": Inspect,
    "convert": Convert,
    "reproduce": Reproduce,
    "report": Report,
    "verify": Verify,
    "bench": Bench,
}


def main() -> None:
    """Entry point: a user error prints one line and exits with code 2, Ctrl-C with code 130."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode gets question marks rather than an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.argv[1:] == ["--version"]:
        say(f"joformer {joformer.__version__}")
        sys.exit(0)
    sys.excepthook = _show_error
    # With several processes, only rank 0 logs progress.
    with to_console(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING):
        try:
            _leave(_parse(sys.argv[1:]).run())
        except ValueError as mistake:
            logger.error(f"joformer: {mistake}")
            sys.exit(2)
        except BrokenPipeError:  # the reader closed the pipe
            sys.stdout = None
            sys.exit(0)
        except OSError as error:
            logger.error(f"joformer: cannot use {error.filename or 'the output'}: {one_line(error)}")
            sys.stdout = None  # what is left in its buffer would fail again at exit
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit(130)


def _show_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Prints an unexpected error with its traceback, escaped: its text may contain file names."""
    for part in traceback.format_exception(kind, error, trace):
        for line in part.removesuffix("\n").split("\n"):
            tell(line)


def _leave(code: int) -> None:
    """Exits; distributed processes wait for each other and skip interpreter shutdown, where gloo sometimes aborts."""
    torch = sys.modules.get("torch")
    if code == 0 and torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    sys.exit(code)


def _parse(typed: list[str]) -> Any:
    commands, path, rest = COMMANDS, "joformer", typed
    while True:
        name, rest = (rest[0], rest[1:]) if rest else ("--help", [])
        if name in ("-h", "--help"):
            _help(path, commands)
        if path == "joformer" and name == "completion":
            _completion(rest)
        if name not in commands:
            choice = meant(name, [*commands]) or f": choose from {', '.join(commands)}"
            raise ValueError(f"there is no {path} {name}{choice}")
        path, command = f"{path} {name}", commands[name]
        if command is not Train:
            break
        commands = _trainers()
    words = with_config(rest, command)
    check_options(words, command)
    markers = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    boxed = io.StringIO()
    try:
        with redirect_stderr(boxed):
            return tyro.cli(polished(command), prog=path, args=words, config=markers)
    except SystemExit as left:
        if left.code in (0, None):
            raise
        raise ValueError(unboxed(boxed.getvalue(), path)) from None


def _trainers() -> dict[str, type[Any]]:
    """The models that can be trained. Imported lazily: their options need torch."""
    from joformer.cli.domains import Pairs, Points, Spotting, Trees, Video
    from joformer.cli.train import LM, Monoidal, Relations, ViT

    return {
        "lm": LM,
        "vit": ViT,
        "video": Video,
        "pairs": Pairs,
        "points": Points,
        "spotting": Spotting,
        "trees": Trees,
        "relations": Relations,
        "monoidal": Monoidal,
    }


def _help(path: str, commands: dict[str, type[Any]]) -> None:
    width = max(map(len, commands)) + 2
    say(f"usage: {path} COMMAND [OPTIONS]      {path} COMMAND --help lists the options\n", lines=True)
    for name, command in commands.items():
        summary = (command.__doc__ or "").partition("\n\n")[0]
        say(
            "\n".join(wrap(f"{name:{width}}{' '.join(summary.split())}", 98, subsequent_indent=" " * width)), lines=True
        )
    if path == "joformer":
        say(
            "\njoformer --version prints the version; joformer completion bash|zsh|tcsh prints a completion script.",
            lines=True,
        )
    sys.exit(0)


def _completion(rest: list[str]) -> None:
    """Prints the shell completion script for commands and options."""
    if rest not in (["bash"], ["zsh"], ["tcsh"]):
        raise ValueError("joformer completion takes a shell: bash, zsh or tcsh")
    whole: dict[str, Any] = {name: polished(command) for name, command in COMMANDS.items() if command is not Train}
    whole |= {f"train {name}": polished(command) for name, command in _trainers().items()}
    tyro.extras.subcommand_cli_from_dict(
        whole, prog="joformer", args=["--tyro-print-completion", *rest], config=(tyro.conf.OmitArgPrefixes,)
    )
