"""The sections of the page about frames: frequencies, displacement kernels, angles from content."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from joformer.experiments.report import plots
from joformer.experiments.report.numbers import number
from joformer.inspect import _figures as figures
from joformer.inspect._attention import Kernel
from joformer.inspect._findings import Findings
from joformer.inspect._frames import Frequencies
from joformer.inspect._layers import number_of
from joformer.inspect._layout import HEADS, figure, grid_of, image, lists, section, tokens


def frequencies_section(found: Findings) -> Any:
    """ω by plane: next to its initial value if learned; each spectrum once if fixed."""
    drawn, several, seen = [], len(found.frequencies) > 1, list[Tensor]()
    for at, one in enumerate(found.frequencies):
        axes, layers = one.now.shape[:2]
        for layer in range(layers):
            for axis in range(axes):
                spectrum = one.now[axis, layer]
                if not one.learned and any(torch.equal(spectrum, other) for other in seen):
                    continue
                seen.append(spectrum)
                place = number_of(one.name, at) if several else layer
                name = f"layer {place}" if one.learned and (several or layers > 1) else "all layers"
                name += f", axis {axis}" if axes > 1 and one.learned else ""
                drawn.append(_spectrum(f"omega-{at}-{layer}-{axis}", name, one, axis, layer))
    if not drawn:
        return None
    learned = any(one.learned for one in found.frequencies)
    return section(
        "frequencies", "Frequencies against their start" if learned else "Frequencies", found.of_frequencies, drawn,
        "A step along an axis rotates plane p by ω_p radians: large ω separates nearby tokens, small ω distant ones "
        "(one turn takes 2π/ω steps). The start is the spectrum at the beginning of training: a line above it rotates "
        "faster. Frequencies that changed sign are drawn by absolute value; the smallest may lie outside the plot.",
    )  # fmt: skip


def _spectrum(key: str, name: str, one: Frequencies, axis: int, layer: int) -> dict[str, Any]:
    start, now = one.start[axis, layer, 0].abs(), one.now[axis, layer].abs()
    x = [float(plane) for plane in range(len(start))]
    series = [plots.Series("start", None, x, start.tolist())] if one.learned else []
    if len(now) > HEADS:
        shown = [("least", now.min(0).values), ("median", now.median(0).values), ("most", now.max(0).values)]
    elif len(now) > 1:
        shown = [(f"head {head}", row) for head, row in enumerate(now)]
    else:
        shown = [("learned" if one.learned else "all heads", now[0])]
    log = bool((start > 0).all())
    least = start.min().item() / 3
    shown = [(label, row.clamp(min=least / 100) if log else row) for label, row in shown]
    series += [plots.Series(label, index, x, row.tolist()) for index, (label, row) in enumerate(shown)]
    told = "; ".join(f"{s.name}: {number(s.y[0])} to {number(s.y[-1])}" for s in series)
    span = (least, 1.2 * max(start.max().item(), now.max().item())) if log else None
    plot = plots.lines(
        key, f"ω by plane, {name}", told, series, x_name="plane", y_log=log, y_range=span, x_whole=True
    )  # fmt: skip
    return figure("lines", f"|ω| in radians per step, {name}{', logarithmic' if log else ''}", plot)


def angles_section(found: Findings) -> Any:
    """How far content rotates each token, over the text or the image."""
    subject, drawn = found.subject, []
    if not found.angles:
        return None
    sizes = [one.content[0].square().mean(-1).sqrt() for one in found.angles]  # (tokens, heads)
    most = max(size.max().item() for size in sizes) or 1.0
    if subject.grid is not None:
        drawn.append(
            figure(
                "cells", "The image, patch by patch", image("picture", "The image", found, subject.picture, look="base")
            )
        )
    for at, (one, size) in enumerate(zip(found.angles, sizes, strict=True)):
        told = f"layer {one.layer}: {number(size.min().item())} to {number(size.max().item())} radians"
        if subject.grid is None:
            plot = tokens(found, size.mean(-1), told, most, unit=" rad")
            drawn.append(
                figure("tokens", f"Layer {one.layer}, mean over heads; full colour is {number(most)} rad", plot, True)
            )
        maps = [(f"head {head}", grid_of(found, size[:, head])) for head in range(size.shape[1])]
        if subject.grid is not None:
            plot = figures.panels(f"angles-{at}", f"Content angles of layer {one.layer}", told, maps, most=most)
            drawn.append(figure("cells", f"Layer {one.layer}; full colour is {number(most)} rad", plot))
    return section(
        "angles", "Angles from content", found.of_content, drawn,
        "Frames that depend on content rotate token t by ω·n_t + φ_t. The colour is the size of φ_t in radians, the "
        "root mean square over the planes of a head: how far content alone rotates the token. Journeys depend only on "
        "differences of φ between tokens: an even colour may mean no difference. Angles are known only modulo 2π, so "
        "none exceeds π.",
    )  # fmt: skip


def kernels_section(found: Findings) -> Any:
    """κ(Δ) of each head: lines over a text, maps over an image."""
    drawn = [figure for at, one in enumerate(found.kernels) for figure in _kernel(f"kernel-{at}", one)]
    if not drawn:
        return None
    spans = torch.stack(
        [(v.nan_to_num(-1e30).amax() - v.nan_to_num(1e30).amin()) for k in found.kernels for v in k.values]
    )
    where = [(k.layer, head) for k in found.kernels for head in range(len(k.values))]
    layer, head = where[int(spans.argmax())]
    sentence = (
        f"Displacement alone changes the scores of a head by {number(spans.min().item(), 2)} to "
        f"{number(spans.max().item(), 2)}, most in head {head} of layer {layer}."
    )
    return section(
        "kernels", "What displacement does to a score", [sentence], drawn,
        "κ(Δ) is the mean score of a query and a key drawn independently from the held-out data and placed Δ apart, "
        "where Δ is the key's position minus the query's: κ_h(Δ) = scale · Σ_p Re(q̄*_p k̄_p ρ_p(Δ)), with means q̄ and "
        "k̄ over tokens and ρ_p(Δ) the mean rotation of a journey over Δ. A peak shows which displacement a head "
        "prefers regardless of content; a flat line, that it chooses by content alone. Only differences matter to "
        "the softmax: a score higher by 1 has 2.7 times the weight.",
    )  # fmt: skip


def _kernel(key: str, one: Kernel) -> list[dict[str, Any]]:
    steps, values = one.displacements, one.values
    title = f"Displacement kernels of layer {one.layer}"
    told = "; ".join(
        f"head {head}: {number(v.nan_to_num(1e30).amin().item())} to {number(v.nan_to_num(-1e30).amax().item())}"
        for head, v in enumerate(values)
    )
    if len(steps) == 1 and len(values) <= HEADS:
        x = [float(step) for step in steps[0]]
        series = [plots.Series(f"head {head}", head, x, row.tolist()) for head, row in enumerate(values)]
        plot = plots.lines(key, title, told, series, x_name="Δ, key − query")
        return [figure("lines", f"Layer {one.layer}: κ(Δ)", plot)]
    centred = values - values.flatten(1).nanmean(1).view(-1, *[1] * (values.dim() - 1))
    if len(steps) == 1:
        most = number(centred.abs().nan_to_num(0.0).max().item())
        plot = figures.table(
            key, title, told, lists(centred), rows=[f"head {h}" for h in range(len(values))], columns="Δ"
        )
        plot["names"] = [{"x": figures.LEFT, "y": figures.TITLE - 5, "text": f"Δ from {steps[0][0]} to {steps[0][-1]}"}]
        return [figure("cells", f"Layer {one.layer}: κ(Δ) minus its mean; full colour is {most}", plot)]
    while centred.dim() > 3:  # further axes at displacement zero
        centred = centred.select(-1, centred.shape[-1] // 2)
    maps = [(f"head {head}", lists(row)) for head, row in enumerate(centred)]
    most = number(centred.abs().nan_to_num(0.0).max().item())
    middle = centred[0].numel() // 2
    plot = figures.panels(key, title, told, maps, marks=[middle])
    return [figure("cells", f"Layer {one.layer}: κ(Δ) minus its mean; full colour is {most}; the ring is Δ = 0", plot)]
