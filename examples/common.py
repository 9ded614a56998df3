"""Shared by the examples: the command line, a short training loop, one line of results, saving the figure."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from joformer.training import Stage, learning_rate

GREY, ORANGE, BLUE = "#9a9a9a", "#e39a2d", "#2f6fb0"


def arguments(doc: str, script: str, **more: int | float | str) -> argparse.Namespace:
    """Parses --seed, --seeds, --out and `more`; reports an unwritable --out before the work, not after."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds every number is the mean of (default: 3)")
    out = Path(script).with_suffix(".png").name
    parser.add_argument("--out", type=Path, default=Path(out), help=f"where the picture goes (default: {out})")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"(default: {default})")
    given = parser.parse_args()
    folder = given.out.parent
    wrong = None
    if given.seed < 0 or given.seeds < 1:
        wrong = f"--seed {given.seed} --seeds {given.seeds}: give 0 or more for the first, 1 or more for how many"
    elif not folder.is_dir():
        wrong = f"the folder {folder} of --out does not exist: make it first"
    elif given.out.is_dir() or not os.access(given.out if given.out.exists() else folder, os.W_OK):
        wrong = f"cannot write to {given.out}: give --out a file that can be written"
    elif given.out.suffix.lower() != ".png":
        wrong = f"{given.out.name} is no PNG: give --out a name that ends in .png"
    if wrong:
        print(f"{Path(script).name}: {wrong}", file=sys.stderr)
        raise SystemExit(2)
    torch.set_num_threads(1)  # fastest for models this small, and the last bits depend on it
    return given


def fit(model: nn.Module, loss: Callable[[int], Tensor], *, steps: int, lr: float) -> nn.Module:
    """AdamW with a cosine schedule on loss(step). For anything longer than a second, use `joformer.training.train`."""
    optimiser = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.05)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = learning_rate(Stage(steps, lr), step, warmup=20, end=0.05)
        optimiser.zero_grad()
        loss(step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def line(name: str, percent: list[float]) -> None:
    """Prints one line of results: the mean and the range over seeds."""
    mean = sum(percent) / len(percent)
    print(f"{name:<42}{mean:6.1f} %   ({min(percent):.1f} to {max(percent):.1f}, {len(percent)} seeds)", flush=True)


def bars(axes, percent: dict[str, list[float]], colours: list[str], chance: float | None = None) -> None:
    """Draws each mean as a bar, every seed as a dot, chance as a line."""
    for row, (values, colour) in enumerate(zip(percent.values(), colours, strict=True)):
        mean = sum(values) / len(values)
        axes.barh(row, mean, color=colour, height=0.65)
        axes.plot(values, [row] * len(values), "o", color="black", markersize=3.5)
        if max(values) > 85:
            axes.text(min(values) - 2, row, f"{mean:.1f} %", va="center", ha="right", fontsize=9, color="white")
        else:
            axes.text(max(values) + 2, row, f"{mean:.1f} %", va="center", fontsize=9)
    axes.set_yticks(range(len(percent)), list(percent))
    axes.invert_yaxis()
    axes.set_xlim(0, 103)
    axes.spines[["top", "right"]].set_visible(False)
    if chance is not None:
        axes.axvline(chance, color="black", linestyle=":", linewidth=1)
        axes.set_xlabel(f"dotted: chance, {chance:g} %", fontsize=8)


def sheet(width: float, height: float):
    """An empty figure, without a window or global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def keep(figure, out: Path) -> None:
    """Saves the figure; a full disk gives a one-line error."""
    try:
        figure.savefig(out, dpi=130)
    except OSError as error:
        print(f"cannot write {out}: {error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"the picture is {out}")
