"""Journey attention in torchtitan, in a process of its own: what it needs lies beside the environment, as timm does.
The checks are in titan_checks.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joformer.integrations import __file__ as integrations

CHECKS, MODULE = Path(__file__).with_name("titan_checks.py"), Path(integrations).with_name("titan.py")
TITAN = Path(os.environ.get("JOFORMER_TITAN", Path(sys.prefix) / "titan"))
TRITON = Path(os.environ.get("JOFORMER_TRITON", Path(sys.prefix) / "triton"))  # which torchtitan imports

needs_titan = pytest.mark.skipif(
    not (TITAN / "torchtitan").is_dir() or not (TRITON / "triton").is_dir(),
    reason="no torchtitan or no Triton here: the Makefile says what goes into .venv/titan and .venv/triton",
)


def write_data(folder):
    """A tokenizer of bytes, and some text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    (folder / "tokenizer").mkdir()
    (folder / "text").mkdir()
    letters = ["<begin>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(letters[:2])
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    named = json.dumps({"bos_token": letters[0], "eos_token": letters[1]})
    (folder / "tokenizer" / "tokenizer_config.json").write_text(named)
    words = CHECKS.read_text().split("\n\n\n")
    (folder / "text" / "data.json").write_text("".join(json.dumps({"text": text}) + "\n" for text in words))


@needs_titan
@pytest.mark.compiled
def test_checks(tmp_path):
    """Some of them compile, so all run without the shape checks; what fails is listed by name. Then its examples."""
    write_data(tmp_path)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(TITAN), str(TRITON))))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no"]
    home = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--doctest-modules", str(CHECKS), str(MODULE)],
        env={**os.environ, "PYTHONPATH": path, "TITAN_DATA": str(tmp_path), **home},
        capture_output=True,
        text=True,
        cwd=CHECKS.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
