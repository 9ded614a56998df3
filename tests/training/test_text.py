"""Text as tokens: nothing lost, nothing that depends on the machine, on chunks, threads or processes, or on luck."""

import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner import logged

from joformer._log import Progress
from joformer.training.data import documents, resolve, text
from joformer.training.data.text import Tokenizer, load_text, stdlib_source, windows

DATA = Path(os.environ.get("JOFORMER_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
LINES = [
    "Grüße aus Köln, it's 12°C — «oui» \U0001f600\n",
    "def scan(x):\n    return [ y  for y in x ]\n\n",
    "世界のテキスト。\u3000そして\r\n",
    "\ttabs\tand   spaces \x1c\x00 \u0085 \u2028 end\n",
]
WORDS = "".join(line * 3 + f"number {count} of {count * 7}\n" for count, line in enumerate(LINES * 60))
SPLITS = ("train", "valid", "test")


def spans(loaded) -> list[int]:
    return [int(loaded.tokenizer.bytes_per_token.numpy()[np.asarray(getattr(loaded, s))].sum()) for s in SPLITS]


def decoded(loaded) -> list[str]:
    return [loaded.tokenizer.decode(getattr(loaded, split)) for split in SPLITS]


def refused(call, *wanted: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    assert "\n" not in str(caught.value)
    for part in wanted:
        assert part in str(caught.value)


def run(code: str, *arguments: str, **environment: str) -> subprocess.Popen:
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"} | environment
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


# Tokens


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.train([WORDS], vocab=600)


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request, bpe) -> Tokenizer:
    return bpe if request.param == "bpe" else Tokenizer.of_bytes()


def test_tokens_are_the_bytes_and_what_was_learned(bpe):
    assert bpe.vocab == 600 == len(set(bpe.tokens))
    assert bpe.tokens[:256] == Tokenizer.of_bytes().tokens
    assert len(bpe.encode(WORDS)) < len(WORDS.encode()) / 3
    assert bpe.bytes_per_token.dtype == torch.int64
    assert bpe.bytes_per_token.tolist() == [len(token) for token in bpe.tokens]


@settings(max_examples=40)
@given(st.text(max_size=60) | st.sampled_from(LINES))
def test_nothing_is_lost(written):
    for tokenizer in (Tokenizer.of_bytes(), SMALL):
        ids = tokenizer.encode(written)
        assert tokenizer.decode(ids) == written
        assert sum(tokenizer.bytes_per_token[ids].tolist()) == len(written.encode())


SMALL = Tokenizer.train([WORDS], vocab=300)


def test_ids_come_as_lists_tensors_and_arrays(tokenizer):
    ids = tokenizer.encode(WORDS[:100])
    assert tokenizer.decode(torch.tensor(ids)) == tokenizer.decode(np.array(ids, np.uint16)) == WORDS[:100]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 299), max_size=30))
def test_a_stream_shows_whole_characters_and_ends_with_the_whole_text(ids):
    stream = SMALL.stream()
    shown = [stream.feed(token) for token in ids]
    assert "".join(shown) + stream.end() == SMALL.decode(ids)


def test_a_stream_waits_for_the_end_of_a_character(tokenizer):
    stream, seen = Tokenizer.of_bytes().stream(), []
    for byte in "aé世\U0001f600".encode():
        seen.append(stream.feed(byte))
    assert seen == ["a", "", "é", "", "", "世", "", "", "", "\U0001f600"]
    assert stream.end() == ""


def test_the_file_is_that_of_tokenizers_and_comes_back(tokenizer, tmp_path):
    from tokenizers import Tokenizer as Engine

    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert Tokenizer.load(path) == tokenizer
    engine = Engine.from_file(str(path))
    assert engine.encode(WORDS).ids == tokenizer.encode(WORDS)
    assert engine.decode(tokenizer.encode(WORDS[:200])) == WORDS[:200]


