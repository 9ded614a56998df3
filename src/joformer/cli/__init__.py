"""The command `joformer`: one small dataclass a subcommand, whose docstring and defaults are its help."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import tyro
except ImportError:  # the core does without the command line's dependencies
    sys.exit("joformer: the command needs tyro and rich: pip install 'joformer[train]'")

import joformer
from joformer._io import one_line
from joformer._log import logger, tell, to_console
from joformer.cli.bench import Bench
from joformer.cli.compare import Compare
from joformer.cli.console import say
from joformer.cli.convert import Convert
from joformer.cli.evaluate import Evaluate
from joformer.cli.generate import Generate
from joformer.cli.report import Report
from joformer.cli.reproduce import Reproduce
from joformer.cli.verify import Verify


@dataclass(frozen=True)
class Train:
    """Train one model: joformer train lm | vit | monoidal. Killed or not, the same command gives the same bits."""


COMMANDS: dict[str, Callable[..., Any]] = {
    "verify": Verify,
    "reproduce": Reproduce,
    "compare": Compare,
    "report": Report,
    "bench": Bench,
    "train": Train,
    "generate": Generate,
    "evaluate": Evaluate,
    "convert": Convert,
}


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, Ctrl-C exit code 130."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode gets question marks rather than an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if sys.argv[1:] == ["--version"]:
        say(f"joformer {joformer.__version__}")
        sys.exit(0)
    sys.excepthook = _show_error
    # Of several processes, the first reports what is done for all.
    with to_console(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING):
        try:
            _leave(_parse(sys.argv[1:]).run())
        except ValueError as mistake:
            logger.error(f"joformer: {mistake}")
            sys.exit(2)
        except OSError as error:
            logger.error(f"joformer: cannot write {error.filename or 'the output'}: {one_line(error)}")
            sys.stdout = None  # what is left in its buffer would fail again at exit
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit(130)


def _show_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """What nobody foresaw, with where it happened; its text may hold names as well."""
    for part in traceback.format_exception(kind, error, trace):
        for line in part.removesuffix("\n").split("\n"):
            tell(line)


def _leave(code: int) -> None:
    """Exit; several processes together, and past the interpreter's own end, where gloo's threads now and then abort."""
    torch = sys.modules.get("torch")
    if code == 0 and torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    sys.exit(code)


def _parse(words: list[str]) -> Any:
    if words[:1] == ["train"]:
        # Its options are those of the models and the recipe, which need torch: only who asks for them waits for it.
        from joformer.cli.train import LM, Monoidal, ViT
        from joformer.models import LMConfig
        from joformer.training import Recipe

        for shown in (LMConfig, Recipe):  # help is what is said of them, without the examples that are tests
            shown.__doc__ = (shown.__doc__ or "").partition("\n\n    >>>")[0]

        return tyro.extras.subcommand_cli_from_dict(
            {"lm": LM, "vit": ViT, "monoidal": Monoidal},
            prog="joformer train",
            description=Train.__doc__,
            args=words[1:],
            config=(tyro.conf.OmitArgPrefixes,),
        )
    about = "Journey operators: what is true of them, what they cost, and whether they help."
    return tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="joformer", description=about, args=words)
