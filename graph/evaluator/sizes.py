"""How many elements an operator's largest output has, from its inputs, before it is computed.

Only operators that can make more elements than they are given are listed: sizes from the numbers of an input or an
attribute, and broadcasting. An estimate may be above the truth, never below it.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
import torch

from ..values import Narrow, Value

Shape = tuple[int, ...]
Attributes = Mapping[str, ir.Attr]
Count = Callable[[Sequence[Value], Attributes], int]


def elements(operator: str, inputs: Sequence[Value], attributes: Attributes) -> int:
    """The elements of the operator's largest output; 0 for an operator that makes no more than it is given, or that
    cannot run on these inputs (the operator itself says so)."""
    if operator in BROADCASTING:
        return _broadcast(*(_shape(v) for v in inputs if v is not None))
    count = COUNTS.get(operator)
    if count is None:
        return 0
    try:
        return max(int(count(inputs, attributes)), 0)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError):
        return 0


def _tensor(value: Value) -> torch.Tensor:
    data = value.data if isinstance(value, Narrow) else value
    if not isinstance(data, torch.Tensor):
        raise TypeError("a tensor is needed")
    return data


def _shape(value: Value) -> Shape:
    data = value.data if isinstance(value, Narrow) else value
    return tuple(data.shape) if isinstance(data, torch.Tensor) else ()


def _numbers(value: Value) -> list[int]:
    return [int(n) for n in _tensor(value).reshape(-1).tolist()]


def _broadcast(*shapes: Shape) -> int:
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return math.prod(0 if 0 in axis else max(axis) for axis in zip(*padded, strict=True))


def _expand(inputs: Sequence[Value], attributes: Attributes) -> int:
    return _broadcast(_shape(inputs[0]), tuple(_numbers(inputs[1])))


def _product(inputs: Sequence[Value], attributes: Attributes) -> int:
    return math.prod(_numbers(inputs[0]))


def _tile(inputs: Sequence[Value], attributes: Attributes) -> int:
    return math.prod(_shape(inputs[0])) * math.prod(_numbers(inputs[1]))


def _range(inputs: Sequence[Value], attributes: Attributes) -> int:
    start, end, step = (_tensor(v).item() for v in inputs)
    return math.ceil((end - start) / step)


def _one_hot(inputs: Sequence[Value], attributes: Attributes) -> int:
    return math.prod(_shape(inputs[0])) * _numbers(inputs[1])[0]


def _pads(attributes: Attributes) -> list[int]:
    return list(attributes["pads"].as_ints()) if "pads" in attributes else []


def _pad(inputs: Sequence[Value], attributes: Attributes) -> int:
    shape = _shape(inputs[0])
    pads = _numbers(inputs[1]) if len(inputs) > 1 else _pads(attributes)
    axes = _numbers(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else range(len(shape))
    sizes, half = list(shape), len(pads) // 2
    for place, axis in enumerate(axes):
        sizes[axis] += pads[place] + pads[half + place]
    return math.prod(max(n, 0) for n in sizes)


def _resize(inputs: Sequence[Value], attributes: Attributes) -> int:
    shape = _shape(inputs[0])
    if "scales" in attributes:
        return _scaled(shape, list(attributes["scales"].as_floats()))
    if len(inputs) > 3 and inputs[3] is not None:
        return _resized(shape, _numbers(inputs[3]), attributes)
    scales = inputs[2] if len(inputs) > 2 else inputs[1]
    return _scaled(shape, _tensor(scales).reshape(-1).tolist())


def _resized(shape: Shape, sizes: Sequence[int], attributes: Attributes) -> int:
    given = attributes["axes"].as_ints() if "axes" in attributes else range(len(shape))
    asked = dict(zip((axis % len(shape) for axis in given), sizes, strict=True))
    if "keep_aspect_ratio_policy" in attributes:  # one ratio for all axes: the largest, at most
        ratio = max(size / shape[axis] for axis, size in asked.items())
        asked = {axis: math.ceil(shape[axis] * ratio) for axis in asked}
    return math.prod(asked.get(axis, size) for axis, size in enumerate(shape))


def _scaled(shape: Shape, scales: Sequence[float]) -> int:
    return math.ceil(math.prod(shape) * math.prod(max(s, 1.0) for s in scales))


def _attribute_shape(inputs: Sequence[Value], attributes: Attributes) -> int:
    return math.prod(attributes["shape"].as_ints())


def _matrix_product(inputs: Sequence[Value], attributes: Attributes) -> int:
    a, b = (_shape(v) for v in inputs[:2])
    a, b = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
    return _broadcast(a[:-2], b[:-2]) * a[-2] * b[-1]


def _gemm(inputs: Sequence[Value], attributes: Attributes) -> int:
    a, b = (_shape(v) for v in inputs[:2])
    rows = a[1] if "transA" in attributes and attributes["transA"].as_int() else a[0]
    return rows * (b[0] if "transB" in attributes and attributes["transB"].as_int() else b[1])


def _gather(inputs: Sequence[Value], attributes: Attributes) -> int:
    shape = _shape(inputs[0])
    axis = attributes["axis"].as_int() if "axis" in attributes else 0
    return math.prod(_shape(inputs[1])) * math.prod(shape) // max(shape[axis], 1)


def _indices(inputs: Sequence[Value], attributes: Attributes) -> int:
    return math.prod(_shape(inputs[1]))


def _gather_nd(inputs: Sequence[Value], attributes: Attributes) -> int:
    shape, indices = _shape(inputs[0]), _shape(inputs[1])
    batch = attributes["batch_dims"].as_int() if "batch_dims" in attributes else 0
    return math.prod(indices[:-1]) * math.prod(shape[batch + indices[-1] :])


def _concat(inputs: Sequence[Value], attributes: Attributes) -> int:
    return sum(math.prod(_shape(v)) for v in inputs)


def _window(inputs: Sequence[Value], attributes: Attributes) -> int:
    """Convolutions and pools: channels of the weight, and spatial axes with their padding."""
    shape = list(_shape(inputs[0]))
    pads = _pads(attributes)
    half = len(pads) // 2
    for place in range(half):
        shape[2 + place] += pads[place] + pads[half + place]
    channels = _shape(inputs[1])[0] if len(inputs) > 1 and inputs[1] is not None else shape[1]
    return shape[0] * max(channels, shape[1]) * math.prod(shape[2:])


def _transposed_window(inputs: Sequence[Value], attributes: Attributes) -> int:
    shape, weight = _shape(inputs[0]), _shape(inputs[1])
    groups = attributes["group"].as_int() if "group" in attributes else 1
    spatial = len(shape) - 2
    given = {n: list(attributes[n].as_ints()) for n in ("strides", "dilations", "output_padding", "output_shape") if n in attributes}  # fmt: skip
    if "output_shape" in given:
        sizes = given["output_shape"][-spatial:]
    else:
        sizes = [
            (n - 1) * stride + (k - 1) * dilation + 1 + more
            for n, k, stride, dilation, more in zip(
                shape[2:], weight[2:],
                given.get("strides", [1] * spatial), given.get("dilations", [1] * spatial),
                given.get("output_padding", [0] * spatial), strict=True,
            )
        ]  # fmt: skip
    return shape[0] * weight[1] * groups * math.prod(sizes)


def _unpool(inputs: Sequence[Value], attributes: Attributes) -> int:
    if len(inputs) > 2 and inputs[2] is not None:
        return math.prod(_numbers(inputs[2]))
    batch, channels, *spatial = _shape(inputs[0])
    kernel = list(attributes["kernel_shape"].as_ints())
    strides = list(attributes["strides"].as_ints()) if "strides" in attributes else kernel
    reached = [(n - 1) * s + k for n, s, k in zip(spatial, strides, kernel, strict=True)]
    return batch * channels * math.prod(reached)


def _scores(inputs: Sequence[Value], attributes: Attributes) -> int:
    """Attention: the scores of every query and key, the result, or the cache behind it."""
    q, k, v = (_shape(x) for x in inputs[:3])
    heads = attributes["q_num_heads"].as_int() if len(q) == 3 else q[1]
    key_heads = attributes["kv_num_heads"].as_int() if len(k) == 3 else k[1]
    size = v[-1] if len(v) == 4 else v[-1] // key_heads
    widest = max(size, k[-1] if len(k) == 4 else k[-1] // key_heads)
    past = _shape(inputs[4])[2] if len(inputs) > 4 and inputs[4] is not None else 0
    keys = k[-2] + past
    return q[0] * max(heads * q[-2] * max(keys, size), key_heads * keys * widest)


def _samples(inputs: Sequence[Value], attributes: Attributes) -> int:
    count = attributes["sample_size"].as_int() if "sample_size" in attributes else 1
    return _shape(inputs[0])[0] * count


def _mel(inputs: Sequence[Value], attributes: Attributes) -> int:
    bins, length = (_numbers(v)[0] for v in inputs[:2])
    return (length // 2 + 1) * bins


def _einsum(inputs: Sequence[Value], attributes: Attributes) -> int:
    terms, _, result = attributes["equation"].as_string().replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, value in zip(terms.split(","), inputs, strict=True):
        for letter, size in zip(reversed(term), reversed(_shape(value)), strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return math.prod(sizes.get(letter, 1) for letter in result)


def _transform(inputs: Sequence[Value], attributes: Attributes) -> int:
    length = _numbers(inputs[1])[0] if len(inputs) > 1 and inputs[1] is not None else 1
    return 2 * math.prod(_shape(inputs[0])) * max(length, 1)


def _grid(inputs: Sequence[Value], attributes: Attributes) -> int:
    shape, grid = _shape(inputs[0]), _shape(inputs[1])
    return shape[1] * math.prod(grid[:-1])


def _rois(inputs: Sequence[Value], attributes: Attributes) -> int:
    sides = [attributes[n].as_int() if n in attributes else 1 for n in ("output_height", "output_width")]  # fmt: skip
    return _shape(inputs[1])[0] * _shape(inputs[0])[1] * math.prod(sides)


BROADCASTING = frozenset(
    [
        "Add",
        "And",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "PRelu",
        "Pow",
        "Sub",
        "Sum",
        "Where",
        "Xor",
    ]
)
COUNTS: dict[str, Count] = {
    "AffineGrid": lambda i, a: 3 * math.prod(_numbers(i[1])),
    "Attention": _scores,
    "AveragePool": _window,
    "BlackmanWindow": _product,
    "CenterCropPad": lambda i, a: math.prod(_shape(i[0])) * math.prod(_numbers(i[1])),
    "Col2Im": lambda i, a: math.prod(_shape(i[0])) * math.prod(_numbers(i[1])),
    "Concat": _concat,
    "ConstantOfShape": _product,
    "Conv": _window,
    "ConvTranspose": _transposed_window,
    "DFT": _transform,
    "Einsum": _einsum,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _indices,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GridSample": _grid,
    "HammingWindow": _product,
    "HannWindow": _product,
    "LpPool": _window,
    "MatMul": _matrix_product,
    "MaxPool": _window,
    "MaxUnpool": _unpool,
    "MelWeightMatrix": _mel,
    "Multinomial": _samples,
    "OneHot": _one_hot,
    "Pad": _pad,
    "RandomNormal": _attribute_shape,
    "RandomUniform": _attribute_shape,
    "Range": _range,
    "Resize": _resize,
    "RoiAlign": _rois,
    "Tile": _tile,
    "Upsample": _resize,
}
