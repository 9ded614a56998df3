"""A table whose cells meet with mishaps, and the command that runs it, in a process of its own.

    mishaps/plain        nothing happens
    mishaps/killed-once  its process is killed at step 6, the first time
    mishaps/killed       … every time
    mishaps/fails        raises what nobody foresaw
    mishaps/refused      has no data
    mishaps/lingers      takes two minutes, unless the file MARK/open is there, or MARK/open-SEED

Every step that is taken leaves a line in MARK/FATE-SEED: what was done twice, or not at all, is no guess. Of several
processes of a cell it is the last that leaves them, and to which things happen.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from joformer.experiments import TABLES, Cell, TextSource, plan
from joformer.models import LMConfig
from joformer.training import Recipe

FATES = ("plain", "killed once", "killed", "fails", "refused", "lingers")
AT, STEPS, LONG = 6, 12, 200


@dataclass(frozen=True)
class Fated(TextSource):
    """A text of nothing but arithmetic, on which something happens at step AT."""

    fate: str = "plain"
    mark: str = ""

    def task(self):
        if self.fate == "refused":
            raise ValueError("there is no such data: look elsewhere")
        task = super().task()
        usual = task.batch

        def batch(seed, step, part, parts):
            if part < parts - 1:
                return usual(seed, step, part, parts)
            before = steps_of(Path(self.mark), self.fate, seed)
            with open(Path(self.mark) / f"{self.fate}-{seed}", "a") as log:
                print(step, file=log)
            if step == AT and (self.fate == "killed" or (self.fate == "killed once" and AT not in before)):
                os.kill(os.getpid(), signal.SIGKILL)
            if step == AT and self.fate == "fails":
                raise RuntimeError("nobody foresaw this\nnor where it would be")
            if (Path(self.mark) / "slowly").exists():
                time.sleep(0.3)
            doors = (Path(self.mark) / name for name in ("open", f"open-{seed}"))
            if self.fate == "lingers" and not any(door.exists() for door in doors):
                time.sleep(0.3 if step < 150 else 2)  # it must not end by itself on a busy machine
            return usual(seed, step, part, parts)

        task.batch = batch
        return task


def steps_of(mark: Path, fate: str, seed: int = 0) -> list[int]:
    """The steps that were taken, in their order, by all attempts together."""
    log = mark / f"{fate}-{seed}"
    return [int(line) for line in log.read_text().split()] if log.is_file() else []


def attempts(out: Path, fate: str, seed: int = 0) -> list[int]:
    """The processes that began the cell, in their order."""
    log = out / "mishaps" / fate.replace(" ", "-") / f"seed-{seed}" / "attempts.jsonl"
    return [json.loads(line)["process"] for line in log.read_text().splitlines()] if log.is_file() else []


def tables(scale, data, seeds, steps, sole):
    """The table; --data is MARK."""
    config = LMConfig(vocab=256, dim=16, layers=1, heads=2)
    data = Path(data)
    text = data / "squares.txt"
    if not text.exists():
        text.write_text(" ".join(f"{n} squared is {n * n};" for n in range(400)))
    cells = [
        Cell(
            fate, "", seed, config,
            Fated(str(text), context=16, batch=4, held_out=6, fate=fate, mark=str(data)),
            Recipe(
                steps=steps or (LONG if fate == "lingers" else STEPS), lr=1e-2, log_every=2, evaluate_every=50,
                save_every=50 if fate == "lingers" else 4, keep=1,
            ),
        )
        for fate in FATES
        for seed in seeds
    ]  # fmt: skip
    return [plan("mishaps", "Mishaps", "bits_per_byte", cells, named=False, scale=scale, baseline="plain")]


def command(words: list[str], log: str, limit: int | None = None) -> None:
    """`joformer WORDS`, with all that it prints in `log`, and no file longer than `limit` bytes."""
    from joformer import cli

    os.setsid()  # as a terminal has it: a signal to the group is one to the workers too
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    TABLES["mishaps"] = tables
    sys.argv = ["joformer", *words]
    cli.main()


if __name__ == "__main__":
    from mishaps import tables as table

    from joformer import cli

    TABLES["mishaps"] = table
    cli.main()
