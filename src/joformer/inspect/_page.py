"""The findings as one self-contained HTML page: the answer first, figures below, details folded.

inspect.html is the template; style and line plots come from the report (joformer.experiments.report).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from joformer.experiments.report import plots
from joformer.experiments.report.columns import Columns
from joformer.experiments.report.numbers import number
from joformer.experiments.report.template import render
from joformer.inspect import _figures as figures
from joformer.inspect._findings import Findings, digits_of, interval
from joformer.inspect._frames_page import angles_section, frequencies_section, kernels_section
from joformer.inspect._layers import number_of
from joformer.inspect._layout import figure, image, section, tokens

ROWS = 16
"""Maximum number of heads whose rotations are shown."""


def html(found: Findings) -> str:
    """The whole page."""
    subject = found.subject
    made = (_use(found), frequencies_section(found), kernels_section(found), angles_section(found), _journey(found))
    template = Path(__file__).with_name("inspect.html")
    return render(
        template, name=subject.name, answer=found.answer, facts=subject.facts, remarks=found.remarks,
        sections=[one for one in made if one is not None],
    )  # fmt: skip


def _use(found: Findings) -> Any:
    use, unit = found.use, found.subject.unit
    if use is None or use.whole is None:
        return None
    names = [f"layer {number_of(name, at)}" for at, name in enumerate(use.names)]
    rows: list[list[float | None]] = [
        [one.change.centre for one in use.heads if one.off[0][0] == at] for at in range(len(names))
    ]
    told = "; ".join(
        f"{name}: {', '.join(number(value) for value in row)}" for name, row in zip(names, rows, strict=True)
    )
    by_head = figures.table(
        "use-heads", f"Change of the loss without value transport, {unit}", told, rows, rows=names, columns="head",
        digits=digits_of([value for row in rows for value in row if value is not None]),
    )  # fmt: skip
    effects = [*zip(names, use.layers, strict=True), ("all layers", use.whole)]
    wholes = [(name, one, one.change) for name, one in effects]
    digits = digits_of([change.centre for _, _, change in wholes])
    intervals = plots.intervals(
        "use-layers", f"Change of the loss with whole layers switched off, {unit}",
        "; ".join(f"{name}: {interval(change)}" for name, _, change in wholes),
        [plots.Row(name, number(x.centre, digits), one.used, x.centre, x.low, x.high) for name, one, x in wholes],
        null=0.0, among=[bound for _, _, x in wholes for bound in (x.low, x.high, x.centre) if bound is not None],
        sides=("better without", "worse without"),
    )  # fmt: skip
    last = max(use.heads, key=lambda one: one.change.centre)
    at, head = last.off[0]
    sentences = [
        f"The loss rises most without head {head} of {names[at]}: {interval(last.change)} {unit}. "
        f"{sum(one.used for one in use.heads)} of {len(use.heads)} heads are used: switching any of them off raises "
        f"the loss, with a 95 % interval over {use.loss.n} held-out samples that excludes zero."
    ]
    body = [[names[one.off[0][0]], str(one.off[0][1]), interval(one.change)] for one in use.heads]
    drawn = [
        figure("cells", f"Change of the loss with one head switched off, {unit}", by_head),
        figure("intervals", f"Change with whole layers switched off, {unit}, 95 % interval over samples", intervals),
    ]
    return section(
        "values", "Which heads use value transport", sentences, drawn,
        "A head as trained computes A_i⁻¹ Σ_j α_ij A_j v_j; switched off, it computes Σ_j α_ij v_j with the same "
        "weights α. This shows what the trained model relies on. A model trained without transport would have learned "
        "something else: only a comparison (joformer compare) shows what it would lose. Intervals are over samples, "
        "not over seeds. Heads are key/value heads; query heads that share one are switched off with it.",
        tables=[("Every head as numbers", Columns(["value", "head", "difference"], [("", body)]))],
    )  # fmt: skip


def _journey(found: Findings) -> Any:
    subject, source, target = found.subject, found.source, found.target
    if not found.travels:
        return None
    names = [f"layer {one.layer}" for one in found.travels]
    weights: list[list[float | None]] = [one.weights.tolist() for one in found.travels]
    told = "; ".join(
        f"{name}: {', '.join(number(w, 3) for w in row)}" for name, row in zip(names, weights, strict=True)
    )
    plot = figures.table("journey-weights", "Weights of the journey", told, weights, rows=names, columns="head")
    drawn = [figure("cells", "Attention weight of the source, by layer and head", plot)]
    if rows := _rotations(found):
        shown = "; ".join(f"{name}: {', '.join(number(a, 2) for a in row[: figures.DIALS])}" for name, row in rows)
        plot = figures.dials("journey-angles", "Angles of the journey", shown, rows)
        caption = "the same in all heads" if len(rows) == 1 else "by layer · head"
        drawn.append(figure("dials", f"The rotation travelled, {caption}", plot))
    for at, one in enumerate(found.travels):
        mean = one.row.float().mean(0)
        full = number(mean.max().item(), 2)
        caption = f"Layer {one.layer}: what the target attends to, mean over heads; full colour is {full}"
        if subject.grid is None:
            shade = tokens(found, mean, caption, mean.max().item(), marks=(source, target))
            drawn.append(figure("tokens", caption, shade, True))
        else:
            drawn.append(
                figure("cells", caption, image(f"looks-{at}", caption, found, mean.tolist(), mean.max().item()))
            )
    best = max(found.travels, key=lambda one: one.weights.max().item())
    first, last = (f"“{subject.labels[one]}” (token {one})" for one in (source, target))
    sentence = (
        f"From {first} to {last} the largest weight is {number(best.weights.max().item(), 3)}, in head "
        f"{int(best.weights.argmax())} of layer {best.layer}."
    )
    strengths = {one.strength for one in found.travels}
    values = "Values are rotated only in some layers, or by a part of these angles."
    if len(strengths) == 1:
        known = {1.0: "Values are rotated by the same angles.", 0.0: "Values are not rotated on the way."}
        values = known.get(strengths.pop(), values)
    return section(
        "journey", "A journey between two tokens", [sentence, values], drawn,
        "The query of the target t reads the key and value of the source s: what arrives is α_ts R(θ_s − θ_t) v_s. The "
        "table holds α; a dial shows θ_s − θ_t of one plane, anticlockwise from three o'clock, which is no rotation. "
        "Choose other tokens with --tokens SOURCE TARGET, counted from 0; in an image the class token comes first.",
    )  # fmt: skip


def _rotations(found: Findings) -> list[tuple[str, Sequence[float]]]:
    """The angles of the journey by layer and head; one row if all are the same."""
    named = [
        (f"{one.layer} · {head}", row)
        for one in found.travels
        if one.angles is not None and one.angles.shape[1]
        for head, row in enumerate(one.angles)
    ]
    if named and all(row.shape == named[0][1].shape and torch.allclose(row, named[0][1]) for _, row in named):
        named = [("all", named[0][1])]
    return [(name, row.tolist()) for name, row in named[:ROWS]]
