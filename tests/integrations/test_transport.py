"""Value transport in models of transformers: it is the value path, at 0 it is nothing, and it goes without a trace."""

import copy
import pickle
import threading

import pytest
import torch
import transformers as T
from families import FAMILIES, GROUPED, REQUIRED, TOKENS, VOCAB, answer, attentions, by_definition, trace
from torch import nn

from joformer.integrations import Anneal, load, strength_of, transport_values

CLOSE = {torch.float32: 5e-6, torch.float64: 2e-6}  # the models' own angles, norms and softmax are fp32 in both


def near(a, b, dtype=torch.float32, times=1.0):
    return bool((a - b).abs().max() <= times * CLOSE[dtype] * max(1.0, float(b.abs().max())))


def attended(model, inputs):
    """What goes into each attention and what comes out."""
    seen = []

    def note(module, args, kwargs, out):
        rest = {name: value for name, value in kwargs.items() if name != "position_embeddings"}
        seen.append((args, kwargs["position_embeddings"], rest, out[0]))

    handles = [m.register_forward_hook(note, with_kwargs=True) for m in attentions(model)]
    try:
        with torch.no_grad():
            logits = answer(model, inputs, **({} if "pixel_values" in inputs else {"use_cache": False}))
    finally:
        for handle in handles:
            handle.remove()
    return seen, logits


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("strength", [1.0, 0.37])
def test_every_attention_is_the_value_path(name, strength, dtype):
    family = FAMILIES[name]
    twin, model = family.made(dtype), transport_values(family.made(dtype), strength)
    inputs = family.inputs(dtype=dtype)
    ours, logits = attended(model, inputs)
    with by_definition(twin, family, strength), torch.no_grad():
        theirs, expected = attended(twin, inputs)
        for attention, (args, _, rest, out), (_, tables, plain, _) in zip(attentions(twin), ours, theirs):
            hidden = {"hidden_states": rest["hidden_states"]} if "hidden_states" in rest else {}
            single = attention(*args, **{**plain, **hidden, "position_embeddings": tables})[0]
            assert near(out, single, dtype)
    assert near(logits, expected, dtype, 4)
    with torch.no_grad():
        assert not near(logits, answer(twin, inputs), dtype, 1000)


@pytest.mark.parametrize("name", ["llama", "neox", "cohere", "dinov3"])
def test_in_double_precision_it_is_exact_in_the_models_own_angles(name, monkeypatch):
    """Against the definition in the angles the model itself has, which it keeps in fp32."""
    family = FAMILIES[name]
    twin, model = family.made(torch.float64), transport_values(family.made(torch.float64))
    inputs = family.inputs(dtype=torch.float64)
    ours, _ = attended(model, inputs)
    rotary = next(m for m in twin.modules() if hasattr(m, "inv_freq"))
    exact = family.frequencies(0)
    assert (rotary.inv_freq / exact - 1).abs().max() < 1e-6
    own = type(family)(family.build, lambda layer: rotary.inv_freq, **{
        key: getattr(family, key) for key in ("layout", "implementation", "image", "prefix")
    })  # fmt: skip

    def rounded(self, layer, positions):
        if not self.image:
            return (positions[..., None].float() * rotary.inv_freq.float()).double()
        rows, columns = (torch.arange(0.5, n) / n * 2.0 - 1.0 for n in (2, 3))
        turned = (2 * torch.pi * torch.cartesian_prod(rows, columns)[None, :, :, None] * rotary.inv_freq).flatten(-2)
        return torch.cat((turned.new_zeros(1, self.prefix, turned.shape[-1]), turned), 1).double()

    monkeypatch.setattr(type(family), "angles", rounded)
    with by_definition(twin, own, 1.0), torch.no_grad():
        theirs, _ = attended(twin, inputs)
        (args, _, rest, out), (_, tables, plain, _) = ours[0], theirs[0]
        hidden = {"hidden_states": rest["hidden_states"]} if "hidden_states" in rest else {}
        single = attentions(twin)[0](*args, **{**plain, **hidden, "position_embeddings": tables})[0]
    assert (out - single).abs().max() < 1e-11


