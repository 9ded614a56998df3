"""`joformer verify`: which claims of the paper hold."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from joformer._log import Progress, logger
from joformer.cli.console import say


@dataclass(frozen=True)
class Verify:
    """Check every claim of the paper: its verdict, and the residual measured now with the library's own functions.

    The exit code is 1 if a claim disagrees with its verdict. Takes a few seconds. Example:
    joformer verify --only order 48 --seed 7

    Attributes:
        only: Check only these: sections (algebra, attention, order, transforms, tables, remarks) or row numbers;
            or our own statements, which are left out by default (separation).
        seed: Seed of the random instances.
        trials: Random instances per claim; the worst one counts.
        json: Print a list of {id, section, label, verdict, residual, tolerance, ok, …} instead of text.
        markdown: Also write the page docs/claims.md in the current folder.
        figures: Also draw the figures, as SVG and PNG, into this folder.
    """

    only: tuple[str, ...] = ()
    seed: int = 0
    trials: int = 3
    json: bool = False
    markdown: bool = False
    figures: Path | None = None

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer import verify
        from joformer._io import make_folder, write_whole
        from joformer.verify import _page as page
        from joformer.verify import figures

        if self.markdown and self.only:
            raise ValueError("--markdown writes the page of all claims: leave out --only")
        # Fail early if the output cannot be written.
        if self.markdown:
            make_folder(Path("docs"))
        if self.figures is not None:
            figures.require_matplotlib()
            make_folder(self.figures)
        section, width = "", max(shutil.get_terminal_size((120, 24)).columns, 60)
        results, total = [], len(verify.choose(self.only))
        with Progress("checking", total, unit="claims", shown=self.json) as progress:  # text comes claim by claim
            for result in verify.check(self.only, seed=self.seed, trials=self.trials):
                results.append(result)
                if not self.json:
                    if result.claim.section != section:
                        section = result.claim.section
                        say(f"\n{page.TITLES[section].upper()}", lines=True)
                    say("\n".join(page.lines(result, width)), lines=True)
                progress.advance()
        if self.json:
            say(json.dumps([result.as_json() for result in results], indent=2), lines=True)
        else:
            say(f"\n{page.summary(results)}", lines=True)
        if self.markdown:
            command = f"joformer verify --markdown --seed {self.seed} --trials {self.trials}"
            write_whole(Path("docs/claims.md"), page.markdown(results, command).encode())
            logger.info("wrote docs/claims.md")
        if self.figures is not None:
            for path in figures.draw(self.figures, seed=self.seed):
                logger.info(f"wrote {path}")
        return 0 if all(result.ok for result in results) else 1
