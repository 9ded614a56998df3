"""Our language model in transformers: what its common tests of causal models check, for every variant of ours."""

import json
from itertools import pairwise

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, QuantizedCache, StaticCache

from joformer import positions
from joformer.attention import JourneyAttention
from joformer.frames import CumulativeFrames
from joformer.integrations.hf import _language as language
from joformer.integrations.hf import models
from joformer.models import JoFormerLM, LMConfig, save

VOCAB = 50
SMALL = {"vocab": VOCAB, "dim": 16, "layers": 3, "heads": 2}
VARIANTS = {
    "fixed": {},
    "scores": {"transport": "scores"},
    "values": {"transport": "values"},
    "none": {"transport": "none"},
    "learned": {"frames": "learned", "tied": False},
    "projected": {"frames": "projected", "projected_base": "learned"},
    "cumulative": {"frames": "cumulative"},
    "windows": {"pattern": "WFN", "window": 4},
    "several": {"frames": ("cumulative", "cumulative", "projected"), "pattern": "WFW", "window": 4},
}
EVERY = pytest.mark.parametrize("variant", VARIANTS)
SOME = pytest.mark.parametrize("variant", ["fixed", "several"])


def ours(variant="fixed", **changes):
    """A model none of whose weights is where it started: projectors that are zero would show nothing."""
    torch.manual_seed(1)
    model = JoFormerLM(LMConfig(**(SMALL | VARIANTS[variant] | changes)))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def theirs(variant="fixed", **changes):
    return models.JoFormerForCausalLM.from_joformer(ours(variant, **changes))


def some(batch=3, tokens=11, seed=2):
    return torch.randint(1, VOCAB, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def greedy(model, tokens, **how):
    return model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0, **how)


def close(a, b, atol=2e-5):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


@EVERY
def test_it_is_our_model_to_the_last_bit(variant):
    model, tokens = ours(variant), some()
    new = models.JoFormerForCausalLM.from_joformer(model)
    assert torch.equal(new(tokens).logits, model(tokens))
    assert torch.equal(new.to_joformer()(tokens), model(tokens))
    assert {name.removeprefix("model.") for name in new.state_dict()} == set(model.state_dict())
    assert new.config.to_joformer().letters == model.config.letters


@EVERY
def test_a_long_text_through_masks_is_what_it_is_through_blocks(variant):
    model, tokens = ours(variant), some(tokens=150)
    close(models.JoFormerForCausalLM.from_joformer(model)(tokens).logits, model(tokens))


@EVERY
@pytest.mark.parametrize("make", [DynamicCache, lambda config: StaticCache(config, max_cache_len=16)])
def test_cached_in_pieces_is_the_whole(variant, make):
    model, tokens = theirs(variant), some()
    cache, whole = make(config=model.config), model(tokens, use_cache=False)
    assert whole.past_key_values is None
    cuts = (0, 4, 7, 8, 9, 10, 11)
    with torch.no_grad():
        pieces = [model(tokens[:, a:b], past_key_values=cache).logits for a, b in pairwise(cuts)]
    close(torch.cat(pieces, 1), whole.logits)


@EVERY
@pytest.mark.parametrize("how", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_generation_with_every_cache_is_generation_without(variant, how):
    model, tokens = theirs(variant), some()
    expected = greedy(model, tokens, use_cache=False, **how)
    assert expected[:, 11:].unique().numel() > 3  # it says more than one thing
    assert torch.equal(greedy(model, tokens, cache_implementation="dynamic", **how), expected)
    assert torch.equal(greedy(model, tokens, cache_implementation="static", **how), expected)
    if "cumulative" not in model.config.frames:  # a cache that knows nothing of the model
        assert torch.equal(greedy(model, tokens, past_key_values=DynamicCache(), **how), expected)


@EVERY
def test_text_may_be_guessed_and_taken_back(variant):
    model, tokens = theirs(variant), torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 1, 2]])
    expected = greedy(model, tokens)
    assert torch.equal(greedy(model, tokens, prompt_lookup_num_tokens=3), expected)