@pytest.mark.parametrize("name", REQUIRED)
def test_gradients_are_those_of_the_value_path(name):
    family = FAMILIES[name]
    twin, model = family.made(torch.float64), transport_values(family.made(torch.float64), 0.37)
    inputs = family.inputs(dtype=torch.float64)
    weights = torch.randn(answer(model, inputs).shape, dtype=torch.float64)
    (answer(model, inputs) * weights).sum().backward()
    with by_definition(twin, family, 0.37):
        (answer(twin, inputs) * weights).sum().backward()
    expected = dict(twin.named_parameters())
    moved = 0
    for key, parameter in model.named_parameters():
        theirs = expected[key].grad
        assert (parameter.grad is None) == (theirs is None), key
        if theirs is not None:
            assert near(parameter.grad, theirs, torch.float64, 20), key
            moved += any(part in key for part in ("v_proj", "qkv", "query_key_value", "o_proj", "dense.weight"))
            if key.endswith("weight") and any(part in key for part in ("v_proj", "o_proj")):
                assert theirs.abs().max() > 0
    assert moved >= 4


@pytest.mark.parametrize("name", FAMILIES)
def test_at_strength_0_it_is_the_same_model_to_the_last_bit(name):
    family = FAMILIES[name]
    model, inputs = family.made(), family.inputs()
    before = answer(model, inputs)
    before.square().sum().backward()
    grads = {key: p.grad for key, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    trail = trace(model)
    for strength in (0.0, 0, -0.0):
        assert transport_values(model, strength) is model
        assert strength_of(model) == 0.0
        out = answer(model, inputs)
        assert torch.equal(out, before)
        out.square().sum().backward()
        for key, parameter in model.named_parameters():
            assert (parameter.grad is None) == (grads[key] is None)
            assert parameter.grad is None or torch.equal(parameter.grad, grads[key]), key
        model.zero_grad(set_to_none=True)
    transport_values(model, 1.0)
    assert not torch.equal(answer(model, inputs), before)
    assert list(model.state_dict()) == list(weights)
    assert transport_values(model, off=True) is model
    assert trace(model) == trail
    assert strength_of(model) is None
    assert torch.equal(answer(model, inputs), before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    transport_values(model, off=True)  # once more is nothing
    assert trace(model) == trail


@pytest.mark.parametrize("name", ["llama", "neox", "dinov3"])
@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_a_call_that_dies_halfway_leaves_nothing_behind(name, where):
    family = FAMILIES[name]
    model, inputs = family.made(), family.inputs()
    trail, before = trace(model), answer(model, inputs)
    transport_values(model, 1.0)
    full = answer(model, inputs)
    attention = attentions(model)[0]
    parts = dict(attention.named_children())
    output = parts["o_proj"] if "o_proj" in parts else parts["dense"]
    value = parts["v_proj"] if "v_proj" in parts else parts["query_key_value"]

    def die(*_):
        raise KeyboardInterrupt

    handles = {
        "before": lambda: [value.register_forward_pre_hook(die)],
        "between": lambda: [value.register_forward_hook(die)],
        "after": lambda: [output.register_forward_hook(die)],
    }[where]()
    with pytest.raises(KeyboardInterrupt):
        answer(model, inputs)
    handles[0].remove()
    assert torch.equal(answer(model, inputs), full)
    handles = [output.register_forward_pre_hook(die)]
    with pytest.raises(KeyboardInterrupt):
        answer(model, inputs)
    handles[0].remove()
    transport_values(model, 0.0)
    assert torch.equal(answer(model, inputs), before)
    transport_values(model, 1.0)
    handles = [output.register_forward_pre_hook(die)]
    with pytest.raises(KeyboardInterrupt):
        answer(model, inputs)
    handles[0].remove()
    transport_values(model, off=True)
    assert trace(model) == trail
    assert torch.equal(answer(model, inputs), before)


def test_two_models_keep_their_own_strength():
    family = FAMILIES["llama"]
    one, two, inputs = family.made(), family.made(), family.inputs()
    plain = answer(one, inputs)
    transport_values(one, 1.0)
    assert torch.equal(answer(two, inputs), plain)
    transport_values(two, 0.3)
    assert (strength_of(one), strength_of(two)) == (1.0, 0.3)
    full = answer(one, inputs)
    transport_values(two, off=True)
    assert torch.equal(answer(one, inputs), full)
    assert torch.equal(answer(two, inputs), plain)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "dinov3"])
