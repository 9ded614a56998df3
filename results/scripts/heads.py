"""Which heads of trained language models use the value transport.

    python results/scripts/heads.py runs/enwik8/sizes/both-fixed/0.1m/seed-0 --data DATA/enwik8 --out results/heads.json

Prints, for each run, the loss as trained and by how many bits per byte it rises with values switched off in each head
(a row per layer), in each layer, in all. Intervals are over windows of held-out text.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from joformer._io import write_json
from joformer.inspect import text_measure, value_use
from joformer.training import load_text, open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    measure, found = text_measure(load_text(asked.data, vocab=256), context=asked.context, count=asked.windows), {}
    for run in asked.runs:
        opened = open_run(run)
        use = value_use(opened.model, measure)
        effects = [*use.heads, *use.layers, *([use.whole] if use.whole else [])]
        name = "/".join(run.parts[-4:])
        found[name] = {
            "model": opened.model.config.frames,
            "transport": opened.model.config.transport,
            "step": opened.step,
            "windows": use.loss.n,
            "context": asked.context,
            "bits_per_byte": asdict(use.loss),
            "effects": [asdict(effect) for effect in effects],
        }
        print(f"{name}: {use.loss.centre:.4f} bits per byte")
        for effect in effects:
            change = effect.change
            print(f"  off {effect.off}: {change.centre:+.4f} [{change.low:+.4f}, {change.high:+.4f}]")
    if asked.out:
        write_json(asked.out, found)


if __name__ == "__main__":
    main()
