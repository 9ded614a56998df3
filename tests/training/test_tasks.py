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
from joformer.training import Augment, ImageTask, LanguageTask, Mix, Processes, Recipe, train
from joformer.training.checkpoints import save
from joformer.training.conditions import signals
from joformer.training.data import Images, Streamed, Text, Tokenizer
from joformer.training.data.images import Labelled

PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
LM = LMConfig(vocab=256, dim=16, layers=1, heads=2, frames="projected", tied=False)
VIT = ViTConfig(classes=10)
AUGMENT, MIX = Augment(erase_size=5), Mix(cutmix=1.0, smoothing=0.1)


class Share(Processes):
    """One of `count` processes that work one after another: the last one's `total` is that of all."""

    def __init__(self, rank, count, sums):
        self.rank, self.count, self.sums = rank, count, sums

    def total(self, values):
        self.sums.append(values)
        return sum(self.sums)


def evaluated(task, model, count=1):
    """What the processes find together; all must use the model as often, since a sharded one needs them all."""
    sums, calls = [], [0] * count
    for rank in range(count):
        with model.register_forward_hook(lambda *_, rank=rank: calls.__setitem__(rank, calls[rank] + 1)):
            found = task.evaluate(model, Share(rank, count, sums))
    assert len(set(calls)) == 1
    return found


def counting(train=12, valid=12, **options):
    """Text whose token i is i, so that a window shows where it starts."""
    splits = [np.arange(size, dtype=np.uint8) for size in (train, valid, valid)]
    return LanguageTask(Text(*splits, Tokenizer.of_bytes(), "counting"), **options)


def numbered(**options):
    """Ten images of which each is a class of its own; 150 to test."""
    dice = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (160, 3, 16, 16), dtype=torch.uint8, generator=dice)
    train = Labelled(pixels[:10], torch.arange(10))
    test = Labelled(pixels[10:], torch.randint(10, (150,), generator=dice))
    return ImageTask(Images(train, test, tuple("0123456789"), "numbered"), **options)


@pytest.fixture
def pictures(tmp_path):
    """Eight train and three test images, whose red says which they are and whose green and blue where a crop is."""
    for number in range(11):
        path = tmp_path / ("train", "test")[number >= 8] / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        pixels[..., 0] = 20 * number
        Image.fromarray(pixels).save(path)
    return Streamed(tmp_path, size=16)


def require_joined(pieces, whole):
    for some, one in zip(zip(*pieces, strict=True), whole, strict=True):
        assert torch.equal(torch.cat(some), one)


def test_bits_per_byte_against_the_logits():
    words = ["größer", "naïve", "日本語", "über", "to", "be", "Ω", "zweiundzwanzig"]
    content = " ".join(words[i % 7 if i % 3 else 7] for i in range(300))
    tokenizer = Tokenizer.train([content], vocab=290)
    ids = tokenizer.encode(content)
    ids = np.array(ids[: (len(ids) - 1) // 5 * 5 + 1])  # windows side by side: all but the first are targets, once
    model = initialise(JoFormerLM(LMConfig(vocab=tokenizer.vocab, dim=16, layers=1, heads=2)), 0)
    nn.init.normal_(model.head.weight)  # so that no two tokens are alike
    logits = model(torch.tensor(ids[:-1]).view(-1, 5)).double().log_softmax(-1).flatten(0, 1)
    nats = -logits[range(len(ids) - 1), ids[1:]].sum().item()
    sizes = [len(tokenizer.tokens[token]) for token in ids]
    assert sum(sizes) > 1.5 * len(ids) and sizes[0] != sizes[-1]  # noqa: PT018
    task = LanguageTask(Text(ids[:50], ids, ids[::-1], tokenizer, "words"), context=5, batch=3, held_out=9999)
    found = evaluated(task, model)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / sum(sizes[1:]), rel=1e-5)
    assert found["loss"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-12)


class Noting(nn.Module):
    def forward(self, tokens, targets):
        self.asked.append((tokens, targets))
        return (targets + 1).log().mean()


@given(st.integers(3, 256), st.integers(1, 30), st.integers(1, 30), st.integers(1, 7))
@settings(max_examples=40)
def test_evaluation_windows_are_disjoint_and_even_and_counted_once(tokens, context, held_out, batch):
    context, model = min(context, tokens - 1), Noting()
    task = counting(valid=tokens, train=99, context=context, batch=batch, held_out=held_out)
    model.asked = []
    alone = evaluated(task, model)
    inputs, targets = map(torch.cat, zip(*model.asked))
    starts, apart = inputs[:, 0], inputs[:, 0].diff().tolist()
    assert torch.equal(inputs, starts[:, None] + torch.arange(context))
    assert torch.equal(targets, inputs + 1)
    assert len(starts) == min(held_out, (tokens - 1) // context)
    assert (starts[0], targets[-1, -1]) == (0, tokens - 1 if apart else context)
    assert all(context <= min(apart) <= gap <= min(apart) + 1 for gap in apart)
    assert alone["loss"] == pytest.approx((targets + 1).double().log().mean().item(), rel=1e-5)
    assert evaluated(task, model, 2) == pytest.approx(alone, rel=1e-12)


def test_training_windows_start_everywhere():
    task = counting(train=12, context=8, batch=64)
    inputs, targets = task.batch(0, 0, 0, 1)
    assert set(inputs[:, 0].tolist()) == {0, 1, 2, 3}
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(8))
    assert torch.equal(targets, inputs + 1)
    assert not any(torch.equal(inputs, task.batch(seed, step, 0, 1)[0]) for seed, step in [(0, 1), (1, 0)])


@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 2**40), st.integers(0, 99))
@settings(max_examples=20)
def test_parts_are_the_batch(parts, seed, step):
    tasks = counting(train=200, context=8, batch=24), numbered(batch=24), numbered(batch=24, augment=AUGMENT, mix=MIX)
    for task in tasks:
        whole = task.batch(seed, step, 0, 1)
        require_joined([task.batch(seed, step, part, parts) for part in range(parts)], whole)
        assert not torch.equal(whole[0], task.batch(seed, step + 1, 0, 1)[0])


