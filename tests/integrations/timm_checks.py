"""Value transport in timm's models: run by test_timm.py in a process of its own, where timm can be imported.

The reference knows nothing of frames: it takes the model's own projections, the angles by their formulas, and writes
the relative rotations out,

    score_ij = q_i · R(θ_j − θ_i) k_j        o_i = Σ_j softmax_j(score_ij) R(s (θ_j − θ_i)) v_j
"""

import copy
import math
import pickle

import pytest
import torch

# torchvision's compiled operators do not load beside a torch without CUDA; their schemas are all that timm needs.
OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.models.deepseek_vit import DeepseekVitEncoder
from timm.models.eva import Eva, EvaAttention
from timm.models.naflexvit import NaFlexVit
from timm.models.qwen3_vit import Qwen3VitEncoder
from timm.models.vision_transformer import VisionTransformer

import test_from_rope as page
from joformer.integrations import strength_of, transport_values
from joformer.integrations.timm._patch import unpack

SIZE = {"embed_dim": 16, "depth": 2, "num_heads": 2}
HEAD = 8


def eva(**more):
    settings = {"img_size": 24, "patch_size": 8, "num_classes": 5, "use_rot_pos_emb": True, **SIZE, **more}
    return Eva(**settings)


def eva_separate_bias(**more):
    model = eva(**more)
    for block in model.blocks:
        block.attn.qkv_bias_separate = True
    return model


def naflex(**more):
    settings = {"img_size": 24, "patch_size": 8, "num_classes": 5, "global_pool": "avg", **SIZE, **more}
    return NaFlexVit(**settings)


def encoder(cls):
    return cls(img_size=32, patch_size=8, global_pool="avg", **SIZE)


FAMILIES = {
    "eva: fused qkv, biases beside it, class token": eva,
    "eva: biases added after qkv": eva_separate_bias,
    "eva: separate projections, norm inside, swiglu": lambda: eva(
        qkv_fused=False, scale_attn_inner=True, swiglu_mlp=True, scale_mlp=True
    ),
    "eva: post-norm, reference shape, no prefix": lambda: eva(
        use_post_norm=True, ref_feat_shape=6, class_token=False, global_pool="avg"
    ),
    "eva: dynamic image size": lambda: eva(dynamic_img_size=True),
    "rope attention: registers, normed queries": lambda: eva(attn_type="rope", num_reg_tokens=2, qk_norm=True),
    "rope attention: grouped queries": lambda: eva(attn_type="rope", qkv_fused=False, num_kv_heads=1),
    "mixed": lambda: eva(rope_type="mixed"),
    "mixed: columns first, registers": lambda: eva(rope_type="mixed", rope_grid_indexing="xy", num_reg_tokens=3),
    "dinov3": lambda: eva(rope_type="dinov3", rope_rotate_half=True, rope_temperature=100.0, num_reg_tokens=4),
    "naflex: axial, gated": lambda: naflex(rope_type="axial", attn_gated=True, class_token=True),
    "naflex: mixed": lambda: naflex(rope_type="mixed"),
    "naflex: dinov3": lambda: naflex(rope_type="dinov3", rope_rotate_half=True, reg_tokens=1),
    "naflex: multimodal": lambda: naflex(rope_type="mrope", rope_mrope_section=(2, 1, 1)),
    "qwen3": lambda: encoder(Qwen3VitEncoder),
    "deepseek": lambda: encoder(DeepseekVitEncoder),
}
SOME = ["eva: fused qkv, biases beside it, class token", "mixed: columns first, registers", "dinov3"]


def made(family):
    torch.manual_seed(1)
    model = (FAMILIES[family] if isinstance(family, str) else family)()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("freqs"):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def image(height=24, width=24):
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(3))


# The reference.


