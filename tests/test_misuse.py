"""What a newcomer gets wrong: one line that says what is wrong and what would be right, never a silent answer."""

import math

import pytest
import torch

from joformer import (
    FixedFrames,
    FlatFrames,
    JourneyAttention,
    LearnedFrames,
    TreeFrames,
    journey_attention,
    monoidal,
    positions,
    spectral,
)
from joformer.algebra import Generators, Orthogonal, Torus, compose_grid, concatenate, hierarchy, path_transport, split
from joformer.models import JourneySSM, RotatE

pytestmark = pytest.mark.refused

line = Generators.torus(torch.ones(1, 4))
embed = monoidal.MonoidalEmbedding(8, 6)
signal = torch.arange(6.0)
graph, ssm = RotatE(5, 2, 8), JourneySSM(8, heads=2)
ids = torch.tensor([0, 1])


MISTAKES = {
    "a list for content": (lambda: compose_grid([[1.0, 0.0]], line), "contents"),
    "a list for angles": (lambda: Generators.torus([[1.0]]), "angles is a list: give a tensor"),
    "a list for matrices": (lambda: Generators.orthogonal([[1.0]]), "matrices is a list: give a tensor"),
    "half a plane": (lambda: Torus(1.5), "1.5 planes"),
    "half a step": (lambda: path_transport(line, [0.5]), "letter 0.5 of a path is not whole"),
    "concatenate one tensor": (lambda: concatenate([signal]), "give a list of one element or more"),
    "concatenate an element": (lambda: concatenate(embed.tile(signal)), "give a list"),
    "concatenate along no axis": (lambda: concatenate([embed.tile(signal)], axis=9), "unknown axis 9"),
    "split a tensor": (lambda: split(signal, left=signal), "split takes elements, got Tensor"),
    "hierarchy, not orthogonal": (
        lambda: hierarchy("linear_ssm", torch.ones(3, 4), group=Orthogonal(4), steps=2 * torch.eye(4)),
        "steps is not orthogonal",
    ),
    "hierarchy, operators not orthogonal": (
        lambda: hierarchy(
            "joformer",
            torch.ones(3, 4),
            group=Orthogonal(4),
            operators=2 * torch.eye(4).expand(3, 4, 4),
            weights=torch.ones(3, 3),
        ),
        "operators is not orthogonal",
    ),
    "half a parent": (lambda: positions.tree([-1, 0.5]), "parents must be whole numbers"),
    "half a branch": (lambda: positions.tree([-1, 0], branches=[0, 0.5]), "branches must be whole numbers"),
    "frames of narrower heads": (
        lambda: journey_attention(*torch.ones(3, 1, 4, 2, 16), FixedFrames(8)(positions.sequence(4))),
        "made for head_dim=8 but head_dim is 16: build them with head_dim=16, and with planes=4 to rotate only that",
    ),
    "keys' frames of narrower heads": (
        lambda: journey_attention(
            *torch.ones(3, 1, 4, 2, 16),
            FixedFrames(16, planes=4)(positions.sequence(4)),
            key_frames=LearnedFrames(8)(positions.sequence(4)),
        ),
        "made for head_dim=8 but head_dim is 16",
    ),
    "frames of narrower heads than a layer's": (
        lambda: JourneyAttention(32, 2)(torch.ones(1, 4, 32), LearnedFrames(8)(positions.sequence(4))),
        "made for head_dim=8 but head_dim is 16",
    ),
    "a hole in a path": (
        lambda: TreeFrames(8, branches=2)(torch.tensor([[0.0, math.nan, 1.0]])),
        "NaN in the middle",
    ),
    "embed a list": (lambda: embed([1.0]), "x is a list: give a tensor"),
    "embed bytes": (lambda: embed(torch.ones(6).byte()), "floating point"),
    "embed complex numbers": (lambda: embed(torch.ones(6).cfloat()), "cells must be real"),
    "embed nothing": (lambda: monoidal.MonoidalEmbedding(8, (4, 6))(torch.ones(4, 0)), "is empty"),
    "half a dimension": (lambda: monoidal.MonoidalEmbedding(8.0, 6), "dim 8.0 cannot be split"),
    "half a shape": (lambda: monoidal.MonoidalEmbedding(8, 5.5), "shape 5.5 is not whole"),
    "complex content": (lambda: monoidal.MonoidalEmbedding(8, 6, content=torch.ones(8).cfloat()), "real numbers"),
    "the module for its generators": (
        lambda: monoidal.align(embed(signal), embed(signal), embed),
        r"generators are a MonoidalEmbedding: .*\.generators",
    ),
    "align NaN": (lambda: monoidal.align(embed(signal) * math.nan, embed(signal), embed.generators, limit=2), "NaN"),
    "align half a shift": (
        lambda: monoidal.align(embed(signal), embed(signal), embed.generators, limit=2.5),
        "limit 2.5 is not whole",
    ),
    "align along a letter": (
        lambda: monoidal.align(embed(signal), embed(signal), embed.generators, axes="0"),
        "unknown axes 0",
    ),
    "align different batches": (
        lambda: monoidal.align(torch.ones(2, 8), torch.ones(3, 8), embed.generators, limit=1),
        "their batches must agree",
    ),
    "represent a list": (lambda: monoidal.m_representation([1.0], line, window=1), "x is a list"),
    "transform of no type": (lambda: spectral.dct(signal, 2.0), "type 2.0 is unknown: use 1, 2, 3 or 4"),
    "transform of true type": (lambda: spectral.idct(signal, True), "type True is unknown"),
    "kinds by name, one per axis": (lambda: spectral.composed(torch.ones(2, 2), ["dct2", "dst2"], dim=(0, 1)), "kind"),
    "half a point": (lambda: spectral.spectrum("dct2", 4.5), "length 4.5 is not whole"),
    "a negative shape": (lambda: spectral.LearnableTransform("dct2", -3), "is empty"),
    "no shape": (lambda: spectral.LearnableTransform("dct2", ()), "shape"),
    "a list of angles": (lambda: spectral.Spectrum([0.0]), "angles is a list"),
    "an unknown entity": (lambda: graph(ids, ids, ids + 5), "tail goes from 5 to 6: it must be within 0 … 4"),
    "a negative entity": (lambda: graph(ids - 1, ids, ids), "head goes from -1"),
    "an unknown relation": (lambda: graph.loss(torch.tensor([[0, 7, 1]]), 2), "relation goes from 7 to 7"),
    "an entity between two": (lambda: graph(ids.float(), ids, ids), "head is torch.float32"),
    "half a negative": (lambda: graph.loss(torch.tensor([[0, 1, 2]]), 2.5), "negatives is 2.5"),
    "a list for a sequence": (lambda: ssm([1.0]), "x is a list"),
    "both results for the state": (lambda: ssm(torch.ones(1, 3, 8), ssm(torch.ones(1, 3, 8))), "state is a tuple"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake):
    call, says = MISTAKES[mistake]
    with pytest.raises(ValueError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_tile_keeps_the_frequencies_it_was_made_with():
    module = monoidal.MonoidalEmbedding(8, 6)
    before = module.tile(signal[:2])
    with torch.no_grad():
        module.frequencies.add_(0.3)
    with pytest.raises(ValueError, match="different generator sets"):
        concatenate([before, module.tile(signal[2:], origin=2)])


def test_tiles_align_with_the_generators_of_their_embedding():
    for kind in ("dft", "learned"):
        module = monoidal.MonoidalEmbedding(100, 50, frequencies=kind)
        x = torch.randn(50)
        found = monoidal.align(module.tile(x), module.tile(x[17:30], origin=17), module.generators)
        assert found.shift.item() == 17


def test_the_shortest_of_equal_shifts_is_taken():
    module = monoidal.MonoidalEmbedding(100, 50, frequencies="dft")
    x = torch.randn(50)
    found = monoidal.align(module(x), module(x.roll(-3)), module.generators, limit=60)
    assert found.shift.item() == 3
    assert found.ties.item() == 3  # -47, 3 and 53


@pytest.mark.parametrize("window", [200, 1000])
def test_float32_angles_are_not_rational_by_accident(window):
    assert monoidal.blind_spots(torch.tensor([[1.0]]), window, real=False).order_aware
    exact = torch.tensor([[2 * math.pi / 7]], dtype=torch.float64)
    assert not monoidal.blind_spots(exact, window, real=False).order_aware


def test_the_inverse_dft_is_read_by_numpy():
    assert spectral.idft(torch.ones(4)).numpy()[0] == 1


def test_a_part_of_a_head_is_rotated_where_that_is_meant():
    """Frames of fewer planes, of the values' width, and angles of one's own fit wider heads."""
    q, k = torch.randn(2, 1, 4, 2, 16)
    part, whole = (FixedFrames(16, planes=n)(positions.sequence(4)) for n in (4, 8))
    own = FlatFrames.of(part.angles)
    assert torch.equal(journey_attention(q, k, k, part), journey_attention(q, k, k, own))
    assert not torch.allclose(journey_attention(q, k, k, part), journey_attention(q, k, k, whole))
    wide = torch.randn(1, 4, 2, 24)
    for frames in (whole, FixedFrames(24, planes=8)(positions.sequence(4))):
        assert journey_attention(q, k, wide, frames).shape == wide.shape
    shifted = part.shift(torch.ones(4)).select(slice(None))
    assert (shifted.head_dim, shifted.to("cpu").head_dim) == (16, 16)
