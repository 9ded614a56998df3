"""JoFormerPoints: sets of points in space, whose real coordinates are the positions of their frames.

    x_t   = W f_t + b, or the same vector b for all points if they have no features      coordinates are not inputs
    θ_t   = ω · n_t        n_t the coordinates of point t, in units of the radius of the data
    y     = W_o mean_t x_t                                                               padding is ignored

    shift      n_t + s               every journey θ_t − θ_u is unchanged: the logits are exactly the same
    rotation   R n_t                 ω · R n_t = (Rᵀω) · n_t, different frequencies: the logits change
    polar      (|n|, arg n) about the centroid, whole frequencies on the angle: a rotation is a shift of one axis, and
               both leave the logits exactly unchanged

Points without features are all equal: attention that transports only the scores averages equal values and is blind;
transported values are R(θ_u − θ_t) v, whose mean is the Fourier transform of the set as seen from point t.
docs/recipes.md, "Points in space".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from joformer._precision import exact_device
from joformer.attention._options import Transport
from joformer.frames import FixedFrames, LearnedFrames, NoFrames
from joformer.frequencies import geometric
from joformer.models._blocks import LayerFrames, encoder, last, require_counts, require_probabilities, run_blocks

PointFrames = Literal["fixed", "learned"]
PointSplit = Literal["axial", "combined"]
Inputs = Literal["features", "coordinates"]
Coordinates = Literal["cartesian", "polar"]


@dataclass(frozen=True)
class PointsConfig:
    """Configuration of a `JoFormerPoints`.

    Attributes:
        axes: Number of coordinates per point.
        features: Number of features of a point in addition to its coordinates; 0 for none.
        classes: Number of classes.
        inputs: The input of the network: the "features" of a point (without any, all points are equal), or also its
            "coordinates", as in most point networks; the model is then no longer shift-invariant.
        coordinates: What frames are computed from: the coordinates ("cartesian"), or the distance and the angle of the
            first two about the centroid of the set ("polar"). With "polar", which needs fixed frames, rotations in
            their plane change nothing.
        frames: Frequencies "fixed" as in RoPE (the default), or "learned".
        split: How the axes share the planes: "axial" (the default) or "combined".
        transport: What is transported: "scores" (RoPE), "values", "both" (JoFormer, the default) or "none".
        dim: Width of the model.
        layers: Number of layers.
        heads: Attention heads per layer.
        hidden: Width of the feed-forward network; four times `dim` by default.
        fastest: Radians per unit of length of the fastest plane.
        base: At most how many times slower the slowest plane is.
        dropout: Dropout probability, 0 ≤ p < 1, on each residual branch and on the attention weights.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> PointsConfig(axes=3, transport="scores").shift_invariant
        True
    """

    axes: int = 2
    features: int = 0
    classes: int = 10
    inputs: Inputs = "features"
    coordinates: Coordinates = "cartesian"
    frames: PointFrames = "fixed"
    split: PointSplit = "axial"
    transport: Transport = "both"
    dim: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int | None = None
    fastest: float = 8.0
    base: float = 32.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "axes", "classes", "dim", "layers", "heads", "hidden")
        require_probabilities(dropout=self.dropout)
        choices = {
            "inputs": Inputs,
            "coordinates": Coordinates,
            "frames": PointFrames,
            "split": PointSplit,
            "transport": Transport,
        }
        for name, known in choices.items():
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {getattr(self, name)!r}")
        if self.features < 0:
            raise ValueError(f"features must be the number of features per point, 0 or more, got {self.features}")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")
        if not self.fastest > 0:
            raise ValueError(f"fastest must be in radians per unit of length, above 0, got {self.fastest}")
        if self.coordinates == "polar" and (self.axes < 2 or self.frames != "fixed"):
            raise ValueError(
                f"polar coordinates need 2 axes or more and frames='fixed', whose frequencies of the angle are whole; "
                f"got {self.axes} and {self.frames!r}"
            )

    @property
    def shift_invariant(self) -> bool:
        """Whether shifting a whole set changes nothing."""
        return self.inputs == "features"

    def build(self) -> JoFormerPoints:
        """Builds a model with this configuration and random weights."""
        return JoFormerPoints(self)


class JoFormerPoints(nn.Module):
    """A classifier of point sets: an encoder whose positions are the real coordinates, followed by a mean.

    Args:
        config: The model's configuration.

    Example:
        >>> model = JoFormerPoints(PointsConfig(dim=32)).double().eval()
        >>> points = torch.rand(3, 20, 2, dtype=torch.float64)
        >>> torch.allclose(model(points + 7), model(points), atol=1e-10)
        True
    """

    config_class = PointsConfig

    def __init__(self, config: PointsConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        width = config.features + (config.axes if config.inputs == "coordinates" else 0)
        self.start = nn.Parameter(torch.zeros(dim))
        self.embed = nn.Sequential(nn.Linear(width, dim), nn.GELU(), nn.Linear(dim, dim)) if width else None
        self.frames = _frames(config)
        self.blocks = encoder(config)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the model's own parameter: the initial vector of all points."""
        nn.init.normal_(self.start)

    def forward(
        self,
        points: Float[Tensor, "batch points axes"],
        features: Float[Tensor, "batch points features"] | None = None,
        *,
        mask: Bool[Tensor, "batch points"] | None = None,
    ) -> Float[Tensor, "batch classes"]:
        """Logits of the classes.

        Args:
            points: Coordinates, ``(batch, points, axes)``; ignored where `mask` is False.
            features: Features of each point, ``(batch, points, features)``.
            mask: True for real points, ``(batch, points)``; by default all are real. Each set needs at least one.

        Returns:
            Logits ``(batch, classes)``.

        Raises:
            ValueError: If points or features have the wrong shape.
        """
        config = self.config
        known = 0 if features is None else features.shape[-1]
        if points.dim() != 3 or points.shape[-1] != config.axes or not points.shape[1] or known != config.features:
            raise ValueError(
                f"points must be (batch, 1 point or more, {config.axes}) with {config.features} features each, got "
                f"{tuple(points.shape)} and {known} features"
            )
        if mask is not None:
            points = points.where(mask.unsqueeze(-1), 0.0)
            features = None if features is None else features.where(mask.unsqueeze(-1), 0.0)
        x = self.start.expand(*points.shape[:2], -1)
        if self.embed is not None:
            parts = [] if features is None else [features]
            read = torch.cat([*parts, points] if config.inputs == "coordinates" else parts, -1)
            x = x + self.embed(read.to(self.start.dtype))
        where = polar(points, mask) if config.coordinates == "polar" else points * config.fastest
        frames = LayerFrames([self.frames] * config.layers, where, x)
        # Padding is a separate segment: no real point attends to it, and it attends to itself.
        segments = None if mask is None else (~mask).long()

        def masked(layer: int, block: nn.Module, x: Tensor) -> Tensor:
            return block(x, frames(layer, x), segments=segments)

        x = self.norm(last(run_blocks(self.blocks, frames, x, call=masked)))
        if mask is None:
            return self.head(x.mean(1))
        return self.head(x.where(mask.unsqueeze(-1), 0.0).sum(1) / mask.sum(1, keepdim=True))