@pytest.mark.parametrize(
    ("variant", "cache"),
    [*((variant, "dynamic") for variant in VARIANTS), ("fixed", "static"), ("several", "static"), ("several", False)],
)
def test_padding_to_the_left_changes_nothing(variant, cache):
    model, short, long = theirs(variant), some(1, 7), some(1, 11, seed=3)
    tokens = torch.cat((torch.cat((torch.zeros(1, 4, dtype=torch.long), short), 1), long))
    mask = (torch.arange(11) >= torch.tensor([[4], [0]])).long()
    how = {"use_cache": False} if not cache else {"cache_implementation": cache}
    new = greedy(model, tokens, attention_mask=mask, **how)[:, 11:]
    assert torch.equal(new[:1], greedy(model, short)[:, 7:])
    assert torch.equal(new[1:], greedy(model, long)[:, 11:])
    where = (mask.cumsum(-1) - 1).clamp(min=0)
    close(model(tokens, attention_mask=mask, position_ids=where).logits[:1, 4:], model(short).logits)


def test_padding_within_a_text_turns_nothing():
    """The running angle of cumulative frames passes over what is masked, wherever it stands."""
    model, tokens = theirs("cumulative"), some(1, 9)
    holes = torch.cat((tokens[:, :4], tokens[:, :3], tokens[:, 4:]), 1)
    mask = torch.tensor([[1] * 4 + [0] * 3 + [1] * 5])
    where = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(holes, attention_mask=mask, position_ids=where).logits
    close(torch.cat((logits[:, :4], logits[:, 7:]), 1), model(tokens).logits)


def test_cumulative_frames_tell_where_every_token_ended():
    module, x = CumulativeFrames(16, 8, heads=2), torch.randn(2, 5, 16)
    nn.init.normal_(module.projector.w2.weight)
    ends = module(positions.sequence(5), x, every=True).end
    assert ends.shape == (2, 5, 2, 4)
    for t in range(5):
        close(ends[:, t : t + 1], module(positions.sequence(t + 1), x[:, : t + 1]).end, atol=1e-6)


@SOME
def test_packed_texts_do_not_see_each_other(variant):
    model, one, two = theirs(variant), some(1, 5), some(1, 6, seed=3)
    where = torch.cat((torch.arange(5), torch.arange(6)))[None]
    packed = model(torch.cat((one, two), 1), position_ids=where, use_cache=False).logits
    close(packed, torch.cat((model(one).logits, model(two).logits), 1))


def test_sampling_draws_from_the_model():
    model, tokens = theirs(), some(1)
    torch.manual_seed(3)
    drawn = model.generate(tokens.expand(200, -1), max_new_tokens=1, do_sample=True, top_k=0, pad_token_id=0)[:, -1]
    likely = model(tokens).logits[0, -1].softmax(-1)
    often = drawn.bincount(minlength=VOCAB) / 200
    assert (often - likely).abs().sum() < (often - 1 / VOCAB).abs().sum()


FP8 = hasattr(transformers.cache_utils, "Fp8QuantizedLayer")  # the one that needs no package of its own


@pytest.mark.skipif(not FP8, reason="this transformers has no cache in fp8")
def test_quantised_cache():
    model, tokens = theirs(), some(1)
    new = greedy(model, tokens, cache_implementation="quantized", cache_config={"backend": "fp8"})
    assert new.shape == (1, 17)
    assert torch.equal(new[:, :12], greedy(model, tokens)[:, :12])


@SOME
def test_embeddings_in_place_of_tokens(variant):
    model, tokens = theirs(variant), some()
    embedded = model.get_input_embeddings()(tokens)
    assert torch.equal(model(inputs_embeds=embedded).logits, model(tokens).logits)
    assert torch.equal(greedy(model, None, inputs_embeds=embedded), greedy(model, tokens)[:, 11:])


