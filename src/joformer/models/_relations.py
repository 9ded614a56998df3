"""RotatE: a relation is a rotation, and a triple (head, relation, tail) holds if it maps the head to the tail.

    score(h, r, t) = margin − Σ_blocks |R_r h − t|                       R_r a rotation in every block of the entries

    blocks of 2, planes: R_r = R(θ_r), the torus; relations commute
    symmetric   r(x, y) ⇒ r(y, x)               2 θ_r = 0          modulo 2π, on the planes that carry the entities
    inverse     r(x, y) ⇒ s(y, x)               θ_s = −θ_r
    composed    r(x, y), s(y, z) ⇒ q(x, z)      θ_q = θ_r + θ_s

    larger blocks: R_r = exp(S_r), S_r skew; R_r R_s ≠ R_s R_r, as the mother's brother is not the brother's mother

Relations are the axis-step generators of a torus and entities its points, so that composing relations means following a
path: `algebra.path_transport(model.generators, [r, s, ~q])`. The paper's introduction mentions RotatE (Sun et
al. 2019) as a special case without deriving it (docs/claims.md row 14).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import KeepsPrecision, default_dtype, readable
from joformer.algebra import Generators, Torus
from joformer.algebra._checks import require_tensor

MOST = 2**22
"""Maximum number of values that a comparison with all entities holds in memory."""


@dataclass(frozen=True)
class RelationsConfig:
    """Configuration of a `RotatE`.

    Raises:
        ValueError: If the graph is too small, or `dim` is not a multiple of `block`.

    Example:
        >>> RelationsConfig(entities=5, relations=2, dim=8).build().angles.shape
        torch.Size([2, 4])
    """

    entities: int = 2
    """Number of entities in the graph."""
    relations: int = 1
    """Number of relations in the graph."""
    dim: int = 128
    """Length of an entity's vector."""
    block: int = 2
    """Entries that a relation rotates together: 2 is RotatE, where relations commute; in larger blocks they do not."""
    margin: float = 6.0
    """The score of a triple that holds exactly."""

    def __post_init__(self) -> None:
        if self.entities < 2 or self.relations < 1:
            raise ValueError(
                f"a graph needs at least 2 entities and 1 relation, got {self.entities} and {self.relations}"
            )
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"dim must be even, because planes are pairs of entries, got {self.dim}")
        if self.block < 2 or self.dim % self.block:
            raise ValueError(
                f"blocks of {self.block} entries do not fill a vector of {self.dim}: choose a divisor of it"
            )

    def build(self) -> RotatE:
        """Builds a model with this configuration and random weights."""
        given = {"margin": self.margin, "block": self.block}
        return RotatE(self.entities, self.relations, self.dim, **given)  # type: ignore[arg-type]


