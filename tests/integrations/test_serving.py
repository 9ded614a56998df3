"""What servers do to a model of transformers (vLLM's and SGLang's backends for it), imitated.

AutoModel builds it on the meta device; linear layers are replaced; every call is one row with tokens of several
requests, chunks of a prompt and single tokens side by side; attention keeps the keys and returns (tokens, heads · dim).
"""

import pytest
import torch
import transformers as T
from torch import nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from joformer.integrations import JoFormerConfig, JoFormerForCausalLM, JoFormerModel

NAME = "served"
SIZES = {"vocab": 50, "dim": 32, "layers": 2, "heads": 2}
VARIANTS = {
    "fixed": {"frames": "fixed"},
    "learned": {"frames": "learned"},
    "projected": {"frames": "projected"},
    "scores": {"transport": "scores"},
    "windows": {"pattern": "WF", "window": 4},
}
STEPS = ([("a", 4), ("b", 3)], [("b", 2), ("a", 1)], [("a", 2)], [("b", 1), ("a", 1), ("c", 5)])
"""Which requests have how many tokens in which call, in that order."""


def attend(module, query, key, value, attention_mask, scaling=None, attention_instances=None, flat=True, **options):
    """(1, heads, tokens, dim) of all requests → (tokens, heads · dim); the keys of each are kept, by layer."""
    assert attention_mask is None
    kept, window = attention_instances[module.layer_idx], options.get("sliding_window")
    out, at = [], 0
    for name, count in attention_instances["calls"]:
        q, *new = (x[0, :, at : at + count] for x in (query, key, value))
        k, v = kept[name] = [torch.cat(pair, 1) for pair in zip(kept.get(name, [new[0][:, :0]] * 2), new)]
        ago = torch.arange(k.shape[1]).sub(k.shape[1] - count) - torch.arange(count)[:, None]
        seen = (ago <= 0) & (ago > -(window or 1 << 30))
        out.append(F.scaled_dot_product_attention(q, k, v, seen, scale=scaling).transpose(0, 1))
        at += count
    out = torch.cat(out)
    return (out.flatten(1) if flat else out[None]), None


class Replaced(nn.Linear):
    """A linear layer of a server's own, without weights or sizes to read; the class is for annotations alone."""

    def __init__(self, linear):
        nn.Module.__init__(self)
        self.kept = linear.weight, linear.bias

    def forward(self, x):
        return F.linear(x, *self.kept)


@pytest.fixture(autouse=True)
def _attention():
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    yield
    del ALL_ATTENTION_FUNCTIONS._global_mapping[NAME]


def whole(dtype, **variant):
    torch.manual_seed(0)
    model = JoFormerForCausalLM(JoFormerConfig(**SIZES, **variant)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return model


def served(model, dtype):
    """The same weights in what AutoModel makes of the configuration."""
    with torch.device("meta"):
        body = T.AutoModel.from_config(model.config)
    assert type(body) is JoFormerModel
    assert body.is_backend_compatible()
    body = body.to_empty(device="cpu").to(dtype).eval()
    weights = {name.removeprefix("model."): value for name, value in model.state_dict().items()}
    weights.pop("head.weight")
    body.load_state_dict(weights)
    for parent in list(body.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Replaced(child))
    body.config._attn_implementation = NAME
    return body


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_requests_side_by_side_are_each_what_it_is_alone(variant, dtype, flat):
    model = whole(dtype, **VARIANTS[variant])
    lengths = {name: sum(n for step in STEPS for which, n in step if which == name) for name in "abc"}
    texts = {name: torch.randint(50, (length,)) for name, length in lengths.items()}
    with torch.no_grad():
        expected = {n: model(ids[None], output_hidden_states=True).hidden_states[-1][0] for n, ids in texts.items()}
        body = served(model, dtype)
        found = {name: [] for name in texts}
        instances = {layer: {} for layer in range(SIZES["layers"])}
        for step in STEPS:
            ids, where = [], []
            for name, count in step:
                done = sum(len(rows) for rows in found[name])
                ids.append(texts[name][done : done + count])
                where.append(torch.arange(done, done + count))
            instances["calls"] = step
            rows = body(
                input_ids=torch.cat(ids)[None], position_ids=torch.cat(where)[None], use_cache=False,
                return_dict=False, attention_instances=instances, flat=flat,
            )[0][0]  # fmt: skip
            for (name, _), piece in zip(step, rows.split([count for _, count in step])):
                found[name].append(piece)
    for name in texts:
        error = (torch.cat(found[name]) - expected[name]).abs().max()
        assert error < (2e-5 if dtype == torch.float32 else 1e-12), name


@pytest.mark.refused
@pytest.mark.parametrize("told", [True, False])
def test_cumulative_frames_are_not_served(told):
    """Each request has summed up an angle of its own, which these servers have no place for."""
    model = whole(torch.float32, frames="cumulative")
    ids, where = torch.randint(50, (1, 7)), torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    model.config._attn_implementation = NAME
    more = {"attention_instances": {}} if told else {}
    with pytest.raises(ValueError, match="cumulative frames need the angle that each request has reached") as why:
        model(input_ids=ids, position_ids=where, use_cache=False, **more)
    assert "\n" not in str(why.value)
    # A row that stands for itself, packed or not, is served by transformers' own attention as before.
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=where, use_cache=False).logits[0]
        alone = model(ids[:, 4:], use_cache=False).logits[0]
    assert (packed[4:] - alone).abs().max() < 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_is_both_models(tied, tmp_path):
    model = whole(torch.float32, tied=tied)
    ids = torch.randint(50, (2, 7))
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True)
        model.save_pretrained(tmp_path / "lm")
        body, found = T.AutoModel.from_pretrained(tmp_path / "lm", output_loading_info=True)
        assert not found["missing_keys"]
        assert not found["unexpected_keys"]
        assert torch.equal(body(ids).last_hidden_state, expected.hidden_states[-1])
        assert torch.equal(body(ids, output_hidden_states=True).hidden_states[1], expected.hidden_states[1])
        assert torch.equal(JoFormerModel.from_joformer(model.to_joformer())(ids)[0], expected.hidden_states[-1])
        with pytest.raises(ValueError, match="has no head"):
            body.to_joformer()
        cached = body(ids[:, :4], use_cache=True)
        rest = body(ids[:, 4:], past_key_values=cached.past_key_values).last_hidden_state
        assert torch.allclose(rest, expected.hidden_states[-1][:, 4:], atol=1e-5)
        if tied:
            body.save_pretrained(tmp_path / "body")
            again = T.AutoModelForCausalLM.from_pretrained(tmp_path / "body")
            assert torch.equal(again(ids).logits, expected.logits)
    body.resize_token_embeddings(60)
    assert body.get_input_embeddings().num_embeddings == body.config.vocab == 60
