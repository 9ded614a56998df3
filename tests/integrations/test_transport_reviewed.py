"""What could go wrong without a word: each of these once did, in a review."""

import numpy as np
import pytest
import torch
import transformers
from families import FAMILIES
from torch import nn

from joformer.integrations import Anneal, load, strength_of, transport_values

SIZE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
IDS = torch.arange(12).view(2, 6)


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE, num_key_value_heads=2)).eval()


def logits(model, **kwargs):
    with torch.no_grad():
        return model(IDS, use_cache=False, **kwargs).logits


@pytest.mark.refused
def test_a_gate_that_reads_the_hidden_states_after_attention_is_refused():
    config = transformers.LagunaConfig(
        **SIZE, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        pad_token_id=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="does something between attention and the output projection"):
        transport_values(transformers.LagunaForCausalLM(config))


@pytest.mark.refused
def test_keys_made_of_the_values_are_refused(monkeypatch):
    model = llama()
    for layer in model.model.layers:
        layer.self_attn.k_proj = layer.self_attn.v_proj
    with pytest.raises(ValueError, match="keys or queries from the same numbers as its values"):
        transport_values(model)


@pytest.mark.refused
def test_heads_repeated_before_attending_are_refused_in_a_line():
    model = transformers.DiffLlamaForCausalLM(transformers.DiffLlamaConfig(**SIZE, num_key_value_heads=2))
    with pytest.raises(ValueError, match="cannot transport its values"):
        transport_values(model)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
def test_projections_compiled_by_themselves_still_carry():
    torch._dynamo.reset()
    plain, model = logits(llama()), transport_values(llama())
    expected = logits(model)
    assert (expected - plain).abs().max() > 1e-3
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.compile(backend="eager")
    for _ in range(2):
        assert torch.allclose(logits(model), expected, atol=1e-6)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
def test_an_adapter_added_before_compiling_is_not_passed_over():
    from peft import LoraConfig, get_peft_model

    torch._dynamo.reset()
    model = llama()
    plain = logits(model)
    adapted = get_peft_model(transport_values(model), LoraConfig(target_modules=["v_proj", "o_proj"]))
    out = logits(torch.compile(adapted, backend="eager"))
    assert (out - plain).abs().max() > 1e-3
    assert torch.allclose(out, logits(adapted), atol=1e-6)


def test_the_best_weights_come_with_their_own_strength(tmp_path):
    class State:
        global_step, best_model_checkpoint = 20, str(tmp_path / "checkpoint-2")

    class Arguments:
        load_best_model_at_end = True

    model = llama()
    Anneal(10).on_train_end(Arguments, State, None, model=model)
    assert strength_of(model) == 0.1
    Arguments.load_best_model_at_end = False
    Anneal(10).on_train_end(Arguments, State, None, model=model)
    assert strength_of(model) == 1.0


def test_the_outer_model_is_marked_when_it_is_asked_for_later(tmp_path):
    model = llama()
    transport_values(model.model, 0.5)
    transport_values(model, 0.5).save_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"joformer\.integrations\.load"):
        transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    again, found = load(tmp_path, output_loading_info=True)
    assert not found["missing_keys"]
    assert torch.equal(logits(again), logits(model))
    transport_values(model, off=True)
    assert "save_pretrained" not in model.__dict__


def test_what_cannot_be_undone_is_not_half_undone():
    model = transport_values(llama())
    projection = model.model.layers[0].self_attn.v_proj
    nn.utils.parametrizations.weight_norm(projection)
    expected = logits(model)
    with pytest.raises(ValueError, match="changed its class since"):
        transport_values(model, off=True)
    assert torch.equal(logits(model), expected)
    nn.utils.parametrize.remove_parametrizations(projection, "weight")
    assert strength_of(transport_values(model, off=True)) is None


def test_a_replaced_embedding_is_not_passed_over():
    model = llama()
    plain, embedding = logits(model), model.model.rotary_emb
    transport_values(model)
    expected = logits(model)
    model.model.rotary_emb = type(embedding).__bases__[1](model.config)
    with pytest.raises(RuntimeError, match="got positions without a journey"):
        logits(model)
    assert torch.equal(logits(transport_values(model, 0)), plain)
    transport_values(transport_values(model, off=True))
    assert torch.equal(logits(model), expected)


def test_tables_scaled_afterwards_do_not_scale_values():
    model = transport_values(llama())
    model.model.rotary_emb.attention_scaling = 1.5
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        steps = [model(IDS[:, i : i + 1], past_key_values=cache, use_cache=True).logits for i in range(IDS.shape[1])]
    assert torch.allclose(torch.cat(steps, 1), logits(model), atol=1e-5)


def test_the_strength_is_what_was_said_whatever_the_defaults():
    expected = logits(transport_values(llama(), 0.3))
    model = llama()
    torch.set_default_dtype(torch.bfloat16)
    try:
        transport_values(model, 0.3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(logits(model), expected)


def test_a_call_that_died_leaves_nothing_behind():
    model = transport_values(llama())
    projection = model.model.layers[0].self_attn.v_proj
    x = torch.rand(2, 6, 32)
    expected = projection(x)
    handle = model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        logits(model)
    handle.remove()
    assert torch.equal(projection(x), expected)


@pytest.mark.refused
def test_other_bad_input_is_a_line():
    model = llama()
    with pytest.raises(ValueError, match="off must be True or False"):
        transport_values(model, off="no")
    assert strength_of(transport_values(model, np.float32(0.5))) == 0.5
    with pytest.raises(ValueError, match="start must be a finite number"):
        Anneal(10, start="a")
    assert Anneal(10, power=0.5)(-1) == 0


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.image])
def test_only_differences_of_positions_count(name):
    """Shifting every position shifts every frame alike: no journey changes. A frame not undone would show."""
    model = FAMILIES[name].made().eval()
    places = torch.arange(IDS.shape[1])[None]
    mask = torch.ones_like(IDS)

    def gap():
        one, two = (logits(model, position_ids=places + by, attention_mask=mask) for by in (0, 5))
        return (one - two).abs().max()

    before = gap()
    transport_values(model, 0.7)
    assert gap() < 10 * before + 2e-5
