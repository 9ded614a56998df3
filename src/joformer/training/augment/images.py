"""Augment: uint8 images in, normalised float32 images out; every draw made beforehand, in a plan.

    crop → flip → RandAugment: op_n(… op_1(x)) → (x / 255 − mean) / std → one rectangle erased, by 0 or by noise

A plan is drawn on the CPU for the whole batch of a step, however many processes share it; each then takes its slice:
augment(images[a:b], plan[a:b]) = augment(images, plan)[a:b], bit for bit. So the transcendental functions, whose last
bit may depend on a value's place in a vector, are in the plan, and what follows is integers or correctly rounded.
Noise is a hash of the sample's own number and the pixel's place, which picks one of 65,536 quantiles of N(0, 1): the
same bits on every device, in whichever part.

Paper: "Setup B full reproducibility". The operations and their strengths are in `operations`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from joformer.training.augment.operations import CODES, OPERATIONS, TIMM, operate_, pixels, turns
from joformer.training.transfer import to_device

FOURTEEN = tuple(OPERATIONS)[:14]  # the RandAugment paper's operations, and torchvision's
MOST = 30  # magnitudes count to this, as in torchvision and kornia; timm's count to 10


@dataclass(frozen=True, eq=False)
class Plan:
    """All that is random about `len(plan)` samples; a slice of it is the plan of those samples.

    Attributes:
        moved: Rows and columns by which the crop is off the centre, each in −pad … pad.
        flipped: Whether left is right.
        codes: The operations, by their place in `OPERATIONS`.
        strengths: How strong they are.
        turns: Where their pixels come from.
        erased: Whether there is a rectangle of zeros.
        sides: Height and width of the rectangle over √(h w), where no size is given.
        corner: Where its corner is, from 0 to 1 of the places there are, down and across.
        noise: What the noise in the rectangle is made from; 0 where it is none.

    >>> plan = Augment().plan(6, torch.Generator().manual_seed(0))
    >>> len(plan), len(plan[2:5]), plan.codes.shape
    (6, 3, torch.Size([6, 2]))
    """

    moved: Int[Tensor, "count 2"]
    flipped: Bool[Tensor, " count"]
    codes: Int[Tensor, "count rounds"]
    strengths: Float[Tensor, "count rounds"]
    turns: Float[Tensor, "count rounds 2 2"]
    erased: Bool[Tensor, " count"]
    sides: Float[Tensor, "count 2"]
    corner: Float[Tensor, "count 2"]
    noise: Int[Tensor, " count"]

    def __len__(self) -> int:
        return len(self.flipped)

    def __getitem__(self, part: slice) -> Plan:
        if not isinstance(part, slice):
            raise ValueError(f"a plan can only be sliced, got [{part!r}]: write plan[{part!r} : …]")
        return Plan(*(getattr(self, field.name)[part] for field in fields(self)))


@dataclass(frozen=True)
class Augment:
    """Setup B on CIFAR by default; `Augment.imagenet()` is DeiT's.

    - `crop_pad`: a crop of the same size from the image with that many pixels around it; 0 for none. `crop_border`:
      whether these are reflected ("reflect") or black ("zeros", as in torchvision's RandomCrop).
    - `flip`: the probability of a horizontal flip.
    - `rand_ops`, `rand_magnitude`, `rand_from`: RandAugment(n, m of 30) over these names, drawn with replacement; each
      is left out with probability 1 − `rand_probability`, and its magnitude has a normal spread of `rand_std`, clipped
      at 0 and 30. AutoContrast, Equalize and Invert have no magnitude: they act at 0 too.
      `rand_as`: "torchvision", or "timm" (increasing severity): 4 − ⌊4 ℓ⌋ bits by Posterize, ± 0.45 ℓ of the side in
      parts of pixels by Translate, and geometry by bicubic interpolation on the mean colour instead of the nearest
      pixel on black.
    - `erase`: the probability that a rectangle is erased, after normalisation, wholly inside the image: a square of
      side `erase_size`, or where that is None timm's random one, an area of 2 % to a third and an aspect of 0.3 to
      1/0.3. `erase_with`: "zeros", or "noise", N(0, 1) for each pixel and channel as in timm's "pixel" mode.
    - `mean`, `std`: one per channel, for values in 0 … 1.

    >>> augment = Augment()
    >>> plan = augment.plan(8, torch.Generator().manual_seed(0))
    >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    >>> whole = augment(images, plan)
    >>> whole.dtype, torch.equal(augment(images[2:5], plan[2:5]), whole[2:5])
    (torch.float32, True)
    """

    crop_pad: int = 4
    crop_border: Literal["reflect", "zeros"] = "reflect"
    flip: int | float = 0.5
    rand_ops: int = 2
    rand_magnitude: int | float = 9
    rand_probability: int | float = 1.0
    rand_std: int | float = 0.0
    rand_from: tuple[str, ...] = FOURTEEN
    rand_as: Literal["torchvision", "timm"] = "torchvision"
    erase: int | float = 0.5
    erase_size: int | None = 16
    erase_with: Literal["zeros", "noise"] = "zeros"
    mean: tuple[int | float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[int | float, ...] = (0.2470, 0.2435, 0.2616)

    def __post_init__(self) -> None:
        for name in ("flip", "rand_probability", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a probability: give a number from 0 to 1")
        if not 0 <= self.rand_magnitude <= MOST or not 0 <= self.rand_std < math.inf:
            given = f"rand_magnitude={self.rand_magnitude}, rand_std={self.rand_std}"
            raise ValueError(f"{given}: the magnitude must be 0 to {MOST}, its spread 0 or more")
        if self.crop_pad < 0 or self.rand_ops < 0:
            raise ValueError(f"crop_pad={self.crop_pad}, rand_ops={self.rand_ops}: both must be 0 or more")
        if self.erase_size is not None and self.erase_size < 1:
            raise ValueError(f"erase_size={self.erase_size}: give 1 or more, or None for random rectangles")
        if self.crop_border not in ("reflect", "zeros") or self.erase_with not in ("zeros", "noise"):
            given = f"crop_border={self.crop_border!r}, erase_with={self.erase_with!r}"
            raise ValueError(f"{given}: crop_border must be reflect or zeros, erase_with zeros or noise")
        if self.rand_as not in ("torchvision", "timm"):
            raise ValueError(f"rand_as={self.rand_as!r}: choose torchvision or timm (strengths and interpolation)")
        unknown = [name for name in self.rand_from if name not in OPERATIONS]
        if unknown or not self.rand_from:
            raise ValueError(f"rand_from holds {unknown or 'nothing'}: choose from {', '.join(OPERATIONS)}")
        if len(self.mean) != len(self.std) or not self.mean or not all(s > 0 for s in self.std):
            raise ValueError(f"mean={self.mean}, std={self.std}: give one of each per channel, and std above 0")

    @classmethod
    def imagenet(cls, **changes: Any) -> Augment:
        """DeiT's settings, "rand-m9-mstd0.5-inc1" and erasing at 0.25, in the arithmetic of Setup B.

        timm counts magnitudes to 10, so 9 ± 0.5 there is 27 ± 1.5 here; its fifteen operations have no Identity but
        Invert and SolarizeAdd, and each is left out half of the time. What differs from timm: the nearest pixel and
        black instead of bicubic interpolation and the mean colour, 4 bits left by Posterize instead of 1, zeros in the
        erased rectangle instead of noise. `deit` is timm's in these too.

        >>> Augment.imagenet().rand_probability, Augment.imagenet(erase=0.0).erase
        (0.5, 0.0)
        """
        fifteen = tuple(name for name in OPERATIONS if name != "Identity")
        rand: dict[str, Any] = {"rand_magnitude": 27, "rand_std": 1.5, "rand_probability": 0.5, "rand_from": fifteen}
        others = {"crop_pad": 0, "erase": 0.25, "erase_size": None}
        channels = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
        return cls(**(rand | others | channels | changes))

    @classmethod
    def deit(cls, **changes: Any) -> Augment:
        """DeiT's as timm computes it, for images that were cropped at random when decoded.

        What differs from timm: geometry in float32 instead of float64, so that a value may be one of 255 off, and an
        erased rectangle that does not fit is cut off at the image's sides instead of drawn again.

        >>> Augment.deit().erase_with, Augment.deit().rand_as
        ('noise', 'timm')
        """
        return cls.imagenet(**({"rand_as": "timm", "erase_with": "noise"} | changes))

    def plan(self, count: int, generator: torch.Generator) -> Plan:
        """All random numbers for `count` samples, in a fixed order: two draws, sample by sample.

        >>> plans = [Augment().plan(4, torch.Generator().manual_seed(7)) for _ in range(2)]
        >>> torch.equal(plans[0].strengths, plans[1].strengths)
        True
        """
        if count < 0:
            raise ValueError(f"a plan for {count} samples: give 0 or more")
        rounds = self.rand_ops
        # float64, because ⌊u n⌋ with the largest u below 1 would round up to n in float32.
        u = torch.rand(count, 8 + 3 * rounds, dtype=torch.float64, generator=generator)
        noise = torch.randn(count, rounds, dtype=torch.float64, generator=generator)
        moved, flipped, erased, shape, corner, chosen, kept, sign = u.split((2, 1, 1, 2, 2, rounds, rounds, rounds), 1)

        listed = torch.tensor([CODES[name] for name in self.rand_from])
        codes = listed[(chosen * len(listed)).long()]
        codes = codes.where(kept < self.rand_probability, CODES["Identity"])
        table = OPERATIONS | (TIMM if self.rand_as == "timm" else {})
        rest, slope, signed = torch.tensor(list(table.values()), dtype=torch.float64)[codes].unbind(-1)
        level = (self.rand_magnitude + self.rand_std * noise).clamp_(0, MOST) / MOST
        strengths = rest + slope * level * torch.where((sign < 0.5) & (signed > 0), -1.0, 1.0)
        whole = strengths.ceil() if self.rand_as == "timm" else strengths.round()
        strengths = torch.where(codes == CODES["Posterize"], whole, strengths)

        numbers = torch.zeros(count, dtype=torch.int64)
        if self.erase_with == "noise":
            numbers = torch.randint(1 << 31, (count,), generator=generator)
        area = 0.02 + (1 / 3 - 0.02) * shape[:, :1]
        aspect = (math.log(1 / 0.3) * (2 * shape[:, 1:] - 1)).exp()
        return Plan(
            moved=(moved * (2 * self.crop_pad + 1)).long() - self.crop_pad,
            flipped=flipped[:, 0] < self.flip,
            codes=codes,
            strengths=strengths.float(),
            turns=turns(codes, strengths).float(),
            erased=erased[:, 0] < self.erase,
            sides=torch.cat((area * aspect, area / aspect), 1).sqrt(),
            corner=corner,
            noise=numbers,
        )

    def __call__(self, images: Tensor, plan: Plan) -> Float[Tensor, "batch channels h w"]:
        """Images (batch, channels, h, w), uint8 on any device → the same shape, float32, as the plan says.

        >>> augment = Augment(crop_pad=0, flip=1.0, rand_ops=0, erase=0.0, mean=(0.0,), std=(1.0,))
        >>> augment(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), augment.plan(1, torch.Generator()))
        tensor([[[[1., 0.]]]])
        """
        self._check(images, plan)
        x = self._cropped(images, plan)
        fill = tuple(min(255, round(255 * m)) for m in self.mean) if self.rand_as == "timm" else None
        for round_ in range(plan.codes.shape[1]):
            operate_(x, plan.codes[:, round_], plan.strengths[:, round_], plan.turns[:, round_], fill)
        out = self.normalise(x)
        if self.erase > 0 and self.erase_with == "zeros":
            out.mul_(self._kept(plan, *images.shape[2:], device=out.device))
        elif self.erase > 0 and len(erased := plan.erased.nonzero()[:, 0]):
            there, numbers = to_device(erased, out.device), to_device(plan.noise[erased], out.device)
            kept = self._kept(plan, *images.shape[2:], device=out.device).index_select(0, there)
            noise = normal(numbers, images.shape[1:].numel()).view(-1, *images.shape[1:])
            out.index_copy_(0, there, torch.where(kept, out.index_select(0, there), noise))
        return out

    def describe(self) -> dict[str, Any]:
        """The settings as JSON; those that version 0.2 did not have only if they differ from its behaviour.

        >>> "crop_border" in Augment().describe(), Augment(crop_border="zeros").describe()["crop_border"]
        (False, 'zeros')
        """
        later = {"crop_border": "reflect", "erase_with": "zeros", "rand_as": "torchvision"}
        return {name: value for name, value in asdict(self).items() if later.get(name) != value}

    def normalise(self, images: Tensor) -> Float[Tensor, "batch channels h w"]:
        """Only (x / 255 − mean) / std, as used in evaluation.

        >>> Augment(mean=(0.5,), std=(0.5,)).normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        self._check(images)
        shift, scale = to_device(torch.tensor((self.mean, self.std)).mul_(255), images.device)[:, :, None, None]
        return images.to(torch.float32).sub_(shift).div_(scale)

    def _cropped(self, images: Tensor, plan: Plan) -> Tensor:
        if not self.crop_pad and not self.flip:
            return images.clone()
        (h, w), device = images.shape[2:], images.device
        moved, flipped = to_device(plan.moved, device), to_device(plan.flipped, device)
        columns = torch.arange(w, device=device).expand(len(plan), w)
        columns = torch.where(flipped[:, None], w - 1 - columns, columns) + moved[:, 1:]
        rows = torch.arange(h, device=device) + moved[:, :1]
        if self.crop_border == "reflect":
            rows, columns = (n - (n - i.abs()).abs() for i, n in ((rows, h - 1), (columns, w - 1)))
            return pixels(images, (rows * w)[:, :, None] + columns[:, None, :])
        inside = ((rows >= 0) & (rows < h))[:, :, None] & ((columns >= 0) & (columns < w))[:, None, :]
        at = rows.clamp(0, h - 1)[:, :, None] * w + columns.clamp(0, w - 1)[:, None, :]
        return pixels(images, at).mul_(inside[:, None])

    def _kept(self, plan: Plan, h: int, w: int, *, device: torch.device) -> Tensor:
        extent = torch.tensor((h, w))
        if self.erase_size is None:
            sides = (plan.sides * math.sqrt(h * w)).round().long().minimum(extent)
        else:
            sides = torch.full_like(plan.moved, self.erase_size)
        start = (plan.corner * (extent - sides + 1)).long()
        # Two numbers per axis go to the device, and the mask of every pixel is made there.
        start, stop = to_device(torch.stack((start, start + sides * plan.erased[:, None])), device)
        rows, columns = torch.arange(h, device=device), torch.arange(w, device=device)
        down = (rows >= start[:, :1]) & (rows < stop[:, :1])
        across = (columns >= start[:, 1:]) & (columns < stop[:, 1:])
        return ~(down[:, :, None] & across[:, None, :])[:, None]

    def _check(self, images: Tensor, plan: Plan | None = None) -> None:
        if images.dtype != torch.uint8 or images.dim() != 4:
            given = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images are {given}: give uint8 (batch, channels, height, width)")
        batch, channels, h, w = images.shape
        if channels != len(self.mean):
            raise ValueError(f"images have {channels} channels, mean and std {len(self.mean)}: give one each")
        if plan is None:
            return
        if batch != len(plan):
            raise ValueError(f"the plan is for {len(plan)} samples, there are {batch} images: slice both alike")
        if self.crop_border == "reflect" and self.crop_pad >= min(h, w):
            raise ValueError(f"crop_pad={self.crop_pad} is too large to reflect images of {h} × {w}: choose less")
        if self.erase and self.erase_size is not None and self.erase_size > min(h, w):
            raise ValueError(f"erase_size={self.erase_size} is larger than the images, {h} × {w}: choose less")
        if plan.codes.shape[1] and channels not in (1, 3):
            raise ValueError(f"RandAugment needs images with 1 or 3 channels, not {channels}: set rand_ops=0")


