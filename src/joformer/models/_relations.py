"""RotatE: a relation is a rotation, and a triple (head, relation, tail) holds where it maps the head to the tail.

    score(h, r, t) = margin − Σ_planes |R(θ_r) h − t|

    symmetric   r(x, y) ⇒ r(y, x)               2 θ_r = 0          modulo 2π, on the planes that carry the entities
    inverse     r(x, y) ⇒ s(y, x)               θ_s = −θ_r
    composed    r(x, y), s(y, z) ⇒ q(x, z)      θ_q = θ_r + θ_s

Relations are the axis-step generators of a torus and entities its points, so that composing relations is walking a
path: `algebra.path_transport(model.generators, [r, s, ~q])`. The paper's introduction names RotatE (Sun et
al. 2019) as a special case without deriving it (docs/claims.md row 14).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import KeepsPrecision, default_dtype
from joformer.algebra import Generators, Torus
from joformer.algebra._checks import require_tensor


class RotatE(KeepsPrecision):
    """score(h, r, t) = margin − Σ_planes |R(θ_r) h − t|.

    Its parameters are `entities` (entities, dim), planes the interleaved pairs of entries, and `angles`
    (relations, dim / 2).

    Args:
        entities: How many entities there are, 2 or more.
        relations: How many relations there are.
        dim: Length of an entity's vector, an even number.
        margin: The score of a triple that holds exactly.

    Raises:
        ValueError: If one of them is out of range.

    Example:
        >>> model = RotatE(entities=5, relations=2, dim=8)
        >>> triples = torch.tensor([[0, 1, 2], [3, 0, 4]])                   # head, relation, tail
        >>> model(*triples.T).shape, model.loss(triples, 16).shape
        (torch.Size([2]), torch.Size([]))
    """

    def __init__(self, entities: int, relations: int, dim: int, *, margin: int | float = 6.0) -> None:
        super().__init__()
        if entities < 2 or relations < 1:
            raise ValueError(f"a graph needs 2 entities and 1 relation or more, got {entities} and {relations}")
        if dim < 2 or dim % 2:
            raise ValueError(f"dim must be even, since planes are pairs of entries; got {dim}")
        self.group, self.margin = Torus(dim // 2), float(margin)
        self.entities = nn.Parameter(torch.empty(entities, dim, dtype=default_dtype()))
        self.angles = nn.Parameter(torch.empty(relations, dim // 2, dtype=default_dtype()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws entities and angles uniformly."""
        # As in the original: distances then start around the margin.
        reach = (self.margin + 2) / self.group.planes
        nn.init.uniform_(self.entities, -reach, reach)
        nn.init.uniform_(self.angles, -math.pi, math.pi)

    @property
    def generators(self) -> Generators:
        """The relations as axis-step generators, one axis each: what `algebra.path_transport` composes.

        >>> from joformer.algebra import path_transport
        >>> there_and_back = path_transport(RotatE(5, 2, 8).generators, [0, ~0])
        >>> there_and_back.abs().max().item() < 1e-6
        True
        """
        return Generators.torus(self.angles.clone())  # which further training does not change

    def forward(
        self, head: Int[Tensor, "..."], relation: Int[Tensor, "..."], tail: Int[Tensor, "..."]
    ) -> Float[Tensor, "..."]:
        """The score of triples.

        Args:
            head: Numbers of entities, ``(...)``.
            relation: Numbers of relations, ``(...)``.
            tail: Numbers of entities, ``(...)``; the three broadcast.

        Returns:
            Scores ``(...)``; higher where a triple rather holds.

        Raises:
            ValueError: If a number is not whole or, on the CPU, out of range.
        """
        self._check_ids(head, relation, tail)
        return self._score(self.group.act(self.angles[relation], self.entities[head]), self.entities[tail])

    def loss(
        self,
        triples: Int[Tensor, "_triples 3"],
        negatives: int,
        *,
        temperature: int | float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The mean of −log σ(score) − Σ_i p_i log σ(−score_i), over wrong heads and wrong tails alike.

        The weights p = softmax(temperature · score_i), without gradient, favour the hardest negatives (self-adversarial
        sampling).

        Args:
            triples: Head, relation and tail, ``(n, 3)``.
            negatives: How many wrong heads, and as many wrong tails, each triple is compared with.
            temperature: How much the hardest negatives count.
            generator: What draws the negatives; torch's own by default.

        Returns:
            A scalar.

        Raises:
            ValueError: If `triples` are no numbers of entities and relations, or `negatives` is below 1.

        Example:
            >>> RotatE(5, 2, 8).loss(torch.tensor([[0, 1, 2]]), 4).item() > 0
            True
        """
        self._check(triples)
        if not isinstance(negatives, int) or negatives < 1:
            raise ValueError(f"negatives is {negatives}: each triple needs 1 wrong head and tail or more")
        gone, came = self._rotated(triples)
        size = (2, len(triples), negatives)
        drawn = torch.randint(len(self.entities) - 1, size, generator=generator, device=triples.device)
        # Counted from the right entity on, so that it is never its own negative.
        wrong = self.entities[(triples[:, [2, 0], None].transpose(0, 1) + 1 + drawn) % len(self.entities)]
        right = F.logsigmoid(self._score(gone, self.entities[triples[:, 2]]))
        false = self._score(torch.stack((gone, came)).unsqueeze(2), wrong)
        weights = torch.softmax(temperature * false.detach(), -1)
        return -(right.mean() + (weights * F.logsigmoid(-false)).sum(-1).mean()) / 2

    @torch.no_grad()
    def rank(
        self, triples: Int[Tensor, "_triples 3"], *, known: Int[Tensor, "_known 3"] | None = None
    ) -> Int[Tensor, "_triples 2"]:
        """The rank of the right head and of the right tail among all entities; 1 is best, ties count against.

        Hits@k is `(model.rank(triples) <= k).float().mean()`.

        Args:
            triples: Head, relation and tail, ``(n, 3)``.
            known: Triples ``(m, 3)`` to leave out of the comparison (filtered ranks): another right answer is no error.

        Returns:
            Ranks of heads and tails, ``(n, 2)``.

        Raises:
            ValueError: If `triples` are no numbers of entities and relations.

        Example:
            >>> RotatE(5, 2, 8).rank(torch.tensor([[0, 1, 2]])).shape
            torch.Size([1, 2])
        """
        self._check(triples)
        ranks = []
        for side, point in zip((2, 0), self._rotated(triples), strict=True):
            scores = self._score(point.unsqueeze(1), self.entities)
            right = triples[:, side, None]
            own = scores.gather(1, right)
            if known is not None:
                rest = [1, 2 - side]
                row, other = (triples[:, None, rest] == known[None, :, rest]).all(-1).nonzero().unbind(1)
                scores[row, known[other, side]] = -torch.inf
            ranks.append((scores.scatter(1, right, -torch.inf) >= own).sum(1) + 1)
        return torch.stack(ranks[::-1], 1)

    def _rotated(self, triples: Tensor) -> tuple[Tensor, Tensor]:
        """R(θ_r) h, to be compared with tails, and R(θ_r)⁻¹ t, with heads: a rotation keeps all distances."""
        head, relation, tail = triples.unbind(-1)
        angles = self.angles[relation]
        there = self.group.act(angles, self.entities[head])
        return there, self.group.act(self.group.inverse(angles), self.entities[tail])

    def _score(self, point: Tensor, entity: Tensor) -> Tensor:
        apart = (point - entity).unflatten(-1, (-1, 2))
        return self.margin - torch.linalg.vector_norm(apart, dim=-1).sum(-1)

    def _check_ids(self, head: Tensor, relation: Tensor, tail: Tensor) -> None:
        # Reading values would stall a GPU; negative ones would otherwise count from the end.
        for name, ids in (("head", head), ("relation", relation), ("tail", tail)):
            count = len(self.angles if name == "relation" else self.entities)
            if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
                given = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
                raise ValueError(f"{name} is {given}: give a tensor of whole numbers 0 … {count - 1}")
            if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
                raise ValueError(f"{name} goes from {ids.min()} to {ids.max()}: it must be within 0 … {count - 1}")

    def _check(self, triples: Tensor) -> None:
        require_tensor(triples, "triples", "(n, 3)")
        if triples.dim() != 2 or triples.shape[-1] != 3 or triples.is_floating_point() or not len(triples):
            given = f"{triples.dtype} {tuple(triples.shape)}"
            raise ValueError(f"triples are {given}: give whole numbers (n, 3), head, relation, tail")
        self._check_ids(*triples.unbind(-1))
