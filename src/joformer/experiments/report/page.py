"""The report as one page of HTML that needs nothing else: no script, no other file, no network.

Every word that comes from a file is escaped; a policy in the page's head forbids it to load or run anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from joformer.experiments.gathered import Cell, Gathered
from joformer.experiments.report import columns, plots
from joformer.experiments.report.columns import LEFT, Columns
from joformer.experiments.report.curves import Curve, over_seeds
from joformer.experiments.report.numbers import duration, number
from joformer.experiments.report.words import Wording, wordings

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LATE = 0.2
"""The share of a run after which its curve is sure to be in the plot."""
BANDS = 6
"""With more lines than these, bands over seeds would hide each other."""


def html(gathered: Gathered) -> str:
    """The whole page.

    >>> html(Gathered(())).startswith("<!doctype html>")
    True
    """
    tables = wordings(gathered)
    contents = "".join(
        f'<li><a href="#{_key(i)}">{escape(w.table.title)}</a><p>{escape(w.summary())}</p></li>'
        for i, w in enumerate(tables)
    )
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    sections = "".join(_section(_key(index), words) for index, words in enumerate(tables))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="icon" href="data:,">'
        f"<title>joformer: report</title><style>{style}</style></head><body>\n"
        f"<header><h1>What the runs say</h1>{_opening(tables)}"
        f'<nav aria-label="Contents and summary"><ol>{contents}</ol></nav></header>\n'
        f"<main>{sections}</main>\n"
        "<footer><p>Written by <code>joformer report</code>.</p></footer></body></html>\n"
    )


def _key(index: int) -> str:
    return f"table-{index + 1}"


def _opening(tables: Sequence[Wording]) -> str:
    done, planned = (
        sum(len(n) for n in some) for some in ([w.table.cells for w in tables], [w.table.planned for w in tables])
    )
    spent = sum(s for w in tables for cell in w.table.cells if (s := cell.number("seconds")) is not None)
    days = sorted(day for w in tables for cell in w.table.cells if (day := cell.text("finished")[:10]))
    told = [f"{len(tables)} table{'s' * (len(tables) != 1)}", f"{done} of {max(done, planned)} cells finished"]
    told += [f"{duration(spent)} of training"] * bool(spent)
    if days:
        told.append(days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")
    return (
        f'<p class="lead">{escape(", ".join(told))}.</p>'
        "<p>Brackets hold what is known of a number from the seeds that were run. A verdict compares two models on the "
        "same seeds; where their difference does not stand out of its interval, or not after correction for the number "
        "of comparisons in its table, the verdict is <em>undecided</em>, which is a result too. Bold is what is better "
        "than the baseline. The paper’s own figures are of one seed and have no interval.</p>"
    )


def _section(key: str, words: Wording) -> str:
    table, about = words.table, words.about
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in words.run)
    parts = [f"<h2>{escape(table.title)}</h2><p>{escape(words.summary())}</p><dl>{facts}</dl>", _results(words)]
    if table.paper_setting:
        parts.append(f'<p class="quiet">The paper: {escape(table.paper_setting)}.</p>')
    parts.append(_over_sizes(key, words))
    if about.comparisons:
        parts.append(_differences(key, words))
    parts.append(_learning(key, words))
    if about.costs:
        parts.append(f"<h3>Cost</h3>{_table(words.cost, columns.costs(words))}")
    if notes := [*about.remarks, *table.notes]:
        parts.append(f"<h3>Notes</h3><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
    parts.append(_running(words))
    return f'<section id="{key}">{"".join(parts)}</section>\n'


def _results(words: Wording) -> str:
    shown = columns.results(words)
    if not shown.groups:
        return "<p>Nothing measured yet.</p>"
    best = {
        (one.model, one.size)
        for one in words.about.comparisons
        if one.decided and one.difference.verdict == "better" and one.other == words.table.baseline
    }
    bold = [(row.model, row.size) in best for row in words.about.rows]
    return _table(f"{words.measure}: {words.centre} [{words.interval}]", shown, bold)


def _differences(key: str, words: Wording) -> str:
    found, figures = words.about.comparisons, []
    # What is judged against 0 and what against a reference have no axis in common.
    for index, ((size, null), some) in enumerate(groupby(found, lambda one: (one.size, one.difference.null))):
        caption = f"<figcaption>{escape(size)}</figcaption>" if len(words.table.sizes) > 1 else ""
        among = [one for one in found if one.difference.null == null]
        figures.append(f"<figure>{caption}{plots.differences(f'{key}-d{index}', words, list(some), among)}</figure>")
    return (
        f'<h3>{escape(words.judged)}</h3><div class="plots">{"".join(figures)}</div>'
        f'<p class="quiet">{escape(words.method)} Filled dots are decided after correction.</p>'
        f"{_table('The same as numbers', columns.differences(words))}"
    )


def _over_sizes(key: str, words: Wording) -> str:
    """The metric over sizes that are numbers: "512", or "d = 8"."""
    table, series = words.table, []
    matched = [re.fullmatch(r"([^0-9]*)([0-9]{1,9})", size) for size in table.sizes]
    sizes = {size: int(found[2]) for size, found in zip(table.sizes, matched, strict=True) if found}
    prefixes = {found[1] for found in matched if found}
    if len(sizes) < 2 or len(sizes) < len(table.sizes) or len(prefixes) > 1 or min(sizes.values()) < 1:
        return ""
    for index, model in enumerate(words.about.models):
        rows = sorted(
            ((sizes[row.size], row.ours) for row in words.about.rows if row.model == model and row.ours),
            key=lambda pair: pair[0],
        )
        if rows:
            bounds = [one.low for _, one in rows], [one.high for _, one in rows]
            x, y = [float(size) for size, _ in rows], [one.centre for _, one in rows]
            series.append(plots.Series(model, _index(words, index), x, y, *bounds))
    if len({x for one in series for x in one.x}) < 2:
        return ""
    name = "length in tokens" if table.name == "length" else prefixes.pop().strip(" =") or "size"
    told = (f"{s.name}: {', '.join(f'{number(y)} at {x:g}' for x, y in zip(s.x, s.y, strict=True))}" for s in series)
    drawn = plots.lines(
        f"{key}-sizes",
        f"{table.title}: {words.measure} over {name}",
        "; ".join(told),
        series,
        x_name=name,
        x_log=True,
        y_log=table.skewed,
        points=True,
    )
    caption = f"{words.measure} over {name}; {words.centre}, the bars are those of the brackets above"
    heading = "By length" if table.name == "length" else "By size"
    return f'<h3>{heading}</h3><figure class="one"><figcaption>{escape(caption)}</figcaption>{drawn}</figure>'


def _learning(key: str, words: Wording) -> str:
    table, figures, tables = words.table, [], []
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in table.cells:
        groups.setdefault(tuple(cell.measured), []).append(cell)
    held = table.metric if any(table.metric in line for cell in table.cells for line in cell.curve) else "loss"
    for index, (sizes, cells) in enumerate(groups.items()):
        size = sizes[0] if len(sizes) == 1 else ""
        for which, title in (("train_loss", "training loss"), (held, f"held-out {held.replace('_', ' ')}")):
            found = {
                model: curve
                for model in words.about.models
                if (curve := over_seeds([cell for cell in cells if cell.model == model], which)) is not None
            }
            if not found:
                continue
            name = f"{size}: {title}" if size else title
            figures.append(_curves(f"{key}-c{index}-{which == held:d}", words, name, found))
            tables.append(_curve_table(name, found))
    if not figures:
        return ""
    shaded = "; bands reach from the least to the most seed" if len(words.about.models) <= BANDS else ""
    return (
        f'<h3>Learning curves</h3><p class="quiet">Mean over seeds{shaded}. The first steps may leave the plot.</p>'
        f'<div class="plots">{"".join(figures)}</div>'
        f"<details><summary>The curves as numbers</summary>{''.join(tables)}</details>"
    )


def _curves(key: str, words: Wording, name: str, found: dict[str, Curve]) -> str:
    few = len(found) <= BANDS
    series = [
        plots.Series(
            model,
            _index(words, words.about.models.index(model)),
            curve.steps,
            curve.mean,
            curve.least if few and curve.n > 1 else [],
            curve.most if few and curve.n > 1 else [],
        )
        for model, curve in found.items()
    ]
    last = max(curve.steps[-1] for curve in found.values())
    # A loss falls from where it begins to where the differences are: the plot shows the latter.
    late = [
        y
        for c in found.values()
        for s, low, high in zip(c.steps, c.least, c.most, strict=True)
        if s >= LATE * last
        for y in (low, high)
    ]
    told = "; ".join(
        f"{model}: {number(curve.mean[0])} at step {curve.steps[0]:g}, "
        f"{number(curve.mean[-1])} at step {curve.steps[-1]:g}"
        for model, curve in found.items()
    )
    drawn = plots.lines(
        key, f"{words.table.title}: {name}", told, series, x_name="step", y_range=(min(late), max(late))
    )
    return f"<figure><figcaption>{escape(name)}</figcaption>{drawn}</figure>"


def _curve_table(name: str, found: dict[str, Curve], rows: int = 8) -> str:
    grid = min((curve.steps for curve in found.values()), key=len)
    chosen = [grid[round(i * (len(grid) - 1) / (rows - 1))] for i in range(rows)] if len(grid) > rows else grid
    body = []
    for step in chosen:
        at = {model: dict(zip(curve.steps, curve.mean, strict=True)).get(step) for model, curve in found.items()}
        body.append([f"{step:g}", *map(number, at.values())])
    return _table(f"{name}, mean over seeds", Columns(["step", *found], [("", body)]))


def _running(words: Wording) -> str:
    table = words.table
    parts = []
    if table.missing:
        names = "".join(f"<li>{escape(name)}</li>" for name in table.missing)
        parts.append(
            f"<details><summary>{len(table.missing)} of {len(table.planned)} cells are missing</summary>"
            f"<ul>{names}</ul></details>"
        )
    places = Counter(_place(cell) for cell in table.cells if _place(cell))
    commands = [cell.text("command") for cell in table.cells if cell.text("command")]
    if places or commands:
        where = "".join(
            f"<li>{escape(place)} ({count} cell{'s' * (count != 1)})</li>" for place, count in places.items()
        )
        pre = f'<pre tabindex="0" aria-label="Commands">{escape(chr(10).join(commands))}</pre>' if commands else ""
        parts.append(
            f"<details><summary>Machine, versions and the command of each cell</summary><ul>{where}</ul>{pre}</details>"
        )
    return "".join(parts)


def _place(cell: Cell) -> str:
    machine, versions = cell.facts("machine"), cell.facts("versions")
    units = {"cores": "cores", "threads": "threads", "memory_gib": "GiB"}
    told = [
        f"{value} {units[name]}" if name in units else str(value)
        for name, value in machine.items()
        if value is not None
    ]
    return ", ".join([*told, *(f"{name} {version}" for name, version in versions.items())])


def _index(words: Wording, index: int) -> int | None:
    """Which colour: the baseline has the text's own."""
    models, base = words.about.models, words.table.baseline
    if models[index] == base:
        return None
    return index - (base in models[:index])


