"""The nodes ONNX Runtime really runs for a model, inside the child process.

Read from its profiler over one run at the smallest shapes: that shows fused nodes, inserted casts and their element
types, writes no second copy of the weights, and proves that the session works.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.dtypes import dtype_from_name
from ..core.errors import BuildError
from .memory import peak_bytes
from .onnxruntime_api import DTYPES, open_session, version

SUFFIX = "_kernel_time"


def list_nodes(request: dict[str, Any], emit: Callable[..., None]) -> dict[str, Any]:
    """Load the model, run it once on zeros, write its nodes to request["nodes"]; returns seconds and runtime.

    request: model, provider, feeds (name -> [dtype, dims]), nodes. Raises UnavailableError without the
    provider and BuildError with ONNX Runtime's words when it refuses the model.
    """
    import numpy as np

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(
            Path(request["model"]), request["device"], profile_to=str(Path(folder) / "profile")
        )
        emit("step", phase="Loaded", done=1, total=2)
        feeds = {
            name: np.zeros(dims, dtype_from_name(dtype).numpy)
            for name, (dtype, dims) in request["feeds"].items()
        }
        try:
            session.run(None, feeds)
        except Exception as error:
            raise BuildError(
                request["asked"], found=f"{version()} cannot run the model: {error}"
            ) from None
        trace = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    nodes = [_node(event) for event in trace if event.get("cat") == "Node"]
    nodes.sort(key=lambda node: node["ts"])
    Path(request["nodes"]).write_text(json.dumps(nodes), encoding="utf-8")
    emit("step", phase="Ran", done=2, total=2)
    return {
        "seconds": time.monotonic() - start,
        "runtime": version(),
        "peak_bytes": peak_bytes(),
    }


def _node(event: dict[str, Any]) -> dict[str, Any]:
    args = event["args"]
    return {
        "ts": event["ts"],
        "name": event["name"].removesuffix(SUFFIX),
        "type": args["op_name"],
        "provider": args["provider"],
        "inputs": _types(args["input_type_shape"]),
        "outputs": _types(args["output_type_shape"]),
    }


def _types(entries: list[dict[str, list[int]]]) -> list[tuple[str, list[int]]]:
    return [(DTYPES.get(t, t), dims) for entry in entries for t, dims in entry.items()]
