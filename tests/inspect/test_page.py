"""`joformer inspect` from a run to its page: whole, escaped, alone, and one line where it cannot."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch

from joformer.experiments.report.template import POLICY
from joformer.inspect._findings import find_out
from joformer.inspect._page import html
from joformer.inspect._subject import open_subject

VOID = ("meta", "link", "br", "img")


class Tags(HTMLParser):
    """Whether every tag is closed, and what could be loaded."""

    def __init__(self, page):
        super().__init__()
        self.open, self.loads, self.ids = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [
            value for name, value in attrs if name in ("src", "href") and not value.startswith(("#", "data:"))
        ]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two short runs: a language model with two kinds of frames, and a ViT by content."""
    from joformer.models import LMConfig, ViTConfig
    from joformer.training import ImageTask, LanguageTask, Recipe, load_images, load_text, train

    here = tmp_path_factory.mktemp("runs")
    notes = here / "notes.txt"
    notes.write_text("to be or not to be, that is the <question> & more\n" * 400, encoding="utf-8")
    recipe = Recipe(steps=3, lr=1e-2, evaluate_every=3, save_every=3, warmup=0)
    text = load_text(str(notes), vocab=256)
    config = LMConfig(vocab=256, dim=16, layers=2, heads=2, frames=("learned", "cumulative"))
    train(
        config, LanguageTask(text, context=16, batch=4), recipe, here / "lm", notes={"data": str(notes), "vocab": 256}
    )
    images = ImageTask(load_images("digits"), batch=8)
    small = {"shape": (8, 8), "patch": (2, 2), "channels": 1, "classes": 10, "dim": 16, "layers": 2, "heads": 2}
    train(ViTConfig(**small, model="projected"), images, recipe, here / "vit", notes={"data": "digits"})
    return here


def checked(page):
    tags = Tags(page)
    assert tags.open == []
    assert tags.loads == []
    assert len(set(tags.ids)) == len(tags.ids)
    assert POLICY in page
    assert "<script" not in page
    assert "nan" not in re.sub(r"<style>.*?</style>|<[a-z]+ ", "", page, flags=re.DOTALL).lower().split()
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(svg)
        assert root.find("title").text
        assert root.find("desc").text
    return page


def test_a_language_model(folder, joformer, tmp_path):
    out = tmp_path / "made" / "page.html"
    code, said, _ = joformer(
        "inspect", folder / "lm", "--prompt", "a <b> & c", "--tokens", 2, 5, "--samples", 4, "--reach", 6, "--out", out
    )
    assert code == 0
    assert said.startswith("Value transport is used by ")
    assert said.splitlines()[-1] == str(out)
    page = checked(out.read_text(encoding="utf-8"))
    answer = said.splitlines()[0].partition(". ")[0]
    assert answer in page
    for title in (
        "Which heads use",
        "Frequencies against",
        "What displacement",
        "Angles from content",
        "A journey between",
    ):
        assert title in page
    assert "&lt;" in page
    assert "(token 2)" in page
    assert page.count('class="hand"') == 4 * 4  # two layers of two heads of four planes


def test_the_numbers_as_json(folder, joformer, tmp_path):
    code, said, told = joformer("inspect", folder / "vit", "--samples", 9, "--json", "--out", tmp_path / "p.html")
    assert code == 0
    found = json.loads(said)
    assert told.splitlines()[-1] == str(tmp_path / "p.html")
    assert found["unit"] == "nats per image"
    assert found["about"]["image"].endswith("4 × 4 patches")
    assert [len(found["value_use"][key]) for key in ("names", "heads", "layers")] == [2, 4, 2]
    assert torch.tensor(found["kernels"][0]["values"]).shape == (2, 7, 7)
    assert torch.tensor(found["angles"][1]["content"]).shape == (17, 2, 4)
    assert torch.tensor(found["journey"]["layers"][0]["weights"]).shape == (2,)
    assert found["journey"]["target"] == 1 + 2 * 4 + 2, "the middle of the image, after the class token"
    assert found["journey"]["source"] != found["journey"]["target"]
    checked((tmp_path / "p.html").read_text(encoding="utf-8"))


