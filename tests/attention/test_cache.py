"""JourneyCache by itself: what goes in comes out, in order, and stays where it was put."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, JourneyAttention, JourneyCache, positions


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sampled_from(["dynamic", "length", "window"]))
@settings(max_examples=100)
def test_update_returns_what_was_put_in(cuts, kind):
    total = sum(cuts)
    k, v = torch.randn(2, total, 3, 4), torch.randn(2, total, 3, 6)
    cache = {
        "dynamic": JourneyCache,
        "length": lambda: JourneyCache(length=total),
        "window": lambda: JourneyCache(window=7),
    }[kind]()
    at = 0
    for n in cuts:
        keys, values = cache.update(k[:, at : at + n], v[:, at : at + n])
        start = 0 if kind != "window" else max(0, at - 6)
        assert torch.equal(keys, k[:, start : at + n])
        assert torch.equal(values, v[:, start : at + n])
        at += n
    assert cache.tokens == total


def test_growing_copies_little():
    """Doubling: n single steps allocate O(log n) times, not n times."""
    cache, rooms = JourneyCache(), set()
    for _ in range(1000):
        keys, _ = cache.update(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
        rooms.add(keys.untyped_storage().data_ptr())
    assert len(rooms) <= 8


def test_sliding_memory_stays_small():
    cache = JourneyCache(window=8)
    cache.update(torch.zeros(1, 1000, 1, 2), torch.zeros(1, 1000, 1, 2))
    assert cache._store[0].untyped_storage().nbytes() == 7 * 2 * 4


def test_reorder_follows_the_beams():
    cache = JourneyCache()
    k = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 2, 1, 2)
    cache.update(k, k)
    cache.angles = torch.arange(3.0).view(3, 1, 1, 1)
    cache.reorder(torch.tensor([2, 2, 0]))
    keys, values = cache.update(k[:, :1], k[:, :1])
    assert keys[:, 0, 0, 0].tolist() == values[:, 0, 0, 0].tolist() == [2.0, 2.0, 0.0]
    assert cache.angles.flatten().tolist() == [2.0, 2.0, 0.0]


def test_after_a_reset_a_preallocated_cache_takes_another_batch_and_dtype():
    attention, frames = JourneyAttention(16, 2, causal=True), FixedFrames(8)(positions.sequence(3))
    cache = JourneyCache(length=8)
    with torch.no_grad():
        for batch, dtype in ((2, torch.float32), (1, torch.float32), (3, torch.float64)):
            x = torch.randn(batch, 3, 16, dtype=dtype)
            cache.reset()  # keeps the memory
            got = attention.to(dtype)(x, frames, cache=cache)
            assert torch.equal(got, attention(x, frames, cache=JourneyCache()))
            with pytest.raises(ValueError, match=r"call cache.reset\(\)"):
                attention(x.repeat(2, 1, 1), frames, cache=cache)


def test_a_context_is_never_kept_in_a_sliding_cache():
    attention = JourneyAttention(16, 2, context_dim=6, window=3)
    x, context, frames = torch.randn(1, 1, 16), torch.randn(1, 7, 6), FixedFrames(8)
    with pytest.raises(ValueError, match=r"a cache of a context's keys keeps all of them: use JourneyCache\(\)"):
        attention(
            x, frames(positions.sequence(1)), context=context, key_frames=frames(positions.sequence(7)),
            cache=JourneyCache(window=3),
        )  # fmt: skip


def test_reset_forgets_and_keeps_preallocated_room():
    cache = JourneyCache(length=4)
    first, _ = cache.update(torch.ones(1, 3, 1, 2), torch.ones(1, 3, 1, 2))
    cache.reset()
    assert (cache.tokens, cache.angles) == (0, None)
    second, _ = cache.update(torch.zeros(1, 4, 1, 2), torch.zeros(1, 4, 1, 2))
    assert second.shape[1] == 4
    assert second.data_ptr() == first.data_ptr()


@pytest.mark.refused
def test_bad_input_says_what_would_be_right():
    one = torch.zeros(1, 1, 1, 2)
    full = JourneyCache(length=1)
    full.update(one, one)
    started = JourneyCache()
    started.update(one, one)
    for call, says in (
        (lambda: JourneyCache(length=3, window=3), "not both"),
        (lambda: JourneyCache(length=0), "1 or more"),
        (lambda: JourneyCache(window=-1), "1 or more"),
        (lambda: full.update(one, one), "room for 1"),
        (lambda: JourneyCache(length=2).update(one.clone().requires_grad_(), one), "no_grad"),
        (lambda: started.update(torch.zeros(2, 1, 1, 2), torch.zeros(2, 1, 1, 2)), "reset"),
        (lambda: started.update(one.double(), one.double()), "reset"),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert (full.tokens, started.tokens) == (1, 1)  # a refused update leaves the cache as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_cross_attention_keeps_the_context(dtype, kv_heads):
    """The context is given once; every later query attends to what was kept, as if it were given again."""
    torch.manual_seed(0)
    attention = JourneyAttention(32, 4, kv_heads=kv_heads, context_dim=12).to(dtype)
    module = FixedFrames(8)
    context, there = torch.randn(2, 9, 12, dtype=dtype), module(positions.sequence(9))
    x, here = torch.randn(2, 5, 32, dtype=dtype), module(positions.sequence(5, offset=40))
    mask = torch.rand(5, 9) > 0.3
    mask[:, 0] = True
    mask = mask[None, None]
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            cache, whole = JourneyCache(), attention(x, here, context=context, key_frames=there, mask=mask)
            first = attention(
                x[:, :2], here.select(slice(2)), context=context, key_frames=there, mask=mask[:, :, :2], cache=cache
            )
            rest = [
                attention(x[:, t : t + 1], here.select(slice(t, t + 1)), mask=mask[:, :, t : t + 1], cache=cache)
                for t in range(2, 5)
            ]
        assert cache.tokens == 9
        torch.testing.assert_close(torch.cat([first, *rest], 1), whole)
    with pytest.raises(ValueError, match="the cache holds the context's keys: leave out context="):
        attention(x, here, context=context, key_frames=there, cache=cache)
    with pytest.raises(ValueError, match="keys of another layer"):
        JourneyAttention(32, 4, kv_heads=kv_heads, context_dim=12).to(dtype)(x, here, cache=cache)