class RotatE(KeepsPrecision):
    """score(h, r, t) = margin − Σ_blocks |R_r h − t|.

    Its parameters are `entities` (entities, dim), whose planes are the interleaved pairs of entries, and `angles`
    (relations, dim / 2), or with larger blocks (relations, dim / block, block (block − 1) / 2).

    Args:
        entities: Number of entities, 2 or more.
        relations: Number of relations.
        dim: Length of an entity's vector; must be even.
        margin: The score of a triple that holds exactly.
        block: Number of entries that are rotated together; 2, as in RotatE, for relations that commute.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> model = RotatE(entities=5, relations=2, dim=8)
        >>> triples = torch.tensor([[0, 1, 2], [3, 0, 4]])                   # head, relation, tail
        >>> model(*triples.T).shape, model.loss(triples, 16).shape
        (torch.Size([2]), torch.Size([]))
    """

    config_class = RelationsConfig

    def __init__(self, entities: int, relations: int, dim: int, *, margin: int | float = 6.0, block: int = 2) -> None:
        super().__init__()
        self.config = RelationsConfig(entities, relations, dim, block, float(margin))
        self.group, self.margin, self.block = Torus(dim // 2), float(margin), block
        self.entities = nn.Parameter(torch.empty(entities, dim, dtype=default_dtype()))
        shape = (dim // 2,) if block == 2 else (dim // block, block * (block - 1) // 2)
        self.angles = nn.Parameter(torch.empty(relations, *shape, dtype=default_dtype()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws entities and angles uniformly."""
        # As in the original: distances then start around the margin.
        reach = (self.margin + 2) / (self.config.dim // self.block)
        nn.init.uniform_(self.entities, -reach, reach)
        nn.init.uniform_(self.angles, -math.pi, math.pi)

    @property
    def generators(self) -> Generators:
        """The relations as axis-step generators, one axis each: what `algebra.path_transport` composes.

        Raises:
            ValueError: If the blocks are larger than planes: such relations are not a torus.

        >>> from joformer.algebra import path_transport
        >>> there_and_back = path_transport(RotatE(5, 2, 8).generators, [0, ~0])
        >>> there_and_back.abs().max().item() < 1e-6
        True
        """
        if self.block != 2:
            raise ValueError(f"relations in blocks of {self.block} do not commute and are not a torus: use block=2")
        return Generators.torus(self.angles.clone())  # a copy, which further training does not change

    def forward(
        self,
        head: Int[Tensor, "..."],
        relation: Int[Tensor, "..."],
        tail: Int[Tensor, "..."],
        *,
        rotate: Literal["head", "tail"] = "head",
        wrong: Int[Tensor, "2 _triples _negatives"] | None = None,
        temperature: int | float = 1.0,
    ) -> Float[Tensor, "..."]:
        """The score of triples, or with `wrong` the loss.

        Args:
            head: Indices of entities, ``(...)``.
            relation: Indices of relations, ``(...)``.
            tail: Indices of entities, ``(...)``; the three broadcast.
            rotate: Which side to rotate, R_r h or R_r⁻¹ t. The distance is the same: with many heads and one tail,
                rotate the tail.
            wrong: Indices of wrong tails, then of wrong heads, for each of n triples ``(2, n, negatives)``.
            temperature: How strongly the hardest negatives are weighted; see `loss`.

        Returns:
            Scores ``(...)``, higher for triples that are more likely to hold; or the mean loss, a scalar.

        Raises:
            ValueError: If an index is not an integer or, on the CPU, out of range.
        """
        self._check_ids(head, relation, tail)
        if wrong is not None:
            return self._loss(head, relation, tail, wrong, temperature)
        if rotate == "head":
            return self._score(self._rotate(relation, self.entities[head]), self.entities[tail])
        return self._score(self._rotate(relation, self.entities[tail], inverse=True), self.entities[head])

    def loss(
        self,
        triples: Int[Tensor, "_triples 3"],
        negatives: int,
        *,
        temperature: int | float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The mean of −log σ(score) − Σ_i p_i log σ(−score_i), over both wrong heads and wrong tails.

        The weights p = softmax(temperature · score_i), without gradient, favour the hardest negatives (self-adversarial
        sampling).

        Args:
            triples: Head, relation and tail, ``(n, 3)``.
            negatives: Number of wrong heads, and of wrong tails, that each triple is compared with.
            temperature: How strongly the hardest negatives are weighted.
            generator: Random generator of the negatives; torch's default one if None.

        Returns:
            A scalar.

        Raises:
            ValueError: If `triples` are not indices of entities and relations, or `negatives` is below 1.

        Example:
            >>> RotatE(5, 2, 8).loss(torch.tensor([[0, 1, 2]]), 4).item() > 0
            True
        """
        self._check(triples)
        if not isinstance(negatives, int) or negatives < 1:
            raise ValueError(f"negatives is {negatives}: each triple needs at least 1 wrong head and tail")
        wrong = wrong_entities(triples, negatives, len(self.entities), generator)
        return self(*triples.unbind(-1), wrong=wrong, temperature=temperature)

    def _loss(
        self, head: Tensor, relation: Tensor, tail: Tensor, wrong: Tensor, temperature: int | float
    ) -> Float[Tensor, ""]:
        gone = self._rotate(relation, self.entities[head])
        came = self._rotate(relation, self.entities[tail], inverse=True)
        right = F.logsigmoid(self._score(gone, self.entities[tail]))
        rotated = torch.stack((gone, came)).unsqueeze(2)
        if len(self.entities) < wrong.shape[-1]:  # entities are drawn many times: compare each of them once
            false = self._score(rotated, self.entities).gather(-1, wrong)
        else:
            false = self._score(rotated, self.entities[wrong])
        weights = torch.softmax(temperature * false.detach(), -1)
        return -(right.mean() + (weights * F.logsigmoid(-false)).sum(-1).mean()) / 2

    @torch.no_grad()
    def rank(
        self, triples: Int[Tensor, "_triples 3"], *, known: Int[Tensor, "_known 3"] | None = None
    ) -> Int[Tensor, "_triples 2"]:
        """The rank of the correct head and of the correct tail among all entities; 1 is best, ties count against it.

        Hits@k is `(model.rank(triples) <= k).float().mean()`.

        Args:
            triples: Head, relation and tail, ``(n, 3)``.
            known: True triples ``(m, 3)`` to exclude from the comparison (filtered ranks).

        Returns:
            Ranks of heads and tails, ``(n, 2)``.

        Raises:
            ValueError: If `triples` are not indices of entities and relations.

        Example:
            >>> RotatE(5, 2, 8).rank(torch.tensor([[0, 1, 2]])).shape
            torch.Size([1, 2])
        """
        self._check(triples)
        return ranks(self, triples, len(self.entities), known=known, width=self.config.dim)

    def _rotate(self, relation: Tensor, x: Tensor, inverse: bool = False) -> Tensor:
        """R_r x, or R_r⁻¹ x."""
        if self.block == 2:
            angles = self.angles[relation]
            return self.group.act(-angles if inverse else angles, x)
        rows, columns = torch.triu_indices(self.block, self.block, 1, device=x.device)
        skew = self.angles.new_zeros(*self.angles.shape[:-1], self.block, self.block)
        skew[..., rows, columns] = -self.angles
        # Once per relation; a batch has many triples of each.
        matrix = torch.linalg.matrix_exp(skew - skew.mT)[relation]
        matrix = matrix.mT if inverse else matrix
        return (matrix @ x.unflatten(-1, (-1, self.block, 1))).flatten(-3)

    def _score(self, point: Tensor, entity: Tensor) -> Tensor:
        apart = (point - entity).unflatten(-1, (-1, self.block))
        return self.margin - torch.linalg.vector_norm(apart, dim=-1).sum(-1)

    def _check_ids(self, head: Tensor, relation: Tensor, tail: Tensor) -> None:
        # Reading values would stall a GPU; negative indices would otherwise count from the end.
        for name, ids in (("head", head), ("relation", relation), ("tail", tail)):
            count = len(self.angles if name == "relation" else self.entities)
            if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
                given = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
                raise ValueError(f"{name} is {given}: give a tensor of whole numbers 0 … {count - 1}")
            if readable(ids) and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < count:
                raise ValueError(f"{name} goes from {ids.min()} to {ids.max()}: it must be within 0 … {count - 1}")

    def _check(self, triples: Tensor) -> None:
        require_tensor(triples, "triples", "(n, 3)")
        if triples.dim() != 2 or triples.shape[-1] != 3 or triples.is_floating_point() or not len(triples):
            given = f"{triples.dtype} {tuple(triples.shape)}"
            raise ValueError(f"triples are {given}: give whole numbers (n, 3), head, relation, tail")
        self._check_ids(*triples.unbind(-1))


def wrong_entities(
    triples: Int[Tensor, "_triples 3"], negatives: int, entities: int, generator: torch.Generator | None = None
) -> Int[Tensor, "2 _triples _negatives"]:
    """Wrong tails, then wrong heads, of each triple; the correct one is never among them.

    >>> wrong_entities(torch.tensor([[0, 0, 1]]), 3, entities=2).tolist()
    [[[0, 0, 0]], [[1, 1, 1]]]
    """
    size = (2, len(triples), negatives)
    drawn = torch.randint(entities - 1, size, generator=generator, device=triples.device)
    # Counted from the correct entity.
    return (triples[:, [2, 0], None].transpose(0, 1) + 1 + drawn) % entities


def ranks(
    score: Callable[..., Tensor],
    triples: Int[Tensor, "_triples 3"],
    entities: int,
    *,
    known: Int[Tensor, "_known 3"] | None = None,
    width: int = 1,
) -> Int[Tensor, "_triples 2"]:
    """The rank of the correct head and of the correct tail among all entities, by score; ties count against it.

    Triples and entities are compared block by block, so that memory depends on neither their number nor their product.

    Args:
        score: Called as score(head, relation, tail, rotate=) with tensors that broadcast; `rotate` is the smaller side.
        triples: Head, relation and tail, ``(n, 3)``.
        entities: Number of entities.
        known: True triples ``(m, 3)`` to exclude from the comparison.
        width: Number of values needed to compare one triple with one entity.

    Returns:
        Ranks of heads and tails, ``(n, 2)``.

    Example:
        >>> ranks(lambda h, r, t, rotate: -((t - h - r) ** 2), torch.tensor([[2, 1, 3], [2, 1, 4]]), 5).tolist()
        [[1, 1], [3, 3]]
    """
    across = max(1, min(entities, MOST // width))
    down = max(1, MOST // (width * across))
    made = []
    for side in (0, 2):
        better = []
        for rows in triples.split(down):
            head, relation, tail = (column.unsqueeze(1) for column in rows.unbind(-1))
            rotate, right = "head" if side else "tail", rows[:, side, None]
            own = score(head, relation, tail, rotate=rotate)  # rounded like the others: ties stay ties
            row, answer = _others(rows, known, side)
            count = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
            for start in range(0, entities, across):
                every = torch.arange(start, min(start + across, entities), device=rows.device)
                given = (head, relation, every[None]) if side else (every[None], relation, tail)
                scores = score(*given, rotate=rotate)
                ahead = (scores >= own) & (every != right)
                here = (answer >= start) & (answer < start + len(every))
                ahead[row[here], answer[here] - start] = False
                count += ahead.sum(1)
            better.append(count)
        made.append(torch.cat(better) + 1)
    return torch.stack(made, 1)


def _others(rows: Tensor, known: Tensor | None, side: int) -> tuple[Tensor, Tensor]:
    """(row, entity) of every other known correct answer at this side of the rows."""
    if known is None:
        return rows.new_empty(0), rows.new_empty(0)
    rest = [1, 2 - side]
    _, inverse = torch.unique(torch.cat((rows[:, rest], known[:, rest])), dim=0, return_inverse=True)
    wanted, held = inverse.split((len(rows), len(known)))
    held, order = held.sort()
    first, last = torch.searchsorted(held, wanted), torch.searchsorted(held, wanted, right=True)
    many = last - first
    row = torch.arange(len(rows), device=rows.device).repeat_interleave(many)
    within = torch.arange(len(row), device=rows.device) - (many.cumsum(0) - many).repeat_interleave(many)
    return row, known[order[first.repeat_interleave(many) + within], side]
