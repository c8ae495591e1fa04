"""An ONNX graph "compiled" for ONNX Runtime, which runs the file itself: what there is to record is the nodes it ran."""

import json
from collections.abc import Collection
from pathlib import Path

import onnx_ir as ir

from ..core.dtypes import dtype_from_onnx
from ..core.manifest import EngineRecord
from ..core.progress import Progress
from .building import ENGINES, finish, run
from .child import Event
from .kernel import Kernel, TensorInfo
from .request import CompileRequest
from .staging import staging


def compile_onnxruntime(
    request: CompileRequest, model: ir.Model, progress: Progress
) -> EngineRecord:
    """Run the graph once at its smallest sizes and record which nodes ran, on what and in which types."""
    feeds = {
        str(value.name): (
            dtype_from_onnx(int(value.dtype or 0)).value,
            request.profile[str(value.name)].min,
        )
        for value in model.graph.inputs
    }
    with staging(request.folder / ENGINES, request.target.slug) as stage:
        nodes = stage / "nodes.json"
        job: Event = {
            "job": "onnxruntime",
            "asked": request.asked,
            "model": str(request.model.absolute()),
            "device": request.target.device,
            "feeds": feeds,
            "nodes": str(nodes),
        }
        done = run(request, job, progress)
        done["bytes"] = request.model.stat().st_size + _external_bytes(model)
        named = {node.name for node in model.graph}
        kernels = tuple(_ran(node, named) for node in json.loads(nodes.read_text(encoding="utf-8")))
        return finish(request, stage, done, "profiler", kernels)


def _ran(node: Event, named: Collection[str | None]) -> Kernel:
    """A node that ONNX Runtime ran; it covers no ONNX node where the name is its own (inlined functions, fusions, casts)."""
    inputs, outputs = (
        tuple(TensorInfo("", dtype, tuple(dims)) for dtype, dims in node[side])
        for side in ("inputs", "outputs")
    )
    return Kernel(
        name=node["name"],
        type=node["type"],
        inputs=inputs,
        outputs=outputs,
        tactic=node["provider"],
        nodes=(node["name"],) if node["name"] in named else (),
    )


def _external_bytes(model: ir.Model) -> int:
    tensors = [v.const_value for v in model.graph.initializers.values()]
    paths = {Path(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)}
    return sum(path.stat().st_size for path in paths)
