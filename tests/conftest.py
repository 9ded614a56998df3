"""Shared by all tests: deterministic Hypothesis, deterministic torch."""

import os

# Some virtual machines announce AMX but die of an illegal instruction in oneDNN's bfloat16 products that use it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

settings.register_profile("joformer", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("joformer")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["fp32", "fp64"])
def dtype(request):
    return request.param
