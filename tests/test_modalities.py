"""Journeys between modalities: a modality axis, and the axes of text, image and audio beside it (row 47)."""

import pytest
import torch

from joformer import FixedFrames, LearnedFrames, journey_attention, positions
from joformer.algebra import (
    Generators,
    Torus,
    absolute,
    compose_grid,
    journey,
    path_transport,
    value_path,
)
from joformer.testing import assert_close

TEXT, ROWS, COLUMNS = 4, 2, 3
MODALITY, WORD, ROW, COLUMN = range(4)
WHERE = positions.joint(positions.sequence(TEXT), positions.grid(ROWS, COLUMNS))
HEAD = 16
every_split = pytest.mark.parametrize("split", ["axial", "combined"])


def generators(split):
    """What FixedFrames(axes=4) uses, as generators of the algebra: (axes, planes), each axis on all planes."""
    frequencies = FixedFrames(HEAD, axes=4, base=7.0, split=split).frequencies()
    if split == "axial":
        frequencies = torch.block_diag(*frequencies.unsqueeze(1))
    return Generators.torus(frequencies)


def curved(axes, dim=4):
    return Generators.orthogonal(torch.matrix_exp((m := torch.randn(axes, dim, dim, dtype=torch.float64)) - m.mT))


def words_and_cells():
    for word in range(TEXT):
        for cell in range(ROWS * COLUMNS):
            yield word, TEXT + cell, divmod(cell, COLUMNS)


@every_split
def test_the_journey_from_text_to_image_is_the_corrected_one(split):
    given = generators(split)
    group = given.group
    frames = FixedFrames(HEAD, axes=4, base=7.0, split=split)(WHERE)
    at = absolute(given, WHERE)
    assert group.distance(at, frames.angles[0, :, 0]).max() < 1e-12
    r_mod = given.power(MODALITY, 1)
    off = []
    for word, token, (row, column) in words_and_cells():
        text = given.power(WORD, word)
        image = group.multiply(given.power(ROW, row), given.power(COLUMN, column))
        walk = journey(group, src=at[word], dst=at[token])
        back_to_text = group.multiply(group.inverse(r_mod), group.multiply(group.inverse(image), text))
        assert group.distance(walk, back_to_text) < 1e-12
        printed = group.multiply(group.inverse(r_mod), group.multiply(group.inverse(text), image))
        off.append(group.distance(walk, printed).item())
    assert off[0] < 1e-12  # word 0 to cell (0, 0), where there is nothing to confuse
    assert min(off[1:]) > 0.1


def test_where_the_modality_does_not_commute_it_stands_between():
    given = curved(4)
    group, at = given.group, absolute(given, WHERE)
    r_mod, off = given.power(MODALITY, 1), []
    for word, token, (row, column) in words_and_cells():
        text = given.power(WORD, word)
        image = given.power(ROW, row) @ given.power(COLUMN, column)
        walk = journey(group, src=at[word], dst=at[token])
        assert group.distance(walk, image.mT @ r_mod.mT @ text) < 1e-12
        off.append(group.distance(walk, r_mod.mT @ image.mT @ text).item())
    assert max(off) > 0.5  # row 47 itself needs the flat case


@every_split
def test_attention_across_modalities_is_made_of_those_journeys(split, dtype):
    module = FixedFrames(HEAD, axes=4, base=7.0, split=split)
    q, k, v = torch.randn(3, 2, len(WHERE), 2, HEAD, dtype=dtype).unbind()
    frames, given = module(WHERE), generators(split)
    group, at = given.group, absolute(given, WHERE)
    # The image asks, the text answers: cross-attention with two frames values.
    of_image, of_text = frames.select(slice(TEXT, None)), frames.select(slice(TEXT))
    q, k, v = q[:, TEXT:], k[:, :TEXT], v[:, :TEXT]
    got = journey_attention(q, k, v, of_image, key_frames=of_text, transport="values")
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) / HEAD**0.5, -1)
    expected = torch.zeros_like(got, dtype=torch.float64)
    for word, token, (row, column) in words_and_cells():
        image = group.multiply(given.power(ROW, row), given.power(COLUMN, column))
        walk = group.multiply(
            group.inverse(given.power(MODALITY, 1)), journey(group, src=given.power(WORD, word), dst=image)
        )
        moved = group.act(walk, v[:, word].double())
        expected[:, token - TEXT] += weights[:, :, token - TEXT, word, None] * moved
    assert_close(got, expected.to(dtype))
    by_formula = value_path(
        weights, v.transpose(1, 2), group=group, src=at[:TEXT].to(dtype), dst=at[TEXT:].to(dtype)
    ).transpose(1, 2)
    assert_close(got, by_formula)


def test_journeys_within_a_modality_do_not_see_the_others():
    group, module = Torus(HEAD // 2), LearnedFrames(HEAD, axes=4).requires_grad_(False)
    first = module(WHERE).angles[0, :TEXT, 0]
    image_first = positions.joint(positions.grid(ROWS, COLUMNS), positions.sequence(TEXT))
    second = module(image_first[:, [MODALITY, 3, 1, 2]]).angles[0, -TEXT:, 0]  # the axes as they were, text second
    assert group.distance(first, second).min() > 0.1
    for i in range(TEXT):
        here, there = (journey(group, src=at[i], dst=at[0]) for at in (first, second))
        assert group.distance(here, there) < 1e-12


def test_fusing_text_then_audio_is_fusing_audio_then_text_where_flat():
    # One axis a modality: a grid of what was said and what was heard, fused along one axis and then the other.
    contents = torch.randn(3, 5, 4, dtype=torch.float64)
    flat = Generators.torus(torch.randn(2, 2, dtype=torch.float64))
    either = [compose_grid(contents, flat, order=order).content for order in ((0, 1), (1, 0))]
    assert_close(*either)
    either = [compose_grid(contents, curved(2), order=order).content for order in ((0, 1), (1, 0))]
    assert (either[0] - either[1]).abs().max() > 0.1


def test_by_way_of_audio_is_the_same_journey_and_order_of_steps_is_free_where_flat():
    where = positions.joint(positions.sequence(2), positions.sequence(3), positions.grid(2, 2))
    flat = Generators.torus(torch.randn(5, 4, dtype=torch.float64))
    dense = curved(5)
    for given in (flat, dense):  # telescoping needs no flatness
        group, at = given.group, absolute(given, where)
        by_way_of_audio = group.multiply(journey(group, src=at[3], dst=at[8]), journey(group, src=at[1], dst=at[3]))
        assert group.distance(by_way_of_audio, journey(group, src=at[1], dst=at[8])) < 1e-12
    text_first, audio_first = [1, 2, 2, 0], [2, 0, 2, 1]
    assert flat.group.distance(path_transport(flat, text_first), path_transport(flat, audio_first)) < 1e-12
    assert dense.group.distance(path_transport(dense, text_first), path_transport(dense, audio_first)) > 0.1


def test_the_order_of_the_tokens_of_two_modalities_does_not_matter_to_attention(dtype):
    frames = FixedFrames(HEAD, axes=4)(WHERE)
    q, k, v = torch.randn(3, 1, len(WHERE), 2, HEAD, dtype=dtype).unbind()
    swapped = torch.tensor([*range(TEXT, len(WHERE)), *range(TEXT)])
    whole = journey_attention(q, k, v, frames)
    other = journey_attention(q, k[:, swapped], v[:, swapped], frames, key_frames=frames.select(swapped))
    assert_close(whole, other)