@EVERY
def test_eager_attention_is_sdpa(variant):
    model, tokens = theirs(variant), some()
    expected = model(tokens).logits
    model.set_attn_implementation("eager")
    close(model(tokens).logits, expected)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:_compile flag:DeprecationWarning", "ignore:flex_attention called without")
def test_flex_attention_is_sdpa():
    model, tokens = theirs("several"), some()
    mask = (torch.arange(11) >= torch.tensor([[4], [0], [0]])).long()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # its kernels are torch's business
        expected = model(tokens, attention_mask=mask).logits
        model.set_attn_implementation("flex_attention")
        close(model(tokens, attention_mask=mask).logits[mask.bool()], expected[mask.bool()])


@SOME
def test_hidden_states_and_attentions(variant):
    model, tokens = theirs(variant), some()
    model.set_attn_implementation("eager")
    out = model(tokens, output_hidden_states=True, output_attentions=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(3, 11, 16)] * 4
    assert torch.equal(model.model.head(out.hidden_states[-1]), out.logits)
    assert [tuple(a.shape) for a in out.attentions] == [(3, 2, 11, 11)] * 3
    for layer, weights in enumerate(out.attentions):
        close(weights.sum(-1), torch.ones(3, 2, 11))
        window = 4 if "sliding" in model.config.layer_types[layer] else 11
        seen = torch.ones(11, 11).tril().triu(1 - window)
        assert torch.equal(weights[0, 0] > 0, seen.bool())
    for kept in (out.hidden_states[0], out.attentions[0]):
        kept.retain_grad()
    out.logits.sum().backward()
    assert out.hidden_states[0].grad.abs().sum() > 0
    assert out.attentions[0].grad.abs().sum() > 0
    plain = model(tokens, return_dict=False)
    assert isinstance(plain, tuple)
    assert torch.equal(plain[0], out.logits)


def test_the_loss_is_that_of_the_next_token():
    model, tokens = ours(), some()
    new, labels = models.JoFormerForCausalLM.from_joformer(model), tokens.clone()
    labels[0, 5:] = -100
    expected = model(tokens[:, :-1], targets=labels[:, 1:])
    close(new(tokens, labels=labels).loss, expected)
    counted = (labels[:, 1:] != -100).sum()
    close(new(tokens, labels=labels, num_items_in_batch=2 * counted).loss, expected / 2)
    assert torch.equal(new(tokens, logits_to_keep=2).logits, new(tokens).logits[:, -2:])
    assert torch.equal(new(tokens, logits_to_keep=torch.tensor([1, 3])).logits, new(tokens).logits[:, [1, 3]])


def gradients(model, tokens):
    torch.manual_seed(5)
    model.train().zero_grad()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("variant", "how"),
    [
        *((variant, {}) for variant in VARIANTS),
        ("several", {"gradient_checkpointing_kwargs": {"use_reentrant": True}}),
        ("learned", {"every_n_layers": 2}),
    ],
)
def test_checkpointed_gradients_are_the_same(variant, how):
    model, tokens = theirs(variant, dropout=0.1), some()
    loss, expected = gradients(model, tokens)
    assert all(g.abs().sum() > 0 for g in expected.values())
    calls = []
    model.model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.gradient_checkpointing_enable(**how)
    again, found = gradients(model, tokens)
    assert len(calls) == 2  # once more in the backward pass
    assert torch.equal(loss, again)
    for name, gradient in expected.items():
        close(found[name], gradient, atol=1e-6)
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


@EVERY
def test_saved_and_loaded_it_is_the_same(variant, tmp_path):
    model, tokens = theirs(variant), some()
    model.save_pretrained(tmp_path)
    again, about = models.JoFormerForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not again.training
    for (name, weight), (its_name, its) in zip(model.state_dict().items(), again.state_dict().items()):
        assert name == its_name
        assert torch.equal(weight, its), name
    assert list(again.buffers()) == list(model.buffers()) == []
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert (again.model.head.weight is again.model.embed.weight) == model.config.tied
    assert again.config.to_joformer() == model.config.to_joformer()


