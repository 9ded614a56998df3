"""Figures of the bench on pages: what is between two marks is written from the JSON of a run.

    joformer bench --json > results/bench.json
    python -m joformer.bench.page results/bench.json README.md docs/cost.md

Marks are comments of Markdown, <!-- bench:NAME --> and <!-- /bench -->, with a name of `BLOCKS`. A test compares pages
and JSON, so that neither is changed alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from joformer._io import write_whole
from joformer._log import tell

MARKED = re.compile(r"(<!-- bench:(\w+) -->)(.*?)(<!-- /bench -->)", re.DOTALL)

Rows = dict[str, dict[str, Any]]
"""Rows of the JSON by name."""


def read(path: Path) -> Rows:
    """The rows of a run of the bench, by name."""
    try:
        return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, TypeError, KeyError):
        raise ValueError(f"{path} is not a bench result: write it with joformer bench --json") from None


def figure(row: dict[str, Any], times: str = "") -> str:
    """A value, `times` behind it, with its interval, and whether that tells it from 1.

    >>> figure({"value": 1.0412, "low": 1.031, "high": 1.0537, "verdict": "slower"})
    '1.04 [1.03, 1.05]'
    >>> figure({"value": 1.004, "low": 0.999, "high": 1.009, "verdict": "within noise"})
    '1.004 [0.999, 1.009; within noise]'
    >>> figure({"value": 1.138, "low": 1.0046, "high": 1.202, "verdict": "faster"})
    '1.138 [1.005, 1.202]'
    >>> figure({"value": 306.6, "low": 290.1, "high": 320.0}, " ×"), figure({"value": 2.695e-07, "low": None})
    ('307 × [290, 320]', '2.7e-7')
    """
    value, low, high = row["value"], row["low"], row.get("high")
    if low is None or high is None:
        if row.get("rounds") is not None:
            raise ValueError(
                f"{row['name']!r} has too few rounds for an interval: measure it again with more --repeats"
            )
        small = f"{value:.1e}".replace("e-0", "e-")
        return f"{f'{value:.3f}' if value >= 0.1 else small}{times}"
    noise = row.get("verdict") == "within noise"
    digits = 0 if value >= 20 else 1 if value >= 10 else 3 if high - low < 0.02 else 2
    if not noise and 1 in (round(low, digits), round(high, digits)):
        digits += 1  # 1.004 printed as 1.00 would look like noise
    return f"{value:.{digits}f}{times} [{low:.{digits}f}, {high:.{digits}f}{'; within noise' if noise else ''}]"


def _table(rows: Rows) -> str:
    lines = ["", "| | measured [95 % interval] |", "|---|---|"]
    lines += [f"| {line} | {'; '.join(figure(rows[name]) for name in names)} |" for line, names in TABLE.items()]
    return "\n".join([*lines, ""])


def _costs(rows: Rows) -> str:
    space, eager, compiled, peer = (figure(rows[name], " ×") for name in (MEMORY, EAGER, COMPILED, PEER))
    return (
        f"{space} the memory and {eager} the time (compiled: {compiled}) of\na training step without positions; "
        f"Hugging Face's RoPE on queries and keys alone, eager, costs {peer} the time"
    )


def _transforms(rows: Rows) -> str:
    def of(family: str) -> str:
        sizes = ("4,096 points", "64 × 4,096 points")
        return " and ".join(figure(rows[f"{family} / torch.fft.fft, {size}"], " ×") for size in sizes)

    return (
        f"the DFT takes {of('DFT')}\n  the time of `torch.fft` on one vector of 4,096 points and on 64 of them, "
        f"DCT and DST II to IV {of('DCT, DST II to IV')},\n  Walsh–Hadamard {of('Hadamard, Walsh')}, "
        f"type I, which needs an FFT of 2(n ∓ 1) points,\n  {of('DCT, DST I')}"
    )


def _embedding(rows: Rows) -> str:
    learned, fixed = (
        figure(rows[f"embedding 28 × 28 images, d = 784, {kind}: speed-up over every pixel"], " ×")
        for kind in ("learned", "dft")
    )
    return f"faster than by rotating every\n  pixel: {learned} by learned frequencies, {fixed} by the DFT's"


MEMORY = "peak memory of a training step: both / none, worst shape"
EAGER = "step eager: both / none, geometric mean"
COMPILED = "step compiled: both / none, geometric mean"
PEER = "step eager: Hugging Face on q and k / none, geometric mean"
_SHAPES = ("ViT-S", "small ViT", "LM")
_HOW = ("eager", "compiled")

TABLE: dict[str, Sequence[str]] = {
    "training step, scores and values transported / no positions: eager; compiled": (EAGER, COMPILED),
    **{
        f"the same, {how}, by shape: {'; '.join(_SHAPES)}": [f"step {how}, {s}: both / none" for s in _SHAPES]
        for how in _HOW
    },
    "the same / scores alone: eager; compiled": [f"step {how}: both / scores, geometric mean" for how in _HOW],
    "RoPE on q and k / no positions, eager: Hugging Face's; x-transformers'; rotary-embedding-torch's": [
        PEER.replace("Hugging Face", peer) for peer in ("Hugging Face", "x-transformers", "rotary-embedding-torch")
    ],
    "peak memory of a training step / no positions": (MEMORY,),
    "scores after a shift of 1,048,576 positions, relative change: ours; Hugging Face's": (
        "score drift after a shift of 1,048,576, fp32",
        "score drift of Hugging Face",
    ),
    "one decoded token at 4,096 cached / no positions: 768; 256 wide": [
        f"one decoded token at 4,096 cached, {dim} wide: both / none" for dim in (768, 256)
    ],
    "window 32, a step at 8,192 tokens / at 1,024": ("window 32: step at 8,192 tokens / at 1,024",),
    "tokens per second: a training step of `JoFormerLM` / of Hugging Face's Llama, 4 layers × 256 × 512 tokens": (
        "training step, tokens per second: JoFormerLM, both / Hugging Face Llama, SwiGLU of 680",
    ),
    "the same, decoding / Hugging Face's `generate`: batch 1; 8": [
        f"decoding, batch {n}, tokens per second: JoFormerLM, both / Hugging Face generate" for n in (1, 8)
    ],
    "value transport in Hugging Face's Llama / Llama as it is: training step": (
        "Hugging Face Llama, training step: values transported / not",
    ),
    **{
        f"the same, decoded token, {line}: 256; 768 wide": [
            f"Hugging Face Llama, decoded token, {kind}{dim} wide: {variant} / not" for dim in (256, 768)
        ]
        for line, kind, variant in (
            ("fp32", "", "values transported"),
            ("fp32, strength 0.5", "", "values at strength 0.5"),
            ("bf16", "bf16, ", "values transported"),
        )
    },
    "a step of `train` / the bare step": ("a step of train() / the bare step",),
    "augmentation (Setup B) / the smallest model's step; kornia's RandAugment alone": (
        "augmentation / training step, Setup B at D = 32, batch 128",
        "kornia's RandAugment alone, each image its own operations / training step",
    ),
}
"""Lines of the table in docs/cost.md, each with the rows it shows."""

BLOCKS: dict[str, Callable[[Rows], str]] = {
    "table": _table,
    "costs": _costs,
    "transforms": _transforms,
    "embedding": _embedding,
}


def filled(page: str, rows: Rows) -> str:
    """The page with what is between its marks written again from `rows`.

    >>> filled("as it is", {})
    'as it is'
    """

    def block(found: re.Match[str]) -> str:
        if found[2] not in BLOCKS:
            raise ValueError(f"there is no block {found[2]!r}: choose from {', '.join(BLOCKS)}")
        try:
            return f"{found[1]}{BLOCKS[found[2]](rows)}{found[4]}"
        except KeyError as missing:
            raise ValueError(f"the run has no row {missing}: measure all of them, with every peer installed") from None

    return MARKED.sub(block, page)


def main(arguments: Sequence[str]) -> int:
    """Writes the figures of a run into pages."""
    if len(arguments) < 2:
        tell("usage: python -m joformer.bench.page BENCH.json PAGE.md ...")
        return 2
    run, *pages = map(Path, arguments)
    try:
        rows = read(run)
        texts = {page: filled(page.read_text(encoding="utf-8"), rows) for page in pages}
    except (OSError, ValueError) as mistake:
        tell(f"joformer: {mistake}")
        return 2
    for page, text in texts.items():
        write_whole(page, text.encode())
        tell(f"wrote {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
