"""Journeys, the value path and the SSM kernel against loops over pairs of positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import (
    Generators,
    Group,
    Orthogonal,
    Torus,
    absolute,
    journey,
    path_transport,
    scores_path,
    ssm_kernel,
    value_path,
)

DTYPES = [torch.float32, torch.float64]
ATOL = {torch.float32: 3e-5, torch.float64: 1e-11}
GROUPS = [Torus(2), Orthogonal(4), Orthogonal(3)]
quick = settings(deadline=None, derandomize=True, max_examples=30)


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def draw(group: Group, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    raw = noise(*batch, *group.shape, dtype=dtype, seed=seed)
    return raw if isinstance(group, Torus) else torch.linalg.qr(raw)[0]


def close(a, b, dtype=torch.float64):
    torch.testing.assert_close(a, b, atol=ATOL[dtype], rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_value_path_and_scores_equal_the_double_loop(group, dtype):
    queries, keys, d = 3, 5, group.dim
    src, dst = draw(group, keys, dtype=dtype), draw(group, queries, dtype=dtype, seed=1)
    w, v = noise(queries, keys, dtype=dtype, seed=2), noise(keys, d, dtype=dtype, seed=3)
    q = noise(queries, d, dtype=dtype, seed=4)
    out, scores = torch.zeros(queries, d, dtype=dtype), torch.zeros(queries, keys, dtype=dtype)
    for i in range(queries):
        for j in range(keys):
            transport = torch.linalg.inv(group.matrix(dst[i])) @ group.matrix(src[j])
            out[i] += w[i, j] * (transport @ v[j])
            scores[i, j] = q[i] @ transport @ v[j]
    close(value_path(w, v, group=group, src=src, dst=dst), out, dtype)
    close(scores_path(q, v, group=group, src=src, dst=dst), scores, dtype)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_value_path_is_rotate_sum_rotate_back(group):
    src, dst = draw(group, 2, 5), draw(group, 2, 3, seed=1)
    w, v, q = noise(2, 3, 5), noise(2, 5, group.dim), noise(2, 3, group.dim, seed=1)
    gathered = w @ group.act(src, v)
    close(value_path(w, v, group=group, src=src, dst=dst), group.act(group.inverse(dst), gathered))
    close(scores_path(q, v, group=group, src=src, dst=dst), group.act(dst, q) @ group.act(src, v).mT)


def test_leading_dimensions_broadcast():
    group = Torus(2)
    src, dst = draw(group, 1, 1, 5), draw(group, 2, 1, 3, seed=1)
    w, v, q = noise(2, 4, 3, 5), noise(4, 5, 4), noise(2, 4, 3, 4)
    out, scores = value_path(w, v, group=group, src=src, dst=dst), scores_path(q, v, group=group, src=src, dst=dst)
    assert out.shape == (2, 4, 3, 4)
    assert scores.shape == (2, 4, 3, 5)
    close(out[1, 2], value_path(w[1, 2], v[2], group=group, src=src[0, 0], dst=dst[1, 0]))
    close(scores[1, 2], scores_path(q[1, 2], v[2], group=group, src=src[0, 0], dst=dst[1, 0]))


def test_the_oracle_is_differentiable_in_everything_and_maps_under_vmap():
    group = Torus(2)
    args = [noise(2, 3), noise(3, 4), draw(group, 3), draw(group, 2, seed=1)]
    inputs = [a.requires_grad_() for a in args]
    assert torch.autograd.gradcheck(lambda w, v, s, t: value_path(w, v, group=group, src=s, dst=t), inputs)
    q = noise(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k, s, t: scores_path(q, k, group=group, src=s, dst=t), [q, *inputs[1:]])
    values = noise(6, 3, 4)
    w, _, s, t = (a.detach() for a in args)
    mapped = torch.vmap(lambda v, at: value_path(w, v, group=group, src=at, dst=t))(values, s.expand(6, 3, 2))
    close(mapped, value_path(w, values, group=group, src=s, dst=t))


def test_angles_of_another_dtype_are_welcome():
    group = Torus(1)
    out = value_path(noise(2, 2), noise(2, 2), group=group, src=torch.ones(2, 1), dst=torch.zeros(2, 1))
    assert out.dtype == torch.float64


@quick
@given(st.integers(1, 3), st.lists(st.integers(-6, 6), min_size=3, max_size=3), st.booleans())
def test_absolute_is_the_ordered_product_of_powers(axes, position, is_flat):
    d = 4
    generators = Generators.torus(noise(axes, 2)) if is_flat else Generators.orthogonal(draw(Orthogonal(d), axes))
    expected = torch.eye(d, dtype=torch.float64)
    for k in range(axes):
        step = generators.group.matrix(generators.steps[k])
        expected = expected @ torch.linalg.matrix_power(step, position[k])
    close(generators.group.matrix(absolute(generators, torch.tensor(position[:axes]))), expected)


def test_absolute_takes_batches_and_real_positions_on_the_torus():
    generators = Generators.torus(noise(2, 3))
    positions = noise(4, 5, 2)
    close(absolute(generators, positions), positions @ generators.steps)
    with pytest.raises(ValueError, match="real powers exist on the torus"):
        absolute(Generators.orthogonal(torch.eye(3)[None]), [0.5])


@quick
@given(st.lists(st.sampled_from([0, 1, ~0, ~1]), max_size=8))
def test_path_transport_multiplies_left_to_right(word):
    generators = Generators.orthogonal(draw(Orthogonal(3), 2))
    expected = torch.eye(3, dtype=torch.float64)
    for letter in word:
        expected = expected @ (generators.steps[letter] if letter >= 0 else torch.linalg.inv(generators.steps[~letter]))
    close(path_transport(generators, word), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ssm_kernel_reproduces_the_recurrence_for_any_square_matrices(dtype):
    transitions, v = 0.5 * noise(2, 7, 3, 3, dtype=dtype), noise(2, 7, 3, dtype=dtype, seed=1)
    h = torch.zeros(2, 3, dtype=dtype)
    for t in range(7):
        h = (transitions[:, t] @ h[..., None])[..., 0] + v[:, t]
    close(torch.einsum("btij,btj->bi", ssm_kernel(transitions), v), h, dtype)


def test_ssm_kernel_on_the_torus_is_the_matrix_kernel():
    group, angles = Torus(2), noise(3, 6, 2)
    close(group.matrix(ssm_kernel(angles, group=group)), ssm_kernel(group.matrix(angles)))


def test_shapes_that_do_not_fit_are_refused():
    group, at = Torus(2), torch.zeros(3, 2)
    fits = {"group": group, "src": at, "dst": at}
    with pytest.raises(ValueError, match=r"weights have shape \(3, 4\): the operators need \(\.\.\., 3, 3\)"):
        value_path(torch.zeros(3, 4), torch.zeros(3, 4), **fits)
    with pytest.raises(ValueError, match=r"values have shape \(2, 4\)"):
        value_path(torch.zeros(3, 3), torch.zeros(2, 4), **fits)
    with pytest.raises(ValueError, match=r"k has shape \(2, 4\)"):
        scores_path(torch.zeros(3, 4), torch.zeros(2, 4), **fits)
    with pytest.raises(ValueError, match="one operator per token"):
        scores_path(torch.zeros(3, 4), torch.zeros(3, 4), group=group, src=at[0], dst=at)
    with pytest.raises(ValueError, match="odd dimension"):
        value_path(torch.zeros(3, 3), torch.zeros(3, 5), **fits)
    with pytest.raises(ValueError, match=r"matrices are \(\.\.\., T, d, d\)"):
        ssm_kernel(torch.zeros(3, 2, 4))
    with pytest.raises(ValueError, match="time dimension"):
        ssm_kernel(torch.zeros(2), group=group)
    with pytest.raises(ValueError, match="src holds NaN"):
        journey(group, src=torch.full((2,), torch.nan), dst=at[0])
