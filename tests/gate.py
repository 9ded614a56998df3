"""The gate of a refactor: hashes of weights, metrics and generated text of short runs, before and after.

    python tests/gate.py > before.json         on the commit before
    python tests/gate.py --check before.json   after: exits with 1 and names each run whose bits differ

Everything goes through the command, so that the script itself does not change with what it checks. One thread; two
minutes of one core. Bits depend on the processor and on torch: compare on one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LM = "lm --data stdlib --vocab 256 --dim 32 --layers 2 --heads 2 --context 64 --batch 8 --steps 20 --evaluate-every 10"
VIT = "vit --data digits --patch 2 2 --dim 32 --layers 2 --heads 2 --steps 20 --batch 32"
RUNS = {
    **{f"lm-{frames}": f"{LM} --frames {frames}" for frames in ("fixed", "learned", "projected", "cumulative")},
    "lm-scores": f"{LM} --transport scores",
    "lm-values": f"{LM} --transport values",
    "lm-windows": f"{LM} --pattern WN --window 16 --dropout 0.1",
    "lm-stages": f"{LM} --stages 10:1e-3 10:5e-4:projected",
    "lm-bf16": f"{LM} --precision bf16 --average 0.9",
    **{
        f"vit-{model}": f"{VIT} --model {model}"
        for model in ("rope2d", "joformer_axial", "joformer_perlayer", "liere64_v", "projected", "cumulative")
    },
    "monoidal": "monoidal --data digits --epochs 2",
}
KILLED = f"{LM} --frames cumulative --steps 200 --save-every 5"
"""Killed once it has a checkpoint, then resumed."""


def command(words: str) -> list[str]:
    return [sys.executable, "-m", "joformer.cli", *words.split()]


def run(words: str) -> None:
    done = subprocess.run(command(words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"joformer {words} failed: {done.stderr.strip()}")


def hashes(folder: Path) -> dict[str, str]:
    names = ("model.safetensors", "metrics.jsonl")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()[:16] for name in names}


def measure(place: Path) -> dict[str, dict[str, str]]:
    found = {}
    for name, words in RUNS.items():
        run(f"train {words} --out {place / name}")
        found[name] = hashes(place / name)
        print(name, *found[name].values(), file=sys.stderr)
    out = place / "killed"
    process = subprocess.Popen(command(f"train {KILLED} --out {out}"), stderr=subprocess.DEVNULL)
    while process.poll() is None and not any(out.glob("checkpoints/0*")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (out / "model.safetensors").is_file():
        raise SystemExit("the run ended before it could be killed: give it more steps")
    run(f"train {KILLED} --out {out}")
    found["killed and resumed"] = hashes(out)
    for name in ("lm-cumulative", "lm-windows"):
        text = subprocess.run(
            command(f"generate {place / name} --prompt import --tokens 40 --seed 3"), capture_output=True, check=True
        ).stdout
        found[f"generate {name}"] = {"text": hashlib.sha256(text).hexdigest()[:16]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=Path, help="the hashes to compare with")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    with tempfile.TemporaryDirectory() as place:
        found = measure(Path(place))
    if asked.check is None:
        print(json.dumps(found, indent=2))
        return
    before = json.loads(asked.check.read_text())
    different = [name for name in {**before, **found} if before.get(name) != found.get(name)]
    print(f"{len(found) - len(different)} of {len(found)} runs have the same bits")
    if different:
        raise SystemExit(f"other bits: {', '.join(different)}")


if __name__ == "__main__":
    main()
