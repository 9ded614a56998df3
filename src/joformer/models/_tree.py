"""JoFormerTree: an encoder over the nodes of a tree, with frames given by the path from the root.

    frames        frame or code of a node
    tree          θ = Σ_d ω[d, b_d]               TreeFrames: generators commute, each depth has its own
    tree-dense    A = R[b_1] R[b_2] ⋯             DenseTreeFrames: generators do not commute, depths share them
    fixed         θ = ω·t                         RoPE on the number of the node in pre-order
    shiv-quirk    x + Σ_s W[s, b_s]               Shiv and Quirk's code, added; s counts steps up from the node
    none          –                               a bag of nodes

There are two kinds of output: `reads="kinds"` gives logits of each node's kind, `reads="nodes"` one score per node (a
pointer). Shiv and Quirk (2019) scale the slot of each step by a learned power and add it to the embedding. Here a
trained matrix, which includes that power, projects it to the model's width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from joformer import positions
from joformer.attention._options import Transport
from joformer.frames import DenseTreeFrames, FixedFrames, NoFrames, TreeFrames
from joformer.frames._tree import check_paths
from joformer.models._blocks import LayerFrames, encoder, last, require_counts, require_probabilities, run_blocks

FramesName = Literal["tree", "tree-dense", "fixed", "shiv-quirk", "none"]
STILL = ("shiv-quirk", "none")
"""Frames that cannot transport anything."""
BASE = 10.0
"""Base of the initial angles of commuting branches: with 10,000 most branches would start near 0 (docs/log.md)."""


@dataclass(frozen=True)
class TreeConfig:
    """Configuration of a `JoFormerTree`.

    Raises:
        ValueError: If the fields contradict each other.

    Example:
        >>> TreeConfig(kinds=10, frames="none").transport
        'none'
    """

    kinds: int = 2
    """Number of kinds of nodes."""
    names: int = 1024
    """Number of vectors that names are hashed into; the first one means no name."""
    reads: Literal["kinds", "nodes"] = "kinds"
    """The output for each node: logits of its kind, or one score."""
    dim: int = 64
    """Width of the model."""
    layers: int = 2
    heads: int = 4
    hidden: int | None = None
    """Width of the feed-forward network; four times dim by default."""
    frames: FramesName = "tree"
    """Positions of nodes: their path, with generators that commute (tree) or do not (tree-dense); their place in the
    sequence of all nodes (fixed, as in RoPE); an additive code of the path (shiv-quirk); or none."""
    transport: Transport | None = None
    """What is transported: scores (RoPE), values, both (JoFormer, the default) or none."""
    depth: int = 12
    """Maximum depth of a node."""
    branches: int = 16
    """Maximum number of branches of a node."""
    base: float = 10000.0
    """Base of RoPE's frequencies (fixed)."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_counts(self, "kinds", "names", "dim", "layers", "heads", "hidden", "depth", "branches")
        require_probabilities(dropout=self.dropout)
        if self.frames not in get_args(FramesName):
            raise ValueError(f"frames must be one of {', '.join(get_args(FramesName))}, got {self.frames!r}")
        if self.transport is None:
            object.__setattr__(self, "transport", "none" if self.frames in STILL else "both")
        if self.transport not in get_args(Transport):
            raise ValueError(f"transport must be one of {', '.join(get_args(Transport))}, got {self.transport!r}")
        if self.frames in STILL and self.transport != "none":
            raise ValueError(f"frames={self.frames!r} cannot transport anything: use other frames, or transport='none'")
        if self.reads not in ("kinds", "nodes"):
            raise ValueError(f"reads must be 'kinds' or 'nodes', got {self.reads!r}")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")

    def build(self) -> JoFormerTree:
        """Builds a model with this configuration and random weights."""
        return JoFormerTree(self)