@pytest.mark.parametrize("mix", [None, MIX])
def test_streamed_parts_are_the_batch_in_turn_or_not(pictures, mix):
    whole = ImageTask(pictures, batch=12, augment=AUGMENT, mix=mix)
    for parts in (1, 2, 3, 6):
        found = {}
        for rank in range(min(2, parts)):  # of two processes, each with every other part
            mine, task = range(rank, parts, 2), ImageTask(pictures, batch=12, augment=AUGMENT, mix=mix)
            task.check(VIT, mine, parts)
            found |= {(step, part): task.batch(3, step, part, parts) for step in range(3) for part in mine}
            for step, part in [(2, mine[-1]), (0, mine[0]), (0, mine[-1]), (0, mine[-1]), (1, mine[0]), (0, mine[0])]:
                require_joined([task.batch(3, step, part, parts)], found[step, part])
            assert not torch.equal(task.batch(4, 1, mine[0], parts)[0], found[1, mine[0]][0])
            require_joined([task.batch(3, 1, mine[0], parts)], found[1, mine[0]])
            task.close()
        for step in range(3):
            require_joined([found[step, part] for part in range(parts)], whole.batch(3, step, 0, 1))


def test_streamed_crops_depend_on_step_and_place(pictures):
    task = ImageTask(pictures, batch=16, normalise=PLAIN)
    images = torch.cat([task.batch(0, step, 0, 1)[0] for step in range(2)])
    assert (images[:, 0, 0, 0] * 255 / 20).round().long().bincount().tolist() == [4] * 8
    assert len(images.flatten(1).unique(dim=0)) == 32


def test_epochs_take_every_image_once_and_randint_any():
    first, other = (
        torch.cat([numbered(batch=4).batch(seed, step, 0, 1)[1] for step in range(10)]).view(4, 10) for seed in (0, 1)
    )
    assert torch.equal(first.sort().values, torch.arange(10).expand(4, 10))
    assert len(torch.cat((first, other, torch.arange(10)[None])).unique(dim=0)) == 9
    task = numbered(batch=4)
    for step, order, seed in [(7, first, 0), (2, first, 0), (2, other, 1), (3, first, 0)]:
        assert torch.equal(task.batch(seed, step, 0, 1)[1], order.flatten()[4 * step : 4 * step + 4])
    task = numbered(batch=10, draw="randint")
    drawn = torch.stack([task.batch(seed, step, 0, 1)[1] for step in range(10) for seed in (0, 1)])
    assert all(len(step.unique()) < 10 for step in drawn)
    assert (len(drawn.unique()), len(drawn.unique(dim=0))) == (10, 20)


