"""GeGLUPacked: gate one half of a packed projection with the GELU of the other, in one trip to memory.

    gate, up = split(gate_up, 2, axis=-1)
    y = gelu(gate) * up          (Shazeer 2020, arXiv 2002.05202)
    gelu(z) = z * Phi(z), or z / (1 + exp(-2 u)) with u = sqrt(2 / pi) (z + 0.044715 z ** 3) for approximate = tanh

gate_up is [..., 2*N], the gate first; y is [..., N].
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

import numpy as np

from .bodies import function
from .glu_kernel import GELU_ATTRIBUTES, gate_rows
from .launch import launch_glu
from .oracle import Array, gelu, wide
from .registry import Plugin
from .table import T, Table, tensors
from .traffic import GEGLU
from .triton_api import jit, tl

TABLE = Table(
    name="GeGLUPacked",
    doc="gate, up = halves of gate_up; y = gelu(gate) * up",
    inputs=tensors("gate_up: T[... 2*N]"),
    outputs=tensors("y: T[... N]"),
    types=T,
    attributes=GELU_ATTRIBUTES,
)

BODY = function(
    TABLE,
    """
    gate, up = Split<axis = -1, num_outputs = 2>(gate_up)
    gate32 = Cast<to = 1>(gate)
    up32 = Cast<to = 1>(up)
    activated = Gelu<approximate: string = @approximate>(gate32)
    y32 = Mul(activated, up32)
    y = CastLike(y32, gate)
    """,
)


def reference(gate_up: Array, *, approximate: str = "none") -> Array:
    """The oracle, in float64."""
    gate, up = np.split(wide(gate_up), 2, axis=-1)
    return gelu(gate, approximate) * up


@jit
def geglu_packed(
    gate_up: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    APPROXIMATE: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One program per tile of ROWS x BLOCK elements of y."""
    gate_rows(gate_up, gate_up + N, None, rows, y, 2 * N, APPROXIMATE, N, BLOCK, ROWS)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=geglu_packed,
    family="glu",
    launch=launch_glu,
    steps=(GEGLU,),
)
