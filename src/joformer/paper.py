"""The figures the paper prints, as data: what `verify` recomputes and reports set beside ours.

Accuracies in percent, perplexities as printed; None where the paper prints nothing.
"""

from __future__ import annotations

V_ROTATION = {
    # approach: the two models, Q/K only, Q/K/V, printed difference; CIFAR-100, Setup B, D = 256
    "axial learned": ("monoidal_axial", "joformer_axial", 60.92, 63.27, 2.35),
    "axial learned, per layer": ("monoidal_axial_perlayer", "joformer_axial_perlayer", 60.63, 62.76, 2.13),
    "axial fixed": ("rope2d", "joformer_old", 61.39, 61.85, 0.46),
    "combined fixed": ("rope2dv2", "joformer_fixed", 55.53, 56.66, 1.13),
    "combined learned, per layer": ("monoidal_perlayer", "joformer_perlayer", 60.85, 61.17, 0.32),
}
"""Table "V rotation effect on CIFAR-100"."""

CIFAR_WIDTHS = (32, 64, 128, 256)
CIFAR_SCALING = {
    "joformer_axial": (52.77, 61.33, 66.67, 63.27),
    "joformer": (52.43, 58.83, 66.19, 62.10),
    "joformer_old": (50.54, 59.13, 66.10, 61.85),
    "monoidal_axial": (51.75, 59.10, 64.81, 60.92),
    "rope2d": (50.91, 59.23, 64.22, 61.39),
    "learned": (52.23, 57.26, 60.74, 55.49),
}
"""Table "CIFAR-100 accuracy scaling", a column for each of `CIFAR_WIDTHS`."""

CIFAR_AXIAL_GAINS = (1.86, 2.10, 2.45, 1.88)
"""joformer_axial over rope2d as printed, for each of `CIFAR_WIDTHS`."""

CIFAR_ALONE = {"joformer_old": 0.46, "monoidal_axial": -0.47, "joformer_axial": 1.88}
"""Each alone and both together over rope2d at D = 256, as printed under "Key finding"."""

VARIANTS = 9
"""How many variants the paper says there are."""

CIFAR_LIERE = {"axial-dense": (70.61, 71.12, 0.51), "LieRE64": (70.64, 69.41, -1.23)}
"""400 epochs of Setup A: Q/K only, Q/K/V, printed effect."""

IMAGENET = {"top-1": (80.71, 81.11, 0.40), "top-5": (95.26, 95.53, 0.27)}
"""Table "ImageNet-1K ViT-S": RoPE2D, JoFormer, printed difference."""

WIKIPEDIA = {
    # configuration: RoFormer, fixed, learned, projected
    "n100, L2": (7.24, 6.67, 6.43, 6.15),
    "n200, L2": (5.82, 5.51, 5.42, 5.17),
    "n200, L4": (5.36, 5.07, 5.01, 4.72),
    "n250, L4": (5.10, 4.85, 4.74, 4.55),
    "n500, L2": (5.02, 4.82, 4.73, 4.58),
    "n500, L4": (4.67, 4.42, 4.37, 4.32),
}
"""Table "Wikipedia LM validation perplexity"."""

LENGTHS = (512, 1024, 2048, 4096)
LENGTH = {
    # model: perplexity at each of LENGTHS, printed ratio of the last to the first, thousands of iterations (those of
    # the fixed row are not printed; it is stage two of the projected one)
    "projected": (25.55, 25.17, 24.73, 26.01, 1.02, 200),
    "fixed": (26.32, 34.32, 64.74, 115.96, 4.41, 150),
    "rope": (26.82, 41.90, 90.10, 168.67, 6.29, 150),
}
"""Table "Length generalization from 512 training length"."""

MNIST_DIMS = (2, 8, 32, 784)
MNIST = {"learned": (55.2, 86.4, 96.5, 97.5), "dft": (21.0, 75.3, 95.5, None), "mlp": (None, None, None, 97.2)}
"""Table "MNIST accuracy by embedding method and dimension", a column for each of `MNIST_DIMS`."""

MNIST_WITHIN, MNIST_FEWER = 0.7, 24
"""At d = 32: points below the MLP baseline, and how many times fewer inputs."""

RECIPE = {
    "optimiser": "AdamW",
    "lr": 1e-3,
    "weight decay": 0.05,
    "warm-up epochs": 5,
    "batch": 1024,
    "augmentation": "RandAugment(9, 0.5)",
    "mixup": 0.8,
    "cutmix": 1.0,
    "erasing": 0.25,
    "label smoothing": 0.1,
    "stochastic depth": 0.1,
}
"""What the paper lists for ImageNet under the name "DeiT-III recipe"."""

DEIT = {
    "optimiser": "AdamW",
    "lr": 5e-4 * 1024 / 512,
    "weight decay": 0.05,
    "warm-up epochs": 5,
    "batch": 1024,
    "augmentation": "RandAugment(9, 0.5)",
    "mixup": 0.8,
    "cutmix": 1.0,
    "erasing": 0.25,
    "label smoothing": 0.1,
    "stochastic depth": 0.1,
}
"""The recipe of the first DeiT (Touvron et al. 2021, table of ingredients), at the listed batch."""

DEIT_III = {
    "optimiser": "LAMB",
    "lr": 4e-3,
    "weight decay": 0.05,
    "warm-up epochs": 5,
    "batch": 2048,
    "augmentation": "3-Augment",
    "mixup": 0.8,
    "cutmix": 1.0,
    "erasing": 0.0,
    "label smoothing": 0.0,
    "stochastic depth": 0.05,
}
"""The recipe of DeiT III (Touvron et al. 2022) for ViT-S on ImageNet-1K."""
