"""Model families that independent checks broke: computed by the definition, or refused for the right reason."""

import functools

import pytest
import torch
import transformers as T
from families import BASE, FAMILIES, GROUPED, VOCAB, Family, answer, attentions, by_definition, of, plain, same, trace

from joformer.integrations import load, strength_of, transport_values

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
HUNDRED = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
KINDS = ["sliding_attention", "full_attention"]
GEMMA = {
    "head_dim": 8, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "sliding_window": 4,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1000.0},
    },
}  # fmt: skip


def of_kinds(layer):
    return plain(8, [50.0, 1000.0][layer % 2])


def gemma3n(shared):
    return of(
        "Gemma3nForCausalLM", "Gemma3nTextConfig", **{**GROUPED, "num_hidden_layers": 4}, **GEMMA, laurel_rank=4,
        num_kv_shared_layers=shared, layer_types=KINDS * 2, activation_sparsity_pattern=[0.0] * 4,
    )  # fmt: skip


def gemma4(layers, **more):
    return of(
        "Gemma4ForCausalLM", "Gemma4TextConfig", **{**GROUPED, "num_hidden_layers": layers}, **GEMMA,
        layer_types=KINDS * (layers // 2), **{"global_head_dim": 8, "num_kv_shared_layers": 0, **more},
    )  # fmt: skip


RIGHT = {
    "olmo": Family(CLAMPED["olmo"](None), same(plain(8, 10000.0))),
    "olmoe": Family(CLAMPED["olmoe"](None), same(plain(8, 10000.0))),
    # Norms of queries and keys that do not take other precisions than their own, and fused or partly rotated heads
    "stablelm": Family(
        of("StableLmForCausalLM", "StableLmConfig", **GROUPED, **PARTIAL, qk_layernorm=True), same(plain(4, 100.0))
    ),
    "phi": Family(of("PhiForCausalLM", "PhiConfig", **GROUPED, **PARTIAL, qk_layernorm=True), same(plain(4, 100.0))),
    "persimmon": Family(
        of("PersimmonForCausalLM", "PersimmonConfig", **BASE, **PARTIAL, qk_layernorm=True), same(plain(4, 100.0))
    ),
    # Attention that wants its positions too
    "ministral3": Family(
        of(
            "Ministral3ForCausalLM", "Ministral3Config", **GROUPED, head_dim=8,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0, "llama_4_scaling_beta": 0.5,
                             "original_max_position_embeddings": 3},
        ),
        same(plain(8, 100.0)),
    ),
    # Layers that are handed positions and do not read them
    "mllama": Family(
        of("MllamaForCausalLM", "MllamaTextConfig", **GROUPED, **HUNDRED, cross_attention_layers=[1]),
        same(plain(8, 100.0)),
        implementation="eager",  # the other is causal also where it looks at an image, if there is no mask
    ),
    "olmohybrid": Family(
        of(
            "OlmoHybridForCausalLM", "OlmoHybridConfig", **GROUPED, **HUNDRED,
            layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=2,
            linear_key_head_dim=8, linear_value_head_dim=8,
        ),
        same(plain(8, 100.0)),
    ),
    "minimax": Family(
        of(
            "MiniMaxForCausalLM", "MiniMaxConfig", **GROUPED, **HUNDRED, head_dim=8, block_size=4,
            layer_types=["linear_attention", "full_attention"], num_local_experts=2, num_experts_per_tok=1,
            experts_implementation="eager",
        ),
        same(plain(8, 100.0)),
    ),
    # A norm without weights on the values, and layers that take the values of an earlier one
    "gemma3n": Family(gemma3n(0), of_kinds),
    "gemma3n shared": Family(gemma3n(2), of_kinds),
    "gemma4": Family(gemma4(2), of_kinds),
    "gemma4 shared": Family(gemma4(4, num_kv_shared_layers=2), of_kinds),
    "gemma4 wider": Family(gemma4(2, global_head_dim=16), lambda layer: [plain(8, 50.0), plain(16, 1000.0)][layer]),
    # A norm of the output, head by head, and a gate after it
    "musespark": Family(
        of(
            "MuseSparkTextModel", "MuseSparkTextConfig", **GROUPED, **HUNDRED, head_dim=8, num_local_experts=2,
            num_experts_per_tok=1, moe_intermediate_size=16, moe_hidden_size=16, layer_rope_theta=[100.0, 0],
            experts_implementation="eager",
        ),
        lambda layer: [plain(8, 100.0), None][layer],
    ),
    # Infinity in their configuration
    "bamba": Family(
        of("BambaForCausalLM", "BambaConfig", **GROUPED, **PARTIAL, **MAMBA, attn_layer_indices=[1]),
        same(plain(4, 100.0)),
    ),
    "falcon-h1": Family(
        of(
            "FalconH1ForCausalLM", "FalconH1Config", **GROUPED, **HUNDRED, head_dim=8, mamba_d_ssm=32,
            **{**MAMBA, "mamba_n_heads": 4},
        ),
        same(plain(8, 100.0)),
    ),
    "granite hybrid": Family(
        of(
            "GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", **GROUPED, **HUNDRED, **MAMBA,
            layer_types=["mamba", "attention"], num_local_experts=2, num_experts_per_tok=1,
            shared_intermediate_size=32, position_embedding_type="rope", experts_implementation="eager",
        ),
        same(plain(8, 100.0)),
    ),
}  # fmt: skip
INFINITE = ["bamba", "falcon-h1", "granite hybrid"]


