"""Every loader on files that were changed: it loads, or raises one line, in bounded memory and time.

JOFORMER_FUZZ=20 tries twenty times as many, other ones every time.
"""

import gzip
import io
import json
import lzma
import os
import re
import resource
import shutil
import signal
import tempfile
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import changed, changed_json
from PIL import Image
from scipy.io import wavfile

from joformer import models
from joformer.experiments import report
from joformer.experiments.results import gather
from joformer.experiments.tables import read
from joformer.models import ClassifierConfig, LMConfig, ViTConfig
from joformer.training import Tokenizer, checkpoints, load_audio, load_images, load_labelled, load_text, open_run
from joformer.training.data.audio import decode_sound
from joformer.training.data.streamed import FORMATS, Streamed, decode_image

pytestmark = pytest.mark.refused

DEEPER = float(os.environ.get("JOFORMER_FUZZ") or 1)
SECONDS, MEGABYTES = 10, 1000
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class TooLong(BaseException):
    """No Exception: nothing on the way takes it for a damaged file."""


def tries(count):
    return settings(
        max_examples=max(1, int(count * DEEPER)),
        derandomize=DEEPER == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1000


@contextmanager
def bounded():
    """Within it, what takes too long raises, and what takes too much memory fails."""

    def stop(*_):
        raise TooLong

    measured = os.access("/proc/self/clear_refs", os.W_OK)
    if measured:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        before = resident("VmRSS")
    limits, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, stop)
    if measured:
        resource.setrlimit(resource.RLIMIT_AS, (int((resident("VmSize") + 6000) * 1e6), limits[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    if measured:
        assert resident("VmHWM") - before < MEGABYTES


def loads_or_says(load, name=None):
    with bounded():
        try:
            load()
        except (ValueError, OSError) as error:
            said = str(error)
            assert said
            assert "\n" not in said
            assert not re.search("malloc|alloc|memory", said), said  # it would have taken it if there were more
            assert name is None or name in said


@contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as name:
        yield Path(name)


# -- text -----------------------------------------------------------------------------------------------------------

TEXT = "".join(f"{k} the quick brown fox jumps over the lazy dög\n" for k in range(40)).encode()


def parquet(columns, **options):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, **options)
    return file.getvalue()


TEXTS = {
    "a.txt": TEXT,
    "a.txt.gz": gzip.compress(TEXT, mtime=0),
    "a.txt.xz": lzma.compress(TEXT),
    "a.txt.zst": pyarrow.compress(TEXT, codec="zstd", asbytes=True),
    "a.parquet": parquet({"text": TEXT.decode().splitlines(), "n": list(range(40))}),
    "b.parquet": parquet({"text": TEXT.decode().splitlines()}, compression="zstd", use_dictionary=False),
    "a.jsonl": "".join(json.dumps({"text": line, "n": 1}) + "\n" for line in TEXT.decode().splitlines()).encode(),
    "a.csv": b"text,n\n" + b"".join(b'"%b, ""so""",1\n' % line for line in TEXT.splitlines()),
    "a16.txt": TEXT.decode().encode("utf-16"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name):
    @tries(40)
    @given(changed(TEXTS[name]))
    def check(data):
        with folder() as place:
            (place / name).write_bytes(data)
            loads_or_says(lambda: load_text(place / name, vocab=256, cache=place / "cache"), name)

    check()


# -- images and sounds ----------------------------------------------------------------------------------------------


@lru_cache
def picture(kind="PNG", seed=0, mode="RGB"):
    data = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(data, kind)
    return data.getvalue()


@lru_cache
def clip(seed=0, dtype="int16"):
    data = io.BytesIO()
    wave = np.random.default_rng(seed).normal(size=400) * (1 if dtype == "float32" else 50)
    wavfile.write(data, 8000, wave.astype(dtype))
    return data.getvalue()


@pytest.mark.parametrize("kind", [*FORMATS, "palette"])
def test_pictures(kind):
    seed = picture("PNG", mode="P") if kind == "palette" else picture(kind)

    @tries(60)
    @given(changed(seed))
    def check(data):
        loads_or_says(lambda: decode_image(data, "a.img"), "a.img")

    check()


@pytest.mark.parametrize("dtype", ["int16", "uint8", "float32"])
def test_clips(dtype):
    @tries(60)
    @given(changed(clip(0, dtype)))
    def check(data):
        loads_or_says(lambda: decode_sound(data, "a.wav"), "a.wav")

    check()


def held(cells, **more):
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    return parquet({"image": pyarrow.array(cells, kind), "label": [0, 1] * (len(cells) // 2), **more})


def named(cells):
    """With the names of classes, as `datasets` writes them into the file itself."""
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({"image": pyarrow.array(cells, kind), "label": pyarrow.array([0, 1] * (len(cells) // 2))})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


PICTURES = [{"bytes": picture(seed=seed), "path": None} for seed in range(4)]
CLIPS = [{"bytes": clip(seed), "path": None} for seed in range(4)]
TABLES = {
    "images": (held(PICTURES), load_images),
    "classes": (named(PICTURES), load_images),
    "clips": (held(CLIPS), load_audio),
    "either": (held(CLIPS), load_labelled),
    "streamed": (
        named(PICTURES),
        lambda path, cache: list(Streamed(path, size=8, workers=0, cache=cache).batches([[(0, 0)]])),
    ),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables(kind):
    seed, load = TABLES[kind]

    @tries(25)
    @given(changed(seed))
    def check(data):
        with folder() as place:
            (place / "a.parquet").write_bytes(data)
            loads_or_says(lambda: load(place / "a.parquet", cache=place / "cache"), "a.parquet")

    check()


def test_features():
    """What a table says of itself, in the JSON that `datasets` puts there."""
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table({"image": pyarrow.array(PICTURES, kind), "label": pyarrow.array([0, 1, 0, 1])})

    @tries(40)
    @given(changed_json({"info": {"features": features}}))
    def check(about):
        with folder() as place:
            pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": about}), place / "a.parquet")
            loads_or_says(lambda: load_images(place / "a.parquet", cache=place / "cache"))

    check()


@pytest.mark.parametrize(("suffix", "load"), [("png", load_images), ("wav", load_audio)])
def test_folders_of_examples(suffix, load):
    good = [picture(seed=seed) if suffix == "png" else clip(seed) for seed in range(4)]

    @tries(25)
    @given(changed(good[0]))
    def check(data):
        with folder() as place:
            for number, content in enumerate([data, *good[1:]]):
                (place / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
                (place / "data" / "ab"[number % 2] / f"{number}.{suffix}").write_bytes(content)
            loads_or_says(lambda: load(place / "data", cache=place / "cache"))

    check()


LISTINGS = {
    "a.csv": b"file,label,split\n0.png,cat,train\n1.png,dog,train\n2.png,cat,test\n",
    "a.jsonl": b"".join(b'{"file": "%d.png", "label": %d}\n' % (k, k % 2) for k in range(4)),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_tables_of_files(name):
    @tries(60)
    @given(changed(LISTINGS[name]))
    def check(data):
        with folder() as place:
            for number in range(4):
                (place / f"{number}.png").write_bytes(picture(seed=number))
            (place / name).write_bytes(data)
            loads_or_says(lambda: load_images(place / name, cache=place / "cache"))

    check()


# -- models and runs ------------------------------------------------------------------------------------------------

CONFIGS = {
    "lm": LMConfig(vocab=256, dim=8, layers=1, heads=2, hidden=8),
    "vit": ViTConfig(shape=(8, 8), patch=(4, 4), dim=8, layers=1, heads=2, hidden=8, classes=3),
    "monoidal": ClassifierConfig(dim=4, shape=(8, 8), hidden=8),
}


@pytest.fixture(scope="module")
def saved():
    """A saved model of every kind, and a checkpoint of one: folders to copy from."""
    torch.manual_seed(0)
    with folder() as place:
        for name, config in CONFIGS.items():
            model = config.build()
            models.save(model, place / name)
        state = {"metrics": {"bytes": 0, "sha256": ""}, "settings": {"seed": 0}, "stage": 0}
        weights = models._saving.own_state(models.load(place / "lm"))
        written = models._saving.written(CONFIGS["lm"])
        checkpoints.save(place / "run" / "checkpoints", 1, {"model": weights}, state, written)
        (place / "run" / "config.json").write_text(json.dumps({**written, "run": {}, "notes": {}}))
        Tokenizer.of_bytes().save(place / "run" / "tokenizer.json")
        yield place


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_of_models(kind, saved):
    @tries(40)
    @given(changed((saved / kind / "model.safetensors").read_bytes()))
    def check(data):
        with folder() as place:
            shutil.copytree(saved / kind, place / "m")
            (place / "m" / "model.safetensors").write_bytes(data)
            loads_or_says(lambda: models.load(place / "m"))

    check()


@pytest.mark.parametrize("kind", CONFIGS)
def test_configurations_of_models(kind, saved):
    @tries(50)
    @given(changed_json(json.loads((saved / kind / "config.json").read_text())))
    def check(data):
        with folder() as place:
            shutil.copytree(saved / kind, place / "m")
            (place / "m" / "config.json").write_bytes(data)
            loads_or_says(lambda: models.load(place / "m"))

    check()


@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "config.json"])
def test_checkpoints(name, saved):
    good = (saved / "run" / "checkpoints" / "00000001" / name).read_bytes()
    bytes_of = changed(good) if name.endswith("safetensors") else changed_json(json.loads(good))

    @tries(30)
    @given(bytes_of)
    def check(data):
        with folder() as place:
            shutil.copytree(saved / "run", place / "run")
            (place / "run" / "checkpoints" / "00000001" / name).write_bytes(data)
            loads_or_says(lambda: checkpoints.read(place / "run" / "checkpoints" / "00000001"))
            loads_or_says(lambda: checkpoints.latest(place / "run" / "checkpoints"))
            loads_or_says(lambda: open_run(place / "run"))

    check()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_runs(name, saved):
    @tries(40)
    @given(changed_json(json.loads((saved / "run" / name).read_text())))
    def check(data):
        with folder() as place:
            shutil.copytree(saved / "run", place / "run")
            (place / "run" / name).write_bytes(data)
            loads_or_says(lambda: open_run(place / "run").tokenizer())

    check()


def test_tokenizers():
    learned = Tokenizer.train(["to be or not to be, that is the question"], vocab=262)

    @tries(80)
    @given(changed_json(json.loads(learned.definition())))
    def check(data):
        with folder() as place:
            (place / "tokenizer.json").write_bytes(data)
            loads_or_says(lambda: Tokenizer.load(place / "tokenizer.json").encode("to be"), "tokenizer.json")

    check()


# -- results --------------------------------------------------------------------------------------------------------

CELLS = [f"t/{model}/seed-{seed}" for model in "ab" for seed in range(2)]
ABOUT = {
    "name": "t", "title": "T", "metric": "loss", "unit": "nats", "higher": False, "skewed": False, "scale": "laptop",
    "data": "d", "baseline": "a", "reference": 1.0, "models": ["a", "b"], "sizes": ["s"], "pairs": [["a", "b"]],
    "paper": {"a": {"s": 1.0}}, "paper_metric": "loss", "paper_setting": "x", "notes": ["n"], "cells": CELLS,
}  # fmt: skip
RESULTS = {
    name: {
        "cell": name, "table": "t", "model": name[2], "seed": int(name[-1]), "measured": {"s": {"loss": 1.0 + k / 7}},
        "curve": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], "parameters": 10, "steps": 2, "seconds": 1.0,
        "step_ms": 1.0, "described": {}, "command": "c", "versions": {"torch": "2"}, "machine": {"cores": 2},
        "config": {"dim": 8}, "recipe": {"lr": 0.1}, "task": {"batch": 2}, "finished": "2026-01-01T00:00:00Z",
    }
    for k, name in enumerate(CELLS)
}  # fmt: skip
REPORT = {"joformer": "0", "tables": [{"about": ABOUT, "said": {}, "cells": list(RESULTS.values())}]}


def pages(path):
    analysed = report.analysed(gather([path]))
    return report.html(analysed), report.markdown(analysed), report.lines(analysed), report.as_json(analysed)


@pytest.mark.parametrize("name", ["report.json", "table.json", "result.json"])
def test_results(name):
    seed = {"report.json": REPORT, "table.json": ABOUT, "result.json": RESULTS[CELLS[3]]}[name]

    @tries(60)
    @given(changed_json(seed))
    def check(data):
        with folder() as place:
            if name == "report.json":
                (place / name).write_bytes(data)
                loads_or_says(lambda: pages(place / name))
                return
            for cell, result in RESULTS.items():
                (place / cell).mkdir(parents=True)
                (place / cell / "result.json").write_text(json.dumps(result))
            (place / "t" / "table.json").write_text(json.dumps(ABOUT))
            spoiled = place / "t" / name if name == "table.json" else place / CELLS[3] / name
            spoiled.write_bytes(data)
            loads_or_says(lambda: pages(place))
            loads_or_says(lambda: read(spoiled))

    check()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "speed.jsonl"])
def test_results_of_runs(name):
    lines = [{"step": k, "loss": 3.0 - k, "train_loss": 1.0} for k in (1, 2)]
    good = {
        "config.json": {"model": "M", "config": {}, "run": {"seed": 0, "recipe": {"steps": 2}}, "notes": {"data": "d"}},
        "metrics.jsonl": lines[0],
        "speed.jsonl": {"step": 1, "seconds_per_step": 0.1},
    }
    ending = st.sampled_from([b"", b"\n", b"\n" + json.dumps(lines[1]).encode() + b"\n"])

    @tries(40)
    @given(st.tuples(changed_json(good[name]), ending).map(b"".join))
    def check(data):
        with folder() as place:
            (place / "config.json").write_text(json.dumps(good["config.json"]))
            (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (place / name).write_bytes(data)
            loads_or_says(lambda: pages(place))

    check()


# -- the checks themselves ------------------------------------------------------------------------------------------


def test_the_bounds_are_felt(monkeypatch):
    def waits():
        signal.pause()

    def takes():
        return np.ones(40_000_000)  # and gives it back at once

    def says():
        raise ValueError("two\nlines")

    def breaks():
        raise KeyError("name")

    monkeypatch.setitem(globals(), "SECONDS", 0.2)
    with pytest.raises(TooLong):
        loads_or_says(waits)
    monkeypatch.setitem(globals(), "SECONDS", 20)
    monkeypatch.setitem(globals(), "MEGABYTES", 200)
    for wrong, error in ((says, AssertionError), (breaks, KeyError)):
        with pytest.raises(error):
            loads_or_says(wrong)
    if os.access("/proc/self/clear_refs", os.W_OK):
        with pytest.raises(AssertionError):
            loads_or_says(takes)
