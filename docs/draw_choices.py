"""Draws docs/choosing.md's pictures: the decision tree, and a displacement kernel for each kind of frames.

    python docs/draw_choices.py            writes them
    python docs/draw_choices.py --check    exits with 1 if one is out of date

A kernel is the score of a query with a key of the same content elsewhere, (A_i⁻ᵀ c)ᵀ (A_j c) / cᵀc, by the library's
own `rotate`: mean over contents c drawn from a normal distribution, and ± one standard deviation.
"""

from __future__ import annotations

import math

import torch
from drawing import WIDTH, arrow, band, box, circle, curve, dot, line, linear, main, number, svg, text

from joformer import (
    CameraFrames,
    CumulativeFrames,
    DenseFrames,
    FixedFrames,
    LearnedFrames,
    ProjectedFrames,
    TreeFrames,
    positions,
    rotate,
)

HEAD, DRAWS, FAR, SIDE = 64, 500, 64, 6

# -- the tree ----------------------------------------------------------------------------------------------------------

QUESTIONS = [
    (("Does it matter where", "a token stands?"), "no", "NoFrames", "sets, bags of features"),
    (("Are tokens nodes", "of a tree?"), "yes", "TreeFrames", "code, syntax, folders"),
    (("Do several cameras", "see one scene?"), "yes", "CameraFrames", "poses are known"),
    (("First try, or a trained", "RoPE model?"), "yes", "FixedFrames", "start here"),
    (("Few planes, or axes", "that should mix?"), "yes", "LearnedFrames", "trains ω, per head"),
    (("Must axes share blocks", "and still commute?"), "yes", "DenseFrames", "commuting=True: ComRoPE"),
    (("Does the order of", "steps matter?"), "yes", "DenseFrames", "LieRE: curved"),
    (("Should a token's content", "turn its own frame?"), "yes", "ProjectedFrames", 'on="fixed"'),
    (("Should what lies between", "two tokens turn it?"), "yes", "CumulativeFrames", "costs a scan"),
]


def tree() -> str:
    step, top = 76, 50
    shapes = [text(12, 26, "Which frames? Take the first that fits", bold=True, size=16)]
    for row, (words, said, answer, remark) in enumerate(QUESTIONS):
        y = top + step * row
        usual = answer == "FixedFrames"
        shapes += [
            box(12, y, 202, 52, "soft", 1.5),
            *(text(113, y + 22 + 18 * at, part, at="middle") for at, part in enumerate(words)),
            arrow(214, y + 26, 268, y + 26),
            text(240, y + 19, said, "soft", 13, "middle"),
            box(270, y, 198, 52, "two" if usual else "one", 3 if usual else 1.5, "wash"),
            text(369, y + 22, answer, "two" if usual else "one", 15, "middle", bold=True),
            text(369, y + 41, remark, "ink" if usual else "soft", 13, "middle"),
        ]
        if row + 1 < len(QUESTIONS):
            shapes += [
                arrow(113, y + 52, 113, y + step - 2),
                text(121, y + 69, "yes" if said == "no" else "no", "soft", 13),
            ]
    end = top + step * len(QUESTIONS)
    shapes += [
        arrow(113, end - step + 52, 113, end - 2),
        text(121, end - step + 69, "no", "soft", 13),
        text(113, end + 16, "stay with FixedFrames", at="middle"),
    ]
    return svg(
        end + 28,
        "Which frames: a decision tree",
        "; ".join(f"{' '.join(words)} {said}: {answer}" for words, said, answer, _ in QUESTIONS),
        shapes,
    )


# -- kernels -----------------------------------------------------------------------------------------------------------


