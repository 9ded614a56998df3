"""`joformer train`, `generate`, `evaluate` as a person types them: results, resuming, one line for a mistake."""

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest

from joformer import cli
from joformer.cli.train import LM, Monoidal, Run, ViT
from joformer.models import load

TEXT = "the quick brown fox jumps over the lazy dog, and the dog does not mind at all.\n" * 120
SMALL = ["--dim", "16", "--layers", "1", "--heads", "2", "--batch", "4", "--steps", "4", "--log-every", "2"]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "fox.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def trained(joformer, text, tmp_path):
    words = ("train", "lm", "--data", text, "--vocab", 300, "--context", 16, *SMALL, "--out", tmp_path / "run")
    code, out, _ = joformer(*words)
    assert code == 0
    return tmp_path / "run", words, out


def test_a_language_model_from_the_first_command_to_its_text(joformer, trained):
    run, words, out = trained
    assert "bits_per_byte" in out
    assert "after 4 steps" in out
    assert load(run).config.vocab == 300

    code, again, told = joformer(*words)
    assert (code, again) == (0, out)
    assert "is already finished: 4 steps" in told

    generate = ("generate", run, "--prompt", "the dog", "--tokens", 12, "--temperature", 0.9)
    code, drawn, _ = joformer(*generate)
    assert code == 0
    assert drawn.startswith("the dog")
    assert drawn == joformer(*generate)[1]
    assert drawn != joformer(*generate, "--seed", 1)[1]
    as_json = json.loads(joformer(*generate, "--json")[1])
    assert as_json["prompt"] + as_json["text"] == drawn.removesuffix("\n")

    code, rows, _ = joformer("evaluate", run, "--lengths", 8, 16, "--json")
    assert code == 0
    assert [row["length"] for row in json.loads(rows)] == [8, 16]
    code, rows, _ = joformer("evaluate", run, "--lengths", 16, "--json")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert json.loads(rows)[0]["bits_per_byte"] == pytest.approx(last["bits_per_byte"], rel=1e-6)


def test_evaluating_other_text_keeps_the_tokenizer(joformer, trained, tmp_path):
    run, _, _ = trained
    other = tmp_path / "other.txt"
    other.write_text("pack my box with five dozen liquor jugs; " * 200)
    code, rows, _ = joformer("evaluate", run, "--data", other, "--lengths", 16, "--json", "--split", "test")
    assert code == 0
    # About as many nats for each token as without training, on fewer bytes a token than where BPE was learned.
    assert 3 < json.loads(rows)[0]["bits_per_byte"] < 12


def test_data_that_changed_is_said(joformer, trained, text):
    before = json.loads(joformer("evaluate", trained[0], "--json")[1])[0]
    text.write_text("wholly new words come first, quite unlike others: jumble, vexing, zephyr\n" * 3 + TEXT)
    code, rows, told = joformer("evaluate", trained[0], "--json")
    assert code == 0
    assert "has changed since the model was trained on it" in told
    # With its own tokenizer, or the numbers would mean nothing.
    assert json.loads(rows)[0]["loss"] == pytest.approx(before["loss"], rel=0.02)


def test_a_checkpoint_can_be_used_by_itself(joformer, trained):
    run, _, _ = trained
    (newest,) = (run / "checkpoints").iterdir()
    code, _, told = joformer("generate", newest, "--tokens", 2)
    assert (code, told) == (0, "weights of step 4\n")
    (run / "model.safetensors").unlink()
    assert joformer("generate", run, "--tokens", 2)[2] == "weights of step 4\n"


