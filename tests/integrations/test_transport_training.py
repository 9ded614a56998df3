"""Training with transported values: checkpointed, compiled, adapted, quantised, by the Trainer, spread over devices."""

import copy

import pytest
import torch
import transformers as T
from families import FAMILIES, TOKENS, VOCAB, answer, attentions, trace
from torch import nn

from joformer.integrations import strength_of, transport_values

# Third parties that deprecate themselves or each other.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning",
    "ignore:.*use_reentrant.*:UserWarning",
)


def made(name="llama", strength=0.8, dtype=torch.float32):
    return transport_values(FAMILIES[name].made(dtype), strength)


def gradients(model):
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def same(a, b, atol=0.0):
    assert a.keys() == b.keys()
    for key in a:
        assert (a[key] is None) == (b[key] is None), key
        assert a[key] is None or (a[key] - b[key]).abs().max() <= atol * max(1.0, b[key].abs().max()), key


@pytest.mark.parametrize("name", ["llama", "gemma3", "neox", "phi3", "dinov3"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_no_gradient(name, reentrant):
    """Two forwards of different positions before one backward: the second run of a layer has its own frames."""
    family = FAMILIES[name]
    model = made(name).train()
    inputs = family.inputs()
    if family.image:
        others = {"pixel_values": inputs["pixel_values"][:1, :, :8]}
        model.config.pos_embed_rescale = None  # positions are drawn by chance in training
    else:
        # With a mask, or positions that jump would be taken for several texts packed into one.
        others = {"input_ids": inputs["input_ids"][:1, :5], "position_ids": torch.tensor([[0, 3, 4, 9, 11]])}
        others["attention_mask"] = torch.ones(1, 5, dtype=torch.long)

    def run():
        one, two = answer(model, inputs), answer(model, others)
        (one.square().mean() + two.square().mean()).backward()
        return gradients(model)

    expected = run()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant and not family.image:
        model.enable_input_require_grads()
    same(run(), expected, 1e-6)


def test_gradients_are_finite_differences():
    model = made(dtype=torch.float64)
    # The model's norms go through fp32, so one attention alone is differentiated.
    attention = attentions(model)[0]
    seen = {}

    def note(module, args, kwargs):
        seen.update(kwargs)

    handle = attention.register_forward_pre_hook(note, with_kwargs=True, prepend=True)
    answer(model, FAMILIES["llama"].inputs(), use_cache=False)
    handle.remove()
    hidden = seen.pop("hidden_states").detach().requires_grad_()
    weights = [attention.v_proj.weight, attention.o_proj.weight]
    torch.manual_seed(0)

    def f(hidden, v, o):
        parameters = {"v_proj.weight": v, "o_proj.weight": o}
        return torch.func.functional_call(attention, parameters, (hidden,), seen)[0]

    inputs = (hidden, *(w.detach().clone().requires_grad_() for w in weights))
    assert torch.autograd.gradcheck(f, inputs, fast_mode=True)


# Compiled ----------------------------------------------------------------------------------------------------------


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["llama", "dinov3"])
def test_compiled_whole_it_is_the_same_and_follows_the_strength(name):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    family, inputs = FAMILIES[name], FAMILIES[name].inputs()
    extra = {} if family.image else {"use_cache": False}
    model = family.made()
    del (model.model.layer if family.image else model.model.layers)[1]  # half the time
    plain = answer(model, inputs, **extra)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(transport_values(model, 1.0), backend=counter, fullgraph=True)
    for strength in (1.0, 0.25, -0.7):
        transport_values(model, strength, extrapolate=True)
        expected, out = answer(model, inputs, **extra), answer(compiled, inputs, **extra)
        assert (out - expected).abs().max() < 2e-5
        assert (out - plain).abs().max() > 0.1
        out.square().mean().backward()
        ours = gradients(model)
        expected.square().mean().backward()
        same(ours, gradients(model), 1e-5)
    assert counter.frame_count == 1
    transport_values(model, 0.0)
    assert (answer(compiled, inputs, **extra) - plain).abs().max() < 2e-5


# Adapters and quantised projections --------------------------------------------------------------------------------


def lora():
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(r=2, target_modules=["v_proj", "o_proj"], init_lora_weights=False, task_type="CAUSAL_LM")


def adapted(model):
    import peft

    torch.manual_seed(9)
    return peft.get_peft_model(model, lora()).eval()


def merged_twin(strength):
    """The adapter's weights written into the projections first, then transport: what all orders must give."""
    return transport_values(adapted(FAMILIES["llama"].made()).merge_and_unload(), strength)


@pytest.mark.parametrize("first", ["adapter", "transport"])
def test_adapters_before_and_after(first):
    lora()
    inputs = FAMILIES["llama"].inputs()
    model = FAMILIES["llama"].made()
    trail = trace(model)
    expected = answer(merged_twin(0.6), inputs)
    if first == "adapter":
        with_adapter = transport_values(adapted(model), 0.6)
    else:
        with_adapter = adapted(transport_values(model, 0.6))
    assert strength_of(with_adapter) == 0.6
    out = answer(with_adapter, inputs)
    assert (out - expected).abs().max() < 2e-5
    out.square().mean().backward()
    moved = {name: p.grad.abs().max() for name, p in with_adapter.named_parameters() if p.requires_grad}
    assert len(moved) == 8
    assert all(size > 0 for size in moved.values())
    with with_adapter.disable_adapter():
        assert (answer(with_adapter, inputs) - answer(made(strength=0.6), inputs)).abs().max() < 2e-5
    transport_values(with_adapter, 0.0)
    assert (answer(with_adapter, inputs) - answer(merged_twin(0.0), inputs)).abs().max() < 2e-5
    transport_values(with_adapter, 0.6)
    merged = with_adapter.merge_and_unload()
    assert strength_of(merged) == 0.6
    assert (answer(merged, inputs) - expected).abs().max() < 2e-5
    transport_values(merged, off=True)
    assert strength_of(merged) is None
    assert (answer(merged, inputs) - answer(merged_twin(0.0), inputs)).abs().max() < 2e-5
    del trail["lm_head"]  # peft freezes weights and leaves marks of its own on the model: only classes and hooks count
    now = trace(merged)
    assert all(now[name][0] is trail[name][0] and now[name][3] == trail[name][3] for name in trail if name)


def test_off_under_an_adapter_leaves_the_adapter():
    lora()
    inputs = FAMILIES["llama"].inputs()
    reference = answer(adapted(FAMILIES["llama"].made()), inputs)
    for build in (lambda m: transport_values(adapted(m)), lambda m: adapted(transport_values(m))):
        model = build(FAMILIES["llama"].made())
        assert not torch.equal(answer(model, inputs), reference)
        transport_values(model, off=True)
        assert torch.equal(answer(model, inputs), reference)
        hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
        assert not [hook for hook in hooks if "joformer" in type(hook).__module__]


class Int8(nn.Module):
    """A linear layer as quantisers leave it: integers and one scale a row, no parameter at all."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x):
        return nn.functional.linear(x, (self.weight * self.scale).to(x.dtype))


def quantised(model, names):
    for attention in attentions(model):
        for name in names:
            setattr(attention, name, Int8(getattr(attention, name)))
    return model


@pytest.mark.parametrize("names", [["v_proj", "o_proj"], ["q_proj", "k_proj", "v_proj", "o_proj"]])
def test_quantised_projections(names):
    inputs = FAMILIES["llama"].inputs()
    model, written = quantised(FAMILIES["llama"].made(), names), FAMILIES["llama"].made()
    with torch.no_grad():
        for attention, small in zip(attentions(written), attentions(model)):
            for name in names:
                part = getattr(small, name)
                getattr(attention, name).weight.copy_(part.weight * part.scale)
    before = answer(model, inputs)
    transport_values(model, 0.6)
    transport_values(written, 0.6)
    assert (answer(model, inputs) - answer(written, inputs)).abs().max() < 2e-5
    transport_values(model, off=True)
    assert torch.equal(answer(model, inputs), before)


def test_projections_quantised_afterwards():
    inputs = FAMILIES["llama"].inputs()
    first = transport_values(quantised(FAMILIES["llama"].made(), ["v_proj", "o_proj"]), 0.6)
    then = quantised(made(strength=0.6), ["v_proj", "o_proj"])
    assert torch.equal(answer(first, inputs), answer(then, inputs))


def test_autocast():
    inputs = FAMILIES["llama"].inputs()
    model = made(strength=1.0)
    with torch.no_grad():
        full = answer(model, inputs)
        plain = answer(transport_values(copy.deepcopy(model), 0.0), inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = answer(model, inputs)
    assert (low.float() - full).abs().mean() < 0.1 * (plain - full).abs().mean()


# Trainer and accelerate --------------------------------------------------------------------------------------------


class Sentences(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.randint(2, VOCAB, (8, TOKENS), generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, at):
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


def trainer(model, folder, steps, **settings):
    arguments = T.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, learning_rate=1e-2, use_cpu=True,
        save_steps=2, logging_steps=1, report_to=[], disable_tqdm=True, seed=3, lr_scheduler_type="constant",
        dataloader_pin_memory=False, **settings,
    )  # fmt: skip
    return T.Trainer(model=model, args=arguments, train_dataset=Sentences())


def losses(run):
    return [line["loss"] for line in run.state.log_history if "loss" in line]


def test_the_trainer_trains_and_goes_on_where_it_stopped(tmp_path):
    tokens = Sentences().tokens
    before = made()(tokens, labels=tokens).loss
    whole = trainer(made(), tmp_path / "whole", 4)  # draws its order of the data from the seed it sets here
    whole.train()
    assert whole.model.eval()(tokens, labels=tokens).loss < before - 0.1
    assert losses(whole)[0] != losses_of_untouched(tmp_path)[0]
    halfway = trainer(made(), tmp_path / "parts", 2)
    halfway.train()
    rest = trainer(made(), tmp_path / "parts", 4)
    rest.train(resume_from_checkpoint=True)
    assert strength_of(rest.model) == 0.8
    for key, value in rest.model.state_dict().items():
        assert torch.allclose(value, whole.model.state_dict()[key], atol=1e-6), key


def losses_of_untouched(tmp_path):
    run = trainer(FAMILIES["llama"].made(), tmp_path / "untouched", 1, save_strategy="no")
    run.train()
    return losses(run)


def test_the_trainer_checkpoints_gradients(tmp_path):
    found = []
    for name, settings in (("plain", {}), ("checkpointed", {"gradient_checkpointing": True})):
        run = trainer(made(), tmp_path / name, 2, save_strategy="no", **settings)
        run.train()
        found.append(run.model.state_dict())
    same(found[0], found[1], 1e-5)


@pytest.mark.parametrize("first", ["transport", "dispatch"])
def test_spread_over_devices_by_accelerate(first):
    """Every part with the hook that a device_map puts on it."""
    hooks = pytest.importorskip("accelerate").hooks
    inputs, model = FAMILIES["llama"].inputs(), FAMILIES["llama"].made()
    plain, expected = answer(model, inputs), answer(made(), inputs)
    if first == "transport":
        transport_values(model, 0.8)
    for part in [part for part in model.modules() if part is not model]:
        hooks.add_hook_to_module(part, hooks.AlignDevicesHook("cpu", io_same_device=True))
    if first == "dispatch":
        transport_values(model, 0.8)
    assert torch.equal(answer(model, inputs), expected)
    transport_values(model, off=True)
    assert torch.equal(answer(model, inputs), plain)
    hooks.remove_hook_from_submodules(model)
    assert torch.equal(answer(model, inputs), plain)
    assert not any("joformer" in cls.__module__ for part in model.modules() for cls in type(part).__mro__)


def test_weights_offloaded_afterwards():
    accelerate = pytest.importorskip("accelerate")
    inputs, model = FAMILIES["llama"].inputs(), made()
    expected = answer(model, inputs)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(model.model.layers.parameters()).is_meta
    assert torch.equal(answer(model, inputs), expected)