def test_evaluation_counts_every_image_once(pictures):
    task, model = numbered(batch=8, normalise=PLAIN), nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    test = task.images.test
    logits = model(test.images / 255)
    hits = (logits.topk(5).indices == test.labels[:, None]).double()
    alone = evaluated(task, model)
    assert alone["accuracy"] == pytest.approx(100 * hits[:, 0].mean().item(), rel=1e-12)
    assert alone["top_5"] == pytest.approx(100 * hits.sum(1).mean().item(), rel=1e-12)
    assert 0 < alone["accuracy"] < alone["top_5"] < 100
    assert alone["loss"] == pytest.approx(nn.functional.cross_entropy(logits, test.labels).item(), rel=1e-5)
    streamed = ImageTask(pictures, batch=8)  # fewer to test than processes could have batches
    for one in (task, streamed):
        assert evaluated(one, model, 2) == pytest.approx(evaluated(one, model), rel=1e-12)


@pytest.mark.refused
def test_models_that_do_not_fit_are_refused():
    text, images = counting(context=4, batch=4), numbered(batch=4, mix=MIX)
    for task, config, parts, says in [
        (text, LMConfig(vocab=255), 1, "the text has 256 tokens, the model 255: say vocab=256$"),
        (text, VIT, 1, "the text has 256 tokens, the model none: say vocab=256$"),
        (text, LM, 3, "a batch of 4 does not divide into 3 parts"),
        (images, ViTConfig(classes=9), 1, "the images have 10 classes, the model 9: say classes=10$"),
        (images, LM, 1, "the images have 10 classes, the model none: say classes=10$"),
        (images, ViTConfig(classes=10, channels=1), 1, "the images have 3 channels, the model reads 1$"),
        (images, VIT, 3, "a batch of 4 does not divide into 3 parts"),
        (images, VIT, 4, "samples are mixed in pairs: a part of 4 / 4 must be even$"),
    ]:
        task.check(LM if task is text else VIT, range(2), 2)
        with pytest.raises(ValueError, match=rf"\A{says}") as refusal:
            task.check(config, range(parts), parts)
        assert "\n" not in str(refusal.value)


def test_the_seed_draws_the_first_weights(memory):
    found = []
    for at, seed in enumerate((5, 5, 6)):
        train(LM, counting(context=4, batch=2), Recipe(steps=1, lr=0.0), memory / str(at), seed=seed, say=str)
        found.append(load_file(memory / str(at) / "checkpoints" / "00000001" / "model.safetensors"))
        for name, value in initialise(JoFormerLM(LM), seed).named_parameters():
            assert torch.equal(found[at][name], value)
    assert not torch.equal(found[0]["head.weight"], found[2]["head.weight"])


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_within_a_run_and_as_before_after_it(memory, before, wanted):
    on, warned = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
    task, seen = counting(context=4, batch=2), []
    task.loss = lambda model, batch: seen.append((on(), warned())) or LanguageTask.loss(task, model, batch)
    try:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        train(LM, task, Recipe(steps=1, deterministic=wanted), memory, say=str)
        assert [*seen, (on(), warned())] == [(wanted, False), before]
    finally:
        torch.use_deterministic_algorithms(False)


def test_signals_are_noted_and_the_second_interrupts():
    numbers, mine = (signal.SIGINT, signal.SIGTERM), (signal.default_int_handler, lambda *_: None)
    usual = [signal.signal(*pair) for pair in zip(numbers, mine)]
    try:
        for first in numbers:
            with pytest.raises(ZeroDivisionError), signals() as asked:
                assert asked() == 0
                signal.raise_signal(first)
                assert asked() == first
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
                raise ZeroDivisionError
            assert tuple(map(signal.getsignal, numbers)) == mine
    finally:
        for pair in zip(numbers, usual):
            signal.signal(*pair)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    folder, events, fsync, rename = tmp_path / "checkpoints", [], os.fsync, os.rename

    def state(place):  # what is written to after its fsync has another size or time
        found = os.stat(place)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def noting_fsync(handle):
        events.append(("fsync", state(handle), fsync(handle)))

    def noting_rename(source, target):
        inside = {path.name: state(path) for path in [*Path(source).iterdir(), Path(source)]}
        events.append(("rename", Path(target).name, rename(source, target), inside, state(folder)))

    tensors = {"model": {"w": torch.ones(3)}, "optimizer": {"exp_avg/w": torch.zeros(3)}}
    save(folder, 1, tensors, {}, {}, keep=1)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "rename", noting_rename)
    save(folder, 2, tensors, {}, {}, keep=1)
    at = [event[1] for event in events].index("00000002")
    *_, inside, parent = events[at]
    files = {"config.json", "state.json", "model.safetensors", "optimizer.safetensors"}
    assert inside.keys() == files | {".partial-00000002"}
    assert set(inside.values()) <= {event[1] for event in events[:at]}
    assert events[at + 1][:2] == ("fsync", parent)
    assert [event[0] for event in events[at + 2 :]] == ["rename"]  # only then the old one goes