def polar(
    points: Float[Tensor, "batch points axes"], mask: Bool[Tensor, "batch points"] | None = None
) -> Float[Tensor, "batch points axes"]:
    """``(|n|, arg n, the other axes)`` of the first two coordinates n about the set's centroid, in float64.

    Args:
        points: Coordinates, ``(batch, points, axes)``, two axes or more.
        mask: True for real points; the others do not contribute to the centroid.

    Returns:
        Distance, angle and the other coordinates about the centroid, ``(batch, points, axes)``.

    Example:
        >>> polar(torch.tensor([[[1.0, 0.0], [3.0, 0.0], [2.0, 1.0], [2.0, -1.0]]]))[0, :3].tolist()
        [[1.0, 3.141592653589793], [1.0, 0.0], [1.0, 1.5707963267948966]]
    """
    exact = points.to(exact_device(points.device), torch.float64)
    if mask is None:
        centroid = exact.mean(1, keepdim=True)
    else:
        real = mask.to(exact.device).unsqueeze(-1)
        centroid = exact.where(real, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True)
    about = exact - centroid
    flat = about[..., :2]
    angle = torch.atan2(about[..., 1], about[..., 0])
    return torch.cat((flat.norm(dim=-1, keepdim=True), angle.unsqueeze(-1), about[..., 2:]), -1)


def _frames(config: PointsConfig) -> nn.Module:
    head_dim = config.dim // config.heads
    if config.transport == "none":
        return NoFrames(config.axes)
    if config.coordinates == "polar":
        return FixedFrames(head_dim, axes=config.axes, frequencies=_whole_angles(config, head_dim // 2))
    if config.frames == "fixed":
        return FixedFrames(head_dim, axes=config.axes, split=config.split, base=config.base)
    return LearnedFrames(head_dim, axes=config.axes, heads=config.heads, split=config.split, base=config.base)


def _whole_angles(config: PointsConfig, planes: int) -> Float[Tensor, "heads axes planes"]:
    """Frequencies that make a rotation a shift: 0, 1, 2, … on the angle, one per plane; on lengths one per head."""
    table = torch.zeros(config.heads, config.axes, planes, dtype=torch.float64, device="cpu")
    lengths = config.fastest * geometric(config.heads, config.base, device=torch.device("cpu"))
    table[:] = lengths[:, None, None]
    table[:, 1] = torch.arange(planes, dtype=torch.float64, device="cpu")
    return table
