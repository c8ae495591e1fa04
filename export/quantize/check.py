"""What a quantised graph must not do, checked on ours after writing and on others' before reading.

- a scale is finite and positive, whatever made it
- a quantised activation feeds products alone: masks, ids and residual sums keep their precision
- what a key-value cache stores may be read by anything
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...core.domain import DOMAIN
from ...core.errors import UsageError
from .epilogues import OPERATORS

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "Attention", "Einsum"})
MOVES = frozenset({"Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Concat", "Identity", "Expand", "TensorScatter", "Gather"})  # fmt: skip


def check_quantized(model: ir.Model) -> None:
    """Raise UsageError naming the first node whose scale or place is wrong; graphs without Q/DQ pass."""
    for node in model.graph:
        ours = node.domain == DOMAIN and node.op_type in OPERATORS
        standard = node.domain in ("", "ai.onnx")
        if not ours and not (standard and node.op_type in ("QuantizeLinear", "DequantizeLinear")):
            continue
        _check_scale(node, node.inputs[-1] if ours else node.inputs[1])
        if ours or node.op_type == "QuantizeLinear":
            for user in _computing(node.outputs[0]):
                if user.op_type not in PRODUCTS:
                    raise UsageError(
                        f"quantised value {node.inputs[0].name!r}" if node.inputs[0] else "a value",
                        found=f"{user.op_type} ({user.name}) reads it, and only products may",
                        fix="Quantise the unquantised graph with Blockforge",
                    )
                if user.op_type == "Attention" and _feeds_mask(user, node):
                    raise UsageError(
                        f"mask of {user.name}",
                        found="it is quantised: its -inf has no scale",
                        fix="Quantise the unquantised graph with Blockforge",
                    )


def _check_scale(node: ir.Node, value: ir.Value | None) -> None:
    scale = value.const_value if value is not None else None
    if scale is None or scale.dtype == ir.DataType.FLOAT8E8M0:
        return
    numbers = scale.numpy().astype(np.float64)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        worst = numbers[~(np.isfinite(numbers) & (numbers > 0))].reshape(-1)[0]
        raise UsageError(
            f"scale of {node.op_type} ({node.name})",
            found=f"{worst}: it must be finite and positive",
            fix="Calibrate on inputs that reach the tensor, and leave masks alone",
        )


def _computing(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that compute with `value`, behind its DequantizeLinear and what only moves it, short of a cache."""
    queue, seen = [value], {value}
    while queue:
        current = queue.pop()
        if _is_stored(current):
            continue
        for use in current.uses():
            if use.node.op_type in MOVES or use.node.op_type == "DequantizeLinear":
                new = [v for v in use.node.outputs if v not in seen]
                seen.update(new)
                queue += new
            else:
                yield use.node


def _is_stored(value: ir.Value) -> bool:
    """Whether the graph gives `value`, or the codes of it, to its caller."""
    codes = [u.node.outputs[0] for u in value.uses() if u.node.op_type == "QuantizeLinear"]
    return any(v.is_graph_output() for v in (value, *codes))


def _feeds_mask(attention: ir.Node, quantize: ir.Node) -> bool:
    value = attention.inputs[3] if len(attention.inputs) > 3 else None
    while value is not None and (producer := value.producer()) is not None:
        if producer is quantize:
            return True
        if producer.op_type not in MOVES | {"DequantizeLinear"} or not producer.inputs:
            return False
        value = producer.inputs[0]
    return False