def inputs_of(name, dtype=torch.float32):
    more = {}
    if name == "mllama":
        seen = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        more["cross_attention_states"] = seen.to(dtype)
    return RIGHT[name].inputs(dtype=dtype) | more


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_the_value_path(name, dtype):
    """The definition rotates what the model's own code hands to attention: after clamps, norms and all."""
    family, strength = RIGHT[name], {torch.float32: 1.0, torch.float64: 0.37}[dtype]
    twin, model, inputs = family.made(dtype), family.made(dtype), inputs_of(name, dtype)
    transport_values(model, strength)
    with torch.no_grad():
        ours, untouched = answer(model, inputs), answer(twin, inputs)
        with by_definition(twin, family, strength):
            expected = answer(twin, inputs)
    assert near(ours, expected, dtype)
    assert not near(ours, untouched, dtype, 100)


@pytest.mark.refused
@pytest.mark.parametrize("name", CLAMPED)
@pytest.mark.parametrize("clip", [0.5, 30000.0])
def test_values_clamped_after_their_projection_are_refused(name, clip):
    model = CLAMPED[name](clip)()
    trail = trace(model)
    with pytest.raises(ValueError, match="between projecting its values and attending to them") as refusal:
        transport_values(model)
    assert "\n" not in str(refusal.value)
    assert "clamp" in str(refusal.value)
    assert strength_of(model) is None
    assert trace(model) == trail


