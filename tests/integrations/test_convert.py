"""`joformer convert`: a folder in, a folder out; annealed, interrupted, undone; one line for every mistake."""

import dataclasses
import errno
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
import transformers as T

from joformer import cli
from joformer.integrations import _finetuning as finetuning
from joformer.integrations import _folders as folders
from joformer.integrations import load, strength_of, transport_values
from joformer.integrations._convert import convert

TEXT = "the quick brown fox jumps over the lazy dog, and the dog — né Rex — does not mind at all.\n" * 120
ANNEAL = {"anneal": 4, "settle": 2, "context": 16, "batch": 2, "lr": 1e-2, "save_every": 2}
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
WORDS = [word for name, value in ANNEAL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def llama(vocab=256, **changes):
    torch.manual_seed(3)
    settings = {"max_position_embeddings": 64, "attention_dropout": 0.1, "eos_token_id": None}
    return T.LlamaForCausalLM(T.LlamaConfig(vocab_size=vocab, **{**SHAPE, **settings, **changes}))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders that are read and never written: `plain` has no tokenizer, `words` has one of 300 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("models")
    llama().save_pretrained(folder / "plain")
    llama(300).save_pretrained(folder / "words")
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=alphabet)
    engine.train_from_iterator([TEXT], trainer)
    T.PreTrainedTokenizerFast(tokenizer_object=engine).save_pretrained(folder / "words")
    (folder / "words" / "LICENSE").write_text("yours")
    (folder / "words" / "modeling_words.py").write_text("raise SystemExit('code was run')")
    (folder / "fox.txt").write_text(TEXT)
    return folder


@pytest.fixture(autouse=True)
def _cache(made, monkeypatch):
    monkeypatch.setenv("JOFORMER_CACHE", str(made / "cache"))


@contextmanager
def progressing(hear):
    """Within it, `hear(step, strength)` is called before every step and the evaluation at the end."""
    usual = finetuning.AnnealingTask.prepare

    def prepare(self, model, step):
        usual(self, model, step)
        hear(step, strength_of(model) or 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning.AnnealingTask, "prepare", prepare)
        yield


@pytest.fixture(scope="module")
def annealed(made, tmp_path_factory):
    """A run that is never interrupted: its folder, its record, and its strengths step by step."""
    place, strengths = tmp_path_factory.mktemp("annealed") / "out", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOFORMER_CACHE", str(made / "cache"))
        with progressing(lambda *shown: strengths.append(shown)):
            record = convert(made / "plain", place, data=made / "fox.txt", **ANNEAL)
    return place, record, strengths


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(40).view(2, 20)).logits


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def of_words(folder):
    return T.PreTrainedTokenizerFast.from_pretrained(folder)("the dog").input_ids


# -- at once -----------------------------------------------------------------------------------------------------------


def test_at_once_is_transport_values(joformer, made, tmp_path):
    out = tmp_path / "out"
    code, said, told = joformer("convert", made / "words", out, "--strength", 0.8)
    assert (code, told) == (0, "")
    first, second = said.splitlines()
    assert "strength 0.8; the model now computes a different function: fine-tune it" in first
    assert second == f'load it with joformer.integrations.load("{out}")'
    expected = transport_values(T.LlamaForCausalLM.from_pretrained(made / "words"), 0.8)
    assert torch.equal(logits(load(out)), logits(expected))
    assert strength_of(load(out)) == 0.8
    assert of_words(out) == of_words(made / "words")
    assert (out / "LICENSE").read_text() == "yours"
    assert not (out / "modeling_words.py").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (out / "model.safetensors").stat().st_mode == (out / "config.json").stat().st_mode

    code, again, told = joformer("convert", made / "words", out, "--strength", 0.8)
    assert (code, again) == (0, said)
    assert told.endswith(f"{out} is already finished\n")
    code, said, told = joformer("convert", made / "words", out)
    assert (code, said) == (2, "")
    assert "holds a conversion with strength = 0.8, not 1.0" in told


