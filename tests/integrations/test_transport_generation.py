"""Decoding with transported values: every cache holds what the full forward would, whoever walks the tokens."""

import pytest
import torch
import transformers as T
from families import FAMILIES, GROUPED, OTHERS, REQUIRED, TOKENS, VOCAB, answer

from joformer.integrations import transport_values
from joformer.integrations._journey import Step
from joformer.integrations.hf._patch import Embedding

# Dynamic scaling is left out: there the model's own keys in the cache are of other frequencies than the full forward's.
DECODERS = [name for name in (*REQUIRED, *OTHERS, "yarn", "llama3", "longrope short") if name != "dinov3"]
TEXT = 11


def text(rows=2, tokens=TEXT):
    return torch.randint(2, VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(3))


def near(a, b, times=1.0):
    return bool((a - b).abs().max() <= times * 2e-5 * max(1.0, float(b.abs().max())))


def made(name="llama", strength=1.0, dtype=torch.float32):
    return transport_values(FAMILIES[name].made(dtype), strength)


def in_parts(model, tokens, cache, parts, **kwargs):
    out, start = [], 0
    for part in parts:
        step = model(tokens[:, start : start + part], past_key_values=cache, use_cache=True, **kwargs)
        out.append(step.logits)
        start += part
    return torch.cat(out, 1)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("strength", [1.0, 0.6])  # a single token at full strength has a way of its own
def test_parts_with_a_cache_are_the_whole(name, kind, strength):
    model, tokens = made(name, strength), text()
    if kind == "dynamic":
        cache = T.DynamicCache(config=model.config)  # sliding layers get sliding caches
    else:
        cache = T.StaticCache(config=model.config, max_cache_len=TEXT + 2)
    with torch.no_grad():
        whole = answer(model, {"input_ids": tokens}, use_cache=False)
        assert near(in_parts(model, tokens, cache, [5, 1, 1, 2, 1, 1]), whole)
        transport_values(model, 0.0)
        assert not near(answer(model, {"input_ids": tokens}), whole, 100)


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_a_sliding_window_forgets_what_it_should(name):
    """The window is 4 of 11 tokens: its cache holds no more, and the values in it have been rotated once."""
    model, tokens = made(name), text()
    cache = T.DynamicCache(config=model.config)
    with torch.no_grad():
        logits = in_parts(model, tokens, cache, [1] * TEXT)
    assert cache.layers[0].values.shape[-2] <= 4
    with torch.no_grad():
        assert near(logits, answer(model, {"input_ids": tokens}, use_cache=False))


def test_the_cache_holds_rotated_values():
    family = FAMILIES["llama"]
    model, tokens = made(strength=1.0), text()
    cache = T.DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens, past_key_values=cache)
        rotated = cache.layers[0].values
        transport_values(model, 0.0)
        cache = T.DynamicCache(config=model.config)
        model(tokens, past_key_values=cache)
        plain = cache.layers[0].values
    angles = family.angles(0, torch.arange(TEXT)[None]).float()  # (1, tokens, planes)
    first, second = plain.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    expected = torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
    assert near(rotated, expected)


