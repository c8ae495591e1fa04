"""A planned engine in the form that `trtexec --exportLayerInfo` writes, which NVIDIA's trt-engine-explorer (trex) reads.

    {"Layers": [{"Name", "LayerType", "Inputs": [{"Name", "Dimensions", "Format/Datatype"}], "Outputs", "Constants",
     "Weights": {"Type", "Count"}, "TacticName" or "TacticValue", "StreamId", "Metadata"}], "Bindings": [names]}

TensorRT writes it from a deserialised engine, which needs a GPU; this is made from the plan's listing, so it has what the
listing has: no Location, no ParameterType. trex takes ParameterType from LayerType where it is missing.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

from .kernel import Kernel, TensorInfo
from .layers_file import LayersFile
from .listing import DTYPES, ONNX_LAYER, SEPARATOR

# Our name -> TensorRT's word: the listing's table turned round, and words that it keeps in lower case.
WORDS = {ours: word for word, ours in DTYPES.items()} | {
    word.lower(): word
    for word in ("Double", "Int4", "Int16", "UInt16", "UInt32", "UInt64", "FP4", "E8M0")
}
_VALUE = re.compile(r"0x[0-9a-f]{16}")  # how TensorRT's own layers name a tactic


def trtexec_layers(layers: LayersFile, bindings: Iterable[str]) -> dict[str, Any]:
    """The kernels of `layers` as trtexec's JSON. bindings: names of the engine's inputs and outputs."""
    return {"Layers": [_layer(kernel) for kernel in layers.kernels], "Bindings": list(bindings)}


def _layer(kernel: Kernel) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "Name": kernel.name,
        "LayerType": kernel.type,
        "Inputs": [_tensor(t) for t in kernel.inputs],
        "Outputs": [_tensor(t) for t in kernel.outputs],
    }
    if kernel.constants:
        layer["Constants"] = [_tensor(t) for t in kernel.constants]
    weights = [t for t in kernel.constants if t.is_matrix] if kernel.is_matrix else []
    if weights:  # the other constants are scales and biases
        count = sum(math.prod(t.dims) for t in weights)
        layer["Weights"] = {"Type": _word(weights[0].dtype), "Count": count}
    layer["TacticValue" if _VALUE.fullmatch(kernel.tactic) else "TacticName"] = kernel.tactic
    layer["StreamId"] = kernel.stream
    layer["Metadata"] = SEPARATOR.join(f"{ONNX_LAYER}{node}]" for node in kernel.nodes)
    return layer


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    return {
        "Name": tensor.name,
        "Dimensions": list(tensor.dims),
        "Format/Datatype": _word(tensor.dtype),
    }


def _word(dtype: str) -> str:
    return WORDS.get(dtype, dtype)
