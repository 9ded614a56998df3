"""The Triton kernel, interpreted on the CPU and compiled for GPUs that are not here; test_triton.py runs this.

Interpreted it equals the obvious formula in float64, forward, inverse and backward, for any shapes, and attention that
uses it equals the reference; damaged it does not; compiled it keeps everything in registers.
"""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, JourneyAttention, LearnedFrames, ProjectedFrames, positions, rotate
from joformer.rotation import _eager, _kernels, _ops, _triton

PLACES = (True, "cuda"), (False, "cpu")


def obvious(x, theta, half, inverse):
    """R(±θ) x in float64, plane by plane."""
    planes, y = theta.shape[-1], x.double().clone()
    theta = theta.double().repeat_interleave(x.shape[2] // theta.shape[2], 2) * (-1 if inverse else 1)
    for plane in range(planes):
        i, j = (plane, plane + planes) if half else (2 * plane, 2 * plane + 1)
        a, b, cos, sin = x[..., i], x[..., j], theta[..., plane].cos(), theta[..., plane].sin()
        y[..., i], y[..., j] = a * cos - b * sin, a * sin + b * cos
    return y


def unit_of(theta, half):
    """(cos, sin) in the memory order that frames give it."""
    both = theta.cos(), theta.sin()
    return (torch.stack(both).movedim(0, -1) if half else torch.stack(both, -1)).float()


shapes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "tokens": st.integers(1, 9),
        "kv_heads": st.sampled_from([1, 2, 4]),
        "group": st.integers(1, 3),
        "frame_heads": st.sampled_from([1, 2, 4]),
        "rows": st.booleans(),
        "planes": st.integers(1, 5),
        "rest": st.integers(0, 3),
        "half": st.booleans(),
        "inverse": st.booleans(),
        "rotated": st.sampled_from([r for r in itertools.product([True, False], repeat=3) if any(r)]),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
        "seed": st.integers(0, 99),
    }
)


def cases(some, seed):
    """q, k, v as parts of one packed projection, and angles that fit."""
    generator = torch.Generator().manual_seed(seed)
    frame_heads = min(some["frame_heads"], some["kv_heads"])
    dim = 2 * some["planes"] + some["rest"]
    heads = (some["kv_heads"] * some["group"], some["kv_heads"], some["kv_heads"])
    rows = some["batch"] if some["rows"] else 1
    theta = torch.rand(rows, some["tokens"], frame_heads, some["planes"], generator=generator, dtype=torch.float64) * 9
    packed = torch.randn(some["batch"], some["tokens"], sum(heads) * dim, generator=generator).to(some["dtype"])
    return packed, heads, dim, theta, generator


def cut(packed, heads, dim):
    return [part.unflatten(-1, (-1, dim)) for part in packed.split([h * dim for h in heads], -1)]


def bound(dtype):
    return 4e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps


def check_forward(module, some):
    packed, heads, dim, theta, _ = cases(some, some["seed"])
    half, inverse, rotated = some["half"], some["inverse"], some["rotated"]
    parts = cut(packed, heads, dim)
    wanted = [
        obvious(part, theta, half, inverse) if its else part.double() for part, its in zip(parts, rotated, strict=True)
    ]
    unit = unit_of(theta, half)
    module.launch(parts, parts, unit, rotated, half, inverse, [], None, None)
    for part, right in zip(parts, wanted, strict=True):
        torch.testing.assert_close(part.double(), right, rtol=bound(some["dtype"]), atol=bound(some["dtype"]))


