"""Sequences shared by processes: three of them, once; and what is said where that cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from joformer import CumulativeFrames, FixedFrames, JourneyAttention, JourneyCache, journey_attention, positions
from joformer.attention import ContextParallel
from joformer.models import LMConfig


def test_three_processes_attend_as_one(tmp_path):
    """Everything in one launch, see processes.py."""
    script = Path(__file__).with_name("processes.py")
    ended = subprocess.run(
        [sys.executable, script, "3", tmp_path], capture_output=True, check=False, text=True, timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@pytest.fixture
def alone():
    """A group of one process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield ContextParallel()
    distributed.destroy_process_group()


def test_what_cannot_be_shared_is_one_line(alone):
    frames, x = FixedFrames(4)(positions.sequence(6)), torch.randn(1, 6, 8)
    attention, q = JourneyAttention(8, 2, causal=True), torch.randn(1, 6, 2, 4)
    both = JourneyAttention(8, 2, window=2)
    lm = LMConfig(vocab=9, dim=8, layers=1, heads=2).build()
    cumulative, grid = CumulativeFrames(8, 4, heads=2), CumulativeFrames(8, 4, heads=2, axes=2)
    across = {"parallel": alone}
    for raises, said in (
        (lambda: attention(x, frames, cache=JourneyCache(), **across), "self-attention over a whole sequence"),
        (lambda: attention(x, frames, inner=lambda q, k, v: v, **across), "self-attention over a whole sequence"),
        (lambda: journey_attention(q, q, q, frames, backend="reference", **across), "with a fast backend"),
        (lambda: journey_attention(q, q, q, frames, key_frames=frames.select([0] * 6), **across), "self-attention"),
        (lambda: both(x, frames, **across), "need causal=True"),
        (lambda: journey_attention(q, q, q, frames, segments=torch.zeros(6).int(), **across), "need causal=True"),
        (lambda: attention(x[:, :5], frames.select([*range(5)]), **across), "5 tokens do not divide into 2 chunks"),
        (lambda: attention(x, cumulative(positions.sequence(6), x), **across), "pass parallel= to their module too"),
        (lambda: lm(torch.zeros(1, 4).long(), caches=lm.caches(), **across), "leave out caches"),
        (lambda: cumulative(positions.sequence(6), x, every=True, **across), "whole sequences on one axis"),
        (lambda: grid(positions.grid(2, 3), x, grid=(2, 3), **across), "whole sequences on one axis"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            raises()
        assert "\n" not in str(error.value)
    assert cumulative(positions.sequence(6), x, **across).end is None


def test_without_processes():
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group first"):
        ContextParallel()
