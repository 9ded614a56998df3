"""A saved model is loaded with its values transported, or not at all."""

import json

import pytest
import torch
import transformers as T
from families import FAMILIES, REQUIRED, answer, trace

from joformer.integrations import load, strength_of, transport_values


def made(name="llama", strength=0.8):
    return transport_values(FAMILIES[name].made(), strength)


@pytest.mark.parametrize("name", [*REQUIRED, "llama3", "yarn", "longrope long", "glm", "cohere", "smollm3", "gptoss"])
def test_what_is_saved_comes_back_and_only_through_load(name, tmp_path):
    family = FAMILIES[name]
    untouched = family.made()
    untouched.save_pretrained(tmp_path / "plain")
    model, inputs, tmp_path = made(name), family.inputs(), tmp_path / "folder"
    config, trail = model.config, trace(model)
    model.save_pretrained(tmp_path)
    assert model.config is config
    assert config.to_dict() == untouched.config.to_dict()
    assert sorted(config.__dict__) == sorted(untouched.config.__dict__)
    assert {key: part for key, part in trace(model).items() if key} == {key: part for key, part in trail.items() if key}
    back = load(tmp_path)
    assert type(back) is type(model)
    assert strength_of(back) == 0.8
    assert not back.training
    back.set_attn_implementation(family.implementation)
    with torch.no_grad():
        assert torch.equal(answer(back, inputs), answer(model, inputs))
    auto = T.AutoModel if family.image else T.AutoModelForCausalLM
    for cls in (auto, type(model), T.AutoConfig):
        with pytest.raises(Exception, match=r"joformer\.integrations\.load"):
            cls.from_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path.parent / "plain").config.to_dict()
    assert {**back.config.to_dict(), "_name_or_path": ""} == {**plain, "_name_or_path": ""}


def test_saved_again_and_changed(tmp_path):
    model, inputs = made(), FAMILIES["llama"].inputs()
    model.save_pretrained(tmp_path / "one")
    back = load(tmp_path / "one")
    transport_values(back, 0.25)
    back.save_pretrained(tmp_path / "two")
    again = load(str(tmp_path / "two"))
    assert strength_of(again) == 0.25
    transport_values(model, 0.25)
    assert torch.equal(answer(again, inputs), answer(model, inputs))
    assert strength_of(load(tmp_path / "one")) == 0.8
    with pytest.raises(Exception, match=r"joformer\.integrations\.load"):
        T.AutoModelForCausalLM.from_pretrained(tmp_path / "two")


def test_sharded_and_in_another_precision(tmp_path):
    model, inputs = made(), FAMILIES["llama"].inputs()
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert torch.equal(answer(load(tmp_path), inputs), answer(model, inputs))
    assert load(tmp_path, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("how", ["zero", "off"])
def test_without_transport_the_folder_is_plain(how, tmp_path):
    untouched = FAMILIES["llama"].made()
    untouched.save_pretrained(tmp_path / "untouched")
    model = made()
    transport_values(model, 0.0) if how == "zero" else transport_values(model, off=True)
    model.save_pretrained(tmp_path / "plain")
    names = sorted(path.name for path in (tmp_path / "untouched").iterdir())
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == names
    for name in names:
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "untouched" / name).read_bytes()
    back = T.AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert torch.equal(answer(back, FAMILIES["llama"].inputs()), answer(untouched, FAMILIES["llama"].inputs()))


@pytest.mark.parametrize("called", ["outer", "inner"])
def test_the_model_inside_is_not_saved_as_if_it_had_none(called, tmp_path):
    model = FAMILIES["llama"].made()
    transport_values({"outer": model, "inner": model.model}[called], 0.8)
    model.model.save_pretrained(tmp_path)
    with pytest.raises(Exception, match=r"joformer\.integrations\.load"):
        T.AutoModel.from_pretrained(tmp_path)
    assert strength_of(load(tmp_path)) == 0.8


def test_a_plain_save_over_a_marked_one_is_plain(tmp_path):
    model = made()
    model.save_pretrained(tmp_path)
    transport_values(model, off=True).save_pretrained(tmp_path)
    T.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_save_that_fails_leaves_the_configuration(tmp_path, monkeypatch):
    model = made()
    # Written there by transformers itself, before it saves: the class and the precision.
    model.config.architectures, model.config.dtype = ["LlamaForCausalLM"], "float32"
    before, keys, trail = model.config.to_dict(), sorted(model.config.__dict__), trace(model)
    monkeypatch.setattr(T.PreTrainedConfig, "save_pretrained", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save_pretrained(tmp_path / "folder")
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    model.save_pretrained(tmp_path / "file")  # transformers logs that it is no directory, and returns
    assert model.config.to_dict() == before
    assert sorted(model.config.__dict__) == keys
    assert trace(model) == trail
    with torch.no_grad():
        assert torch.equal(answer(model, FAMILIES["llama"].inputs()), answer(made(), FAMILIES["llama"].inputs()))


def test_by_the_trainer(tmp_path):
    model = made()
    arguments = T.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    T.Trainer(model=model, args=arguments).save_model(str(tmp_path / "model"))
    back, inputs = load(tmp_path / "model"), FAMILIES["llama"].inputs()
    assert torch.equal(answer(back, inputs), answer(model, inputs))


@pytest.mark.refused
def test_folders_that_say_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no config\.json"):
        load(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{not json")
    with pytest.raises(ValueError, match="not JSON"):
        load(tmp_path)
    for content in ([], {"joformer": 3}, {"joformer": {"strength": 1.0}}, {}):
        config.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="does not mention transport"):
            load(tmp_path)
    FAMILIES["llama"].made().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does not mention transport: load it with transformers") as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)
    made().save_pretrained(tmp_path)
    marked = json.loads(config.read_text())
    for names in ([], None, ["NoSuchModel"]):
        config.write_text(json.dumps({**marked, "architectures": names}))
        with pytest.raises(ValueError, match="architecture"):
            load(tmp_path)
