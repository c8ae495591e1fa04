"""SwiGLUQuantize: gate one projection with the SiLU of another, and quantise to FP8, in one trip to memory.

    y = e4m3(swish(gate) * up / scale)          saturating, to nearest even
    swish(z) = z / (1 + exp(-z))

gate, up and y are [..., N]; scale is a scalar.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import QUANTISE, function
from .glu_kernel import gate_rows
from .launch import launch_glu
from .oracle import Array, quantise, swish, wide
from .registry import Plugin
from .table import Q, T, Table, tensors
from .traffic import QUANTISE as QUANTISE_STEP
from .traffic import SWIGLU
from .triton_api import jit, tl

TABLE = Table(
    name="SwiGLUQuantize",
    doc="y = e4m3(swish(gate) * up / scale)",
    inputs=tensors("gate: T[... N], up: T[... N], scale: S[]"),
    outputs=tensors("y: Q[... N]"),
    types=T | Q,
)

BODY = function(
    TABLE,
    """
    gate32 = Cast<to = 1>(gate)
    up32 = Cast<to = 1>(up)
    activated = Swish(gate32)
    y32 = Mul(activated, up32)
    """,
    QUANTISE,
)


def reference(gate: Array, up: Array, scale: Array) -> Array:
    """The oracle, in float64; y as E4M3 codes in uint8."""
    return quantise(swish(wide(gate)) * wide(up), scale)


@jit
def swiglu_quantize(
    gate: tl.tensor,
    up: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One program per tile of ROWS x BLOCK elements of y."""
    gate_rows(gate, up, scale, rows, y, N, "swish", N, BLOCK, ROWS)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=swiglu_quantize,
    family="glu",
    launch=launch_glu,
    steps=(
        SWIGLU,
        QUANTISE_STEP,
    ),
)