def test_saved_in_shards(tmp_path):
    model, tokens = theirs("several"), some()
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits, model(tokens).logits)


def test_auto_classes(tmp_path):
    models.register()
    theirs("windows").save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, models.JoFormerConfig)
    assert config.layer_types == ["sliding_attention", "full_attention", "full_attention"]
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path), models.JoFormerForCausalLM)


def test_the_configuration_has_both_names(tmp_path):
    config = models.JoFormerConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, base=500)
    assert config.to_joformer() == LMConfig(vocab=60, dim=32, layers=2, heads=4, hidden=128, base=500.0)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (60, 32, 128)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["rope_parameters"]["rope_theta"] == 500.0
    assert models.JoFormerConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    assert models.JoFormerConfig(rope_parameters={"rope_type": "default", "rope_theta": 7.0}).to_joformer().base == 7.0


@EVERY
def test_bfloat16_leaves_frames_exact(variant, tmp_path):
    model = theirs(variant)
    model.save_pretrained(tmp_path)
    low = models.JoFormerForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    kept = dict(model.named_parameters())
    for name, p in low.named_parameters():
        exact = ".frames." in name
        assert p.dtype == (torch.float32 if exact else torch.bfloat16), name
        assert not exact or torch.equal(p, kept[name])
    assert {p.dtype for p in low.to(torch.float16).model.frames.parameters()} <= {torch.float32}
    tokens = some()
    logits = low.to(torch.bfloat16)(tokens).logits
    assert logits.dtype == torch.bfloat16
    close(logits.float(), model(tokens).logits, atol=0.3)


@EVERY
def test_it_starts_as_our_model_does(variant):
    config = SMALL | VARIANTS[variant] | {"dim": 64, "vocab": 200}
    model, new = JoFormerLM(LMConfig(**config)), models.JoFormerForCausalLM(models.JoFormerConfig(**config))
    mine, its = dict(model.named_parameters()), dict(new.model.named_parameters())
    assert mine.keys() == its.keys()
    for name, weight in mine.items():
        assert weight.dtype == its[name].dtype
        if weight.std() < 1e-6 or "frequencies" in name:  # norms, biases that are zero, zeroed projectors, spectra
            assert torch.equal(weight, its[name]), name
        else:
            close(its[name].mean(), weight.mean(), atol=4 * (weight.std() / weight.numel() ** 0.5).item())
            assert abs(its[name].std() / weight.std() - 1) < 4 / weight.numel() ** 0.5, name
            assert 0.6 < its[name].abs().max() / weight.abs().max() < 1.6, name


@pytest.mark.parametrize("variant", ["fixed", "projected", "cumulative", "learned"])
def test_weights_that_a_folder_lacks_start_as_ours_do(variant, tmp_path):
    from safetensors.torch import load_file, save_file

    model = theirs(variant)
    model.save_pretrained(tmp_path)
    state, path = load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors"
    gone = {name for name in state if name.endswith(("w2.weight", "qkv.weight"))}
    save_file({name: value for name, value in state.items() if name not in gone}, path, {"format": "pt"})
    again, about = models.JoFormerForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert about["missing_keys"] == gone
    for name, weight in again.named_parameters():
        if name.endswith("w2.weight"):
            assert weight.abs().max() == 0
        elif name in gone:
            assert 0.05 < weight.std() < 0.25
        else:
            assert torch.equal(weight, state[name]), name