def test_images_sounds_and_one_vector(joformer, tmp_path):
    code, out, _ = joformer("train", "vit", *SMALL, "--augment", "cifar", "--average", 0.9, "--out", tmp_path / "vit")
    assert code == 0
    assert "accuracy" in out
    code, rows, _ = joformer("evaluate", tmp_path / "vit", "--json")
    last = json.loads((tmp_path / "vit" / "metrics.jsonl").read_text().splitlines()[-1])
    assert json.loads(rows)[0]["accuracy"] == last["accuracy"]

    code, out, _ = joformer("train", "monoidal", "--dim", 8, "--epochs", 1, "--json", "--out", tmp_path / "one")
    assert code == 0
    assert json.loads(out)["step"] == 11
    assert joformer("evaluate", tmp_path / "one")[0] == 0

    code, *_ = joformer("train", "vit", *SMALL, "--data", "tones", "--patch", 16, 8, "--out", tmp_path / "tones")
    assert code == 0
    assert load(tmp_path / "tones").config.patch == (16, 8)


def test_evaluate_finds_the_data_again_with_the_same_options(joformer, tmp_path, monkeypatch):
    import numpy as np
    from scipy.io import wavfile

    for speaker in ("01", "02"):
        for number in range(8):
            (tmp_path / "set" / speaker).mkdir(parents=True, exist_ok=True)
            tone = np.sin(np.arange(4000) * (0.1 + 0.2 * (number % 2))) * 2**14
            wavfile.write(
                tmp_path / "set" / speaker / f"{number % 2}_{speaker}_{number}.wav", 8000, tone.astype("int16")
            )
    monkeypatch.chdir(tmp_path)
    sound = ("--rate", 4000, "--seconds", 0.3, "--bands", 16, "--hop", 8)
    code, _, told = joformer("train", "vit", *SMALL, "--data", "set", *sound, "--out", tmp_path / "run")
    assert code == 2
    assert told.splitlines()[-1].endswith("choose --label folder or --label name")
    words = ("train", "vit", *SMALL, "--data", "set", "--label", "name", *sound, "--patch", 4, 5, "--json")
    code, out, told = joformer(*words, "--out", tmp_path / "run")
    assert (code, load(tmp_path / "run").config.shape) == (0, (16, 35))
    assert "  2 classes: " in told
    monkeypatch.chdir("/")
    code, rows, told = joformer("evaluate", tmp_path / "run", "--json")
    assert (code, json.loads(rows)[0]["loss"]) == (0, pytest.approx(json.loads(out)["loss"]))
    assert "has changed" not in told
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps({"a": f"{k} x", "b": "y"}) + "\n" for k in range(900)))
    words = ("train", "lm", *SMALL, "--data", tmp_path / "notes.jsonl", "--vocab", 256, "--context", 8, "--column", "a")
    assert joformer(*words, "--out", tmp_path / "lm")[0] == 0
    code, _, told = joformer("evaluate", tmp_path / "lm")
    assert code == 0
    assert "has changed" not in told


def test_streamed_images(joformer, tmp_path):
    from PIL import Image

    for number in range(20):
        place = tmp_path / "pictures" / ("dark", "light")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (100 * (number % 2), number, 0)).save(place / f"{number}.png")
    words = ("train", "vit", *SMALL, "--data", tmp_path / "pictures", "--stream", "--size", 8, "--workers", 0)
    code, _, told = joformer(*words, "--augment", "imagenet", "--out", tmp_path / "run")
    assert code == 0
    assert "held out" in told
    assert joformer("evaluate", tmp_path / "run")[0] == 0


