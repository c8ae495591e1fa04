"""Read and write ONNX files safely: nothing in a file is believed before it is checked, no weight is read.

    model.onnx (< 2 GiB, the graph) + model.onnx.data (any size, the weights) <-> onnx_ir.Model

Weights stay on disk: initializers are `onnx_ir.ExternalTensor`s that map their bytes when they are used.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeGuard

import onnx
import onnx_ir as ir

from ..core.errors import ArtefactError, UsageError
from .stored_tensors import stored_tensors, tensor_fault

MAX_PROTO_BYTES = 2**31 - 1  # protobuf's own limit for one message
PAGE = 4096  # external data starts on pages, so that it can be memory-mapped


class WritesBytes(Protocol):
    """A tensor that writes its elements, little endian and row by row, into an open file."""

    def tofile(self, file: IO[bytes], /) -> None:
        """Write them at the file's position."""


def load_model(path: str | Path) -> ir.Model:
    """Read the ONNX file at `path`; weights in external data stay on disk.

    Every tensor is checked before the model is built: its element type, that its bytes are as many as its
    dimensions ask for, and for external data (ONNX specification, External Data) that the file lies in the
    model's folder, exists, and holds the whole byte range.
    Raises UsageError when there is no such file, ArtefactError naming tensor and reason when it is damaged.
    """
    path = Path(path)
    proto = read_proto(path)
    for where, tensor in stored_tensors(proto):
        if reason := tensor_fault(tensor, path.absolute().parent):
            raise _damaged(path, f"tensor {tensor.name or where!r}: {reason}")
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # the reader raises many kinds, each for a graph that does not fit
        cause = " ".join(str(error.__cause__ or error).split())[:300]
        raise _damaged(path, f"the graph does not hold together ({cause})") from error
    if not all(isinstance(t, str) for n in model.graph.all_nodes() for t in (n.op_type, n.domain)):
        raise _damaged(path, "an operator's name that is no text")
    for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
        ir.external_data.set_base_dir(graph, path.absolute().parent)
    return model


def save_model(model: ir.Model, path: str | Path, *, inline_limit: int = 1024) -> None:
    """Write `model` to `path`, replacing what is there only once everything is written.

    Initializers of `inline_limit` bytes or more, and those that lie in another folder's data, go to `<path>.data`, one at a time and page aligned; external
    data that already lies in the same folder is referred to, not copied. `model` itself is left as it was.
    Raises UsageError when the folder cannot be written or the graph alone passes protobuf's 2 GiB.
    """
    path = Path(path).absolute()
    tensors = {v: v.const_value for g in model.graphs() for v in g.initializers.values()}
    if missing := [str(value.name) for value, tensor in tensors.items() if tensor is None]:
        raise UsageError(
            f"write {path.name}", found=f"initializers without a value: {', '.join(missing[:5])}"
        )
    kept = {v: t.path for v, t in tensors.items() if _lies_in(t, path.parent)}
    before = {
        v: t
        for v, t in tensors.items()
        if t is not None
        and v not in kept
        and (t.nbytes >= inline_limit or isinstance(t, ir.ExternalTensor))
    }
    location = _free_data_name(path, {Path(p).resolve() for p in kept.values()})
    try:
        with contextlib.ExitStack() as stack:
            if before:
                data = stack.enter_context(data_file(path.parent / location))
                for value, tensor in before.items():
                    value.const_value = data.append(tensor, value)
            _write_proto(model, path)
    except OSError as error:
        raise UsageError(
            f"write {path}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write, with enough room",
        ) from None
    finally:
        for value, tensor in before.items():
            value.const_value = tensor


@dataclass(frozen=True, slots=True)
class DataFile:
    """An external data file that is being written."""

    path: Path
    file: IO[bytes]

    def append(self, tensor: WritesBytes | ir.TensorProtocol, value: ir.Value) -> ir.ExternalTensor:
        """Write the bytes of `tensor`, which has `value`'s dtype and static shape; returns the reference to them."""
        assert value.name and value.dtype is not None and value.shape is not None
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
            name=value.name,
            base_dir=self.path.parent,
        )
        assert reference.length == reference.nbytes, f"{value.name} was written in another size"
        return reference


@contextlib.contextmanager
def data_file(path: Path) -> Iterator[DataFile]:
    """Open external data that takes the place of `path` on a clean exit and leaves nothing otherwise."""
    with _replacing(path) as file:
        yield DataFile(path, file)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_proto(model: ir.Model, path: Path) -> None:
    try:
        data = ir.serde.serialize_model(model).SerializeToString()
    except Exception as error:  # protobuf's EncodeError or ValueError, by version
        raise _too_large(path) from error
    if len(data) > MAX_PROTO_BYTES:
        raise _too_large(path)
    with _replacing(path) as file:
        file.write(data)


def _too_large(path: Path) -> UsageError:
    return UsageError(
        f"write {path.name}",
        found="the graph without its weights does not fit one protobuf message (2 GiB)",
        fix="Make large constants initializers: those are stored beside the graph",
    )


def _lies_in(tensor: ir.TensorProtocol | None, folder: Path) -> TypeGuard[ir.ExternalTensor]:
    if not isinstance(tensor, ir.ExternalTensor):
        return False
    return Path(tensor.base_dir).resolve() == folder.resolve()


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
