"""Folders of transported models that were damaged or forged: loaded as they were, or one line says what is wrong."""

import json
import pickle
import random
import shutil

import pytest
import torch
import transformers as T

from joformer.integrations import load, transport_values

IDS = torch.arange(12).view(2, 6)
SENTINEL = object()  # a key that is taken away
WRONG = (None, "x", -1, 1e999, [], {}, [1, "a"], {"a": None}, True, 10**30, SENTINEL)


def llama():
    torch.manual_seed(0)
    config = T.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return T.LlamaForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS, use_cache=False).logits


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two folders with what else such folders have: the weights in one file, and in several with an index."""
    folder = tmp_path_factory.mktemp("whole")
    model = transport_values(llama(), 0.8)
    for name, size in (("single", "1GB"), ("sharded", "3KB")):
        model.save_pretrained(folder / name, max_shard_size=size)
        (folder / name / "tokenizer.json").write_text('{"version": "1.0"}')
        (folder / name / "tokenizer_config.json").write_text("{}")
    assert len(list((folder / "sharded").glob("*.safetensors"))) > 2
    return folder, logits(model)


@pytest.fixture
def attempt(made, tmp_path, monkeypatch):
    """Damage a copy, load it: equal, or an error of one line, which is returned; anything else fails the test."""

    def loading_ran_code(*_, **__):
        raise AssertionError("a pickle was read")

    monkeypatch.setattr(torch, "load", loading_ran_code)

    def run(kind, damage, what):
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made[0] / kind, folder)
        damage(folder)
        try:
            model = load(folder)
        except (ValueError, OSError) as error:
            said = str(error)
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")
        else:
            assert torch.equal(logits(model), made[1]), what
            return None
        assert said, what
        assert "\n" not in said, what
        return said

    return run


def files(made, kind):
    return sorted(path.name for path in (made[0] / kind).iterdir())


@pytest.mark.refused
@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_files_cut_short_replaced_or_gone(made, attempt, kind):
    dice = random.Random(0)
    loaded = 0
    for name in files(made, kind):
        whole = (made[0] / kind / name).read_bytes()
        contents = {
            "empty": b"", "garbage": dice.randbytes(100), "zeros": bytes(len(whole)), "a tail": whole + b"\0{",
            "text": b"not what it was", "deep": b"[" * 100_000, "latin": b'{"a": "\xe9"}', "another": b"\x80\x04N.",
            **{f"cut {n}": whole[: len(whole) * n // 8] for n in (1, 4, 7)}, "cut by 1": whole[:-1],
        }  # fmt: skip
        if name.endswith(".safetensors"):
            contents["header too long"] = (1 << 40).to_bytes(8, "little") + whole[8:]
            contents["another type"] = whole.replace(b'"F32"', b'"I32"', 1)
            contents["another shape"] = whole.replace(b'"shape":[', b'"shape":[2,', 1)
        for what, data in contents.items():
            loaded += attempt(kind, lambda f, n=name, d=data: (f / n).write_bytes(d), f"{name} {what}") is None
        loaded += attempt(kind, lambda f, n=name: (f / n).unlink(), f"{name} missing") is None
        folder = lambda f, n=name: ((f / n).unlink(), (f / n).mkdir())  # noqa: E731
        loaded += attempt(kind, folder, f"{name} is a folder") is None
    # Files of the tokenizer are not read by `load`: whatever is done to them, the model comes back.
    assert loaded >= 2 * 12


@pytest.mark.refused
def test_settings_of_another_type(made, attempt):
    config = json.loads((made[0] / "single" / "config.json").read_text())

    def changed(keys, value):
        def damage(folder):
            content = json.loads(json.dumps(config))
            inner = content
            for key in keys[:-1]:
                inner = inner[key]
            if value is SENTINEL:
                del inner[keys[-1]]
            else:
                inner[keys[-1]] = value
            (folder / "config.json").write_text(json.dumps(content))

        return damage

    places = [(key,) for key in config] + [("joformer", key) for key in config["joformer"]]
    places += [("rope_parameters", key) for key in config["rope_parameters"]]
    for keys in places:
        for value in WRONG:
            if keys[-1] in NUMBERS and isinstance(value, int | float):
                continue  # another number is another model, not a damaged one
            attempt("single", changed(keys, value), f"{keys} = {value!r}")
    for content in (None, 3, "x", [], [config], {}):
        assert attempt("single", lambda f, c=content: (f / "config.json").write_text(json.dumps(c)), f"{content!r}")


NUMBERS = {
    "rms_norm_eps", "rope_theta", "attention_dropout", "initializer_range", "pretraining_tp", "strength",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip


@pytest.mark.refused
def test_an_index_that_leads_elsewhere(made, attempt, tmp_path):
    name = "model.safetensors.index.json"
    index = json.loads((made[0] / "sharded" / name).read_text())
    first = next(iter(index["weight_map"]))
    (tmp_path / "outside.safetensors").write_bytes((made[0] / "single" / "model.safetensors").read_bytes())
    for value in (
        "pytorch_model.bin",
        "../outside.safetensors",
        str(tmp_path / "outside.safetensors"),
        3,
        None,
        "",
        [],
    ):

        def damage(folder, value=value):
            (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))
            content = {**index, "weight_map": {**index["weight_map"], first: value}}
            (folder / name).write_text(json.dumps(content))

        assert attempt("sharded", damage, f"{value!r}"), value
    for content in ([], {}, {"weight_map": None}, {"weight_map": []}, {"weight_map": {}}, 3, None):
        damage = lambda f, c=content: (f / name).write_text(json.dumps(c))  # noqa: E731
        assert attempt("sharded", damage, f"{content!r}"), content


@pytest.mark.refused
def test_pickles_are_never_read(made, attempt):
    def instead(folder):
        state = T.LlamaForCausalLM(llama().config).state_dict()
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        with (folder / "pytorch_model.bin").open("wb") as file:
            pickle.dump(state, file)

    for kind in ("single", "sharded"):
        assert "no safetensors weights" in attempt(kind, instead, kind)
    with pytest.raises(ValueError, match="use_safetensors must be True"):
        load(made[0] / "single", use_safetensors=False)

    def adapter(folder):
        (folder / "adapter_config.json").write_text("{}")

    assert "an adapter next to the model" in attempt("single", adapter, "adapter")


def test_infinity_in_a_configuration_comes_back(tmp_path):
    torch.manual_seed(0)
    config = T.BambaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8,
        mamba_chunk_size=8, pad_token_id=0,
    )  # fmt: skip
    model = transport_values(T.BambaForCausalLM(config).eval(), 0.7)
    model.save_pretrained(tmp_path)
    assert "Infinity" in (tmp_path / "config.json").read_text()
    assert torch.equal(logits(load(tmp_path)), logits(model))