def test_the_three_stages(joformer, text, tmp_path):
    stages = ("--stages", "2:1e-3", "2:1e-3", "2:1e-4:projected")
    words = ("train", "lm", "--data", text, "--vocab", 256, "--context", 16, *SMALL, *stages, "--out", tmp_path / "run")
    assert joformer(*words)[0] == 0
    assert load(tmp_path / "run").config.frames == "projected"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "lm", "--data", "./nowhere.txt"], "nowhere.txt does not exist"),
        (["train", "lm", "--data", "{latin}"], "latin.txt"),
        (["train", "lm", "--data", "{text}", "--batch", "5", "--accumulate", "2"], "does not divide into 2 parts"),
        (["train", "lm", "--data", "{text}", "--context", "9999"], "a context is from 1 to"),
        (["train", "lm", "--data", "{text}", "--pattern", "X"], "F (full), W (windowed), N (NoPE)"),
        (["train", "lm", "--data", "{text}", "--lr", "-1"], "lr must be 0 or more"),
        (["train", "lm", "--data", "{text}", "--stages", "10"], "write STEPS:LR"),
        (["train", "lm", "--data", "{text}", "--stages", "10:1e-3:odd"], "frames"),
        (["train", "lm", "--data", "{text}", "--precision", "fp16"], "fp16 is not available"),
        (["train", "lm", "--data", "{text}", "--frames", "learned", "--stages", "2:1", "2:1:projected"], "would lose"),
        (["train", "lm", "--data", "{text}", "--context-parallel", "0"], "--context-parallel must be 1 or more"),
        (["train", "lm", "--data", "{text}", "--context-parallel", "2"], "needs a multiple of 2 processes, here is 1"),
        (["train", "lm", "--data", ""], "the name of the data is empty"),
        (["train", "lm", "--data", "{text}", "--heads", "0"], "heads must be 1 or more"),
        (["train", "lm", "--data", "{text}", "--steps", "9", "--warmup", "10"], "is longer than a stage of 9"),
        (["train", "vit", "--layers", "0"], "layers must be 1 or more"),
        (["train", "vit", "--drop-path", "2"], "drop_path is a probability"),
        (["train", "vit", "--epochs", "0"], "--epochs must be 1 or more"),
        (["train", "monoidal", "--hidden", "-1"], "hidden must be 1 or more"),
        (["train", "vit", "--epochs", "1", "--stages", "2:1"], "leave out --epochs"),
        (["train", "vit", "--model", "rope7d"], "choose one of rope2d"),
        (
            ["train", "vit", "--frames", "none", "--transport", "both"],
            "frames='none' cannot transport anything",
        ),
        (["train", "vit", "--patch", "3", "3"], "does not divide into patches"),
        (["train", "vit", "--data", "{pictures}"], "cannot be decoded as an image"),
        (["train", "vit", "--data", "tones", "--size", "8"], "leave out size"),
        (["train", "monoidal", "--data", "{text}"], "fox.txt"),
    ],
)
def test_a_mistake_is_one_line(joformer, text, tmp_path, words, said):
    (tmp_path / "latin.txt").write_bytes("fa\xe7ade ".encode("latin-1") * 999)
    for name in ("a/broken", "a/broken too", "b/broken", "b/broken too"):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pictures" / f"{name}.png").write_bytes(b"\x89PNG and no more")
    places = {"text": text, "latin": tmp_path / "latin.txt", "pictures": tmp_path / "pictures"}
    given = [word.format(**places) for word in words]
    more = [] if "--context" in words or words[1] != "lm" else ["--context", "16"]
    vocab = ["--vocab", "256"] if words[1] == "lm" else []
    code, out, told = joformer(*given, *more, *vocab, "--out", tmp_path / "run")
    assert (code, out) == (2, "")
    assert "Traceback" not in told
    if "error" in told:  # what a configuration itself refuses comes in the option parser's own frame
        assert said in " ".join(told.replace("│", " ").split())
    else:
        assert told.splitlines()[-1].startswith("joformer: ")
        assert said in told.splitlines()[-1]


@pytest.mark.refused
def test_what_cannot_be_used_is_said(joformer, trained, tmp_path):
    run, _, _ = trained
    (tmp_path / "weights.pt").write_bytes(pickle.dumps({}))
    (tmp_path / "empty").mkdir()
    for words, said in (
        (["generate", tmp_path / "weights.pt"], "pickles (.pt, .pth, .bin) are never read"),
        (["generate", tmp_path / "nothing"], "does not exist"),
        (["generate", tmp_path / "empty"], "neither model.safetensors nor a checkpoint"),
        (["generate", run, "--temperature", "-1"], "--temperature must be 0 or more"),
        (["generate", run, "--temperature", "nan"], "--temperature must be 0 or more"),
        (["evaluate", run, "--lengths", "99999"], "a context is from 1 to"),
        (["evaluate", run, "--lengths", "-5"], "--lengths and --windows must be 1 or more"),
        (["train", "lm", "--data", "stdlib", "--out", tmp_path / "weights.pt"], "is a file"),
    ):
        code, out, told = joformer(*words)
        assert (code, out) == (2, ""), words
        assert said in told.splitlines()[-1]


