"""Activation functions, computed in fp32 and rounded once."""

import torch
from torch.nn import functional

from .registry import Call, Tensor, math

_PLAIN = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softsign": functional.softsign,
    "Mish": functional.mish,
    "HardSwish": functional.hardswish,
}


@math(*_PLAIN)
def plain(call: Call, x: Tensor) -> Tensor:
    """relu, sigmoid, x / (1 + |x|), x * tanh(softplus(x)), x * hardsigmoid(x)."""
    return x.clamp(min=0) if call.op_type == "Relu" else _PLAIN[call.op_type](x)


@math("Softplus")
def softplus(call: Call, x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype))


@math("Swish")
def swish(call: Call, x: Tensor) -> Tensor:
    """x * sigmoid(alpha * x)."""
    return x * torch.sigmoid(call.get_float("alpha", 1.0) * x)


@math("SwiGLU")
def swiglu(call: Call, gate: Tensor, up: Tensor) -> Tensor:
    """swish(gate) * up in one rounding (ONNX opset 28)."""
    return gate * torch.sigmoid(call.get_float("alpha", 1.0) * gate) * up


@math("Gelu")
def gelu(call: Call, x: Tensor) -> Tensor:
    """x * Phi(x), by erf or by the tanh approximation."""
    return functional.gelu(x, approximate=call.get_str("approximate", "none"))


@math("Elu")
def elu(call: Call, x: Tensor) -> Tensor:
    """x, or alpha * (exp(x) - 1) below zero."""
    return torch.where(x < 0, call.get_float("alpha", 1.0) * torch.expm1(x), x)


@math("Celu")
def celu(call: Call, x: Tensor) -> Tensor:
    """x, or alpha * (exp(x / alpha) - 1) below zero."""
    return functional.celu(x, call.get_float("alpha", 1.0))


@math("Selu")
def selu(call: Call, x: Tensor) -> Tensor:
    """gamma * elu(x, alpha)."""
    alpha, gamma = (
        call.get_float("alpha", 1.67326319217681884765625),
        call.get_float("gamma", 1.0507010221481323242),
    )
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@math("LeakyRelu")
def leaky_relu(call: Call, x: Tensor) -> Tensor:
    """x, or alpha * x below zero."""
    return functional.leaky_relu(x, call.get_float("alpha", 0.01))


@math("PRelu")
def prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    """x, or slope * x below zero; the slope broadcasts to x."""
    return torch.where(x < 0, x * slope, x)


@math("ThresholdedRelu")
def thresholded_relu(call: Call, x: Tensor) -> Tensor:
    """x above alpha, zero elsewhere."""
    return torch.where(x > call.get_float("alpha", 1.0), x, torch.zeros((), dtype=x.dtype))


@math("HardSigmoid")
def hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    """alpha * x + beta, clipped to 0 .. 1."""
    return (call.get_float("alpha", 0.2) * x + call.get_float("beta", 0.5)).clamp(0, 1)


@math("Shrink")
def shrink(call: Call, x: Tensor) -> Tensor:
    """x moved towards zero by bias outside -lambd .. lambd, zero inside."""
    bias, threshold = call.get_float("bias", 0.0), call.get_float("lambd", 0.5)
    outside = torch.where(x > threshold, x - bias, torch.zeros((), dtype=x.dtype))
    return torch.where(x < -threshold, x + bias, outside)
