"""Models on disk come back bit for bit, and nothing in a file is believed or run."""

import json
import math
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from joformer.models import (
    ClassifierConfig,
    JoFormerLM,
    JoFormerViT,
    JourneySSM,
    LMConfig,
    MonoidalClassifier,
    ViTConfig,
    load,
    save,
)

SMALL = {
    "lm": lambda: JoFormerLM(LMConfig(vocab=17, dim=16, layers=2, heads=2, pattern="WN", window=3)),
    "lm untied": lambda: JoFormerLM(LMConfig(vocab=17, dim=16, layers=2, heads=2, tied=False, frames="projected")),
    "vit": lambda: JoFormerViT(
        ViTConfig(model="joformer", shape=(8, 8), patch=(4, 4), classes=3, dim=16, layers=2, heads=2, registers=1)
    ),
    "classifier": lambda: MonoidalClassifier(ClassifierConfig(dim=8, shape=(4, 4), frequencies="dft")),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_model_comes_back_bit_for_bit(name, tmp_path):
    torch.manual_seed(3)
    model = SMALL[name]()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    save(model, tmp_path / "deep" / "folder")
    back = load(tmp_path / "deep" / "folder")
    assert type(back) is type(model)
    assert back.config == model.config
    assert not back.training
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values()))
    if name == "lm":
        assert back.head.weight is back.embed.weight
    assert sorted(p.name for p in (tmp_path / "deep" / "folder").iterdir()) == ["config.json", "model.safetensors"]


def test_saving_again_replaces_both_files(tmp_path):
    save(SMALL["lm"](), tmp_path)
    save(SMALL["classifier"](), tmp_path)
    assert isinstance(load(tmp_path), MonoidalClassifier)


def altered(tmp_path, **changes):
    save(SMALL["classifier"](), tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    written["config"] |= changes.pop("config", {})
    path.write_text(json.dumps(written | changes))
    return tmp_path


@pytest.mark.parametrize("call", ["save(model, folder)", "load(folder)"])
def test_a_bare_install_names_the_extra(tmp_path, call):
    save(SMALL["classifier"](), tmp_path)
    code = (
        "import sys; sys.modules['safetensors'] = None\n"
        "from joformer.models import ClassifierConfig, MonoidalClassifier, load, save\n"
        f"model, folder = MonoidalClassifier(ClassifierConfig(dim=8)), {str(tmp_path)!r}\n"
        f"try: {call}\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "safetensors is not installed: pip install 'joformer[train]'\n"


@pytest.mark.refused
class TestRefused:
    def refuse(self, folder, says):
        with pytest.raises(ValueError, match=says) as error:
            load(folder)
        assert "\n" not in str(error.value)

    def test_no_model_there(self, tmp_path):
        self.refuse(tmp_path, "has no config.json")
        (tmp_path / "config.json").write_text("{}")
        self.refuse(tmp_path, "has no model.safetensors")

    def test_configurations_that_are_none(self, tmp_path):
        self.refuse(altered(tmp_path, model="Llama"), "is not a model's configuration")
        self.refuse(altered(tmp_path, config={"depth": 3}), r"holds \['depth'\]")
        self.refuse(altered(tmp_path, config={"dim": "8"}), "dim is '8'")
        self.refuse(altered(tmp_path, config={"dim": True}), "dim is True")
        self.refuse(altered(tmp_path, config={"frequencies": "random"}), "frequencies is 'random'")
        self.refuse(altered(tmp_path, config={"shape": [4, 4.5]}), "shape is")
        (tmp_path / "config.json").write_bytes(b"\xff\xfe")
        self.refuse(tmp_path, "is not a model's configuration")

    def test_weights_of_another_model(self, tmp_path):
        self.refuse(altered(tmp_path, config={"hidden": 64}), "first at 'mlp.0.bias': they belong to two models")

    def test_a_damaged_file(self, tmp_path):
        save(SMALL["classifier"](), tmp_path)
        path = tmp_path / "model.safetensors"
        whole = path.read_bytes()
        for broken in (whole[:-5], whole[:40], b"", b"\x00" * 100):
            path.write_bytes(broken)
            self.refuse(tmp_path, "is damaged or no safetensors file")

    def test_weights_of_another_dtype(self, tmp_path):
        save(SMALL["classifier"](), tmp_path)
        path = tmp_path / "model.safetensors"
        weights = load_file(path)
        for dtype, name in ((torch.float16, "F16"), (torch.float64, "F64"), (torch.int32, "I32")):
            save_file(weights | {"mlp.0.bias": weights["mlp.0.bias"].to(dtype)}, path)
            self.refuse(tmp_path, rf"first at 'mlp\.0\.bias': .*\({name} of shape \(128,\) instead of F32")
        with pytest.raises(ValueError, match=r"load could not give it back: .* is BF16 of shape .* instead of F32"):
            save(SMALL["classifier"]().bfloat16(), tmp_path)

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_weights_that_are_no_numbers(self, tmp_path, number):
        model = SMALL["classifier"]()
        with torch.no_grad():
            model.mlp[2].weight[0, 0] = number
        save(model, tmp_path)
        self.refuse(tmp_path, r"is damaged: 'mlp\.2\.weight' holds NaN or infinity")

    def test_one_number_is_not_spread_over_a_weight(self, tmp_path):
        save(SMALL["classifier"](), tmp_path)
        path = tmp_path / "model.safetensors"
        save_file(load_file(path) | {"mlp.0.bias": torch.zeros(1)}, path)
        self.refuse(tmp_path, r"first at 'mlp\.0\.bias': .*\(F32 of shape \(1,\) instead of F32 of shape \(128,\)\)")

    @pytest.mark.parametrize("deep", ["[" * 100_000, '{"model": ' * 5000])
    def test_a_configuration_too_deep(self, tmp_path, deep):
        save(SMALL["classifier"](), tmp_path)
        (tmp_path / "config.json").write_text(deep)
        self.refuse(tmp_path, "is not a model's configuration")

    @pytest.mark.parametrize("field", ["dim", "hidden", "classes"])
    def test_absurd_sizes_take_no_memory(self, tmp_path, field):
        self.refuse(altered(tmp_path, config={field: 1 << 60}), r"config\.json")

    def test_a_pickle_is_never_opened(self, tmp_path):
        save(SMALL["classifier"](), tmp_path)
        ran = []

        class Trap:
            def __reduce__(self):
                return ran.append, (1,)

        (tmp_path / "model.safetensors").write_bytes(pickle.dumps(Trap()))
        self.refuse(tmp_path, "no safetensors file")
        torch.save({"a": torch.ones(2)}, tmp_path / "model.safetensors")
        self.refuse(tmp_path, "no safetensors file")
        assert not ran

    def test_what_cannot_be_saved(self, tmp_path):
        with pytest.raises(ValueError, match="none of the models that can be saved"):
            save(JourneySSM(8, heads=2), tmp_path)
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="is a file: give a directory"):
            save(SMALL["classifier"](), tmp_path / "file")

    def test_a_full_disk_leaves_what_was_there(self, tmp_path, monkeypatch):
        save(SMALL["classifier"](), tmp_path)
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(ValueError, match="No space left on device"):
            save(SMALL["lm"](), tmp_path)
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
