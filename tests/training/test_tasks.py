"""What a task draws and what it measures, against counting by hand; and what surrounds a run: dice, signals, disk."""

import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from joformer.models import JoFormerLM, LMConfig, ViTConfig, initialise
from joformer.training import (
    Augment,
    Images,
    ImageTask,
    LanguageTask,
    Mix,
    Processes,
    Recipe,
    Streamed,
    Text,
    Tokenizer,
    checkpoints,
    train,
)
from joformer.training.conditions import deterministic, signals
from joformer.training.data.images import Labelled

PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
TINY = LMConfig(vocab=256, dim=16, layers=1, heads=2)
VIT = ViTConfig(shape=(16, 16), patch=(4, 4), classes=10)


class Share(Processes):
    """One of `count` processes that work one after another: the last one's `total` is that of all."""

    def __init__(self, rank=0, count=1, sums=None):
        self.rank, self.count, self.sums = rank, count, [] if sums is None else sums

    def total(self, values):
        self.sums.append(values)
        return sum(self.sums)


def evaluated(task, model, count, **options):
    """What `count` processes find together, and how often each of them used the model."""
    sums, used = [], []
    hook = model.register_forward_hook(lambda *_: used.append(None))
    calls = []
    for rank in range(count):
        used.clear()
        found = task.evaluate(model, Share(rank, count, sums), **options)
        calls.append(len(used))
    hook.remove()
    return found, calls


def counting(train=12, valid=12, **options):
    """Text whose token i is i, so that a window shows where it starts."""
    splits = [np.arange(size, dtype=np.uint8) for size in (train, valid, valid)]
    return LanguageTask(Text(*splits, Tokenizer.of_bytes(), "counting"), **options)