@pytest.mark.parametrize("name", ["llama", "mistral", "neox", "cohere"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_greedy_with_left_padding_is_greedy_without(name, cache):
    model, tokens = made(name), text()
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    padded = torch.where(mask.bool(), tokens, 0)
    settings = {
        "max_new_tokens": 6,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
        "cache_implementation": cache,
    }
    if cache == "static":
        settings["disable_compile"] = True
    both = model.generate(padded, attention_mask=mask, **settings)
    for row, prompt in enumerate((tokens[:1], tokens[1:, 4:])):
        alone = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        assert torch.equal(both.sequences[row, TEXT:], alone.sequences[0, prompt.shape[1] :])
        assert near(torch.stack(both.logits)[:, row], torch.stack(alone.logits)[:, 0])


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
@pytest.mark.parametrize(
    "how",
    [{"do_sample": False}, {"do_sample": True, "top_k": 9}, {"num_beams": 3, "do_sample": False}],
    ids=["greedy", "sampled", "beams"],
)
def test_with_and_without_a_cache_the_same_is_generated(name, how):
    model, tokens = made(name), text(tokens=TOKENS)
    found = []
    for use_cache in (True, False):
        torch.manual_seed(7)
        out = model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=7, use_cache=use_cache,
            return_dict_in_generate=True, output_logits=True, **how,
        )  # fmt: skip
        found.append(out)
    assert torch.equal(found[0].sequences, found[1].sequences)
    assert near(torch.stack(found[0].logits), torch.stack(found[1].logits))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_decode(dtype):
    model, tokens = made(dtype=dtype), text()
    with torch.no_grad():
        whole = answer(model, {"input_ids": tokens}, use_cache=False).double()
        parts = in_parts(model, tokens, T.DynamicCache(config=model.config), [4] + [1] * 7).double()
    assert (parts - whole).abs().mean() < {torch.float64: 1e-6, torch.bfloat16: 3e-2}[dtype]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "dinov3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_journey_of_one_token_is_that_of_many(name, dtype):
    """A single token has a way of its own, by the frequencies; with gradients on it goes the way of all."""
    model = made(name, 0.6, dtype)
    (rotary,) = [m for m in model.modules() if isinstance(m, Embedding)]
    for kind in rotary._spec.frequencies:
        more = () if kind is None else (kind,)
        for at in ([[3]], [[40], [7]], [[5000]]):  # some frequencies change with the length
            with torch.no_grad():
                *tables, step = rotary(torch.zeros(1, dtype=dtype), torch.tensor(at), *more)
            *same, journey = rotary(torch.zeros(1, dtype=dtype), torch.tensor(at), *more)
            assert all(torch.equal(a, b) for a, b in zip(tables, same))
            assert isinstance(step, Step)
            assert not isinstance(journey, Step)
            x = torch.randn(len(at), 1, 2, rotary._spec.dim, generator=torch.Generator().manual_seed(1))
            for inverse in (False, True):
                assert torch.allclose(step.rotate(x, inverse), journey.rotate(x, inverse), atol=2e-6)
            assert not torch.allclose(step.rotate(x), x, atol=1e-2)
    assert rotary._spec.frequencies


@pytest.mark.parametrize("name", ["llama", "neox", "glm"])
@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_a_decoded_token_in_bfloat16_is_as_near_as_the_whole_forward(name, strength):
    """Far from the start, where angles of bfloat16 would be off by whole turns; rows have positions of their own."""
    low = made(name, strength, torch.bfloat16)
    model, tokens = made(name, strength), text()
    model.load_state_dict({key: value.float() for key, value in low.state_dict().items()})
    for each, other in zip(model.modules(), low.modules()):
        each._buffers.update({key: b if b is None else b.float() for key, b in other._buffers.items()})
    at = torch.stack((torch.arange(TEXT) + 3000, torch.arange(TEXT) * 7 + 41))
    mask = torch.ones(2, TEXT, dtype=torch.long)  # without one transformers takes such positions for several texts

    def steps(its):
        cache, out = T.DynamicCache(config=its.config), []
        for start, stop in zip((0, *range(4, TEXT)), range(4, TEXT + 1)):
            now = {"position_ids": at[:, start:stop], "attention_mask": mask[:, :stop], "past_key_values": cache}
            out.append(its(tokens[:, start:stop], **now).logits.float())
        return torch.cat(out, 1)

    with torch.no_grad():
        whole = [m(tokens, position_ids=at, attention_mask=mask, use_cache=False).logits.float() for m in (model, low)]
        assert near(steps(model), whole[0], 4)
        usual = (whole[1] - whole[0]).abs().mean()
        assert 0 < (steps(low) - whole[0]).abs().mean() < 1.5 * usual


def test_one_token_at_a_time_where_gradients_flow():
    """A step may be differentiated: the gradient is the same as without transport, since one token goes nowhere."""
    model, tokens = made(), text(1, 1)
    weight = model.model.layers[0].self_attn.v_proj.weight
    (with_cache,) = torch.autograd.grad(model(tokens, use_cache=True).logits.square().sum(), weight)
    transport_values(model, 0.0)
    (plain,) = torch.autograd.grad(model(tokens, use_cache=False).logits.square().sum(), weight)
    assert near(with_cache, plain)


def test_greedy_is_the_argmax_of_the_full_forward():
    model, tokens = made(), text(tokens=TOKENS)
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=6, do_sample=False)
    with torch.no_grad():
        for at in range(TOKENS, TOKENS + 6):
            assert torch.equal(model(out[:, :at]).logits[:, -1].argmax(-1), out[:, at])


def test_guessing_ahead_changes_nothing():
    """Prompt lookup and an assistant: tokens are tried several at a time and the cache is cropped again."""
    model = made()
    tokens = text(1, 4).repeat(1, 3)
    settings = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": 8, "do_sample": False}
    plain = model.generate(tokens, **settings)
    assert torch.equal(model.generate(tokens, prompt_lookup_num_tokens=3, **settings), plain)
    helper = T.LlamaForCausalLM(T.LlamaConfig(**{**GROUPED, "num_hidden_layers": 1})).eval()
    assert torch.equal(model.generate(tokens, assistant_model=helper, **settings), plain)
    assert torch.equal(model.generate(tokens, assistant_model=transport_values(helper), **settings), plain)


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_at_strength_0_generation_is_the_untouched_models(name):
    model, tokens = FAMILIES[name].made(), text()
    settings = {
        "attention_mask": torch.ones_like(tokens),
        "max_new_tokens": 5,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    before = model.generate(tokens, **settings)
    after = transport_values(model, 0.0).generate(tokens, **settings)
    assert all(torch.equal(a, b) for a, b in zip(before.logits, after.logits))
