"""Journey attention in torchtitan's Llama: against its own model, Hugging Face's and our reference, and by its trainer.
Run by test_titan.py, in a process with torchtitan on its path."""

import json
import multiprocessing
import os
import re
import shlex
import socket
from functools import partial
from pathlib import Path

import pytest
import titan_on_cpu
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torchtitan.config import ConfigManager
from torchtitan.config.override import apply_overrides
from torchtitan.models.common import attention as theirs
from torchtitan.models.common.config_utils import make_gqa_config
from torchtitan.models.common.rope import ComplexRoPE, CosSinRoPE
from torchtitan.models.llama3 import llama3_configs
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3 import qwen3_configs
from transformers import LlamaConfig, LlamaForCausalLM

from joformer import journey_attention as reference
from joformer.frames import FlatFrames
from joformer.integrations import titan, transport_values
from joformer.positions import sequence

DIM, HEADS, KV_HEADS, VOCAB = 256, 16, 4, 2048
TRANSPORTS = ("none", "scores", "values", "both")
# Two documents in each row, of other lengths.
PACKED = torch.tensor([[*range(9), *range(15)], [*range(17), *range(7)]])
DATA = Path(os.environ.get("TITAN_DATA", "."))


def llama(transport=None, attention=None, layers=2):
    """torchtitan's debugging model, shorter and with grouped queries; with our attention where transport is given."""
    config = llama3_configs["debugmodel"](attn_backend="flex")
    config.layers = config.layers[:layers]
    init = {"weight": partial(nn.init.normal_, std=0.1)}  # large enough that attention matters
    for layer in config.layers:
        plain = make_gqa_config(
            dim=DIM, n_heads=HEADS, n_kv_heads=KV_HEADS, wqkv_param_init=init, wo_param_init=init,
            inner_attention=layer.attention.inner_attention, rope=layer.attention.rope, fuse_qkv=True,
        )  # fmt: skip
        layer.attention = plain
        if transport is not None:
            layer.attention = titan.journey_attention(plain, transport=transport, attention=attention)
    return config


def built(config, state=None):
    """As torchtitan's trainer builds it: without memory first, then initialised."""
    with torch.device("meta"):
        model = config.build()
    model.verify_module_protocol()
    model.to_empty(device="cpu")
    torch.manual_seed(3)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    if state is not None:
        model.load_state_dict(state)
    return model


def close(a, b, rounding=2e-6):
    torch.testing.assert_close(a, b, rtol=0, atol=rounding * float(b.detach().abs().max()))


def differs(a, b):
    assert (a - b).abs().max() > 1e-2 * b.abs().max()


@pytest.fixture
def _eager_flex(monkeypatch):
    """torchtitan compiles FlexAttention and its mask; the same functions as they are take no minute."""
    monkeypatch.setattr(theirs.FlexAttention, "_compiled_flex_attn", flex_attention)
    monkeypatch.setattr(theirs, "_compiled_create_block_mask", create_block_mask)


