"""Sizes and element types of an operator's outputs from those of its inputs, with names kept exact.

Where ONNX's own inference makes a new unknown, a Reshape to (batch, -1, heads, 16) here stays readable.
"""

from collections.abc import Sequence

import onnx_ir as ir

from . import symbols
from .content import Content
from .move_shapes import broadcast, einsum, generated, moved, unknown
from .symbols import Dim, Dims, Sym


def reshape(dims: Dims | None, target: Content | None, allow_zero: bool) -> Dims | None:
    """The result of Reshape to `target`; -1 is solved exactly where it can be."""
    if target is None:
        return None
    result: list[Dim] = list(target.reshape(-1).tolist())
    if not allow_zero:
        for i, size in enumerate(result):
            if size == 0:
                result[i] = dims[i] if dims is not None and i < len(dims) else unknown()
    if -1 in result:
        at = result.index(-1)
        others = symbols.product(d for d in result if d != -1)
        solved = symbols.divide(symbols.product(dims), others) if dims is not None else None
        result[at] = solved if solved is not None else unknown()
    return tuple(result)


def _matmul(a: Dims | None, b: Dims | None) -> Dims | None:
    if a is None or b is None or not a or not b:
        return None
    if len(b) == 1:
        return a[:-1]
    if len(a) == 1:
        return (*b[:-2], b[-1])
    batch = broadcast([a[:-2], b[:-2]]) if len(a) > 2 or len(b) > 2 else ()
    return None if batch is None else (*batch, a[-2], b[-1])


def reduced(dims: Dims, axes: Sequence[int] | None, keep: bool) -> Dims:
    """The sizes after a reduction over `axes` (all where None)."""
    gone = {a % len(dims) for a in axes} if axes else set(range(len(dims)))
    return tuple(1 if i in gone else d for i, d in enumerate(dims) if keep or i not in gone)


_BOOLEAN = {
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "And",
    "Or",
    "Xor",
    "Not",
    "IsNaN",
    "IsInf",
}
_SECOND = {"Where"}
_INT64 = {"Shape", "Size", "ArgMax", "ArgMin", "NonZero"}


def dtype_of(node: ir.Node, index: int, types: list[ir.DataType | None]) -> ir.DataType | None:
    """The element type of output `index` by the operator's rule."""
    op = node.op_type
    if op == "Cast":
        return ir.DataType(node.attributes.get_int("to", 1))
    if op in _BOOLEAN:
        return ir.DataType.BOOL
    if op in _INT64 or (op == "TopK" and index == 1):
        return ir.DataType.INT64
    if op in ("Constant", "ConstantOfShape"):
        value = node.attributes.get("value")
        if value is not None:
            return value.as_tensor().dtype
        if op == "ConstantOfShape" or any(k.startswith("value_float") for k in node.attributes):
            return ir.DataType.FLOAT
        return ir.DataType.INT64
    if op in _SECOND:
        return types[1]
    if op in ("CastLike", "RMSNormalization") and len(types) > 1:
        return types[1]
    if op == "DequantizeLinear":
        return types[1]
    return types[0] if types else None


