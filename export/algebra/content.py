"""Exact contents of small values: sizes read from shapes, scalars and axes, folded through the operators that carry them.

A content is a numpy object array of `int`, `float`, `bool` and `symbols.Sym`. Floats are rounded to the value's
declared type after each operator, as a runtime would. None: not known before the graph runs.
"""

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from . import symbols
from .symbols import Dims, Sym

LIMIT = 64  # elements; more is data, not structure
Content = np.ndarray

_ROUND: dict[ir.DataType, np.dtype] = {
    ir.DataType.FLOAT16: np.dtype("float16"),
    ir.DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    ir.DataType.FLOAT: np.dtype("float32"),
}
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8}


def rounded(number: float, dtype: ir.DataType | None) -> float:
    """`number` as `dtype` stores it."""
    kind = _ROUND.get(dtype) if dtype is not None else None
    with np.errstate(over="ignore"):
        return float(np.array(number).astype(kind)) if kind is not None else float(number)


def boxed(shape: Sequence[int], elements: Sequence[object]) -> Content:
    """A content of `shape` from its elements, row by row."""
    box = np.empty(len(elements), dtype=object)
    box[:] = list(elements)
    return box.reshape(shape)


def from_tensor(tensor: ir.TensorProtocol) -> Content | None:
    """The content of a constant, None when it is larger than LIMIT elements or no number."""
    if tensor.size > LIMIT or tensor.dtype == ir.DataType.STRING:
        return None
    array = np.asarray(tensor.numpy())
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float64)
    return boxed(array.shape, array.reshape(-1).tolist())


def from_dims(dims: Dims) -> Content:
    """The value of Shape for a tensor of these sizes."""
    return boxed((len(dims),), dims)


def _binary(function: Callable[[object, object], object]) -> Callable[[Content, Content], Content]:
    kernel = np.frompyfunc(function, 2, 1)
    return lambda a, b: np.asarray(kernel(a, b), dtype=object)


def _unary(function: Callable[[object], object]) -> Callable[[Content], Content]:
    kernel = np.frompyfunc(function, 1, 1)
    return lambda a: np.asarray(kernel(a), dtype=object)


class _UnknownError(Exception):
    """The result depends on a size."""


def _number(x: object) -> float:
    if isinstance(x, Sym):
        raise _UnknownError
    return x  # type: ignore[return-value]


def _divide(a, b):  # type: ignore[no-untyped-def]
    if isinstance(a, float) or isinstance(b, float):
        return _number(a) / _number(b) if _number(b) else math.copysign(math.inf, _number(a))
    if not b or (isinstance(a, int) and a < 0):
        raise _UnknownError
    return symbols.floor_divide(a, b)


def _exact(integers: Callable, floats: Callable) -> Callable:
    def apply(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, float) or isinstance(b, float):
            return floats(_number(a), _number(b))
        return integers(a, b)

    return apply


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Sym) != isinstance(b, Sym) and (a == -1 or b == -1):
        return False  # a size is never -1: the test that TorchScript writes before Expand
    if a != b and (isinstance(a, Sym) or isinstance(b, Sym)):
        raise _UnknownError
    return a == b


BINARY: dict[str, Callable[[Content, Content], Content]] = {
    "Add": _binary(_exact(symbols.add, lambda a, b: a + b)),
    "Sub": _binary(_exact(symbols.subtract, lambda a, b: a - b)),
    "Mul": _binary(_exact(symbols.multiply, lambda a, b: a * b)),
    "Div": _binary(_divide),
    "Pow": _binary(lambda a, b: float(_number(a)) ** _number(b)),
    "Sum": _binary(_exact(symbols.add, lambda a, b: a + b)),
    "Mod": _binary(lambda a, b: _number(a) % _number(b)),
    "And": _binary(lambda a, b: bool(_number(a)) and bool(_number(b))),
    "Or": _binary(lambda a, b: bool(_number(a)) or bool(_number(b))),
    "Less": _binary(lambda a, b: _number(a) < _number(b)),
    "Greater": _binary(lambda a, b: _number(a) > _number(b)),
    "Equal": _binary(_equal),
    "Max": _binary(lambda a, b: a if a == b else max(_number(a), _number(b))),
    "Min": _binary(lambda a, b: a if a == b else min(_number(a), _number(b))),
}
UNARY: dict[str, Callable[[Content], Content]] = {
    "Neg": _unary(lambda a: symbols.multiply(a, -1) if not isinstance(a, float) else -a),  # type: ignore[arg-type]
    "Sqrt": _unary(lambda a: math.sqrt(_number(a))),
    "Reciprocal": _unary(lambda a: 1.0 / _number(a)),
    "Floor": _unary(lambda a: float(math.floor(_number(a)))),
    "Ceil": _unary(lambda a: float(math.ceil(_number(a)))),
    "Abs": _unary(lambda a: abs(_number(a))),
    "Exp": _unary(lambda a: math.exp(_number(a))),
    "Log": _unary(lambda a: math.log(_number(a))),
    "Not": _unary(lambda a: not _number(a)),
    "Identity": _unary(lambda a: a),
}