def test_copies_are_transported_and_independent(name, again):
    family = FAMILIES[name]
    model, inputs = family.made(), family.inputs()
    plain, trail = answer(model, inputs), trace(model)
    transport_values(model, 0.5)
    half = answer(model, inputs)
    other = again(model)
    assert strength_of(other) == 0.5
    assert torch.equal(answer(other, inputs), half)
    transport_values(other, 1.0)
    assert strength_of(model) == 0.5
    assert torch.equal(answer(model, inputs), half)
    assert not torch.equal(answer(other, inputs), half)
    transport_values(other, off=True)
    assert torch.equal(answer(other, inputs), plain)
    assert trace(transport_values(model, off=True)) == trail
    classes = {name: part[:2] for name, part in trace(other).items()}
    assert classes == {name: part[:2] for name, part in trail.items()}


def test_modes_of_parts_are_kept_and_dropout_is_the_models():
    family = FAMILIES["llama"]
    model = family.made().train()
    model.model.layers[1].eval()
    model.model.layers[0].self_attn.v_proj.eval()
    modes = {name: m.training for name, m in model.named_modules()}
    dice = torch.get_rng_state()
    transport_values(model)
    assert {name: m.training for name, m in model.named_modules()} == modes
    assert torch.equal(torch.get_rng_state(), dice)


def test_what_the_rotary_embedding_remembers_is_not_touched():
    """Dynamic scaling keeps the frequencies of the longest text so far: looking must not make it forget."""
    family = FAMILIES["dynamic"]
    model, twin = family.made(), family.made()
    long = torch.arange(20)[None] % VOCAB
    with torch.no_grad():
        model(long)
        twin(long)
        transport_values(model, 0.0)
        assert torch.equal(answer(model, family.inputs()), answer(twin, family.inputs()))


