"""Under the compiler: one graph, any length, the same numbers and gradients as eager; and export."""

import pytest
import torch

from joformer import (
    CameraFrames,
    CumulativeFrames,
    DenseFrames,
    FixedFrames,
    FlatFrames,
    JourneyAttention,
    LearnedFrames,
    NoFrames,
    ProjectedFrames,
    TreeFrames,
    journey_attention,
    positions,
    rotate,
)
from joformer.testing import assert_close

pytestmark = [
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

DIM, HEADS, HEAD = 24, 3, 8


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Layer(torch.nn.Module):
    """Frames made in the graph, then attention with them."""

    def __init__(self, frames, **options):
        super().__init__()
        self.frames = frames
        self.attention = JourneyAttention(DIM, HEADS, **options)

    def forward(self, x, where):
        return self.attention(x, self.frames(where, x))


FRAMES = {
    "fixed": lambda: FixedFrames(HEAD),
    "fixed half": lambda: FixedFrames(HEAD, layout="half"),
    "learned": lambda: LearnedFrames(HEAD, heads=HEADS),
    "projected": lambda: ProjectedFrames(DIM, HEAD, heads=HEADS),
    "cumulative": lambda: CumulativeFrames(DIM, HEAD, heads=HEADS),
    "dense": lambda: DenseFrames(HEAD, axes=1),
    "tree": lambda: TreeFrames(HEAD, branches=100),
    "none": NoFrames,
}


def compiled(fn, backend="aot_eager"):
    """With a count of the graphs that were made."""
    made = []

    def counting(graph, example_inputs):
        made.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, example_inputs)

    return torch.compile(fn, fullgraph=True, dynamic=True, backend=counting), made


@pytest.mark.parametrize(
    ("name", "window"), [*((name, None) for name in FRAMES), ("fixed", 3), ("cumulative", 3), ("dense", 3)]
)
def test_one_graph_for_all_lengths_with_the_gradients_of_eager(name, window):
    torch.manual_seed(0)
    layer = Layer(FRAMES[name](), causal=True, window=window)
    fast, made = compiled(layer)
    for n in (9, 12, 17):
        x, where = torch.randn(2, n, DIM), positions.sequence(n)
        results = []
        for call in (layer, fast):
            inputs = x.clone().requires_grad_()
            out = call(inputs, where)
            layer.zero_grad()
            out.square().sum().backward()
            results.append([out, inputs.grad, *(p.grad.clone() for p in layer.parameters() if p.grad is not None)])
        assert len(results[0]) == len(results[1])
        for a, b in zip(*results):
            assert_close(b, a, tolerance=5e-5)
        first = len(made) if n == 9 else first
    assert len(made) == first


def test_cameras_are_one_graph_and_get_the_gradients_of_eager():
    torch.manual_seed(0)
    layer = Layer(CameraFrames(HEAD))
    fast, made = compiled(layer, backend="eager")
    poses = torch.matrix_exp(torch.tensor([[0.0, -1, 0, 2], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]) * torch.tensor(
        [0.2, -0.3]
    )[:, None, None])  # fmt: skip
    for rows in (2, 3):
        x, results = torch.randn(2, 2 * 3 * rows, DIM), []
        for call in (layer, fast):
            given = poses.clone().requires_grad_()
            out = call(x, positions.cameras(given, (rows, 3)))
            results.append((out, torch.autograd.grad(out.square().sum(), given)[0]))
        for a, b in zip(*results):
            assert_close(b, a, tolerance=5e-5)
        first = len(made) if rows == 2 else first
    assert len(made) == first


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_softplus_has_the_gradients_of_eager(kv_heads):
    torch.manual_seed(0)
    layer = Layer(FixedFrames(HEAD), causal=True, kv_heads=kv_heads, weighting="softplus")
    fast, _ = compiled(layer)
    x, where, results = torch.randn(2, 9, DIM), positions.sequence(9), []
    for call in (layer, fast):
        given = x.clone().requires_grad_()
        out = call(given, where)
        results.append((out, torch.autograd.grad(out.square().sum(), given)[0]))
    for a, b in zip(*results):
        assert_close(b, a, tolerance=5e-5)


@pytest.mark.parametrize(
    ("transport", "kv_heads"), [("none", 3), ("scores", 3), ("values", 1), ("both", 3), ("both", 1)]
)
def test_weights_reordered_for_the_compiler_compute_the_same(transport, kv_heads):
    torch.manual_seed(0)
    layer = Layer(FixedFrames(HEAD), causal=True, transport=transport, kv_heads=kv_heads, bias=True)
    fast, _ = compiled(layer)
    x, where = torch.randn(2, 9, DIM), positions.sequence(9)
    gradients = []
    for call in (layer, fast):
        layer.zero_grad()
        out = call(x, where)
        out.square().sum().backward()
        gradients.append([out, *(p.grad.clone() for p in layer.parameters())])
    for a, b in zip(*gradients):
        assert_close(b, a, tolerance=5e-5)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_inductor_gives_the_numbers_of_eager(layout):
    """Frames made outside, with gradient to their angles, used inside."""
    angles = torch.randn(1, 9, 1, 3, dtype=torch.float64, requires_grad=True)
    q, k, v = torch.randn(3, 2, 9, HEADS, HEAD)

    def attended(q, k, v, frames):
        return journey_attention(q, k, v, frames, causal=True)

    results = []
    for call in (attended, torch.compile(attended, fullgraph=True)):
        frames = FlatFrames.of(angles, layout=layout)
        out = call(q, k, v, frames)
        (gradient,) = torch.autograd.grad(out.square().sum(), angles)
        results.append((out, gradient))
    for a, b in zip(*results):
        assert_close(b, a, tolerance=1e-5)


def test_inductor_trains_the_layer_like_eager():
    torch.manual_seed(0)
    layer = Layer(LearnedFrames(HEAD, heads=HEADS), causal=True)
    fast = torch.compile(layer, fullgraph=True)
    x, where = torch.randn(2, 9, DIM), positions.sequence(9)
    gradients = []
    for call in (layer, fast):
        layer.zero_grad()
        call(x, where).square().sum().backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    for a, b in zip(*gradients):
        assert_close(b, a, tolerance=5e-5)


def test_bfloat16_inside_the_compiler_rotates_in_float32():
    frames = FixedFrames(64)(positions.sequence(8, offset=1_000_000))
    x = torch.randn(1, 8, 2, 64).bfloat16()
    got = torch.compile(rotate, fullgraph=True)(x, frames)
    assert got.dtype == torch.bfloat16
    assert_close(got, rotate(x.double(), frames), tolerance=torch.finfo(torch.bfloat16).eps / 2 * 1.01)


@pytest.mark.parametrize("name", ["fixed", "learned", "projected", "cumulative"])
def test_export_with_any_length(name):
    torch.manual_seed(0)
    layer = Layer(FRAMES[name](), causal=True).eval()
    tokens = torch.export.Dim("tokens", min=2, max=512)
    program = torch.export.export(
        layer,
        (torch.randn(2, 9, DIM), positions.sequence(9)),
        dynamic_shapes=({1: tokens}, {0: tokens}),
    )
    for n in (5, 9, 33):
        x = torch.randn(2, n, DIM)
        assert_close(program.module()(x, positions.sequence(n)), layer(x, positions.sequence(n)), tolerance=1e-5)
