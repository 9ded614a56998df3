"""Which words of the caption are wrong? An image and its caption, with the modality on an axis of its own.

    separate   A_word = R_seq^i,   A_cell = R_mod R_row^r R_col^c:      word → cell   R_mod⁻¹ A_image⁻¹ A_text
    shared     A_word = R_row^r R_col^c, that of the cell it names:     word → its own cell   R_mod⁻¹, for all alike

The image holds six different handwritten digits, 2 × 3, the caption six words; three of the words have changed places.
Only a comparison of each word with its own cell shows which: the words as a set always fit. (docs/claims.md row
47: the journey above is the corrected one.) One layer, 200 steps, unseen handwriting, every axis on all planes.

    OMP_NUM_THREADS=1 python examples/modalities.py --out modalities.png          about 20 seconds

Seen (three seeds, 6,000 words each):

    no positions                       50.1 %   (49.7 to 50.4)
    separate axes, scores (QK)         72.7 %   (70.1 to 76.5)
    separate axes, scores, values      93.4 %   (84.4 to 98.0)
    shared, no modality axis           99.3 %   (99.1 to 99.4)
    shared, modality axis              99.1 %   (98.9 to 99.2)

Shared coordinates are what counts. The modality axis itself adds nothing here: words and pixels have embeddings of
their own, which tell the modalities apart already. On separate axes value transport makes the journey easier to learn.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import BLUE, GREY, ORANGE, arguments, bars, fit, keep, line, sheet
from joformer import FixedFrames, JourneyAttention, NoFrames, positions
from joformer.frames import FramesModule
from joformer.models import initialise
from joformer.training import load_images
from joformer.training.data import Labelled

ROWS, COLUMNS = 2, 3
CELLS = ROWS * COLUMNS
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GRID = positions.grid(ROWS, COLUMNS)
SEPARATE = positions.joint(positions.sequence(CELLS), GRID)  # modality, word, row, column
# Two parts of a joint on the same axes: the words' own axis gives way to the rows and columns of what they name.
SHARED = torch.cat((SEPARATE[:, :1], GRID.repeat(2, 1)), 1)  # modality, row, column
SEVERAL = {
    "no positions": (SEPARATE, "none"),
    "separate axes, scores (QK)": (SEPARATE, "scores"),
    "separate axes, scores, values": (SEPARATE, "both"),
    "shared, no modality axis": (SHARED[:, 1:], "both"),
    "shared, modality axis": (SHARED, "both"),
}


class Reader(nn.Module):
    """Words and cells in one attention; for each word, how wrong it looks."""

    def __init__(self, where: Tensor, transport: str, dim: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.where, fixed = where, FixedFrames(dim // heads, axes=where.shape[1], split="combined", base=10.0)
        self.frames: FramesModule = NoFrames(where.shape[1]) if transport == "none" else fixed
        self.word, self.cell = nn.Embedding(10, dim), nn.Linear(64, dim)
        self.attention = JourneyAttention(dim, heads, transport=transport, bias=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.compare = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 1))

    def forward(self, words: Tensor, cells: Tensor) -> Tensor:
        x = torch.cat((self.word(words), self.cell(cells)), 1)
        x = x + self.attention(self.norm1(x), self.frames(self.where))
        return self.compare(self.norm2(x[:, :CELLS])).squeeze(-1)


def pages(digits: Labelled, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Words (count, 6), cells (count, 6, 64), and which words are wrong: three of six, exchanged cyclically."""
    names = torch.rand(count, 10, generator=generator).argsort(1)[:, :CELLS]
    order, counts = digits.labels.argsort(stable=True), digits.labels.bincount(minlength=10)
    rank = (torch.rand(count, CELLS, generator=generator) * counts[names]).long()  # any image of this digit
    pick = order[(counts.cumsum(0) - counts)[names] + rank]
    swapped = torch.rand(count, CELLS, generator=generator).argsort(1)[:, : CELLS // 2]
    words = names.scatter(1, swapped, names.gather(1, swapped.roll(1, 1)))
    cells = digits.images[pick, 0].flatten(2).float() / 127.5 - 0.6
    return words, cells, torch.zeros(count, CELLS).scatter(1, swapped, 1.0)


def main() -> None:
    given = arguments(__doc__, __file__)
    digits, steps, batch = load_images("digits"), 200, 64
    accuracy = {name: [] for name in SEVERAL}
    looks = {name: torch.zeros(CELLS, CELLS) for name in SEVERAL}
    for seed in range(given.seed, given.seed + given.seeds):
        generator = torch.Generator().manual_seed(seed)
        train = [part.split(batch) for part in pages(digits.train, 50 * batch, generator)]
        words, cells, wrong = pages(digits.test, 1000, generator)
        for name, (where, transport) in SEVERAL.items():
            model = initialise(Reader(where, transport), seed)

            def loss(step: int, model: nn.Module = model, train: list = train) -> Tensor:
                some_words, some_cells, targets = (part[step % len(part)] for part in train)
                return F.binary_cross_entropy_with_logits(model(some_words, some_cells), targets)

            fit(model, loss, steps=steps, lr=6e-3)
            with torch.no_grad():
                accuracy[name].append(100 * ((model(words, cells) > 0) == wrong.bool()).float().mean().item())
            some = cells[:100].clone().requires_grad_()
            answer = model(words[:100], some)
            for word in range(CELLS):  # which pixels the answer about a word depends on
                (slope,) = torch.autograd.grad(answer[:, word].sum(), some, retain_graph=True)
                looks[name][word] += slope.norm(dim=-1).mean(0)
    print("is this word of the caption in its place, % right (chance 50):")
    for name, values in accuracy.items():
        line(name, values)
    picture(words[0], cells[0], wrong[0], accuracy, looks, given.out)


def picture(words: Tensor, cells: Tensor, wrong: Tensor, accuracy: dict, looks: dict, out) -> None:
    figure = sheet(10.5, 5.4)
    above, below = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    page, score = above.subfigures(1, 2, width_ratios=(1, 1.6))
    page.suptitle("an image and its caption; wrong words in orange", fontsize=9)
    for cell, axes in enumerate(page.subplots(ROWS, COLUMNS).flat):
        axes.imshow(cells[cell].view(8, 8).numpy(), cmap="Greys")
        axes.set_xlabel(WORDS[words[cell]], color=ORANGE if wrong[cell] else "black", fontsize=10, weight="bold")
        axes.set_xticks([])
        axes.set_yticks([])
    axes = score.subplots()
    bars(axes, accuracy, [GREY, ORANGE, BLUE, BLUE, BLUE], chance=50.0)
    axes.set_title("% of words judged rightly; dots: seeds", fontsize=9)
    below.suptitle("which cell (across) the judgement of a word (down) depends on: mean slope", fontsize=9)
    for axes, (name, slopes) in zip(below.subplots(1, len(looks)), looks.items(), strict=True):
        axes.imshow((slopes / slopes.sum(1, keepdim=True)).numpy(), cmap="Blues", vmin=0, vmax=0.8, aspect="auto")
        axes.set_title(name, fontsize=7.5)
        axes.set_xticks(range(CELLS), range(1, CELLS + 1), fontsize=7)
        axes.set_yticks(range(CELLS), range(1, CELLS + 1), fontsize=7)
    keep(figure, out)


if __name__ == "__main__":
    main()
