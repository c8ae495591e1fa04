"""What speaks against a tensor in an ONNX file, before anyone believes its dimensions or its path.

every tensor of a ModelProto -> the reason why it cannot be right, or None
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

MOST_ELEMENTS = (
    2**47
)  # what no memory holds; an axis of 0 must not hide axes that no library can count


def stored_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor in the file, with a word on where it is for those without a name."""
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield "an initializer", tensor
    for sparse in graph.sparse_initializer:
        yield from (("a sparse initializer", t) for t in (sparse.values, sparse.indices))
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in nodes:
        for attribute in node.attribute:
            where = f"{attribute.name} of {node.name or node.op_type}"
            if attribute.HasField("t"):
                yield where, attribute.t
            yield from ((where, tensor) for tensor in attribute.tensors)
            for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graph_tensors(graph)


def data_locations(proto: onnx.ModelProto) -> set[str]:
    """The files that hold external data of the model, as it names them."""
    return {
        entry.value
        for _, tensor in stored_tensors(proto)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }


def tensor_fault(tensor: onnx.TensorProto, folder: Path) -> str | None:
    """Why the tensor cannot be right, None when nothing speaks against it."""
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        return f"unknown element type {tensor.data_type}"
    if dtype == ir.DataType.UNDEFINED:
        return "no element type"
    if any(d < 0 for d in tensor.dims) or math.prod(d for d in tensor.dims if d) > MOST_ELEMENTS:
        return f"dimensions {list(tensor.dims)}"
    if dtype == ir.DataType.STRING:
        return None if len(tensor.string_data) == math.prod(tensor.dims) else "strings are missing"
    expected = math.ceil(math.prod(tensor.dims) * dtype.bitwidth / 8)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external_fault(tensor, expected, folder)
    if tensor.HasField("raw_data"):
        found = len(tensor.raw_data)
        return None if found == expected else _size_fault(tensor, found, expected)
    return _typed_fault(tensor, dtype)


def _typed_fault(tensor: onnx.TensorProto, dtype: ir.DataType) -> str | None:
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    count, expected = len(getattr(tensor, field)), math.prod(tensor.dims)
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        expected *= 2
    elif dtype.bitwidth < 8:  # packed, several elements per stored number
        expected = math.ceil(expected * dtype.bitwidth / 8)
    if count == expected:
        return None
    return f"{count} elements in {field} for dimensions {list(tensor.dims)}"


def _external_fault(tensor: onnx.TensorProto, expected: int, folder: Path) -> str | None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", expected))
    except ValueError:
        return f"offset {entries.get('offset')!r}, length {entries.get('length')!r}"
    if fault := _location_fault(location, folder):
        return f"external data {location!r} {fault}"
    if length != expected:
        return _size_fault(tensor, length, expected)
    size = (folder / location).stat().st_size
    if offset < 0 or offset + length > size:
        return f"bytes {offset} to {offset + length} of {location!r}, which has {size}"
    return None


def _location_fault(location: str, folder: Path) -> str | None:
    """External data must be a plain file in the model's own folder: a model from elsewhere reads nothing else."""
    path = PurePosixPath(location)
    if not path.parts or "\0" in location:
        return "is not a file name"
    absolute = path.is_absolute() or PureWindowsPath(location).drive or "\\" in location
    if absolute or ".." in path.parts:
        return "leaves the model's folder"
    try:
        real = (folder / path).resolve()
        if not real.is_relative_to(folder.resolve()):
            return "is a link that leaves the model's folder"
        if not real.exists():
            return "is missing: copy it beside the model"
        return None if real.is_file() else "is not a plain file"
    except (OSError, RuntimeError) as error:  # a name too long, a circle of links
        return f"cannot be looked up ({error.__class__.__name__})"


def _size_fault(tensor: onnx.TensorProto, found: int, expected: int) -> str:
    return f"{found} bytes where dimensions {list(tensor.dims)} need {expected}"
