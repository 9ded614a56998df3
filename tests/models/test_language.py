"""The language model's layers, what follows a prompt, and its loss: one way of doing each."""

import dataclasses

import pytest
import torch

from joformer import positions
from joformer.frames import CumulativeFrames, FixedFrames, LearnedFrames, NoFrames, ProjectedFrames
from joformer.models import JoFormerLM, LMConfig, initialise, load, save

SMALL = LMConfig(vocab=17, dim=32, layers=3, heads=2)
CLASSES = {
    "fixed": FixedFrames, "learned": LearnedFrames, "projected": ProjectedFrames, "cumulative": CumulativeFrames
}  # fmt: skip


def lm(**changes):
    return JoFormerLM(dataclasses.replace(SMALL, **changes))


def test_frames_go_round_the_layers_as_letters_do():
    model = lm(layers=7, frames=("fixed", "learned", "projected"), pattern="FFN")
    assert model.config.names == ("fixed", "learned", "projected") * 2 + ("fixed",)
    expected = [FixedFrames, LearnedFrames, NoFrames, FixedFrames, LearnedFrames, NoFrames, FixedFrames]
    assert [type(frames) for frames in model.frames] == expected
    assert model.frames[0] is model.frames[3] is model.frames[6]  # computed once for all
    assert model.frames[1] is not model.frames[4]
    cut = lm(layers=2, frames=("projected", "cumulative", "learned"))
    assert [type(frames) for frames in cut.frames] == [ProjectedFrames, CumulativeFrames]


@pytest.mark.parametrize("name", CLASSES)
def test_one_name_is_that_name_for_all_layers(name):
    torch.manual_seed(2)
    one = lm(frames=name)
    torch.manual_seed(2)
    several = lm(frames=(name,))
    assert {type(frames) for frames in one.frames} == {CLASSES[name]}
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), several.state_dict().values()))
    tokens = torch.randint(17, (2, 5))
    assert torch.equal(one(tokens), several(tokens))


def test_mixed_frames_come_back_from_disk_and_decode(tmp_path):
    model = lm(layers=4, frames=("fixed", "cumulative", "projected"), pattern="FWFN", window=3).eval()
    for name, weight in model.named_parameters():
        if "w2" in name:
            torch.nn.init.normal_(weight)
    save(model, tmp_path)
    back = load(tmp_path)
    assert back.config == model.config
    tokens = torch.randint(17, (2, 9))
    with torch.no_grad():
        whole, caches = model(tokens), back.caches()
        parts = [back(part, caches=caches) for part in tokens.split([4, 1, 4], 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("frames", ["cumulative", ("fixed", "cumulative", "projected")])
def test_chunks_have_the_gradients_of_the_whole(frames):
    model = lm(frames=frames, pattern="FWN" if frames == "cumulative" else "F", window=3).double()
    for name, weight in model.named_parameters():
        if "w2" in name:
            torch.nn.init.normal_(weight)
    tokens, weights = torch.randint(17, (2, 9)), torch.randn(2, 9, 17, dtype=torch.float64)
    wanted = [p for p in model.parameters() if p.requires_grad]
    caches = model.caches()
    chunks = torch.cat([model(part, caches=caches) for part in tokens.split([5, 4], 1)], 1)
    results = [torch.autograd.grad((out * weights).sum(), wanted) for out in (model(tokens), chunks)]
    for whole, pieces in zip(*results, strict=True):
        assert (pieces - whole).abs().max() <= 1e-12 * (1 + whole.abs().max())


@pytest.mark.refused
def test_a_call_that_raises_leaves_all_caches_as_they_were():
    """The first layers have taken the new tokens in by the time that a later one raises."""
    model, tokens = lm(pattern="NFF", frames=("fixed", "fixed", "cumulative")).eval(), torch.randint(17, (2, 6))
    with torch.no_grad():
        whole, caches = model(tokens), model.caches()
        with pytest.raises(ValueError, match="another layer"):
            model(tokens[:, :4], caches=[caches[0], caches[1], caches[1]])
        parts = [model(tokens[:, :4], caches=caches)]
        with pytest.raises(ValueError, match="positions must be"):
            model(tokens[:, 4:], torch.zeros(2, 2), caches=caches)
        assert [cache.tokens for cache in caches] == [4, 4, 4]
        parts.append(model(tokens[:, 4:], caches=caches))
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1e-320}, {"top_k": 3}, {"temperature": 0.7}])
def test_a_stream_is_what_generate_collects(options):
    model, start = lm(frames=("fixed", "cumulative")).eval(), torch.randint(17, (2, 4), dtype=torch.int32)
    whole = model.generate(start, 6, generator=torch.Generator().manual_seed(1), **options)
    new = list(model.stream(start, 6, generator=torch.Generator().manual_seed(1), **options))
    assert [t.shape for t in new] == [(2, 1)] * 6
    assert torch.equal(torch.cat((start, *new), 1), whole)
    assert whole.dtype == torch.int32
    assert torch.equal(model.generate(start, 0), start)


