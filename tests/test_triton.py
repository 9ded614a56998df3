"""The Triton kernel, in a process of its own: Triton decides when it is imported whether it interprets, and where it is
installed the compiler's tests would find it. The checks are in triton_checks.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("triton_checks.py")
TRITON = Path(os.environ.get("JOFORMER_TRITON", Path(sys.prefix) / "triton"))


@pytest.mark.skipif(not (TRITON / "triton").is_dir(), reason="no Triton here: pip install --target .venv/triton triton")
@pytest.mark.compiled
def test_checks():
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(TRITON))))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "JOFORMER_KERNELS": "triton"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no"]
    done = subprocess.run(
        [*command, str(CHECKS)], env=environment, capture_output=True, text=True, cwd=CHECKS.parent, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
