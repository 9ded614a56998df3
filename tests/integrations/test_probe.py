"""Probing: once for all attentions that cannot differ, and for every one that may."""

import pytest
import torch
import transformers as T
from families import FAMILIES, GROUPED, answer, attentions, by_definition, of, plain, same
from torch import nn
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaAttention

from joformer.integrations import transport_values
from joformer.integrations._probing import signature_of
from joformer.integrations._record import transported


def deep(layers=6, name="LlamaForCausalLM", config="LlamaConfig", **more):
    return of(name, config, **{**GROUPED, "num_hidden_layers": layers}, **more)()


def calls(model, monkeypatch):
    """How many attentions are called while a model is probed, by their index."""
    seen = []
    for cls in {type(attention) for attention in attentions(model)}:

        def forward(self, *args, own=cls.forward, **kwargs):
            seen.append(self.layer_idx)
            return own(self, *args, **kwargs)

        forward.__wrapped__ = cls.forward
        monkeypatch.setattr(cls, "forward", forward)
    transport_values(model)
    return seen


def test_layers_of_one_class_are_probed_once(monkeypatch):
    seen = calls(deep(), monkeypatch)
    assert set(seen) == {0}
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("name", "more", "probed"),
    [
        ("SmolLM3", {"no_rope_layers": [1, 1, 0, 1, 1, 0]}, {0, 2}),
        ("Gemma3", {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"] * 3}, {0, 1}),
    ],
)  # fmt: skip
def test_layers_that_differ_are_probed_apart(name, more, probed, monkeypatch):
    config = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    model = deep(6, f"{name}ForCausalLM", config, **more)
    assert set(calls(model, monkeypatch)) == probed
    if name == "SmolLM3":
        names = [f"model.layers.{n}.self_attn" for n in (0, 1, 3, 4)]
        assert [entry["attentions"] for entry in transported(model)] == [names]


def test_layers_that_share_keys_and_values_are_all_probed(monkeypatch):
    from test_transport_families import gemma4

    assert set(calls(gemma4(4, num_kv_shared_layers=2)(), monkeypatch)) == {0, 1, 2, 3}


class ByIndex(LlamaAttention):
    """No attribute says which layers have positions: forward looks it up by the layer's index."""

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, **kwargs):
        cos, sin = position_embeddings
        if self.layer_idx in (1, 2):
            cos, sin = torch.ones_like(cos), torch.zeros_like(sin)
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)
        attend = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        out, weights = attend(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), weights


def test_a_layer_that_looks_its_index_up_is_probed_itself():
    family = FAMILIES["llama"]
    model = deep(4)
    for attention in attentions(model):
        attention.__class__ = ByIndex
    transport_values(model)
    assert [entry["attentions"] for entry in transported(model)] == [[f"model.layers.{n}.self_attn" for n in (0, 3)]]
    assert answer(model, family.inputs()).isfinite().all()


def test_one_odd_layer_among_many_is_found():
    """The same classes and shapes, but the keys of one layer are made by the projection of its values."""
    model = deep(4)
    attentions(model)[2].k_proj = attentions(model)[2].v_proj
    with pytest.raises(ValueError, match="keys or queries from the same numbers as its values"):
        transport_values(model)


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        (nn.Linear(2, 3), nn.Linear(2, 3), True),
        (nn.Linear(2, 3), nn.Linear(3, 2), False),
        (nn.Linear(2, 3), nn.Linear(2, 3, dtype=torch.float64), False),
        (nn.Sequential(nn.Dropout(0.1)), nn.Sequential(nn.Dropout(0.2)), False),
        (nn.Sequential(nn.ReLU(), nn.GELU()), nn.Sequential(nn.GELU(), nn.ReLU()), False),
        (nn.BatchNorm1d(2), nn.BatchNorm1d(2), True),
    ],
)  # fmt: skip
def test_signatures(one, two, equal):
    assert (signature_of(one) == signature_of(two)) is equal
    if equal:
        two.eval()
        assert signature_of(one) != signature_of(two)
        two.train()
        two.register_buffer("limit", torch.tensor([1.0]))
        one.register_buffer("limit", torch.tensor([2.0]))
        assert (signature_of(one) == signature_of(two)) is hasattr(one, "in_features")
        one.function, two.function = (lambda: 0), (lambda: 1)
        assert signature_of(one) != signature_of(two)


def test_many_layers_are_the_value_path_too():
    family = type(FAMILIES["llama"])(lambda: deep(5), same(plain(8, 10000.0)))
    twin, model = family.made(), transport_values(family.made(), 0.6)
    with torch.no_grad(), by_definition(twin, family, 0.6):
        assert torch.allclose(answer(model, family.inputs()), answer(twin, family.inputs()), atol=1e-4)
    assert isinstance(model, T.LlamaForCausalLM)
