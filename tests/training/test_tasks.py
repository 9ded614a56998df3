"""What a task draws and what it measures, against counting by hand; and what surrounds a run: dice, signals, disk."""

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from joformer.attention import ContextParallel
from joformer.models import ClassifierConfig, JoFormerLM, LMConfig, ViTConfig, initialise
from joformer.training import Augment, ImageTask, LanguageTask, Mix, Processes, Recipe, train
from joformer.training.checkpoints import save
from joformer.training.data import Images, Streamed, Text, Tokenizer
from joformer.training.data.images import Labelled
from joformer.training.determinism import signals

LM = LMConfig(vocab=256, dim=16, layers=1, heads=2, frames="projected", tied=False)
VIT, PLAIN = ViTConfig(classes=10), ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
AUGMENT, MIX = Augment(erase_size=5), Mix(cutmix=1.0, smoothing=0.1)


class Share(Processes):
    """One of `count` processes that work one after another: the last one's `total` is that of all."""

    def __init__(self, rank, count, sums):
        self.team, self.teams, self.sums = rank, count, sums

    def total(self, values):
        self.sums.append(values)
        return sum(self.sums)


def evaluated(task, model, count=1):
    """What the processes find together; all must use the model as often, since a sharded one needs them all."""
    sums, calls = [], []
    with model.register_forward_hook(lambda *_: calls.append(len(sums))):
        found = [task.evaluate(model, Share(rank, count, sums)) for rank in range(count)]
    assert len({calls.count(rank) for rank in range(count)}) == 1
    return found[-1]


def counting(train=12, valid=12, **options):
    """Text whose token i is i, so that a window shows where it starts."""
    splits = [np.arange(size, dtype=np.uint8) for size in (train, valid, valid)]
    return LanguageTask(Text(*splits, Tokenizer.of_bytes(), "counting"), **options)


def numbered(count=10, **options):
    """Images of which each is a class of its own; 150 to test."""
    dice = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (160, 3, 16, 16), dtype=torch.uint8, generator=dice)
    test = Labelled(pixels[10:], torch.randint(10, (150,), generator=dice))
    return ImageTask(Images(Labelled(pixels[:count], torch.arange(count)), test, tuple("0123456789"), ""), **options)


@pytest.fixture
def pictures(tmp_path):
    """Eight train and three test images, whose red says which they are and whose green and blue where a crop is."""
    for number in range(11):
        path = tmp_path / ("train", "test")[number >= 8] / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        pixels[..., 0] = 20 * number
        Image.fromarray(pixels).save(path)
    return Streamed(tmp_path, size=16, workers=0)


def require_joined(pieces, whole):
    assert all(torch.equal(torch.cat(some), one) for some, one in zip(zip(*pieces), whole, strict=True))


def test_bits_per_byte_against_the_logits():
    words = ["größer", "naïve", "日本語", "über", "to", "be", "Ω", "zweiundzwanzig"]
    content = " ".join(words[i % 7 if i % 3 else 7] for i in range(300))
    tokenizer = Tokenizer.train([content], vocab=290)
    ids = np.array(tokenizer.encode(content)[: 5 * 100 + 1])  # windows side by side: all but the first are targets
    model = initialise(JoFormerLM(LMConfig(vocab=tokenizer.vocab, dim=16, layers=1, heads=2)), 0)
    nn.init.normal_(model.head.weight)  # so that no two tokens are alike
    logits = model(torch.tensor(ids[:-1]).view(-1, 5)).double().log_softmax(-1).flatten(0, 1)
    nats = -logits[range(500), ids[1:]].sum().item()
    sizes = [len(tokenizer.tokens[token]) for token in ids]
    assert (len(ids), sum(sizes) > 750, sizes[0] != sizes[-1]) == (501, True, True)
    task = LanguageTask(Text(ids[:50], ids, ids[::-1], tokenizer, "words"), context=5, batch=3, held_out=9999)
    wanted = {"loss": nats / 500, "perplexity": np.exp(nats / 500), "bits_per_byte": nats / np.log(2) / sum(sizes[1:])}
    assert evaluated(task, model) == pytest.approx(wanted, rel=1e-5)


