"""The paper's definitions as plain functions over a group: pure tensors, no parameters.

    (a, A) ∘ (b, B) = (a + A b, A B),    A_n = R_1^{n_1} ⋯ R_D^{n_D},    P_{src→dst} = A_dst⁻¹ A_src

Paper: "Algebraic Framework and Theoretical Analysis". `value_path` and `scores_path` are the reference implementation:
every fast path is tested against them.

>>> import torch
>>> generators = Generators.torus(torch.tensor([[0.1, 0.01]]))       # one axis, two planes
>>> at = absolute(generators, torch.arange(3)[:, None])              # three tokens
>>> value_path(torch.full((3, 3), 1 / 3), torch.ones(3, 4), group=generators.group, src=at, dst=at).shape
torch.Size([3, 4])
"""

from joformer.algebra._elements import Element, Pair, compose, compose_grid, concatenate, scan, split, unroll
from joformer.algebra._flatness import (
    commutator,
    grid_from_potential,
    holonomy,
    interchange_defect,
    is_flat,
    path_spread,
    plaquette_defect,
)
from joformer.algebra._generators import Generators
from joformer.algebra._groups import Group, Invertible, Orthogonal, Torus
from joformer.algebra._hierarchy import hierarchy
from joformer.algebra._journeys import absolute, journey, path_transport, scores_path, ssm_kernel, value_path

__all__ = [
    "Element",
    "Generators",
    "Group",
    "Invertible",
    "Orthogonal",
    "Pair",
    "Torus",
    "absolute",
    "commutator",
    "compose",
    "compose_grid",
    "concatenate",
    "grid_from_potential",
    "hierarchy",
    "holonomy",
    "interchange_defect",
    "is_flat",
    "journey",
    "path_spread",
    "path_transport",
    "plaquette_defect",
    "scan",
    "scores_path",
    "split",
    "ssm_kernel",
    "unroll",
    "value_path",
]
