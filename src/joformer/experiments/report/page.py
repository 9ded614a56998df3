"""The report as one self-contained HTML page: no script, no other file, no network.

page.html is the template; template.py holds what it shares with other pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean
from typing import Any
from urllib.parse import quote

from joformer._log import counted
from joformer.experiments.report import columns, plots
from joformer.experiments.report.columns import Columns
from joformer.experiments.report.curves import Curve, over_seeds
from joformer.experiments.report.numbers import duration, number
from joformer.experiments.report.template import HERE, render
from joformer.experiments.report.words import Wording
from joformer.experiments.tables import LARGEST, Cell, finite

LATE = 0.2
"""After this share of a run its curve is always inside the plot."""
BANDS = 6
"""With more lines than this, bands over seeds would hide each other."""


def html(report: Sequence[Wording], unfinished: Sequence[Wording] = (), refresh: int = 0) -> str:
    """The whole page.

    Args:
        report: The tables that are shown.
        unfinished: Tables that are only listed, with their progress.
        refresh: Seconds after which a browser reloads the page; 0 for never.

    >>> html([]).startswith("<!doctype html>"), 'http-equiv="refresh" content="5"' in html([], refresh=5)
    (True, True)
    """
    keys = _unique(
        [re.sub(r"[^a-z0-9]+", "-", words.table.name.lower()).strip("-") or "table" for words in report], "-"
    )
    titles = _unique([words.heading for words in report], " ")
    sections = [_section(key, title, words) for key, title, words in zip(keys, titles, report, strict=True)]
    return render(
        HERE / "page.html", opening=_opening(report), sections=sections, grid=_grid(keys, report),
        unfinished=[(words.heading, *_counted([words])) for words in unfinished], refresh=refresh,
    )  # fmt: skip


def _unique(names: Sequence[str], between: str) -> list[str]:
    """The names, with a number appended to repeated ones."""
    counts, found = Counter[str](), list[str]()
    for name in names:
        counts[name] += 1
        found.append(name if counts[name] == 1 else f"{name}{between}{counts[name]}")
    return found


def _opening(report: Sequence[Wording]) -> str:
    tables = [words.table for words in report]
    done, planned = _counted(report)
    spent = sum(s for table in tables for cell in table.cells if (s := cell.number("seconds")) is not None)
    days = sorted(day for table in tables for cell in table.cells if (day := cell.text("finished")[:10]))
    told = [counted(len(tables), "table"), f"{done} of {planned} runs finished"]
    told += [f"{duration(spent)} of training"] * bool(spent)
    told += [days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"] if days else []
    return f"{', '.join(told)}."


def _counted(report: Sequence[Wording]) -> tuple[int, int]:
    """The numbers of finished and of planned cells."""
    done = sum(len({cell.name for cell in words.table.cells}) for words in report)
    return done, max(done, sum(len(words.table.planned) for words in report))


def _grid(keys: Sequence[str], report: Sequence[Wording]) -> dict[str, Any]:
    """Effects by data: what value transport adds to each kind of angles; only the first and last of many sizes."""
    places, found = [], dict[str, dict[int, dict[str, str]]]()
    tables = Counter(words.table.data for words in report if words.about.effects)
    for key, words in zip(keys, report, strict=True):
        sizes = list(words.about.effects)
        for size in dict.fromkeys([*sizes[:1], *sizes[-1:]]):
            more = words.after(size).strip()
            data = words.data if tables[words.table.data] > 1 else words.table.data
            places.append({"key": key, "data": data or words.table.name, "more": more})
            for of, d, verdict in words.about.effects[size]:
                name = "all of these, pooled" if of.endswith("kinds of angles") else of
                text = words.difference(d).partition(" [")[0] + words.unit
                found.setdefault(name, {})[len(places) - 1] = {"verdict": verdict, "text": text}
    rows = sorted(found, key=lambda name: name.endswith("pooled"))
    return {"columns": places, "rows": [(n, [found[n].get(at) for at in range(len(places))]) for n in rows]}


def _section(key: str, title: str, words: Wording) -> dict[str, Any]:
    table = words.table
    curves, curve_tables, shaded = _learning(key, words)
    places = Counter(_place(cell) for cell in table.cells if _place(cell))
    return {
        "key": key,
        "title": title,
        "sentences": words.sentences,
        "run": words.run,
        "caption": f"{table.metric.label}: {words.centre} [{words.interval}]",
        "results": columns.results(words),
        "csv": f"data:text/csv;charset=utf-8,{quote(columns.as_csv(words), errors='replace')}" if table.cells else "",
        "forests": _forests(key, words),
        "method": words.method,
        "pairs": columns.pairs(words),
        "growth": words.growth,
        "ratios": columns.ratios(words),
        "figures": [(name, drawn) for name, drawn in _figures(key, words) if drawn],
        "curves": curves,
        "curve_tables": curve_tables,
        "shaded": shaded,
        "notes": words.notes,
        "missing": table.missing,
        "planned": len(table.planned),
        "names": [(name, m) for m in words.about.models if (name := words.name(m)) != m],
        "places": list(places.items()),
        "commands": words.commands,
    }


def _forests(key: str, words: Wording) -> list[tuple[str, plots.Plot]]:
    found = words.about.comparisons
    drawn = []
    for index, (size, some) in enumerate(groupby(found, lambda one: one.size)):
        caption = (size or words.after(size)) if len(words.table.sizes) > 1 else ""
        drawn.append((caption, plots.forest(f"{key}-d{index}", words, list(some), found)))
    return drawn


def _figures(key: str, words: Wording) -> list[tuple[str, list[tuple[str, plots.Plot]]]]:
    by = "By length" if words.table.recipe.startswith("length") else "By size"
    return [
        (by, _over_sizes(key, words)),
        ("Loss by position", _by_position(key, words)),
        ("Compute multiplier", _multipliers(key, words)),
    ]


def _by_position(key: str, words: Wording) -> list[tuple[str, plots.Plot]]:
    """The loss of the same tokens by the number of preceding tokens, mean over seeds; one line per model."""
    series = []
    for index, model in enumerate(words.about.models):
        cells = [cell.facts("by_position") for cell in words.table.cells if cell.model == model]
        points: dict[float, list[float]] = {}
        for found in cells:
            kept = {int(n): x for n, x in found.items() if re.fullmatch("[0-9]{1,9}", n) and isinstance(x, list)}
            for length, losses in kept.items():
                for at, loss in enumerate(losses):
                    if (nats := finite(loss)) is not None and abs(nats) <= LARGEST:
                        before = length - min(kept) + (at + 0.5) * min(kept) / len(losses)
                        points.setdefault(before, []).append(nats)
        if points:
            x = sorted(points)
            series.append(plots.Series(words.name(model), _index(words, index), x, [fmean(points[at]) for at in x]))
    if not series or min(x for one in series for x in one.x) <= 0:
        return []
    told = "; ".join(f"{s.name}: {number(s.y[0])} at {s.x[0]:g}, {number(s.y[-1])} at {s.x[-1]:g}" for s in series)
    title = f"{words.heading}: loss by position"
    plot = plots.lines(f"{key}-positions", title, told, series, x_name="preceding tokens", x_log=True)
    return [("Nats per token by the number of preceding tokens, mean over seeds", plot)]


def _over_sizes(key: str, words: Wording) -> list[tuple[str, plots.Plot]]:
    """The metric over sizes that are numbers: "512", or "d = 8"."""
    table, series = words.table, []
    matched = [re.fullmatch(r"([^0-9]*)([0-9]{1,9})", size) for size in table.sizes]
    sizes = {size: int(found[2]) for size, found in zip(table.sizes, matched, strict=True) if found}
    prefixes = {found[1] for found in matched if found}
    if len(sizes) < 2 or len(sizes) < len(table.sizes) or len(prefixes) > 1 or min(sizes.values()) < 1:
        return []
    for index, model in enumerate(words.about.models):
        rows = sorted(
            ((sizes[row.size], row.ours) for row in words.about.rows if row.model == model and row.ours),
            key=lambda pair: pair[0],
        )
        if rows:
            bounds = [one.low for _, one in rows], [one.high for _, one in rows]
            x, y = [float(size) for size, _ in rows], [one.centre for _, one in rows]
            series.append(plots.Series(words.name(model), _index(words, index), x, y, *bounds))
    if len({x for one in series for x in one.x}) < 2:
        return []
    name = "length in tokens" if table.recipe.startswith("length") else prefixes.pop().strip(" =") or "size"
    told = (f"{s.name}: {', '.join(f'{number(y)} at {x:g}' for x, y in zip(s.x, s.y, strict=True))}" for s in series)
    plot = plots.lines(
        f"{key}-sizes", f"{words.heading}: {table.metric.label} over {name}", "; ".join(told), series, x_name=name,
        x_log=True, y_log=table.metric.log, points=True,
    )  # fmt: skip
    caption = f"{table.metric.label} over {name}; {words.centre}, bars as in the brackets above"
    return [(caption, plot)]


def _multipliers(key: str, words: Wording) -> list[tuple[str, plots.Plot]]:
    """The compute multiplier along the runs, for each size."""
    drawn = []
    for at, size in enumerate(words.table.sizes):
        series = []
        for index, model in enumerate(words.about.models):
            if model != words.table.baseline and len(found := words.about.multipliers(model, size)) > 1:
                steps, ratios = [float(step) for step, _ in found], [d for _, d in found]
                bounds = [d.low for d in ratios], [d.high for d in ratios]
                series.append(
                    plots.Series(words.name(model), _index(words, index), steps, [d.centre for d in ratios], *bounds)
                )
        if series:
            told = "; ".join(f"{s.name}: {s.y[-1]:.2f} × at step {s.x[-1]:g}" for s in series)
            late = [y for s in series for x, y in zip(s.x, s.y, strict=True) if x >= LATE * s.x[-1]]
            base = words.name(words.table.baseline)
            title = f"{words.heading}: how many times the steps {base} needs{' at ' + size if size else ''}"
            span = min(0.9, *late), max(1.1, *late)
            plot = plots.lines(f"{key}-m{at}", title, told, series, x_name="step", y_range=span, y_log=True)
            caption = f"Steps that {base} needs for the same loss, as a multiple{'; ' + size if size else ''}: {told}"
            drawn.append((caption, plot))
    return drawn


def _learning(key: str, words: Wording) -> tuple[list[tuple[str, plots.Plot]], list[tuple[str, Columns]], bool]:
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in words.table.cells:
        groups.setdefault(tuple(cell.measured), []).append(cell)
    held, figures, tables, shaded = words.about.held_out, [], [], False
    for index, (sizes, cells) in enumerate(groups.items()):
        size = sizes[0] if len(sizes) == 1 else ""
        for which, title in (("train_loss", "training loss"), (held, f"held-out {held.replace('_', ' ')}")):
            found = {
                model: curve
                for model in words.about.models
                if (curve := over_seeds([cell for cell in cells if cell.model == model], which)) is not None
            }
            if found:
                name = f"{size}: {title}" if size else title
                few = len(found) <= BANDS
                shaded |= few and any(curve.n > 1 for curve in found.values())
                figures.append((name, _curves(f"{key}-c{index}-{which == held:d}", words, name, found, few)))
                tables.append((f"{name}, mean over seeds", _curve_table(words, found)))
    return figures, tables, shaded


def _curves(key: str, words: Wording, name: str, found: dict[str, Curve], few: bool) -> plots.Plot:
    series = [
        plots.Series(
            words.name(model), _index(words, words.about.models.index(model)), curve.steps, curve.mean,
            *((curve.least, curve.most) if few and curve.n > 1 else ()),
        )
        for model, curve in found.items()
    ]  # fmt: skip
    last = max(curve.steps[-1] for curve in found.values())
    # A loss starts far above the range in which models differ: the plot shows that range.
    late = [
        y
        for c in found.values()
        for s, low, high in zip(c.steps, c.least, c.most, strict=True)
        if s >= LATE * last
        for y in (low, high)
    ]
    told = "; ".join(
        f"{words.name(model)}: {number(curve.mean[0])} at step {curve.steps[0]:g}, "
        f"{number(curve.mean[-1])} at step {curve.steps[-1]:g}"
        for model, curve in found.items()
    )
    title = f"{words.heading}: {name}"
    return plots.lines(key, title, told, series, x_name="step", y_range=(min(late), max(late)))


def _curve_table(words: Wording, found: dict[str, Curve], rows: int = 8) -> Columns:
    grid = min((curve.steps for curve in found.values()), key=len)
    chosen = [grid[round(i * (len(grid) - 1) / (rows - 1))] for i in range(rows)] if len(grid) > rows else grid
    means = [dict(zip(curve.steps, curve.mean, strict=True)) for curve in found.values()]
    body = [[f"{step:g}", *(number(mean.get(step)) for mean in means)] for step in chosen]
    return Columns(["step", *map(words.name, found)], [("", body)])


def _place(cell: Cell) -> str:
    machine, versions = cell.facts("machine"), cell.facts("versions")
    units = {"cores": "cores", "threads": "threads", "memory_gib": "GiB", "processes": "processes"}
    units |= {"shard": "(sharded)", "accumulate": "accumulation steps"}
    usual = {"processes": 1, "shard": False, "accumulate": 1}
    shown = {name: value for name, value in machine.items() if value is not None and value != usual.get(name)}
    told = [f"{value} {units[name]}" if name in units else str(value) for name, value in shown.items()]
    return ", ".join([*told, *(f"{name} {version}" for name, version in versions.items())])


def _index(words: Wording, index: int) -> int | None:
    """The colour index; None for the baseline, drawn in the text colour."""
    models, base = words.about.models, words.table.baseline
    return None if models[index] == base else index - (base in models[:index])