def test_the_default_patch_divides():
    from joformer.cli.train import sides_of

    assert [sides_of(None, (side, 8)) for side in (28, 32, 7, 224)] == [(4, 1), (4, 1), (1, 1), (28, 1)]
    assert sides_of((7,), (28, 28)) == (7, 7)


def test_a_finished_run_needs_no_exactness(joformer, trained):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        code, _, told = joformer(*trained[1])
        assert (code, told.splitlines()[-1]) == (0, f"{trained[0]} is already finished: 4 steps")
    finally:
        torch.set_num_threads(threads)


@pytest.mark.refused
def test_other_settings_in_the_same_folder_are_refused(joformer, trained):
    _, words, _ = trained
    code, _, told = joformer(*words, "--lr", "0.5")
    assert code == 2
    assert "recipe.lr = 0.001, not 0.5" in told


def test_the_options_are_these():
    """An option more is a decision, not an accident."""
    parts = (Run, LM, ViT, Monoidal, cli.Generate, cli.Evaluate)
    assert {part.__name__: " ".join(field.name for field in dataclasses.fields(part)) for part in parts} == {
        "Run": "out seed start drift shard log dry_run json",
        "LM": "output data column context context_parallel batch model recipe",
        "ViT": "output data label size rate seconds bands hop batch epochs recipe stream workers augment draw model "
        "frames split transport per_layer patch dim layers heads hidden base pool registers dropout drop_path",
        "Monoidal": "output data label size rate seconds bands hop batch epochs recipe dim hidden frequencies spread",
        "Generate": "checkpoint prompt tokens temperature top_k top_p seed json",
        "Evaluate": "checkpoint lengths data column label split windows json",
    }


def test_a_run_is_extended_and_another_starts_from_it(joformer, trained, tmp_path):
    run, words, _ = trained
    code, out, told = joformer(*words, "--steps", "6")
    assert code == 0
    assert "after 6 steps" in out
    assert (
        f"extending {run} from step 4 to 6: the learning rate there was 0.000232 and is 0.00055, so the weights" in told
    )
    code, out, _ = joformer(*words, "--from", run, "--lr", "0", "--out", tmp_path / "tuned", "--log", "none", "--json")
    assert code == 0
    before, after = (json.loads(line) for line in ((run / "metrics.jsonl").read_text().splitlines()[-1], out))
    assert after["loss"] == before["loss"]
    code, _, told = joformer(*words, "--from", run, "--dim", "32", "--out", tmp_path / "wide")
    assert code == 2
    assert "does not fit JoFormerLM, first at 'blocks.0.attention.out.weight'" in told.splitlines()[-1]
    assert joformer(*words, "--from", "nowhere")[2].endswith("give the folder of a run, or of one of its checkpoints\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_spares_the_workers(tmp_path, number):
    """As terminals and batch systems send it: processes that decode get it too, and must not take the run with them."""
    from PIL import Image

    for name in ("dark", "light"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for count in range(4):
            Image.new("RGB", (9, 9), (count, 0, 0)).save(tmp_path / "pictures" / name / f"{count}.png")
    more = [
        "--stream",
        "--size",
        "8",
        "--workers",
        "1",
        "--batch",
        "4",
        "--dim",
        "16",
        "--layers",
        "1",
        "--heads",
        "2",
        "--steps",
        "100000",
        "--log-every",
        "1",
    ]
    words = ["train", "vit", "--data", tmp_path / "pictures", *more, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "joformer.cli", *map(str, words)], stderr=subprocess.PIPE, start_new_session=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.05)
    os.killpg(process.pid, number)
    told = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 128 + number, told
    assert "the same command resumes it" in told
    assert "Traceback" not in told
    assert list((tmp_path / "run" / "checkpoints").iterdir())
