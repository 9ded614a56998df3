"""Angle fields: the angle each frames module gives every patch of an image, and what it adds to the fixed one.

    fixed  ω·n      learned  ω'·n      projected  ω·n + φ(x_n)      cumulative  ω·n + Σ φ(x) along the path to n

Paper: "Architecture Variants"; docs/claims.md rows 23, 24 and 33.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.frames import CumulativeFrames, FixedFrames, LearnedFrames, ProjectedFrames, is_flat
from joformer.frames._base import FramesModule, wrap
from joformer.positions import grid
from joformer.verify.figures._sheet import Figure, sheet

HEAD_DIM = 8
BASE = 100.0


def angle_fields_figure(
    image: Tensor | None = None,
    frames: Mapping[str, FramesModule] | None = None,
    *,
    patch: int = 4,
    dim: int = 16,
    plane: int = 1,
    seed: int = 0,
) -> Figure:
    """Draws cos θ over the patches of an image, and beside it θ minus the angle of the first module, in radians.

    Args:
        image: Grey values (height, width); by default a drawing of a disc and a bar.
        frames: Frames modules of two axes by name, called with x (1, tokens, dim), the patches under a random linear
            map. The default compares fixed, learned (random changes of the frequencies), projected and cumulative
            frames (random W₂, since it starts at zero).
        patch: The side of a patch in pixels.
        dim: The width of x.
        plane: The plane drawn, of the first head.
        seed: The seed of all that is random.

    Example:
        >>> figure = angle_fields_figure(torch.eye(8), patch=2)
        >>> [axes.get_title() for axes in figure.axes[:4]]
        ['fixed', 'the image', 'learned', 'learned − fixed']
    """
    picture = _drawing() if image is None else image.detach().cpu().double()
    if picture.ndim != 2 or patch < 1 or min(picture.shape) < patch:
        raise ValueError(f"image has shape {tuple(picture.shape)}: give (height, width), a patch of {patch} or larger")
    modules = _defaults(dim, seed) if frames is None else dict(frames)
    if not modules:
        raise ValueError("no frames given: name at least one module, {'mine': FixedFrames(8, axes=2)}")
    x, shape = _tokens(picture, patch, dim, seed)
    fields = {name: _field(name, module, x, shape, plane) for name, module in modules.items()}
    first, *_ = fields
    added = {name: wrap(field - fields[first]) for name, field in fields.items()}
    most = max(*(float(field.abs().max()) for field in added.values()), 1e-6)

    caption = f"One plane over {shape[0]} × {shape[1]} patches: left cos θ, right θ minus the angle of “{first}”. "
    if frames is None:
        caption += (
            "Learned frequencies (here changed at random) tilt the waves; projected angles (W₂ drawn at random) change "
            "where the content is; cumulative ones keep the change all along the row behind it. "
            "docs/claims.md rows 23, 24 and 33; paper, “Architecture Variants”."
        )
    title = "Fixed and learned angles see position alone, the others content too"
    with sheet(title, caption, height=2.4 + 1.95 * len(fields)) as figure:
        panels = figure.subplots(len(fields), 2, squeeze=False)
        for axes, (name, field) in zip(panels[:, 0], fields.items(), strict=True):
            waves = axes.imshow(field.cos().numpy(), cmap="gray", vmin=-1, vmax=1)
            axes.set(title=name, xlabel="column", ylabel="row")
        for axes, (name, field) in zip(panels[:, 1], added.items(), strict=True):
            if name == first:  # its difference from itself says nothing: the place of the image
                axes.imshow(picture.numpy(), cmap="gray", extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5))
                axes.set(title="the image", xlabel="column", ylabel="row")
                continue
            ramp = axes.imshow(field.numpy(), cmap="cividis", vmin=-most, vmax=most)
            axes.set(title=f"{name} − {first}", xlabel="column", ylabel="row")
        bar = partial(figure.colorbar, location="bottom", shrink=0.75, aspect=15)
        bar(waves, ax=list(panels[:, 0]), ticks=(-1, 0, 1)).set_label("cos θ")
        if len(fields) > 1:
            bar(ramp, ax=list(panels[:, 1])).set_label("difference (radians)")
    return figure


def _drawing() -> Float[Tensor, "64 64"]:
    """A shaded disc above, a bar below, on black."""
    y, x = torch.meshgrid(*(torch.arange(64, dtype=torch.float64),) * 2, indexing="ij")
    disc = (1 - ((x - 22) ** 2 + (y - 20) ** 2) / 15**2).clamp(min=0).sqrt()
    bar = ((x - 44).abs() < 6) & ((y - 44).abs() < 14)
    return torch.where(bar, 0.6, disc)


def _tokens(picture: Tensor, patch: int, dim: int, seed: int) -> tuple[Float[Tensor, "1 tokens dim"], tuple[int, int]]:
    patches = picture.unfold(0, patch, patch).unfold(1, patch, patch)
    rng = torch.Generator().manual_seed(seed % 2**63)
    embed = torch.randn(patch * patch, dim, generator=rng, dtype=torch.float64)
    shape = (patches.shape[0], patches.shape[1])
    return (patches.flatten(2).flatten(0, 1) @ embed).float()[None], shape


@torch.no_grad()
def _defaults(dim: int, seed: int) -> dict[str, FramesModule]:
    rng = torch.Generator().manual_seed(seed % 2**63)
    learned = LearnedFrames(HEAD_DIM, axes=2, split="combined", base=BASE)
    learned.frequencies.add_(0.04 * torch.randn(learned.frequencies.shape, generator=rng))
    projected = ProjectedFrames(dim, HEAD_DIM, heads=1, axes=2, split="combined", base=BASE)
    cumulative = CumulativeFrames(dim, HEAD_DIM, heads=1, axes=2, split="combined", base=BASE)
    for module, size in ((projected, 1.5), (cumulative, 0.3)):
        linear = module.projector
        nn.init.normal_(linear.w1.weight, std=dim**-0.5, generator=rng)
        nn.init.zeros_(linear.w1.bias)  # an empty patch then adds no angle, which is easier to read
        nn.init.normal_(linear.w2.weight, std=size * dim**-0.5, generator=rng)
    return {
        "fixed": FixedFrames(HEAD_DIM, axes=2, split="combined", base=BASE),
        "learned": learned,
        "projected": projected,
        "cumulative": cumulative,
    }


@torch.no_grad()
def _field(name: str, module: FramesModule, x: Tensor, shape: tuple[int, int], plane: int) -> Tensor:
    """The angles of one plane of the first head as float64 (rows, columns)."""
    if module.axes != 2:
        raise ValueError(f"the frames {name!r} have {module.axes} axes: an image has two, give axes=2")
    value = module(grid(*shape), x, grid=shape)
    if not is_flat(value):
        raise ValueError(f"the frames {name!r} are curved: only flat ones have angles, e.g. FixedFrames")
    if not 0 <= plane < value.planes:
        raise ValueError(
            f"plane {plane} is not among the {value.planes} planes of {name!r}: choose 0 to {value.planes - 1}"
        )
    return value.angles[0, :, 0, plane].double().unflatten(0, shape)
