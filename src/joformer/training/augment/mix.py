"""Mix: images and labels of neighbours mixed, and soft targets.

    mixup    x̃ = λ x + (1 − λ) x′,                                      ỹ = λ y + (1 − λ) y′,   λ ~ Beta(α, α)
    CutMix   x̃ = x with a rectangle of x′, h √(1 − λ) × w √(1 − λ),      ỹ the same with the share that was left as λ
    y        1 − ε + ε / K at the label, ε / K elsewhere

x′ is the other one of its pair: samples 2k and 2k + 1 are each other's mirror image. So the parts of a batch mix among
themselves, and however many parts there are, as long as they are even, the samples come out the same. λ, which of the
two (a coin where both are wanted), and the rectangle's place are one for the whole batch, as in DeiT.

Paper: "Setup B full reproducibility" (mixup α = 0.8 alone); "ImageNet ViT-S Scale Validation" (both).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class MixPlan:
    """What is random about mixing `count` samples; a slice is the plan of that part, λ and rectangle the same.

    Attributes:
        count: How many samples.
        kind: What happens to them.
        share: λ, what a sample keeps of itself.
        centre: Where the rectangle is centred, from 0 to 1 down and across.

    >>> plan = Mix().plan(8, torch.Generator().manual_seed(0))
    >>> plan[2:6].count, plan[2:6].share == plan.share
    (4, True)
    """

    count: int
    kind: Literal["none", "mixup", "cutmix"]
    share: float
    centre: tuple[float, float]

    def __getitem__(self, part: slice) -> MixPlan:
        places = range(self.count)[part]
        if not isinstance(places, range) or places.step != 1 or places.start % 2 or len(places) % 2:
            raise ValueError(f"samples 2k and 2k + 1 are mixed, [{part!r}] would separate them: slice at even indices")
        return replace(self, count=len(places))


@dataclass(frozen=True)
class Mix:
    """`mixup`, `cutmix`: α of λ ~ Beta(α, α), 0 for never; `probability` of mixing at all; `smoothing`: ε.

    >>> mix, images, labels = Mix(smoothing=0.1), torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    >>> mixed, targets = mix(images, labels, mix.plan(4, torch.Generator().manual_seed(0)), classes=10)
    >>> mixed.shape, targets.shape, [round(t, 6) for t in targets.sum(1).tolist()]
    (torch.Size([4, 3, 8, 8]), torch.Size([4, 10]), [1.0, 1.0, 1.0, 1.0])
    """

    mixup: int | float = 0.8
    cutmix: int | float = 0.0
    probability: int | float = 1.0
    smoothing: int | float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.mixup < math.inf and 0 <= self.cutmix < math.inf):
            raise ValueError(f"mixup={self.mixup}, cutmix={self.cutmix}: an α is 0 (never) or more")
        if not (0 <= self.probability <= 1 and 0 <= self.smoothing < 1):
            raise ValueError(f"probability={self.probability}, smoothing={self.smoothing}: give numbers from 0 to 1")

    @classmethod
    def imagenet(cls) -> Mix:
        """DeiT's: mixup 0.8 or CutMix 1.0, labels smoothed by 0.1.

        >>> Mix.imagenet()
        Mix(mixup=0.8, cutmix=1.0, probability=1.0, smoothing=0.1)
        """
        return cls(cutmix=1.0, smoothing=0.1)

    def plan(self, count: int, generator: torch.Generator) -> MixPlan:
        """λ, the kind and the place for a batch of `count`, drawn on the CPU in a fixed order.

        >>> Mix().plan(4, torch.Generator().manual_seed(1)) == Mix().plan(4, torch.Generator().manual_seed(1))
        True
        """
        happens, coin, down, across = torch.rand(4, dtype=torch.float64, generator=generator).tolist()
        cut = coin < 0.5 if self.mixup > 0 and self.cutmix > 0 else self.cutmix > 0
        alpha = self.cutmix if cut else self.mixup
        if not alpha or happens >= self.probability:
            return MixPlan(count, "none", 1.0, (down, across))
        # X / (X + Y) ~ Beta(α, α) for X, Y ~ Gamma(α); torch.distributions would use the global random generator.
        ours, theirs = torch._standard_gamma(torch.full((2,), float(alpha), dtype=torch.float64), generator).tolist()
        return MixPlan(count, "cutmix" if cut else "mixup", ours / (ours + theirs), (down, across))

    def __call__(
        self, images: Tensor, labels: Tensor, plan: MixPlan, *, classes: int
    ) -> tuple[Float[Tensor, "batch channels h w"], Float[Tensor, "batch classes"]]:
        """Images (batch, channels, h, w), float; labels (batch,), int64 → mixed images, soft targets.

        >>> half = MixPlan(2, "mixup", 0.75, (0.5, 0.5))
        >>> images, targets = Mix()(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1), torch.tensor([0, 1]), half, classes=2)
        >>> images.flatten().tolist(), targets.tolist()
        ([0.25, 0.75], [[0.75, 0.25], [0.25, 0.75]])
        """
        if not images.is_floating_point() or images.dim() != 4:
            given = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images are {given}: give floats (batch, channels, h, w), normalised")
        if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
            given = f"{labels.dtype} {tuple(labels.shape)}"
            raise ValueError(f"labels are {given}: give int64 ({len(images)},), one per image")
        if len(images) != plan.count:
            raise ValueError(f"the plan is for {plan.count} samples, there are {len(images)} images: slice both alike")
        if plan.kind != "none" and plan.count % 2:
            raise ValueError(f"samples are mixed in pairs and {plan.count} is odd: give an even batch")

        off = self.smoothing / classes
        targets = images.new_full((len(labels), classes), off, dtype=torch.float32)
        targets.scatter_(1, labels[:, None], 1 - self.smoothing + off)
        share = plan.share
        if plan.kind == "mixup":
            images = _mixed(images, share)
        elif plan.kind == "cutmix":
            h, w = images.shape[2:]
            (top, bottom), (left, right) = _span(h, share, plan.centre[0]), _span(w, share, plan.centre[1])
            share = 1 - (bottom - top) * (right - left) / (h * w)
            mixed, box = images.clone(), (..., slice(top, bottom), slice(left, right))
            mixed[::2][box], mixed[1::2][box] = images[1::2][box], images[::2][box]
            images = mixed
        return images, targets if plan.kind == "none" else _mixed(targets, share)


def _mixed(x: Tensor, share: float) -> Tensor:
    # Two products and a sum, each rounded by itself: a fused lerp rounds by a value's place in the vector.
    mixed = x * share
    for one, other in ((0, 1), (1, 0)):
        mixed[one::2].add_(x[other::2] * (1 - share))
    return mixed


def _span(n: int, share: float, at: float) -> tuple[int, int]:
    half, middle = int(n * math.sqrt(1 - share)) // 2, int(at * n)
    return max(middle - half, 0), min(middle + half, n)
