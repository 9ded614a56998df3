"""Where does this scrap lie on that page? Two vectors, and the shift that aligns them best.

    E(x) = Σ_n A_n x_n,   A_n = R_row^r R_col^c,          s* = argmax_s ⟨E(page), R_row^{s_1} R_col^{s_2} E(scrap)⟩

A page of 4 × 4 handwritten digits, 32 × 32 pixels, becomes one vector of the lowest frequencies of its DFT; so does a
noisy scrap of 12 × 12 torn from it. With all frequencies, the score is exactly n × the circular cross-correlation; with
fewer, it is the cross-correlation of what remains of the page. The baseline keeps as many numbers and spends them on
coarse pixels: averages of 2 × 2 or 4 × 4, cross-correlated. Frequencies on a grid of 16 rows repeat every 16 rows, so
that 16 and 0 are the same shift: the answer is unique only modulo the period (docs/claims.md row 48).

    OMP_NUM_THREADS=1 python examples/alignment.py --out alignment.png          about 5 seconds

Results (three seeds, 30 pages each), found within a pixel:

    64 numbers: averages 4 × 4        8.9 %   (3.3 to 16.7)
    256 numbers: averages 2 × 2      42.2 %   (33.3 to 50.0)
    64 numbers: frequencies          18.9 %   (13.3 to 23.3)
    128 numbers: frequencies         46.7 %   (40.0 to 50.0)
    256 numbers: frequencies         87.8 %   (80.0 to 93.3)
    512 numbers: frequencies        100.0 %
    1024 numbers: pixels            100.0 %   plain cross-correlation: as good, with twice the numbers
    period 16: row modulo 16         94.4 %   (93.3 to 96.7)
    period 16: row                   76.7 %   (70.0 to 83.3)
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from common import BLUE, GREY, ORANGE, arguments, keep, line, sheet
from joformer.monoidal import Alignment, MonoidalEmbedding, align
from joformer.training import load_images

SIDE, SCRAP, PAGES, NOISE = 32, 12, 30, 0.3
DIMS = (64, 128, 256, 512)
PERIOD = 16


def torn(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Pages (30, 32, 32), a scrap of each (30, 12, 12) in noise of σ = 0.3 (ink is 1), and its row and column."""
    across = SIDE // 8
    pick = torch.randint(len(images), (PAGES, across, across), generator=generator)
    pages = images[pick, 0].float().div(255).transpose(2, 3).reshape(PAGES, SIDE, SIDE)
    at = torch.randint(SIDE - SCRAP + 1, (PAGES, 2), generator=generator)
    rows, columns = (at[:, k, None] + torch.arange(SCRAP) for k in (0, 1))
    scraps = pages[torch.arange(PAGES)[:, None, None], rows[:, :, None], columns[:, None, :]]
    scraps = scraps + NOISE * torch.randn(scraps.shape, generator=generator)
    return pages, scraps - scraps.mean((1, 2), keepdim=True), at  # with its mean, a scrap would match any ink


def aligned(pages: Tensor, scraps: Tensor, dim: int, shape: tuple[int, int] = (SIDE, SIDE)) -> Alignment:
    embed = MonoidalEmbedding(dim, shape, frequencies="dft")
    return align(embed(pages), embed(scraps), embed.generators)