@pytest.mark.refused
def test_a_damaged_tokenizer_is_refused(bpe, tmp_path):
    path = tmp_path / "tokenizer.json"
    whole = bpe.definition()

    def altered(change) -> str:
        definition = json.loads(whole)
        change(definition, definition["model"])
        return json.dumps(definition)

    wrong = [
        "",
        whole[:-20],
        "[]",
        "3",
        "{}",
        "[" * 100_000,
        '{"model": 3}',
        "\x80\x04K\x01.",
        altered(lambda d, m: d.update(normalizer={"type": "Lowercase"})),
        altered(lambda d, m: d.update(pre_tokenizer=None)),
        altered(lambda d, m: d.pop("padding")),
        altered(lambda d, m: m.update(dropout=0.1)),
        altered(lambda d, m: m["merges"].pop()),
        altered(lambda d, m: m["merges"].append(["zq", "zq"])),
        altered(lambda d, m: m["vocab"].update(zqzq=600)),
        altered(lambda d, m: m["vocab"].update({"a": 5})),
        altered(lambda d, m: m["vocab"].pop("a")),
        altered(lambda d, m: m["merges"].append(["☃", "a"])),
        altered(lambda d, m: m.update(merges=3)),
    ]
    for content in wrong:
        path.write_text(content, encoding="utf-8")
        refused(lambda: Tokenizer.load(path), str(path), "damaged or not one of our tokenizers")
    path.write_bytes(b"\xff\xfe")
    refused(lambda: Tokenizer.load(path), str(path))


@pytest.mark.refused
def test_tokens_and_texts_that_are_none_are_refused(bpe):
    refused(lambda: bpe.decode([600]), "token 600", "600")
    refused(lambda: bpe.decode([-1]), "token -1")
    refused(lambda: bpe.stream().feed(700), "token 700")
    refused(lambda: bpe.encode("a\udcff"), "not valid Unicode at character 1")
    for vocab in (255, 0, -3, True, 8000.0, "8000"):
        refused(lambda vocab=vocab: load_text("stdlib", vocab=vocab), f"vocab {vocab!r}")


# Cuts and pieces


@settings(max_examples=40)
@given(st.text(max_size=40), st.lists(st.integers(0, 160), max_size=3), st.lists(st.integers(1, 9), min_size=1))
def test_cuts_are_the_first_character_boundaries_and_do_not_depend_on_chunks(written, ends, sizes):
    data, ends = written.encode(), [*sorted(ends), 10**6]
    chunks, at = [], 0
    while at < len(data):
        chunks.append(data[at : at + sizes[len(chunks) % len(sizes)]])
        at += len(chunks[-1])
    parts = [b""] * len(ends)
    for place, chunk in text._cut(chunks, ends):
        parts[place] += chunk
    boundaries = [len(written[:count].encode()) for count in range(len(written) + 1)]
    wanted = [0, *(min(b for b in boundaries if b >= min(end, len(data))) for end in ends)]
    assert parts == [data[a:b] for a, b in pairwise(wanted)]


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*LINES, " ", "\n", "\u3000", "word", "世界", " x"]), max_size=60), st.integers(1, 50))
def test_pieces_do_not_depend_on_chunks_and_give_the_tokens_of_the_whole(parts, size):
    written = "".join(parts)
    data = written.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE", 64)
        pieces = list(text._pieces([data]))
        assert pieces == list(text._pieces(data[at : at + size] for at in range(0, len(data), size)))
    assert "".join(pieces) == written
    assert all(len(piece.encode()) <= 64 for piece in pieces)
    # Where every cut found the end of a word, the tokens are those of the text encoded at once.
    if all(piece[0] in " \n" and not before[-1].isspace() for before, piece in pairwise(pieces)):
        assert [token for piece in pieces for token in SMALL.encode(piece)] == SMALL.encode(written)


# Loading