def test_a_stream_can_be_left_and_does_no_work_ahead():
    model, calls = lm().eval(), []
    model.norm.register_forward_hook(lambda *_: calls.append(1))
    stream = model.stream(torch.zeros(1, 3, dtype=torch.long), 1000)
    assert not calls
    next(stream), next(stream)
    assert len(calls) == 2
    stream.close()


def test_what_is_drawn_can_be_trained_on_and_leaves_modes_as_they_were():
    model = lm()
    stream = model.stream(torch.zeros(2, 3, dtype=torch.long), 4)
    first = next(stream)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    drawn = torch.cat((first, *stream), 1)
    assert not drawn.is_inference()
    model(drawn[:, :-1], targets=drawn[:, 1:]).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_only_the_last_token_of_a_prompt_gets_logits():
    model, seen = lm().eval(), []
    model.head.register_forward_hook(lambda _, __, logits: seen.append(logits.shape))
    model.generate(torch.zeros(2, 9, dtype=torch.long), 2)
    assert seen == [(2, 17), (2, 17)]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LMConfig(frames=()), "frames must be one of"),
        (lambda: LMConfig(frames=("fixed", "rotary")), "a tuple of them, got .'fixed', 'rotary'."),
        (lambda: LMConfig(frames=["fixed"]), "frames must be one of"),
        (lambda: next(lm().stream(torch.zeros(3, dtype=torch.long), 1)), "at least one token"),
        (lambda: lm()(torch.zeros(1, 3, dtype=torch.long), targets=torch.full((1, 3), 17)), "within 0 … 16"),
    ],
)
def test_refusals_are_one_line(make, says):
    with pytest.raises(ValueError, match=says) as error:
        make()
    assert "\n" not in str(error.value)


def test_top_p_draws_among_the_fewest_tokens_that_have_it():
    """Against a slow rule: sort, add up, stop at the first that reaches p; nothing else is ever drawn."""
    torch.manual_seed(0)
    model = JoFormerLM(LMConfig(vocab=12, dim=16, layers=1, heads=2)).eval()
    start = torch.randint(12, (1, 5))
    with torch.no_grad():
        chances = torch.softmax(model(start)[0, -1] / 0.7, -1).tolist()
    for p in (0.2, 0.6, 0.95, 1.0):
        allowed, total = set(), 0.0
        for token in sorted(range(12), key=lambda token: -chances[token]):
            if total < p:
                allowed.add(token)
            total += chances[token]
        drawn = {int(next(model.stream(start, 1, temperature=0.7, top_p=p))) for _ in range(300)}
        assert drawn <= allowed
        assert p == 1.0 or drawn == allowed
    with pytest.raises(ValueError, match="top_p must be a probability above 0, got 0"):
        next(model.stream(start, 1, top_p=0))


# -- packed sequences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", ["fixed", "learned", "projected", "cumulative"])
def test_packed_sequences_are_what_they_are_alone(frames):
    """Positions begin anew in every segment, and attention does not cross; in rows that are packed differently, too."""
    config = LMConfig(vocab=50, dim=16, layers=3, heads=2, frames=frames, pattern="FWN", window=3)
    model = initialise(JoFormerLM(config), 3).double()
    for parameter in model.parameters():  # projectors begin at zero
        parameter.data += 0.05 * torch.randn(parameter.shape, dtype=torch.float64)
    rows = torch.randint(50, (2, 12))
    lengths = [(5, 1, 6), (4, 8, 0)]
    segments = torch.stack([torch.repeat_interleave(torch.arange(3), torch.tensor(some)) for some in lengths])
    packed = model(rows, segments=segments)
    for row, out, some in zip(rows, packed, lengths):
        alone = [model(part[None])[0] for part in row.split([n for n in some if n])]
        assert (out - torch.cat(alone)).abs().max() < 1e-10
    shared = model(rows, segments=segments[0])
    assert torch.allclose(shared[0], packed[0], atol=1e-10)
    assert (model(rows) - packed).abs().max() > 1e-3
    given = model(rows, positions.packed([5, 1, 6]), segments=segments[0])
    assert torch.allclose(given, shared, atol=1e-10)
    # The loss is that of the logits.
    targets = rows.roll(-1, 1)
    losses = torch.nn.functional.cross_entropy(packed.flatten(0, 1), targets.flatten())
    assert model(rows, segments=segments, targets=targets).item() == pytest.approx(losses.item(), rel=1e-6)


@pytest.mark.refused
def test_packed_sequences_have_no_caches():
    model = JoFormerLM(LMConfig(vocab=50, dim=16, layers=1, heads=2))
    with pytest.raises(ValueError, match="leave out caches, or segments"):
        model(torch.zeros(1, 4, dtype=torch.long), segments=torch.zeros(4, dtype=torch.long), caches=model.caches())
