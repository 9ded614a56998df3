"""Lengths of context on the same tokens: identities against models that cannot see the difference, and a slow loop."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from joformer.experiments.extrapolation import yarned
from joformer.frequencies import YaRN
from joformer.models import LMConfig, initialise
from joformer.training import LanguageTask, Processes, Text, Tokenizer, load_text

LENGTHS = (16, 24, 32, 80)


class Bigram(nn.Module):
    """The next token from the last one alone: a row of a table, so that nothing else takes part in its bits."""

    def __init__(self):
        super().__init__()
        table = torch.randn(256, 256, generator=torch.Generator().manual_seed(1))
        self.table = nn.Parameter(table.log_softmax(-1))

    def forward(self, tokens, *, targets, reduction):
        assert reduction == "none"
        losses = -self.table[tokens].gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        return losses * (targets >= 0)


class Half(Processes):
    """One of two processes, one after the other: the second's total is that of both."""

    def __init__(self, rank, kept):
        self.team, self.teams, self.kept = rank, 2, kept

    def total(self, values):
        if self.team == 0:
            self.kept.append(values)
            return values
        return values + self.kept.pop(0)


def task_of(tokens=700, batch=4, held_out=7, context=16):
    ids = np.random.default_rng(0).integers(0, 256, tokens).astype(np.uint8)
    task = LanguageTask(
        Text(ids, ids, ids, Tokenizer.of_bytes(), "noise"), context=context, batch=batch, held_out=held_out
    )
    task.to(torch.device("cpu"))
    return task


def lm(**more):
    return initialise(LMConfig(**{"vocab": 256, "dim": 16, "layers": 2, "heads": 2, **more}).build(), 3).eval().double()


def test_without_memory_the_length_does_not_matter_to_the_bit():
    found = task_of().by_length(Bigram(), Processes(), LENGTHS)
    first = found[16]
    assert list(found) == list(LENGTHS)
    assert all(one == first for one in found.values())
    # However the windows come in batches, and whichever process reads them.
    assert task_of(batch=64).by_length(Bigram(), Processes(), LENGTHS) == found
    kept, task = [], task_of(batch=5)
    halves = [task.by_length(Bigram(), Half(rank, kept), LENGTHS) for rank in range(2)]
    assert halves[1] == found
    # One length alone, where there must be text for a longer one.
    assert task_of().by_length(Bigram(), Processes(), (24,), targets=16, longest=80)[24] == first
    # With memory it does.
    different = task_of().by_length(lm(), Processes(), LENGTHS)
    assert len({one["loss"] for one in different.values()}) == len(LENGTHS)


def test_beyond_its_receptive_field_a_windowed_model_sees_no_length():
    """Two layers of a window of 5 reach 2 · 4 tokens back: with 8 more before the targets nothing changes any more."""
    task, model = task_of(), lm(pattern="W", window=5, frames="cumulative")
    found = task.by_length(model, Processes(), (16, 23, 24, 40, 80), targets=16)
    losses = {n: torch.tensor(one["by_position"]) for n, one in found.items()}
    for n in (40, 80):
        assert torch.allclose(losses[n], losses[24], rtol=0, atol=1e-11), n
    assert (losses[23] - losses[24])[0].abs() > 1e-9, "one token less is seen, by the first target"
    assert torch.allclose(losses[16][8:], losses[24][8:], rtol=0, atol=1e-11)
    assert (losses[16][:8] - losses[24][:8]).abs().max() > 1e-4
    # … and one with a full layer sees it.
    full = task.by_length(lm(pattern="WN", window=5), Processes(), (24, 80), targets=16)
    assert abs(full[24]["loss"] - full[80]["loss"]) > 1e-6


def test_against_a_loop_over_windows():
    task, model = task_of(held_out=3), lm()
    ids, found = torch.from_numpy(task.text.valid.astype(np.int64)), task.by_length(model, Processes(), (12, 32))
    starts = np.linspace(32 - 12, 700 - 12 - 1, 3).astype(int).tolist()  # all with 32 tokens up to their end
    for length, one in found.items():
        each = []
        for s in starts:
            window = ids[s + 12 - length : s + 13]
            with torch.no_grad():
                logits = model(window[None, :-1])[0]
            each.append(F.cross_entropy(logits[-12:], window[-12:], reduction="none"))
        each = torch.stack(each)
        assert one["loss"] == pytest.approx(each.mean().item(), rel=1e-12)
        assert one["perplexity"] == pytest.approx(math.exp(each.mean().item()), rel=1e-12)
        assert one["bits_per_byte"] == pytest.approx(each.mean().item() / math.log(2), rel=1e-12)
        # Four stretches of three tokens, which average to the total.
        assert one["by_position"] == pytest.approx(each.mean(0).view(4, 3).mean(1).tolist(), rel=1e-12)
        assert np.mean(one["by_position"]) == pytest.approx(one["loss"], rel=1e-12)