def test_threads_do_not_meet():
    """A server may call one model from several threads, as it may the untouched one."""
    model = transport_values(FAMILIES["llama"].made())
    texts = [torch.randint(2, VOCAB, (1, tokens)) for tokens in (5, 9, 17, 33)]
    with torch.no_grad():
        expected = [answer(model, {"input_ids": text}) for text in texts]
    wrong = []

    def call(text, logits):
        for _ in range(15):
            try:
                with torch.no_grad():
                    if not near(answer(model, {"input_ids": text}), logits, times=10):
                        wrong.append("other logits")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=call, args=pair) for pair in zip(texts, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_model_and_the_model_inside_it_have_one_transport():
    family = FAMILIES["llama"]
    model, inputs = family.made(), family.inputs()
    plain = answer(model, inputs)
    transport_values(model, 0.5)
    half = answer(model, inputs)
    assert strength_of(model.model) == 0.5
    transport_values(model.model, 0.5)
    assert torch.equal(answer(model, inputs), half)
    transport_values(model.model, off=True)
    assert strength_of(model) is None
    assert torch.equal(answer(model, inputs), plain)


@pytest.mark.parametrize("name", ["longrope long", "dynamic"])
def test_looking_leaves_no_trace_in_a_fresh_model(name):
    model = FAMILIES[name].made()
    trail = trace(model)
    transport_values(model)
    transport_values(model, off=True)
    assert trace(model) == trail


def test_gauge_positions_may_start_anywhere():
    """Journeys are relative: shifting all positions changes nothing but rounding."""
    family = FAMILIES["llama"]
    model = transport_values(family.made())
    inputs = family.inputs()
    with torch.no_grad():
        at = torch.arange(TOKENS)[None]
        assert near(answer(model, inputs, position_ids=at + 50), answer(model, inputs), times=10)
        assert not near(answer(model, inputs, position_ids=2 * at), answer(model, inputs), times=1000)


def test_positions_of_each_row_are_its_own():
    family = FAMILIES["llama"]
    twin, model = family.made(), transport_values(family.made(), 0.37)
    inputs = family.inputs()
    at = torch.stack((torch.arange(TOKENS), torch.arange(TOKENS) ** 2))
    with torch.no_grad(), by_definition(twin, family, 0.37, at):
        assert near(answer(model, inputs, position_ids=at), answer(twin, inputs, position_ids=at), times=4)


@pytest.mark.parametrize("name", ["llama", "neox", "dinov3"])
def test_low_precision_rounds_values_but_not_angles(name):
    family = FAMILIES[name]
    model, low = transport_values(family.made()), transport_values(family.made().to(torch.bfloat16))
    inputs = family.inputs()
    places = {} if family.image else {"position_ids": torch.arange(TOKENS)[None] * 300}
    weights = {key: value.float() for key, value in low.state_dict().items()}
    model.load_state_dict(weights)
    with torch.no_grad():
        error = (first_attention(low, inputs, places).float() - first_attention(model, inputs, places)).abs().mean()
        transport_values(low, 0.0)
        transport_values(model, 0.0)
        usual = (first_attention(low, inputs, places).float() - first_attention(model, inputs, places)).abs().mean()
    assert 0 < error < 3 * usual  # two roundings more; angles of bf16 would be off by whole turns


def first_attention(model, inputs, places):
    seen = []
    handle = attentions(model)[0].register_forward_hook(lambda module, args, out: seen.append(out[0]))
    answer(model, inputs, **places)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gptoss"])
def test_attention_implementations_agree(name):
    family = FAMILIES[name]
    model, inputs = transport_values(family.made(), 0.7), family.inputs()
    with torch.no_grad():
        one = answer(model, inputs)
        model.set_attn_implementation("eager")
        assert near(answer(model, inputs), one, times=4)


def test_layers_without_positions_are_left_alone():
    family = FAMILIES["smollm3"]
    model = family.made()
    trail = trace(model)
    transport_values(model)
    now = trace(model)
    inside = [name for name in trail if ".layers.1." in name and not name.endswith("self_attn")]
    assert any(name.endswith("v_proj") for name in inside)
    assert all(now[name] == trail[name] for name in inside)
    assert any(now[name] != trail[name] for name in trail if ".layers.0." in name)


# Refusals ----------------------------------------------------------------------------------------------------------

MLA = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
NOT = {
    "GPT-2": (
        lambda: T.GPT2LMHeadModel(T.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2)),
        "rotary positions",
    ),
    "GPT-J": (
        lambda: T.GPTJForCausalLM(T.GPTJConfig(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, rotary_dim=8)),
        "position_embeddings",
    ),
    "latent": (lambda: T.DeepseekV3ForCausalLM(T.DeepseekV3Config(**MLA)), "between projecting its values"),
    "sections": (
        lambda: T.Qwen2VLForConditionalGeneration(
            T.Qwen2VLConfig(
                text_config={
                    **GROUPED,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [1, 1, 2]},
                },
                vision_config={"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32},
            )
        ),
        "RotaryEmbedding",
    ),
    "gated": (
        lambda: T.Qwen3NextForCausalLM(
            T.Qwen3NextConfig(
                **GROUPED,
                head_dim=16,
                layer_types=["linear_attention", "full_attention"],
                num_experts=2,
                num_experts_per_tok=1,
                moe_intermediate_size=16,
                shared_expert_intermediate_size=16,
                linear_num_value_heads=2,
                linear_num_key_heads=2,
                linear_key_head_dim=8,
                linear_value_head_dim=8,
            )
        ),
        "between attention and the output projection",
    ),
    "empty": (lambda: nn.Linear(2, 2), "rotary positions"),
}


@pytest.mark.refused
@pytest.mark.parametrize("name", NOT)
def test_what_cannot_be_done_is_refused_and_nothing_changes(name):
    build, missing = NOT[name]
    model = build()
    trail = trace(model) if hasattr(model, "config") else None
    with pytest.raises(ValueError, match=missing) as refusal:
        transport_values(model)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith(type(model).__name__)
    assert strength_of(model) is None
    transport_values(model, off=True)
    assert trail is None or trace(model) == trail


