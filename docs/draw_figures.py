"""Draws the pictures of the start page into docs/figures, figures from the committed results.

python docs/draw_figures.py            writes them
python docs/draw_figures.py --check    exits with 1 if one is out of date
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from drawing import WIDTH, arrow, band, box, circle, curve, dot, line, linear, main, number, svg, text, vector

RESULTS = Path(__file__).resolve().parents[1] / "results"


def interval(one, digits: int) -> str:
    """A mean and its interval, as results.md writes them."""
    return f"{number(one.centre, digits)} [{number(one.low, digits)}, {number(one.high, digits)}]"


# -- the pipeline ------------------------------------------------------------------------------------------------------

TURN, VALUE = 40, 65  # degrees from one token's frame to the next, and of the value in its own frame
DASHES = "4 2"  # of a frame, so that it differs from a value in grey too


def frame(x: float, y: float, r: float, degrees: float) -> list[str]:
    """A token: a circle with the two axes of its frame."""
    return [
        circle(x, y, r, "faint", 1.5),
        *(vector(x, y, r * 0.94, degrees + right, "one", 1.4, stroke_dasharray=DASHES) for right in (0, 90)),
    ]


def travel(top: float, journey: bool) -> list[str]:
    """Three equal values at tokens 1, 2, 3, and what token 4 reads of them."""
    reader, lanes = (398, top + 98), [(50, top + 34 + 66 * row) for row in range(3)]
    shapes = []
    for row, (x, y) in enumerate(lanes):
        turned = TURN * (row - 3)
        shapes += [*frame(x, y, 31, turned), vector(x, y, 29, turned + VALUE, "two", 3)]
        shapes.append(text(x + 34, y + 24, str(row + 1), "soft", 14))
        near, far = (x + 42, y), (reader[0] - 66, reader[1] + (row - 1) * 22)
        at = [(near[0] + (far[0] - near[0]) * part, near[1] + (far[1] - near[1]) * part) for part in (0.22, 0.5, 0.78)]
        shapes.append(arrow(*near, *far, "soft", 1.2, stroke_dasharray="3 4"))
        if journey:
            for px, py in at:
                turn = math.radians(turned + VALUE)
                start = (px - 11 * math.cos(turn), py + 11 * math.sin(turn))
                shapes.append(vector(*start, 22, turned + VALUE, "two", 2))
        else:
            px, py = (near[0] + far[0]) / 2, (near[1] + far[1]) / 2
            shapes.append(text(px, py + (-15, -6, -15)[row], "(0.4, 0.9)", "two", 13, "middle"))
    x, y = reader
    shapes += frame(x, y, 56, 0)
    if journey:
        for row in range(3):
            turned = TURN * (row - 3) + VALUE
            turn = math.radians(turned)
            shapes.append(vector(x, y, 50, turned, "two", 3))
            shapes.append(text(x + 67 * math.cos(turn), y - 67 * math.sin(turn) + 5, str(row + 1), "two", 14, "middle"))
    else:
        shapes += [vector(x, y, 50, VALUE, "two", 5), text(x + 22, y - 62, "1, 2, 3", "two", 14)]
    shapes.append(text(x, y + 84, "what token 4 reads", "ink", 14, "middle"))
    return shapes


def pipeline() -> str:
    shapes = [
        text(12, 24, "The scores, in both", bold=True, size=16),
        text(12, 62, "q_i"), arrow(34, 57, 56, 57), box(58, 43, 86, 28, "one"),
        text(101, 62, "rotate A_i", "one", at="middle"),
        text(12, 102, "k_j"), arrow(34, 97, 56, 97), box(58, 83, 86, 28, "one"),
        text(101, 102, "rotate A_j", "one", at="middle"),
        line(144, 57, 172, 57), line(144, 97, 172, 97), line(172, 57, 172, 97), arrow(172, 77, 198, 77),
        box(200, 61, 76, 32), text(238, 82, "q_i · k_j", at="middle"), arrow(276, 77, 302, 77),
        box(304, 61, 80, 32), text(344, 82, "softmax", at="middle"), arrow(384, 77, 408, 77),
        text(414, 82, "α_ij"),
        line(12, 130, WIDTH - 12, 130, "faint"),
        text(12, 158, "RoPE: the value is copied", bold=True, size=16),
        text(12, 180, "equal values read alike wherever they stand: Σ α_ij v_j", "soft"),
        *travel(190, journey=False),
        line(12, 408, WIDTH - 12, 408, "faint"),
        text(12, 436, "Journey attention: the value travels", bold=True, size=16),
        text(12, 458, "it keeps its direction on the way: Σ α_ij A_i⁻¹A_j v_j", "soft"),
        *travel(468, journey=True),
        vector(14, 705, 22, 0, "one", 1.4, stroke_dasharray=DASHES), text(42, 710, "a token's frame", "one"),
        vector(166, 705, 20, 0, "two", 3), text(192, 710, "the same value, at 1, 2 and 3", "two"),
    ]  # fmt: skip
    return svg(
        724,
        "RoPE and journey attention: the value travels into the reader's frame",
        "Both rotate queries and keys. RoPE copies the numbers of a value, so three equal values at tokens 1, 2 and 3 "
        "are read alike by token 4. In journey attention a value keeps its direction on the way, so the reader's frame "
        "shows each at another angle: where it came from.",
        shapes,
    )


# -- the learning curve ------------------------------------------------------------------------------------------------


def curves(model: str) -> dict[int, dict[int, float]]:
    """Step → seed → held-out bits per byte."""
    found: dict[int, dict[int, float]] = {}
    for path in sorted((RESULTS / "enwik8" / "sizes" / model / "0.1m").glob("seed-*/result.json")):
        run = json.loads(path.read_text())
        for row in run["curve"]:
            if "bits_per_byte" in row:
                found.setdefault(row["step"], {})[run["seed"]] = row["bits_per_byte"]
    return found


def learning_curve() -> str:
    from joformer.experiments.statistics import estimate, paired

    rope, both = curves("scores-fixed"), curves("both-fixed")
    steps = list(rope)
    x, y = linear(0, 2000, 52, WIDTH - 14), linear(2.2, 6.3, 322, 58)
    shapes = [
        text(12, 22, "enwik8, 0.1 million parameters", bold=True, size=16),
        text(12, 44, "held-out bits per byte; mean of 5 seeds and 95 % interval", "soft"),
    ]
    for value in (2.5, 3, 4, 5, 6):
        shapes += [
            line(52, y(value), WIDTH - 14, y(value), "faint", 1),
            text(46, y(value) + 5, f"{value:g}", "soft", 13, "end"),
        ]
    for colour, runs, dash in (("one", rope, ""), ("two", both, "7 4")):
        of = {step: estimate(list(runs[step].values())) for step in steps}
        low, high = ([(x(s), y(getattr(of[s], side))) for s in steps] for side in ("low", "high"))
        more = {"stroke_dasharray": dash} if dash else {}
        shapes += [band(low, high, colour), curve([(x(s), y(of[s].centre)) for s in steps], colour, 2.2, **more)]
    shapes += [
        line(262, 96, 292, 96, "one", 2.2), text(300, 101, "RoPE", "one"),
        line(262, 120, 292, 120, "two", 2.2, stroke_dasharray="7 4"), text(300, 125, "RoPE + values", "two"),
    ]  # fmt: skip
    z = linear(-0.25, 0.15, 484, 372)
    shapes.append(text(12, 352, "difference, values − RoPE (below 0: values ahead)", bold=True))
    for value in (-0.2, -0.1, 0, 0.1):
        shapes += [
            line(52, z(value), WIDTH - 14, z(value), "soft" if value == 0 else "faint", 1),
            text(46, z(value) + 5, number(value, 1) if value else "0", "soft", 13, "end"),
        ]
    apart = {step: paired(both[step], rope[step], higher=False) for step in steps}
    low, high = ([(x(s), z(getattr(apart[s], side))) for s in steps] for side in ("low", "high"))
    shapes += [band(low, high, "two"), curve([(x(s), z(apart[s].centre)) for s in steps], "two", 2.2)]
    for step in (0, 500, 1000, 1500, 2000):
        words, at = ("step 0", "middle") if not step else (f"{step:,}", "end" if step == 2000 else "middle")
        shapes.append(text(x(step), 504, words, "soft", 13, at))
    most = min(steps, key=lambda step: apart[step].centre)
    shapes += [
        text(12, 532, f"Most after {most} steps: {interval(apart[most], 2)}; after 2,000:"),
        text(12, 552, f"{interval(apart[2000], 3)}, alike as far as five seeds can tell."),
        text(12, 572, "One data set, one small model, RoPE's best learning rate.", "soft"),
    ]  # fmt: skip
    return svg(
        584,
        "Learning curves of RoPE and RoPE + values on enwik8",
        "Held-out bits per byte over 2,000 steps, mean of five seeds with 95 % intervals: the curves nearly coincide. "
        "Below, their difference paired by seed: at first values are ahead, soon the interval covers zero.",
        shapes,
    )


# -- planes and axes ---------------------------------------------------------------------------------------------------


def planes() -> str:
    from joformer.frequencies import geometric, per_axis

    count, base = 8, 10.0
    axial = per_axis(count, 2, "axial", base).tolist()
    rows, columns = per_axis(count, 2, "combined", base).tolist()
    golden = math.pi * (3 - math.sqrt(5))
    mixed = [
        (w * math.cos(golden * b + 0.6), w * math.sin(golden * b + 0.6))
        for b, w in enumerate(geometric(count, base).tolist())
    ]
    kinds = [
        ("axial", "each plane belongs", "to one axis", [(w, 0) for w in axial[0]] + [(0, w) for w in axial[1]]),
        ("combined", "both axes rotate", "every plane", list(zip(rows, columns, strict=True))),
        ("mixed", "learned, per head:", "any direction", mixed),
    ]
    shapes = [
        text(12, 24, "Two axes, eight planes: how they share a head", bold=True, size=16),
        text(12, 48, "a dot is a plane: how fast rows (→) and columns (↑) turn it", "soft"),
    ]
    for place, (name, first, second, points) in enumerate(kinds):
        left, middle = 12 + 157 * place, 12 + 157 * place + 71
        x, y = linear(-1.1, 1.1, left, left + 142), linear(-1.1, 1.1, 206, 64)
        shapes += [
            box(left, 64, 142, 142, "faint", 1.2),
            line(x(-1.1), y(0), x(1.1), y(0), "faint", 1),
            line(x(0), y(-1.1), x(0), y(1.1), "faint", 1),
            *(line(x(0), y(0), x(a), y(b), "one", 1) for a, b in points),
            *(dot(x(a), y(b), 4, "one") for a, b in points),
            text(middle, 228, name, bold=True, size=15, at="middle"),
            text(middle, 247, first, "soft", 13, "middle"),
            text(middle, 264, second, "soft", 13, "middle"),
        ]
        for plane, (a, b) in enumerate(points):
            cell = left + plane * 142 / count
            for moved, top, colour, fill in ((a, 284, "one", "wash"), (b, 304, "two", "fill")):
                shapes.append(
                    box(cell + 1, top, 142 / count - 2, 16, colour if moved else "faint", 1, fill if moved else "")
                )
    shapes += [text(12, 344, "planes that", "soft", 13), box(96, 331, 16, 16, "one", 1, "wash"),
               text(118, 344, "rows (upper line)", "one"), box(254, 331, 16, 16, "two", 1, "fill"),
               text(276, 344, "columns (lower) rotate", "two")]  # fmt: skip
    return svg(
        354,
        "Axial, combined and mixed planes",
        "Axial: four planes are rotated by rows and four by columns. Combined: every plane by both, at fixed "
        "frequencies that hide no displacement. Mixed: every plane by both, in directions that are learned for each "
        "head.",
        shapes,
    )


# -- layouts -----------------------------------------------------------------------------------------------------------


def layouts() -> str:
    shapes = []
    for top, name, who, pairs, words in (
        (
            0,
            "interleaved",
            "Llama's own code, RoFormer, timm, joformer's default",
            [(0, 1), (2, 3), (4, 5), (6, 7)],
            'layout="interleaved"',
        ),
        (164, "half", "Hugging Face, GPT-NeoX, DINOv3", [(0, 4), (1, 5), (2, 6), (3, 7)], 'layout="half"'),
    ):
        shapes += [
            text(12, top + 24, name, bold=True, size=16),
            text(12, top + 45, who, "soft", 13.5),
            text(WIDTH - 12, top + 24, words, "soft", 13.5, "end"),
        ]
        for plane, (a, b) in enumerate(pairs):
            colour = "one" if plane % 2 == 0 else "two"
            at = [12 + 57 * entry for entry in (a, b)]
            left, right = (start + 28.5 for start in at)
            foot, high = top + 98, top + (64 if b - a == 1 else 78 - 9 * plane)
            dashed = ' stroke-dasharray="6 3"' if plane % 2 else ""
            shapes += [
                *(box(start + 2, top + 100, 53, 36, colour, 1.6, "wash" if plane < 2 else "") for start in at),
                text(left, top + 123, f"x{'₀₁₂₃₄₅₆₇'[a]}", "ink", 15, "middle"),
                text(right, top + 123, f"x{'₀₁₂₃₄₅₆₇'[b]}", "ink", 15, "middle"),
                f'<path class="{colour}" stroke-width="2"{dashed} '
                f'd="M{left:.1f} {foot}C{left:.1f} {high} {right:.1f} {high} {right:.1f} {foot}"/>',
                *(
                    text(middle, top + 154, f"plane {plane}", "soft", 13, "middle")
                    for middle in ([(left + right) / 2] if b - a == 1 else [left, right])
                ),
            ]
    return svg(
        330,
        "Interleaved and half layouts",
        "A head of eight entries, four planes. Interleaved: entries 0 and 1, 2 and 3, 4 and 5, 6 and 7 form a plane. "
        "Half: entries 0 and 4, 1 and 5, 2 and 6, 3 and 7.",
        shapes,
    )


# -- what it costs -----------------------------------------------------------------------------------------------------

COSTS = [
    ("joformer: scores and values", "step eager: both / none, geometric mean", "two"),
    ("the same, both compiled", "step compiled: both / none, geometric mean", "two"),
    ("Hugging Face: scores", "step eager: Hugging Face on q and k / none, geometric mean", "one"),
    ("x-transformers: scores", "step eager: x-transformers on q and k / none, geometric mean", "one"),
    ("rotary-embedding-torch: scores", "step eager: rotary-embedding-torch on q and k / none, geometric mean", "one"),
]


def cost() -> str:
    rows = {row["name"]: row for row in json.loads((RESULTS / "bench.json").read_text())}
    x = linear(-3, 15, 24, WIDTH - 24)
    bottom = 74 + 50 * len(COSTS)
    shapes = [
        text(12, 24, "What positions cost in a training step", bold=True, size=16),
        text(12, 46, "extra time over the same model without any, 95 % interval", "soft"),
    ]
    for value in (0, 5, 10, 15):
        shapes += [
            line(x(value), 60, x(value), bottom, "soft" if value == 0 else "faint", 1),
            text(x(value), bottom + 18, f"{value} %", "soft", 13, "middle"),
        ]
    for place, (words, name, colour) in enumerate(COSTS):
        centre, low, high = (100 * (rows[name][key] - 1) for key in ("value", "low", "high"))
        y = 92 + 50 * place
        left, right = sorted((x(0), x(centre)))
        mark = f"{number(centre, 1)} %" + (", within noise" if low < 0 < high else "")
        shapes += [
            text(x(0) + 6, y - 8, words, bold=colour == "two"),
            text(WIDTH - 14, y - 8, mark, "soft", 13, "end"),
            box(left, y, right - left, 18, colour, 3 if colour == "two" else 1.2, "wash"),
            line(x(low), y + 9, x(high), y + 9, "ink", 2),
            *(line(x(end), y + 4, x(end), y + 14, "ink", 2) for end in (low, high)),
        ]
    shapes += [
        text(12, bottom + 42, "Two CPU cores, fp32, two blocks in three shapes, eager mode;", "soft", 13),
        text(12, bottom + 60, "one run of joformer bench: another may differ by more.", "soft", 13),
    ]
    return svg(
        bottom + 72,
        "What positions cost in a training step",
        "; ".join(f"{words} {100 * (rows[name]['value'] - 1):.1f} %" for words, name, _ in COSTS),
        shapes,
    )


PICTURES = {
    "pipeline.svg": pipeline,
    "learning-curve.svg": learning_curve,
    "planes.svg": planes,
    "layouts.svg": layouts,
    "cost.svg": cost,
}

if __name__ == "__main__":
    main(PICTURES)