@given(st.integers(3, 256), st.integers(1, 30), st.integers(1, 30), st.integers(1, 7))
@settings(max_examples=40)
def test_evaluation_windows_are_disjoint_and_even_and_counted_once(tokens, context, held_out, batch):
    context, model, asked = min(context, tokens - 1), nn.Module(), []
    model.forward = lambda tokens, targets: asked.append((tokens, targets)) or (targets + 1).log().mean()
    task = counting(valid=tokens, train=99, context=context, batch=batch, held_out=held_out)
    alone = evaluated(task, model)
    inputs, targets = map(torch.cat, zip(*asked))
    starts, apart = inputs[:, :1], inputs[:, 0].diff().tolist()
    require_joined([[inputs, targets]], [starts + torch.arange(context), inputs + 1])
    assert len(starts) == min(held_out, (tokens - 1) // context)
    assert (starts[0], targets[-1, -1]) == (0, tokens - 1 if apart else context)
    assert all(context <= min(apart) <= gap <= min(apart) + 1 for gap in apart)
    assert alone["loss"] == pytest.approx((targets + 1).double().log().mean().item(), rel=1e-5)
    assert evaluated(task, model, 2) == pytest.approx(alone, rel=1e-12)


def test_training_windows_start_everywhere():
    task = counting(train=12, context=8, batch=64)
    inputs, targets = task.batch(0, 0, 0, 1)
    assert set(inputs[:, 0].tolist()) == {0, 1, 2, 3}
    require_joined([[inputs, targets]], [inputs[:, :1] + torch.arange(8), inputs + 1])
    assert not any(torch.equal(inputs, task.batch(seed, step, 0, 1)[0]) for seed, step in [(0, 1), (1, 0)])


@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 2**40), st.integers(0, 99))
@settings(max_examples=20)
def test_parts_are_the_batch(parts, seed, step):
    text, copies = counting(200, context=8, batch=24), numbered(1, batch=24, augment=AUGMENT)
    for task in (text, copies, numbered(batch=24, augment=AUGMENT, mix=MIX)):
        whole = task.batch(seed, step, 0, 1)
        require_joined([task.batch(seed, step, part, parts) for part in range(parts)], whole)
        assert not torch.equal(whole[0], task.batch(seed, step + 1, 0, 1)[0])


@pytest.mark.parametrize("mix", [None, MIX])
def test_streamed_parts_are_the_batch_in_turn_or_not(pictures, mix):
    whole, turns = ImageTask(pictures, batch=12, augment=AUGMENT, mix=mix), [(3, 0), (3, 1), (3, 2), (4, 3)]
    for parts in (1, 2, 3, 6):
        found = {}
        for rank in range(min(2, parts)):  # of two processes, each with every other part
            mine, task = range(rank, parts, 2), ImageTask(pictures, batch=12, augment=AUGMENT, mix=mix)
            task.check(VIT, mine, parts)
            found |= {(*turn, part): task.batch(*turn, part, parts) for turn in turns for part in mine}
            for step, part in [(2, mine[-1]), (0, mine[0]), (0, mine[-1]), (0, mine[-1]), (1, mine[0]), (0, mine[0])]:
                require_joined([task.batch(3, step, part, parts)], found[3, step, part])
        for turn in reversed(turns):
            require_joined([found[(*turn, part)] for part in range(parts)], whole.batch(*turn, 0, 1))


def test_streamed_crops_depend_on_seed_and_step_and_place(pictures):
    task = ImageTask(pictures, batch=16, normalise=PLAIN)
    for turns in ([(0, step) for step in range(10)], [(seed, 0) for seed in range(10)]):
        images = torch.cat([task.batch(*turn, 0, 1)[0] for turn in turns])
        assert (images[:, 0, 0, 0] * 255 / 20).round().long().bincount().tolist() == [20] * 8
        assert len(images.flatten(1).unique(dim=0)) == 160  # more than the pairs of an image and a place


def test_epochs_take_every_image_once_and_randint_any():
    drawn = [numbered(batch=4).batch(seed, step, 0, 1)[1] for seed in (0, 1) for step in range(10)]
    first, other = torch.cat(drawn).view(2, 4, 10)
    assert torch.equal(first.sort().values, torch.arange(10).expand(4, 10))
    assert len(torch.cat((first, other, torch.arange(10)[None])).unique(dim=0)) == 9
    task, anyhow = numbered(batch=4), numbered(batch=10, draw="randint")
    for step, order, seed in [(7, first, 0), (2, first, 0), (2, other, 1), (3, first, 0)]:
        assert torch.equal(task.batch(seed, step, 0, 1)[1], order.flatten()[4 * step : 4 * step + 4])
    drawn = torch.stack([anyhow.batch(seed, step, 0, 1)[1] for step in range(10) for seed in (0, 1)])
    assert all(len(step.unique()) < 10 for step in drawn)
    assert (len(drawn.unique()), len(drawn.unique(dim=0))) == (10, 20)


def test_evaluation_counts_every_image_once(pictures):
    task, model = numbered(batch=8, normalise=PLAIN), nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    test = task.images.test
    logits = model(test.images / 255)
    hits = (logits.topk(5).indices == test.labels[:, None]).numpy()
    top_1, top_5, loss = 100 * hits[:, 0].mean(), 100 * hits.sum(1).mean(), nn.CrossEntropyLoss()(logits, test.labels)
    assert 0 < top_1 < top_5 < 100
    assert evaluated(task, model) == pytest.approx({"loss": loss.item(), "accuracy": top_1, "top_5": top_5}, rel=1e-5)
    for one in (task, ImageTask(pictures, batch=8)):  # in three batches, and in one
        assert evaluated(one, model, 2) == pytest.approx(evaluated(one, model), rel=1e-12)


