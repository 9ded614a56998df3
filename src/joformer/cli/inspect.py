"""`joformer inspect`: one page on what a model learned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from joformer._log import tell
from joformer.cli.console import say
from joformer.cli.options import Place


@dataclass(frozen=True)
class Inspect:
    """See what a model learned: frequencies, kernels, angles, the use of value transport and journeys, on one page.

    Takes a run of `joformer train`, or the folder of a causal language model from Hugging Face, with or without value
    transport. Example: joformer inspect runs/enwik8 --prompt "The history of" --tokens 4 11

    Attributes:
        model: The folder or address of a run or of one of its checkpoints, or the folder of a Hugging Face model.
        data: Other data than the training data. Required for a Hugging Face model: a text file, or stdlib.
        prompt: The text whose tokens are shown; by default the beginning of a held-out window.
        index: Which held-out window or test image to show instead.
        tokens: The journey to show, source and target token, counted from 0; by default the strongest one into the
            last token of a text, or into the middle of an image.
        reach: The longest displacement of the kernels; by default 64 tokens for text, everything for an image.
        samples: Number of held-out windows or images on which the loss is measured while heads are switched off.
        out: The page to write.
        json: Also print all numbers as JSON.
    """

    model: Annotated[Place, tyro.conf.Positional]
    data: str | None = None
    prompt: str | None = None
    index: int | None = None
    tokens: tuple[int, ...] = ()
    reach: int | None = None
    samples: int = 50
    out: Path = Path("inspect.html")
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer._io import make_folder, write_whole
        from joformer.inspect._findings import as_json, find_out
        from joformer.inspect._page import html
        from joformer.inspect._subject import open_subject

        if len(self.tokens) not in (0, 2):
            raise ValueError(f"--tokens takes two, the source and the target of a journey; got {len(self.tokens)}")
        if self.out.is_dir():
            raise ValueError(f"{self.out} is a folder: give --out a file, such as {self.out / 'inspect.html'}")
        subject = open_subject(self.model, data=self.data, prompt=self.prompt, index=self.index, samples=self.samples)
        chosen = (self.tokens[0], self.tokens[1]) if self.tokens else None
        found = find_out(subject, tokens=chosen, reach=self.reach)
        make_folder(self.out.parent)
        write_whole(self.out, html(found).encode())
        if self.json:
            say(json.dumps(as_json(found), indent=2, ensure_ascii=False), lines=True)
        else:
            say(" ".join([*found.answer, *found.remarks]))
        (tell if self.json else say)(str(self.out))
        return 0
