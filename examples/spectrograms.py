"""Which word was spoken? Spectrograms on two axes: frequency × time.

    A = R_freq^f R_time^t,      c_i = A_i⁻¹ Σ_j α_ij A_j v_j,      each axis on its own planes (axial)

Ten made-up words from any speaker, in noise; several are the same syllables in another order (bada, daba). Tokens are
patches of 16 bands × 4 frames (64 ms), shorter than a syllable. Two layers, 100 steps, fixed angles, identical initial
weights: the models differ only in what is transported.

    OMP_NUM_THREADS=1 python examples/spectrograms.py --out spectrograms.png          about 15 seconds

Results (three seeds, 300 clips of the test split):

    no positions               68.3 %   (65.0 to 71.0)
    scores (QK)                70.9 %   (68.7 to 72.7)
    scores and values (QKV)    91.8 %   (90.0 to 93.0)

Transported values learn this sooner, not better: after 500 steps the three reach 98.8, 99.8 and 100 % (two seeds).
Without positions, the order of syllables still shows in their glides and in the falling pitch of the voice.
"""

import torch

from common import BLUE, GREY, ORANGE, arguments, bars, fit, keep, line, sheet
from joformer.models import JoFormerViT, ViTConfig, initialise
from joformer.training import Images, ImageTask, load_audio

BANDS, FRAMES, PATCH = 32, 64, (16, 4)
MODELS = {
    "no positions": "none",
    "scores (QK)": "rope2d",
    "scores and values (QKV)": "joformer_old",
}


def model(name: str, seed: int, classes: int) -> JoFormerViT:
    """Builds a model; all start from the same weights."""
    config = ViTConfig.spectrogram(BANDS, FRAMES, classes, model=MODELS[name], patch=PATCH, dim=32, layers=2, heads=4)
    return initialise(JoFormerViT(config), seed)


def main() -> None:
    given = arguments(__doc__, __file__)
    data = load_audio("words", bands=BANDS, frames=FRAMES)
    task, truth, classes = ImageTask(data, batch=48), data.test.labels, len(data.classes)
    pixels = (data.test.images / 255 - data.mean.float()) / data.std.float()
    accuracy = {name: [] for name in MODELS}
    confusion = {name: torch.zeros(classes, classes) for name in MODELS}
    for seed in range(given.seed, given.seed + given.seeds):
        for name in MODELS:
            made = model(name, seed, classes)
            fit(made, lambda step, m=made, s=seed: task.loss(m, task.batch(s, step, 0, 1)), steps=100, lr=6e-3)
            with torch.no_grad():
                predicted = made(pixels).argmax(-1)
            accuracy[name].append(100 * (predicted == truth).float().mean().item())
            confusion[name].index_put_((truth, predicted), torch.ones(len(predicted)), accumulate=True)
    print("which of 10 words, % right (chance 10):")
    for name, values in accuracy.items():
        line(name, values)
    gain = [
        both - scores for both, scores in zip(accuracy["scores and values (QKV)"], accuracy["scores (QK)"], strict=True)
    ]
    print(f"what travelling values add to scores, seed by seed: {', '.join(f'{g:+.1f}' for g in gain)}")
    picture(data, accuracy, confusion, given.out)


def picture(data: Images, accuracy: dict, confusion: dict, out) -> None:
    figure = sheet(10.5, 7.2)
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    words, score = above.subfigures(1, 2, width_ratios=(1.25, 1))
    words.suptitle("the same syllables in another order; lines: patches", fontsize=9)
    for axes, word in zip(words.subplots(2, 2).flat, ("bada", "daba", "badagu", "gudaba"), strict=True):
        clip = data.test.images[(data.test.labels == data.classes.index(word)).nonzero()[0, 0], 0]
        axes.imshow(clip.numpy(), cmap="Greys", origin="lower", aspect="auto", extent=(0, 1.024, 0, BANDS))
        axes.set_title(word, fontsize=9)
        axes.vlines([1.024 * k * PATCH[1] / FRAMES for k in range(1, FRAMES // PATCH[1])], 0, BANDS, BLUE, lw=0.3)
        axes.axhline(PATCH[0], color=BLUE, lw=0.3)
        axes.set_xlabel("seconds", fontsize=8)
        axes.set_ylabel("mel band", fontsize=8)
        axes.label_outer()
    axes = score.subplots()
    bars(axes, accuracy, [GREY, ORANGE, BLUE], chance=10.0)
    axes.set_title("% of words understood; dots: seeds", fontsize=9)
    below.suptitle("what is taken for what (rows: the word spoken, columns: the answer)", fontsize=9)
    for number, (axes, (name, counts)) in enumerate(zip(below.subplots(1, 3), confusion.items(), strict=True)):
        axes.imshow((counts / counts.sum(1, keepdim=True)).numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(name, fontsize=9)
        axes.set_xticks(range(len(counts)), data.classes, rotation=90, fontsize=7)
        axes.set_yticks(range(len(counts)), data.classes if number == 0 else [""] * len(counts), fontsize=7)
    keep(figure, out)


if __name__ == "__main__":
    main()
