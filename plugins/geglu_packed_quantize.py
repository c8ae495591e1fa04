"""GeGLUPackedQuantize: gate one half of a packed projection with the GELU of the other, and quantise to FP8, in one trip to memory.

    gate, up = split(gate_up, 2, axis=-1)
    y = e4m3(gelu(gate) * up / scale)          saturating, to nearest even
    gelu(z) = z * Phi(z), or z / (1 + exp(-2 u)) with u = sqrt(2 / pi) (z + 0.044715 z ** 3) for approximate = tanh

gate_up is [..., 2*N], the gate first; y is [..., N]; scale is a scalar.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

import numpy as np

from .bodies import QUANTISE, function
from .glu_kernel import GELU_ATTRIBUTES, gate_rows
from .launch import launch_glu
from .oracle import Array, gelu, quantise, wide
from .registry import Plugin
from .table import Q, T, Table, tensors
from .traffic import GEGLU
from .traffic import QUANTISE as QUANTISE_STEP
from .triton_api import jit, tl

TABLE = Table(
    name="GeGLUPackedQuantize",
    doc="gate, up = halves of gate_up; y = e4m3(gelu(gate) * up / scale)",
    inputs=tensors("gate_up: T[... 2*N], scale: S[]"),
    outputs=tensors("y: Q[... N]"),
    types=T | Q,
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
    """,
    QUANTISE,
)


def reference(gate_up: Array, scale: Array, *, approximate: str = "none") -> Array:
    """The oracle, in float64; y as E4M3 codes in uint8."""
    gate, up = np.split(wide(gate_up), 2, axis=-1)
    return quantise(gelu(gate, approximate) * up, scale)


@jit
def geglu_packed_quantize(
    gate_up: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    APPROXIMATE: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One program per tile of ROWS x BLOCK elements of y."""
    gate_rows(gate_up, gate_up + N, scale, rows, y, 2 * N, APPROXIMATE, N, BLOCK, ROWS)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=geglu_packed_quantize,
    family="glu",
    launch=launch_glu,
    steps=(
        GEGLU,
        QUANTISE_STEP,
    ),
)