def test_what_does_not_apply_is_said(folder):
    subject = open_subject(folder / "lm", samples=2)
    from joformer.models import LMConfig

    plain = LMConfig(vocab=256, dim=16, layers=1, heads=2, transport="scores").build().eval()
    found = find_out(type(subject)(**{**vars(subject), "model": plain}))
    assert found.remarks == [
        "The model transports no values: there is nothing to switch off.",
        "There are no angle fields: no angle depends on content.",
    ]
    assert found.answer == ["Frequencies are fixed."]
    page = checked(html(found))
    assert "Which heads use" not in page
    assert "Values are not rotated on the way." in page
    bare = LMConfig(vocab=256, dim=16, layers=2, heads=2, pattern="AR", transport="none").build().eval()
    found = find_out(type(subject)(**{**vars(subject), "model": bare}))
    assert len(found.remarks) == 5
    checked(html(found))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    from joformer import transport_values

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    here, model = tmp_path_factory.mktemp("llama"), transformers.LlamaForCausalLM(config)
    model.save_pretrained(here / "plain")
    transport_values(model, 0.5).save_pretrained(here / "transported")
    (here / "bare").mkdir()
    (here / "bare" / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return here


@pytest.mark.parametrize("name", ["transported", "plain"])
def test_a_model_of_transformers(llama, folder, joformer, tmp_path, name):
    out = tmp_path / "page.html"
    code, said, _ = joformer("inspect", llama / name, "--data", folder / "notes.txt", "--samples", 3, "--out", out)
    assert code == 0
    page = checked(out.read_text(encoding="utf-8"))
    if name == "plain":
        assert "The model has no value transport to switch off." in said
        assert "Which heads use" not in page
    else:
        assert re.search(r"Value transport is used by \d of 4 heads: .* nats per token", said)
        assert "strength 0.5" in page
        assert "rotated only in some layers, or by a part" in page
    for title in ("Frequencies", "What displacement", "A journey between"):
        assert title in page


@pytest.mark.refused
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere does not exist: give the folder of a run"),
        (["{runs}"], "has neither model.safetensors nor a checkpoint"),
        (["{runs}/lm", "--tokens", "1", "99"], "target 99 is out of range: the sample has the tokens 0 … 15"),
        (["{runs}/lm", "--tokens", "5", "1"], "nothing travels from token 5 back to 1: later tokens are masked"),
        (["{runs}/lm", "--tokens", "5"], "--tokens takes two, the source and the target of a journey; got 1"),
        (["{runs}/lm", "--index", "9999"], "there is no held-out window 9999: choose 0 … "),
        (["{runs}/lm", "--prompt", "a"], "a prompt needs 2 tokens or more, got 1"),
        (["{runs}/lm", "--prompt", "ab", "--index", "1"], "--prompt and --index both choose what is shown"),
        (["{runs}/lm", "--samples", "1"], "--samples must be 2 or more"),
        (["{runs}/lm", "--data", "{runs}/none.txt"], "none.txt"),
        (["{runs}/lm", "--out", "{runs}"], "is a folder: give --out a file"),
        (["{runs}/vit", "--prompt", "ab"], "--prompt is for language models"),
        (["{runs}/vit", "--index", "-1"], "there is no test image -1: choose 0 … "),
        (["{llama}/plain"], "does not say what it was trained on: give --data"),
        (["{llama}/bare", "--data", "{runs}/notes.txt"], "has no safetensors weights"),
    ],
)
def test_a_mistake_is_one_line(folder, llama, joformer, words, said):
    words = [word.format(runs=folder, llama=llama) for word in words]
    words += [] if "--out" in words else ["--out", str(folder / "never.html")]
    code, out, told = joformer("inspect", *words)
    assert (code, out) == (2, "")
    assert said in told.splitlines()[-1]
    assert told.splitlines()[-1].startswith("joformer: ")
    assert "Traceback" not in told
    assert not (folder / "never.html").exists()