def _table(caption: str, shown: Columns, bold: Sequence[bool] = ()) -> str:
    """A table that scrolls within itself; rows of one size are a group under its name."""
    head, strong = shown.head, iter(bold)
    top = "".join(f'<th scope="col"{_align(name)}>{escape(name)}</th>' for name in head)
    bodies = []
    for size, rows in shown.groups:
        lines = [f'<tr><th scope="rowgroup" colspan="{len(head)}">{escape(size)}</th></tr>'] if size else []
        for first, *rest in rows:
            loud = next(strong, False)
            cells = "".join(
                f"<td{_align(name)}>{_value(text, loud and name == 'ours')}</td>"
                for name, text in zip(head[1:], rest, strict=True)
            )
            lines.append(f'<tr><th scope="row"{_align(head[0])}>{escape(first)}</th>{cells}</tr>')
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    # Focusable, so that it can be scrolled with the keyboard.
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption><span>{escape(caption)}</span></caption>"
        f"<thead><tr>{top}</tr></thead>{''.join(bodies)}</table></div>"
    )


def _align(name: str) -> str:
    return "" if name in LEFT else ' class="n"'


def _value(text: str, strong: bool) -> str:
    """A number and, quieter, what stands in brackets after it."""
    centre, bracket, rest = text.partition(" [")
    inner = f"<strong>{escape(centre)}</strong>" if strong and bracket else escape(centre)
    return f"{inner} <small>[{escape(rest)}</small>" if bracket else inner