def angles_by_formula(rope, height, width):
    """θ (tokens, planes), or (layers, heads, tokens, planes)."""
    y, x = (t.flatten().float() for t in torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"))
    kind, quarter = type(rope).__name__, HEAD // 4
    steps = torch.arange(quarter) / quarter
    if kind == "RotaryEmbeddingCat":
        if rope.ref_feat_shape is not None:
            y, x = y * rope.ref_feat_shape[0] / height, x * rope.ref_feat_shape[1] / width
        bands = rope.temperature**-steps
        return torch.cat((y[:, None] * bands, x[:, None] * bands), -1)
    if kind == "RotaryEmbeddingMixed":
        first, second = (x, y) if rope.grid_indexing == "xy" else (y, x)
        return first[:, None] * rope.freqs[0, :, :, None] + second[:, None] * rope.freqs[1, :, :, None]
    if kind == "RotaryEmbeddingDinoV3":
        y, x = (2 * (y + 0.5) / height - 1, 2 * (x + 0.5) / width - 1)
        bands = 2 * math.pi * rope.temperature**-steps
        return torch.cat((y[:, None] * bands, x[:, None] * bands), -1)
    assert kind == "RotaryEmbeddingMRope"
    planes = torch.arange(HEAD // 2)
    where = [torch.zeros_like(y), y, x, torch.zeros_like(y)]  # 1 is a row, 2 a column; sections (2, 1, 1)
    return torch.stack([where[p] for p in planes], -1) * rope.temperature ** (-2 * planes / HEAD)


def reference(model, strength, grids=((3, 3),)):
    """The model with attention written out, at this strength."""
    model = copy.deepcopy(model)
    blocks = model.blocks
    rope = model.rope
    tables, angles = [], []
    for grid in grids:
        tables.append(rope.get_embed(grid).detach())
        angles.append(angles_by_formula(rope, *grid))
    table, theta = torch.cat(tables, -2), torch.cat(angles, -2)
    for layer, block in enumerate(blocks):
        its = (table[layer], theta[layer]) if table.dim() == 4 else (table[None], theta[None])
        block.attn.forward = Written(block.attn, *its, strength)
    return model


class Written:
    def __init__(self, attn, table, theta, strength):
        self.attn, self.table, self.theta, self.strength = attn, table, theta, strength

    def __call__(self, x, rope=None, attn_mask=None, is_causal=False):
        attn, (batch, tokens, _) = self.attn, x.shape
        assert rope is not None
        assert not is_causal
        if attn.qkv is not None:
            qkv = x @ attn.qkv.weight.T
            if getattr(attn, "q_bias", None) is not None:
                qkv = qkv + torch.cat((attn.q_bias, attn.k_bias, attn.v_bias))
            elif attn.qkv.bias is not None:
                qkv = qkv + attn.qkv.bias
            parts = qkv.chunk(3, -1)
        else:
            parts = attn.q_proj(x), attn.k_proj(x), attn.v_proj(x)
        heads = attn.num_heads
        q, k, v = (part.view(batch, tokens, -1, HEAD).transpose(1, 2) for part in parts)
        k, v = (t.repeat_interleave(heads // t.shape[1], 1) for t in (k, v))
        q, k = attn.q_norm(q), attn.k_norm(k)
        theta = self.angles(rope, batch, heads, tokens)
        far = theta[:, :, None, :] - theta[:, :, :, None]  # (batch, heads, i, j, planes)
        scores = (q[:, :, :, None] * self.turned(k[:, :, None], far)).sum(-1) * HEAD**-0.5
        if attn_mask is not None:
            scores = scores + attn_mask
        weights = scores.softmax(-1)
        o = (weights[..., None] * self.turned(v[:, :, None], self.strength * far)).sum(-2)
        o = attn.norm(o.transpose(1, 2).reshape(batch, tokens, -1))
        if attn.gate is not None:
            o = o * attn.gate(x).sigmoid()
        return attn.proj(o)

    def turned(self, x, far):
        if self.attn.rotate_half:
            a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
        else:
            a, b = x[..., 0::2], x[..., 1::2]
        a, b = a * far.cos() - b * far.sin(), a * far.sin() + b * far.cos()
        return torch.cat((a, b), -1) if self.attn.rotate_half else torch.stack((a, b), -1).flatten(-2)

    def angles(self, rope, batch, heads, tokens):
        """The angles of the rows that the model gave: found in its whole table, row by row; padding has none."""
        rope = rope.detach().expand(batch, heads, *rope.shape[-2:])
        table, theta = (t.expand(heads, -1, -1) for t in (self.table, self.theta))
        same = torch.isclose(rope[:, :, :, None], table[:, None], rtol=0, atol=1e-6).all(-1)
        assert (same.any(-1) | (rope == 0).all(-1)).all()
        row = same.int().argmax(-1)
        found = theta[torch.arange(heads)[None, :, None], row] * same.any(-1, keepdim=True)
        return torch.nn.functional.pad(found, (0, 0, tokens - rope.shape[2], 0))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5 * max(1.0, float(b.abs().max())))


def differs(a, b):
    assert (a - b).abs().max() > 1e-3 * b.abs().max()


GRIDS = {"qwen3": (4, 4), "deepseek": (4, 4)}


@pytest.mark.parametrize("strength", [1.0, 0.4])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_equals_the_formula(family, strength):
    model, grid = made(family), GRIDS.get(family, (3, 3))
    x = image(8 * grid[0], 8 * grid[1])
    close(reference(model, 0.0, [grid])(x), model(x))  # the reference itself
    expected, flipped = (reference(model, s, [grid])(x) for s in (strength, -strength))
    plain = model(x)
    found = transport_values(model, strength)(x)
    close(found, expected)
    differs(found, plain)
    differs(found, flipped)
    for block in model.blocks:
        block.attn.fused_attn = False
    close(model(x), expected)


def state(model):
    """Everything but the numbers; hooks are in the dictionary of a module."""
    return [
        (name, type(module), sorted(module.__dict__), *map(list, (module._buffers, module._parameters)))
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_nothing_at_strength_zero_and_no_trace_after(family):
    model, grid = made(family), GRIDS.get(family, (3, 3))
    x = image(8 * grid[0], 8 * grid[1])
    before, tensors = state(model), [*model.parameters(), *model.buffers()]
    plain = model(x)
    assert torch.equal(transport_values(model, 0.0)(x), plain)
    transport_values(model, 0.7)(x)
    assert strength_of(model) == 0.7
    assert torch.equal(transport_values(model, 0)(x), plain)
    transport_values(model, off=True)
    assert state(model) == before
    assert all(a is b for a, b in zip(tensors, [*model.parameters(), *model.buffers()]))
    assert torch.equal(model(x), plain)
    assert strength_of(model) is None


def gradients(model, x):
    model(x).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients(family, checkpointing):
    model = made(family)
    expected = gradients(reference(model, 0.4), image())
    transport_values(model, 0.4).set_grad_checkpointing(checkpointing)
    model.train(checkpointing)
    found = gradients(model, image())
    assert set(found) == set(expected)
    assert ("rope.freqs" in found) == family.startswith("mixed")
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=2e-4 * float(expected[name].abs().max()))


def test_frequencies_alone_can_learn():
    model = made("mixed")
    expected = gradients(reference(model, 1.0), image())["rope.freqs"]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name == "rope.freqs")
    found = gradients(transport_values(model), image())
    assert list(found) == ["rope.freqs"]
    torch.testing.assert_close(found["rope.freqs"], expected, rtol=1e-3, atol=2e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("family", SOME)
@torch.no_grad()
def test_another_input_size(family):
    """A table that is made beforehand is made again, also where it has as many tokens as before."""
    model = transport_values(made(family), 0.4)
    model.set_input_size((16, 32))
    model(image(16, 32))
    model.set_input_size((32, 16))
    plain = transport_values(copy.deepcopy(model), off=True)
    close(model(image(32, 16)), reference(plain, 0.4, [(4, 2)])(image(32, 16)))


@torch.no_grad()
@pytest.mark.parametrize("rope", ["cat", "mixed", "dinov3"])
def test_dynamic_image_sizes(rope):
    model = made(lambda: eva(dynamic_img_size=True, rope_type=rope, rope_rotate_half=rope == "dinov3"))
    plain = copy.deepcopy(model)
    transport_values(model)
    for height, width in ((2, 5), (4, 3)):
        x = image(8 * height, 8 * width)
        close(model(x), reference(plain, 1.0, [(height, width)])(x))


@torch.no_grad()
@pytest.mark.parametrize("build", [eva, naflex])
@pytest.mark.parametrize("rope", ["axial", "mixed"])
def test_dropped_patches(build, rope):
    rope = "cat" if (build, rope) == (eva, "axial") else rope
    model = made(lambda: build(rope_type=rope, patch_drop_rate=0.4, class_token=True)).train()
    expected = reference(model, 0.4)
    transport_values(model, 0.4)
    outputs = []
    for one in (expected, model):
        torch.manual_seed(5)
        outputs.append(one(image()))
    close(outputs[1], outputs[0])


@torch.no_grad()
@pytest.mark.parametrize("rope", ["axial", "dinov3"])
def test_a_grid_for_each_sample(rope):
    """NaFlex: patches of images of different shapes, padded. (Mixed angles fail there in timm itself.)"""
    model = made(lambda: naflex(rope_type=rope, rope_rotate_half=rope == "dinov3", class_token=True))
    grids = [(2, 4), (3, 2)]
    coordinates, valid = torch.zeros(2, 8, 2, dtype=torch.long), torch.zeros(2, 8, dtype=torch.bool)
    for row, (height, width) in enumerate(grids):
        at = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        coordinates[row, : len(at)], valid[row, : len(at)] = at, True
    patches = torch.randn(2, 8, 8 * 8 * 3, generator=torch.Generator().manual_seed(3))
    inputs = {"patches": patches, "patch_coord": coordinates, "patch_valid": valid}
    expected = reference(model, 0.4, [(3, 4), *grids])(inputs)
    plain = model(inputs)
    found = transport_values(model, 0.4)(inputs)
    close(found, expected)
    differs(found, plain)


def test_random_coordinates_are_drawn_once():
    """DINOv3 moves its coordinates in training: the values turn by the angles that the keys turn by."""
    model = made(
        lambda: eva(rope_type="dinov3", rope_rotate_half=True, rope_shift_coords=0.5, rope_jitter_coords=2.0)
    ).train()
    torch.manual_seed(7)
    plain = model.rope.get_embed()
    torch.manual_seed(7)
    table, angles = unpack(transport_values(model).rope.get_embed(), "half")
    torch.testing.assert_close(table, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(angles[0, :, 0].sin(), plain[:, : HEAD // 2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", [SOME[0], "naflex: mixed", "dinov3"])
@torch.no_grad()
def test_half_precision(family):
    """The angles survive a table that is rounded to bfloat16, though not what the model rounds before."""
    model = transport_values(made(family), 0.4)
    exact = unpack(model.rope.get_embed((3, 3)), "half")[1]
    expected = model(image())
    model.bfloat16()
    rounded = unpack(model.rope.get_embed((3, 3)), "half")[1]
    assert rounded.dtype == torch.float32
    if family.startswith("eva"):
        torch.testing.assert_close(rounded, exact, rtol=2e-5, atol=2e-5)
    assert (model(image().bfloat16()) - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@torch.no_grad()
def test_a_copy_is_its_own(family, copied):
    model = made(family)
    plain = model(image())
    found = transport_values(model, 0.4)(image())
    other = copied(model)
    assert torch.equal(other(image()), found)
    assert torch.equal(transport_values(other, off=True)(image()), plain)
    assert type(other.rope).__mro__[1] is torch.nn.Module
    assert torch.equal(model(image()), found)


@torch.no_grad()
def test_with_adapters():
    """A projection that somebody wraps after the call is heard."""

    class Adapted(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.more = base, torch.nn.Linear(base.in_features, base.out_features)

        def forward(self, x):
            return self.base(x) + self.more(x)

    model = made(lambda: eva(qkv_fused=False))
    transport_values(model, 0.4)
    for block in model.blocks:
        block.attn.v_proj = Adapted(block.attn.v_proj)
    plain = transport_values(copy.deepcopy(model), off=True)
    close(model(image()), reference(plain, 0.4)(image()))


class Alone(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = EvaAttention(16, 2, scale_norm=False)

    def forward(self, x):
        return self.attn(x)


@pytest.mark.parametrize(
    ("build", "missing"),
    [
        (lambda: eva(use_rot_pos_emb=False), "there is no rotary embedding"),
        (lambda: eva(rope_rotate_half=True), "does not rotate pairs of entries of its queries and keys"),
        (Alone, "there is no rotary embedding"),
        (lambda: VisionTransformer(img_size=16, patch_size=8, **SIZE), "no attention layer is handed rotary positions"),
        (lambda: eva(device="meta"), "meta device"),
    ],
)
def test_refused(build, missing):
    model = build()
    before = state(model)
    with pytest.raises(ValueError, match=missing) as error:
        transport_values(model)
    assert "\n" not in str(error.value)
    assert state(model) == before


@pytest.mark.compiled
@pytest.mark.parametrize(("family", "fused"), [(SOME[0], True), ("mixed", False)])
@torch._dynamo.config.patch(error_on_recompile=True)
def test_compiled(family, fused):
    """In one graph, which follows the strength, forward and backward."""
    torch._dynamo.reset()
    model = transport_values(made(family))
    for block in model.blocks:
        block.attn.fused_attn = fused
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(image())
    transport_values(model, 0.4)
    expected = gradients(copy.deepcopy(model), image())
    found = compiled(image())
    close(found.detach(), model(image()).detach())
    found.square().sum().backward()
    for name, parameter in model.named_parameters():
        close(parameter.grad, expected[name])


@pytest.mark.parametrize(("dtype", "loose"), [(torch.float32, 1), (torch.float64, 1e6)])
def test_the_diff_of_from_rope(dtype, loose):
    """docs/from-rope.md: old and new agree; timm's table is of float32 whatever the queries."""
    old, new = page.both("timm")
    q, k, v = torch.randn(3, 2, 4, 1 + 15, 64, dtype=dtype)
    page.agree(old["attend"](q, k, v, 3, 5), new["attend"](q, k, v, 3, 5), dtype, loose)
