"""SwiGLUPacked: gate one half of a packed projection with the SiLU of the other, in one trip to memory.

    gate, up = split(gate_up, 2, axis=-1)
    y = swish(gate) * up          (Shazeer 2020, arXiv 2002.05202)
    swish(z) = z / (1 + exp(-z))

gate_up is [..., 2*N], the gate first; y is [..., N].
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

import numpy as np

from .bodies import function
from .glu_kernel import gate_rows
from .launch import launch_glu
from .oracle import Array, swish, wide
from .registry import Plugin
from .table import T, Table, tensors
from .traffic import SWIGLU
from .triton_api import jit, tl

TABLE = Table(
    name="SwiGLUPacked",
    doc="gate, up = halves of gate_up; y = swish(gate) * up",
    inputs=tensors("gate_up: T[... 2*N]"),
    outputs=tensors("y: T[... N]"),
    types=T,
)

BODY = function(
    TABLE,
    """
    gate, up = Split<axis = -1, num_outputs = 2>(gate_up)
    gate32 = Cast<to = 1>(gate)
    up32 = Cast<to = 1>(up)
    activated = Swish(gate32)
    y32 = Mul(activated, up32)
    y = CastLike(y32, gate)
    """,
)


def reference(gate_up: Array) -> Array:
    """The oracle, in float64."""
    gate, up = np.split(wide(gate_up), 2, axis=-1)
    return swish(gate) * up


@jit
def swiglu_packed(
    gate_up: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One program per tile of ROWS x BLOCK elements of y."""
    gate_rows(gate_up, gate_up + N, None, rows, y, 2 * N, "swish", N, BLOCK, ROWS)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=swiglu_packed,
    family="glu",
    launch=launch_glu,
    steps=(SWIGLU,),
)
