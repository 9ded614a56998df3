"""Transport in a part of a model: what was asked for is what rotates, what is saved, and what comes back."""

import copy
import json

import pytest
import torch
import transformers as T
from families import FAMILIES, answer
from torch import nn
from torch.nn import functional as F

from joformer.integrations import load, strength_of, transport_values
from joformer.integrations._record import transported

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
IDS = torch.arange(1, 13).view(2, 6)
ENCODER, DECODER = ([f"model.{side}.layers.{n}.self_attn" for n in (0, 1)] for side in ("encoder", "decoder"))


def towers(dtype=torch.float32):
    """An encoder and a decoder, each with rotary positions of its own."""
    torch.manual_seed(0)
    side = dict(SHAPE, sliding_window=8, query_pre_attn_scalar=8)
    config = T.T5GemmaConfig(encoder=dict(side), decoder=dict(side), vocab_size=64, pad_token_id=0)
    model = T.T5GemmaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model.to(dtype).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, decoder_input_ids=IDS, use_cache=False).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_whole_after_a_part_is_the_whole(dtype):
    plain, part = towers(dtype), towers(dtype)
    whole = logits(transport_values(towers(dtype), 0.7))
    transport_values(part.model.encoder, 0.7)
    half = logits(part)
    assert strength_of(part) == 0.7
    assert (half - logits(plain)).abs().max() > 1e-3
    assert (half - whole).abs().max() > 1e-3
    transport_values(part, 0.7)
    assert torch.equal(logits(part), whole)
    assert [entry["attentions"] for entry in transported(part)] == [[*ENCODER, *DECODER]]
    transport_values(part, off=True)
    assert torch.equal(logits(part), logits(plain))
    assert strength_of(part) is strength_of(part.model.encoder) is None
    assert not any("joformer" in key for module in part.modules() for key in module.__dict__)


def test_both_parts_then_the_whole():
    model = towers()
    transport_values(model.model.encoder, 0.3)
    transport_values(model.model.decoder, 0.6)
    with pytest.raises(ValueError, match=r"have the strengths \[0\.3, 0\.6\]"):
        strength_of(model)
    assert (strength_of(model.model.encoder), strength_of(model.model.decoder)) == (0.3, 0.6)
    assert torch.equal(logits(transport_values(model, 0.7)), logits(transport_values(towers(), 0.7)))
    assert strength_of(model) == strength_of(model.model.decoder) == 0.7


@pytest.mark.parametrize("sides", [["encoder"], ["decoder"], ["encoder", "decoder"]])
def test_what_is_saved_of_parts_comes_back(sides, tmp_path):
    model = towers()
    for number, side in enumerate(sides):
        transport_values(getattr(model.model, side), 0.3 * (number + 1))
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())["joformer"]["transported"]
    names = {"encoder": ENCODER, "decoder": DECODER}
    assert written == sorted(
        (
            {"part": f"model.{side}", "strength": 0.3 * (number + 1), "attentions": names[side]}
            for number, side in enumerate(sides)
        ),
        key=lambda entry: entry["part"],
    )
    with pytest.raises(Exception, match=r"joformer\.integrations\.load"):
        T.T5GemmaForConditionalGeneration.from_pretrained(tmp_path)
    back = load(tmp_path)
    assert transported(back) == written
    assert torch.equal(logits(back), logits(model))


def test_a_part_of_the_whole_is_saved_as_what_it_is(tmp_path):
    model = transport_values(FAMILIES["llama"].made(), 0.8)
    model.model.save_pretrained(tmp_path)
    back, inputs = load(tmp_path), FAMILIES["llama"].inputs()
    with torch.no_grad():
        assert torch.equal(answer(back, inputs), answer(model.model, inputs))
    # A copy of the part is transported as the part was, and does not bring the rest along.
    part = copy.deepcopy(model.model)
    with torch.no_grad():
        assert torch.equal(answer(part, inputs), answer(model.model, inputs))
    transport_values(part, 0.1)
    assert (strength_of(part), strength_of(model)) == (0.1, 0.8)
    attention = part.layers[0].self_attn
    assert all(held.lm_head is not model.lm_head for held in attention.__dict__.values() if hasattr(held, "lm_head"))