class PathCode(nn.Module):
    """``Σ_s W[s, b_s]``: Shiv and Quirk's code of a path, the newest branch first, through a trained matrix.

    Args:
        depth: Maximum depth of a node.
        branches: Maximum number of branches of a node.
        dim: Width of the model.

    Example:
        >>> code = PathCode(2, 2, 8)
        >>> where = positions.tree([-1, 0, 0, 1])
        >>> torch.equal(code(where)[3], code.weight[0] + code.weight[2]), code(where)[0].abs().sum().item()
        (True, 0.0)
    """

    def __init__(self, depth: int, branches: int, dim: int) -> None:
        super().__init__()
        self.depth, self.branches = depth, branches
        self.weight = nn.Parameter(torch.empty(depth * branches, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the matrix."""
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, where: Float[Tensor, "*batch nodes depth"]) -> Float[Tensor, "*batch nodes dim"]:
        """The code of each node, 0 for the root."""
        below = where.isnan()
        check_paths(where, below, self.branches, self.depth)
        steps = (~below).sum(-1, keepdim=True) - 1 - torch.arange(where.shape[-1], device=where.device)
        slot = torch.where(below, 0, steps * self.branches + where.nan_to_num().long())
        code = torch.zeros(*where.shape[:-1], len(self.weight), dtype=self.weight.dtype, device=where.device)
        return code.scatter_add(-1, slot, (~below).to(code.dtype)) @ self.weight


class JoFormerTree(nn.Module):
    """A tree encoder: logits of the kind of each node, or one score per node.

    Args:
        config: The model's configuration.

    Example:
        >>> model = JoFormerTree(TreeConfig(kinds=5, dim=32, heads=2))
        >>> kinds, names = torch.randint(5, (2, 2, 4))
        >>> model(kinds, names, positions.tree([-1, 0, 0, 1])).shape
        torch.Size([2, 4, 5])
    """

    config_class = TreeConfig

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.kinds = nn.Embedding(config.kinds + 1, dim)  # one more for a hidden kind
        self.names = nn.Embedding(config.names, dim)
        self.code = PathCode(config.depth, config.branches, dim) if config.frames == "shiv-quirk" else None
        self.frames = _frames(config)
        self.blocks = encoder(config, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.kinds if config.reads == "kinds" else 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the embeddings."""
        for table in (self.kinds, self.names):
            nn.init.normal_(table.weight, std=0.02)

    def forward(
        self,
        kinds: Int[Tensor, "trees nodes"],
        names: Int[Tensor, "trees nodes"],
        where: Float[Tensor, "*trees nodes depth"],
        *,
        real: Bool[Tensor, "trees nodes"] | None = None,
    ) -> Float[Tensor, "trees nodes kinds"] | Float[Tensor, "trees nodes"]:
        """The output for each node.

        Args:
            kinds: Indices of kinds, ``(trees, nodes)``; an index equal to the number of kinds means hidden.
            names: Hashes of names, ``(trees, nodes)``, 0 for none.
            where: Paths, ``(nodes, depth)`` or ``(trees, nodes, depth)``, as returned by `positions.tree`.
            real: True for real nodes, ``(trees, nodes)``, if trees are padded to one length; by default all are real.

        Returns:
            Logits ``(trees, nodes, kinds)``, or scores ``(trees, nodes)``.

        Raises:
            ValueError: If kinds, names and paths differ in their number of nodes.
        """
        x, frames = self.start(kinds, names, where)
        apart = None if real is None else (~real).long()  # padding sees only padding

        def padded(layer: int, block: nn.Module, x: Tensor) -> Tensor:
            return block(x, frames(layer, x), segments=apart)

        read = self.head(self.norm(last(run_blocks(self.blocks, frames, x, call=padded))))
        return read if self.config.reads == "kinds" else read.squeeze(-1)

    def start(
        self,
        kinds: Int[Tensor, "trees nodes"],
        names: Int[Tensor, "trees nodes"],
        where: Float[Tensor, "*trees nodes depth"],
    ) -> tuple[Float[Tensor, "trees nodes dim"], LayerFrames]:
        """The input of the first block, and the frames of each layer.

        Args:
            kinds: As in `forward`.
            names: As in `forward`.
            where: As in `forward`.

        Returns:
            The nodes, ``(trees, nodes, dim)``, and the frames for `run_blocks`.

        Example:
            >>> model = JoFormerTree(TreeConfig(kinds=5, dim=32, heads=2))
            >>> x, frames = model.start(*torch.zeros(2, 1, 3, dtype=torch.int64), positions.tree([-1, 0, 0]))
            >>> x.shape, frames(0, x).tokens
            (torch.Size([1, 3, 32]), 3)
        """
        if kinds.shape != names.shape or where.shape[-2] != kinds.shape[-1]:
            given = ", ".join(str(tuple(t.shape)) for t in (kinds, names, where))
            raise ValueError(f"kinds and names must be (trees, nodes) and paths (…, nodes, depth), got {given}")
        buckets = torch.where(names == 0, 0, 1 + names % max(self.config.names - 1, 1)).clamp(max=self.config.names - 1)
        x = self.kinds(kinds) + self.names(buckets)
        if self.code is not None:
            x = x + self.code(where)
        if self.config.frames not in ("tree", "tree-dense"):
            where = positions.sequence(kinds.shape[1], device=x.device)
        return x, LayerFrames([self.frames] * self.config.layers, where, x)


def _frames(config: TreeConfig) -> nn.Module:
    head_dim = config.dim // config.heads
    if config.transport == "none":
        return NoFrames()
    if config.frames == "fixed":
        return FixedFrames(head_dim, base=config.base)
    if config.frames == "tree":
        depth, heads = config.depth, config.heads
        return TreeFrames(head_dim, branches=config.branches, depth=depth, heads=heads, base=BASE)
    return DenseTreeFrames(head_dim, branches=config.branches)
