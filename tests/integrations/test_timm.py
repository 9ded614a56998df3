"""Value transport in timm's models, in a process of its own: torchvision beside a torch without CUDA needs its
operators declared, and transformers would find it too. The checks are in timm_checks.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("timm_checks.py")
TIMM = Path(os.environ.get("JOFORMER_TIMM", Path(sys.prefix) / "timm"))

needs_timm = pytest.mark.skipif(
    not (TIMM / "timm").is_dir(), reason="no timm here: pip install --no-deps --target .venv/timm timm torchvision"
)


@needs_timm
@pytest.mark.compiled
def test_checks():
    """Some of them compile, so all run without the shape checks; what fails is listed by name."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(TIMM))))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--show-capture=no"]
    done = subprocess.run(
        [*command, str(CHECKS)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=CHECKS.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
