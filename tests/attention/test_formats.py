"""Heads before tokens or after them: the same function, also where both are equally many."""

import pytest
import torch

from joformer import FixedFrames, journey_attention, positions, rotate


@pytest.mark.parametrize("tokens", [4, 7])  # as many heads as tokens, where no shape tells them apart
@pytest.mark.parametrize("inverse", [False, True])
def test_rotating_heads_first_is_rotating(tokens, inverse, dtype):
    x, frames = torch.randn(2, tokens, 4, 8, dtype=dtype), FixedFrames(8)(positions.sequence(tokens, offset=3))
    found = rotate(x.transpose(1, 2), frames, inverse, format="bhtd")
    assert torch.equal(found.transpose(1, 2), rotate(x, frames, inverse))
    if tokens == 4:  # and the other reading is another function
        assert not torch.allclose(
            rotate(x.transpose(1, 2), frames, inverse).transpose(1, 2), rotate(x, frames, inverse)
        )


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"segments": torch.tensor([0, 0, 1, 1])}])
def test_attention_heads_first_is_attention(backend, options, dtype):
    q, k, v = (torch.randn(2, 4, heads, 8, dtype=dtype) for heads in (4, 2, 2))
    frames = FixedFrames(8)(positions.sequence(4))
    expected = journey_attention(q, k, v, frames, causal=True, backend=backend, **options)
    first = [t.transpose(1, 2) for t in (q, k, v)]
    found = journey_attention(*first, frames, causal=True, backend=backend, format="bhtd", **options)
    assert found.shape == (2, 4, 4, 8)
    assert torch.equal(found.transpose(1, 2), expected)


def test_heads_first_gives_the_gradients_of_tokens_first():
    inputs = [torch.randn(1, 5, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    frames = FixedFrames(4)(positions.sequence(5))
    expected = torch.autograd.grad(journey_attention(*inputs, frames).square().sum(), inputs)
    first = journey_attention(*(t.transpose(1, 2) for t in inputs), frames, format="bhtd")
    for a, b in zip(torch.autograd.grad(first.square().sum(), inputs), expected):
        assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.refused
def test_an_unknown_format_raises():
    frames = FixedFrames(8)(positions.sequence(4))
    with pytest.raises(ValueError, match=r"format must be 'bthd'.*'bhtd'"):
        rotate(torch.zeros(1, 4, 2, 8), frames, format="thd")
    with pytest.raises(ValueError, match="format must be 'bthd'"):
        journey_attention(*torch.zeros(3, 1, 4, 2, 8), frames, format="sbhd")
    with pytest.raises(ValueError, match="format='bhtd'"):
        rotate(torch.zeros(1, 2, 4, 8), frames)