@pytest.mark.parametrize("name", RIGHT)
def test_a_model_is_taken_in_bfloat16_as_in_float32(name):
    """And looked at without a change of its weights, its buffers or their precision."""
    family = RIGHT[name]
    full, model = family.made(), family.made().to(torch.bfloat16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trail = trace(model)
    transport_values(full), transport_values(model)
    found = [{key: getattr(m, "_spec", None) for key, m in each.named_modules()} for each in (full, model)]
    assert [described(its) for its in found[0].values()] == [described(its) for its in found[1].values()]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert trace(transport_values(model, off=True)) == trail


def described(its):
    """What was found of a part, but for the strength, which each model has of its own."""
    return its if not hasattr(its, "strength") else {**vars(its), "strength": None}


# MiniMax is left out: what it decodes step by step is not what it computes at once, transport or not.
DECODERS = ["ministral3", "olmohybrid", "gemma3n shared", "gemma4 shared", "gemma4 wider", "musespark"]


@pytest.mark.parametrize("name", DECODERS)
def test_one_token_at_a_time_is_the_whole(name):
    model, tokens = transport_values(RIGHT[name].made(), 0.6), RIGHT[name].inputs()["input_ids"]
    with torch.no_grad():
        whole = answer(model, {"input_ids": tokens}, use_cache=False)
        cache, steps = None, []
        for part in (tokens[:, :3], *tokens[:, 3:].split(1, 1)):
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits if "logits" in out else out.last_hidden_state)
    assert near(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("name", INFINITE)
def test_a_folder_with_infinity_in_its_configuration_is_loaded_back(name, tmp_path):
    model, inputs = transport_values(RIGHT[name].made(), 0.6), inputs_of(name)
    model.save_pretrained(tmp_path)
    again = load(tmp_path).eval()
    assert again.config.time_step_limit[1] == float("inf")
    assert strength_of(again) == 0.6
    with torch.no_grad():
        assert torch.equal(answer(again, inputs), answer(model, inputs))


LATENT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
SPEECH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
CODEC = {
    "model_type": "mimi", "upsample_groups": 8, "num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": 16,
    "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "num_quantizers": 2, **SPEECH,
}  # fmt: skip
PLAIN = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
WRONG = {
    "lasr": (
        lambda: T.LasrForCTC(
            T.LasrCTCConfig(
                vocab_size=VOCAB,
                encoder_config={**SPEECH, "num_key_value_heads": 4, "num_mel_bins": 8, "subsampling_conv_channels": 8},
            )
        ),
        "its LasrEncoder takes the tables of its rotary embedding apart",
    ),
    "kyutai": (
        lambda: T.KyutaiSpeechToTextForConditionalGeneration(
            T.KyutaiSpeechToTextConfig(
                **PLAIN, ffn_dim=48, head_dim=8, num_codebooks=2, codebook_vocab_size=16, audio_bos_token_id=16,
                audio_pad_token_id=17, pad_token_id=3, bos_token_id=1, codec_config=CODEC,
            )
        ),
        "its KyutaiSpeechToTextAttention takes the tables of its rotary embedding apart",
    ),
    "doge": (of("DogeForCausalLM", "DogeConfig", **GROUPED), "computes its mask from the same numbers as its values"),
    "deepseek v3.2": (
        of("DeepseekV32ForCausalLM", "DeepseekV32Config", **LATENT, index_n_heads=2, index_head_dim=16, index_topk=4),
        "DeepseekV32Attention does something between projecting its values",
    ),
    "deepseek v4": (
        of(
            "DeepseekV4ForCausalLM", "DeepseekV4Config", **PLAIN, head_dim=16, q_lora_rank=8, o_groups=2, o_lora_rank=8,
            n_routed_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
        ),
        "DeepseekV4Attention rotates its values already",
    ),
    "falcon": (of("FalconForCausalLM", "FalconConfig", **PLAIN), "does not go through transformers' attention"),
    "esm": (
        of("EsmForMaskedLM", "EsmConfig", **PLAIN, position_embedding_type="rotary", pad_token_id=0, mask_token_id=2),
        "leaves its output projection to another module",
    ),
    "keys for values": (
        gemma4(2, attention_k_eq_v=True, num_global_key_value_heads=2),
        "keys or queries from the same numbers as its values",
    ),
}  # fmt: skip


@pytest.mark.refused
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_what_cannot_be_done_is_refused_for_the_right_reason(name, precision):
    build, why = WRONG[name]
    model = build().to(precision)
    trail = trace(model)
    with pytest.raises(ValueError, match=why) as refusal:
        transport_values(model)
    assert "Error" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert trace(model) == trail


@pytest.mark.refused
def test_a_norm_with_weights_is_seen_before_it_is_trained():
    """At the start its weights are all one, and it would pass for one without."""
    model = gemma3n(0)()
    for layer in model.model.layers:
        layer.self_attn.v_norm = type(layer.self_attn.k_norm)(8)
    with pytest.raises(ValueError, match="between projecting its values and attending to them"):
        transport_values(model)


@pytest.mark.refused
def test_an_adapter_around_the_attention_is_refused():
    """peft's AdaptionPrompt takes the rotary tables apart itself."""
    peft = pytest.importorskip("peft")
    config = peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_layers=1, adapter_len=3)
    model = peft.get_peft_model(FAMILIES["llama"].made(), config)
    before = answer(model, FAMILIES["llama"].inputs())
    with pytest.raises(ValueError, match="AdaptedAttention around its LlamaAttention reads the rotary tables itself"):
        transport_values(model)
    assert torch.equal(answer(model, FAMILIES["llama"].inputs()), before)


@pytest.mark.refused
def test_weights_split_over_processes_are_refused():
    from torch import distributed
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    model = FAMILIES["llama"].made()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        whole, mesh = model.model.layers[0].self_attn.v_proj, init_device_mesh("cpu", (1,))
        whole.weight = torch.nn.Parameter(distribute_tensor(whole.weight.detach(), mesh, [Replicate()]))
        with pytest.raises(ValueError, match="weights are split over processes: transport"):
            transport_values(model)
    finally:
        distributed.destroy_process_group()


def test_undone_after_hooks_went_it_is_the_untouched_model():
    """accelerate leaves the forward it found on the module itself: it must not be ours."""
    hooks = pytest.importorskip("accelerate").hooks
    model, inputs = FAMILIES["llama"].made(), FAMILIES["llama"].inputs()
    with torch.no_grad():
        plain_ = answer(model, inputs)
        for part in model.modules():
            hooks.add_hook_to_module(part, hooks.AlignDevicesHook("cpu", io_same_device=True))
        transport_values(model)
        turned = answer(model, inputs)
        hooks.remove_hook_from_submodules(model)
        assert torch.equal(answer(model, inputs), turned)
        transport_values(model, off=True)
        assert torch.equal(answer(model, inputs), plain_)
        transport_values(model)  # and hooks that came and went before do not stand in its way
        assert torch.equal(answer(model, inputs), turned)
        assert torch.equal(answer(transport_values(model, off=True), inputs), plain_)


@pytest.mark.refused
def test_a_forward_put_on_a_part_is_still_refused():
    model = FAMILIES["llama"].made()
    attention = attentions(model)[0]
    own = attention.forward

    @functools.wraps(own)
    def forward(*args, **kwargs):
        return own(*args, **kwargs)

    attention.forward = forward
    with pytest.raises(ValueError, match="forward was replaced"):
        transport_values(model)