@pytest.mark.usefixtures("_eager_flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_scores_alone_are_torchtitans_own_llama():
    tokens = torch.randint(VOCAB, PACKED.shape)
    plain = built(llama())
    given = {"positions": PACKED, "attention_masks": plain.get_attention_masks(PACKED)}
    expected = plain(tokens, **given)
    state = plain.state_dict()
    close(built(llama("scores"), state)(tokens, **given), expected)  # in their attention
    close(built(llama("scores", "sdpa"), state)(tokens, PACKED), expected)  # in ours
    both = built(llama("both"), state)(tokens, **given)
    close(built(llama("both", "sdpa"), state)(tokens, PACKED), both)
    differs(both, expected)
    differs(built(llama("scores", "sdpa"), state)(tokens), expected)  # one document


@pytest.mark.usefixtures("_eager_flex")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_scores_alone_are_torchtitans_own_qwen3():
    """Whose queries and keys are normalised, and rotated in other planes."""

    def qwen(**arguments):
        config = qwen3_configs["debugmodel"](attn_backend="flex")
        config.layers = config.layers[:1]
        if arguments:
            config.layers[0].attention = titan.journey_attention(config.layers[0].attention, **arguments)
        return config

    tokens, plain = torch.randint(VOCAB, PACKED.shape), built(qwen())
    given = {"positions": PACKED, "attention_masks": plain.get_attention_masks(PACKED)}
    state, expected = plain.state_dict(), plain(tokens, **given)
    close(built(qwen(transport="scores"), state)(tokens, **given), expected)
    close(built(qwen(transport="scores", attention="sdpa"), state)(tokens, PACKED), expected)
    assert not torch.equal(built(qwen(transport="both"), state)(tokens, **given), expected)


@torch.no_grad()
def test_both_is_transport_values_in_hugging_faces_llama():
    """By torchtitan's own conversion of the weights, there and back."""
    config = llama("both", "sdpa")
    model, tokens = built(config), torch.randint(VOCAB, (2, 24))
    adapter = Llama3StateDictAdapter(config, None)
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    hugging = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=DIM, intermediate_size=config.layers[0].feed_forward.w1.out_features,
            num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, rms_norm_eps=1e-5,
            rope_parameters={**scaling, "original_max_position_embeddings": 8192, "rope_theta": 500000.0},
        )
    )  # fmt: skip
    converted = adapter.to_hf(model.state_dict())
    hugging.load_state_dict(converted)
    plain = hugging(tokens).logits
    expected = transport_values(hugging)(tokens).logits
    close(model(tokens), expected, 1e-5)
    differs(plain, expected)
    again = built(config, adapter.from_hf(dict(converted)))
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_equals_the_reference(transport):
    attention = built(llama(transport, "sdpa", layers=1)).layers["0"].attention.double()
    x = torch.randn(2, PACKED.shape[1], DIM, dtype=torch.float64, requires_grad=True)

    def written(x):
        q, k, v = attention.qkv_linear(x)
        angles = PACKED[..., None, None].double() * attention.rope.frequencies()[0]
        out = reference(
            q, k, v, FlatFrames.of(angles, layout="interleaved"),
            value_frames=FlatFrames.of(angles, layout="half"), transport=transport, causal=True,
            segments=(PACKED == 0).cumsum(-1), backend="reference",
        )  # fmt: skip
        return attention.wo(out.flatten(2))

    found, expected = attention(x, None, PACKED), written(x)
    close(found, expected, 1e-12)
    weights = torch.randn_like(found)
    inputs = (x, *attention.parameters())
    gradients = (torch.autograd.grad((out * weights).sum(), inputs) for out in (found, expected))
    for one, other in zip(*gradients):
        close(one, other, 1e-12)


@pytest.mark.parametrize(
    "config",
    [
        ComplexRoPE.Config(dim=16, max_seq_len=64),
        ComplexRoPE.Config(dim=32, max_seq_len=64, theta=500000.0, scaling="llama", scaling_factor=32.0),
        ComplexRoPE.Config(dim=32, max_seq_len=64, scaling="yarn", rope_factor=40.0, original_seq_len=64),
        CosSinRoPE.Config(dim=16, max_seq_len=64, theta=1000000.0),
    ],
)
def test_rotary_frames_are_torchtitans(config):
    frames = titan.RotaryFrames(config)(sequence(64))
    turns = torch.polar(torch.ones(()), frames.angles[0, :, 0].float())
    cache = config.build().cache
    theirs = cache if cache.is_complex() else torch.complex(cache[:, : config.dim // 2], cache[:, -config.dim // 2 :])
    torch.testing.assert_close(turns, theirs, rtol=0, atol=1e-5)
    assert frames.layout == ("interleaved" if cache.is_complex() else "half")


def test_same_weights_and_no_tables():
    """Its checkpoints are torchtitan's, and nothing is kept between forward passes."""
    plain, ours = built(llama()), built(llama("both"))
    assert {name: tuple(t.shape) for name, t in ours.state_dict().items()} == {
        name: tuple(t.shape) for name, t in plain.state_dict().items()
    }
    assert dict(ours.named_buffers()) == {}
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in plain.parameters())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), ours.parameters()))  # the same random numbers
    assert "transport='both'" in repr(ours.layers["0"].attention)
    assert llama("values").to_dict()["layers"][0]["attention"]["transport"] == "values"