def normal(numbers: Int[Tensor, " count"], size: int) -> Float[Tensor, "count size"]:
    """N(0, 1) in float32, `size` of them for each number: a hash picks one of 65,536 quantiles of equal probability.

    Integers and a table made on the CPU: the same bits on every device and for any part of the numbers.

    >>> x = normal(torch.tensor([3, 4]), 10_000)
    >>> torch.equal(normal(torch.tensor([4]), 10_000)[0], x[1]), x.mean().abs().item() < 0.02, round(x.std().item(), 1)
    (True, True, 1.0)
    """
    x = torch.arange(size, dtype=torch.int32, device=numbers.device) + _hashed(numbers.to(torch.int32))[:, None]
    return to_device(_quantiles(), numbers.device)[(_hashed(x) & 0xFFFF).long()]


def _hashed(x: Tensor) -> Tensor:
    """A well-mixed permutation of the 32-bit integers (Wellons 2018, "lowbias32"); products wrap."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32))):
        x = (x ^ ((x >> shift) & (0xFFFFFFFF >> shift))) * factor
    return x ^ ((x >> 16) & 0xFFFF)


@lru_cache
def _quantiles() -> Tensor:
    return torch.special.ndtri((torch.arange(1 << 16, dtype=torch.float64) + 0.5) / (1 << 16)).float()