def test_there_and_back_again(joformer, made, tmp_path):
    (tmp_path / "out").mkdir()  # an empty folder is as good as none
    assert joformer("convert", made / "words", tmp_path / "out")[0] == 0
    code, said, _ = joformer("convert", tmp_path / "out", tmp_path / "back", "--off")
    assert code == 0
    assert "no longer transported" in said
    assert f'transformers.LlamaForCausalLM.from_pretrained("{tmp_path / "back"}")' in said
    names = {path.name for path in (made / "words").iterdir()} - {"modeling_words.py"}
    assert {path.name for path in (tmp_path / "back").iterdir()} == names | {"conversion.json"}
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (made / "words" / name).read_bytes(), name
    # From where it is to another strength, and to none.
    assert convert(tmp_path / "out", tmp_path / "half", strength=0.5)["from"] == 1.0
    assert strength_of(load(tmp_path / "half")) == 0.5
    convert(tmp_path / "half", tmp_path / "none", strength=0)
    assert weights(tmp_path / "none") == weights(made / "words")
    T.LlamaForCausalLM.from_pretrained(tmp_path / "none")


def test_the_loss_beside(joformer, made, tmp_path):
    words = ("convert", made / "words", tmp_path / "out", "--data", made / "fox.txt", "--context", 16)
    code, said, told = joformer(*words)
    assert code == 0
    assert "bytes of the text" not in told
    record = json.loads(joformer(*words, "--json")[1])
    assert f"held-out loss {record['loss_before']:.4f} of {made / 'words'}, {record['loss_after']:.4f} of" in said
    # By hand: the last 10 to 5 per cent of the text, in windows side by side or nearly so.
    text = TEXT.encode()[len(TEXT.encode()) * 90 // 100 : len(TEXT.encode()) * 95 // 100].decode()
    ids = torch.tensor(T.PreTrainedTokenizerFast.from_pretrained(made / "words")(text).input_ids)
    starts = torch.linspace(0, len(ids) - 16, (len(ids) - 16) // 16 + 1, dtype=torch.float64).long()
    rows = torch.stack([ids[start : start + 16] for start in starts])
    for key, model in (
        ("loss_before", T.LlamaForCausalLM.from_pretrained(made / "words")),
        ("loss_after", load(tmp_path / "out")),
    ):
        with torch.no_grad():
            predicted = model.eval()(input_ids=rows).logits[:, :-1].flatten(0, 1)
        expected = torch.nn.functional.cross_entropy(predicted, rows[:, 1:].flatten())
        assert record[key] == pytest.approx(expected.item(), abs=1e-5)
    assert abs(record["loss_before"] - record["loss_after"]) > 1e-4


def test_a_vision_model_and_settings_that_cannot_be_saved(made, tmp_path):
    T.DINOv3ViTModel(T.DINOv3ViTConfig(**SHAPE, image_size=16, patch_size=8)).save_pretrained(tmp_path / "dino")
    (tmp_path / "dino" / "preprocessor_config.json").write_text("{}")
    convert(tmp_path / "dino", tmp_path / "out")
    assert strength_of(load(tmp_path / "out")) == 1
    assert (tmp_path / "out" / "preprocessor_config.json").read_text() == "{}"

    shutil.copytree(made / "plain", tmp_path / "warm")
    (tmp_path / "warm" / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": false}')
    convert(tmp_path / "warm", tmp_path / "warmer")
    assert json.loads((tmp_path / "warmer" / "generation_config.json").read_text())["temperature"] == 0.6


# -- annealed ----------------------------------------------------------------------------------------------------------


def test_annealed_to_full_strength(made, annealed):
    place, record, strengths = annealed
    assert strengths == [(step, min(1, step / 4)) for step in (*range(7), 6)]  # the last two: evaluated, and written
    assert record["steps"] == 6
    # A text of one line and a high rate: that it was trained at all can be seen.
    assert record["loss_after"] < record["loss_before"] - 0.1
    model = load(place)
    assert strength_of(model) == 1
    assert model.config.use_cache == llama().config.use_cache
    assert {path.name for path in place.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "conversion.json",
    }  # fmt: skip
    assert not torch.equal(logits(model), logits(T.LlamaForCausalLM.from_pretrained(made / "plain")))


def test_what_training_does_in_a_loop_of_ones_own(made, tmp_path):
    """The same steps written out: windows, AdamW, warm-up, cosine, clipping, strength."""
    from joformer._seeding import generator
    from joformer.integrations import Anneal
    from joformer.training import load_text

    text = load_text(made / "fox.txt", vocab=256)
    model = llama(attention_dropout=0.0).train()
    model.save_pretrained(tmp_path / "plain")
    convert(tmp_path / "plain", tmp_path / "out", data=made / "fox.txt", **ANNEAL)
    last = len(text.train) - 16
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0, fused=True)
    schedule = T.get_cosine_schedule_with_warmup(optimizer, 0, 6)
    for step in range(6):
        transport_values(model, Anneal(4)(step))
        starts = torch.randint(last + 1, (2,), generator=generator(0, "windows", step)).tolist()
        ids = torch.stack([torch.tensor(text.train[at : at + 16]).long() for at in starts])
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    transport_values(model, 1.0)
    assert (logits(model) - logits(load(tmp_path / "out"))).abs().max() < 1e-4


def checkpoint_names(out):
    return sorted(path.name for path in (out / "training" / "checkpoints").iterdir())


@pytest.mark.parametrize("damage", ["none", "half written", "cut short", "a flipped bit", "another step", "all"])
def test_interrupted_it_ends_with_the_same_bits(made, annealed, tmp_path, caplog, damage):
    def stop(step, strength):
        if step == 5:
            raise KeyboardInterrupt

    words = dict(data=made / "fox.txt", **ANNEAL)
    with pytest.raises(KeyboardInterrupt), progressing(stop):
        convert(made / "plain", tmp_path / "out", **words)
    checkpoints = tmp_path / "out" / "training" / "checkpoints"
    assert checkpoint_names(tmp_path / "out") == ["00000002", "00000004"]
    assert not (tmp_path / "out" / "config.json").exists()
    # Nothing that can run when it is loaded.
    assert {path.suffix for path in checkpoints.glob("*/*")} == {".json", ".safetensors"}
    begin, newest = 4, checkpoints / "00000004"
    if damage == "half written":
        (checkpoints / "00000006").mkdir()
        (checkpoints / "00000006" / "model.safetensors").write_bytes(b"\0")
    elif damage == "cut short":
        begin, whole = 2, (newest / "optimizer.safetensors").read_bytes()
        (newest / "optimizer.safetensors").write_bytes(whole[:-1])
    elif damage in ("a flipped bit", "all"):
        begin, flipped = {"a flipped bit": (2, [newest]), "all": (0, [newest, checkpoints / "00000002"])}[damage]
        for place in flipped:
            whole = bytearray((place / "model.safetensors").read_bytes())
            whole[-9] ^= 4
            (place / "model.safetensors").write_bytes(whole)
    elif damage == "another step":
        begin = 2
        newest.rename(checkpoints / "00000005")
    steps = []
    with pytest.raises(ValueError, match=r"holds a conversion with lr = 0\.01, not 0\.02: give the same"):
        convert(made / "plain", tmp_path / "out", **{**words, "lr": 2e-2})
    caplog.clear()
    with caplog.at_level("INFO", "joformer"), progressing(lambda step, *_: steps.append(step)):
        record = convert(made / "plain", tmp_path / "out", **words)
    lines = caplog.messages
    assert steps == [*range(begin, 7), 6]
    if damage == "none":
        assert not any("; trying" in line or "; starting over" in line for line in lines)
    else:
        assert sum("; trying" in line or "; starting over" in line for line in lines) == (2 if damage == "all" else 1)
    if begin:
        assert f"resuming {tmp_path / 'out' / 'training'} at step {begin} of 6" in lines
    assert record == annealed[1]
    assert weights(tmp_path / "out") == weights(annealed[0])


@pytest.mark.refused
def test_checkpoints_of_another_conversion_are_not_taken_for_this_one(made, tmp_path):
    """Its record is lost, so that only the checkpoints tell."""

    def stop(step, *_):
        if step == 3:
            raise KeyboardInterrupt

    words = dict(data=made / "fox.txt", **ANNEAL)
    with pytest.raises(KeyboardInterrupt), progressing(stop):
        convert(made / "plain", tmp_path / "out", **words)
    (tmp_path / "out" / folders.RECORD).unlink()
    with pytest.raises(ValueError, match=r"with seed = 0, not 1: give the same"):
        convert(made / "plain", tmp_path / "out", **words, seed=1)


def test_a_signal_is_a_checkpoint_and_its_exit_code(joformer, made, annealed, tmp_path):
    words = ("convert", made / "plain", tmp_path / "out", "--data", made / "fox.txt", *WORDS)

    def stop(step, strength):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)

    with progressing(stop):
        code, said, told = joformer(*words)
    assert (code, said) == (128 + signal.SIGTERM, "")
    place = tmp_path / "out" / "training"
    assert told.splitlines()[-1] == f"joformer: saved {place} at step 3; the same command resumes it"
    assert joformer(*words)[0] == 0
    assert weights(tmp_path / "out") == weights(annealed[0])


@pytest.mark.refused
def test_what_is_finished_is_whole(joformer, made, annealed, tmp_path):
    shutil.copytree(annealed[0], tmp_path / "out")
    words = ("convert", made / "plain", tmp_path / "out", "--data", made / "fox.txt", *WORDS)
    code, _, told = joformer(*words)
    assert code == 0
    whole = bytearray(weights(tmp_path / "out"))
    whole[-9] ^= 4
    (tmp_path / "out" / "model.safetensors").write_bytes(whole)
    code, said, told = joformer(*words)
    assert (code, said) == (2, "")
    assert told.splitlines()[-1].endswith("was changed after it was written: remove it, and convert again")


def test_killed(made, annealed, tmp_path):
    """By the system, in a process of its own."""
    words = ["convert", made / "plain", tmp_path / "out", "--data", made / "fox.txt", *WORDS]
    code = (
        "import sys, time; from joformer import cli\n"
        "from joformer.training import checkpoints as c; was = c.save\n"
        "def slow(*args, **kwargs):\n"
        "    if was(*args, **kwargs).name == '00000004': time.sleep(600)\n"
        "c.save = slow; sys.argv[0] = 'joformer'; cli.main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], stderr=subprocess.DEVNULL)
    marker = tmp_path / "out" / "training" / "checkpoints" / "00000004"
    while process.poll() is None and not marker.is_dir():
        time.sleep(0.02)
    # While it is at work nobody else may be.
    with pytest.raises(ValueError, match="in use by another run"):
        convert(made / "plain", tmp_path / "out", data=made / "fox.txt", **ANNEAL)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    steps = []
    with progressing(lambda step, *_: steps.append(step)):
        convert(made / "plain", tmp_path / "out", data=made / "fox.txt", **ANNEAL)
    assert steps == [4, 5, 6, 6]
    assert load(tmp_path / "out").config == load(annealed[0]).config
    # Threads may be others in another process: all but the last bits are the same.
    assert (logits(load(tmp_path / "out")) - logits(load(annealed[0]))).abs().max() < 1e-4


def test_killed_at_the_very_end(made, annealed, tmp_path, monkeypatch, caplog):
    """Between the last step and the last file: nothing is trained again, and then nothing is done again."""
    words = dict(data=made / "fox.txt", **ANNEAL)
    with monkeypatch.context() as patch:
        patch.setattr(folders, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            convert(made / "plain", tmp_path / "out", **words)
    steps = []
    with progressing(lambda step, *_: steps.append(step)):
        convert(made / "plain", tmp_path / "out", **words)
    assert steps == [6]  # set once more for the weights that were read, and no step
    assert weights(tmp_path / "out") == weights(annealed[0])
    (tmp_path / "out" / "training").mkdir()  # as if it had been killed while it tidied up
    with caplog.at_level("INFO", "joformer"):
        assert convert(made / "plain", tmp_path / "out", **words) == annealed[1]
    assert caplog.messages[-1] == f"{tmp_path / 'out'} is already finished"
    assert not (tmp_path / "out" / "training").exists()


def test_from_a_strength_with_a_tokenizer_in_half_precision(joformer, made, tmp_path):
    model = T.LlamaForCausalLM.from_pretrained(made / "words").to(torch.bfloat16)
    shutil.copytree(made / "words", tmp_path / "half")
    transport_values(model, 0.5).save_pretrained(tmp_path / "half")
    words = ("convert", tmp_path / "half", tmp_path / "out", "--data", made / "fox.txt", *WORDS, "--power", 2)
    code, said, told = joformer(*words)
    assert code == 0, told
    assert "bytes of the text" not in told
    assert said.splitlines()[0].endswith("strength 1 after 6 steps of fine-tuning")
    out = load(tmp_path / "out")
    assert {p.dtype for p in out.parameters()} == {torch.bfloat16}
    assert strength_of(out) == 1
    assert not torch.equal(out.lm_head.weight, model.lm_head.weight)
    assert of_words(tmp_path / "out") == of_words(made / "words")
    # Transport can be annealed away, too: then the folder is plain.
    strengths = []
    words = dict(data=made / "fox.txt", **ANNEAL, power=2, strength=0)
    with progressing(lambda step, strength: strengths.append(strength)):
        convert(tmp_path / "half", tmp_path / "away", **words)
    assert strengths == [0.5 * (1 - min(1, step / 4) ** 2) for step in (*range(7), 6)]
    T.LlamaForCausalLM.from_pretrained(tmp_path / "away")


def test_long_text_is_taken_in_pieces(monkeypatch):
    import numpy as np

    monkeypatch.setattr(finetuning, "PIECE", 5)
    data = np.frombuffer(("né" * 20).encode(), np.uint8)

    def tokenizer(text, **_):
        return {"input_ids": list(text.encode())}

    assert finetuning.tokens_of(data, tokenizer, 1000).tolist() == data.tolist()
    some = finetuning.tokens_of(data, tokenizer, 12)
    assert 12 <= len(some) < 20
    bytes(some.astype(np.uint8)).decode()


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.refused
def test_every_refusal_is_one_line(joformer, made, tmp_path, monkeypatch):
    plain, out = made / "plain", tmp_path / "out"

    def refused(because, *words):
        code, said, told = joformer("convert", *words)
        assert (code, said) == (2, ""), told
        line = told.splitlines()[-1]
        assert line.startswith("joformer: ")
        assert because in line
        assert not out.exists()

    def copy(name, of=plain):
        shutil.copytree(of, tmp_path / name)
        return tmp_path / name

    text = ("--data", made / "fox.txt")
    for words, because in {
        ("--anneal", 0): "anneal must be a whole number of at least 1, got 0",
        ("--anneal", 2, "--settle", -1): "settle must be",
        ("--anneal", 2, "--lr", 0): "lr must be a positive number",
        ("--anneal", 2, "--power", "nan"): "power must be a positive number",
        ("--anneal", 2, "--batch", 0): "batch must be",
        ("--anneal", 2, "--save-every", 0): "save_every must be",
        ("--anneal", 2, "--seed", 1 << 32): "seed must be below",
        ("--settle", 2): "give anneal as well",
        ("--strength", "inf"): "strength must be a finite number",
        ("--strength", 0): "is already at strength 0",
        ("--off",): "has no transport to remove",
        ("--off", "--anneal", 2): "leave out anneal",
        ("--data", tmp_path / "nowhere.txt"): "nowhere.txt does not exist",
        (*text, "--context", 65): "more than the 64 positions",
    }.items():
        refused(because, plain, out, *words)
    (tmp_path / "short.txt").write_text("a few words " * 10)
    refused("fewer than one context of 64", plain, out, "--anneal", 2, "--data", tmp_path / "short.txt")

    refused("nowhere does not exist", tmp_path / "nowhere", out)
    (tmp_path / "empty").mkdir()
    refused("it has no config.json", tmp_path / "empty", out)
    (copy("damaged") / "config.json").write_text("{")
    refused("config.json is damaged", tmp_path / "damaged", out)
    (copy("adapted") / "adapter_config.json").write_text("{}")
    refused("merge it into the model first", tmp_path / "adapted", out)
    (copy("pickled") / "model.safetensors").rename(tmp_path / "pickled" / "pytorch_model.bin")
    refused("no safetensors weights", tmp_path / "pickled", out)
    (copy("cut") / "model.safetensors").write_bytes(weights(plain)[:-9])
    refused("cut cannot be loaded", tmp_path / "cut", out)
    strange = json.loads((plain / "config.json").read_text()) | {"auto_map": {"AutoModelForCausalLM": "a.Own"}}
    for name, of in (("Own", "holds a Own, which transformers"), ("AutoConfig", "does not have"), (None, "does not")):
        (tmp_path / "damaged" / "config.json").write_text(json.dumps({**strange, "architectures": [name]}))
        refused(of, tmp_path / "damaged", out)
    (copy("deeper") / "config.json").write_text(json.dumps(strange | {"num_hidden_layers": 3}))
    refused("lacks 9 of its weights", tmp_path / "deeper", out)

    T.DINOv3ViTModel(T.DINOv3ViTConfig(**SHAPE)).save_pretrained(tmp_path / "dino")
    refused("--anneal is for causal language models", tmp_path / "dino", out, "--anneal", 2)
    refused("--data is for causal language models", tmp_path / "dino", out, *text)
    T.GPT2LMHeadModel(T.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    refused("cannot transport its values", tmp_path / "gpt2", out)
    llama(200).save_pretrained(tmp_path / "small")
    refused("200 tokens are too few to use bytes", tmp_path / "small", out, "--anneal", 2, *text)
    shutil.copyfile(made / "words" / "tokenizer.json", tmp_path / "small" / "tokenizer.json")
    refused("the model has 200", tmp_path / "small", out, *text)
    (tmp_path / "small" / "tokenizer.json").write_text("{}")
    refused("the tokenizer in", tmp_path / "small", out, *text)

    refused("is the model's own folder", plain, plain)
    refused("is not empty and holds no conversion", plain, made / "words")
    refused("is a file", plain, tmp_path / "short.txt")
    refused("is a file", plain, tmp_path / "short.txt" / "out")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused("pip install 'joformer[integrations]'", plain, out)


@pytest.mark.refused
def test_a_transported_folder_without_some_weights_is_refused(made, tmp_path):
    from safetensors.torch import load_file, save_file

    convert(made / "plain", tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    del weights[next(name for name in weights if "v_proj" in name)]
    save_file(weights, tmp_path / "out" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="lacks 1 of its weights"):
        convert(tmp_path / "out", tmp_path / "plain", off=True)


@pytest.mark.refused
def test_a_folder_with_a_hidden_file_is_refused_before_anything_is_written(made, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".gitkeep").touch()
    with pytest.raises(ValueError, match="is not empty and holds no conversion"):
        convert(made / "plain", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.refused
def test_a_full_disk(joformer, made, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "copyfile", full)
        code, _, told = joformer("convert", made / "plain", tmp_path / "out")
    assert code == 2
    assert told.count("\n") == 1, told
    assert "No space left on device; make room" in told
    assert list(tmp_path.iterdir()) == []

    words = ("convert", made / "plain", tmp_path / "out", "--data", made / "fox.txt", *WORDS)
    with monkeypatch.context() as patch:
        patch.setattr("joformer.training.checkpoints.sealed", full)
        code, _, told = joformer(*words)
    assert code == 2
    assert "cannot save the checkpoint" in told.splitlines()[-1]
    assert "No space left on device; those before it are untouched, make room and start again" in told
    assert joformer(*words)[0] == 0

    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
        code, _, told = joformer(*words[:2], tmp_path / "other", *words[3:])
    assert code == 2
    assert "MB free" in told


@pytest.mark.refused
def test_training_that_came_to_nothing(joformer, made, tmp_path):
    words = ("convert", made / "plain", tmp_path / "out", "--data", made / "fox.txt", *WORDS, "--lr", 1e30)
    code, _, told = joformer(*words)
    assert code == 2
    assert "a lower lr" in told.splitlines()[-1]


def test_help_needs_no_torch():
    code = (
        "import sys; sys.argv = ['joformer', 'convert', '--help']\nfrom joformer import cli\n"
        "try: cli.main()\nexcept SystemExit: print({'torch', 'transformers'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("set()\n")
    assert "--anneal" in out
    assert "Example" in out


def test_the_options_are_these():
    """An option more is a decision, not an accident."""
    assert " ".join(field.name for field in dataclasses.fields(cli.Convert)) == (
        "model_dir out strength off anneal settle data context batch lr power seed save_every json"
    )