@pytest.mark.refused
def test_models_that_do_not_fit_are_refused():
    text, images = counting(context=4, batch=4), numbered(batch=4, mix=MIX)
    for task, config, parts, says in [
        (text, LMConfig(vocab=255), 1, "the text has 256 tokens, the model has 255: set vocab=256$"),
        (text, VIT, 1, "the text has 256 tokens, the model has none: set vocab=256$"),
        (images, ViTConfig(classes=9), 1, "the images have 10 classes, the model has 9: set classes=10$"),
        (images, LM, 1, "the images have 10 classes, the model has none: set classes=10$"),
        (images, ViTConfig(classes=10, channels=1), 1, "the images have 3 channels, the model reads 1$"),
        (images, ClassifierConfig(classes=10), 1, "the images have 3 channels, the model reads 1$"),
        (images, VIT, 4, "samples are mixed in pairs: 4 / 4 samples per part must be even$"),
    ]:
        task.check(LM if task is text else VIT, range(2), 2)
        with pytest.raises(ValueError, match=f"^{says}"):  # to its end: one line
            task.check(config, range(parts), parts)


def test_a_model_of_ones_own_must_know_of_shared_tokens():
    shared = ContextParallel.__new__(ContextParallel)
    shared.rank, shared.count = 0, 2
    task = counting(context=4, batch=2)
    task.divide(shared)
    task.check(LM, range(2), 2)
    inputs, targets = task.batch(0, 0, 0, 1)
    assert inputs.shape == (2, 2)
    assert (inputs[:, 1] == inputs[:, 0] + 3).all()  # head and tail
    assert (targets == inputs + 1).all()
    with pytest.raises(ValueError, match=r"Linear\.forward has no parallel=: add it, or drop --context-parallel"):
        task.check(nn.Linear(2, 2), range(2), 2)
    task.divide(None)
    task.check(nn.Linear(2, 2), range(2), 2)
    with pytest.raises(ValueError, match="6 tokens do not divide into 4 chunks"):
        counting(context=6, batch=2).divide(shared)


def test_the_seed_draws_the_first_weights(memory):
    found = []
    for at, seed in enumerate((5, 5, 6)):
        train(LM, counting(context=4, batch=2), Recipe(steps=1, lr=0.0), memory / str(at), seed=seed)
        found.append(load_file(memory / str(at) / "checkpoints" / "00000001" / "model.safetensors"))
        for name, value in initialise(JoFormerLM(LM), seed).named_parameters():
            assert torch.equal(found[at][name], value)
    assert not torch.equal(found[0]["head.weight"], found[2]["head.weight"])


@pytest.mark.parametrize(("before", "wanted"), [((0, 0), 1), ((1, 0), 0), ((1, 1), 0), ((1, 1), 1)])
def test_deterministic_within_a_run_and_as_before_after_it(memory, before, wanted):
    on, warned = torch.are_deterministic_algorithms_enabled, torch.is_deterministic_algorithms_warn_only_enabled
    task, seen = counting(context=4, batch=2), []
    task.loss = lambda model, batch: seen.append((on(), warned())) or LanguageTask.loss(task, model, batch)
    try:
        torch.use_deterministic_algorithms(bool(before[0]), warn_only=bool(before[1]))
        train(LM, task, Recipe(steps=1, deterministic=bool(wanted)), memory)
        assert [*seen, (on(), warned())] == [(wanted, False), before]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_noted_and_the_second_interrupts(first):
    numbers, mine = (signal.SIGINT, signal.SIGTERM), [signal.default_int_handler, lambda *_: None]
    usual = [signal.signal(*pair) for pair in zip(numbers, mine)]
    try:
        with pytest.raises(KeyboardInterrupt), signals() as asked:  # noqa: PT012
            assert asked() == 0
            signal.raise_signal(first)
            assert asked() == first
            signal.raise_signal(signal.SIGINT)
        assert [signal.getsignal(number) for number in numbers] == mine
    finally:
        for pair in zip(numbers, usual):
            signal.signal(*pair)


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events, fsync, rename = [], os.fsync, os.rename

    def state(place):  # what is written to after its fsync has another size or time
        return [getattr(os.stat(place), f"st_{name}") for name in ("ino", "size", "mtime_ns")]

    def noting(source, target):
        inside = [state(path) for path in [*source.iterdir(), source]]
        events.append((target.name, rename(source, target), inside, state(tmp_path)))

    tensors = {"model": {"w": torch.ones(3)}, "optimizer": {"exp_avg/w": torch.zeros(3)}}
    save(tmp_path, 1, tensors, {}, {}, keep=1)
    monkeypatch.setattr(os, "fsync", lambda handle: events.append((state(handle), fsync(handle))))
    monkeypatch.setattr(os, "rename", noting)
    save(tmp_path, 2, tensors, {}, {}, keep=1)
    at = [event[0] for event in events].index("00000002")
    *_, inside, parent = events[at]
    assert len(inside) == 5  # two of JSON, two of tensors, and their folder
    assert all(one in [event[0] for event in events[:at]] for one in inside)
    assert [event[0] for event in events[at + 1 :]] == [parent, ".partial-old-00000001"]  # only then the old one goes