def check_backward(module, some):
    """Gradients of the parts, written into one packed tensor, and of the angles, against autograd in float64."""
    _, heads, dim, theta, generator = cases(some, some["seed"])
    half, inverse, rotated = some["half"], some["inverse"], some["rotated"]
    shape = some["batch"], some["tokens"]
    inputs = [torch.randn(*shape, h, dim, generator=generator).double().requires_grad_() for h in heads]
    theta.requires_grad_()
    outputs = [obvious(x, theta, half, inverse) if its else x * 1.0 for x, its in zip(inputs, rotated, strict=True)]
    # As attention's backward gives them: heads before tokens in memory.
    grads = [torch.randn(shape[0], h, shape[1], dim, generator=generator).transpose(1, 2) for h in heads]
    wanted = torch.autograd.grad(outputs, [*inputs, theta], [g.double() for g in grads])
    packed = torch.full((*shape, sum(heads) * dim), torch.nan)
    angles = torch.full((shape[0], shape[1], *theta.shape[2:]), torch.nan)
    results = [y.detach().float() for y in outputs]
    unit = unit_of(theta.detach(), half)
    module.launch(grads, cut(packed, heads, dim), unit, rotated, half, not inverse, results, angles, None)
    for mine, right in zip(cut(packed, heads, dim), wanted, strict=False):
        torch.testing.assert_close(mine.double(), right, rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(angles.sum_to_size(theta.shape).double(), wanted[-1], rtol=2e-5, atol=2e-5)


def check_home(module, some):
    """Backward of one rotation that makes its result again: from its input, in the same pass."""
    _, heads, dim, theta, generator = cases(some, some["seed"])
    half, inverse = some["half"], some["inverse"]
    shape = some["batch"], some["tokens"], heads[0], dim
    o = torch.randn(shape[0], shape[2], shape[1], dim, generator=generator).transpose(1, 2)
    inner = torch.randn(shape, generator=generator)
    wide, theta = o.double().requires_grad_(), theta.requires_grad_()
    result = obvious(wide, theta, half, inverse)
    to_o, to_theta = torch.autograd.grad(result, (wide, theta), inner.double())
    home, angles = torch.full(shape, torch.nan), torch.full((*shape[:2], *theta.shape[2:]), torch.nan)
    unit = unit_of(theta.detach(), half)
    module.launch([inner], [inner], unit, [True], half, not inverse, [o], angles, home)
    torch.testing.assert_close(home.double(), result.detach(), rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(inner.double(), to_o, rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(angles.sum_to_size(theta.shape).double(), to_theta, rtol=2e-5, atol=2e-5)


@settings(max_examples=15, deadline=None)
@given(shapes)
def test_backward_that_makes_the_result_again(some):
    check_home(_triton, some)


@settings(max_examples=15, deadline=None)
@given(shapes)
def test_forward_and_inverse(some):
    check_forward(_triton, some)


@settings(max_examples=15, deadline=None)
@given(shapes)
def test_backward_and_the_gradient_of_the_angles(some):
    check_backward(_triton, some)


def test_decoding_divides_the_heads_among_programs(monkeypatch):
    some = {
        "batch": 2, "tokens": 1, "kv_heads": 4, "group": 3, "frame_heads": 1, "rows": False, "planes": 3, "rest": 1,
        "half": True, "inverse": False, "rotated": (True, True, False), "dtype": torch.float32, "seed": 1,
    }  # fmt: skip
    grids = []
    kernel = _triton.rotate_kernel

    class Spy:
        def __getitem__(self, grid):
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(_triton, "rotate_kernel", Spy())
    check_forward(_triton, some)
    assert grids == [(2, 12)]
    check_backward(_triton, some)  # the sum over heads has one order: one program
    assert grids[-1] == (2, 1)


MUTATIONS = {
    "a sign": ("a * cos - b * sin", "a * cos + b * sin"),
    "the inverse": ("sin = -sin", "sin = sin"),
    "a plane": ("mask=ok & (columns < count))", "mask=ok & (columns < count - 1))"),
    "a stride": ("row * y_row + t * y_token", "row * y_row + t * x_token"),
    "the frame of a head": ("frame * unit_head", "0 * unit_head"),
    "the other entries": ("rest < DIM - begin", "rest < DIM - begin - 1"),
    "the angles' sign": ("total if INVERSE else -total", "-total if INVERSE else total"),
    "a term of the angles": ("total += c * b - d * a", "total += c * b"),
    "the result made again": ("d * cos - c * sin", "d * cos + c * sin"),
    "its other entries": ("home_at + head * DIM + begin", "home_at + head * DIM"),
    "its row": ("home += row * tokens", "home += 0 * tokens"),
    "its angles": ("total += c * rotated_b - d * rotated_a", "total += c * b - d * a"),
    "the last tokens": ("ok = t < tokens", "ok = t < tokens - 1"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_damaged_kernel_fails(name, tmp_path, monkeypatch):
    right, wrong = MUTATIONS[name]
    text = Path(_triton.__file__).read_text()
    assert right in text
    path = tmp_path / f"damaged_{list(MUTATIONS).index(name)}.py"
    path.write_text(text.replace(right, wrong))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    damaged = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, damaged)
    spec.loader.exec_module(damaged)
    common = {
        "batch": 2, "tokens": 5, "kv_heads": 2, "group": 2, "frame_heads": 2, "rows": True, "planes": 3, "rest": 2,
        "rotated": (True, True, True), "dtype": torch.float32, "seed": 3,
    }  # fmt: skip
    failed = 0
    checks = check_forward, check_backward, check_home
    for half, inverse, check in itertools.product((True, False), (True, False), checks):
        try:
            check(damaged, {**common, "half": half, "inverse": inverse})
        except AssertionError:
            failed += 1
    assert failed


def attention_with(frames, dtype, transport, kernels, monkeypatch):
    """Output and all gradients of an attention layer, with our kernel or with PyTorch's operations."""
    monkeypatch.setattr(_eager, "has_kernels", _eager.has_kernels if kernels else lambda x: False)
    torch.manual_seed(0)
    layer = JourneyAttention(32, 4, kv_heads=2, transport=transport, causal=True).to(dtype)
    options = {"layout": "half"} if frames.endswith("half") else {}
    module = {
        "fixed": lambda: FixedFrames(8, **options),
        "learned": lambda: LearnedFrames(8, heads=2, **options),
        "projected": lambda: ProjectedFrames(32, 8, heads=2, **options),
    }[frames.split()[0]]()
    x = torch.randn(2, 7, 32).to(dtype).requires_grad_()
    y = layer(x, module(positions.sequence(7), x.to(torch.promote_types(dtype, torch.float32))))
    wanted = [x, *layer.parameters(), *module.parameters()]
    grads = torch.autograd.grad(y, wanted, torch.randn(y.shape).to(dtype), allow_unused=True)
    return [y.detach(), *(g for g in grads if g is not None)]


@pytest.mark.parametrize("transport", ["both", "scores", "values"])
@pytest.mark.parametrize("frames", ["fixed", "fixed half", "learned", "learned half", "projected"])
def test_attention_through_the_kernel(frames, transport, monkeypatch):
    calls = []
    right = _triton.launch
    monkeypatch.setattr(_triton, "launch", lambda *given: (calls.append(given), right(*given)))
    mine = attention_with(frames, torch.float32, transport, True, monkeypatch)
    with monkeypatch.context() as patch:
        oracle = attention_with(frames, torch.float64, transport, False, patch)
    # Forward and backward, one launch each for q, k and v together, and for the output where values are transported.
    assert len(calls) == (2 if transport == "scores" else 4)
    for ours, theirs in zip(mine, oracle, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-5, atol=1e-5)


def test_gradients_of_angles_cancel_in_every_segment(monkeypatch):
    """Gauge: rotating all frames alike changes nothing, so that the gradients of the angles sum to zero."""
    torch.manual_seed(0)
    from joformer import FlatFrames

    angles = torch.randn(1, 9, 1, 4, requires_grad=True)
    layer, x = JourneyAttention(32, 4, causal=True), torch.randn(2, 9, 32)
    layer(x, FlatFrames.of(angles), segments=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])).square().sum().backward()
    for segment in angles.grad.split((4, 5), 1):
        assert segment.abs().max() > 1e-3
        assert segment.sum(1).abs().max() < 1e-5 * segment.abs().sum()


def test_four_parts_and_none_at_all():
    from joformer import FlatFrames
    from joformer.rotation import rotate_packed_

    angles = torch.randn(1, 5, 1, 2, requires_grad=True)
    packed, grad = torch.randn(2, 5, 16), torch.randn(2, 5, 1, 4)
    frames = FlatFrames.of(angles)
    parts = rotate_packed_(packed.clone().requires_grad_() * 1, [(1, 4)] * 4, [frames] * 4)
    (mine,) = torch.autograd.grad(parts, angles, [grad] * 4)
    wide = FlatFrames.of(angles.detach().double().requires_grad_())
    right = [rotate(part.unflatten(-1, (1, 4)), wide) for part in packed.double().split(4, -1)]
    (theirs,) = torch.autograd.grad(right, wide.angles, [grad.double()] * 4)
    for ours, other in zip(parts, right, strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    assert rotate(torch.randn(0, 5, 1, 4), frames).shape == (0, 5, 1, 4)


def test_the_operator_is_what_its_schema_says():
    """Schema, aliases, fake implementation and dispatch, as compilers and serving engines rely on them."""
    unit = unit_of(torch.rand(1, 5, 1, 2), half=True)
    q, k = torch.randn(2, 5, 4, 6), torch.randn(2, 5, 2, 6)
    torch.library.opcheck(_ops.rotate_parts, ([q, k], [q, k], unit, [True, False], True, False, [], None, None))
    home, angles = torch.empty(2, 5, 4, 6), torch.empty(2, 5, 1, 2)
    torch.library.opcheck(_ops.rotate_parts, ([q], [q], unit, [True], True, True, [q.clone()], angles, home))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x):
        y = torch.empty_like(x)
        torch.ops.joformer.rotate_parts([x], [y], unit, [True], True, False, [], None, None)
        return y + 1

    right = obvious(q, torch.atan2(unit[..., 1], unit[..., 0]), True, False) + 1
    torch.testing.assert_close(compiled(q).double(), right, rtol=1e-5, atol=1e-5)


def test_the_kernel_is_chosen_by_device_unless_it_is_turned_off(monkeypatch):
    card, host = (SimpleNamespace(is_cuda=on, device=torch.device(kind), dtype=torch.bfloat16) for on, kind in PLACES)
    for wanted, found in (("", (True, False)), ("triton", (True, True)), ("eager", (False, False))):
        monkeypatch.setattr(_kernels, "_WANTED", wanted)
        _kernels._triton_is_here.cache_clear()
        assert (_kernels.has_kernels(card), _kernels.has_kernels(host)) == found
    _kernels._triton_is_here.cache_clear()
    card.dtype = torch.float64
    monkeypatch.setattr(_kernels, "_WANTED", "")
    assert not _kernels.has_kernels(card)


def test_no_layout_in_memory_is_too_odd():
    frames = FixedFrames(8)(positions.sequence(5))
    x = torch.randn(2, 8, 5, 4).permute(0, 2, 3, 1)  # head_dim is not contiguous
    assert _eager.has_kernels(x)
    torch.testing.assert_close(rotate(x, frames), rotate(x.double(), frames).float(), rtol=1e-5, atol=1e-5)


def test_compiled_it_stays_in_registers(tmp_path):
    """Compile only, bf16: no spills, at most 96 registers, for three generations of NVIDIA's cards and one of AMD's."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("triton_resources.py"))],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == 72
    for *what, registers, spilled in rows:
        assert int(spilled) == 0, what
        assert 0 < int(registers) <= 96, what
