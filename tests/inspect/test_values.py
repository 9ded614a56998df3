"""Value transport switched off head by head: exactly that, and nothing else."""

import numpy as np
import pytest
import torch

from joformer import FixedFrames, JourneyAttention, positions
from joformer.inspect import layers_with_values, text_measure, value_use, without_values
from joformer.models import LMConfig
from joformer.training import LanguageTask, Processes, Text, Tokenizer

SMALL = {"vocab": 11, "dim": 16, "layers": 2, "heads": 2}
TOKENS = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))


def built(transport="both", frames="fixed"):
    """A model of large weights, the same whatever is transported."""
    random = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    model = LMConfig(**SMALL, transport=transport, frames=frames).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.4, generator=random)
    return model


@pytest.mark.parametrize("frames", ["fixed", "learned", "projected", "cumulative"])
@torch.no_grad()
def test_all_heads_off_is_the_model_of_scores_alone(frames):
    model, scores = built(frames=frames), built("scores", frames)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), scores.state_dict().values()))
    before = model(TOKENS)
    with without_values(model, [(layer, head) for layer in range(2) for head in range(2)]):
        off = model(TOKENS)
    torch.testing.assert_close(off, scores(TOKENS), rtol=1e-5, atol=1e-5)
    assert (off - before).abs().max() > 0.1
    with without_values(model, []):
        assert torch.equal(model(TOKENS), before)
    assert torch.equal(model(TOKENS), before), "as it was"


@pytest.mark.parametrize(("kv_heads", "off"), [(4, {1}), (4, {0, 3}), (2, {1}), (1, {0})])
@torch.no_grad()
def test_one_head_off_leaves_the_others(kv_heads, off):
    """Head by head, before they are mixed: scores alone where it is off, both where not."""
    torch.manual_seed(0)
    x, frames = torch.randn(2, 7, 16), FixedFrames(4)(positions.sequence(7))
    attention = JourneyAttention(16, 4, kv_heads=kv_heads, causal=True)
    attention.out.weight.copy_(torch.eye(16))
    both = attention(x, frames)
    with without_values(attention, [(0, head) for head in off]):
        found = attention(x, frames)
    attention.transport = "scores"
    scores = attention(x, frames)
    for head in range(4):
        wanted = scores if head // (4 // kv_heads) in off else both
        part = slice(4 * head, 4 * head + 4)
        torch.testing.assert_close(found[..., part], wanted[..., part], rtol=0, atol=1e-6)
        assert (scores[..., part] - both[..., part]).abs().max() > 1e-2


def test_effects_are_of_heads_then_layers_then_all():
    model = built()
    measure = lambda model: model(TOKENS, targets=TOKENS).expand(4) + torch.arange(4)  # noqa: E731
    use = value_use(model, measure)
    assert [effect.off for effect in use.heads] == [((0, 0),), ((0, 1),), ((1, 0),), ((1, 1),)]
    assert [effect.off for effect in use.layers] == [((0, 0), (0, 1)), ((1, 0), (1, 1))]
    assert use.whole.off == ((0, 0), (0, 1), (1, 0), (1, 1))
    with torch.no_grad():
        before = model(TOKENS, targets=TOKENS).item()
        assert use.loss.centre == pytest.approx(before + 1.5)
        wanted = built("scores")(TOKENS, targets=TOKENS).item() - before
    assert use.whole.change.centre == pytest.approx(wanted, abs=1e-5)
    assert abs(wanted) > 1e-2


def test_layers_without_values_do_not_count():
    assert len(layers_with_values(LMConfig(**{**SMALL, "layers": 3}, pattern="FN").build())) == 2
    assert layers_with_values(built("scores")) == {}


def test_a_model_without_value_transport_uses_none():
    use = value_use(built("scores"), lambda model: torch.arange(3.0))
    assert (use.names, use.heads, use.layers, use.whole) == ((), (), (), None)
    assert use.loss.centre == 1.0


def test_the_measure_is_that_of_training():
    ids = np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8)
    text = Text(ids, ids, ids, Tokenizer.of_bytes(), "noise")
    model = LMConfig(vocab=256, dim=16, layers=1, heads=2).build().eval()
    each = text_measure(text, context=32, count=30, batch=7)(model)
    whole = LanguageTask(text, context=32, batch=16, held_out=30).evaluate(model, Processes())
    assert each.shape == (30,)
    assert each.mean().item() == pytest.approx(whole["bits_per_byte"], rel=1e-6)


@pytest.mark.refused
def test_misuse():
    with pytest.raises(ValueError, match=r"^JoFormerLM transports no values: give a model with transport='both' or"):
        without_values(built("scores"), [(0, 0)]).__enter__()
    with (
        pytest.raises(
            ValueError, match=r"^there is no head 2 in layer 1: the model has 2 layers with value transport and 2"
        ),
        without_values(built(), [(1, 2)]),
    ):
        pass
