"""Projections that are more than their weights: hooks, replaced forwards, adapters, quantised weights.

The layer fuses, reorders and overwrites around a plain `nn.Linear`. Whatever else a projection does must happen too,
in training as in evaluation, with the gradients of the reference backend, which only ever calls it.
"""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as every_module
from torch.nn.utils import parametrizations, parametrize

from joformer import DenseFrames, FixedFrames, JourneyAttention, JourneyCache, LearnedFrames, positions
from joformer.models import JoFormerLM, LMConfig
from joformer.rotation import is_plain
from joformer.testing import assert_close

DIM, HEADS, HEAD = 16, 2, 8


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class Quantised(torch.Tensor):
    """A weight that stands for another one, as quantised tensors do: only `F.linear` knows which."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
        if func is F.linear:
            return F.linear(plain[0], 3 * plain[1], *plain[2:])
        return super().__torch_function__(func, types, args, kwargs)


def low_rank(linear):
    """An adapter in place of `forward`, as some libraries add it: its weights must get gradients."""
    linear.register_parameter("low", nn.Parameter(0.3 * torch.randn(2, linear.in_features, dtype=linear.weight.dtype)))
    linear.register_parameter("up", nn.Parameter(0.3 * torch.randn(linear.out_features, 2, dtype=linear.weight.dtype)))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.low), self.up)

    linear.forward = types.MethodType(forward, linear)


def wrapped(attention, part):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.factor = inner, nn.Parameter(torch.tensor(1.5, dtype=inner.weight.dtype))

        def forward(self, x):
            return self.factor * self.inner(x)

    setattr(attention, part, Wrapper(getattr(attention, part)))


def lora(attention, part):
    import peft

    config = peft.LoraConfig(r=2, target_modules=[part], init_lora_weights=False)
    peft.inject_adapter_in_model(config, attention)


def quantised(attention, part):
    linear = getattr(attention, part)
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Quantised))


def everywhere(register, linear, hook):
    """A hook of all modules that does something to one."""
    return register(lambda module, *args: hook(module, *args) if module is linear else None)


def louder(module, args, out):
    return 1.5 * out


def quieter(module, args):
    return tuple(0.5 * a for a in args)


def steeper(module, grad_output):
    return tuple(2 * g for g in grad_output)


def milder(module, grad_input, grad_output):
    return tuple(None if g is None else 0.25 * g for g in grad_input)


def on(what, *args):
    """A change of one projection by a method or a function that takes it."""
    return lambda attention, part: what(getattr(attention, part), *args)


CHANGES = {
    "replaced forward": on(low_rank),
    "forward hook": on(nn.Module.register_forward_hook, louder),
    "forward pre-hook": on(nn.Module.register_forward_pre_hook, quieter),
    "backward hook": on(nn.Module.register_full_backward_hook, milder),
    "backward pre-hook": on(nn.Module.register_full_backward_pre_hook, steeper),
    "global forward hook": on(lambda linear: everywhere(every_module.register_module_forward_hook, linear, louder)),
    "global forward pre-hook": on(
        lambda linear: everywhere(every_module.register_module_forward_pre_hook, linear, quieter)
    ),
    "global backward hook": on(
        lambda linear: everywhere(every_module.register_module_full_backward_hook, linear, milder)
    ),
    "global backward pre-hook": on(
        lambda linear: everywhere(every_module.register_module_full_backward_pre_hook, linear, steeper)
    ),
    "parametrization": on(parametrize.register_parametrization, "weight", Doubled()),
    "weight norm": on(parametrizations.weight_norm),
    "orthogonal": on(parametrizations.orthogonal),
    "spectral norm by hook": on(nn.utils.spectral_norm),
    "wrapped": wrapped,
    "lora": lora,
    "quantised": quantised,
}


@pytest.fixture
def change():
    """Makes a change and takes global ones back."""
    handles = []

    def make(name, attention, part):
        handle = CHANGES[name](attention, part)
        if hasattr(handle, "remove"):
            handles.append(handle)
        return attention

    yield make
    for handle in handles:
        handle.remove()


def with_gradients(attention, frames, x, backend):
    attention.backend = backend
    x = x.clone().requires_grad_()
    wanted = [x, *(p for p in (*attention.parameters(), *frames.parameters()) if p.requires_grad)]
    out = attention(x, frames(positions.sequence(x.shape[1])))
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    gradients = torch.autograd.grad((out * weights).sum(), wanted)
    return [out.detach(), *(g.as_subclass(torch.Tensor) for g in gradients)]


@pytest.mark.filterwarnings("ignore:For backward hooks to be called")  # of frames modules, which global hooks see too
@pytest.mark.parametrize("part", ["qkv", "out"])
@pytest.mark.parametrize("name", CHANGES)
def test_training_is_evaluation_with_the_gradients_of_the_reference(name, part, change, dtype):
    attention = JourneyAttention(DIM, HEADS, causal=True, bias=True).to(dtype)
    frames, x = LearnedFrames(HEAD, heads=HEADS).to(dtype), torch.randn(2, 5, DIM, dtype=dtype)
    where = positions.sequence(5)
    unchanged = attention(x, frames(where)).detach()
    change(name, attention, part)
    if name == "spectral norm by hook":
        attention.eval()  # in training every call takes a step of its own
    fast, slow = (with_gradients(attention, frames, x, backend) for backend in ("auto", "reference"))
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for a, b in zip(fast, slow, strict=True):
        assert_close(a, b, tolerance=tolerance)
    attention.backend = "auto"
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert_close(attention.eval()(x, frames(where)).clone(), fast[0], tolerance=tolerance)
            parts = [
                attention(piece, frames(where[at : at + n]), cache=cache)
                for cache in [JourneyCache()]
                for piece, at, n in ((x[:, :3], 0, 3), (x[:, 3:], 3, 2))
            ]
            assert_close(torch.cat(parts, 1), fast[0], tolerance=tolerance)
    backward_only = "backward" in name
    assert ((fast[0] - unchanged).abs().max() < 1e-5) == (backward_only or name == "weight norm")


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", [None, "replaced forward", "forward hook", "parametrization", "wrapped"])
def test_compiled_too(name, change):
    """There the weights of plain projections are reordered; of others they must not be."""
    torch._dynamo.reset()
    attention = JourneyAttention(DIM, HEADS, causal=True)
    frames, x = FixedFrames(HEAD)(positions.sequence(5)), torch.randn(2, 5, DIM)
    for part in ("qkv", "out") if name else ():
        change(name, attention, part)
    with torch.no_grad():
        want = attention(x, frames)
        got = torch.compile(attention, backend="eager", fullgraph=True)(x, frames)
    assert_close(got, want, tolerance=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_an_output_kept_by_a_replaced_forward_stays_as_it_was(mode):
    attention, kept = JourneyAttention(DIM, HEADS), []
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)(positions.sequence(5))
    plain, want = attention.qkv(x).detach(), attention(x, frames).detach()
    forward = attention.qkv.forward

    def keeping(x):
        kept.append(forward(x))
        return kept[-1]

    attention.qkv.forward = keeping
    with mode():
        assert_close(attention(x, frames), want)
    assert torch.equal(kept[0], plain)


def test_a_replaced_forward_of_the_class_is_called(monkeypatch):
    attention = JourneyAttention(DIM, HEADS)
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)(positions.sequence(5))
    before = attention(x, frames).detach()
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * forward(self, x))
    with torch.no_grad():
        want = attention(x, frames)
    assert_close(attention(x, frames), want)
    assert (want - before).abs().max() > 0.01


def test_plain_is_plain():
    """Else every layer would take the slow path without a word."""
    attention = JourneyAttention(DIM, HEADS)
    assert is_plain(attention.qkv)
    assert is_plain(attention.out)
    handle = attention.out.register_full_backward_pre_hook(steeper)
    assert not is_plain(attention.out)
    handle.remove()
    assert is_plain(attention.out)


@pytest.mark.parametrize("name", ["replaced forward", "forward hook", "backward pre-hook", "lora", "wrapped"])
def test_the_loss_of_a_language_model_is_that_of_its_logits(name, change, dtype):
    """Its head is fused with the loss, as long as there is nothing else to the head."""
    model = JoFormerLM(LMConfig(vocab=11, dim=DIM, layers=1, heads=HEADS, tied=False)).to(dtype)
    tokens = torch.randint(11, (2, 6))
    targets = tokens.roll(-1, 1).masked_fill(torch.arange(6) == 5, -100)
    change(name, model, "head")
    wanted = [p for p in model.parameters() if p.requires_grad]
    fused = model(tokens, targets=targets)
    plain = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    assert_close(fused, plain, tolerance=1e-6 if dtype == torch.float32 else 1e-13)
    for a, b in zip(*(torch.autograd.grad(loss, wanted) for loss in (fused, plain)), strict=True):
        assert_close(a, b, tolerance=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("how", ["hooks", "offload"])
def test_accelerate_moves_weights_and_frames(how):
    """It replaces forwards, brings weights only for their call, and asks frames `.to(None)` where it has no device."""
    from accelerate import cpu_offload
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model, tokens = JoFormerLM(LMConfig(vocab=11, dim=DIM, layers=2, heads=HEADS)), torch.randint(11, (2, 5))
    want = model(tokens).detach()
    if how == "offload":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        for block in model.blocks:
            add_hook_to_module(block, AlignDevicesHook())
    assert_close(model(tokens), want)
    with torch.no_grad():
        assert_close(model(tokens), want)


def test_frames_stay_where_they_are():
    for frames in (FixedFrames(HEAD)(positions.sequence(3)), DenseFrames(HEAD, axes=1)(positions.sequence(3))):
        assert frames.to(None) is frames.to("cpu") is frames.to(torch.device("cpu")) is frames
        assert frames.to("meta").tokens == 3
