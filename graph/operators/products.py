"""Matrix products: inputs widened, accumulated in fp32, rounded once at the end."""

import torch

from ..values import arithmetic
from .registry import Call, Tensor, math, raw


@math("MatMul")
def matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """numpy's matmul: batches broadcast, vectors become rows or columns."""
    return torch.matmul(a, b)


@math("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha * a @ b + beta * c with optional transposes."""
    a = a.mT if call.get_int("transA", 0) else a
    b = b.mT if call.get_int("transB", 0) else b
    alpha, beta = call.get_float("alpha", 1.0), call.get_float("beta", 1.0)
    result = a @ b
    if alpha != 1:
        result = result * alpha
    if c is None or beta == 0:
        return result
    return result + (c if beta == 1 else c * beta)


@math("Einsum")
def einsum(call: Call, *inputs: Tensor) -> Tensor:
    """Products and sums as the equation says."""
    return torch.einsum(call.get_str("equation", "").replace(" ", ""), *inputs)


@math("Det")
def determinant(call: Call, x: Tensor) -> Tensor:
    """The determinant of each matrix [..., n, n]."""
    result: Tensor = torch.linalg.det(x)
    return result


def _centred(x: Tensor, zero_point: Tensor | None, axis: int) -> Tensor:
    """x - zero_point as int32; a zero point per row or column lies along `axis`."""
    wide = arithmetic(x).to(torch.int32)
    if zero_point is None:
        return wide
    zero = arithmetic(zero_point).to(torch.int32)
    if zero.ndim == 1 and zero.numel() > 1:
        zero = zero.unsqueeze(-1) if axis == -2 else zero
    return wide - zero


@raw("MatMulInteger")
def matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """8-bit products summed in int32; a's zero point may be one per row, b's one per column."""
    return torch.matmul(_centred(a, a_zero, -2), _centred(b, b_zero, -1))
