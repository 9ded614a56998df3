"""What one layer can tell of where tokens are: statements of our own, for docs/separation.md.

    scores alone     o = Σ_j α_j v_j                  positions act on the weights α, which sum to one
    values           o = Σ_j α_j R(θ_j − θ_i) v_j     … and on what is summed

The first is impossible to read where all v_j are one vector; the second is not. `joformer verify --only separation`
runs them. Constructions are weights given by hand: what they do, training may find.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from joformer import positions
from joformer._seeding import hashed
from joformer.attention import journey_attention
from joformer.attention._options import Transport
from joformer.frames import FixedFrames
from joformer.models import JoFormerLM, LMConfig
from joformer.models._lm import FramesName
from joformer.rotation import rotate
from joformer.verify._claims import Draw, Measured, Section, gap, worst

claim = Section("separation")

KINDS, PLACES = 5, 8


@claim(101, "one kind, any depth", "O")
def one_kind(draw: Draw) -> Measured:
    """True: where all tokens are of one kind, a model of any depth whose scores alone are transported gives every
    token the logits of a token alone: it knows neither how many there are nor where

    Gap: with values transported they differ by
    """
    tokens = draw.whole(1, 1, low=0, high=KINDS)
    where = draw.uniform(1, 7, 1, high=50.0).cumsum(1)
    residuals, gaps = [], []
    for frames in get_args(FramesName):
        scores, both = (_logits(draw, side, frames, tokens.expand(1, 7), where) for side in ("scores", "both"))
        alone = _logits(draw, "scores", frames, tokens, where[:, :1]).expand_as(scores)
        residuals.append(gap(scores, alone))
        gaps.append(gap(both, alone))
    return Measured(worst(*residuals), gap=min(gaps))


@claim(102, "kinds − 1 numbers", "O")
def few_numbers(draw: Draw) -> Measured:
    """True: over all placements of tokens of K kinds, what a head of scores alone gives a query lies in K − 1
    dimensions: the shares of attention that the kinds have, and nothing else

    Gap: with values transported the next dimension has a spread of
    """
    kinds, count = 3, 60
    placed = draw.whole(count, 9, low=0, high=kinds)
    at = torch.arange(9.0, dtype=torch.float64)[:, None]
    k, v = (draw.noise(kinds, 8)[placed][:, :, None] for _ in range(2))
    q = draw.noise(8).expand(count, 1, 1, 8)  # asked after all others

    def spread(transport: Transport) -> Tensor:
        frames = FixedFrames(8, base=100.0)
        asked = frames(at[-1:] + 1)
        o = journey_attention(q, k, v, asked, key_frames=frames(at), transport=transport)[:, 0, 0]
        return torch.linalg.svdvals(o - o.mean(0))[kinds - 1] / math.sqrt(count)

    return Measured(float(spread("scores")), gap=float(spread("both")))


@claim(103, "who selects does not tell where", "O")
def selecting(draw: Draw) -> Measured:
    """True: a head of scores alone that gives a token all but a share ε of its attention outputs that token's value
    within ε times the largest distance between values, wherever the token is

    Gap: with values transported, wherever it is makes a difference beyond that of
    """
    others, mark = draw.noise(PLACES, 1, 8), draw.noise(1, 1, 8)
    at, frames = torch.arange(PLACES + 1.0, dtype=torch.float64)[:, None], FixedFrames(8, base=100.0)
    asked, placed = frames(at[-1:]), frames(at[:-1])
    # In the plane that turns slowest, so that the token is selected wherever it is.
    axis = torch.tensor([0.0] * 6 + [1.0, 0.0], dtype=torch.float64)

    def head(chosen: Tensor, v: Tensor, side: Transport) -> Tensor:
        q, k = axis.expand(1, 1, 1, 8), 9 * chosen * axis
        return journey_attention(q, k[None], v[None], asked, key_frames=placed, transport=side, scale=1.0)[0, 0, 0]

    scores, both, bounds = [], [], []
    for place in range(PLACES):
        chosen = torch.arange(PLACES)[:, None, None] == place
        v = torch.where(chosen, mark, others)
        epsilon = 1 - head(chosen, torch.eye(PLACES).double()[:, None], "scores")[place]
        bounds.append(float(epsilon * (v - mark).norm(dim=-1).max()))
        scores.append(float((head(chosen, v, "scores") - mark[0, 0]).norm()) - bounds[-1])
        both.append(head(chosen, v, "both"))
    apart = min(float((a - b).norm()) for i, a in enumerate(both) for b in both[:i])
    return Measured(max(0.0, *scores), gap=apart - 2 * max(bounds))


@claim(104, "no positions, one layer", "O")
def no_positions(draw: Draw) -> Measured:
    """True: one layer without positions gives the last token the same logits in whatever order the others come

    Gap: two layers, whose masks tell the order, differ by
    """
    tokens = torch.randperm(KINDS, generator=draw.generator)[None]
    shuffled = torch.cat((tokens[:, :-1].flip(1), tokens[:, -1:]), 1)
    where = torch.arange(KINDS, dtype=torch.float64)[None, :, None]
    one, two = (
        gap(*(_logits(draw, "none", "fixed", given, where, layers)[:, -1] for given in (tokens, shuffled)))
        for layers in (1, 2)
    )
    return Measured(one, gap=two)


@claim(105, "displacement alone, by values", "O")
def displacement_by_values(draw: Draw) -> Measured:
    """True: two tokens that are alike, attended to equally: a plane of the output is turned by half of −ω times their
    distance, which one layer can read up to 2π / ω

    Gap: read from scores alone, the distance is wrong by
    """
    omega, v = 2 * math.pi / (3 * PLACES), draw.noise(2)
    far = torch.arange(1.0, PLACES + 1, dtype=torch.float64)

    def read(transport: Transport) -> Tensor:
        ends = torch.stack((-far, torch.zeros_like(far)), 1)
        o = _averaged(v, ends, [omega], transport)
        return -2 * (torch.view_as_complex(o) / torch.view_as_complex(v)).angle() / omega

    return Measured(gap(read("values"), far), gap=gap(read("scores"), far))


@claim(106, "window alone, by values", "O")
def window_by_values(draw: Draw) -> Measured:
    """True: tokens that are alike, attended to equally, in planes of the frequencies 2πp / N: how many stand within
    any window of N places is a linear function of one layer's output

    Gap: read from scores alone, the count is wrong by
    """
    places, tokens, inside = 3 * PLACES, 7, torch.arange(3 * PLACES) - 1 < PLACES
    inside[0] = False  # where the query stands
    read = _indicator(inside)
    back = torch.stack([torch.randperm(places - 1, generator=draw.generator)[:tokens] + 1 for _ in range(20)])
    where = -F.pad(back, (0, 1)).double()
    true = inside[back].sum(1).double()
    v = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(len(read) // 2)
    counted = {
        side: (tokens + 1) * _averaged(v, where, _harmonics(places), side) @ read for side in ("values", "scores")
    }
    return Measured(gap(counted["values"], true), gap=gap(counted["scores"], true))


@claim(107, "displacement and order, by weights", "O")
def by_weights(draw: Draw) -> Measured:
    """True: one head of scores alone, among other kinds, by scores that fall with the distance: the share of attention
    of a mark tells how far it is, and which of two kinds has the larger share tells which comes last

    Gap: two distances, or two orders, differ in the shares by at least
    """
    at = torch.arange(PLACES + 1.0, dtype=torch.float64)[:, None]
    omega = math.pi / 2 / (PLACES + 1)
    frames = FixedFrames(2, frequencies=[[omega]])(at)
    strength = float(draw.uniform(1, low=3.0, high=4.5))

    def shares(first: int, second: int) -> Tensor:
        """Of two kinds that stand at these places: keys along one axis for both, none for the others."""
        kinds = torch.zeros(1, PLACES + 1, 1, 2, dtype=torch.float64)
        kinds[0, first, 0, 0] = kinds[0, second, 0, 1] = 1.0
        k = F.pad(strength * kinds.amax(-1, keepdim=True), (0, 1))
        q = F.pad(torch.ones_like(k[..., :1]), (0, 1))
        return journey_attention(q, k, kinds, frames, transport="scores", scale=1.0)[0, -1, 0]

    far = torch.arange(1, PLACES + 1)
    mark = torch.stack([shares(PLACES - d, PLACES - d)[0] for d in far.tolist()])
    scores = (strength * (omega * far.double()).cos()).exp()
    told = gap(mark, scores / (scores + PLACES))
    pairs = [(shares(i, j), i < j) for i in range(PLACES) for j in range(PLACES) if i != j]
    wrong = sum(bool(share[0] < share[1]) != before for share, before in pairs)
    return Measured(
        worst(told, wrong), gap=min(-float(mark.diff().max()), *(float(share.diff().abs()) for share, _ in pairs))
    )


@claim(108, "three before, by scores", "O")
def before_by_scores(draw: Draw) -> Measured:
    """True: one head of scores alone whose query is turned by k steps, as sharp as need be, outputs the value of the
    token k before, whatever the tokens are

    Gap: with values alone transported, the same head is off by
    """
    v, frames = draw.noise(1, PLACES, 1, 8), FixedFrames(8, base=100.0)
    back, at = 3, torch.arange(PLACES, dtype=torch.float64)[:, None]
    placed = frames(at)
    k = torch.ones(1, PLACES, 1, 8, dtype=torch.float64)
    turned = rotate(k[:, :1], frames(torch.tensor([[-float(back)]], dtype=torch.float64)))
    q = 200 * turned.expand_as(k)
    scores, values = (journey_attention(q, k, v, placed, transport=side)[0, -1, 0] for side in ("scores", "values"))
    wanted = v[0, -1 - back, 0]
    return Measured(gap(scores, wanted), gap=gap(values, wanted))


@claim(109, "three before, by values", "O")
def before_by_values(draw: Draw) -> Measured:
    """True: values alone, all tokens attended to equally, a head for each kind, planes of the frequencies 2πp / N:
    which kind stands k before is a linear function of one layer's output

    Gap: the kind that stands there is ahead of the others by
    """
    back, kinds = 3, torch.randperm(PLACES, generator=draw.generator)
    read = _indicator(torch.arange(PLACES) == back)
    v = F.one_hot(kinds).double()[None, :, :, None] * torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(
        len(read) // 2
    )
    frames = FixedFrames(len(read), frequencies=[_harmonics(PLACES)])(positions.sequence(PLACES))
    nothing = torch.zeros_like(v)
    o = journey_attention(nothing, nothing, v, frames, transport="values")[0, -1]
    told = PLACES * o @ read
    true = F.one_hot(kinds[-1 - back], PLACES).double()
    best, second = told.topk(2).values
    return Measured(gap(told, true), gap=float(best - second))


@claim(110, "window among others, by weights", "O")
def window_by_weights(draw: Draw) -> Measured:
    """True: one head of scores alone, in planes of the frequencies 2πp / N: scores can be s inside a window and 0
    outside, and the share of attention of the marks then tells how many of them are inside

    Gap: one more inside adds to the share at least
    """
    places, marks, inside = 3 * PLACES, 7, torch.arange(3 * PLACES) - 1 < PLACES
    inside[0] = False
    s, read = float(draw.uniform(1, low=1.0, high=3.0)), _indicator(inside)
    frames = FixedFrames(len(read), frequencies=[_harmonics(places)])(-torch.arange(places).double()[:, None])
    k = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(len(read) // 2).expand(1, places, 1, -1)

    def share(marked: Tensor) -> float:
        v = marked.double()[None, :, None, None]
        q = s * read.expand_as(k)
        return float(journey_attention(q, k, v, frames, transport="scores", scale=1.0)[0, 0, 0, 0])

    total, shares, residual = PLACES * math.exp(s) + places - PLACES, [], 0.0
    for count in range(marks + 1):
        near = torch.randperm(PLACES, generator=draw.generator)[:count] + 1
        far = torch.randperm(places - PLACES - 1, generator=draw.generator)[: marks - count] + PLACES + 1
        found = share(torch.isin(torch.arange(places), torch.cat((near, far))))
        shares.append(found)
        residual = worst(residual, abs((found * total - marks) / (math.exp(s) - 1) - count))
    return Measured(residual, gap=min(b - a for a, b in pairwise(shares)))


def _logits(draw: Draw, transport: Any, frames: Any, tokens: Tensor, where: Tensor, layers: int = 3) -> Tensor:
    """Those of a model whose weights are drawn, large enough that attention is not uniform; the same for all sides."""
    with draw.torch_seed(), torch.no_grad():
        config = LMConfig(
            vocab=KINDS, dim=16, layers=layers, heads=2, hidden=32, frames=frames, transport=transport, base=100.0
        )
        model = JoFormerLM(config).double().eval()
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(hashed(f"{draw.seed} {name}")))
        return model(tokens, where)


def _averaged(v: Tensor, where: Tensor, steps: Sequence[float], transport: Transport) -> Tensor:
    """(rows, dim): what the last token gets where all have the value v (dim,) and equal weights, at (rows, tokens)."""
    frames = FixedFrames(len(v), frequencies=[steps])(where[..., None])
    nothing = torch.zeros(*where.shape, 1, len(v), dtype=torch.float64)
    return journey_attention(nothing, nothing, v.expand_as(nothing), frames, transport=transport)[:, -1, 0]


def _harmonics(places: int) -> list[float]:
    return [2 * math.pi * p / places for p in range(places // 2 + 1)]


def _indicator(inside: Tensor) -> Tensor:
    """Of displacements d = 0 … N − 1: what reads 1 or 0 from cos(ω_p d) and −sin(ω_p d) at all harmonics, N even."""
    places = len(inside)
    spectrum = torch.fft.rfft(inside.double()) / places
    spectrum[1:-1] *= 2
    return torch.view_as_real(spectrum).flatten()
