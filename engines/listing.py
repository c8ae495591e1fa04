"""Read the `Layers:` listing that ends a builder's verbose output: what TensorRT planned, kernel by kernel.

    Layers:
    Name: N, LayerType: gemm, Inputs: [ { Name: x, Dimensions: [-1,64], ..., Datatype: Half, Format: ... }],
      Constants: [...], Outputs: [...], TacticName: t, StreamId: 0, Metadata: [ONNX Layer: a/MatMul][ONNX Layer: b/Add]

(one line a layer). The form is no promise of TensorRT's, so a line that does not fit is an error and never skipped.
"""

import re

from ..core.errors import BuildError
from .kernel import Kernel, TensorInfo

HEADER = "Layers:"
ONNX_LAYER = "[ONNX Layer: "
SEPARATOR = "\x1f"  # between two nodes; terminals show nothing
# What follows the name of a node inside If: ` | then (then_branch) | layers.0/If (If)`.
_SCOPES = re.compile(r"(?: \| [^|]* \(\w+_branch\) \| [^|]* \(If\))+$")

# Two writers: the compiler's layers have Constants, strides and a TacticName; TensorRT's own (shape copies) have a
# Location, parameters of their type and a TacticValue. EventId and jump targets stand on control layers only.
_LAYER = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<type>\w+), Inputs: \[(?P<inputs>.*?)\], "
    r"(?:Constants: \[(?P<constants>.*?)\], )?Outputs: \[(?P<outputs>.*?)\], "
    r"(?:ParameterType: .*?, )?Tactic(?:Name|Value): (?P<tactic>.*?), "
    r"StreamId: (?P<stream>\d+),(?: \w+: \S+,)* Metadata: (?P<metadata>.*)"
)
_TENSOR = re.compile(
    r" \{ Name: (?P<name>.*?), (?:Location: \w+, )?Dimensions: \[(?P<dims>[-\d,]*)\], "
    r"(?:Strides: \[[-\d,]*\], StrideOrder: \[[-\d,]*\], )?"
    r"Datatype: (?P<dtype>\w+), Format: .*?(?: \}|$)(?:,|$)"
)

DTYPES = {  # TensorRT's word -> ours (core.dtypes); others keep TensorRT's word in lower case
    "Float": "fp32",
    "Half": "fp16",
    "BFloat16": "bf16",
    "FP8": "fp8_e4m3",
    "Int64": "int64",
    "Int32": "int32",
    "Int8": "int8",
    "UInt8": "uint8",
    "Bool": "bool",
}


def kernels_from_listing(text: str, asked: str) -> tuple[Kernel, ...]:
    """Parse one listing, in execution order.

    Raises BuildError when there is none or a line of it does not read as expected: another TensorRT version
    writes another form, and a check of kernels and dtypes that skipped lines would prove nothing.
    """
    lines = text.split("\n")  # splitlines() would also break at control characters
    starts = [index for index, line in enumerate(lines) if line.startswith(HEADER)]
    if len(starts) != 1:
        raise _unreadable(asked, f"{len(starts)} '{HEADER}' listings in the builder's output")
    kernels = []
    for line in lines[starts[0] + 1 :]:
        if not line.strip():  # a blank line ends the listing
            break
        kernels.append(_kernel(line, asked))
    if not kernels:
        raise _unreadable(asked, f"an empty '{HEADER}' listing in the builder's output")
    return tuple(kernels)


def _kernel(line: str, asked: str) -> Kernel:
    layer = _LAYER.fullmatch(line)
    if layer is None:
        raise _unreadable(asked, f"a layer that reads {line[:200]!r}")
    return Kernel(
        name=layer["name"],
        type=layer["type"],
        inputs=_tensors(layer["inputs"], asked),
        constants=_tensors(layer["constants"] or "", asked),
        outputs=_tensors(layer["outputs"], asked),
        tactic=layer["tactic"],
        stream=int(layer["stream"]),
        nodes=_nodes(layer["metadata"], asked),
    )


def _tensors(text: str, asked: str) -> tuple[TensorInfo, ...]:
    tensors, end = [], 0
    for match in _TENSOR.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        dims = tuple(int(d) for d in match["dims"].split(",") if d)
        word = match["dtype"]
        tensors.append(TensorInfo(match["name"], DTYPES.get(word, word.lower()), dims))
    if end != len(text):
        raise _unreadable(asked, f"a tensor that reads {text[end : end + 200]!r}")
    return tuple(tensors)


def _nodes(metadata: str, asked: str) -> tuple[str, ...]:
    """The ONNX nodes a layer covers; it covers none where TensorRT made it up, e.g. to copy into another layout."""
    nodes = []
    for part in filter(None, metadata.split(SEPARATOR)):
        if not (part.startswith(ONNX_LAYER) and part.endswith("]")):
            raise _unreadable(asked, f"layer metadata that reads {part[:200]!r}")
        nodes.append(_SCOPES.sub("", part[len(ONNX_LAYER) : -1]))
    return tuple(dict.fromkeys(nodes))


def _unreadable(asked: str, found: str) -> BuildError:
    return BuildError(
        asked,
        found=found,
        fix="The planned kernels cannot be read: use the TensorRT version that this release pins",
    )
