"""The paper's augmentations by name."""

from __future__ import annotations

from typing import Any, Literal

from joformer.training.augment.images import Augment
from joformer.training.augment.mix import Mix
from joformer.training.data import Images, Streamed

Augmentation = Literal["none", "crop", "cifar", "imagenet", "deit"]


def augmentation(name: Augmentation, images: Images | Streamed) -> tuple[Augment | None, Mix | None]:
    """The augmentation of this name: crop and flip (Setup A), Setup B with mixup, or DeiT's with mixup and CutMix.

    "imagenet" has DeiT's settings in the arithmetic of Setup B, "deit" timm's arithmetic too (`Augment.deit`).

    Images without three channels are normalised by their own mean and deviation; crops and erased squares are as large
    a share of small images as they are of CIFAR's.

    >>> from joformer.training import load_images
    >>> augment, mix = augmentation("cifar", load_images("digits"))
    >>> augment.crop_pad, augment.erase_size, mix.mixup
    (1, 4, 0.8)
    """
    if name == "none":
        return None, None
    own: dict[str, Any] = {}
    side = images.size if isinstance(images, Streamed) else min(images.train.images.shape[2:])
    if isinstance(images, Images):
        if images.train.images.dim() != 4:
            raise ValueError("augmentation is for images with two axes: use --augment none")
        if images.train.images.shape[1] != 3:
            own = {"mean": tuple(images.mean.tolist()), "std": tuple(images.std.tolist())}
    pad = min(4, side // 8)
    if name in ("imagenet", "deit"):
        return (Augment.deit if name == "deit" else Augment.imagenet)(**own), Mix.imagenet()
    if name == "crop":
        cifar = {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)}
        return Augment(**(cifar | own), crop_pad=pad, crop_border="zeros", rand_ops=0, erase=0.0), None
    if name == "cifar":
        return Augment(**own, crop_pad=pad, erase_size=min(16, side // 2)), Mix()
    raise ValueError(f"unknown augmentation {name!r}: none, crop, cifar, imagenet or deit")
