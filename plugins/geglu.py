"""GeGLU: gate one projection with the GELU of another, in one trip to memory.

    y = gelu(gate) * up          (Shazeer 2020, arXiv 2002.05202)
    gelu(z) = z * Phi(z), or z / (1 + exp(-2 u)) with u = sqrt(2 / pi) (z + 0.044715 z ** 3) for approximate = tanh

gate, up and y are [..., N].
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import function
from .glu_kernel import GELU_ATTRIBUTES, gate_rows
from .launch import launch_glu
from .oracle import Array, gelu, wide
from .registry import Plugin
from .table import T, Table, tensors
from .traffic import GEGLU
from .triton_api import jit, tl

TABLE = Table(
    name="GeGLU",
    doc="y = gelu(gate) * up",
    inputs=tensors("gate: T[... N], up: T[... N]"),
    outputs=tensors("y: T[... N]"),
    types=T,
    attributes=GELU_ATTRIBUTES,
)

BODY = function(
    TABLE,
    """
    gate32 = Cast<to = 1>(gate)
    up32 = Cast<to = 1>(up)
    activated = Gelu<approximate: string = @approximate>(gate32)
    y32 = Mul(activated, up32)
    y = CastLike(y32, gate)
    """,
)


def reference(gate: Array, up: Array, *, approximate: str = "none") -> Array:
    """The oracle, in float64."""
    return gelu(wide(gate), approximate) * wide(up)


@jit
def geglu(
    gate: tl.tensor,
    up: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    APPROXIMATE: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One program per tile of ROWS x BLOCK elements of y."""
    gate_rows(gate, up, None, rows, y, N, APPROXIMATE, N, BLOCK, ROWS)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=geglu,
    family="glu",
    launch=launch_glu,
    steps=(GEGLU,),
)