def test_one_graph_per_block():
    """torchtitan compiles block by block."""
    torch._dynamo.reset()
    model = built(llama("both", "sdpa", layers=1))
    block, x = model.layers["0"], torch.randn(2, PACKED.shape[1], DIM)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    found, expected = compiled(x, None, PACKED), block(x, None, PACKED)
    close(found, expected)
    weights = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((o * weights).sum(), block.parameters()) for o in (found, expected))):
        close(one, other, 1e-5)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: llama("everything"), "transport must be"),
        (lambda: llama("both", "flash"), "attention must be 'sdpa'"),
        (
            lambda: titan.RotaryFrames(
                ComplexRoPE.Config(dim=8, max_seq_len=8, scaling="yarn", rope_factor=2.0, truncate=False)
            ),
            "truncate=False",
        ),
        (
            lambda: titan.PackedAttention.Config().build()(*(torch.rand(1, n, 2, 8) for n in (4, 8, 8))),
            "no context parallelism",
        ),
    ],
)
def test_refused(call, line):
    with pytest.raises(ValueError, match=line) as error:
        call()
    assert "\n" not in str(error.value)


def test_commands_of_the_page():
    """torchtitan understands them, and journey attention is what they build."""
    page = (Path(titan.__file__).parents[3] / "docs" / "integrations.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line) for line in page.splitlines() if "-m torchtitan.train" in line]
    assert len(commands) == 2
    for words, transport in zip(commands, ("both", "values")):
        config = ConfigManager().parse_args(words[words.index("torchtitan.train") + 1 :])
        config.model_spec.model.update_from_config(config=config)
        replaced = apply_overrides(config.override, config)
        assert len(replaced) == len(config.model_spec.model.layers)
        assert {layer.attention.transport for layer in config.model_spec.model.layers} == {transport}


# By torchtitan's own trainer, in processes forked from one that has imported it and done nothing else.

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["titan_on_cpu"])
JOURNEY = "joformer.integrations.titan.journey_attention"
OPTIONS = (
    "--module joformer.integrations.titan --config llama3_debugmodel --training.seq_len 64"
    " --training.local_batch_size 4 --dataloader.dataset c4_test --debug.seed 0 --metrics.disable_color_printing"
)


def losses(folder, *words, ranks=1, **arguments):
    """What the trainer logs: loss by loss."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = json.dumps({"attention": "sdpa", **arguments})
    words = [*OPTIONS.split(), *words, "--dump_folder", folder, "--hf_assets_path", DATA / "tokenizer"]
    words += ["--dataloader.dataset_path", DATA / "text", "--override.imports", f"{JOURNEY}={arguments}"]
    logs = [folder / f"{rank} of {ranks}.log" for rank in range(ranks)]
    words = list(map(str, words))
    running = [
        processes.Process(target=titan_on_cpu.run, args=(rank, ranks, port, words, log), daemon=True)
        for rank, log in enumerate(logs)
    ]
    for one in running:
        one.start()
    for one in running:
        one.join(300)
    said = logs[0].read_text()
    assert [one.exitcode for one in running] == [0] * ranks, said[-3000:]
    return [float(loss) for loss in re.findall(r"step: +\d+ +loss: +([\d.]+)", said)]


def test_trained_by_torchtitan(tmp_path):
    """It learns, with torchtitan's defaults too: FSDP2, bfloat16, selective activation checkpointing. A checkpoint of
    one process is resumed by two that share the heads (tensor parallelism), with the same losses."""
    exact, rounded = tmp_path / "exact", tmp_path / "rounded"
    exact.mkdir(), rounded.mkdir()
    words = ("--training.steps", 5, "--training.mixed_precision_param", "float32")
    words += ("--checkpoint.enable", "--checkpoint.interval", 3, "--parallelism.spmd_backend", "partial_dtensor")
    one = losses(exact, *words)
    assert len(one) == 5
    assert one[-1] < one[0] - 1
    assert losses(rounded, "--training.steps", 2) == pytest.approx(one[:2], abs=0.02)
    two = losses(exact, *words, "--checkpoint.load_step", 3, "--parallelism.tensor_parallel_degree", 2, ranks=2)
    assert two == pytest.approx(one[3:], abs=2e-4)
