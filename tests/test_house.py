"""The house: imports go only down the list in the design, and importing joformer brings nothing heavy."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import joformer

ROOT = Path(joformer.__file__).parent

# From the top of the house to the bottom; a module may import from those before it, and from its own.
ORDER = [
    "_log",
    "_io",
    "_remote",
    "_precision",
    "_seeding",
    "_parallel",
    "_augmentation",
    "algebra",
    "paper",
    "positions",
    "_scalings",
    "frequencies",
    "frames",
    "rotation",
    "attention",
    "spectral",
    "monoidal",
    "models",
    "training",
    "testing",
    "verify",
    "integrations",
    "bench",
    "experiments",
    "inspect",
    "cli",
    "__main__",
]


def floor(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "joformer":
            rest = node.module.split(".")[1:]
            found.update([rest[0]] if rest else [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            found.update(a.name.split(".")[1] for a in node.names if a.name.startswith("joformer."))
    return found


def wrong_imports(order: list[str]) -> list[str]:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        here = floor(path)
        if here == "__init__":
            continue
        for there in imported(path):
            if there != here and (there not in order or order.index(there) >= order.index(here)):
                wrong.append(f"{path.relative_to(ROOT)} imports {there}")
    return wrong


def test_every_module_has_its_floor():
    assert {floor(p) for p in ROOT.rglob("*.py")} - {"__init__"} <= set(ORDER)


def test_imports_go_only_down():
    assert wrong_imports(ORDER) == []


def test_the_check_can_fail():
    assert wrong_imports(ORDER[::-1])


def test_import_brings_nothing_heavy():
    code = (
        "import torch, sys; before = set(sys.modules); from joformer import *;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}));"
        "print('torch._dynamo' in set(sys.modules) - before)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    allowed = {"joformer", "jaxtyping", "wadler_lindig", "typing_extensions", "torch", "numpy"}
    heavy = {m for m in ast.literal_eval(out[0]) if not m.startswith("_")} - allowed - set(sys.stdlib_module_names)
    assert heavy == set()
    assert out[1] == "False"


def test_public_names_have_docstrings_with_examples():
    for name in joformer.__all__:
        thing = getattr(joformer, name)
        assert thing.__doc__, name
        if not hasattr(thing, "__path__") and not hasattr(thing, "__file__"):
            assert ">>>" in thing.__doc__, f"{name} has no example"


ONLY_IN = {
    # What one place does for all, and who may do it.
    r"isinstance\([^)]*Frames\b": ("frames/",),  # a room knows its own types
    r"FileLock|fcntl": ("_io.py",),
    r"hashlib\.blake2b\(.*digest_size=8\)\.digest": ("_seeding.py",),
    r'!= "mps"|== "mps"': ("_precision.py",),
    r"\b(say|tell): (Say|Report|Callable)": (),
    r"CLAIMS\.md": (),
}


@pytest.mark.parametrize("pattern", ONLY_IN)
def test_one_place_for_one_thing(pattern):
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if re.search(pattern, path.read_text())}
    assert {file for file in found if not file.startswith(ONLY_IN[pattern])} == set()
    assert found or not ONLY_IN[pattern]  # a pattern that finds nothing any more would hold nothing