def numbered(count=10, channels=3, size=16, **options):
    """Random images of which each is a class of its own; half as many to test, and again once more."""
    pixels = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)
    every = torch.arange(count)
    tests = torch.cat((every, every[: count // 2]))
    images = Images(Labelled(pixels, every), Labelled(pixels[tests], tests), tuple(map(str, range(count))), "numbered")
    return ImageTask(images, **options)


@pytest.fixture
def pictures(tmp_path):
    """Eight train and three test images, whose red says which they are and whose green and blue where a crop is."""
    for number in range(11):
        folder = tmp_path / "set" / ("train", "test")[number >= 8] / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        pixels[..., 0] = 20 * number
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "set"


def same(one, other):
    assert len(one) == len(other) == 2
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def joined(task, seed, step, parts):
    pieces = [task.batch(seed, step, part, parts) for part in range(parts)]
    return tuple(torch.cat(some) for some in zip(*pieces, strict=True))


# -- text --------------------------------------------------------------------------------------------------------------


def test_bits_per_byte_against_the_logits():
    words = ["größer", "naïve", "日本語", "über", "to", "be", "Ω", "zweiundzwanzig"]
    content = " ".join(words[i % 7 if i % 3 else 7] for i in range(300))
    tokenizer = Tokenizer.train([content], vocab=290)
    ids, context = tokenizer.encode(content), 5
    ids = ids[: (len(ids) - 1) // context * context + 1]  # windows side by side: all but the first are targets once
    valid = torch.tensor(ids)
    text = Text(np.array(ids[:50]), np.array(ids), np.array(ids[::-1]), tokenizer, "words")
    model = initialise(JoFormerLM(LMConfig(vocab=tokenizer.vocab, dim=16, layers=1, heads=2)), 0)
    nn.init.normal_(model.head.weight)  # so that tokens differ
    logits = model(valid[:-1].view(-1, context)).double().log_softmax(-1).flatten(0, 1)
    nats = -logits[range(len(ids) - 1), valid[1:]].sum().item()
    size = len(b"".join(tokenizer.tokens[i] for i in ids[1:]))
    assert size > 1.5 * len(ids)
    assert size != len(b"".join(tokenizer.tokens[i] for i in ids[:-1]))
    found = LanguageTask(text, context=context, batch=3, held_out=9999).evaluate(model, Share())
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert found["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-12)
    assert LanguageTask(text, context=context).evaluate(model, Share(), split="test") != found


class Noting(nn.Module):
    """Keeps what it was asked; its loss is that of a model which thinks token i as likely as i + 1 to 257."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def forward(self, tokens, targets):
        self.asked.append((tokens, targets))
        return (targets + 1).log().mean()


@given(st.integers(3, 256), st.integers(1, 30), st.integers(1, 30), st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=40)
def test_evaluation_windows(tokens, context, held_out, batch, count):
    context = min(context, tokens - 1)
    task, model = counting(valid=tokens, train=99, context=context, batch=batch, held_out=held_out), Noting()
    alone, _ = evaluated(task, model, 1)
    inputs, targets = (torch.cat(some) for some in zip(*model.asked, strict=True))
    starts = inputs[:, 0]
    assert torch.equal(inputs, starts[:, None] + torch.arange(context))
    assert torch.equal(targets, inputs + 1)
    assert len(starts) == min(held_out, (tokens - 1) // context)
    assert starts[0] == 0
    if len(starts) > 1:
        apart = starts.diff()
        assert apart.min() >= context
        assert apart.max() - apart.min() <= 1
        assert targets[-1, -1] == tokens - 1
    assert alone["loss"] == pytest.approx((targets + 1).double().log().mean().item(), rel=1e-5)
    together, calls = evaluated(task, model, count)
    assert together == pytest.approx(alone, rel=1e-12)
    assert len(set(calls)) == 1


def test_training_windows_start_everywhere():
    task = counting(train=12, context=8, batch=64)
    inputs, targets = task.batch(0, 0, 0, 1)
    assert set(inputs[:, 0].tolist()) == {0, 1, 2, 3}
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(8))
    assert torch.equal(targets, inputs + 1)
    assert not torch.equal(inputs, task.batch(0, 1, 0, 1)[0])
    assert not torch.equal(inputs, task.batch(1, 0, 0, 1)[0])


# -- parts -------------------------------------------------------------------------------------------------------------


@given(st.sampled_from([1, 2, 3, 4, 6, 12, 24]), st.integers(0, 2**40), st.integers(0, 99))
@settings(max_examples=20)
def test_parts_are_the_batch(parts, seed, step):
    task = counting(train=200, context=8, batch=24)
    same(joined(task, seed, step, parts), task.batch(seed, step, 0, 1))
    task = numbered(batch=24, augment=Augment(erase_size=5))
    whole = task.batch(seed, step, 0, 1)
    same(joined(task, seed, step, parts), whole)
    assert not torch.equal(whole[0], numbered(batch=24, augment=Augment(erase_size=5)).batch(seed, step + 1, 0, 1)[0])
    if parts < 24:
        task = numbered(batch=24, augment=Augment(erase_size=5), mix=Mix(cutmix=1.0, smoothing=0.1))
        same(joined(task, seed, step, parts), task.batch(seed, step, 0, 1))


@pytest.mark.parametrize("mix", [None, Mix(cutmix=1.0)])
def test_streamed_parts_are_the_batch_in_turn_or_not(pictures, mix):
    data, augment = Streamed(pictures, size=16), Augment(erase_size=5)
    task = ImageTask(data, batch=12, augment=augment, mix=mix)
    whole = [task.batch(3, step, 0, 1) for step in range(3)]
    for parts in (1, 2, 3, 6):
        ranks = []
        for rank in range(2 if parts % 2 == 0 else 1):  # of two processes, each with every other part
            mine = range(rank, parts, 2 if parts % 2 == 0 else 1)
            task = ImageTask(data, batch=12, augment=augment, mix=mix)
            task.check(VIT, mine, parts)
            ranks.append({(step, part): task.batch(3, step, part, parts) for step in range(3) for part in mine})
            for step, part in [(2, mine[-1]), (0, mine[0]), (0, mine[-1]), (0, mine[-1]), (1, mine[0]), (0, mine[0])]:
                same(task.batch(3, step, part, parts), ranks[-1][step, part])
            assert not torch.equal(task.batch(4, 1, mine[0], parts)[0], ranks[-1][1, mine[0]][0])
            task.close()
            same(task.batch(3, 1, mine[0], parts), ranks[-1][1, mine[0]])
        every = {place: batch for found in ranks for place, batch in found.items()}
        for step in range(3):
            pieces = [every[step, part] for part in range(parts)]
            same(tuple(torch.cat(some) for some in zip(*pieces, strict=True)), whole[step])


def test_streamed_crops_depend_on_step_and_place(pictures):
    task = ImageTask(Streamed(pictures, size=16), batch=16, normalise=PLAIN)
    images = torch.cat([task.batch(0, step, 0, 1)[0] for step in range(2)])
    which = (images[:, 0, 0, 0] * 255 / 20).round().long()
    assert which.bincount().tolist() == [4] * 8
    assert len(images.flatten(1).unique(dim=0)) == 32


# -- which images ------------------------------------------------------------------------------------------------------


def test_epochs_take_every_image_once():
    def drawn(seed):
        return torch.cat([numbered(batch=4).batch(seed, step, 0, 1)[1] for step in range(10)]).view(4, 10)

    first, other = drawn(0), drawn(1)
    assert torch.equal(first.sort().values, torch.arange(10).expand(4, 10))
    assert len(first.unique(dim=0)) == 4
    assert not any(torch.equal(order, torch.arange(10)) for order in first)
    assert not (first == other).all(1).any()
    task = numbered(batch=4)
    for step in (7, 2, 3, 0):
        assert torch.equal(task.batch(0, step, 0, 1)[1], first.flatten()[4 * step : 4 * step + 4])
        assert torch.equal(task.batch(1, step, 0, 1)[1], other.flatten()[4 * step : 4 * step + 4])


def test_randint_takes_any_image():
    task = numbered(batch=10, draw="randint")
    drawn = torch.stack([task.batch(0, step, 0, 1)[1] for step in range(20)])
    assert all(len(step.unique()) < 10 for step in drawn)
    assert len(drawn.unique()) == 10
    assert len(drawn.unique(dim=0)) == 20
    assert not torch.equal(task.batch(1, 0, 0, 1)[1], drawn[0])


@pytest.mark.parametrize("count", [2, 3])
def test_image_evaluation_counts_every_image_once(count):
    task, model = numbered(100, batch=8, normalise=PLAIN), nn.Sequential(nn.Flatten(), nn.Linear(768, 100))
    test = task.images.test
    logits = model(test.images / 255)
    hits = logits.topk(5).indices == test.labels[:, None]
    alone, calls = evaluated(task, model, 1)
    assert calls == [3]
    assert alone["accuracy"] == pytest.approx(100 * hits[:, 0].double().mean().item(), rel=1e-12)
    assert alone["top_5"] == pytest.approx(100 * hits.any(1).double().mean().item(), rel=1e-12)
    assert 0 < alone["accuracy"] < alone["top_5"] < 100
    assert alone["loss"] == pytest.approx(nn.functional.cross_entropy(logits, test.labels).item(), rel=1e-5)
    together, calls = evaluated(task, model, count)
    assert together == pytest.approx(alone, rel=1e-12)
    assert len(set(calls)) == 1


def test_streamed_evaluation_counts_every_image_once(pictures):
    task, model = ImageTask(Streamed(pictures, size=16), batch=8), nn.Sequential(nn.Flatten(), nn.Linear(768, 2))
    alone, _ = evaluated(task, model, 1)
    together, calls = evaluated(task, model, 2)
    assert together == pytest.approx(alone, rel=1e-12)
    assert calls == [1, 1]
    assert alone["top_2"] == 100


@pytest.mark.refused
@pytest.mark.parametrize(
    ("task", "config", "parts", "says"),
    [
        (counting, LMConfig(vocab=255), 1, "the text has 256 tokens, the model 255: say vocab=256"),
        (counting, VIT, 1, "the text has 256 tokens, the model none: say vocab=256"),
        (counting, TINY, 3, "a batch of 4 does not divide into 3 parts"),
        (numbered, ViTConfig(classes=9), 1, "the images have 10 classes, the model 9: say classes=10"),
        (numbered, TINY, 1, "the images have 10 classes, the model none: say classes=10"),
        (numbered, ViTConfig(classes=10, channels=1), 1, "the images have 3 channels, the model reads 1"),
        (numbered, VIT, 3, "a batch of 4 does not divide into 3 parts"),
        (numbered, VIT, 4, "samples are mixed in pairs: a part of 4 / 4 must be even"),
    ],
)
def test_models_that_do_not_fit_are_refused(task, config, parts, says):
    made = counting(context=4, batch=4) if task is counting else numbered(batch=4, mix=Mix())
    with pytest.raises(ValueError, match=f"^{says}") as refusal:
        made.check(config, range(parts), parts)
    assert "\n" not in str(refusal.value)
    made.check(TINY if task is counting else VIT, range(2), 2)


# -- around the run ----------------------------------------------------------------------------------------------------


def test_the_seed_draws_the_first_weights(memory):
    config, found = LMConfig(vocab=256, dim=16, layers=1, heads=2, frames="projected", tied=False), {}
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        train(config, counting(context=4, batch=2), Recipe(steps=1, lr=0.0), memory / name, seed=seed, say=str)
        found[name] = load_file(memory / name / "checkpoints" / "00000001" / "model.safetensors")
        wanted = initialise(JoFormerLM(config), seed).named_parameters()
        assert all(torch.equal(found[name].pop(key), value) for key, value in wanted)
    again = load_file(memory / "c" / "model.safetensors")
    assert not torch.equal(again["head.weight"], load_file(memory / "a" / "model.safetensors")["head.weight"])


class Asking(LanguageTask):
    def loss(self, model, batch):
        self.seen = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        return super().loss(model, batch)


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_within_a_run_and_as_before_after_it(memory, before, wanted):
    task = counting(context=4, batch=2)
    task.__class__ = Asking
    filling = torch.utils.deterministic.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        train(TINY, task, Recipe(steps=1, deterministic=wanted), memory, say=str)
        found = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        with pytest.raises(ZeroDivisionError), deterministic(wanted):
            raise ZeroDivisionError
        assert torch.are_deterministic_algorithms_enabled() == before[0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert task.seen == (wanted, False)
    assert found == before
    assert torch.utils.deterministic.fill_uninitialized_memory == filling


def test_signals_are_noted_once_and_given_back():
    numbers, heard = (signal.SIGINT, signal.SIGTERM), []
    usual = [signal.getsignal(number) for number in numbers]
    mine = [signal.default_int_handler, lambda number, _: heard.append(number)]
    try:
        for number, handler in zip(numbers, mine, strict=True):
            signal.signal(number, handler)
        for first in numbers:
            with signals() as asked:
                assert asked() == 0
                signal.raise_signal(first)
                assert asked() == first
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                assert asked() == first
            assert [signal.getsignal(number) for number in numbers] == mine
        with pytest.raises(ZeroDivisionError), signals():
            raise ZeroDivisionError
        assert [signal.getsignal(number) for number in numbers] == mine
    finally:
        for number, handler in zip(numbers, usual, strict=True):
            signal.signal(number, handler)
    assert not heard


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    folder, events = tmp_path / "checkpoints", []
    fsync, rename = os.fsync, os.rename

    def state(found):
        return found.st_ino, found.st_size, found.st_mtime_ns

    def noting_fsync(handle):
        fsync(handle)
        events.append(("fsync", state(os.fstat(handle))))

    def noting_rename(source, target):
        inside = {path.name: state(path.stat()) for path in [*Path(source).iterdir(), Path(source)]}
        rename(source, target)
        events.append(("rename", Path(target).name, inside, state(folder.stat())))

    tensors = {"model": {"w": torch.ones(3)}, "optimizer": {"exp_avg/w": torch.zeros(3)}}
    checkpoints.save(folder, 1, tensors, {"seed": 0}, {}, keep=1)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    checkpoints.save(folder, 2, tensors, {"seed": 0}, {}, keep=1)
    monkeypatch.undo()
    at = [event[1] for event in events].index("00000002")
    _, _, inside, parent = events[at]
    files = {"config.json", "state.json", "model.safetensors", "optimizer.safetensors"}
    assert inside.keys() == files | {".partial-00000002"}
    # As they are when renamed: a file that was written to after its fsync has another time.
    assert {state for _, state, *_ in events[:at]} >= set(inside.values())
    assert events[at + 1] == ("fsync", parent)
    assert [event[0] for event in events[at + 2 :]] == ["rename"]  # only now the old one goes
    assert [path.name for path in folder.iterdir()] == ["00000002"]
