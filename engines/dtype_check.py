"""Does every product run in the type the graph declares? The graph says which, the planned kernels say how.

Judged are MatMul, Gemm, Conv, Attention. A 16-bit product in an FP32 kernel is an offence: it costs what FP32 costs.
FP32 inside a 16-bit kernel (norm statistics, accumulators) and beside one (RoPE angles, a gemm's alpha) is none.
An FP32 product in a 16-bit kernel is an offence too: TensorRT-RTX 1.7.1 drops casts from and to fp16 around a MatMul,
and rounds its fp32 weights on the way.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..core.dtypes import DType, dtype_from_onnx
from .kernel import FLOATS, Kernel

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "Attention"})
NARROWED = frozenset({"fp16", "bf16"})  # what FP32 may not turn into; fp8 is what Q/DQ asks for
_WIDTH = {
    name: index for index, name in enumerate(reversed(FLOATS))
}  # a wider type has a larger number


@dataclass(frozen=True, slots=True)
class Offence:
    """One product that does not run as declared. kernel: None where no kernel names the node."""

    node: str
    expected: str
    actual: str
    kernel: str | None

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.node}: no planned kernel names it, so its type cannot be shown to be {self.expected}"
        return f"{self.node}: {self.actual} in kernel {self.kernel}, not {self.expected}"


def check_dtypes(
    kernels: Sequence[Kernel], model: ir.Model, precision: DType | None = None
) -> tuple[Offence, ...]:
    """The products of `model` that a kernel computes in another type than declared, in graph order.

    precision: the type all products must have, e.g. FP16 for an FP16 engine; None takes each from its node's own
    output. Nodes that legalisation replaced are found by the prefix of their name.
    """
    computing = [k for k in kernels if k.on_device]
    offences = []
    for node, declared in _products(model):
        expected = precision.value if precision else declared
        name = node.name or ""
        covering = [k for k in computing if covers(k.nodes, name)]
        if not covering:
            offences.append(Offence(name, expected, "", None))
            continue
        for kernel in _multiplying(covering):
            if actual := _other_dtype(kernel, expected):
                offences.append(Offence(name, expected, actual, kernel.name))
    return tuple(offences)


def _products(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    for node in model.graph.all_nodes():
        if node.domain == "" and node.op_type in PRODUCTS and node.outputs[0].dtype is not None:
            declared = dtype_from_onnx(int(node.outputs[0].dtype)).value
            if declared in _WIDTH:  # integer products are exact in any case
                yield node, declared


def covers(nodes: Iterable[str], name: str) -> bool:
    """Whether a kernel of `nodes` computes the graph's node `name`, or what legalisation made of it."""
    return any(node == name or node.startswith(f"{name}/") for node in nodes)


def _multiplying(covering: list[Kernel]) -> list[Kernel]:
    """The kernels that multiply; others move, mask, rotate or normalise what a product reads or writes."""
    return [k for k in covering if k.is_matrix or "mha" in k.name] or covering


def _other_dtype(kernel: Kernel, expected: str) -> str | None:
    """The type `kernel` multiplies in where that is no way to compute an `expected` product, else None.

    A matrix kernel shows its type by its operands. A generated one shows only its edges: it is too wide when no edge
    is as narrow as expected, and cannot be shown to be too narrow (casts may be fused into it).
    """
    if expected in ("fp32", "fp64"):
        return kernel.dtype if kernel.is_matrix and kernel.dtype in NARROWED else None
    edges = (*kernel.inputs, *kernel.constants, *kernel.outputs)
    floats = [kernel.dtype] if kernel.is_matrix else [t.dtype for t in edges]
    narrowest = min((f for f in floats if f in _WIDTH), key=_WIDTH.__getitem__, default=expected)
    return narrowest if _WIDTH[narrowest] > _WIDTH[expected] else None
