"""Causal masks: proof that key j is kept for query i exactly when j <= i, in the forms that exporters write.

Trilu(full(min), upper, k=1);  Where(Equal(Trilu(ones), 0), min, 0);  LessOrEqual(keys, queries)
"""

import onnx_ir as ir

from ..algebra.facts import Facts
from ..algebra.symbols import Dims

LOW = -1e4


def causal(facts: Facts, value: ir.Value, keep_when: bool = True, depth: int = 10) -> bool:
    """Whether `value` is the causal mask: a bias of zeros and lowest numbers, or a truth that is `keep_when` where kept."""
    dims = facts.dims(value)
    if dims is None or len(dims) < 2 or any(d != 1 for d in dims[:-2]) or depth == 0:
        return False
    node = value.producer()
    if facts.constant(value):
        return _constant_causal(facts, value, keep_when)
    if node is None or node.domain or not node.inputs or node.inputs[0] is None:
        return False
    first = node.inputs[0]
    if (
        node.op_type in ("Cast", "Unsqueeze", "Expand", "Identity", "Reshape")
        and (facts.dims(first) or ())[-2:] == dims[-2:]
    ):
        if (
            node.op_type == "Cast"
            and facts.dtype(first) != facts.dtype(value)
            and ir.DataType.BOOL in (facts.dtype(first), facts.dtype(value))
        ):
            return (
                _triangle(facts, value) == keep_when
                if facts.dtype(value) == ir.DataType.BOOL
                else False
            )
        return causal(facts, first, keep_when, depth - 1)
    if node.op_type == "Not":
        return causal(facts, first, not keep_when, depth - 1)
    if node.op_type in ("LessOrEqual", "GreaterOrEqual", "Less", "Greater"):
        return _compared(facts, node, dims, keep_when)
    if node.op_type == "And" and keep_when:
        parts = [v for v in node.inputs if v is not None]
        true = [facts.scalar(v) == 1.0 for v in parts]
        return sum(true) == 1 and causal(facts, parts[true.index(False)], True, depth - 1)
    if node.op_type == "Where" and facts.dtype(value) != ir.DataType.BOOL:
        low_first = [_level(facts, v) for v in node.inputs[1:]]
        if low_first == ["zero", "low"]:
            return causal(facts, first, True, depth - 1)
        if low_first == ["low", "zero"]:
            return causal(facts, first, False, depth - 1)
        return False
    if node.op_type == "Equal":
        other = facts.scalar(node.inputs[1])
        kept = _triangle(facts, first)
        return kept is not None and other in (0.0, 1.0) and (kept == (other == 1.0)) == keep_when
    if node.op_type == "Trilu" and node.attributes.get_int("upper", 1) == 1:
        shift = (
            facts.scalar(node.inputs[1])
            if len(node.inputs) > 1 and node.inputs[1] is not None
            else 0.0
        )
        return shift == 1.0 and _level(facts, first) == "low"
    return False


def _triangle(facts: Facts, value: ir.Value) -> bool | None:
    """True where nonzero means kept (a lower triangle of ones), False where it means masked; None otherwise."""
    node = facts.peel(value).producer()
    if node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        return _triangle(facts, node.inputs[0])
    if node is None or node.op_type != "Trilu" or node.inputs[0] is None:
        return None
    upper = bool(node.attributes.get_int("upper", 1))
    shift = (
        facts.scalar(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else 0.0
    )
    if _level(facts, node.inputs[0]) != "one":
        return None
    if not upper and shift == 0.0:
        return True
    return False if upper and shift == 1.0 else None


def _level(facts: Facts, value: ir.Value | None) -> str:
    """zero, one, low, or nothing known, for a value that is one number everywhere."""
    number = facts.scalar(value)
    node = facts.peel(value).producer() if value is not None else None
    if number is None and node is not None and node.domain == "":
        if node.op_type in ("Expand", "Cast") and node.inputs[0] is not None:
            return _level(facts, node.inputs[0])
        if node.op_type == "ConstantOfShape":
            tensor = node.attributes["value"].as_tensor() if "value" in node.attributes else None
            number = float(tensor.numpy().reshape(-1)[0]) if tensor is not None else 0.0
    if number is None:
        return ""
    return "zero" if number == 0 else "one" if number == 1 else "low" if number <= LOW else ""


def _compared(facts: Facts, node: ir.Node, dims: Dims, keep_when: bool) -> bool:
    """keys <= queries, with both the same range laid along the last and the last but one axis."""
    left, right = node.inputs[0], node.inputs[1]
    if left is None or right is None:
        return False
    along = [_range_axis(facts, v) for v in (left, right)]
    if along[0] is None or along[1] is None or along[0][1] != along[1][1]:
        return False
    axes = along[0][0], along[1][0]
    kept = {
        ("LessOrEqual", (-1, -2)): True,
        ("GreaterOrEqual", (-2, -1)): True,
        ("Greater", (-1, -2)): False,
        ("Less", (-2, -1)): False,
    }.get((node.op_type, axes))
    return kept is not None and kept == keep_when and dims[-1] == dims[-2]


def _range_axis(facts: Facts, value: ir.Value) -> tuple[int, int] | None:
    """(-1 or -2, key of the range) when `value` is a range laid along one of the last two axes."""
    dims = facts.dims(value)
    if dims is None or not dims:
        return None
    spread = [i - len(dims) for i, d in enumerate(dims) if d != 1]
    if len(spread) != 1 or spread[0] not in (-1, -2):
        return None
    node = value.producer()
    while (
        node is not None
        and node.op_type in ("Unsqueeze", "Reshape", "Cast", "Identity", "Squeeze")
        and node.inputs[0] is not None
    ):
        if sum(d != 1 for d in facts.dims(node.inputs[0]) or ()) != 1:
            return None
        node = node.inputs[0].producer()
    if (
        node is None
        or node.op_type != "Range"
        or facts.scalar(node.inputs[0]) != 0
        or facts.scalar(node.inputs[2]) != 1
    ):
        return None
    return spread[0], facts.key(node.outputs[0])


def _constant_causal(facts: Facts, value: ir.Value, keep_when: bool) -> bool:
    array = facts.array(value)
    if array is None or array.ndim < 2 or array.size > 2**22 or array.shape[-1] != array.shape[-2]:
        return False
    square = array.reshape(array.shape[-2:])
    n = len(square)
    kept = [[j <= i for j in range(n)] for i in range(n)]
    if facts.dtype(value) == ir.DataType.BOOL:
        return bool(((square.astype(bool) == keep_when) == kept).all())
    return bool(((square == 0) == kept).all() and ((square <= LOW) != kept).all())


def lowest(facts: Facts, value: ir.Value, depth: int = 6) -> float:
    """The lowest number that a bias may hold, where it says so itself: -inf when it holds one, 0 when not known to."""
    number = facts.scalar(value)
    if number is not None:
        return number
    node = value.producer()
    if node is None or depth == 0 or node.domain:
        array = facts.array(value) if facts.constant(value) else None
        return (
            float(array.min())
            if array is not None and array.size
            else float("-inf")
            if node is None and not facts.constant(value)
            else 0.0
        )
    if node.op_type == "Constant":
        array = facts.array(value)
        return float(array.min()) if array is not None and array.size else 0.0
    inputs = (
        node.inputs[1:]
        if node.op_type == "Where"
        else node.inputs[:1]
        if node.op_type in ("Expand", "Cast", "Reshape", "Unsqueeze", "Slice", "Trilu")
        else node.inputs
    )
    return min((lowest(facts, v, depth - 1) for v in inputs if v is not None), default=0.0)
