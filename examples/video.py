"""Moving digits: which way do they move, and what comes next? Video on three axes: row × column × time.

    A = R_row^r R_col^c R_time^t,      c_i = A_i⁻¹ Σ_j α_ij A_j v_j,      each axis on its own planes (axial)

Clips of 16 × 16 pixels, made from scikit-learn's digits (`load_clips`). Which way: one of two digits moves, in one of 8
directions, for 3 pictures; a model with rows and columns but no time can find the axis of the motion but never its
sense: 50 % is the best without time. What comes next: both digits move and bounce; each of 5 pictures is predicted from
those before it, and the printed number is how much smaller the error is than that of repeating the last one (one seed).
`joformer train video` does the same at any size.

    OMP_NUM_THREADS=1 python examples/video.py --out video.png          about 50 seconds

Results (three seeds, one for the next picture; 500 clips of unseen handwriting):

    no positions                               17.7 %   (17.4 to 18.0)
    row, column; no time                       33.1 %   (30.4 to 37.2)
    row, column, time: scores (QK)             30.9 %   (24.8 to 34.0)
    row, column, time: scores, values (QKV)    85.8 %   (81.4 to 92.0)
    next picture: scores (QK)                  26.8 %
    next picture: scores, values (QKV)         27.3 %

Transported values find the direction sooner. For the next picture, all models first learn where light stays, and differ
little.
"""

import torch
from torch import nn

from common import BLUE, GREY, ORANGE, arguments, bars, fit, keep, line, sheet
from joformer import FixedFrames
from joformer.models import VideoConfig, initialise
from joformer.training import Clips, Processes, VideoTask, load_clips

NONE, TIMELESS, SCORES, BOTH = (
    "no positions",
    "row, column; no time",
    "row, column, time: scores (QK)",
    "row, column, time: scores, values (QKV)",
)
NEXT = {SCORES: "next picture: scores (QK)", BOTH: "next picture: scores, values (QKV)"}
VARIANT = {NONE: "none", TIMELESS: "joformer_old", SCORES: "rope2d", BOTH: "joformer_old"}  # fixed angles on any axes


class Timeless(FixedFrames):
    """Frames from row and column alone: every picture is treated as the first."""

    def forward(self, positions, x=None, **context):
        return super().forward(positions * torch.tensor([1, 1, 0]), x, **context)


def trained(name: str, clips: Clips, question: str, seed: int, **how: int) -> tuple[nn.Module, VideoTask]:
    """Trains one model; for each seed, all start from the same weights and see the same clips."""
    config = VideoConfig(
        model=VARIANT[name], shape=clips.train.images.shape[2:], patch=(4, 4, 1), classes=8, dim=48, heads=4,
        layers=how["layers"], question=question,
    )  # fmt: skip
    made, task = initialise(config.build(), seed), VideoTask(clips, question=question, batch=how["batch"])
    if name == TIMELESS:
        made.frames = Timeless(config.dim // config.heads, axes=3, base=config.base)
    return fit(made, lambda step: task.loss(made, task.batch(seed, step, 0, 1)), steps=how["steps"], lr=8e-3), task


def main() -> None:
    given = arguments(__doc__, __file__)
    ways, films = load_clips("moving", question="class", length=3), load_clips("moving")
    right, better, ahead = {name: [] for name in VARIANT}, {}, {}
    for seed in range(given.seed, given.seed + given.seeds):
        for name, values in right.items():
            made, task = trained(name, ways, "class", seed, layers=1, batch=32, steps=120)
            values.append(task.evaluate(made, Processes())["accuracy"])
    for name, shown in NEXT.items():
        made, task = trained(name, films, "next", given.seed, layers=2, batch=16, steps=150)
        found = task.evaluate(made, Processes())
        better[shown] = [100 * (1 - found["picture_error"] / found["copy_error"])]
        with torch.no_grad():
            mean, std = films.mean.float(), films.std.float()
            ahead[name] = made((films.test.images[:4] / 255 - mean) / std)
    print("which of 8 directions, % right (chance 12.5); the next picture, % less wrong than the last one again:")
    for name, values in (right | better).items():
        line(name, values)
    picture(ways, films, right, ahead, given.out)


def picture(ways: Clips, films: Clips, right: dict, ahead: dict, out) -> None:
    figure = sheet(11, 5.4)
    above, below = figure.subfigures(2, 1, height_ratios=(1.5, 1))
    shown, score = above.subfigures(1, 2, width_ratios=(1, 1.6))
    shown.suptitle("one of two digits moves: which way?", fontsize=9)
    for row, label in enumerate((1, 4, 6)):
        clip = ways.test.images[(ways.test.labels == label).nonzero()[0, 0], 0]
        for time in range(3):
            axes = shown.add_subplot(3, 4, row * 4 + time + 1, xticks=[], yticks=[])
            axes.imshow(clip[..., time].numpy(), cmap="magma", vmin=0, vmax=255)
        axes = shown.add_subplot(3, 4, (row + 1) * 4)
        axes.axis("off")
        axes.text(0.5, 0.5, "↑↗→↘↓↙←↖"[label], fontsize=20, ha="center", va="center")
    axes = score.subplots()
    bars(axes, right, [GREY, GREY, ORANGE, BLUE], chance=12.5)
    axes.set_title("% of clips whose direction is found; dots: seeds", fontsize=9)
    below.suptitle("what comes next: pictures 2 to 6 as they are, and as predicted from those before each", fontsize=9)
    rows = {"the truth": films.test.images[:4] / 255, "scores": ahead[SCORES], "and values": ahead[BOTH]}
    for row, (name, pixels) in enumerate(rows.items()):
        for clip in range(4):
            strip = pixels[clip, 0, :, :, 1:] if row == 0 else pixels[clip, 0, :, :, :-1]
            axes = below.add_subplot(3, 4, row * 4 + clip + 1, xticks=[], yticks=[])
            side_by_side = nn.functional.pad(strip, (0, 0, 0, 1), value=0.5).permute(0, 2, 1).flatten(1)
            axes.imshow(side_by_side.numpy(), cmap="magma", vmin=0, vmax=1)
            if clip == 0:
                axes.set_ylabel(name, fontsize=8)
    keep(figure, out)


if __name__ == "__main__":
    main()
