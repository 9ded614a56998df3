"""Positions of tokens: float64 coordinates, (tokens, axes) or (batch, tokens, axes).

    sequence   t            grid   (row, column, …)        joint   (modality, axes of each modality …)
    packed     several of these in one row                 mrope   (time, height, width) of text and images
    a token without coordinates has NaN on every axis and is at the identity: A = I, angle 0

Positions are plain tensors: slice, concatenate and shift them, or build your own. Both integer and real coordinates
work. float64 represents every integer up to 2⁵³ exactly; half precision raises ValueError.
docs/conventions.md, convention 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor
from torch.nn import functional as F

from joformer._augmentation import augment
from joformer._precision import exact_device, readable

__all__ = [
    "augment",
    "cameras",
    "check_precision",
    "grid",
    "joint",
    "located",
    "mrope",
    "packed",
    "padded",
    "segments",
    "sequence",
    "tree",
    "with_prefix",
]

Device = torch.device | str | None
Normalise = Literal["separate", "max", "min"]
NOWHERE = float("nan")
WHOLE = (int, torch.SymInt)


def sequence(n: int, offset: int | float | Tensor = 0, *, device: Device = None) -> Float[Tensor, "*batch n 1"]:
    """``offset, offset + 1, …, offset + n − 1``: the positions of a sequence.

    Args:
        n: Number of tokens, 0 or more.
        offset: Position of the first token: a number, or one number per batch row, ``(batch,)``.
        device: Device of the result.

    Returns:
        ``(n, 1)``, or ``(batch, n, 1)`` if there is one offset per row.

    Raises:
        ValueError: If n is not a non-negative integer, or the offset has more than one dimension.

    Example:
        >>> sequence(3, offset=5).tolist()
        [[5.0], [6.0], [7.0]]
    """
    if not isinstance(n, WHOLE) or n < 0:
        raise ValueError(f"n must be the number of tokens, 0 or more, got {n}")
    steps = torch.arange(n, dtype=torch.float64, device=exact_device(device))
    if not isinstance(offset, Tensor):
        return (steps + offset).unsqueeze(-1)
    if offset.dim() > 1:
        raise ValueError(f"offset must be a number or one number per batch row (batch,), got {tuple(offset.shape)}")
    check_precision(offset, "offset is")
    return (steps.to(offset.device) + offset.to(torch.float64).unsqueeze(-1)).unsqueeze(-1)


def grid(
    *shape: int, prefix: int = 0, normalise: Normalise | None = None, device: Device = None
) -> Float[Tensor, "tokens axes"]:
    """``(row, column, …)`` of every cell of an array in row-major order, axes in array order.

    With `normalise`, the coordinates are the cell centres, ``2 (i + ½) / side − 1``, from −1 to 1 at any resolution.
    These are the coordinates of DINOv3, whose angles are 2π times these with ``base=100``.

    Args:
        shape: Number of cells along each axis.
        prefix: Number of tokens at the identity that come first, such as a class token and registers.
        normalise: Divide by each axis' own number of cells ("separate"), or by the largest ("max") or smallest ("min")
            of all, which keeps cells square.
        device: Device of the result.

    Returns:
        ``(prefix + cells, axes)``: ``grid(14, 14, prefix=1)`` is (197, 2).

    Raises:
        ValueError: If there are no axes, or an axis has no cells.

    Example:
        >>> grid(2, 2, prefix=1).tolist()
        [[nan, nan], [0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
        >>> grid(1, 2, normalise="separate").tolist(), grid(1, 2, normalise="max").tolist()
        ([[0.0, -0.5], [0.0, 0.5]], [[-0.5, -0.5], [-0.5, 0.5]])
    """
    if not shape or not all(isinstance(n, WHOLE) and n >= 1 for n in shape):
        raise ValueError(
            f"a grid needs at least one axis and at least one cell per axis, e.g. grid(14, 14), got {shape}"
        )
    axes = [torch.arange(n, dtype=torch.float64, device=exact_device(device)) for n in shape]
    if normalise is not None:
        if normalise not in get_args(Normalise):
            raise ValueError(f"normalise must be 'separate', 'max' or 'min', got {normalise!r}")
        sides = shape if normalise == "separate" else [(max if normalise == "max" else min)(shape)] * len(shape)
        axes = [2 * (axis + 0.5) / side - 1 for axis, side in zip(axes, sides, strict=True)]
    cells = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
    return with_prefix(cells, prefix)


def with_prefix(positions: Num[Tensor, "*batch tokens axes"], prefix: int) -> Float[Tensor, "*batch more axes"]:
    """Prepends `prefix` tokens at the identity.

    Args:
        positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``.
        prefix: Number of tokens at the identity to prepend.

    Returns:
        ``(…, prefix + tokens, axes)``.

    Raises:
        ValueError: If `prefix` is negative.

    Example:
        >>> with_prefix(sequence(1), 2).tolist()
        [[nan], [nan], [0.0]]
    """
    if prefix < 0:
        raise ValueError(f"prefix must be the number of tokens at the identity, 0 or more, got {prefix}")
    positions = positions if positions.is_floating_point() else positions.to(torch.float64)
    if not prefix:
        return positions
    nowhere = positions.new_full((*positions.shape[:-2], prefix, positions.shape[-1]), NOWHERE)
    return torch.cat((nowhere, positions), -2)


def packed(
    lengths: Sequence[int] | Sequence[Sequence[int]], *, prefix: int = 0, device: Device = None
) -> Float[Tensor, "tokens axes"]:
    """Several sequences, or grids of any shape, packed end to end, each starting again at 0 (for images, NaViT).

    Use it together with `segments`, called with the same arguments.

    Args:
        lengths: Number of tokens of each sequence, or shape of each grid, all with the same number of axes.
        prefix: Number of tokens at the identity that come first in each, such as class tokens and registers.
        device: Device of the result.

    Returns:
        ``(tokens, axes)``; one axis for sequences.

    Raises:
        ValueError: If there is no sequence or grid, one is empty, or they differ in their number of axes.

    Example:
        >>> packed([2, 3]).flatten().tolist()
        [0.0, 1.0, 0.0, 1.0, 2.0]
        >>> packed([(1, 2), (2, 1)]).tolist()
        [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    return torch.cat([grid(*shape, prefix=prefix, device=device) for shape in _checked_shapes(lengths)])


def segments(
    lengths: Sequence[int] | Sequence[Sequence[int]], *, prefix: int = 0, device: Device = None
) -> Int[Tensor, "tokens"]:
    """The index of the packed sequence or grid that each token belongs to; attention uses it to keep them apart.

    Args:
        lengths: Number of tokens of each sequence, or shape of each grid.
        prefix: Number of tokens at the identity that come first in each.
        device: Device of the result.

    Returns:
        ``(tokens,)``, integers.

    Raises:
        ValueError: If there is no sequence or grid, one is empty, or they differ in their number of axes.

    Example:
        >>> segments([2, 3]).tolist(), segments([(1, 2), (2, 2)]).tolist()
        ([0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1])
    """
    counts = torch.tensor([prefix + prod(shape) for shape in _checked_shapes(lengths)], device=device)
    return torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)


def mrope(*parts: int | Sequence[int], device: Device = None) -> Float[Tensor, "tokens 3"]:
    """``(time, height, width)`` of text and images in one sequence, counted as in Qwen2-VL: for `frequencies.mrope`.

    A text token has the same number on all three axes. An image or video has its own coordinates on each axis,
    starting at the next number, and whatever follows starts one after the largest of them. (transformers takes the
    larger of height and width alone, which differs for videos longer than they are wide.)

    Args:
        parts: Number of text tokens, or the shape (time, height, width) of an image or video, in tokens.
        device: Device of the result.

    Returns:
        ``(tokens, 3)``.

    Raises:
        ValueError: If there are no parts, or a part is neither of the two.

    Example:
        >>> mrope(2, (1, 1, 2), 1).tolist()
        [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [2.0, 2.0, 3.0], [4.0, 4.0, 4.0]]
    """
    rows: list[Tensor] = []
    start = 0
    for part in parts:
        if isinstance(part, Sequence) and len(part) != 3:
            raise ValueError(f"a part must be a number of text tokens or a shape (time, height, width), got {part}")
        if isinstance(part, Sequence):
            rows.append(grid(*part, device=device) + start)
            start += max(part)
        else:
            rows.append(sequence(part, start, device=device).expand(-1, 3))
            start += part
    if not rows:
        raise ValueError("mrope needs at least one part, e.g. mrope(5, (1, 16, 24), 7)")
    return torch.cat(rows)


def padded(mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens 1"]:
    """Counts the real tokens of each row from 0; padding, on the left or right, is at the identity.

    To hide the padding from attention, pass it ``mask[:, None, None, :]``.

    Args:
        mask: True for real tokens, ``(batch, tokens)``.

    Returns:
        ``(batch, tokens, 1)``.

    Raises:
        ValueError: If the mask is not boolean or not two-dimensional.

    Example:
        >>> padded(torch.tensor([[False, True, True], [True, True, False]]))[..., 0].tolist()
        [[nan, 0.0, 1.0], [0.0, 1.0, nan]]
    """
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise ValueError(f"mask must be boolean (batch, tokens), True for real tokens, got {mask.dtype} {mask.shape}")
    count = mask.to(device=exact_device(mask.device)).cumsum(-1).to(torch.float64) - 1
    return torch.where(mask.to(count.device), count, NOWHERE).unsqueeze(-1)


def tree(
    parents: Sequence[int] | Tensor, *, branches: Sequence[int] | None = None, device: Device = None
) -> Float[Tensor, "nodes depth"]:
    """The path from the root to each node: the branch taken at each depth, NaN below the node.

    Args:
        parents: The parent of each node, −1 for the root.
        branches: The branch that leads to each node; by default its rank among its siblings.
        device: Device of the result.

    Returns:
        ``(nodes, depth of the deepest node)``; the root is at the identity.

    Raises:
        ValueError: If there is not exactly one root, there is a cycle, or an index is out of range.

    Example:
        >>> tree([-1, 0, 0, 2]).tolist()
        [[nan, nan], [0.0, nan], [1.0, nan], [1.0, 0.0]]
    """
    parents = _whole(parents, "parents")
    branches = None if branches is None else _whole(branches, "branches")
    if branches is not None and len(branches) != len(parents):
        raise ValueError(f"branches must name one branch per node: {len(parents)} nodes, {len(branches)} branches")
    siblings: Counter[int] = Counter()
    ranks: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < len(parents) or parent == node:
            raise ValueError(f"parents[{node}] is {parent}: it must be another node's index, or -1 for the root")
        ranks.append(siblings[parent])
        siblings[parent] += 1
    if siblings[-1] != 1:
        raise ValueError(f"a tree has one root (parent -1), got {siblings[-1]}; give several trees one common root")
    steps = branches or ranks
    paths: list[list[float]] = []
    for node in range(len(parents)):
        path: list[float] = []
        at = node
        while parents[at] != -1:
            path.append(steps[at])
            at = parents[at]
            if len(path) > len(parents):
                raise ValueError(f"parents has a cycle through node {node}: following parents must end at the root")
        paths.append(path[::-1])
    depth = max(1, *map(len, paths))
    rows = [path + [NOWHERE] * (depth - len(path)) for path in paths]
    return torch.tensor(rows, dtype=torch.float64, device=exact_device(device))


def joint(*parts: Tensor) -> Float[Tensor, "*batch tokens axes"]:
    """``(m, 0 …, coordinates of part m, 0 …)``: several modalities; the modality axis first, then those of each part.

    Part m has m on the modality axis, its coordinates on its own axes and 0 on all others. A journey between
    modalities therefore consists of R_mod and the absolute operators of both parts (docs/claims.md row 47). Tokens at
    the identity stay there.

    Args:
        parts: Positions of each modality, ``(tokens, axes)`` or ``(batch, tokens, axes)``.

    Returns:
        ``(…, all tokens, 1 + all axes)``.

    Raises:
        ValueError: If there are no parts, or their batches differ.

    Example:
        >>> joint(sequence(2), grid(1, 2)).tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    """
    if not parts:
        raise ValueError("joint needs at least one part, e.g. joint(sequence(10), grid(4, 4))")
    if len({part.shape[:-2] for part in parts}) > 1:
        raise ValueError(f"parts must have the same batch, got {[tuple(part.shape) for part in parts]}")
    for part in parts:
        check_precision(part, "positions are")
    parts = tuple(part.to(torch.float64) for part in parts)
    total = 1 + sum(part.shape[-1] for part in parts)
    rows, start = [], 1
    for modality, part in enumerate(parts):
        row = F.pad(part, (start, total - start - part.shape[-1]))
        row[..., 0] = modality
        rows.append(torch.where(located(part).unsqueeze(-1), row, NOWHERE))
        start += part.shape[-1]
    return torch.cat(rows, -2)


def located(positions: Num[Tensor, "*batch tokens axes"]) -> Bool[Tensor, "*batch tokens"]:
    """Which tokens have coordinates; the others are at the identity.

    Args:
        positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``.

    Returns:
        ``(tokens,)`` or ``(batch, tokens)``, boolean.

    Example:
        >>> located(grid(1, 2, prefix=1)).tolist()
        [False, True, True]
    """
    return ~positions.isnan().all(-1)


def check_precision(given: Tensor, what: str) -> None:
    """Raises ValueError if coordinates are in half precision, which rounds them to other coordinates.

    Args:
        given: The coordinates.
        what: How the message begins, e.g. "positions are".

    Example:
        >>> check_precision(torch.ones(2, 1, dtype=torch.int32), "positions are")
    """
    if given.is_floating_point() and given.dtype.itemsize < 4:
        raise ValueError(
            f"{what} {given.dtype}, which rounds whole numbers: use float64, float32 or integers; under FSDP use "
            "MixedPrecisionPolicy(cast_forward_inputs=False)"
        )


def _whole(numbers: Sequence[int] | Tensor, name: str) -> list[int]:
    listed = numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)
    if any(int(n) != n for n in listed):
        raise ValueError(f"{name} must be whole numbers, got {listed}")
    return [int(n) for n in listed]


def cameras(
    extrinsics: Float[Tensor, "*batch views 4 4"],
    patches: tuple[int, int],
    *,
    intrinsics: Float[Tensor, "*batch views 3 3"] | None = None,
    image: tuple[int, int] | None = None,
) -> Float[Tensor, "*batch tokens 18"]:
    """``(P, row, column)`` of every patch of every view, ``P = [K′ 0; 0 1] [R t; 0 1]``: what `CameraFrames` takes.

    K′ is K for an image of size 1 × 1 around its centre (PRoPE): f_x / width, f_y / height, c_x / width − ½ and
    c_y / height − ½. Without intrinsics K′ is the identity, and a journey is the rigid motion between cameras (GTA).

    Args:
        extrinsics: World to camera, ``[R t; 0 1]``, ``(views, 4, 4)`` or ``(batch, views, 4, 4)``.
        patches: Number of patches per image, (rows, columns).
        intrinsics: K in pixels, ``(views, 3, 3)`` or ``(batch, views, 3, 3)``.
        image: Image size in pixels, (height, width); required with intrinsics.

    Returns:
        ``(views · rows · columns, 18)``, with a batch dimension if the extrinsics have one; view by view, row-major.

    Raises:
        ValueError: If the shapes are incompatible or, on the CPU, a number is not finite or the last row of the
            extrinsics is not (0, 0, 0, 1), for example because they are transposed.

    Example:
        >>> cameras(torch.eye(4).repeat(2, 1, 1), (3, 5)).shape
        torch.Size([30, 18])
    """
    if extrinsics.dim() not in (3, 4) or extrinsics.shape[-2:] != (4, 4):
        raise ValueError(f"extrinsics must be (views, 4, 4) or (batch, views, 4, 4), got {tuple(extrinsics.shape)}")
    if intrinsics is not None and (image is None or intrinsics.shape != (*extrinsics.shape[:-2], 3, 3)):
        raise ValueError(
            f"intrinsics must be {(*extrinsics.shape[:-2], 3, 3)}, one K in pixels per view, with "
            f"image=(height, width), got {tuple(intrinsics.shape)} and image={image}"
        )
    for name, given in (("extrinsics", extrinsics), ("intrinsics", intrinsics)):
        if given is not None:
            check_precision(given, f"{name} are")
            if readable(given) and not given.isfinite().all():
                raise ValueError(f"{name} must be finite")
    projection = extrinsics.to(exact_device(extrinsics.device), torch.float64)
    if readable(projection) and not torch.allclose(projection[..., 3, :], projection.new_tensor([0.0, 0.0, 0.0, 1.0])):
        raise ValueError(
            "extrinsics must be [R t; 0 1] with the last row (0, 0, 0, 1): if they are transposed, pass extrinsics.mT"
        )
    if intrinsics is not None and image is not None:
        height, width = image
        unit = projection.new_tensor([[1 / width, 0, -0.5], [0, 1 / height, -0.5], [0, 0, 1]])
        projection = torch.cat((unit @ intrinsics.to(projection) @ projection[..., :3, :], projection[..., 3:, :]), -2)
    cells = grid(*patches, device=projection.device)
    each = projection.flatten(-2).unsqueeze(-2).expand(*projection.shape[:-2], len(cells), 16)
    return torch.cat((each, cells.expand(*each.shape[:-1], 2)), -1).flatten(-3, -2)


def _checked_shapes(lengths: Sequence[int] | Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Each entry as the shape of a grid; a sequence is a grid with one axis."""
    shapes = [tuple(n) if isinstance(n, Sequence) else (n,) for n in lengths]
    if not shapes or any(not shape or min(shape) < 1 for shape in shapes):
        raise ValueError(
            f"lengths must be the tokens of each sequence or the shape of each grid, all 1 or more, got {list(lengths)}"
        )
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"packed grids must all have the same number of axes, got {list(lengths)}")
    return shapes