def scores(frames, at: int = 0) -> torch.Tensor:
    """Of a query at token `at` with the same content at every token: (draws, tokens)."""
    content = torch.randn(DRAWS, 1, 1, HEAD, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    everywhere = content.expand(-1, frames.tokens, -1, -1)
    query, key = rotate(everywhere, frames.dual)[:, at : at + 1], rotate(everywhere, frames)
    return ((query * key).sum(-1) / content.square().sum(-1)).squeeze(-1)


def sequence(
    title: str, remark: str, kinds, low: float = -0.5, ticks=(0, 16, 32, 48, 64), unit="", far: float = FAR
) -> str:
    """Scores over a displacement, one curve for each kind; the last one has the band."""
    x, y = linear(0, far, 40, WIDTH - 14), linear(low, 1.1, 196, 58)
    shapes = [text(12, 22, title, bold=True, size=15), text(12, 43, remark, "soft", 13)]
    for value in (-0.5, 0, 0.5, 1) if low <= -0.5 else (0, 0.5, 1):
        shapes += [
            line(40, y(value), WIDTH - 14, y(value), "soft" if value == 0 else "faint", 1),
            text(34, y(value) + 5, f"{value:g}".replace("-", "−"), "soft", 13, "end"),
        ]
    for value in ticks:
        at = "end" if value == far else "middle"
        shapes.append(text(x(value), 214, ("Δ = 0" if not value and not unit else f"{value}{unit}"), "soft", 13, at))
    for place, (name, found) in enumerate(kinds):
        mean, sd = found.mean(0), found.std(0)
        at = [x(far * token / (len(mean) - 1)) for token in range(len(mean))]
        last = place + 1 == len(kinds)
        colour, more = ("two", {}) if last else ("one", {"stroke_dasharray": "6 4"})
        if last:
            edges = [
                [(a, y(min(max(m, low), 1.1))) for a, m in zip(at, (mean + s * sd).tolist(), strict=True)]
                for s in (-1, 1)
            ]
            shapes.append(band(*edges, colour))
        shapes.append(curve([(a, y(m)) for a, m in zip(at, mean.tolist(), strict=True)], colour, 2, **more))
        if len(kinds) > 1:
            left = 216 + 122 * place
            shapes += [line(left, 184, left + 26, 184, colour, 2, **more), text(left + 32, 189, name, colour, 13)]
    return svg(222, title, f"{remark}. Mean score over displacement, ± one standard deviation over contents.", shapes)


def grids(title: str, remark: str, maps) -> str:
    """Scores over a displacement on two axes: width is size, a dash is negative."""
    cell = 208 / (2 * SIDE + 1)
    shapes = [text(12, 22, title, bold=True, size=15), text(12, 43, remark, "soft", 13)]
    for place, (name, mean) in enumerate(maps):
        left = 16 + 240 * place
        shapes += [box(left, 56, 208, 208, "faint", 1.2), text(left + 104, 284, name, "ink", 13.5, "middle")]
        for at, value in enumerate(mean.tolist()):
            row, column = divmod(at, 2 * SIDE + 1)
            half = (cell / 2 - 0.4) * min(abs(value), 1.0)
            if half < 0.5:
                continue
            px, py = left + cell * (column + 0.5), 56 + cell * (row + 0.5)
            half = round(half, 1)
            long = half + 2  # a dash as short as a dot is wide would look like one
            shapes.append(dot(px, py, half, "two") if value > 0 else line(px - long, py, px + long, py, "one", 1.8))
    shapes.append(text(16, 308, "middle: Δ = 0; rows down, columns right; dash: negative", "soft", 13))
    return svg(
        318, title, f"{remark}. Width shows the size of the mean score; a dot is positive, a dash negative.", shapes
    )


def around(module, origin=(0, 0)) -> torch.Tensor:
    """Mean scores of the displacements from −SIDE to SIDE on both axes, from a query at `origin`."""
    cells = positions.grid(2 * SIDE + 1, 2 * SIDE + 1) - SIDE + torch.tensor(origin, dtype=torch.float64)
    return scores(module(cells), at=len(cells) // 2).mean(0)


def with_content(module, radians: float):
    """Frames of random tokens, where the content moves an angle by `radians` (its standard deviation)."""
    torch.manual_seed(1)
    x = torch.randn(DRAWS, FAR + 1, module.dim)
    with torch.no_grad():
        torch.nn.init.normal_(module.projector.w2.weight)
        module.projector.w2.weight.mul_(radians / module.projector(x).std())
        return module(positions.sequence(FAR + 1), x)


def fixed() -> str:
    kinds = [("base 10000", scores(FixedFrames(HEAD)(positions.sequence(FAR + 1)))),
             ("base 100", scores(FixedFrames(HEAD, base=100.0)(positions.sequence(FAR + 1))))]  # fmt: skip
    return sequence("FixedFrames: ω·t", "near is alike, far is not; a smaller base forgets sooner", kinds)


def learned() -> str:
    module = LearnedFrames(HEAD)
    start = scores(module(positions.sequence(FAR + 1)))
    torch.manual_seed(1)
    with torch.no_grad():
        module.frequencies.mul_(torch.exp(0.5 * torch.randn_like(module.frequencies)))
        moved = scores(module(positions.sequence(FAR + 1)))
    remark = "starts as fixed; here every ω is moved, as training may"
    return sequence("LearnedFrames: ω·t, ω trained", remark, [("start", start.detach()), ("moved", moved)])


def projected() -> str:
    plain = scores(FixedFrames(HEAD)(positions.sequence(FAR + 1)))
    found = scores(with_content(ProjectedFrames(16, HEAD, heads=1, on="fixed"), 0.8))
    remark = "starts as fixed; content that moves angles by 0.8 lowers all alike"
    return sequence("ProjectedFrames: ω·t + MLP(x)", remark, [("start", plain), ("by content", found)])


def cumulative() -> str:
    plain = scores(FixedFrames(HEAD)(positions.sequence(FAR + 1)))
    found = scores(with_content(CumulativeFrames(16, HEAD, heads=1), 0.25))
    remark = "starts as fixed; 0.25 radians per token add up: far is forgotten"
    return sequence("CumulativeFrames: ω·t + Σ φ(x)", remark, [("start", plain), ("by content", found)])


def grid() -> str:
    maps = [(name, around(FixedFrames(HEAD, axes=2, base=100.0, split=name))) for name in ("axial", "combined")]
    return grids("FixedFrames on two axes", "axial: a cross along the axes; combined: along the diagonals", maps)


@torch.no_grad()
def commuting() -> str:
    torch.manual_seed(1)
    module = DenseFrames(HEAD, axes=2, block=8, commuting=True)
    maps = [(f"from {origin}", around(module, origin)) for origin in ((0, 0), (5, 3))]
    return grids("DenseFrames, commuting (ComRoPE)", "flat: only the displacement counts, wherever it begins", maps)


@torch.no_grad()
def dense() -> str:
    torch.manual_seed(1)
    module = DenseFrames(HEAD, axes=2)
    maps = [(f"from {origin}", around(module, origin)) for origin in ((0, 0), (5, 3))]
    return grids("DenseFrames (LieRE)", "curved: the same displacement reads differently elsewhere", maps)


@torch.no_grad()
def branches() -> str:
    torch.manual_seed(1)
    parents = [-1] + [(node - 1) // 2 for node in range(1, 15)]
    found = scores(TreeFrames(HEAD, branches=2, depth=3, base=10.0)(positions.tree(parents)), at=7).mean(0).tolist()
    remark = "from the leftmost leaf: up to the common ancestor and down again"
    shapes = [text(12, 22, "TreeFrames", bold=True, size=15), text(12, 43, remark, "soft", 13)]
    at = {}
    for node in range(15):
        depth = int(math.log2(node + 1))
        at[node] = (WIDTH * (node + 1 - 2**depth + 0.5) / 2**depth, 80 + 52 * depth)
    shapes += [line(*at[node], *at[parents[node]], "faint") for node in range(1, 15)]
    for node, value in enumerate(found):
        (x, y), r = at[node], round(18 * abs(value), 1)
        shapes += [dot(x, y, r, "two") if value > 0 else circle(x, y, r, "one", 1.5)]
        # Beside the node, where no edge goes: a left child's edge leads to the right.
        place = (x, y + 31) if node > 6 else (x - 34, y - 6) if node in (1, 3, 5) else (x + 34, y - 6)
        shapes.append(text(*place, number(value, 2), "soft", 13, "middle"))
    return svg(
        286,
        "TreeFrames",
        f"{remark}: {', '.join(number(value, 2) for value in found)} for nodes in breadth-first order.",
        shapes,
    )


def camera() -> str:
    turns = torch.linspace(0, math.pi, 37, dtype=torch.float64)
    views = torch.eye(4, dtype=torch.float64).repeat(37, 1, 1)
    views[:, 0, 0], views[:, 0, 2] = turns.cos(), turns.sin()
    views[:, 2, 0], views[:, 2, 2] = -turns.sin(), turns.cos()
    found = scores(CameraFrames(HEAD)(positions.cameras(views, (1, 1))))
    remark = "the same patch in a camera turned by an angle, no intrinsics (GTA)"
    ticks = (0, 45, 90, 135, 180)
    return sequence("CameraFrames", remark, [("turned", found)], low=0.0, ticks=ticks, unit="°", far=180)


KERNELS = {
    "fixed": fixed,
    "grid": grid,
    "learned": learned,
    "projected": projected,
    "cumulative": cumulative,
    "commuting": commuting,
    "dense": dense,
    "tree": branches,
    "camera": camera,
}
PICTURES = {"choosing.svg": tree, **{f"kernel-{name}.svg": draw for name, draw in KERNELS.items()}}
WITHIN = 0.2
"""Of a pixel: products of matrices are rounded in another order on other processors."""

if __name__ == "__main__":
    main(PICTURES, WITHIN)
