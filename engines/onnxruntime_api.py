"""The one door to `onnxruntime`: sessions on a device, its errors as ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ArtefactError, BuildError, UnavailableError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
INSTALL = {
    "cpu": "pip install onnxruntime",
    "cuda": "pip uninstall onnxruntime && pip install onnxruntime-gpu, on a machine with an NVIDIA GPU",
}
ONLY_ERRORS = 3  # onnxruntime's log severity
DAMAGED = ("InvalidProtobuf", "NoModel")  # its exception classes for a file it cannot read
TYPES_BROKEN = ("Type Error", "bound to different types")  # its words for a graph of wrong types
NO_KERNEL = "Could not find an implementation"  # of an operator in its element type

# ONNX Runtime's word inside tensor(...) -> our name (core.dtypes)
DTYPES = {
    "double": "fp64",
    "float": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8e4m3fn": "fp8_e4m3",
    "int64": "int64",
    "int32": "int32",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
}


def version() -> str:
    """Runtime and version, e.g. `onnxruntime 1.32.0`."""
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__}"


def providers() -> tuple[str, ...]:
    """The execution providers of the installed onnxruntime; UnavailableError when it cannot be imported."""
    try:
        import onnxruntime
    except (ImportError, OSError) as error:
        raise UnavailableError(
            "ONNX Runtime", found=f"cannot import onnxruntime: {error}", fix=INSTALL["cpu"]
        ) from None
    return tuple(onnxruntime.get_available_providers())


def require(device: str) -> None:
    """Raise UnavailableError unless the installed onnxruntime can run on `device` (cpu or cuda)."""
    has = providers()
    if PROVIDERS[device] not in has:
        raise UnavailableError(
            f"target onnxruntime:{device}",
            found=f"{version()} has no {PROVIDERS[device]}, only {', '.join(has)}",
            fix=INSTALL[device],
        )


def lacks_kernel(device: str) -> str:
    """What to do about a graph with an operator that ONNX Runtime has no kernel for in the graph's type."""
    return (
        f"{PROVIDERS[device]} lacks this operator in the graph's type (on the CPU, bf16 products are "
        f"missing): leave the target onnxruntime:{device} out, or build in another precision"
    )


def open_session(
    path: Path, device: str, *, profile_to: str | None = None, threads: int = 0
) -> Any:
    """An onnxruntime.InferenceSession of the model at `path`.

    profile_to: prefix of a profile file; such a session leaves its weights mapped instead of repacking them.
    threads: that share one operator's work, 0 for ONNX Runtime's own choice.
    Raises UnavailableError without the provider, UsageError without the file, and with ONNX Runtime's words
    ArtefactError for a file it cannot read and BuildError for a graph it cannot run.
    """
    require(device)
    import onnxruntime

    if not path.is_file():
        raise UsageError(f"model {path}", found="no such file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ONLY_ERRORS
    options.intra_op_num_threads = threads
    if profile_to:
        options.enable_profiling = True
        options.profile_file_prefix = profile_to
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = _opened(path, options, device)
    except Exception as error:  # onnxruntime's classes share no base of their own
        kind = ArtefactError if type(error).__name__ in DAMAGED else BuildError
        words = " ".join(str(error).split())
        fix = lacks_kernel(device) if NO_KERNEL in words else ""
        raise kind(f"model {path}", found=f"{version()} refuses it: {words}", fix=fix) from None
    if PROVIDERS[device] not in session.get_providers():  # it falls back to the CPU without a word
        raise UnavailableError(
            f"target onnxruntime:{device}",
            found=f"{version()} could not start {PROVIDERS[device]} here",
            fix=INSTALL[device],
        )
    return session


def survives_rewrites(path: Path) -> bool:
    """Whether ONNX Runtime's own settings open the model on the CPU; False where its rewrites of Q/DQ pairs spoil it.

    A graph without such pairs is not opened. Raises what load_model raises.
    """
    import onnxruntime

    from ..graph.io import load_model
    from ..graph.rules import nodes_of

    model = load_model(path)
    roots: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    if not any(n.op_type == "DequantizeLinear" for root in roots for n in nodes_of(root)):
        return True
    options = onnxruntime.SessionOptions()
    options.log_severity_level = ONLY_ERRORS
    try:
        onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS["cpu"]])
    except Exception as error:
        return not _types_broken(error)
    return True


def _types_broken(error: Exception) -> bool:
    return any(words in str(error) for words in TYPES_BROKEN)


def _opened(path: Path, options: Any, device: str) -> Any:
    """The session; its Q/DQ pairs stay pairs where ONNX Runtime's rewrites of them lose the type of a result.

    QDQPropagation and the fusion into MatMulNBits take a DequantizeLinear's output to have its scale's type
    (`output_dtype`, opset 23, says otherwise) and end in a graph that is wrong by its own rules.
    """
    import onnxruntime

    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[device]])
    except Exception as error:
        if not _types_broken(error):
            raise
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[device]])
        except Exception:
            raise error from None  # the graph itself is wrong