@pytest.mark.refused
def test_weights_must_be_there():
    with torch.device("meta"):
        model = FAMILIES["llama"].build()
    trail = trace(model)
    with pytest.raises(ValueError, match="meta device: load them first"):
        transport_values(model)
    assert trace(model) == trail


@pytest.mark.refused
@pytest.mark.parametrize("strength", [float("nan"), float("inf"), True, "1", None, 1j, [1.0], torch.tensor(1.0)])
def test_strength_is_a_number(strength):
    model = FAMILIES["llama"].made()
    trail = trace(model)
    with pytest.raises(ValueError, match="strength must be a finite number") as refusal:
        transport_values(model, strength)
    assert "\n" not in str(refusal.value)
    assert trace(model) == trail
    transport_values(model, 0.5)
    with pytest.raises(ValueError, match="strength"):
        transport_values(model, strength)
    assert strength_of(model) == 0.5


@pytest.mark.refused
@pytest.mark.parametrize("strength", [1.5, -0.1, 1 + 1e-9, 2])
def test_strengths_outside_0_to_1_must_be_asked_for(strength, tmp_path):
    model, inputs = FAMILIES["llama"].made(), FAMILIES["llama"].inputs()
    trail = trace(model)
    with pytest.raises(ValueError, match=r"strength must be from 0 \(none\) to 1 .* extrapolate=True") as error:
        transport_values(model, strength)
    assert "\n" not in str(error.value)
    assert trace(model) == trail
    with pytest.raises(ValueError, match="extrapolate must be True or False"):
        transport_values(model, strength, extrapolate=1)
    assert strength_of(transport_values(model, strength, extrapolate=True)) == strength
    model.save_pretrained(tmp_path)
    again = load(tmp_path)  # who saved it asked for it
    assert strength_of(again) == strength
    with torch.no_grad():
        assert torch.equal(answer(again, inputs), answer(model, inputs))


@pytest.mark.refused
def test_a_schedule_beyond_1_must_be_asked_for():
    for wrong in ({"start": -0.5}, {"end": 1.5}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} must be from 0 .* extrapolate=True"):
            Anneal(10, **wrong)
        Anneal(10, extrapolate=True, **wrong)
    assert Anneal(10, end=1.5, extrapolate=True)(5) == 0.75
    model = FAMILIES["llama"].made()

    class State:
        global_step = 10

    Anneal(10, end=1.5, extrapolate=True).on_step_begin(None, State, None, model=model)
    assert strength_of(model) == 1.5
    # Rounding never leads beyond: 1.0000000000000002 would raise in the last step.
    assert all(0 <= Anneal(7, start=n / 97, power=p)(7) <= 1 for n in range(98) for p in (0.3, 1.0, 2.0))


# Shown -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "smollm3", "dinov3"])
def test_a_model_shows_its_transport(name):
    model = FAMILIES[name].made()
    before = repr(model)
    assert "transport" not in before
    transport_values(model, 0.5)
    shown = [attention for attention in attentions(model) if "transport=0.5" in repr(attention)]
    assert shown == attentions(model)[: 1 if name == "smollm3" else None]  # whose second layer has no positions
    assert "transport=0.5" in repr(model)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(again) == repr(model)
    transport_values(model, 1)
    assert "transport=1\n" in repr(model)
    transport_values(model, off=True)
    assert repr(model) == before


def test_an_adapted_model_shows_its_transport():
    peft = pytest.importorskip("peft")
    model = transport_values(FAMILIES["llama"].made(), 0.25)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["v_proj", "o_proj"]))
    assert "transport=0.25" in repr(adapted)
    transport_values(adapted, off=True)
    assert "transport=" not in repr(adapted)


@pytest.mark.refused
@pytest.mark.parametrize("model", ["folder", None, FAMILIES, T.LlamaForCausalLM], ids=["str", "none", "dict", "class"])
def test_a_model_is_a_module(model):
    with pytest.raises(ValueError, match="model must be a torch module"):
        transport_values(model)
