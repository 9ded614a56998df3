"""The pictures of results.md, drawn from the results that are kept.

python docs/draw_results.py            docs/figures/results-*.svg
python docs/draw_results.py --check    exits with 1 where one is out of date
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drawing import WIDTH, band, curve, dot, line, linear, main, number, svg, text

from joformer.experiments import report
from joformer.experiments.names import plain
from joformer.experiments.results import gather

RESULTS = Path(__file__).resolve().parents[1] / "results"


def tables(folder: str) -> dict[str, Any]:
    """The analysed tables that are kept in results/FOLDER, by name."""
    return {words.table.name: words.about for words in report.analysed(gather([RESULTS / folder]))}


# -- everything, in points of accuracy ---------------------------------------------------------------------------------

BOTH, SCORES = "both, fixed", "scores, fixed"
OVERVIEW = (
    ("points that carry nothing (a theorem)", "points", "mnist-points", BOTH, SCORES, ""),
    ("points with ink", "points", "mnist-points-ink", BOTH, SCORES, ""),
    ("video: what moved where, joint", "video", "mnist-video-class", BOTH, SCORES, "joint"),
    ("video: the same, factorised", "video", "mnist-video-class", BOTH, SCORES, "factorised"),
    ("spoken digits, 300 steps", "evidence", ("speech", 300), "joformer_old", "rope2d", ""),
    ("spoken digits, 1,500 steps", "evidence", ("speech", 1500), "joformer_old", "rope2d", ""),
    ("hidden words beside an image", "pairs", "cifar100-pairs", BOTH, SCORES, ""),
    ("syntax trees: hidden nodes", "trees", "trees", BOTH, SCORES, "masked"),
    ("syntax trees: wrong variables", "trees", "trees", BOTH, SCORES, "misuse"),
    ("CIFAR-100, 1.5 epochs", "evidence", ("cifar100", 600), "joformer_old", "rope2d", "D = 32"),
    ("keywords in a stream, F1", "spotting", "fsdd-spotting", BOTH, SCORES, "1 s"),
)


def gap(folder: str, name: Any, model: str, other: str, size: str) -> tuple[float, float, float, str]:
    """Difference in points, its interval and its verdict."""
    if folder == "evidence":
        (table,) = [
            t
            for t in json.loads((RESULTS / "evidence" / "report.json").read_text())["tables"]
            if (t["about"]["name"], t["cells"][0]["recipe"]["steps"]) == name
        ]
        (one,) = [
            c for c in table["said"]["comparisons"] if (c["model"], c["other"], c["size"]) == (model, other, size)
        ]
        return *(one["difference"][key] for key in ("centre", "low", "high")), one["verdict"]
    (found,) = [c for c in tables(folder)[name].comparisons if (c.model, c.other, c.size) == (model, other, size)]
    return found.difference.centre, found.difference.low, found.difference.high, found.verdict


def accuracy(value: float, sign: bool = False) -> str:
    """Points of accuracy, with one decimal below ten."""
    return number(value, int(abs(value) < 10), sign)


def overview() -> str:
    """RoPE + values minus RoPE wherever the metric is an accuracy, largest kinds first."""
    gaps = [(words, *gap(*where)) for words, *where in OVERVIEW]
    x = linear(-20, 80, 20, WIDTH - 20)
    top, step = 74, 42
    bottom = top + step * len(gaps)
    shapes = [
        text(12, 24, "RoPE + values against RoPE, by task", bold=True, size=16),
        text(12, 46, "points of accuracy on the same seeds, 95 % interval", "soft"),
    ]
    for value in (-20, 0, 20, 40, 60, 80):
        shapes += [
            line(x(value), top - 12, x(value), bottom - 8, "soft" if value == 0 else "faint", 1),
            text(x(value), bottom + 10, number(value, sign=bool(value)), "soft", 13, "middle"),
        ]
    for place, (words, centre, low, high, verdict) in enumerate(gaps):
        y = top + step * place + 22
        colour = "two" if verdict == "better" else "soft"
        shapes += [
            text(12, y - 10, words, bold=verdict == "better"),
            text(WIDTH - 12, y - 10, f"{accuracy(centre, sign=True)}, {verdict}", "soft", 13, "end"),
            line(x(max(low, -20)), y, x(min(high, 80)), y, colour, 2.5),
            dot(x(centre), y, 5, colour),
        ]
    shapes += [
        text(12, bottom + 34, "Three seeds each, small models, 150 to 1,500 steps. Verdicts are", "soft", 13),
        text(12, bottom + 52, "after correction within each table; data and budgets differ by row.", "soft", 13),
    ]
    spoken = "; ".join(
        f"{words} {accuracy(c, sign=True)} [{accuracy(a)}, {accuracy(b)}], {v}" for words, c, a, b, v in gaps
    )
    return svg(bottom + 64, "RoPE + values against RoPE, by task", f"Points of accuracy: {spoken}.", shapes)


# -- how many steps RoPE needs -----------------------------------------------------------------------------------------


def multiplier() -> str:
    """Steps RoPE needs for the loss of RoPE + values, along the run, at each size of the enwik8 models."""
    about = tables("enwik8")["sizes"]
    found = {size: about.multipliers(BOTH, size) for size in ("0.1M", "0.4M")}
    found = {size: [(step, one) for step, one in line if step >= 240] for size, line in found.items() if line}
    last = max(step for line in found.values() for step, _ in line)
    x, y = linear(0, last, 52, WIDTH - 20), linear(0.8, 1.3, 268, 72)
    shapes = [
        text(12, 24, "RoPE needs so many times the steps", bold=True, size=16),
        text(12, 46, "for the loss that RoPE + values has; enwik8, 95 % interval", "soft"),
    ]
    for value in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3):
        shapes += [
            line(52, y(value), WIDTH - 20, y(value), "soft" if value == 1 else "faint", 1),
            text(44, y(value) + 5, f"{value:.1f}", "soft", 13, "end"),
        ]
    for value in (0, 500, 1000, 1500, 2000):
        shapes.append(text(x(value), 290, f"{value:,}", "soft", 13, "middle"))
    for points, colour, words in zip(
        found.values(), ("one", "two"), ("0.1 million parameters, 5 seeds", "0.36 million, 5 seeds"), strict=True
    ):
        inside = [(x(step), y(min(1.3, max(0.8, one.centre)))) for step, one in points]
        low, high = (
            [(x(step), y(min(1.3, max(0.8, getattr(one, end))))) for step, one in points] for end in ("low", "high")
        )
        dashed = {"stroke_dasharray": "7 4"} if colour == "one" else {}
        at = 320 if colour == "one" else 340
        shapes += [
            band(low, high, colour),
            curve(inside, colour, 2.5, **dashed),
            line(52, at - 5, 84, at - 5, colour, 2.5, **dashed),
            text(92, at, words, "ink", 13.5),
        ]
    shapes.append(text(WIDTH - 20, 308, "step", "soft", 13, "end"))
    ends = "; ".join(
        f"{words}, at the end {number(of.centre, 2)} [{number(of.low, 2)}, {number(of.high, 2)}]"
        for words, (*_, (_, of)) in zip(
            ("0.1 million parameters", "0.36 million parameters"), found.values(), strict=True
        )
    )
    return svg(352, "How many times the steps RoPE needs", f"enwik8. {ends}.", shapes)


# -- longer texts ------------------------------------------------------------------------------------------------------


def lengths() -> str:
    """Perplexity of the same bytes with more and more text before them, relative to that at the training length."""
    about = tables("length")["enwik8-length"]
    sizes = about.table.sizes
    x, y = linear(0, len(sizes) - 1, 64, WIDTH - 30), linear(0.9, 1.3, 290, 70)
    shapes = [
        text(12, 24, "Trained at 256 bytes, read up to 4,096", bold=True, size=16),
        text(12, 46, "perplexity × that at 256, the same bytes at every length, 95 %", "soft"),
    ]
    for value in (0.9, 1.0, 1.1, 1.2, 1.3):
        shapes += [
            line(56, y(value), WIDTH - 20, y(value), "soft" if value == 1 else "faint", 1),
            text(48, y(value) + 5, f"{value:.1f}", "soft", 13, "end"),
        ]
    for place, size in enumerate(sizes):
        shapes.append(text(x(place), 312, f"{int(size):,}", "soft", 13, "middle"))
    named = {
        "rope, yarn": ("soft", "RoPE, scaled with YaRN", {"stroke_dasharray": "2 4"}),
        "rope": ("one", "RoPE", {"stroke_dasharray": "7 4"}),
    }
    ends = {}
    for model, found in sorted(about.ratios.items(), key=lambda one: one[0] in named):
        colour, _, dashed = named.get(model, ("two", "", {}))
        centre, low, high = (
            [(x(0), y(1.0)), *((x(place), y(getattr(found[size], what))) for place, size in enumerate(sizes[1:], 1))]
            for what in ("centre", "low", "high")
        )
        if model in named:
            shapes.append(band(low, high, colour))
        shapes.append(curve(centre, colour, 2.5 if model in named else 1.5, **dashed))
        ends[model] = found[sizes[-1]].centre
    others = [value for model, value in ends.items() if model not in named]
    spread = f"{number(min(others), 2)} to {number(max(others), 2)}"
    legend = (*named.values(), ("two", f"{len(others)} others: {spread} at the end", {}))
    for place, (colour, words, dashed) in enumerate(legend):
        at = 342 + 20 * place
        shapes += [line(64, at - 5, 96, at - 5, colour, 2.5, **dashed), text(104, at, words, "ink", 13.5)]
    spoken = "; ".join(f"{plain('length', model)} {number(value, 2)}" for model, value in ends.items())
    title = "Perplexity at longer texts, relative to that at the training length"
    return svg(394, title, f"enwik8, at 4,096 bytes: {spoken}.", shapes)


PICTURES = {"results-overview.svg": overview, "results-multiplier.svg": multiplier, "results-length.svg": lengths}

if __name__ == "__main__":
    main(PICTURES)
