"""The same numbers of models of transformers, with value transport and without."""

import math

import pytest
import torch

transformers = pytest.importorskip("transformers")

from joformer import inspect, transport_values
from joformer.integrations import strength_of

TOKENS = torch.randint(32, (2, 10), generator=torch.Generator().manual_seed(0))


def llama(**changes):
    small = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 100.0}  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**small, **changes})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


@pytest.mark.parametrize("strength", [None, 1.0, 0.5])
@torch.no_grad()
def test_queries_keys_frames_and_weights(strength):
    model = llama() if strength is None else transport_values(llama(), strength)
    before = model(TOKENS).logits
    layers = inspect.attended(model, TOKENS)
    assert torch.equal(model(TOKENS).logits, before), "as it was"
    assert strength_of(model) == strength
    assert [(one.layer, one.strength, one.scores) for one in layers] == [(n, strength or 0.0, True) for n in range(2)]
    model.set_attn_implementation("eager")
    weights = model(TOKENS, output_attentions=True).attentions
    for one, wanted in zip(layers, weights):
        torch.testing.assert_close(one.weights(), wanted, rtol=1e-5, atol=1e-6)
    attention, first = model.model.layers[0].self_attn, layers[0]
    x = model.model.layers[0].input_layernorm(model.model.embed_tokens(TOKENS))
    torch.testing.assert_close(first.q.flatten(2), attention.q_proj(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.k.flatten(2), attention.k_proj(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_kernels_are_scores_of_independent_pairs_put_apart():
    model = transport_values(llama())
    kernel, layer = inspect.kernels(model, TOKENS, reach=4)[0], inspect.attended(model, TOKENS)[0]
    omega = model.model.rotary_emb.inv_freq.double()
    for at, by in enumerate(kernel.displacements[0].tolist()):
        cos, sin = (by * omega).cos(), (by * omega).sin()
        k = layer.k.double().flatten(0, 1).repeat_interleave(2, 1)
        first, second = k.chunk(2, -1)
        k = torch.cat((cos * first - sin * second, sin * first + cos * second), -1)
        wanted = torch.einsum("ahd,bhd->hab", layer.q.double().flatten(0, 1), k).mean((1, 2)) / 2
        torch.testing.assert_close(kernel.values[:, at], wanted, rtol=1e-5, atol=1e-6)
    (one,) = inspect.frequencies(model)
    assert torch.equal(one.now.flatten(), omega)
    assert not one.learned
    travel = inspect.journey(model, TOKENS[:1], 2, 5)[1]
    torch.testing.assert_close(travel.angles, (-3 * omega).expand(4, -1), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_all_heads_off_is_the_model_without_transport():
    plain = llama()
    without, model = plain(TOKENS).logits, transport_values(llama())
    before = model(TOKENS).logits
    every = [(layer, head) for layer in range(2) for head in range(2)]
    with inspect.without_values(model, every):
        torch.testing.assert_close(model(TOKENS).logits, without, rtol=1e-4, atol=1e-4)
    assert (before - without).abs().max() > 1e-2
    assert torch.equal(model(TOKENS).logits, before)
    assert len(inspect.layers_with_values(model)) == 2
    assert inspect.layers_with_values(plain) == inspect.layers_with_values(transport_values(plain, 0.0)) == {}


@torch.no_grad()
def test_one_head_off_leaves_the_others():
    model = transport_values(llama(num_hidden_layers=1))
    seen = {}

    def of(*off):
        # What the projection's own class gets, R⁻¹ o, is inside it: its weights make it visible.
        with inspect.without_values(model, off):
            model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda _, __, out: seen.update(out=out))
            model(TOKENS)
        return seen["out"].unflatten(-1, (4, 4))

    model.model.layers[0].self_attn.o_proj.weight.copy_(torch.eye(16))
    both, first, none = of(), of((0, 0)), of((0, 0), (0, 1))
    torch.testing.assert_close(first[:, :, :2], none[:, :, :2])
    torch.testing.assert_close(first[:, :, 2:], both[:, :, 2:])
    assert (both - none)[:, 1:].abs().amax((0, 1, 3)).min() > 1e-3


def test_use_is_measured_on_tokens():
    model = transport_values(llama())
    use = inspect.value_use(model, inspect.token_measure(TOKENS.flatten().numpy(), context=4, count=3))
    assert [len(some) for some in (use.names, use.heads, use.layers)] == [2, 4, 2]
    assert use.loss.centre > 0
    assert use.whole.change.centre != 0


@torch.no_grad()
def test_a_model_without_rotary_positions_has_weights_alone():
    config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    (one,) = inspect.attended(model, TOKENS)
    assert one.frames is None
    torch.testing.assert_close(one.weights().sum(-1), torch.ones(2, 2, 10))
    assert inspect.kernels(model, TOKENS) == inspect.frequencies(model) == []
    assert inspect.journey(model, TOKENS[:1], 1, 4)[0].angles is None
    assert math.isclose(inspect.journey(model, TOKENS[:1], 1, 4)[0].row.sum().item(), 2.0, rel_tol=1e-5)