def dims_of(
    node: ir.Node,
    index: int,
    dims: list[Dims | None],
    contents: list[Content | None],
    axes: list[int] | None,
) -> Dims | None:
    """The sizes of output `index`, None where not even the rank is known."""
    op, attributes = node.op_type, node.attributes
    first = dims[0] if dims else None
    if op in ("MatMul",):
        return _matmul(first, dims[1])
    if op == "Gemm":
        if first is None or dims[1] is None:
            return None
        a, b = attributes.get_int("transA", 0), attributes.get_int("transB", 0)
        return (first[1 if a else 0], dims[1][0 if b else 1])
    if op == "Reshape":
        if (
            contents[1] is None
            and dims[1] is not None
            and len(dims[1]) == 1
            and isinstance(dims[1][0], int)
        ):
            return tuple(unknown() for _ in range(dims[1][0]))
        return reshape(first, contents[1], bool(attributes.get_int("allowzero", 0)))
    if op in ("Expand", "ConstantOfShape", "Range"):
        return generated(op, dims, contents)
    if op == "Where" or op in _ELEMENTWISE:
        return broadcast(dims)
    if op == "GatherElements":
        return dims[1]
    if op == "Einsum":
        return einsum(node, dims)
    if op in ("Attention", "SwiGLU", "RotaryEmbedding") and index:
        return None
    if first is None:
        return None
    if op == "Attention":
        return (*first[:-1], dims[2][-1]) if len(first) == 4 and dims[2] is not None else None
    if op == "GatherND" and dims[1] is not None and isinstance(dims[1][-1], int):
        return (*dims[1][:-1], *first[attributes.get_int("batch_dims", 0) + dims[1][-1] :])
    if op in ("Conv", "Pad", "AveragePool", "MaxPool"):
        return (
            (first[0], *(unknown() for _ in first[1:]))
            if op != "Pad"
            else tuple(unknown() for _ in first)
        )
    if op == "OneHot":
        return None
    if op == "Transpose":
        perm = attributes.get_ints("perm", list(range(len(first)))[::-1])
        return tuple(first[p] for p in perm) if len(perm) == len(first) else None
    if op == "Unsqueeze" and axes is not None:
        rank = len(first) + len(axes)
        at, rest = {a % rank for a in axes}, iter(first)
        return tuple(1 if i in at else next(rest) for i in range(rank))
    if op == "Squeeze":
        if axes is None and any(isinstance(d, Sym) for d in first):
            return None
        gone = (
            {a % len(first) for a in axes} if axes else {i for i, d in enumerate(first) if d == 1}
        )
        return tuple(d for i, d in enumerate(first) if i not in gone)
    if op.startswith("Reduce"):
        if axes is None and attributes.get_int("noop_with_empty_axes", 0) != 0:
            return first
        return reduced(first, axes, bool(attributes.get_int("keepdims", 1)))
    if op in _MOVES:
        return moved(node, index, dims, contents, axes)
    if op == "Shape":
        return (
            len(
                first[slice(attributes.get_int("start", 0), attributes.get_int("end", len(first)))]
            ),
        )
    if op == "Size":
        return ()
    return first if op in _SAME and index == 0 else None


_MOVES = {"Slice", "Concat", "Gather", "Split", "Tile", "Flatten"}
_ELEMENTWISE = {
    *(
        "Add",
        "Sum",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Max",
        "Min",
        "Mod",
        "Equal",
        "Less",
        "Greater",
        "LessOrEqual",
    ),
    *("GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr"),
}
_SAME = {
    *(
        "Cast",
        "CastLike",
        "Identity",
        "Neg",
        "Sqrt",
        "Reciprocal",
        "Abs",
        "Exp",
        "Log",
        "Sigmoid",
        "Tanh",
        "Erf",
    ),
    *(
        "Relu",
        "Softmax",
        "Gelu",
        "Swish",
        "Not",
        "IsNaN",
        "IsInf",
        "Floor",
        "Ceil",
        "Clip",
        "Trilu",
        "Cos",
        "Sin",
    ),
    *(
        "RMSNormalization",
        "LayerNormalization",
        "RotaryEmbedding",
        "Dropout",
        "Softplus",
        "HardSwish",
        "LeakyRelu",
    ),
    *(
        "LpNormalization",
        "LogSoftmax",
        "Elu",
        "Selu",
        "Mish",
        "Round",
        "Sign",
        "HardSigmoid",
        "SwiGLU",
        "CumSum",
    ),
    *(
        "ScatterND",
        "ScatterElements",
        "Clip",
        "ThresholdedRelu",
        "Softsign",
        "BatchNormalization",
        "GroupNormalization",
    ),
}
