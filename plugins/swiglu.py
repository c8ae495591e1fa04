"""SwiGLU: gate one projection with the SiLU of another, in one trip to memory.

    y = gate / (1 + exp(-gate)) * up          (Shazeer 2020, arXiv 2002.05202)

gate, up and y are [..., N].
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import function
from .glu_kernel import gate_rows
from .launch import launch_glu
from .oracle import Array, swish, wide
from .registry import Plugin
from .table import T, Table, tensors
from .traffic import SWIGLU
from .triton_api import jit, tl

TABLE = Table(
    name="SwiGLU",
    doc="y = gate * sigmoid(gate) * up",
    inputs=tensors("gate: T[... N], up: T[... N]"),
    outputs=tensors("y: T[... N]"),
    types=T,
)

BODY = function(
    TABLE,
    """
    activated = Swish(gate)
    y = Mul(activated, up)
    """,
)


def reference(gate: Array, up: Array) -> Array:
    """The oracle, in float64."""
    return swish(wide(gate)) * wide(up)


@jit
def swiglu(
    gate: tl.tensor,
    up: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One program per tile of ROWS x BLOCK elements of y."""
    gate_rows(gate, up, None, rows, y, N, "swish", N, BLOCK, ROWS)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=swiglu,
    family="glu",
    launch=launch_glu,
    steps=(SWIGLU,),
)