@pytest.mark.parametrize("vocab", [256, 300, 70_000])
def test_bytes_of_all_tokens_are_the_bytes_of_the_text(tmp_path, monkeypatch, vocab):
    path, said, shown = tmp_path / "text.txt", [], []
    update = Progress.update
    monkeypatch.setattr(Progress, "update", lambda self, done: (shown.append(done / self.total), update(self, done)))
    path.write_text(WORDS, encoding="utf-8", newline="")
    with logged(said):
        loaded = load_text(path, vocab=vocab, cache=tmp_path / "cache")
    size = len(WORDS.encode())
    assert "".join(decoded(loaded)) == WORDS
    assert spans(loaded) == [len(part.encode()) for part in decoded(loaded)]
    for cut, nominal in zip(np.cumsum(spans(loaded)), (size * 90 // 100, size * 95 // 100, size)):
        assert 0 <= cut - nominal <= 3
    assert loaded.train.dtype == {256: np.uint8, 300: np.uint16, 70_000: np.uint16}[vocab]
    assert isinstance(loaded.train, np.memmap)
    assert shown[-1] == 1.0
    assert shown == sorted(shown)
    assert loaded.tokenizer.vocab == vocab or any("too small for 70,000 tokens" in line for line in said)


def test_many_tokens_need_four_bytes(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(WORDS, encoding="utf-8")
    many = Tokenizer(tuple(str(count).encode() for count in range(65_537)))
    assert text._dtype(many) == "<u4"
    assert text._dtype(Tokenizer(many.tokens[:65_536])) == "<u2"


def test_bpe_is_trained_on_train_alone(tmp_path):
    for name, written in (("train", "aaa bbb " * 500), ("valid", "zzz " * 500), ("test", "yyy " * 500)):
        (tmp_path / f"{name}.txt").write_text(written)
    learned = load_text(tmp_path, vocab=300, cache=tmp_path / ".cache").tokenizer.tokens[256:]
    assert learned
    assert not any(b"z" in token or b"y" in token for token in learned)


def test_the_sample_for_bpe_is_a_prefix_that_ends_with_a_character(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "SAMPLE", 1001)
    path = tmp_path / "text.txt"
    path.write_text("é" * 1000 + "zz " * 3000, encoding="utf-8")
    assert not any(b"z" in token for token in load_text(path, vocab=300, cache=tmp_path).tokenizer.tokens[256:])


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({"train.txt": "T", "valid.txt": "V", "test.txt": "S"}, ("T", "V", "S")),
        ({"train.txt.gz": "T", "validation.txt": "V", "test.xz": "S"}, ("T", "V", "S")),
        ({"wiki.train.tokens": "T", "wiki.val.tokens": "V", "wiki.test.tokens": "S", "notes.md": "N"}, ("T", "V", "S")),
        ({"train/b": "U", "train/a": "T", "validation/a": "V", "test/x/a": "S"}, ("TU", "V", "S")),
        ({"train-00001-of-00002.txt": "U", "train-00000-of-00002.txt": "T", "val.txt": "V"}, ("TU", "V", "u")),
        ({"train.txt": "T", "test.txt": "S"}, ("T", "t", "S")),
        ({"b/2.txt": "U", "a.txt": "T", ".hidden": "H"}, ("TU", "u", "u")),
        ({"train.txt": "T"}, ("T", "t", "t")),
        ({"the-test-of-time.txt": "T", "z.txt": "U"}, ("TU", "u", "u")),
    ],
)
def test_splits_by_name_or_by_cut(tmp_path, names, wanted):
    """A capital letter is all of a file, small letters are its end, cut off."""
    for name, letter in names.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = (letter * 9 + "\n").encode() * 40
        path.write_bytes(
            gzip.compress(data) if name.endswith("gz") else lzma.compress(data) if name.endswith("xz") else data
        )
    said = []
    with logged(said):
        found = decoded(load_text(tmp_path, vocab=256, cache=tmp_path / ".cache"))
    assert [set(part.replace("\n", "").lower()) for part in found] == [set(letters.lower()) for letters in wanted]
    size = sum(len(part) for part, letters in zip(found, wanted) if letters.lower() == letters or letters == wanted[0])
    for part, letters in zip(found, wanted):
        assert len(part) == (size * 5 // 100 if letters.islower() else len(part))
    assert any("1 others are not" in line for line in said) == ("notes.md" in names)


def test_a_byte_order_mark_is_no_text(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("one two\n" * 50, encoding="utf-8-sig")
    assert bytes(load_text(tmp_path, vocab=256).train[:8]) == b"one two\n"
    assert b"\xef" not in bytes(load_text(tmp_path, vocab=256).train)


def test_documents_are_kept_apart_by_one_newline(tmp_path):
    for name, data in (("a", b"one"), ("b", b""), ("c", b"two\n"), ("d", b"three"), ("e", b"")):
        (tmp_path / name).write_bytes(data)
    parts = documents.open_text(resolve(tmp_path)).parts
    assert b"".join(documents.stream(parts["train"]())) == b"one\ntwo\nthree"


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [line * 20 for line in LINES] * 20
    table = pyarrow.table({"id": list(map(str, range(len(rows)))), "text": rows})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    (tmp_path / "README.md").write_text("not part of it")
    said = []
    with logged(said):
        loaded = load_text(tmp_path, vocab=300, cache=tmp_path / ".cache")
    assert "".join(decoded(loaded)) == "".join(rows)
    assert any("1 others are not" in line for line in said)
    parquet.write_table(table.drop(["id"]).rename_columns(["content"]), tmp_path / "rows.parquet")
    assert "".join(decoded(load_text(tmp_path / "rows.parquet", vocab=256, cache=tmp_path / ".cache"))) == "".join(rows)


def test_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    written = {"train": ["one", "two\n", ""] * 40, "validation": ["three"], "test": ["four"], "other": ["five"]}
    found = datasets.DatasetDict(
        {k: datasets.Dataset.from_dict({"text": v, "n": [1] * len(v)}) for k, v in written.items()}
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: found)
    assert decoded(load_text("openwebtext", vocab=256, cache=tmp_path)) == ["one\ntwo\n" * 40, "three", "four"]
    found = datasets.DatasetDict({"train": found["train"]})
    assert "".join(decoded(load_text("hub:a/b", vocab=256, cache=tmp_path))) == "one\ntwo\n" * 40
    found = datasets.DatasetDict({"test": found["train"]})
    refused(lambda: load_text("hub:a/b", vocab=256, cache=tmp_path), "hub:a/b has no train split")


def test_the_standard_library(tmp_path):
    source = stdlib_source(300_000)
    assert source == stdlib_source(300_000)
    assert 50_000 < len(source) <= 300_000
    assert source.decode().count("import ") > 10
    assert 2_000_000 < len(stdlib_source()) <= 8_000_000
    assert sum(spans(load_text("stdlib", vocab=256, cache=tmp_path))) == len(stdlib_source())


def test_the_fingerprint_is_of_the_text_and_the_tokens(tmp_path):
    plain, packed, other = tmp_path / "a.txt", tmp_path / "a.xz", tmp_path / "b.txt"
    plain.write_text(WORDS, encoding="utf-8")
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    other.write_text(WORDS[:-1] + "!", encoding="utf-8")
    prints = [
        load_text(path, vocab=vocab, cache=tmp_path / "cache").fingerprint
        for path, vocab in ((plain, 256), (packed, 256), (plain, 300), (packed, 300), (other, 256))
    ]
    assert prints[0] == prints[1]
    assert prints[2] == prints[3]
    assert len(set(prints)) == 3
    assert all(len(bytes.fromhex(each)) == 32 for each in prints)


def test_the_cache_is_used_and_rebuilt_when_damaged(tmp_path):
    path, cache, said = tmp_path / "a.txt", tmp_path / "cache", []
    path.write_text(WORDS, encoding="utf-8")

    def load():
        said.clear()
        with logged(said):
            return load_text(path, vocab=300, cache=cache)

    first = load()
    tokens = Path(first.train.filename)
    wanted = np.array(first.train)
    assert said
    load()
    assert not any("reading" in line for line in said)
    for damaged in (tokens, tokens.with_name("tokenizer.json"), tokens.with_name("fingerprint")):
        data = damaged.read_bytes()
        damaged.write_bytes(data[: len(data) // 2])
        again = load()
        assert said
        assert np.array_equal(again.train, wanted)
        assert again.fingerprint == first.fingerprint
    path.write_text(WORDS * 2, encoding="utf-8")
    assert load().fingerprint != first.fingerprint


@pytest.mark.refused
def test_text_that_is_none_is_refused_in_one_line(tmp_path):
    cache, path = tmp_path / ".cache", tmp_path / "text.txt"

    def load(source=path):
        return load_text(source, vocab=256, cache=cache)

    refused(load, str(path), "does not exist")
    refused(lambda: load(tmp_path), str(tmp_path), "holds no files")
    path.write_bytes(b"")
    refused(load, str(path), "holds no text")
    path.write_bytes(b"too short")
    refused(load, str(path), "leaves nothing for valid")
    path.write_bytes(gzip.compress(WORDS.encode())[:-9])
    refused(load, str(path), "damaged or truncated")
    path.write_bytes(b"x" * 100)
    (tmp_path / "valid.txt").write_bytes(b"x" * 100)
    (tmp_path / "test.txt").write_bytes(b"")
    refused(lambda: load(tmp_path), str(tmp_path), "none named train")
    path.rename(tmp_path / "train.txt")
    refused(lambda: load(tmp_path), str(tmp_path), "no text for test")
    assert not [each for each in cache.iterdir() if each.is_dir()]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"caf\xe9 au lait", 3),
        ("é".encode() * 10 + b"\xc3", 20),
        ("é".encode() * 700_000 + b"\xff" + b"x" * 10, 1_400_000),
        (b"x" * ((1 << 20) - 1) + b"\xe4\xb8", (1 << 20) - 1),
        (b"x" * ((1 << 20) - 1) + b"\xe4\xb8\x41", (1 << 20) - 1),
        (b"surrogate \xed\xa0\x80", 10),
    ],
)
def test_text_not_in_utf8_is_refused_at_its_byte(tmp_path, data, offset):
    path = tmp_path / "text.txt"
    path.write_bytes(data)
    refused(lambda: load_text(path, vocab=256, cache=tmp_path / "c"), f"{path} is not UTF-8 at byte {offset} ", "iconv")


@pytest.mark.refused
def test_parquet_that_holds_no_text_is_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"

    def load():
        return load_text(path, vocab=256, cache=tmp_path / "cache")

    parquet.write_table(pyarrow.table({"text": ["a", "b", None]}), path)
    refused(load, str(path), "no text in row 2")
    parquet.write_table(pyarrow.table({"n": [1, 2]}), path)
    refused(load, str(path), "which column holds the text")
    parquet.write_table(pyarrow.table({"a": ["x"], "b": ["y"]}), path)
    refused(load, str(path), "(--column), one of a, b")
    wrong = pyarrow.array([b"fine", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": wrong}), path)
    refused(load, f"{path}, row 1, is not UTF-8 at byte 0")
    path.write_bytes(path.read_bytes()[:-20])
    refused(load, str(path), "damaged or not a parquet file")
    path.write_bytes(b"")
    refused(load, str(path), "damaged or not a parquet file")


@pytest.mark.refused
@pytest.mark.parametrize("when", ["reading", "training", "train"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, when):
    path, cache = tmp_path / "text.txt", tmp_path / "cache"
    path.write_text("a" * 1000)

    def change(line):
        if line.startswith(when):
            path.write_text("b" * 1000)

    with logged(change):
        refused(lambda: load_text(path, vocab=300, cache=cache), str(path), "changed while it was being read")
    assert not [each for each in cache.iterdir() if each.is_dir()]


# Processes

PREPARE = """
import hashlib, os, sys
from pathlib import Path
from joformer.training.data.text import load_text
print({"datasets", "pyarrow", "tokenizers", "huggingface_hub"} & set(sys.modules))
source, own, shared = sys.argv[1:]
loaded = load_text(source, vocab=500, cache=own)
files = sorted(Path(loaded.train.filename).parent.iterdir())
print([hashlib.sha256(path.read_bytes()).hexdigest() for path in files], len(files))
print(load_text(source, vocab=400, cache=shared).fingerprint)
child = os.fork()
if not child:
    load_text(source, vocab=350, cache=own)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_two_processes_give_the_same_files_and_share_a_cache_and_fork(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 5, encoding="utf-8")
    both = [
        run(
            PREPARE,
            str(path),
            str(tmp_path / seed),
            str(tmp_path / "shared"),
            PYTHONHASHSEED=seed,
            RAYON_NUM_THREADS=seed,
        )
        for seed in ("1", "3")
    ]
    outputs = [process.communicate(timeout=60) for process in both]
    assert outputs[0] == outputs[1]
    heavy, files, fingerprint, child = outputs[0][0].splitlines()
    assert heavy == "set()"
    assert outputs[0][1] == ""
    assert child == "7"
    assert files.endswith(" 6")  # three splits, the tokenizer, the fingerprint, the manifest
    assert load_text(path, vocab=400, cache=tmp_path / "shared").fingerprint == fingerprint


KILLED = """
import sys, time
from joformer._log import Progress
from joformer.training.data.text import load_text
def stop(progress, done):
    print(done / progress.total, flush=True)
    time.sleep(60)
Progress.update = stop
load_text(sys.argv[1], vocab=300, cache=sys.argv[2])
"""


def test_a_process_killed_in_the_middle_leaves_nothing_that_is_trusted(tmp_path):
    path, cache = tmp_path / "text.txt", tmp_path / "cache"
    path.write_text(WORDS * 10, encoding="utf-8")
    process = run(KILLED, str(path), str(cache))
    assert 0 < float(process.stdout.readline()) < 1
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    left = [each for each in cache.iterdir() if each.is_dir()]
    assert len(left) == 1
    assert (left[0] / "train.bin").exists()
    said = []
    with logged(said):
        loaded = load_text(path, vocab=300, cache=cache)
    assert said[0].startswith("reading")
    assert "".join(decoded(loaded)) == WORDS * 10
    assert [each for each in cache.iterdir() if each.is_dir()] == [Path(loaded.train.filename).parent]


# Windows


@settings(max_examples=40)
@given(st.integers(1, 50), st.data())
def test_windows_are_the_slices(size, data):
    length = data.draw(st.integers(1, size))
    starts = data.draw(st.lists(st.integers(0, size - length), max_size=8))
    tokens = np.arange(size, dtype=np.uint16) * 1000 % 65_535
    batch = windows(tokens, torch.tensor(starts, dtype=torch.int64), length)
    assert batch.dtype == torch.int64
    assert batch.shape == (len(starts), length)
    assert batch.tolist() == [tokens[start : start + length].tolist() for start in starts]


@pytest.mark.refused
def test_windows_that_do_not_fit_are_refused():
    tokens = np.arange(10, dtype=np.uint16)
    refused(lambda: windows(tokens, torch.tensor([7]), 4), "7", "use 0 to 6")
    refused(lambda: windows(tokens, torch.tensor([-1]), 4), "-1")
    refused(lambda: windows(tokens, torch.tensor([0]), 11), "windows of 11 tokens do not fit into 10")
    refused(lambda: windows(tokens, torch.tensor([0]), 0), "windows of 0")


@pytest.mark.skipif(not (DATA / "wikitext-2").is_dir(), reason="no real data here")
def test_wikitext(tmp_path):
    loaded = load_text(DATA / "wikitext-2", vocab=256, cache=tmp_path)
    assert spans(loaded) == [10_797_148, 1_121_681, 1_256_449]
    # Its published sizes count words, and a word for the end of each line.
    words = [bytes(part).decode().replace("\n", " <eos> ").split() for part in (loaded.valid, loaded.test)]
    assert [len(each) for each in words] == [217_646, 245_569]
