"""Models whose heads mix time, height and width (M-RoPE): Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V."""

import importlib
from dataclasses import dataclass

import pytest
import torch
from families import GROUPED, TOKENS, Family, answer, by_definition, plain, same, trace
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

from joformer import positions
from joformer.integrations import load, strength_of, transport_values

pytestmark = pytest.mark.skipif(
    not hasattr(Qwen2VLRotaryEmbedding, "recomposition_frequencies"),
    reason="this transformers composes the tables in attention, which raises",
)

WHERE = positions.mrope(2, (1, 2, 2), 1)  # text, an image of 2 × 2 tokens, text
NEAR = {torch.float32: 2e-5, torch.float64: 8e-6}  # the models' own angles, norms and softmax are fp32 in both


def near(a, b, dtype=torch.float32, times=1.0):
    return bool((a - b).abs().max() <= times * NEAR[dtype] * max(1.0, float(b.abs().max())))


@dataclass(frozen=True)
class Sections(Family):
    """Plane b belongs to the axis owner[b]."""

    owner: tuple[int, ...] = ()

    def inputs(self, batch=2, dtype=torch.float32):
        return super().inputs(batch) | {"position_ids": WHERE.T.long()[:, None].expand(3, batch, TOKENS)}

    def positions(self):
        return WHERE[None]

    def angles(self, layer, positions):
        w = self.frequencies(layer).tolist()
        return torch.stack([w[b] * positions[..., axis] for b, axis in enumerate(self.owner)], -1)


def of(family, kind, sections, **more):
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": sections, **more.pop("rope", {})}

    def build():
        modeling, configuration = (
            importlib.import_module(f"transformers.models.{family}.{what}_{family}")
            for what in ("modeling", "configuration")
        )
        config = getattr(configuration, f"{kind}TextConfig")(**GROUPED, **more, rope_parameters=dict(rope))
        return getattr(modeling, f"{kind}TextModel")(config)

    return build


