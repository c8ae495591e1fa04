"""Read and write ONNX files safely: nothing in a file is believed before it is checked, no weight is read.

    model.onnx (< 2 GiB, the graph) + model.onnx.data (any size, the weights) <-> onnx_ir.Model

Weights stay on disk: initializers are `onnx_ir.ExternalTensor`s that map their bytes when they are used.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import onnx
import onnx_ir as ir

from ..core.errors import ArtefactError, UsageError
from ..core.whole_file import whole_file
from .collector import collector_paused
from .homes import Home, homes
from .rules import nodes_of
from .soundness import circle_in, endless_functions_in
from .stored_tensors import stored_tensors, tensor_fault

MAX_PROTO_BYTES = 2**31 - 1  # protobuf's own limit for one message
PAGE = 4096  # external data starts on pages, so that it can be memory-mapped


class WritesBytes(Protocol):
    """A tensor that writes its elements, little endian and row by row, into an open file."""

    def tofile(self, file: IO[bytes], /) -> None:
        """Write them at the file's position."""


def load_model(path: str | Path, *, allow_circles: bool = False) -> ir.Model:
    """Read the ONNX file at `path`; weights in external data stay on disk.

    Every tensor is checked before the model is built: its element type, that its bytes are as many as its
    dimensions ask for, and for external data (ONNX specification, External Data) that the file lies in the
    model's folder, exists, and holds the whole byte range. Nodes that stand in a circle (unless allow_circles, for who
    reports them), functions that call themselves or unfold without end are refused too.
    Raises UsageError when there is no such file, ArtefactError naming tensor or node and reason when it is damaged.
    """
    path = Path(path)
    proto = read_proto(path)
    external = False
    for where, tensor in stored_tensors(proto):
        external |= tensor.data_location == onnx.TensorProto.EXTERNAL
        if reason := tensor_fault(tensor, path.absolute().parent):
            raise _damaged(path, f"tensor {tensor.name or where!r}: {reason}")
    try:
        with collector_paused():
            model = ir.serde.deserialize_model(proto)
    except Exception as error:  # the reader raises many kinds, each for a graph that does not fit
        cause = " ".join(str(error.__cause__ or error).split())[:300]
        raise _damaged(path, f"the graph does not hold together ({cause})") from error
    nodes = nodes_of(model.graph)
    for function in model.functions.values():
        nodes += nodes_of(function)
    if not all(isinstance(n.op_type, str) and isinstance(n.domain, str) for n in nodes):
        raise _damaged(path, "an operator's name that is no text")
    unsound = endless_functions_in(model) or (None if allow_circles else circle_in(model))
    if unsound is not None:
        raise ArtefactError(f"model {path}", found=unsound.found, fix=unsound.fix)
    if external:
        for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
            ir.external_data.set_base_dir(graph, path.absolute().parent)
    return model


def save_model(
    model: ir.Model,
    path: str | Path,
    *,
    inline_limit: int = 1024,
    self_contained: bool = False,
) -> None:
    """Write `model` to `path`, replacing what is there only once everything is written.

    Initializers of `inline_limit` bytes or more, and all external data that lies in another folder, go to `<path>.data`,
    one at a time and page aligned, and bytes that several tensors share once. External data in the same folder is
    referred to, not copied, unless the file is to be self_contained. `model` itself is left as it was.
    Raises UsageError when the folder cannot be written or the graph alone passes protobuf's 2 GiB.
    """
    path = Path(path).absolute()
    places = homes(model)
    if missing := [home.name for home in places if home.tensor is None]:
        raise UsageError(
            f"write {path.name}", found=f"initializers without a value: {', '.join(missing[:5])}"
        )
    read = {
        Path(h.tensor.path).resolve() for h in places if isinstance(h.tensor, ir.ExternalTensor)
    }
    before = [home for home in places if home.moves(path.parent, inline_limit, self_contained)]
    location = _free_data_name(path, read)
    try:
        with contextlib.ExitStack() as stack:
            if before:
                data = stack.enter_context(data_file(path.parent / location))
                written: dict[object, ir.ExternalTensor] = {}
                for home in before:
                    home.put(_moved(home, data, written))
            _write_proto(model, path)
    except OSError as error:
        raise UsageError(
            f"write {path}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write, with enough room",
        ) from None
    finally:
        for home in before:
            home.put(home.tensor)


