"""The fusion tools that fusion_coverage.py compares, each as file -> model, and the judge of their results."""

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch

from blockforge.export.fusions import existing, fuse
from blockforge.graph.evaluator import TypedEvaluator

# Largest error of an output over its largest element. fp32: ORT's kernels sum in another order than the graph's
# nodes, over at most 128 terms and 2 layers. 16 bit: a few roundings of the type on either side.
RUNTIME_TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
# float64 on both sides: only constants that are stored once in fp32 and once folded differ.
EXACT_TOLERANCE = 1e-6
SHAPES = ((2, 5), (3, 4))


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool made of one file."""

    model: onnx.ModelProto
    counts: dict[str, int]


def count(model: onnx.ModelProto) -> dict[str, int]:
    """Fused operators per pattern in a model."""
    return existing.count(ir.from_proto(model))


def ours(path: Path) -> Result:
    """blockforge.export.fusions.fuse."""
    model = ir.load(path)
    fuse(model)
    proto = ir.to_proto(model)
    return Result(proto, count(proto))


def ort_transformers(path: Path) -> Result:
    """onnxruntime.transformers.optimizer with the model type that knows most norms."""
    from onnxruntime.transformers.optimizer import optimize_model

    optimised = optimize_model(
        str(path), model_type="gpt2", num_heads=0, hidden_size=0, opt_level=0
    )
    return Result(optimised.model, count(optimised.model))


def ort_session(path: Path) -> Result:
    """The graph that an ONNX Runtime CPU session runs (ORT_ENABLE_EXTENDED)."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(Path(folder) / "o.onnx")
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    return Result(model, count(model))


def onnxscript_rewrite(path: Path) -> Result:
    """onnxscript.optimizer.optimize, then onnxscript.rewriter.rewrite with its default rules."""
    from onnxscript.optimizer import optimize
    from onnxscript.rewriter import rewrite

    model = ir.load(path)
    optimize(model)
    proto = ir.to_proto(rewrite(model))
    return Result(proto, count(proto))


def optimize_for_ort(path: Path) -> Result:
    """onnxscript.rewriter.ort_fusions.optimize_for_ort."""
    from onnxscript.optimizer import optimize
    from onnxscript.rewriter.ort_fusions import optimize_for_ort as optimise

    model = ir.load(path)
    optimize(model)
    proto = ir.to_proto(optimise(model)[0])
    return Result(proto, count(proto))


def onnxslim(path: Path) -> Result:
    """onnxslim.slim."""
    import onnxslim as tool

    model = tool.slim(str(path))
    return Result(model, count(model))


def onnxsim(path: Path) -> Result:
    """onnxsim.simplify."""
    import onnxsim as tool

    model, _ = tool.simplify(onnx.load(path))
    return Result(model, count(model))


TOOLS: dict[str, Callable[[Path], Result]] = {
    "blockforge": ours,
    "ort.transformers": ort_transformers,
    "ort.session": ort_session,
    "onnxscript.rewrite": onnxscript_rewrite,
    "optimize_for_ort": optimize_for_ort,
    "onnxslim": onnxslim,
    "onnxsim": onnxsim,
}


def missing(name: str) -> str:
    """Why a tool cannot run here, empty when it can."""
    modules = {"onnxslim": "onnxslim", "onnxsim": "onnxsim"}
    if name not in modules:
        return ""
    try:
        __import__(modules[name])
    except ImportError:
        return f"pip install {modules[name]}"
    return ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No prints and warnings of the tools."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def feeds(model: onnx.ModelProto, batch: int, length: int, scale: float) -> dict[str, np.ndarray]:
    """Inputs for one shape: token ids, a mask with padding on the left, activations with a row of zeros."""
    rng = np.random.default_rng(batch)
    stored = {i.name for i in model.graph.initializer}
    made = {}
    for info in model.graph.input:
        if info.name in stored:
            continue
        kind = info.type.tensor_type
        shape = [d.dim_value or (batch if i == 0 else length) for i, d in enumerate(kind.shape.dim)]
        if "mask" in info.name:
            made[info.name] = np.broadcast_to(
                np.arange(length) >= np.arange(batch)[:, None] % 3, shape
            ).astype(np.int64)
        elif kind.elem_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
            made[info.name] = rng.integers(0, 100, shape).astype(
                onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            )
        else:
            array = rng.normal(size=shape) * scale
            array.reshape(-1, shape[-1])[0] = 0
            made[info.name] = array.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return made


def fault(source: onnx.ModelProto, result: onnx.ModelProto, dtype: str) -> str:
    """What is wrong with a result, empty when nothing is: invalid, other types, not loading, other numbers."""
    kinds = [[o.type.tensor_type.elem_type for o in m.graph.output] for m in (source, result)]
    if kinds[0] != kinds[1]:
        return "the types of the outputs changed"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = []
    for model in (source, result):
        try:
            sessions.append(
                ort.InferenceSession(
                    model.SerializeToString(), options, providers=["CPUExecutionProvider"]
                )
            )
        except Exception as error:  # ONNX Runtime raises its own kinds; the first line says why
            if sessions:
                return f"does not load: {str(error)[:120]}"
            return _evaluated(source, result)
    for batch, length in SHAPES:
        fed = feeds(source, batch, length, 1.0)
        try:
            before = sessions[0].run(None, fed)
        except Exception:  # a source that cannot run at this shape has nothing to compare
            continue
        try:
            after = sessions[1].run(None, fed)
        except Exception as error:
            return f"does not run at {batch}x{length}: {str(error)[:120]}"
        if wrong := _different(before, after, RUNTIME_TOLERANCE[dtype]):
            return f"{wrong} at {batch}x{length}"
    ours_only = not any(n.domain == "com.microsoft" for n in result.graph.node)
    return _evaluated(source, result) if ours_only else ""


def _evaluated(source: onnx.ModelProto, result: onnx.ModelProto) -> str:
    """Compare in float64, with values whose squares pass float16's range."""
    try:
        pair = [TypedEvaluator(ir.from_proto(m), exact=True) for m in (source, result)]
    except Exception:  # an operator of the tool's own domain: judged by ONNX Runtime alone
        return ""
    for (batch, length), scale in zip(SHAPES, (1.0, 3e4), strict=True):
        fed = {
            k: torch.from_numpy(v.astype("f8") if v.dtype.kind not in "ib" else v)
            for k, v in feeds(source, batch, length, scale).items()
        }
        try:
            before = pair[0].run(fed).outputs
        except Exception:
            continue
        try:
            after = pair[1].run(fed).outputs
        except Exception as error:
            return f"does not evaluate at {batch}x{length}: {str(error)[:120]}"
        arrays = [[np.asarray(o.double()) for o in outputs.values()] for outputs in (before, after)]
        if wrong := _different(arrays[0], arrays[1], EXACT_TOLERANCE):
            return f"float64: {wrong} at {batch}x{length}"
    return ""


def _different(before: list[np.ndarray], after: list[np.ndarray], tolerance: float) -> str:
    for x, y in zip(before, after, strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"output {x.dtype}{list(x.shape)} became {y.dtype}{list(y.shape)}"
        a, b = x.astype(np.float64), y.astype(np.float64)
        finite = np.isfinite(a)
        if (np.isfinite(b) != finite).any():
            return "other rows are not finite"
        size = np.abs(a[finite]).max(initial=0.0)
        error = np.abs(a - b)[finite].max(initial=0.0)
        if error > tolerance * max(size, 1e-30):
            return f"error {error / max(size, 1e-30):.1e}"
    return ""
