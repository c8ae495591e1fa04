"""One planned kernel: what it reads and writes, in which element types, and the ONNX nodes it computes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Layer types of a TensorRT listing that are no kernel on the device. Every other type counts as one, so that
# a type we have not met yet raises the count instead of vanishing from it.
HOST = frozenset({"shape_call", "jmp", "cjmp"})  # shape arithmetic and control flow on the CPU
SYNC = frozenset({"signal", "wait"})  # events between streams: no kernel, but they cost time
TRANSFER = frozenset({"copy", "memset", "ShapeHostToDevice"})  # the copy engine

MATRIX = frozenset(
    {"gemm", "runtime_fusion", "correlation"}
)  # their operands decide the arithmetic
FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8_e4m3")  # widest first
_BLOCK = re.compile(r"(?:^|[./])layers\.(\d+)(?=[./]|$)")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor at a kernel's edge: dims in elements, -1 where dynamic."""

    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def is_matrix(self) -> bool:
        """Whether two axes or more are longer than 1: no scalar and no bias."""
        return sum(d != 1 for d in self.dims) >= 2


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of a planned engine, in execution order; nodes are names in the ONNX graph."""

    name: str
    type: str
    inputs: tuple[TensorInfo, ...] = ()
    constants: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    tactic: str = ""
    stream: int = 0
    nodes: tuple[str, ...] = ()

    @property
    def on_device(self) -> bool:
        """Whether the entry is a kernel launch, not host work, synchronisation or a transfer."""
        return self.type not in HOST | SYNC | TRANSFER

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies matrices outside a generated kernel."""
        return self.type in MATRIX

    @property
    def dtype(self) -> str:
        """The element type it computes in, read from its edges: fp16 work with fp32 sums inside is fp16.

        A matrix kernel multiplies its narrowest input (a wider one is a residual that it adds) by its weights: the
        wider of the two. Others: the narrowest float among the outputs, else among the inputs; without floats the
        first output's type, and "none" without tensors.
        """
        if self.is_matrix:
            weights = _floats(t for t in self.constants if t.is_matrix)[:1]
            inputs = _floats(t for t in self.inputs if t.is_matrix)[-1:]
            if both := sorted(weights + inputs, key=FLOATS.index):
                return both[0]
        for tensors in (self.outputs, self.inputs):
            if floats := _floats(tensors):
                return floats[-1]
        return next((t.dtype for t in (*self.outputs, *self.inputs)), "none")


def _floats(tensors: Iterable[TensorInfo]) -> list[str]:
    """The float types among `tensors`, widest first."""
    return sorted({t.dtype for t in tensors} & set(FLOATS), key=FLOATS.index)


def block_of(name: str) -> int | None:
    """The decoder block a node belongs to by its name, `layers.{i}.…`; None outside the blocks."""
    match = _BLOCK.search(name)
    return int(match[1]) if match else None
