"""Normalisations: statistics in fp32 (stash_type 1) or fp64, the result rounded once.

ONNX describes LayerNormalization and RMSNormalization with a rounding between the normalised tensor and the scale;
TensorRT's kernel keeps fp32 until the end, and so does this one, unless scale and input have two types.
"""

from collections.abc import Sequence

import torch

from ..type_names import DataType
from ..values import positive_axes
from .registry import Call, Tensor, math


def _axes_from(call: Call, x: Tensor) -> list[int]:
    (first,) = positive_axes([call.get_int("axis", -1)], x.ndim)
    return list(range(first, x.ndim))


def _stash(call: Call, x: Tensor) -> Tensor:
    """x in the type that the statistics are computed in, never less than fp32."""
    if call.exact or call.get_int("stash_type", 1) == DataType.DOUBLE:
        return x.double()
    # A 16-bit stash type is legal ONNX and computed in fp32 here: TensorRT has no narrower statistics.
    return x.float() if call.get_int("stash_type", 1) == DataType.FLOAT else x


@math("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    """x / sqrt(mean(x ** 2) + epsilon) * scale over the axes from `axis` on."""
    wide = _stash(call, x)
    mean_square = wide.square().mean(_axes_from(call, x), keepdim=True)
    normal = wide * torch.rsqrt(mean_square + call.get_float("epsilon", 1e-5))
    return _scaled(call, normal, scale)


@math("LayerNormalization")
def layer_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with the mean and 1 / sqrt(...)."""
    wide, axes = _stash(call, x), _axes_from(call, x)
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    inverse = torch.rsqrt(
        centred.square().mean(axes, keepdim=True) + call.get_float("epsilon", 1e-5)
    )
    y = _scaled(call, centred * inverse, scale)
    return (y if bias is None else y + bias), mean, inverse


def _scaled(call: Call, normal: Tensor, scale: Tensor) -> Tensor:
    if call.dtypes[0] != call.dtypes[1]:
        normal = call.rounded(normal, call.dtypes[0])
    return normal * scale


def _channels(parameter: Tensor, rank: int) -> Tensor:
    """[C] shaped to broadcast over [N, C, ...]."""
    return parameter.reshape([1, -1, *[1] * (rank - 2)])


def _normalise(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    mean = x.mean(list(axes), keepdim=True)
    centred = x - mean
    return centred * torch.rsqrt(centred.square().mean(list(axes), keepdim=True) + epsilon)


@math("BatchNormalization")
def batch_normalization(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...]:
    """By the running statistics, or by the batch's own with training_mode (opset 14)."""
    epsilon, rank = call.get_float("epsilon", 1e-5), x.ndim
    if not call.get_int("training_mode", 0):
        inverse = torch.rsqrt(var + epsilon)
        normal = (x - _channels(mean, rank)) * _channels(inverse, rank)
        return (normal * _channels(scale, rank) + _channels(bias, rank),)
    axes = [axis for axis in range(rank) if axis != 1]
    own_mean, own_var = x.mean(axes), x.var(axes, unbiased=False)
    y = _normalise(x, axes, epsilon) * _channels(scale, rank) + _channels(bias, rank)
    keep = call.get_float("momentum", 0.9)
    return y, mean * keep + own_mean * (1 - keep), var * keep + own_var * (1 - keep)


@math("InstanceNormalization")
def instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Each channel of each sample by its own statistics."""
    normal = _normalise(x, range(2, x.ndim), call.get_float("epsilon", 1e-5))
    return normal * _channels(scale, x.ndim) + _channels(bias, x.ndim)


@math("GroupNormalization")
def group_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Scale and bias per channel (opset 21), per group before."""
    groups, channels = call.get_int("num_groups", 1), x.shape[1]
    folded = x.reshape(x.shape[0], groups, -1)
    normal = _normalise(folded, [2], call.get_float("epsilon", 1e-5)).reshape(x.shape)
    if call.version < 21:
        scale, bias = (p.repeat_interleave(channels // groups) for p in (scale, bias))
    return normal * _channels(scale, x.ndim) + _channels(bias, x.ndim)


@math("MeanVarianceNormalization")
def mean_variance_normalization(call: Call, x: Tensor) -> Tensor:
    """(x - mean) / deviation over the given axes."""
    axes = call.get_ints("axes") or [0, 2, 3]
    centred = x - x.mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)


@math("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Tensor:
    """x over its p-norm along an axis; a zero norm gives zeros."""
    norm = torch.linalg.vector_norm(x, call.get_int("p", 2), call.get_int("axis", -1), keepdim=True)
    return torch.where(norm == 0, torch.zeros((), dtype=x.dtype), x / norm)


@math("LRN")
def local_response_normalization(call: Call, x: Tensor) -> Tensor:
    """Over `size` neighbouring channels, the odd one out after the middle."""
    size = call.get_int("size", 1)
    before = (size - 1) // 2
    square = torch.nn.functional.pad(x.square().movedim(1, -1), (before, size - 1 - before)).unfold(
        -1, size, 1
    )
    total = square.sum(-1).movedim(-1, 1)
    base = call.get_float("bias", 1.0) + call.get_float("alpha", 1e-4) / size * total
    return x / base ** call.get_float("beta", 0.75)
