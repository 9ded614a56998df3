"""Which way do handwritten digits move? Video on three axes: row × column × time.

    A = R_row^r R_col^c R_time^t,      c_i = A_i⁻¹ Σ_j α_ij A_j v_j,      each axis on planes of its own (axial)

A digit crosses a field of 16 × 16 in 3 moments, 3 pixels a moment, in one of 8 directions. Where it is half-way says
nothing about the direction, so that a model which knows rows and columns but not when can find the axis of the motion
and never its sense: 50 % is the best it can do. One layer, 100 steps, digits of unseen handwriting.

    OMP_NUM_THREADS=1 python examples/video.py --out video.png          about 15 seconds

Seen (three seeds, 300 films each):

    no positions                               16.8 %   (11.0 to 26.0)
    row, column; no time                       48.7 %   (41.0 to 53.7)
    row, column, time: scores (QK)             30.8 %   (21.3 to 42.7)
    row, column, time: scores, values (QKV)    98.6 %   (97.0 to 100.0)

Travelling values learn this sooner, not better: after 500 steps scores alone have 99.7 % too (two seeds), and without
time it is still 54 and 47 %.
"""

import torch

from common import BLUE, GREY, ORANGE, arguments, bars, fit, keep, line, sheet
from joformer import FixedFrames
from joformer.models import JoFormerViT, ViTConfig, initialise
from joformer.training import Images, ImageTask, load_images
from joformer.training.data import Labelled

FIELD, MOMENTS, SPEED, DIGIT = 16, 3, 3, 8
ARROWS = "↑↗→↘↓↙←↖"
DIRECTIONS = torch.tensor([(-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)])
NONE, TIMELESS, SCORES, BOTH = (
    "no positions",
    "row, column; no time",
    "row, column, time: scores (QK)",
    "row, column, time: scores, values (QKV)",
)


class Timeless(FixedFrames):
    """Frames of the row and the column alone: every moment counts as moment 0."""

    def forward(self, positions, x=None, **context):
        return super().forward(positions * torch.tensor([1, 1, 0]), x, **context)


def films(digits: Labelled, count: int, generator: torch.Generator) -> Labelled:
    """(count, 1, row, column, time): the place half-way is uniform, whatever the direction."""
    chosen = digits.images[torch.randint(len(digits), (count,), generator=generator), 0]
    labels = torch.randint(8, (count,), generator=generator)
    reach = SPEED * (MOMENTS // 2)
    middle = torch.randint(reach, FIELD - DIGIT - reach + 1, (count, 1, 2), generator=generator)
    when = torch.arange(MOMENTS) - MOMENTS // 2
    place = middle + SPEED * DIRECTIONS[labels][:, None] * when[:, None]  # (count, time, 2)
    video = torch.zeros(count, FIELD, FIELD, MOMENTS, dtype=torch.uint8)
    within = torch.arange(DIGIT)
    rows, columns = place[..., 0, None, None] + within[:, None], place[..., 1, None, None] + within
    film = torch.arange(count)[:, None, None, None]
    video[film, rows, columns, torch.arange(MOMENTS)[:, None, None]] = chosen[:, None]
    return Labelled(video[:, None], labels)


def model(name: str, seed: int) -> JoFormerViT:
    """All four start with the same weights."""
    config = ViTConfig(
        model={NONE: "none", SCORES: "rope2d"}.get(name, "joformer_old"),  # fixed angles; QK or QKV, on any axes
        shape=(FIELD, FIELD, MOMENTS), patch=(4, 4, 1), channels=1, classes=8,
        dim=48, layers=1, heads=4, pool="mean",
    )  # fmt: skip
    made = initialise(JoFormerViT(config), seed)
    if name == TIMELESS:
        made.frames = Timeless(config.dim // config.heads, axes=3, base=config.base)
    return made


def main() -> None:
    given = arguments(__doc__, __file__)
    digits = load_images("digits")
    accuracy = {name: [] for name in (NONE, TIMELESS, SCORES, BOTH)}
    confusion = {name: torch.zeros(8, 8) for name in accuracy}
    for seed in range(given.seed, given.seed + given.seeds):
        generator = torch.Generator().manual_seed(seed)
        data = Images(
            films(digits.train, 1500, generator), films(digits.test, 300, generator), tuple(ARROWS), f"films {seed}"
        )
        task, truth = ImageTask(data, batch=32), data.test.labels
        pixels = (data.test.images / 255 - data.mean.float()) / data.std.float()
        for name, right in accuracy.items():
            made = model(name, seed)
            fit(made, lambda step, m=made, s=seed, t=task: t.loss(m, t.batch(s, step, 0, 1)), steps=100, lr=8e-3)
            with torch.no_grad():
                predicted = made(pixels).argmax(-1)
            right.append(100 * (predicted == truth).float().mean().item())
            confusion[name].index_put_((truth, predicted), torch.ones(len(predicted)), accumulate=True)
    print("which of 8 directions, % right (chance 12.5):")
    for name, values in accuracy.items():
        line(name, values)
    picture(data.test, accuracy, confusion, given.out)


def picture(test: Labelled, accuracy: dict, confusion: dict, out) -> None:
    figure = sheet(10.5, 6.2)
    above, below = figure.subfigures(2, 1, height_ratios=(1.15, 1))
    shown, score = above.subfigures(1, 2, width_ratios=(1, 1.5))
    shown.suptitle("three films: 3 moments, then the direction", fontsize=9)
    for row, label in enumerate((1, 4, 6)):
        film = test.images[(test.labels == label).nonzero()[0, 0], 0]
        for moment in range(MOMENTS):
            axes = shown.add_subplot(3, MOMENTS + 1, row * (MOMENTS + 1) + moment + 1, xticks=[], yticks=[])
            axes.imshow(film[..., moment].numpy(), cmap="Greys")
        axes = shown.add_subplot(3, MOMENTS + 1, (row + 1) * (MOMENTS + 1))
        axes.axis("off")
        axes.text(0.5, 0.5, ARROWS[label], fontsize=26, ha="center", va="center")
    axes = score.subplots()
    bars(axes, accuracy, [GREY, GREY, ORANGE, BLUE], chance=12.5)
    axes.set_title("% of films whose direction is found; dots: seeds", fontsize=9)
    below.suptitle("what is taken for what (rows: the truth, columns: the answer)", fontsize=9)
    for axes, (name, counts) in zip(below.subplots(1, 4), confusion.items(), strict=True):
        axes.imshow((counts / counts.sum(1, keepdim=True)).numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(name, fontsize=8)
        axes.set_xticks(range(8), ARROWS)
        axes.set_yticks(range(8), ARROWS)
    keep(figure, out)


if __name__ == "__main__":
    main()
