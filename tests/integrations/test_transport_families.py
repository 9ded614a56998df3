"""Model families that independent checks broke: computed by the definition, or refused for the right reason."""

import pytest
import torch
import transformers as T
from families import GROUPED, VOCAB, Family, answer, by_definition, of, plain, same, trace

from joformer.integrations import strength_of, transport_values

CLOSE = {torch.float32: 2e-5, torch.float64: 8e-6}  # the models' own angles, norms and softmax are fp32 in both


def near(a, b, dtype=torch.float32, times=1.0):
    return bool((a - b).abs().max() <= times * CLOSE[dtype] * max(1.0, float(b.abs().max())))


MOE = {"num_experts": 2, "num_experts_per_tok": 1, "experts_implementation": "eager"}


def dbrx(clip):
    return lambda: T.DbrxForCausalLM(
        T.DbrxConfig(
            d_model=32, n_heads=4, n_layers=2, vocab_size=VOCAB, max_seq_len=64,
            attn_config={"clip_qkv": clip, "kv_n_heads": 2, "rope_theta": 100.0},
            ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1},
        )
    )  # fmt: skip


CLAMPED = {
    "olmo": lambda clip: of("OlmoForCausalLM", "OlmoConfig", **GROUPED, clip_qkv=clip),
    "olmoe": lambda clip: of("OlmoeForCausalLM", "OlmoeConfig", **GROUPED, **MOE, clip_qkv=clip),
    "dbrx": dbrx,
}
RIGHT = {
    "olmo": Family(CLAMPED["olmo"](None), same(plain(8, 10000.0))),
    "olmoe": Family(CLAMPED["olmoe"](None), same(plain(8, 10000.0))),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("strength", [1.0, 0.37])
def test_it_is_the_value_path(name, strength, dtype):
    """The definition rotates what the model's own code hands to attention: after clamps, norms and all."""
    family = RIGHT[name]
    twin, model, inputs = family.made(dtype), family.made(dtype), family.inputs(dtype=dtype)
    transport_values(model, strength)
    with torch.no_grad():
        ours, untouched = answer(model, inputs), answer(twin, inputs)
        with by_definition(twin, family, strength):
            expected = answer(twin, inputs)
    assert near(ours, expected, dtype)
    assert not near(ours, untouched, dtype, 100)


@pytest.mark.refused
@pytest.mark.parametrize("name", CLAMPED)
@pytest.mark.parametrize("clip", [0.5, 8.0, 30000.0])
def test_values_clamped_after_their_projection_are_refused(name, clip):
    model = CLAMPED[name](clip)()
    trail = trace(model)
    with pytest.raises(ValueError, match="between projecting its values and attending to them") as refusal:
        transport_values(model)
    assert "\n" not in str(refusal.value)
    assert "clamp" in str(refusal.value)
    assert strength_of(model) is None
    assert trace(model) == trail