WIDE = {"head_dim": 16}
FAMILIES = {
    "qwen2-vl": Sections(of("qwen2_vl", "Qwen2VL", [1, 1, 2]), same(plain(8, 100.0)), owner=(0, 1, 2, 2)),
    "qwen2.5-vl": Sections(of("qwen2_5_vl", "Qwen2_5_VL", [2, 1, 1]), same(plain(8, 100.0)), owner=(0, 0, 1, 2)),
    "qwen3-vl": Sections(
        of("qwen3_vl", "Qwen3VL", [4, 2, 2], **WIDE), same(plain(16, 100.0)), owner=(0, 1, 2, 0, 1, 2, 0, 0)
    ),
    "qwen3-vl linear": Sections(
        of("qwen3_vl", "Qwen3VL", [3, 3, 2], **WIDE, rope={"rope_type": "linear", "factor": 2.0}),
        same(plain(16, 100.0) / 2),
        owner=(0, 1, 2, 0, 1, 2, 0, 1),
    ),
    "glm-4v": Sections(
        of("glm4v", "Glm4v", [1, 2, 1]), same(plain(8, 100.0)), layout="interleaved", owner=(0, 1, 1, 2)
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_value_path(name, dtype):
    family, strength = FAMILIES[name], {torch.float32: 1.0, torch.float64: 0.37}[dtype]
    twin, model, inputs = family.made(dtype), family.made(dtype), family.inputs()
    trail = trace(model)
    transport_values(model, strength)
    with torch.no_grad():
        ours, untouched = answer(model, inputs), answer(twin, inputs)
        with by_definition(twin, family, strength):
            expected = answer(twin, inputs)
        assert near(ours, expected, dtype)
        assert not near(ours, untouched, dtype, 100)
        assert torch.equal(answer(transport_values(model, 0.0), inputs), untouched)
        assert torch.equal(answer(transport_values(model, off=True), inputs), untouched)
    assert trace(model) == trail


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_one_token_at_a_time_is_the_whole(name, strength):
    model, inputs = transport_values(FAMILIES[name].made(), strength), FAMILIES[name].inputs()
    with torch.no_grad():
        whole = answer(model, inputs, use_cache=False)
        cache, steps = None, []
        for at in (slice(0, 4), slice(4, 5), slice(5, 6), slice(6, 7)):
            out = model(
                inputs["input_ids"][:, at], position_ids=inputs["position_ids"][..., at], past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
            cache = out.past_key_values
            steps.append(out.last_hidden_state)
    assert near(torch.cat(steps, 1), whole)


def test_angles_are_those_of_full_precision():
    """Tables for bfloat16 are rounded; the journeys of the values are not."""
    family = FAMILIES["qwen2-vl"]
    model = transport_values(family.made())
    x = torch.zeros(1, TOKENS, 32, dtype=torch.bfloat16)
    *_, journey = model.rotary_emb(x, family.inputs(1)["position_ids"])
    expected = family.angles(0, WHERE[None])
    torch.testing.assert_close(journey.frames.angles[:, :, 0].double(), expected, rtol=0, atol=1e-5)


def multimodal(version):
    """The whole of Qwen2-VL or Qwen3-VL, and a text with an image in it."""
    import transformers as T

    special = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1]}
    text, vision = {**GROUPED, "rope_parameters": rope, "tie_word_embeddings": False}, {"depth": 1, "num_heads": 2}
    torch.manual_seed(5)
    if version == 2:
        vision |= {"embed_dim": 32, "hidden_size": 32, "patch_size": 2}
        model = T.Qwen2VLForConditionalGeneration(T.Qwen2VLConfig(text_config=text, vision_config=vision, **special))
    else:
        text |= {"head_dim": 8}
        vision |= {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "patch_size": 2,
                   "num_position_embeddings": 16, "deepstack_visual_indexes": [0]}  # fmt: skip
        model = T.Qwen3VLForConditionalGeneration(T.Qwen3VLConfig(text_config=text, vision_config=vision, **special))
    tokens = torch.tensor([[3, 62, 60, 60, 60, 60, 63, 7, 9]])
    inputs = {
        "input_ids": tokens, "mm_token_type_ids": (tokens == 60).int(), "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "pixel_values": torch.randn(16, 3 * 2 * 2 * 2, generator=torch.Generator().manual_seed(0)),
    }  # fmt: skip
    return model.eval(), inputs


@pytest.mark.parametrize("version", [2, 3])
def test_the_text_tower_of_a_whole_model(version, tmp_path):
    """Generated with a cache as without one, saved and loaded, and as it was at strength 0."""
    model, inputs = multimodal(version)
    with torch.no_grad():
        before = model(**inputs).logits
        transport_values(model.model.language_model, 0.7)
        ours = model(**inputs).logits
        assert not near(ours, before, times=100)
        cached, plainly = (
            model.generate(**inputs, max_new_tokens=4, do_sample=False, use_cache=use, pad_token_id=0)
            for use in (True, False)
        )
        assert torch.equal(cached, plainly)
        model.save_pretrained(tmp_path)
        again = load(tmp_path).eval()
        assert strength_of(again) == 0.7
        assert torch.equal(again(**inputs).logits, ours)
        transport_values(model.model.language_model, off=True)
        assert torch.equal(model(**inputs).logits, before)


@pytest.mark.refused
def test_the_vision_tower_is_refused_in_one_line():
    """It attends to patches of several images in one row without a batch."""
    model, _ = multimodal(2)
    trail = trace(model)
    with pytest.raises(ValueError, match="VisionRotaryEmbedding") as refusal:
        transport_values(model)
    assert "\n" not in str(refusal.value)
    assert trace(model) == trail


class Mixed(torch.nn.Module):
    """Tables that are no choice of one angle for each entry."""

    def __init__(self, own):
        super().__init__()
        self.inv_freq = own.inv_freq

    def forward(self, x, position_ids):
        angles = position_ids.expand(3, -1, -1)[..., None].float() * self.inv_freq
        return tuple(torch.cat((t, t), -1).to(x.dtype) for t in (angles.cos().mean(0), angles.sin().mean(0)))


@pytest.mark.refused
def test_angles_that_are_mixed_otherwise_are_refused():
    model = FAMILIES["qwen2-vl"].made()
    model.rotary_emb = Mixed(model.rotary_emb)
    with pytest.raises(ValueError, match="tables of its Mixed are not"):
        transport_values(model)
