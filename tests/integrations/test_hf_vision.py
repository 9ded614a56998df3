"""Our vision transformer in transformers: what its common tests of vision models check, for every variant of ours."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForImageClassification

from joformer.integrations.hf import models
from joformer.models import VARIANTS, JoFormerViT, ViTConfig, save

SMALL = {"shape": (8, 8), "patch": (4, 4), "channels": 1, "classes": 10, "dim": 16, "layers": 3, "heads": 2}
EVERY = pytest.mark.parametrize("variant", VARIANTS)
SOME = pytest.mark.parametrize("variant", ["joformer_axial", "liere64_v", "cumulative"])


def ours(variant="joformer_axial", **changes):
    """A model none of whose weights is where it started."""
    torch.manual_seed(1)
    model = JoFormerViT(ViTConfig(model=variant, **(SMALL | changes)))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval()


def theirs(variant="joformer_axial", **changes):
    return models.JoFormerForImageClassification.from_joformer(ours(variant, **changes))


def some(batch=3, *shape):
    return torch.rand(batch, 1, *(shape or (8, 8)), generator=torch.Generator().manual_seed(2))


def close(a, b, atol=2e-5):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


@pytest.mark.parametrize(("model", "transport"), [("rope2d", None), ("joformer_old", "scores")])
def test_folders_of_version_0_1_load(model, transport, tmp_path):
    """They hold a name, and null or a transport beside it."""
    new, x = theirs("rope2d"), some()
    new.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    assert {name: content.pop(name) for name in vars(VARIANTS["rope2d"])} == vars(VARIANTS["rope2d"])
    path.write_text(json.dumps(content | {"model": model, "transport": transport}))
    again = models.JoFormerForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(again(x).logits, new(x).logits)
    assert again.to_joformer().config == new.to_joformer().config


@EVERY
def test_it_is_our_model_to_the_last_bit(variant, tmp_path):
    model, x = ours(variant), some()
    new = models.JoFormerForImageClassification.from_joformer(model)
    assert torch.equal(new(x).logits, model(x))
    assert torch.equal(new.to_joformer()(x), model(x))
    if variant != "learned":  # bound to its grid
        assert torch.equal(new(some(2, 12, 20)).logits, model(some(2, 12, 20)))
    new.save_pretrained(tmp_path)
    again, about = models.JoFormerForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(again(x).logits, model(x))
    assert again.config.to_joformer() == new.config.to_joformer()
    new.set_attn_implementation("eager")
    close(new(x).logits, model(x))


@pytest.mark.parametrize("changes", [{"pool": "mean"}, {"registers": 2}, {"shape": (8,), "patch": (2,)}])
def test_other_shapes(changes):
    model = ours(**changes)
    x = some(3, *changes.get("shape", (8, 8)))
    assert torch.equal(models.JoFormerForImageClassification.from_joformer(model)(x).logits, model(x))


@SOME
def test_it_starts_as_our_model_does(variant):
    config = SMALL | {"dim": 64}
    model = JoFormerViT(ViTConfig(model=variant, **config))
    new = models.JoFormerForImageClassification(models.JoFormerViTConfig(model=variant, **config))
    mine, its = dict(model.named_parameters()), dict(new.model.named_parameters())
    assert mine.keys() == its.keys()
    for name, weight in mine.items():
        if weight.std() < 1e-6 or "frequencies" in name:
            assert torch.equal(weight, its[name]), name
        else:
            assert abs(its[name].std() / weight.std() - 1) < 6 / weight.numel() ** 0.5, name


@SOME
def test_hidden_states_attentions_and_loss(variant):
    model, x, labels = theirs(variant), some(), torch.tensor([1, 2, 3])
    model.set_attn_implementation("eager")
    out = model(x, labels=labels, output_hidden_states=True, output_attentions=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(3, 5, 16)] * 4
    assert [tuple(a.shape) for a in out.attentions] == [(3, 2, 5, 5)] * 3
    close(out.attentions[0].sum(-1), torch.ones(3, 2, 5))
    close(out.loss, torch.nn.functional.cross_entropy(ours(variant)(x), labels))
    out.hidden_states[0].retain_grad()
    out.attentions[0].retain_grad()
    out.loss.backward()
    assert out.hidden_states[0].grad.abs().sum() > 0
    assert out.attentions[0].grad.abs().sum() > 0
    assert torch.equal(model(x, return_dict=False)[0], out.logits)


@EVERY
def test_checkpointed_gradients_are_the_same(variant):
    model, x, labels = theirs(variant, drop_path=0.3, dropout=0.1).train(), some(), torch.tensor([1, 2, 3])
    found = []
    for again in (False, True):
        if again:
            model.gradient_checkpointing_enable()
        torch.manual_seed(5)
        model.zero_grad()
        loss = model(x, labels=labels).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*found):
        close(a, b, atol=1e-6)


def test_saved_in_shards_with_names_of_classes(tmp_path):
    model = theirs(classes=3)
    model.config.id2label = {0: "cat", 1: "dog", 2: "cow"}
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert torch.equal(again(some()).logits, model(some()).logits)
    assert again.config.id2label == {0: "cat", 1: "dog", 2: "cow"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.hidden_size, config.image_size, config.num_labels) == (16, (8, 8), 3)
    card = (tmp_path / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert "variant `joformer_axial`" in card


def test_two_classes_are_kept(tmp_path):
    theirs(classes=2).save_pretrained(tmp_path)
    assert AutoModelForImageClassification.from_pretrained(tmp_path).config.num_labels == 2


def test_bfloat16_leaves_frames_exact(tmp_path):
    model = theirs()
    model.save_pretrained(tmp_path)
    low = models.JoFormerForImageClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(low.model.frames.frequencies, model.model.frames.frequencies)
    assert low.model.embed.weight.dtype == torch.bfloat16
    close(low(some()).logits.float(), model(some()).logits, atol=0.3)


def test_the_trainer(tmp_path):
    from transformers import Trainer, TrainingArguments

    model = models.JoFormerForImageClassification(models.JoFormerViTConfig(**SMALL))
    rows = [{"pixel_values": x, "labels": n % 10} for n, x in enumerate(some(20))]
    arguments = TrainingArguments(
        output_dir=tmp_path, max_steps=10, per_device_train_batch_size=20, learning_rate=0.02, report_to="none",
        use_cpu=True, save_strategy="no", logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] - 0.1


def test_from_a_folder(tmp_path):
    model = ours()
    save(model, tmp_path)
    assert torch.equal(models.JoFormerForImageClassification.from_joformer(tmp_path)(some()).logits, model(some()))


@pytest.mark.compiled
def test_compiled_whole():
    model, x = theirs("cumulative", layers=2), some()
    with torch.no_grad():
        expected = model(x).logits
        close(torch.compile(model, fullgraph=True, backend="eager")(x).logits, expected)


@pytest.mark.refused
def test_what_cannot_be_is_refused_in_a_line():
    model = theirs()
    cases = [
        (model, "give pixel_values"),
        (lambda: model(torch.zeros(1, 1, 9, 8)), "a multiple of 4"),
        (lambda: model(some(), output_attentions=True), "set_attn_implementation"),
        (lambda: models.JoFormerViTConfig(model="vit"), "unknown model 'vit'"),
        (
            lambda: models.JoFormerForImageClassification.from_joformer(torch.nn.Linear(2, 2)),
            "built from a JoFormerViT",
        ),
    ]
    for call, said in cases:
        with pytest.raises(ValueError, match=said) as error:
            call()
        assert "\n" not in str(error.value)