@dataclass(frozen=True, slots=True)
class DataFile:
    """An external data file that is being written."""

    path: Path
    file: IO[bytes]

    def append(
        self, tensor: WritesBytes | ir.TensorProtocol, value: ir.Value | ir.TensorProtocol
    ) -> ir.ExternalTensor:
        """Write the bytes of `tensor`, which has `value`'s dtype and static shape; returns the reference to them."""
        assert value.dtype is not None and isinstance(value.shape, ir.Shape)
        self.file.write(b"\0" * (-self.file.tell() % PAGE))
        offset = self.file.tell()
        if hasattr(tensor, "tofile"):  # onnx_ir's tensors need not have it
            tensor.tofile(self.file)
        else:
            self.file.write(tensor.tobytes())
        reference = ir.ExternalTensor(
            self.path.name,
            offset,
            self.file.tell() - offset,
            value.dtype,
            shape=ir.Shape(value.shape.numpy()),
            name=value.name or "",
            base_dir=self.path.parent,
        )
        assert reference.length == reference.nbytes, f"{value.name} was written in another size"
        return reference


@contextlib.contextmanager
def data_file(path: Path) -> Iterator[DataFile]:
    """Open external data that takes the place of `path` on a clean exit and leaves nothing otherwise."""
    with whole_file(path) as file:
        yield DataFile(path, file)


def _write_proto(model: ir.Model, path: Path) -> None:
    try:
        data = ir.serde.serialize_model(model).SerializeToString()
    except Exception as error:  # protobuf's EncodeError or ValueError, by version
        raise _too_large(path) from error
    if len(data) > MAX_PROTO_BYTES:
        raise _too_large(path)
    with whole_file(path) as file:
        file.write(data)


def _too_large(path: Path) -> UsageError:
    return UsageError(
        f"write {path.name}",
        found="the graph without its weights does not fit one protobuf message (2 GiB)",
        fix="Make large constants initializers: those are stored beside the graph",
    )


def _moved(
    home: Home, data: DataFile, written: dict[object, ir.ExternalTensor]
) -> ir.ExternalTensor:
    """A reference to the tensor's bytes in `data`; written: those that are there, by what holds them elsewhere."""
    tensor = home.tensor
    assert tensor is not None
    key: object = id(tensor)
    if isinstance(tensor, ir.ExternalTensor):
        key = Path(tensor.path).resolve(), tensor.offset or 0, tensor.nbytes
    if key not in written:
        written[key] = data.append(tensor, tensor)
    same = written[key]
    return ir.ExternalTensor(
        same.location,
        same.offset,
        same.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=home.name,
        base_dir=same.base_dir,
    )


def data_path(path: Path) -> Path:
    """Where save_model writes the weights of `path`, unless they are read from there."""
    return path.with_name(f"{path.name}.data")


def _free_data_name(path: Path, used: set[Path]) -> str:
    """`<name>.data`, numbered when tensors that stay in place live in that file."""
    names = (f"{path.name}{n}.data" for n in ("", *(f".{i}" for i in range(1, len(used) + 1))))
    return next(name for name in names if (path.parent / name).resolve() not in used)


def read_proto(path: Path) -> onnx.ModelProto:
    """The file as it is stored, its tensors unchecked; errors as load_model's, but for the tensors."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise UsageError(f"model {path}", found=found, fix="Name an .onnx file")
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MAX_PROTO_BYTES else b""
    except OSError as error:
        raise UsageError(f"model {path}", found=f"cannot read it: {error.strerror}") from None
    if size > MAX_PROTO_BYTES:
        raise _damaged(path, f"{size} bytes, and no ONNX file may pass {MAX_PROTO_BYTES}")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # protobuf's DecodeError; the package has no types to import it by
        raise _damaged(path, "not an ONNX file, or cut short") from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise _damaged(path, "not an ONNX file: it has no graph" if size else "the file is empty")
    if not proto.opset_import:
        raise _damaged(path, "cut short: no opset import follows the graph")
    return proto


def _damaged(path: Path, found: str) -> ArtefactError:
    return ArtefactError(f"model {path}", found=found, fix="Get the file, and its data file, again")
