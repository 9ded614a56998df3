"""Copies what is finished of runs into a folder that is committed: each table.json and each result.json.

python results/scripts/keep.py runs/separation results/separation
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("kept", type=Path)
    asked = parser.parse_args()
    for file in (*asked.runs.glob("*/table.json"), *asked.runs.rglob("result.json")):
        kept = asked.kept / file.relative_to(asked.runs)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept)


if __name__ == "__main__":
    main()
