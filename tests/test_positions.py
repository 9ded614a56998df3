"""Where tokens are, against obvious loops."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import FixedFrames, journey_attention, positions
from joformer._seeding import generator
from joformer.testing import assert_close


@given(st.integers(0, 20), st.integers(-5, 2**20))
@settings(max_examples=60)
def test_sequence_counts_from_the_offset(n, offset):
    assert positions.sequence(n, offset)[:, 0].tolist() == [float(offset + i) for i in range(n)]


def test_sequence_with_an_offset_per_row():
    got = positions.sequence(2, torch.tensor([0, 10]))
    assert got[..., 0].tolist() == [[0.0, 1.0], [10.0, 11.0]]


def test_sequence_is_exact_far_out():
    assert (positions.sequence(3, 2**40)[:, 0] - 2**40).tolist() == [0.0, 1.0, 2.0]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 3))
@settings(max_examples=60)
def test_grid_is_row_major_in_array_order(shape, prefix):
    got = positions.grid(*shape, prefix=prefix)
    cells = list(itertools.product(*(range(n) for n in shape)))
    assert got.shape == (prefix + len(cells), len(shape))
    assert got[:prefix].isnan().all()
    assert got[prefix:].tolist() == [list(map(float, cell)) for cell in cells]
    # The same order in which an image is flattened to tokens: height first, then width.
    image = torch.arange(math.prod(shape)).view(*shape)
    assert all(image[tuple(map(int, cell))] == i for i, cell in enumerate(got[prefix:].tolist()))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
@settings(max_examples=60)
def test_packed_restarts_and_segments_tell_apart(lengths):
    assert positions.packed(lengths)[:, 0].tolist() == [float(i) for n in lengths for i in range(n)]
    assert positions.segments(lengths).tolist() == [s for s, n in enumerate(lengths) for _ in range(n)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4), st.integers(0, 2))
@settings(max_examples=40)
def test_packed_grids_attend_image_by_image(shapes, prefix):
    """NaViT: images of any shapes in one row are each what they are alone, class tokens included."""
    where, who = (make(shapes, prefix=prefix) for make in (positions.packed, positions.segments))
    q, k, v = torch.randn(3, 1, len(where), 2, 8, dtype=torch.float64).unbind()
    module = FixedFrames(8, axes=2, base=100.0)
    together = journey_attention(q, k, v, module(where), segments=who)
    lengths = [prefix + math.prod(shape) for shape in shapes]
    for number, (shape, *parts) in enumerate(zip(shapes, *(t.split(lengths, 1) for t in (q, k, v, together)))):
        q_, k_, v_, got = parts
        alone = module(positions.grid(*shape, prefix=prefix))
        assert (who == number).sum() == lengths[number]
        assert_close(got, journey_attention(q_, k_, v_, alone, backend="reference"))


def test_packed_takes_videos_and_sequences_alike():
    assert torch.equal(positions.packed([(3,), (2,)]), positions.packed([3, 2]))
    videos = positions.packed([(2, 1, 2), (1, 2, 1)])
    assert torch.equal(videos, torch.cat((positions.grid(2, 1, 2), positions.grid(1, 2, 1))))
    assert torch.equal(positions.segments([(2, 1, 2), (1, 2, 1)], prefix=1), positions.segments([5, 3]))


def test_normalised_grids_are_those_of_dinov3():
    theirs = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    for shape in ((2, 3), (1, 5), (4, 4)):
        centres = theirs.get_patches_center_coordinates(*shape, dtype=torch.float64, device="cpu")
        torch.testing.assert_close(positions.grid(*shape, normalise="separate"), centres, rtol=0, atol=1e-15)


@pytest.mark.parametrize("normalise", ["separate", "max", "min"])
def test_normalised_grids_divide_by_their_sides(normalise):
    sides = {"separate": (2, 5), "max": (5, 5), "min": (2, 2)}[normalise]
    cells = [[2 * (cell[k] + 0.5) / sides[k] - 1 for k in (0, 1)] for cell in itertools.product(range(2), range(5))]
    got = positions.grid(2, 5, prefix=1, normalise=normalise)
    assert got[0].isnan().all()
    torch.testing.assert_close(got[1:], torch.tensor(cells, dtype=torch.float64))


def test_normalised_frames_are_those_of_dinov3():
    theirs = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    config = theirs.DINOv3ViTConfig(hidden_size=16, num_attention_heads=1, patch_size=8, rope_theta=100.0)
    cos, sin = theirs.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 16, 24))
    where = 2 * torch.pi * positions.grid(2, 3, normalise="separate")
    angles = FixedFrames(16, axes=2, base=100.0, layout="half")(where).angles[0, :, 0]
    for ours, table in ((angles.cos(), cos), (angles.sin(), sin)):
        torch.testing.assert_close(torch.cat((ours, ours), -1).float(), table, rtol=0, atol=2e-6)


AUGMENTATIONS = [
    {"shift": 0.5},
    {"jitter": 1.5},
    {"rescale": 2.0},
    {"shift": 0.3, "rescale": 4.0},
    {"shift": 0.1, "jitter": 2.0, "rescale": 3.0},
]


@pytest.mark.parametrize("options", AUGMENTATIONS, ids=" ".join)
def test_augmentation_is_that_of_dinov3(options):
    """From the same draws; ours leaves tokens at the identity where they are."""
    theirs = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    where = positions.grid(2, 3, prefix=2, normalise="separate")
    torch.manual_seed(3)
    expected = theirs.augment_patches_center_coordinates(where[2:], **options)
    torch.manual_seed(3)
    got = positions.augment(where, **options)
    assert got[:2].isnan().all()
    torch.testing.assert_close(got[2:], expected, rtol=0, atol=1e-14)
    assert not torch.allclose(got[2:], where[2:])


def test_augmentation_draws_by_its_generator_within_its_bounds():
    """Shift and jitter for each axis, rescale for all axes alike, all of them anew for each row."""
    where = torch.ones(500, 4, 2, dtype=torch.float64)
    draw = lambda **options: positions.augment(where, **options, generator=generator(0, "positions", 1))  # noqa: E731
    state = torch.get_rng_state()
    for options in AUGMENTATIONS:
        assert torch.equal(draw(**options), draw(**options))
    assert torch.equal(torch.get_rng_state(), state)
    shifted, jittered, rescaled = draw(shift=0.5) - 1, draw(jitter=2.0).log(), draw(rescale=3.0).log()
    for drawn, bound in ((shifted, 0.5), (jittered, math.log(2.0)), (rescaled, math.log(3.0))):
        assert 0.95 * bound < drawn.max() < bound
        assert -bound < drawn.min() < -0.95 * bound
        assert torch.equal(drawn, drawn[:, :1].expand_as(drawn))  # all tokens of a row alike
    assert (shifted[..., 0] != shifted[..., 1]).any()
    assert (jittered[..., 0] != jittered[..., 1]).any()
    assert torch.equal(rescaled[..., 0], rescaled[..., 1])


def test_a_shift_leaves_journeys_between_patches_as_they_were():
    where = positions.grid(2, 3, prefix=1)
    module, (q, k, v) = FixedFrames(8, axes=2), torch.randn(3, 1, 7, 2, 8, dtype=torch.float64).unbind()
    moved = positions.augment(where, shift=5.0, generator=generator(0))
    patches = slice(1, None)
    before, after = (
        journey_attention(q[:, 1:], k[:, 1:], v[:, 1:], module(each).select(patches)) for each in (where, moved)
    )
    assert_close(after, before)


def test_mrope_counts_as_qwen_does():
    """Text, an image, text, a video, text: against the positions that transformers makes."""
    theirs = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
    if "mm_token_type_ids" not in inspect.signature(theirs.Qwen2VLModel.get_rope_index).parameters:
        pytest.skip("this transformers asks for other arguments")
    model = theirs.Qwen2VLModel.__new__(theirs.Qwen2VLModel)
    torch.nn.Module.__init__(model)
    model.config = theirs.Qwen2VLConfig(vision_config={"spatial_merge_size": 2})
    image, video = (1, 4, 3), (2, 2, 3)
    kinds = [0] * 5 + [1] * math.prod(image) + [0] * 2 + [2] * math.prod(video) + [0] * 3
    patches = [torch.tensor([[t, 2 * h, 2 * w]]) for t, h, w in (image, video)]
    tokens = torch.ones(1, len(kinds), dtype=torch.long)
    expected, _ = model.get_rope_index(tokens, torch.tensor([kinds]), *patches)
    assert torch.equal(positions.mrope(5, image, 2, video, 3), expected[:, 0].T.double())
    assert positions.mrope((3, 1, 2), 1)[-1].tolist() == [3.0, 3.0, 3.0]  # after the largest, as the paper says


@given(st.integers(1, 6), st.integers(0, 4), st.booleans())
@settings(max_examples=40)
def test_padded_counts_real_tokens_only(real, pad, left):
    row = [False] * pad + [True] * real if left else [True] * real + [False] * pad
    got = positions.padded(torch.tensor([row]))[0, :, 0]
    assert got[torch.tensor(row)].tolist() == list(map(float, range(real)))
    assert got[~torch.tensor(row)].isnan().all()


@given(st.data())
@settings(max_examples=60)
def test_tree_paths_follow_the_parents(data):
    n = data.draw(st.integers(1, 9))
    parents = [-1] + [data.draw(st.integers(0, i - 1)) for i in range(1, n)]
    paths = positions.tree(parents)
    for node in range(n):
        path = [int(b) for b in paths[node] if not math.isnan(b)]
        at = 0
        for branch in path:
            at = [i for i in range(n) if parents[i] == at][branch]
        assert at == node


def test_joint_keeps_each_modality_on_its_own_axes():
    text, image = positions.sequence(3), positions.grid(2, 2, prefix=1)
    got = positions.joint(text, image)
    assert got.shape == (8, 4)
    assert got[:3].tolist() == [[0, i, 0, 0] for i in range(3)]
    assert got[3].isnan().all()
    assert got[4:].tolist() == [[1, 0, r, c] for r in range(2) for c in range(2)]


def test_integers_are_welcome_and_stay_exact():
    far = torch.tensor([[2**24 + 1]])
    assert positions.joint(far, far)[0, 1].item() == 2**24 + 1
    assert positions.with_prefix(far, 1)[1].item() == 2**24 + 1
    torch.testing.assert_close(positions.tree(torch.tensor([-1, 0])), positions.tree([-1, 0]), equal_nan=True)


def test_real_coordinates_are_welcome():
    half = FixedFrames(8)(torch.tensor([[0.5]])).angles
    whole = FixedFrames(8)(torch.tensor([[1.0]])).angles
    torch.testing.assert_close(2 * half, whole)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: positions.sequence(-1), "0 or more"),
        (lambda: positions.sequence(2, torch.zeros(2, 2)), "per batch row"),
        (positions.grid, "at least one axis"),
        (lambda: positions.grid(3, 0), "at least one cell"),
        (lambda: positions.grid(2, prefix=-1), "0 or more"),
        (lambda: positions.packed([]), "1 or more"),
        (lambda: positions.packed([3, 0]), "1 or more"),
        (lambda: positions.segments([-1]), "1 or more"),
        (lambda: positions.packed([(2, 2), (3, 0)]), "1 or more"),
        (lambda: positions.packed([(2, 2), (3,)]), "same number of axes"),
        (lambda: positions.segments([(2, 2), 3]), "same number of axes"),
        (lambda: positions.grid(2, 2, normalise="square"), "'separate', 'max' or 'min'"),
        (lambda: positions.augment(positions.grid(2), shift=-0.1), "0 or more"),
        (lambda: positions.augment(positions.grid(2), jitter=0.5), "jitter must be .* 1 or more"),
        (lambda: positions.augment(positions.grid(2), rescale=math.inf), "rescale must be .* 1 or more"),
        (positions.mrope, "at least one part"),
        (lambda: positions.mrope(3, (4, 4)), "time, height, width"),
        (lambda: positions.mrope(-1), "0 or more"),
        (lambda: positions.padded(torch.ones(2, 2)), "boolean"),
        (lambda: positions.tree([]), "one root"),
        (lambda: positions.tree([-1, -1]), "one root"),
        (lambda: positions.tree([-1, 7]), "another node"),
        (lambda: positions.tree([-1, 2, 1]), "cycle"),
        (lambda: positions.tree([-1, 0], branches=[0]), "one branch per node"),
        (positions.joint, "at least one part"),
        (lambda: positions.joint(positions.sequence(2), torch.zeros(1, 2, 1)), "batch"),
        (lambda: positions.grid((3, 2)), "at least one axis"),
        (lambda: positions.sequence(2.5), "number of tokens"),
        (lambda: positions.sequence(2, torch.zeros(1, dtype=torch.float16)), "float16.*float64"),
        (lambda: positions.joint(positions.sequence(2).bfloat16()), "bfloat16.*float64"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
