"""Adapters belong to the transport they were trained with: it is saved with them, and required when they are loaded."""

import json

import pytest
import torch
import transformers as T
from families import FAMILIES, TOKENS, VOCAB, answer

from joformer.integrations import Anneal, transport_values

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
INPUTS = FAMILIES["llama"].inputs()
KINDS = {
    "lora": lambda: peft.LoraConfig(r=2, target_modules=["v_proj", "o_proj"], init_lora_weights=False),
    "lora elsewhere": lambda: peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[], init_ia3_weights=False),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
}


def llama():
    return FAMILIES["llama"].made()


def adapted(model, kind="lora"):
    torch.manual_seed(9)
    return peft.get_peft_model(model, KINDS[kind]()).eval()


def said(model):
    with torch.no_grad():
        return answer(model, INPUTS, use_cache=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", ["adapter", "transport"])
def test_an_adapter_comes_back_only_to_the_transport_it_had(kind, first, tmp_path):
    if first == "adapter":
        model = transport_values(adapted(llama(), kind), 0.8)
    else:
        model = adapted(transport_values(llama(), 0.8), kind)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())["joformer"]["transported"]
    assert [entry["strength"] for entry in written] == [0.8]
    assert written[0]["attentions"] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    back = peft.PeftModel.from_pretrained(transport_values(llama(), 0.8), tmp_path).eval()
    assert torch.equal(said(back), said(model))
    for base in (llama(), transport_values(llama(), 0.5), transport_values(llama(), 0.0)):
        before = {name: type(part) for name, part in base.named_modules()}
        with pytest.raises(
            ValueError, match=r"call transport_values\(model, 0\.8\) before the adapter is loaded"
        ) as why:
            peft.PeftModel.from_pretrained(base, tmp_path)
        assert "\n" not in str(why.value)
        assert {name: type(part) for name, part in base.named_modules()} == before
    # Saved again from where it was loaded, and beside another one.
    back.save_pretrained(tmp_path / "again")
    if kind == "prompt":
        return
    with pytest.raises(ValueError, match="was trained with the values of 2 attentions"):
        llama().load_adapter(str(tmp_path / "again"))
    with pytest.raises(ValueError, match="this LlamaForCausalLM has no values transported"):
        adapted(llama(), kind).load_adapter(str(tmp_path / "again"), "other")
    ours = adapted(transport_values(llama(), 0.8), kind)
    ours.load_adapter(str(tmp_path / "again"), "other")
    ours.set_adapter("other")
    assert torch.equal(said(ours), said(model))


def test_adapters_of_transformers_own(tmp_path):
    model = transport_values(llama(), 0.8)
    torch.manual_seed(9)
    model.add_adapter(KINDS["lora"]())
    model.save_pretrained(tmp_path)
    back = transport_values(llama(), 0.8)
    back.load_adapter(str(tmp_path))
    assert torch.equal(said(back), said(model))
    with pytest.raises(ValueError, match="before the adapter is loaded"):
        llama().load_adapter(str(tmp_path))


def test_without_transport_nothing_is_written(tmp_path):
    plain = adapted(llama())
    plain.save_pretrained(tmp_path / "plain")
    transport_values(adapted(llama()), 0.0).save_pretrained(tmp_path / "zero")
    texts = [(tmp_path / name / "adapter_config.json").read_text() for name in ("plain", "zero")]
    assert json.loads(texts[0]) == json.loads(texts[1])
    back = peft.PeftModel.from_pretrained(llama(), tmp_path / "zero").eval()
    assert torch.equal(said(back), said(plain))
    with pytest.warns(
        UserWarning, match="an adapter saved without transport is loaded into a model with the values of 2"
    ):
        peft.PeftModel.from_pretrained(transport_values(llama(), 0.8), tmp_path / "plain")


def test_without_joformer_it_stops_with_the_sentence(tmp_path, monkeypatch):
    adapted(transport_values(llama(), 0.8)).save_pretrained(tmp_path)
    mixin = peft.config.PeftConfigMixin
    for name in ("from_json_file", "from_peft_type"):  # as PEFT has them
        monkeypatch.setattr(mixin, name, classmethod(mixin.__dict__[name].__func__.__wrapped__))
    with pytest.raises(KeyError, match=r"pip install joformer, joformer\.integrations\.transport_values"):
        peft.PeftModel.from_pretrained(llama(), tmp_path)


@pytest.mark.refused
def test_a_damaged_setting_is_one_line(tmp_path):
    adapted(transport_values(llama(), 0.8)).save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    for setting in (3, {}, {"transported": []}, {"transported": [{}]}, {"transported": [3], "peft_type": "LORA"}):
        path.write_text(json.dumps({**config, "joformer": setting}))
        with pytest.raises(ValueError, match="is not what save_pretrained writes") as why:
            peft.PeftModel.from_pretrained(transport_values(llama(), 0.8), tmp_path)
        assert "\n" not in str(why.value)


# -- the Trainer -------------------------------------------------------------------------------------------------------


class Sentences(torch.utils.data.Dataset):
    tokens = torch.randint(2, VOCAB, (8, TOKENS), generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, at):
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


def trainer(model, folder, steps, **more):
    arguments = T.TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=2, use_cpu=True, save_steps=1,
        report_to=[], disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no",
    )  # fmt: skip
    return T.Trainer(model=model, args=arguments, train_dataset=Sentences(), **more)


@pytest.mark.filterwarnings("ignore:.*missing adapter keys.*")
@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_a_trainer_that_resumes_without_it_warns(kind, tmp_path, recwarn):
    def made(strength):
        model = adapted(llama()) if kind == "adapter" else llama()
        return model if strength is None else transport_values(model, strength)

    trainer(made(0.8), tmp_path, 1).train()
    trainer(made(0.8), tmp_path, 2).train(resume_from_checkpoint=True)
    assert not [warning for warning in recwarn if "was saved with" in str(warning.message)]
    for strength, has in ((None, "no values transported"), (0.5, "2 attentions transported at strength 0.5")):
        with pytest.warns(UserWarning, match="was saved with the values of 2 attentions") as told:
            trainer(made(strength), tmp_path, 3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        (line,) = [str(warning.message) for warning in told if "was saved with" in str(warning.message)]
        assert has in line
        assert line.endswith("call transport_values(model, 0.8) before training")


@pytest.mark.filterwarnings("ignore:.*missing adapter keys.*")
def test_a_trainer_that_anneals_resumes_without_a_word(tmp_path, recwarn):
    trainer(adapted(llama()), tmp_path, 2, callbacks=[Anneal(4)]).train()
    assert json.loads((tmp_path / "checkpoint-2" / "adapter_config.json").read_text())["joformer"]
    run = trainer(adapted(llama()), tmp_path, 3, callbacks=[Anneal(4)])
    run.train(resume_from_checkpoint=True)
    assert not [warning for warning in recwarn if "was saved with" in str(warning.message)]
