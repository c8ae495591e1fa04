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
    return tuple(map(_record, fed_inputs(model))), tuple(map(_record, model.graph.outputs))


def input_dims(model: ir.Model) -> dict[str, tuple[Dim, ...]]:
    """Input name -> sizes or axis names. Raises UsageError for an input of unknown rank."""
    return {str(value.name): dims_of(value) for value in fed_inputs(model)}


def fed_inputs(model: ir.Model) -> list[ir.Value]:
    """The graph's inputs without those that a weight fills."""
    graph = model.graph
    return [value for value in graph.inputs if str(value.name) not in graph.initializers]


def dims_of(value: ir.Value) -> tuple[Dim, ...]:
    """The sizes or axis names of an input or output. Raises UsageError where its rank is unknown."""
    if value.shape is None:
        raise _undeclared(value)
    return tuple(
        d if isinstance(d, int) else str(d.value or f"{value.name}.{axis}")
        for axis, d in enumerate(value.shape)
    )


def _record(value: ir.Value) -> TensorRecord:
    if value.dtype is None:
        raise _undeclared(value)
    dims = dims_of(value)
    return TensorRecord(
        name=str(value.name), dtype=dtype_from_onnx(int(value.dtype)).value, dims=dims
    )


def _undeclared(value: ir.Value) -> UsageError:
    return UsageError(
        f"tensor {value.name!r} of the graph",
        found="its rank or element type is not declared",
        fix="Declare the shapes of inputs and outputs",
    )