def cast(content: Content, to: ir.DataType) -> Content:
    """The elements as type `to` holds them (floats are rounded by the caller)."""
    if to in _INTEGERS:
        return _unary(lambda a: a if isinstance(a, Sym) else int(a))(content)  # type: ignore[call-overload]
    if to == ir.DataType.BOOL:
        return _unary(lambda a: bool(_number(a)))(content)
    return _unary(lambda a: a if isinstance(a, Sym) else float(a))(content)  # type: ignore[arg-type]


def _slice(data: Content, *bounds: Content | None) -> Content:
    starts, ends, axes, steps = (
        None if b is None else [int(_number(x)) for x in b.reshape(-1)]
        for b in (*bounds, *[None] * (4 - len(bounds)))
    )
    assert starts is not None and ends is not None
    index: list[slice] = [slice(None)] * data.ndim
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        step = steps[i] if steps else 1
        stop: int | None = end
        if step < 0 and end < -data.shape[axes[i] if axes else i]:
            stop = None
        index[axes[i] if axes else i] = slice(start, stop, step)
    return data[tuple(index)]


def _squeeze(data: Content, axes: list[int] | None) -> Content:
    return np.squeeze(data, axis=tuple(axes) if axes else None)


def fold(node: ir.Node, inputs: list[Content | None], axes: list[int] | None) -> Content | None:
    """The content of the node's only output, None when it is not known.

    `axes`: the node's axes, whether an attribute or an input holds them.
    """
    try:
        result = _fold(node, inputs, axes)
    except (_UnknownError, ArithmeticError, ValueError, IndexError, TypeError, AssertionError):
        return None
    if result is None or result.size > LIMIT:
        return None
    return result


def _fold(node: ir.Node, inputs: list[Content | None], axes: list[int] | None) -> Content | None:
    op, attributes = node.op_type, node.attributes
    first = inputs[0] if inputs else None
    if op == "Concat":
        if any(i is None for i in inputs):
            return None
        return np.concatenate(
            [i for i in inputs if i is not None], axis=attributes.get_int("axis", 0)
        )
    if first is None:
        return None
    if op in UNARY:
        return UNARY[op](first)
    if op == "Cast":
        return cast(first, ir.DataType(attributes.get_int("to", 1)))
    if op == "Squeeze":
        return _squeeze(first, axes)
    if op == "ReduceProd":
        return boxed((), [symbols.product(first.reshape(-1).tolist())]).reshape(
            (1,) if attributes.get_int("keepdims", 1) else ()
        )
    if op == "Unsqueeze" and axes is not None:
        rank = first.ndim + len(axes)
        return np.expand_dims(first, tuple(a % rank for a in axes))
    if op == "ConstantOfShape":
        tensor = attributes["value"].as_tensor() if "value" in attributes else None
        fill = tensor.numpy().reshape(-1)[0].item() if tensor is not None else 0.0
        shape = [int(_number(x)) for x in first.reshape(-1)]
        return boxed(shape, [fill] * math.prod(shape)) if math.prod(shape) <= LIMIT else None
    rest = inputs[1:]
    if any(r is None for r, v in zip(rest, node.inputs[1:], strict=True) if v is not None):
        return None
    known = [r for r in rest if r is not None]
    if op in BINARY and len(known) == 1:
        return BINARY[op](first, known[0])
    if op == "Gather":
        indices = np.asarray(known[0], dtype=object).astype(np.int64)
        return np.asarray(np.take(first, indices, axis=attributes.get_int("axis", 0)), dtype=object)
    if op == "Slice":
        return _slice(first, *rest)
    if op == "Where":
        return np.asarray(np.where(first.astype(bool), known[0], known[1]), dtype=object)
    if op == "Reshape":
        return first.reshape([int(_number(x)) for x in known[0].reshape(-1)])
    if op == "Expand":
        target = [int(_number(x)) for x in known[0].reshape(-1)]
        return np.broadcast_to(first, np.broadcast_shapes(first.shape, target))
    if op == "Range":
        start, stop, step = (int(_number(x.reshape(-1)[0])) for x in (first, *known))
        numbers = range(start, stop, step)
        return boxed((len(numbers),), list(numbers)) if len(numbers) <= LIMIT else None
    return None
