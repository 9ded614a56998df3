"""RotatE: a relation is a rotation, and a triple (head, relation, tail) holds where it maps the head to the tail.

    score(h, r, t) = margin − Σ_blocks |R_r h − t|                       R_r a rotation in every block of the entries

    blocks of 2, planes: R_r = R(θ_r), the torus; relations commute
    symmetric   r(x, y) ⇒ r(y, x)               2 θ_r = 0          modulo 2π, on the planes that carry the entities
    inverse     r(x, y) ⇒ s(y, x)               θ_s = −θ_r
    composed    r(x, y), s(y, z) ⇒ q(x, z)      θ_q = θ_r + θ_s

    larger blocks: R_r = exp(S_r), S_r skew; R_r R_s ≠ R_s R_r, as the mother's brother is not the brother's mother

Relations are the axis-step generators of a torus and entities its points, so that composing relations is walking a
path: `algebra.path_transport(model.generators, [r, s, ~q])`. The paper's introduction names RotatE (Sun et
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
"""How many numbers a comparison with all entities may have in memory at once."""


@dataclass(frozen=True)
class RelationsConfig:
    """What a `RotatE` is made of.

    Raises:
        ValueError: If the graph is too small, or the blocks do not fit.

    Example:
        >>> RelationsConfig(entities=5, relations=2, dim=8).build().angles.shape
        torch.Size([2, 4])
    """

    entities: int = 2
    """How many entities the graph has."""
    relations: int = 1
    """How many relations it has."""
    dim: int = 128
    """Length of an entity's vector."""
    block: int = 2
    """Entries that a relation rotates together: 2 is RotatE, whose relations commute; those of larger blocks do not."""
    margin: float = 6.0
    """The score of a triple that holds exactly."""

    def __post_init__(self) -> None:
        if self.entities < 2 or self.relations < 1:
            raise ValueError(
                f"a graph needs 2 entities and 1 relation or more, got {self.entities} and {self.relations}"
            )
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"dim must be even, since planes are pairs of entries; got {self.dim}")
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

    Its parameters are `entities` (entities, dim), planes the interleaved pairs of entries, and `angles`
    (relations, dim / 2), in larger blocks (relations, dim / block, block (block − 1) / 2).

    Args:
        entities: How many entities there are, 2 or more.
        relations: How many relations there are.
        dim: Length of an entity's vector, an even number.
        margin: The score of a triple that holds exactly.
        block: Entries that are rotated together; 2, as in RotatE, for relations that commute.

    Raises:
        ValueError: If one of them is out of range.

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
            ValueError: If the blocks are larger than planes: those relations are no torus.

        >>> from joformer.algebra import path_transport
        >>> there_and_back = path_transport(RotatE(5, 2, 8).generators, [0, ~0])
        >>> there_and_back.abs().max().item() < 1e-6
        True
        """
        if self.block != 2:
            raise ValueError(f"relations in blocks of {self.block} do not commute and are no torus: use block=2")
        return Generators.torus(self.angles.clone())  # which further training does not change

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
            head: Numbers of entities, ``(...)``.
            relation: Numbers of relations, ``(...)``.
            tail: Numbers of entities, ``(...)``; the three broadcast.
            rotate: Which side to rotate, R_r h or R_r⁻¹ t: the distance is the same, so that of many heads and one tail
                rather the tail.
            wrong: Numbers of wrong tails, then of wrong heads, for each of n triples ``(2, n, negatives)``.
            temperature: How much the hardest of these count, see `loss`.

        Returns:
            Scores ``(...)``, higher where a triple rather holds; or the mean loss, a scalar.

        Raises:
            ValueError: If a number is not whole or, on the CPU, out of range.
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
        wrong = wrong_entities(triples, negatives, len(self.entities), generator)
        return self(*triples.unbind(-1), wrong=wrong, temperature=temperature)

    def _loss(
        self, head: Tensor, relation: Tensor, tail: Tensor, wrong: Tensor, temperature: int | float
    ) -> Float[Tensor, ""]:
        gone = self._rotate(relation, self.entities[head])
        came = self._rotate(relation, self.entities[tail], inverse=True)
        right = F.logsigmoid(self._score(gone, self.entities[tail]))
        rotated = torch.stack((gone, came)).unsqueeze(2)
        if len(self.entities) < wrong.shape[-1]:  # most are drawn many times: each is compared once
            false = self._score(rotated, self.entities).gather(-1, wrong)
        else:
            false = self._score(rotated, self.entities[wrong])
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
        # Reading values would stall a GPU; negative ones would otherwise count from the end.
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
    """Wrong tails, then wrong heads, of each triple; the right one is never among them.

    >>> wrong_entities(torch.tensor([[0, 0, 1]]), 3, entities=2).tolist()
    [[[0, 0, 0]], [[1, 1, 1]]]
    """
    size = (2, len(triples), negatives)
    drawn = torch.randint(entities - 1, size, generator=generator, device=triples.device)
    # Counted from the right entity on.
    return (triples[:, [2, 0], None].transpose(0, 1) + 1 + drawn) % entities


def ranks(
    score: Callable[..., Tensor],
    triples: Int[Tensor, "_triples 3"],
    entities: int,
    *,
    known: Int[Tensor, "_known 3"] | None = None,
    width: int = 1,
) -> Int[Tensor, "_triples 2"]:
    """The rank of the right head and of the right tail among all entities, by the score; ties count against.

    Triples and entities are compared block by block, so that memory depends on neither their number nor their product.

    Args:
        score: Called as score(head, relation, tail, rotate=) with tensors that broadcast; `rotate` the side with fewer.
        triples: Head, relation and tail, ``(n, 3)``.
        entities: How many there are.
        known: Triples ``(m, 3)`` that are no errors.
        width: Numbers that comparing one triple with one entity takes.

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
            own = score(head, relation, tail, rotate=rotate)  # rounded as those it is compared with: ties stay ties
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
    """(row, entity) of every other answer that is known to hold at this side of the rows."""
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