def correlated(pages: Tensor, scraps: Tensor, block: int = 1) -> tuple[Tensor, Tensor]:
    """The baseline: circular cross-correlation of pixels, or of averages of block × block; best shift, all scores."""
    padded = F.pad(scraps, (0, SIDE - SCRAP) * 2)
    coarse, scrap = (F.avg_pool2d(x[:, None], block)[:, 0] for x in (pages, padded))
    scores = torch.fft.ifft2(torch.fft.fft2(coarse) * torch.fft.fft2(scrap).conj()).real
    best = scores.flatten(1).argmax(1)
    return block * torch.stack((best // coarse.shape[2], best % coarse.shape[2]), -1), scores


def near(found: Tensor, at: Tensor) -> float:
    """% within a pixel of the correct position, along both axes."""
    return 100 * ((found - at).abs() <= 1).all(-1).float().mean().item()


def main() -> None:
    given = arguments(__doc__, __file__)
    digits = load_images("digits").test.images
    names = [f"{d} numbers: frequencies" for d in DIMS]
    coarse = {f"{(SIDE // block) ** 2} numbers: averages {block} × {block}": block for block in (4, 2)}
    pixels, modulo, outright = "1024 numbers: pixels", f"period {PERIOD}: row modulo {PERIOD}", f"period {PERIOD}: row"
    hits = {name: [] for name in (*coarse, *names, pixels, modulo, outright)}
    for seed in range(given.seed, given.seed + given.seeds):
        pages, scraps, at = torn(digits, torch.Generator().manual_seed(seed))
        for name, dim in zip(names, DIMS, strict=True):
            hits[name].append(near(aligned(pages, scraps, dim).shift, at))
        for name, block in {**coarse, pixels: 1}.items():
            hits[name].append(near(correlated(pages, scraps, block)[0], at))
        turning = aligned(pages, scraps, 512, (PERIOD, SIDE))
        row, column = (turning.shift - at).unbind(-1)
        off = (row + PERIOD // 2) % PERIOD - PERIOD // 2
        hits[modulo].append(near(torch.stack((off, column), -1), torch.zeros(1, 2)))
        hits[outright].append(near(turning.shift, at))
    whole = aligned(pages[:1], scraps[:1], 2 * SIDE**2)
    plain = SIDE**2 * correlated(pages[:1], scraps[:1])[1]
    print("the scrap is found within a pixel, % of pages:")
    for name, values in hits.items():
        line(name, values)
    print(f"all frequencies against {SIDE**2} × cross-correlation: {(whole.surface - plain).abs().max():.1e}", end=" ")
    print(f"of {plain.abs().max():.0f}")
    print(f"with {PERIOD} × {SIDE} frequencies, {str(turning).splitlines()[0]}")
    picture(pages, scraps, at, hits, given.out)


def picture(pages: Tensor, scraps: Tensor, at: Tensor, hits: dict, out) -> None:
    from matplotlib.patches import Rectangle

    figure = sheet(11, 6.4)
    fine, turning = aligned(pages, scraps, 256), aligned(pages, scraps, 512, (PERIOD, SIDE))
    blurred = correlated(pages, scraps, 2)[0]
    # Draw a page that the vector finds and the same number of averages misses, in the lower half.
    telling = ((fine.shift - at).abs() <= 1).all(-1) & ((blurred - at).abs() > 1).any(-1)
    telling &= (blurred <= SIDE - SCRAP).all(-1)  # scores wrap round the page, boxes do not
    one = int((telling.float() + 0.5 * (at[:, 0] >= PERIOD) * (turning.shift[:, 0] + PERIOD == at[:, 0])).argmax())
    above, below = figure.subfigures(1, 2, width_ratios=(1.7, 1))
    (page, scrap), (score, repeats) = above.subplots(2, 2)
    page.imshow(pages[one].numpy(), cmap="Greys")
    boxes = (
        ("the truth", at, "black", 4),
        ("256 frequencies", fine.shift, BLUE, 2),
        ("256 averages", blurred, ORANGE, 2),
    )
    for name, where, colour, width in boxes:
        row, column = (where[one] - 0.5).tolist()
        page.add_patch(Rectangle((column, row), SCRAP, SCRAP, fill=False, edgecolor=colour, lw=width, label=name))
    page.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=3, frameon=False)
    page.set_title("a page", fontsize=9)
    scrap.imshow(scraps[one].numpy(), cmap="Greys")
    scrap.set_title("the scrap, in noise", fontsize=9)
    score.imshow(fine.surface[one].numpy(), cmap="Blues")
    score.set_title("score of every shift, 256 frequencies (○ the truth)", fontsize=9)
    repeats.imshow(turning.surface[one].repeat(SIDE // PERIOD, 1).numpy(), cmap="Blues")
    repeats.axhline(PERIOD - 0.5, color="black", lw=0.8)
    repeats.set_title(f"period {PERIOD} along rows: every score comes again", fontsize=9)
    for axes in (score, repeats):
        axes.plot(*at[one].flip(0).tolist(), "o", markersize=11, markerfacecolor="none", color=ORANGE)
    for axes in (page, scrap, score, repeats):
        axes.set_xticks([])
        axes.set_yticks([])
    curve = below.subplots()
    for kind, colour in (("frequencies", BLUE), ("averages", ORANGE), ("pixels", GREY)):
        chosen = {int(name.split()[0]): values for name, values in hits.items() if f"numbers: {kind}" in name}
        means = [sum(values) / len(values) for values in chosen.values()]
        curve.plot(list(chosen), means, "o-", color=colour, label=kind, markersize=7, alpha=0.9)
        for numbers, values in chosen.items():
            curve.plot([numbers] * len(values), values, ".", color="black", markersize=4)
    curve.set_xscale("log", base=2)
    curve.set_xticks([64, 128, 256, 512, 1024], ["64", "128", "256", "512", "1024"])
    curve.set_ylim(0, 103)
    curve.set_xlabel("numbers kept per page")
    curve.set_title("% of scraps found within a pixel; dots: seeds", fontsize=9)
    curve.legend(frameon=False, title="spent on")
    curve.spines[["top", "right"]].set_visible(False)
    keep(figure, out)


if __name__ == "__main__":
    main()
