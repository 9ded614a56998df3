"""Length: trained on short windows, measured on long ones; windowed layers with frames, and some without positions.

    joformer reproduce length                                 Python's own source, 6 layers, 3 seeds: two minutes
    joformer reproduce length --data DATA                     DATA/enwik8 or DATA/wikitext-2, 600 steps: an hour
    joformer reproduce length --scale paper                   163M parameters, 200,000 and 150,000 steps: GPUs

Every length scores the same tokens, as many as a window of training has, with more of the text before them: what
changes from length to length is the context alone. All rows of a table have the same steps and learning rates, unlike
in the paper, where projected angles have 50,000 more; its two budgets are two tables. At the paper's scale the
tokenizer is GPT-2's where DATA/gpt2/tokenizer.json is, else a BPE of that size trained on the text.

Expect: windowed layers do not see the length, so that a ratio to the training length that leaves 1 comes from the
layers without positions (docs/claims.md row 58); below 1 is context that is used.

Paper: "Length Generalization".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joformer import paper
from joformer._remote import is_address
from joformer.experiments.places import find
from joformer.experiments.sources import Scale, TextSource
from joformer.experiments.tables import Cell, Table, plan
from joformer.models import LMConfig
from joformer.training import Recipe

MODELS: dict[str, dict[str, Any]] = {
    "rope": {"frames": "fixed", "transport": "scores"},
    "fixed": {"frames": "fixed"},
    "learned": {"frames": "learned"},
    "projected": {"frames": "fixed"},  # its third stage changes them
    "projected from scratch": {"frames": "projected"},
    "cumulative": {"frames": "cumulative"},
    "none": {"transport": "none"},
}
YARN = "rope, yarn"
PROTOCOL = "the same tokens at every length"
TEXTS = ("openwebtext", "enwik8", "wikitext-2")
GPT2 = 50257


def tables(scale: Scale, data: str | Path | None, seeds: Sequence[int], steps: int | None, sole: bool) -> list[Table]:
    """The table as it is run; at the paper's scale also that of its shorter budget."""
    where = find(data, TEXTS, scale, hub="openwebtext", embedded="stdlib", sole=sole)
    if scale == "paper":
        gpt2 = None if data is None or is_address(data) else Path(data) / "gpt2" / "tokenizer.json"
        known = str(gpt2.resolve()) if gpt2 is not None and gpt2.is_file() else None
        source = TextSource(where, vocab=GPT2, context=512, batch=32, tokenizer=known)
        long = _table(scale, source, seeds, steps or 200_000, steps is None)
        return [long] if steps else [long, _table(scale, source, seeds, 150_000, True)]
    small = where == "stdlib"
    source = TextSource(where, context=256, batch=8, held_out=10 if small else 50)
    return [_table(scale, source, seeds, steps or (40 if small else 600), False)]


def _table(scale: Scale, source: TextSource, seeds: Sequence[int], total: int, budget: bool) -> Table:
    """The table of one number of steps; `budget` says that it is one of the paper's."""
    short = budget and total < 200_000  # the first two stages: without what the third changes
    models = {model: change for model, change in MODELS.items() if not (short and model == "projected")}
    shares = (2, 1) if short else (2, 1, 1)
    rates, pattern = (2e-3, 8e-4, 2e-4), "WWWWWN"
    shape: dict[str, Any] = {"dim": 64, "layers": 6, "heads": 4}
    if scale == "paper":
        rates, pattern, shape = (5e-4, 2e-4, 5e-5), "WWWWWNWWWWWNWWWN", {"dim": 768, "layers": 16, "heads": 8}
    lengths = tuple(source.context * times for times in (1, 2, 4, 8, 16))
    vocab = source.load().tokenizer.vocab
    cells = [
        Cell(
            model, "", seed,
            LMConfig(vocab=vocab, pattern=pattern, window=32, **shape, **change), source,
            _recipe(model, total, shares, rates, "bf16" if scale == "paper" else "fp32"), lengths=lengths,
            yarn=YARN if model == "rope" else "",
        )
        for model, change in models.items()
        for seed in seeds
    ]  # fmt: skip
    # The paper's figures stand at the number of steps that they are of.
    printed = {
        model: {str(times * source.context // 512): value for times, value in zip(paper.LENGTHS, row, strict=True)}
        for model, (*row, _, thousands) in paper.LENGTH.items()
        if not budget or 1000 * thousands == total
    }
    stages = f"{len(shares)} stages of {' : '.join(map(str, shares))}"
    late = "" if short else "; the row of projected angles, late, has fixed ones until the last"
    scored = f"{source.held_out} stretches of {source.context} {'bytes' if vocab == 256 else 'tokens'}"
    return plan(
        "length-150k" if short else "length",
        f"Trained at {source.context} tokens, measured up to {lengths[-1]}",
        "perplexity",
        cells,
        scale=scale,
        baseline="rope",
        protocol=PROTOCOL,
        also=("bits_per_byte",),
        paper=printed,
        paper_setting="OpenWebText, 163M parameters, trained at 512 tokens, other text at each length, one seed; "
        "projected 200,000 steps, rope 150,000",
        comparable=budget and Path(source.data).name == "openwebtext",
        notes=(
            f"{total} steps for every row and the same learning rates, in {stages}{late}. The others are what they are "
            "from the start.",
            f"Scored are {scored}, the same at every length; the length counts them and what stands before. The paper "
            "scores whole windows, other text at each length.",
            "RoPE, YaRN: the weights of RoPE, measured with frequencies and scores scaled to each length. Frames act "
            f"within windows of {cells[0].config.window} here, which are no longer in a longer text.",
            *_tokens(source, vocab, scale),
            "The paper's figures are for the same multiple of the training length; it trains at 512.",
            "Content-dependent rows have more parameters, as in the paper.",
        ),
    )  # fmt: skip


def _tokens(source: TextSource, vocab: int, scale: Scale) -> list[str]:
    if scale == "laptop":
        return []
    if source.tokenizer is not None:
        return [f"Tokens are GPT-2's, {vocab:,}: its end of text, which no text holds, is left out."]
    return [f"Tokens are a BPE of {vocab:,} trained on the text: GPT-2's, as large, was not in DATA/gpt2."]


def _recipe(model: str, total: int, shares: tuple[int, ...], rates: tuple[float, ...], precision: Any) -> Recipe:
    counts = [total * share // sum(shares) for share in shares]
    counts[-1] = total - sum(counts[:-1])
    stages = [f"{count}:{rate:g}" for count, rate in zip(counts, rates, strict=False) if count]
    warmup = min(total // 20, *filter(None, counts))
    if model == "projected":
        stages[-1] += ":projected"
    every = max(1, total // 4)
    return Recipe(
        stages=tuple(stages), end=0.1, warmup=warmup, weight_decay=0.01, precision=precision,
        log_every=10, evaluate_every=every, save_every=min(every, 5000), keep=1,
    )  # fmt: skip