def test_at_one_length_it_is_the_evaluation():
    task, model = task_of(held_out=9), lm()
    (one,) = task.by_length(model, Processes(), (16,)).values()
    assert {k: v for k, v in one.items() if k != "by_position"} == pytest.approx(task.evaluate(model, Processes()))


def test_all_that_is_held_out_is_scored():
    class Seen(Bigram):
        def forward(self, tokens, *, targets):
            self.targets = [*getattr(self, "targets", []), targets]
            return torch.zeros(())

    ids = np.arange(203, dtype=np.uint8)
    task = LanguageTask(Text(ids, ids, ids, Tokenizer.of_bytes(), "counting"), context=16, batch=4, held_out=None)
    task.to(torch.device("cpu"))
    model = Seen()
    task.evaluate(model, Processes())
    seen = torch.cat(model.targets).flatten()
    assert len(seen.unique()) == len(seen) == 202 // 16 * 16


@pytest.mark.refused
def test_lengths_that_do_not_fit_are_refused():
    task = task_of()
    for lengths, more, said in [
        ((16,), {"targets": 17}, "17 targets at lengths"),
        ((16, 90), {"longest": 80}, "up to 80"),
        ((16, 700), {}, "the valid split has 700 tokens"),
    ]:
        with pytest.raises(ValueError, match=said):
            task.by_length(Bigram(), Processes(), lengths, **more)
    with pytest.raises(ValueError, match="YaRN scales fixed frequencies"), yarned(lm(frames="learned"), 2.0, 16):
        pass


def test_yarn_is_a_model_built_with_it():
    task, model = task_of(), lm(pattern="FN", transport="scores")
    plain = task.by_length(model, Processes(), (16, 64))
    yarn = YaRN(4.0, original_length=16)
    with yarned(model, 4.0, 16):
        scaled = task.by_length(model, Processes(), (64,), targets=16)
    assert task.by_length(model, Processes(), (16, 64)) == plain, "what was changed is as it was"
    by_hand = lm(pattern="FN", transport="scores")
    by_hand.frames[0].scaling = yarn
    by_hand.blocks[0].attention.scale = yarn.score_scale(8)
    assert task.by_length(by_hand, Processes(), (64,), targets=16) == scaled
    assert abs(scaled[64]["loss"] - plain[64]["loss"]) > 1e-5


def test_losses_of_tokens_average_to_the_loss():
    """Also through a head that is more than its weights."""
    tokens = torch.randint(256, (3, 20), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    targets[:, :7] = -100
    for model in (lm(), lm(tied=False)):
        each = model(tokens, targets=targets, reduction="none")
        assert each.shape == tokens.shape
        assert (each[:, :7] == 0).all()
        whole = model(tokens, targets=targets)
        assert torch.allclose(each[:, 7:].mean(), whole, rtol=1e-12)
        with model.head.register_forward_hook(lambda *_: None):
            assert torch.allclose(model(tokens, targets=targets, reduction="none"), each, rtol=1e-12)


def test_one_percent_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("0123456789" * 100)
    text = load_text(tmp_path / "a.txt", vocab=256, percent=1, cache=tmp_path / "cache")
    assert [len(text.train), len(text.valid), len(text.test)] == [980, 10, 10]
    usual = load_text(tmp_path / "a.txt", vocab=256, cache=tmp_path / "cache")
    assert [len(usual.train), len(usual.valid), len(usual.test)] == [900, 50, 50]
    assert usual.fingerprint != text.fingerprint


def gpt2_like(place, **changes):
    """A tokenizer.json as GPT-2's is: the 256 bytes in the order of its table, merges, and an end of text."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import models, pre_tokenizers, trainers

    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    engine.train_from_iterator(["to be or not to be, that is the question; né à Zürich " * 20], trainer)
    written = json.loads(engine.to_str()) | changes
    place.write_text(json.dumps(written))
    return engine


def test_gpt2s_tokens_are_its_pieces(tmp_path):
    engine = gpt2_like(tmp_path / "tokenizer.json")
    ours = Tokenizer.of_gpt2(tmp_path / "tokenizer.json")
    assert ours.vocab == engine.get_vocab_size() - 1, "the end of text is left out"
    text = "That is not the question: to be né, 日本 \n\n  in Zürich, or n't"
    pieces = [ours.tokens[i] for i in ours.encode(text)]
    theirs = [engine.id_to_token(i) for i in engine.encode(text).ids]
    assert [len(piece) for piece in pieces] == [len(piece) for piece in theirs]
    assert b"".join(pieces).decode() == text
    ours.save(tmp_path / "kept.json")
    assert Tokenizer.load(tmp_path / "kept.json") == ours


@pytest.mark.refused
def test_other_tokenizers_are_refused(tmp_path):
    place = tmp_path / "tokenizer.json"
    gpt2_like(place, pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(ValueError, match=r"not a byte-level BPE like GPT-2's \(it splits text differently"):
        Tokenizer.of_gpt2(place)
    place.write_text("{}")
    with pytest.raises(ValueError, match="not a byte-level BPE like GPT-2's"):
        Tokenizer.of_gpt2(place)
