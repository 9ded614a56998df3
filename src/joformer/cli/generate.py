"""`joformer generate`: text from a trained language model, streamed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated

import tyro

from joformer._log import logger
from joformer.cli.console import say, write
from joformer.cli.options import Place


@dataclass(frozen=True)
class Generate:
    """Stream text from a language model trained with `joformer train lm`, whether its run has finished or not.

    Example: joformer generate runs/enwik8 --prompt "The history of" --tokens 300 --temperature 0.8

    Attributes:
        checkpoint: The folder or address of a run, or of one of its checkpoints.
        prompt: The beginning of the text; a newline by default.
        tokens: Number of tokens to generate.
        temperature: Below 1, likely tokens become likelier; above 1, the text is more varied; 0 is greedy.
        top_k: Sample only from this many of the likeliest tokens.
        top_p: Sample only from the smallest set of likeliest tokens with at least this total probability (nucleus).
        seed: The same seed gives the same text.
        json: Print {prompt, text, tokens} at the end instead of streaming.
    """

    checkpoint: Annotated[Place, tyro.conf.Positional]
    prompt: str = ""
    tokens: int = 200
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        for name, wrong in (
            ("--tokens must be 0 or more", self.tokens < 0),
            ("--temperature must be 0 or more", not 0 <= self.temperature < math.inf),
            ("--top-k must be 1 or more", self.top_k is not None and self.top_k < 1),
            ("--top-p must be above 0 and at most 1", self.top_p is not None and not 0 < self.top_p <= 1),
        ):
            if wrong:
                raise ValueError(name)
        import torch

        from joformer._seeding import seed_of
        from joformer.models import JoFormerLM
        from joformer.training import open_run

        opened = open_run(self.checkpoint)
        if not isinstance(opened.model, JoFormerLM):
            raise ValueError(
                f"{self.checkpoint} holds a {type(opened.model).__name__}: only a language model generates text"
            )
        tokenizer = opened.tokenizer()
        if opened.step is not None:
            logger.info(f"weights of step {opened.step}")
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        opened.model.to(device)
        begin = torch.tensor([tokenizer.encode(self.prompt or "\n")], device=device)
        random = torch.Generator(device).manual_seed(seed_of(self.seed, "text"))
        shown, text = tokenizer.stream(), ""
        show = (lambda piece: None) if self.json else write
        show(self.prompt)
        drawn = opened.model.stream(
            begin, self.tokens, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, generator=random
        )
        for token in drawn:
            piece = shown.feed(int(token))
            text += piece
            show(piece)
        rest = shown.end()
        show(rest + "\n")
        if self.json:
            say(json.dumps({"prompt": self.prompt, "text": text + rest, "tokens": self.tokens}))
        return 0
