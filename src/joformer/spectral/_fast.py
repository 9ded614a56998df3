"""DCT and DST II, III and IV by one FFT: reorder, transform, rotate, reorder.

    II    v = (x_0, x_2, …, x_3, x_1),  V = rfft(v),       y_k − i y_{N−k} = s_k e^{−iπk/2N} V_k
    III   the transpose of II, by irfft
    IV    z_n = x_{2n} + i x_{N−1−2n},  N/2 points,        y_{2k} − i y_{N−1−2k} = s Σ_n z_n e^{−iπ(4n+1)(4k+1)/4N}

A DST is the DCT of the same type with the points reversed on one side and every second sign changed on the other.
IV of odd N is one rfft of N points: 8 and N have no common factor, so (2n+1)(2k+1)/8N of a turn splits into eighths,
whose cosines and sines are signs (Jacobi symbols, so they factor), and N-ths, which are those of the rfft.

The gradient of a transform is its transpose, again one of these, so nothing is saved and the backward costs as much as
the forward. A factor i exchanges real and imaginary parts: where a table has one, it saves a sign.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from joformer.spectral._tables import remember

TRANSPOSED = {1: 1, 2: 3, 3: 2, 4: 4}


def by_fft(x: Tensor, type: int, sine: bool, end: float, rest: float) -> Float[Tensor, "..."]:
    """Type 2, 3 or 4 of x (..., n) with basis vectors of height `rest`, and `end` for the constant one (±1 in a DST).

    >>> by_fft(torch.tensor([1.0, 3.0]), 2, False, 1.0, math.sqrt(2)).round(decimals=3)
    tensor([ 4., -2.])
    """
    # The compiler does not support a Function with a jvp, and differentiates the kernel itself.
    if x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _Linear.apply(x, type, sine, end, rest)
    return _kernel(x, type, sine, end, rest)


class _Linear(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, type: int, sine: bool, end: float, rest: float) -> Tensor:
        return _kernel(x, type, sine, end, rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kernel = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        type, *others = ctx.kernel
        return by_fft(grads[0], TRANSPOSED[type], *others), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return by_fft(tangents[0], *ctx.kernel)


def _kernel(x: Tensor, type: int, sine: bool, end: float, rest: float) -> Tensor:
    n = x.shape[-1]
    if type == 2:
        into, turn, out = remember(_second, x, n, sine, end, rest)
        v = _negate_odd(reorder(x, into), sine)
        return reorder(as_real(torch.fft.rfft(v).mul_(turn)), out)
    if type == 3:
        into, turn, out = remember(_third, x, n, sine, end, rest)
        v = torch.fft.irfft(as_complex(reorder(x, into)).mul_(turn), n, norm="forward")
        return reorder(_negate_odd(v, sine), out)
    if n % 2:
        into, sign, real, imag, cos, sin = remember(_odd_fourth, x, n, sine, rest)
        c = as_real(torch.fft.rfft(reorder(x, into).mul_(sign)))
        return reorder(c, real).mul_(cos).add_(reorder(c, imag).mul_(sin))
    into, before, after, out = remember(_even_fourth, x, n, sine, rest)
    z = as_complex(reorder(x, into))
    return reorder(as_real(torch.fft.fft(z.mul_(before)).mul_(after)), out)


def _negate_odd(v: Tensor, sine: bool) -> Tensor:
    """Changes every second sign for a DST, in place; the even points come first."""
    if sine:
        v[..., (v.shape[-1] + 1) // 2 :].neg_()
    return v


# With reshape: batched gradients have no rule for flatten and unflatten.
def as_real(z: Complex[Tensor, "*batch _planes"]) -> Float[Tensor, "*batch _dim"]:
    """Complex numbers (..., planes) as interleaved planes (..., 2·planes).

    >>> as_real(torch.tensor([1.0 + 2.0j]))
    tensor([1., 2.])
    """
    return torch.view_as_real(z).reshape(*z.shape[:-1], 2 * z.shape[-1])


def as_complex(x: Float[Tensor, "*batch _dim"]) -> Complex[Tensor, "*batch _planes"]:
    """Interleaved planes (..., 2·planes) as complex numbers (..., planes): the inverse of `as_real`.

    >>> as_complex(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([1.+2.j, 3.+4.j])
    """
    return torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).contiguous())


def reorder(x: Tensor, index: Tensor) -> Float[Tensor, "..."]:
    """x[..., index] of x (..., n) and an index (m,), by the fastest operation.

    >>> reorder(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([2, 0]))
    tensor([[3., 1.]])
    """
    # Measured on 64 rows of 4,096: for float32 index_select is twice as fast as gather, for float64 the other way.
    if x.ndim == 1 or x.dtype == torch.float32:
        return x.index_select(-1, index)
    return x.gather(-1, index.expand(*x.shape[:-1], -1))


def _second(n: int, sine: bool, end: float, rest: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    k, into = torch.arange(n // 2 + 1), _evens_then_odds(n)
    height = torch.full_like(k, rest, dtype=torch.float64)
    height[0] = end
    out = torch.cat([2 * k + 1, (2 * k)[1 : (n + 1) // 2].flip(0)])
    return into, _turn(height, 0.5 - k.double() / (2 * n), dtype), out.flip(0) if sine else out


def _third(n: int, sine: bool, end: float, rest: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    k = torch.arange(n // 2 + 1)
    # (1 − i)/2 times x_0 + i x_0 gives x_0: there is no x_N to pair it with.
    height, half_turns = torch.full_like(k, rest / 2, dtype=torch.float64), k.double() / (2 * n) - 0.5
    height[0], half_turns[0] = end * math.sqrt(0.5), -0.25
    turn = _turn(height, half_turns, dtype)
    into = torch.stack([(n - k) % n, k], -1).flatten()
    return n - 1 - into if sine else into, turn, _evens_then_odds(n).argsort()


def _even_fourth(n: int, sine: bool, rest: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    k = torch.arange(n // 2)
    one = torch.ones_like(k, dtype=torch.float64)
    pair = torch.stack([2 * k, n - 1 - 2 * k], -1)
    before = _turn(one, -(4 * k + 1).double() / (4 * n), dtype)
    after = _turn(rest * one, -k.double() / n + (0.0 if sine else 0.5), dtype)
    into = pair.flip(-1) if sine else pair
    out = torch.empty(n, dtype=torch.long)
    out[(pair if sine else pair.flip(-1)).flatten()] = torch.arange(n)
    return into.flatten(), before, after, out


def _odd_fourth(n: int, sine: bool, rest: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    k = torch.arange(n)
    odd = 2 * k + 1
    # Taken ≡ 1 (mod 4), by a change of sign, the odd numbers below 2N are different modulo N.
    into = torch.where(odd % 4 == 1, odd, -odd).remainder(n).argsort()
    height = rest * math.sqrt(0.5)
    sign = _jacobi_two(odd[into]).to(dtype)
    q, j = odd * n, (odd * _inverse_of_eight(n)) % n
    past = j > n // 2
    j = torch.where(past, n - j, j)
    cos = height * _jacobi_two(q)
    sin = height * _jacobi_two(q) * torch.where(q % 4 == 1, 1, -1) * torch.where(past, -1, 1)
    if sine:
        into, alternate = n - 1 - into, 1 - 2 * (k % 2)
        cos, sin = cos * alternate, sin * alternate
    return into, sign, 2 * j, 2 * j + 1, cos.to(dtype), sin.to(dtype)


def _inverse_of_eight(n: int) -> int:
    """1/8 modulo odd n, in steps that a compiler can trace with an unknown length."""
    half = (n + 1) // 2
    return half * half % n * half % n


def _jacobi_two(odd: Tensor) -> Tensor:
    """√2 cos(2π · odd / 8): 1 where odd ≡ ±1 (mod 8), −1 otherwise."""
    return torch.where((odd % 8 == 1) | (odd % 8 == 7), 1.0, -1.0).double()


def _evens_then_odds(n: int) -> Tensor:
    k = torch.arange(n)
    return torch.cat([k[::2], k[1::2].flip(0)])


def _turn(height: Tensor, half_turns: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers height · e^{iπ · half_turns}, computed in float64."""
    angles = math.pi * half_turns
    return torch.complex((height * angles.cos()).to(dtype), (height * angles.sin()).to(dtype))