@pytest.mark.refused
def test_names_that_do_not_fit_are_one_line(tmp_path):
    transport_values(FAMILIES["llama"].made(), 0.8).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    entry = config["joformer"]["transported"][0]
    for changes, because in (
        ({"part": "model.nowhere"}, "has no such part"),
        ({"part": "model.layers.0"}, "cannot transport"),
        ({"attentions": entry["attentions"][:1]}, "names attention layers that differ"),
        ({"attentions": ["model.layers.0.attn"]}, "names attention layers that differ"),
        ({"strength": "1"}, "is damaged"),
        ({"strength": float("nan")}, "strength must be a finite number"),
        ({"attentions": None}, "is damaged"),
        ({"part": 3}, "is damaged"),
        ({"more": 3}, "is damaged"),
    ):
        config["joformer"]["transported"] = [{**entry, **changes}]
        path.write_text(json.dumps(config))
        with pytest.raises(ValueError, match=because) as refusal:
            load(tmp_path)
        assert "\n" not in str(refusal.value)


@pytest.mark.refused
def test_a_part_of_what_is_transported_cannot_be_changed_by_itself():
    model = transport_values(towers(), 0.5)
    before = logits(model)
    for change in ({"strength": 0.2}, {"off": True}):
        with pytest.raises(ValueError, match="is part of a model whose values are transported as a whole"):
            transport_values(model.model.encoder, **change)
    assert torch.equal(logits(model), before)
    assert strength_of(model) == 0.5


@pytest.mark.refused
def test_a_whole_that_is_refused_leaves_its_part():
    """The decoder makes its keys of its values, which is refused: the encoder keeps what it has."""
    model = towers()
    for layer in model.model.decoder.layers:
        layer.self_attn.k_proj = layer.self_attn.v_proj
    plain = logits(model)
    transport_values(model.model.encoder, 0.5)
    before, entries = logits(model), transported(model)
    with pytest.raises(ValueError, match="keys or queries from the same numbers as its values"):
        transport_values(model, 0.9)
    assert torch.equal(logits(model), before)
    assert transported(model) == entries
    assert strength_of(model) == strength_of(model.model.encoder) == 0.5
    transport_values(model.model.encoder, 0.1)
    assert strength_of(model) == 0.1
    transport_values(model, off=True)
    assert strength_of(model.model.encoder) is None
    assert torch.equal(logits(model), plain)


def test_a_wrapper_does_not_keep_what_was_undone_inside():
    class Wrapper(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.inner = model

    outer = Wrapper(FAMILIES["llama"].made())
    transport_values(outer, 0.5)
    transport_values(outer.inner, off=True)
    assert strength_of(outer) is None
    transport_values(outer, 0.25)
    assert strength_of(outer.inner) == 0.25


# -- a model that is marked and does not rotate ------------------------------------------------------------------------


def bypassing(names):
    """LlamaAttention, in which some of its projections are products with weights that are read and not called."""
    call = nn.Module.__call__

    def project(module, x):
        return F.linear(x, module.weight)

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        used = {n: (project if n in names else call) for n in ("q_proj", "k_proj", "v_proj", "o_proj")}
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (used[n](getattr(self, n), hidden_states).view(shape).transpose(1, 2) for n in list(used)[:3])
        cos, sin = position_embeddings
        q, k = T.models.llama.modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return used["o_proj"](self.o_proj, out.transpose(1, 2).flatten(2)), None

    return forward


@pytest.mark.refused
@pytest.mark.parametrize(
    "names", [["q_proj", "k_proj"], ["v_proj"], ["o_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"]]
)
def test_a_kernel_that_goes_past_the_projections_is_noticed(names, monkeypatch):
    model, inputs = FAMILIES["llama"].made(), FAMILIES["llama"].inputs()
    attention = type(model.model.layers[0].self_attn)
    expected, plain = answer(transport_values(copy.deepcopy(model), 0.8), inputs), answer(model, inputs)
    transport_values(model, 0.8)
    monkeypatch.setattr(attention, "forward", bypassing(names))
    if set(names) <= {"q_proj", "k_proj"}:
        assert torch.allclose(answer(model, inputs, use_cache=False), expected, atol=1e-5)
        return
    for _ in range(2):
        with pytest.raises(RuntimeError, match="its values were not rotated: a fused kernel read their weights"):
            answer(model, inputs, use_cache=False)
    transport_values(model, 0.0)
    assert torch.allclose(answer(model, inputs, use_cache=False), plain, atol=1e-5)
    monkeypatch.undo()
    transport_values(model, 0.8)
    assert torch.equal(answer(model, inputs), expected)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
def test_a_kernel_that_goes_past_the_projections_is_noticed_when_compiled(monkeypatch):
    torch._dynamo.reset()
    model, inputs = FAMILIES["llama"].made(), FAMILIES["llama"].inputs()
    del model.model.layers[1]  # half the time
    transport_values(model, 0.8)
    monkeypatch.setattr(T.models.llama.modeling_llama.LlamaAttention, "forward", bypassing(["v_proj"]))
    with pytest.raises(Exception, match="its values were not rotated"):
        answer(torch.compile(model, backend="eager"), inputs, use_cache=False)
