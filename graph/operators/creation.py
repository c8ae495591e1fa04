"""Operators that make tensors from attributes and sizes."""

import math as number

import torch

from ..rounding import round_to
from ..type_names import DataType
from ..values import Value, integers, value_from_numpy
from .registry import Call, Tensor, math, raw

_SEED = 0  # random operators without a seed: a repeated run gives the same numbers


@raw("Constant")
def constant(call: Call) -> Value:
    """The value of whichever attribute is set."""
    for name, attribute in call.attributes.items():
        if name == "value":
            tensor = attribute.as_tensor()
            value = value_from_numpy(tensor.numpy(), tensor.dtype)
            return (
                value.clone() if isinstance(value, torch.Tensor) else value
            )  # the model keeps its own
        if name == "value_int":
            return torch.tensor(attribute.as_int(), dtype=torch.int64)
        if name == "value_ints":
            return torch.tensor(list(attribute.as_ints()), dtype=torch.int64)
        if name == "value_float":
            return torch.tensor(attribute.as_float(), dtype=torch.float32)
        if name == "value_floats":
            return torch.tensor(list(attribute.as_floats()), dtype=torch.float32)
    raise ValueError(f"a constant of kind {', '.join(call.attributes)} is not supported")


@raw("ConstantOfShape")
def constant_of_shape(call: Call, sizes: Tensor) -> Value:
    """The one element of `value` (fp32 zero by default), repeated."""
    if not call.has("value"):
        return torch.zeros(integers(sizes))
    tensor = call.attributes["value"].as_tensor()
    value = value_from_numpy(tensor.numpy().reshape(()), tensor.dtype)
    assert isinstance(value, torch.Tensor), "4-bit constants are not filled"
    return value.expand(integers(sizes))


@math("Range")
def range_(call: Call, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    """start + i * step, each number computed from its position and not by adding up."""
    first, end, delta = (t.item() for t in (start, limit, step))
    count = max(number.ceil((end - first) / delta), 0)
    return start.reshape(()) + torch.arange(count).to(start.dtype) * step.reshape(())


@math("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    """Ones on diagonal k of a matrix of x's shape."""
    rows, columns = x.shape
    k = call.get_int("k", 0)
    ones = torch.ones(rows, columns).triu(k).tril(k)
    return ones.to(x.dtype)


@math("OneHot")
def one_hot(call: Call, positions: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """values: [off, on]; positions outside -depth .. depth-1 give rows of off."""
    n = int(depth.reshape(-1)[0])
    wanted = positions.to(torch.int64)
    wanted = torch.where(wanted < 0, wanted + n, wanted)
    axis = call.get_int("axis", -1)
    axis = axis + positions.ndim + 1 if axis < 0 else axis
    hot = wanted.unsqueeze(-1) == torch.arange(n)
    return torch.where(hot, values[1], values[0]).movedim(-1, axis)


@math("HannWindow", "HammingWindow", "BlackmanWindow")
def window(call: Call, length: Tensor) -> Tensor:
    """A raised-cosine window of `length` samples, periodic or symmetric."""
    n = int(length)
    over = n if call.get_int("periodic", 1) else n - 1
    phase = 2 * number.pi * torch.arange(n, dtype=torch.float64) / over
    if call.op_type == "HannWindow":
        return 0.5 - 0.5 * torch.cos(phase)
    if call.op_type == "HammingWindow":
        return 25 / 46 - 21 / 46 * torch.cos(phase)
    return 0.42 - 0.5 * torch.cos(phase) + 0.08 * torch.cos(2 * phase)


def _generator(call: Call) -> torch.Generator:
    seed = (
        call.attributes["seed"].value if call.has("seed") else _SEED
    )  # a float, for Dropout an integer
    return torch.Generator().manual_seed(hash(seed) & 0xFFFFFFFF)


@math("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike")
def random(call: Call, x: Tensor | None = None) -> Tensor:
    """Seeded numbers; no two runtimes agree on them, so only their distribution means anything."""
    sizes = call.get_ints("shape") or [] if x is None else list(x.shape)
    if call.op_type.startswith("RandomNormal"):
        drawn = torch.randn(sizes, generator=_generator(call))
        return drawn * call.get_float("scale", 1.0) + call.get_float("mean", 0.0)
    low, high = call.get_float("low", 0.0), call.get_float("high", 1.0)
    return torch.rand(sizes, generator=_generator(call)) * (high - low) + low


@math("Bernoulli")
def bernoulli(call: Call, probability: Tensor) -> Tensor:
    """One with each element's probability, seeded."""
    return torch.bernoulli(probability, generator=_generator(call))


@math("Multinomial")
def multinomial(call: Call, logits: Tensor) -> Tensor:
    """logits: unnormalised log-probabilities [batch, classes]."""
    return torch.multinomial(
        logits.exp(), call.get_int("sample_size", 1), replacement=True, generator=_generator(call)
    )


@raw("Dropout")
def dropout(
    call: Call, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> tuple[Value, Tensor]:
    """The identity outside training; with training_mode, seeded."""
    share = 0.5 if ratio is None else float(ratio)
    if training is None or not bool(training) or share == 0:
        return x, torch.ones(x.shape, dtype=torch.bool)
    keep = torch.rand(x.shape, generator=_generator(call)) >= share
    scaled = torch.where(keep, x.double() / (1 - share), 0.0)
    dtype = call.dtypes[0]
    return (scaled if call.exact else round_to(scaled, dtype or DataType.FLOAT)), keep
