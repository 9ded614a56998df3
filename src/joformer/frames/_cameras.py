"""Camera frames (PRoPE; GTA without intrinsics): the operator of a token maps its camera's image to the world.

    P_t = [K′ 0; 0 1] [R t; 0 1]               world → camera → image, K′ for an image of size 1 × 1 around its centre
    A_t = diag(P_t⁻¹, …, P_t⁻¹, R(ω·row), R(ω·column))
    A_i⁻¹ A_j = diag(P_i P_j⁻¹, …)            from the image of key j through the world into the image of query i

P_t need not be orthogonal, so queries are multiplied by A⁻ᵀ. The choice of world coordinates is gauge: P_t → P_t W
changes no journey. Li et al., "Cameras as Relative Positional Encoding", 2025; Miyato et al., "GTA", 2024. Their
D_t is A_t⁻¹, and their order of entries is a permutation of ours (docs/conventions.md, convention 9).
"""

from __future__ import annotations

import torch

from joformer.frames._base import FramesModule, Inputs, coordinates
from joformer.frames._curved import CurvedFrames, inverse
from joformer.frames._fixed import FixedFrames
from joformer.frames._types import JointFrames
from joformer.positions import located


class CameraFrames(FramesModule):
    """``A_t = diag(I ⊗ P_t⁻¹, R(ω·row), R(ω·column))``: half a head for the camera, a quarter for each image axis.

    There are no parameters. Positions come from `positions.cameras`, one row ``(P, row, column)`` of 16 + 2 numbers per
    token; P may differ from token to token and receives gradients. Keep the scene a few units wide: P_t⁻¹ transports
    the values, its entries grow with the distance of the camera from the origin, and half precision keeps three digits.

    Args:
        head_dim: Width of a head; must be a multiple of 8.
        base: Base of the frequencies ω of rows and columns.

    Raises:
        ValueError: If `head_dim` is not a multiple of 8; in the call, on the CPU, if a camera is singular.

    Example:
        >>> from joformer import positions
        >>> extrinsics = torch.eye(4).repeat(2, 1, 1)
        >>> extrinsics[1, 0, 3] = 0.5
        >>> frames = CameraFrames(64)(positions.cameras(extrinsics, (4, 6)))
        >>> frames.tokens, frames.width
        (48, 64)
    """

    shift_invariant = False  # adding to a matrix is not a displacement

    def __init__(self, head_dim: int, *, base: float = 100.0) -> None:
        super().__init__()
        if head_dim < 8 or head_dim % 8:
            raise ValueError(
                f"head_dim must be a multiple of 8, half for blocks of 4 and a quarter each for the planes of rows and "
                f"columns, got {head_dim}"
            )
        self.head_dim, self.heads, self.axes = head_dim, 1, 18
        self.patches = FixedFrames(head_dim // 2, axes=2, base=base)

    def make(self, given: Inputs) -> JointFrames:
        """The frames for one call."""
        known = coordinates(given.positions, self.axes, given.x)
        patches = self.patches(given.positions[..., 16:], given.x)
        # A token with some NaN numbers still has coordinates: its frame is NaN, or raises.
        where = given.positions.to(known).expand_as(known)
        one = torch.eye(4, dtype=known.dtype, device=known.device)
        projection = torch.where(located(where)[..., None, None], where[..., :16].unflatten(-1, (4, 4)), one)
        projection = projection[:, :, None, None]
        cameras = CurvedFrames(inverse(projection, "cameras"), inverses=projection, repeat=self.head_dim // 8)
        return JointFrames((cameras.to(patches.angles.device), patches))

    def extra_repr(self) -> str:
        """The width of a head."""
        return f"{self.head_dim}"
