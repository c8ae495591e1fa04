"""The inputs and outputs of a graph as records: names, element types, sizes or axis names."""

import onnx_ir as ir

from ..core.dtypes import dtype_from_onnx
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Dim


def signature_of(model: ir.Model) -> tuple[tuple[TensorRecord, ...], tuple[TensorRecord, ...]]:
    """(inputs, outputs) of `model`.

    An axis without size or name is called after its tensor: such axes are independent of each other.
    Raises UsageError for a tensor of unknown rank or an element type that engines cannot have.
    """
    graph = model.graph
    inputs = (v for v in graph.inputs if str(v.name) not in graph.initializers)
    return tuple(map(_record, inputs)), tuple(map(_record, graph.outputs))


def input_dims(model: ir.Model) -> dict[str, tuple[Dim, ...]]:
    """Input name -> sizes or axis names; errors as signature_of."""
    return {record.name: record.dims for record in signature_of(model)[0]}


def _record(value: ir.Value) -> TensorRecord:
    if value.shape is None or value.dtype is None:
        raise UsageError(
            f"tensor {value.name!r} of the graph",
            found="its rank or element type is not declared",
            fix="Declare the shapes of inputs and outputs",
        )
    dims = tuple(
        d if isinstance(d, int) else str(d.value or f"{value.name}.{axis}")
        for axis, d in enumerate(value.shape)
    )
    return TensorRecord(
        name=str(value.name), dtype=dtype_from_onnx(int(value.dtype)).value, dims=dims
    )