@torch.no_grad()
@pytest.mark.parametrize("variant", ["fixed", "learned"], ids=["tied", "untied"])
def test_more_and_fewer_tokens(variant, tmp_path):
    model, tokens = theirs(variant), some()
    before = model(tokens).logits
    model.resize_token_embeddings(60, mean_resizing=False)
    after = model(tokens).logits
    assert after.shape[-1] == model.config.vocab_size == model.config.to_joformer().vocab == 60
    assert torch.equal(after[..., :50], before)
    assert model.get_input_embeddings().weight[50:].std() < 0.04
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == model.config.tied
    model.save_pretrained(tmp_path)
    assert torch.equal(models.JoFormerForCausalLM.from_pretrained(tmp_path)(tokens).logits, after)
    assert torch.equal(model.to_joformer()(tokens), after)
    model.resize_token_embeddings(40)
    with torch.enable_grad():
        model(tokens % 40, labels=tokens % 40).loss.backward()
    assert model.get_input_embeddings().weight.grad.shape == (40, 16)


@pytest.mark.parametrize("variant", ["fixed", "learned", "projected", "cumulative", "windows"])
def test_training_lowers_the_loss(variant):
    model, tokens = models.JoFormerForCausalLM(models.JoFormerConfig(**(SMALL | VARIANTS[variant]))).train(), some()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(12):
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_the_trainer(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = models.JoFormerForCausalLM(models.JoFormerConfig(**SMALL, frames="learned"))
    rows = [{"input_ids": row, "labels": row} for row in some(16, 8)]
    before = model(some(16, 8), labels=some(16, 8)).loss.item()
    arguments = TrainingArguments(
        output_dir=tmp_path, max_steps=6, per_device_train_batch_size=8, learning_rate=0.05, report_to="none",
        use_cpu=True, gradient_checkpointing=True, save_steps=6, logging_steps=3, disable_tqdm=True,
        dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    after = models.JoFormerForCausalLM.from_pretrained(tmp_path / "checkpoint-6")
    assert after(some(16, 8), labels=some(16, 8)).loss.item() < before - 0.3


def test_pipeline():
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, pipeline

    plain = Tokenizer(WordLevel({"?": 0} | {str(n): n for n in range(1, VOCAB)}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer, model = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?", pad_token="?"), theirs("several")
    tokenizer.padding_side = "left"
    speak = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    model.generation_config.max_length = None
    said = speak(["3 1 4", "1 5 9 2 6"], max_new_tokens=3, do_sample=False, batch_size=2, return_full_text=False)
    for text, (one,) in zip(("3 1 4", "1 5 9 2 6"), said):
        tokens = torch.tensor([[int(word) for word in text.split()]])
        expected = model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
        assert [int(word) for word in one["generated_text"].split()] == expected[0, -3:].tolist()


@pytest.mark.compiled
@pytest.mark.parametrize("variant", ["fixed", "cumulative"])
def test_compiled_whole(variant):
    model, tokens = theirs(variant, layers=2), some(2, 8)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        fast = torch.compile(model, fullgraph=True, backend="eager")
        if variant == "fixed":
            close(fast(tokens, use_cache=False).logits, expected)
            return
        cache = StaticCache(model.config, max_cache_len=12)
        model(tokens[:, :6], past_key_values=cache)
        for t in range(6, 8):
            close(fast(tokens[:, t : t + 1], past_key_values=cache).logits[:, 0], expected[:, t])


def test_from_a_folder_with_its_results(tmp_path):
    model = ours("cumulative")
    save(model, tmp_path)
    new = models.JoFormerForCausalLM.from_joformer(tmp_path, eos_token_id=7)
    assert new.config.results is None
    assert new.generation_config.eos_token_id == 7
    assert torch.equal(new(some()).logits, model(some()))
    lines = [{"step": 1, "loss": 4.0}, {"step": 5, "loss": 3.0, "bits_per_byte": 1.25}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    new = models.JoFormerForCausalLM.from_joformer(tmp_path)
    assert new.config.results == {tmp_path.name: {"loss": 3.0, "bits_per_byte": 1.25}}


def test_the_card(tmp_path):
    model = theirs("windows")
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- joformer\n")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    assert "pattern WFN (W within 4 tokens)" in card
    assert "No results were recorded" in card
    (tmp_path / "README.md").write_text("mine")
    model.config.results = {"enwik8": {"bits per byte": 1.234567, "steps": 5}, "other": {"loss": 2.0}}
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    (tmp_path / "README.md").unlink()
    model.save_pretrained(tmp_path)
    assert "| enwik8 | 1.2346 | 5 |  |\n| other |  |  | 2 |\n" in (tmp_path / "README.md").read_text()
    again = models.JoFormerForCausalLM.from_pretrained(tmp_path)
    assert again.config.results == model.config.results
    assert "value-transport" not in models.model_card(theirs("scores"))


@pytest.mark.refused
def test_what_cannot_be_is_refused_in_a_line():
    model, tokens = theirs("cumulative"), some()
    stretched = {"rope_type": "linear", "factor": 2.0}
    cases = [
        (lambda: model(tokens, past_key_values=DynamicCache()), "DynamicCache.config=model.config."),
        (lambda: QuantizedCache("fp8", model.config), "only full attention layers" if FP8 else "fp8"),
        (lambda: model(tokens, output_attentions=True), "set_attn_implementation.'eager'."),
        (model, "input_ids or inputs_embeds"),
        (lambda: model(tokens, inputs_embeds=torch.zeros(3, 11, 16)), "not both"),
        (lambda: model(tokens, past_key_values=((tokens, tokens),)), "must be a Cache"),
        (
            lambda: models.JoFormerConfig(rope_parameters=stretched),
            "'rope_type': 'default'",
        ),
        (lambda: models.JoFormerConfig(pattern="W"), "say window=32"),
        (lambda: models.JoFormerConfig(frames="none"), "frames must be one of"),
        (lambda: models.JoFormerForCausalLM.from_joformer(nn.Linear(2, 2)), "built from a JoFormerLM, got Linear"),
    ]
    for call, said in cases:
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
    model.gradient_checkpointing_enable()
    model.train()
    with pytest.raises(ValueError, match="set use_cache=False"):
        model(tokens, use_cache=True)
    attention = JourneyAttention(16, 2)
    with pytest.raises(ValueError, match="inner handles masks"):
        attention(torch.zeros(1, 3, 16), None, mask=torch.ones(3, 3).bool(), inner=lambda q, k, v: q)


def test_the_checks_can_fail(monkeypatch):
    """A running angle that begins anew at every step is seen in what is generated."""
    model, tokens = theirs("cumulative"), some()
    expected = greedy(model, tokens, use_cache=False)
    anew = lambda frames, layer, x: frames.modules[layer](frames.positions, x)  # noqa: E731
    monkeypatch.setattr(language._CachedFrames, "by_content", anew)
    assert not torch.equal(greedy(model, tokens), expected)


def test_cumulative_frames_with_a_cache_raise_in_training_where_their_gradients_would_be_lost():
    model = models.JoFormerForCausalLM(
        models.JoFormerConfig(vocab=50, dim=32, layers=2, heads=2, frames="cumulative")
    ).train()
    tokens = torch.randint(50, (2, 8))
    cache = model(tokens[:, :5], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="do not carry the gradients of cumulative angles"):
        model(tokens[:, 5:], past_key_values=cache)
    with torch.no_grad():
        cache = model(tokens[:, :5], use_cache=True).past_key_values
        model.eval()
        assert torch.allclose(
            model(tokens[:, 5:], past_key_values=cache).logits, model(tokens).logits[:, 5:], atol=1e-5
        )


@pytest.mark.parametrize("transport", ["none", "scores", "values", "both"])
def test_it_shows_its_transport(transport):
    config = models.JoFormerConfig(**SMALL, transport=transport)
    for cls in (models.JoFormerForCausalLM, models.JoFormerModel):
        assert repr(cls(config)).count(f"transport={transport!r}") == 1  # of 3 x Block
