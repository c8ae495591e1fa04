"""The tile loop of every gated unit: y = activation(gate) * up (/ scale), element by element.

Arithmetic is float32 whatever the tensors' types; y is rounded once, as it is stored. An activation that
underflows float32 (gate below -88) gives zero. gate and up are rows of STRIDE elements, so that a packed
projection needs no copy.
"""

from .norm_kernel import inverse_scale
from .table import Attribute
from .triton_api import jit, tl

GELU_ATTRIBUTES = (
    Attribute(
        "approximate",
        "string",
        "`tanh` for the tanh form of GELU",
        "none",
        choices=("none", "tanh"),
    ),
)


@jit
def activate(
    z: tl.tensor,
    ACTIVATION: tl.constexpr,
) -> tl.tensor:
    """swish, GELU by erf (none) or GELU by tanh, which is z * sigmoid(2 u) for tanh's argument u."""
    if ACTIVATION == "swish":
        result = z / (1.0 + tl.exp(-z))
    elif ACTIVATION == "tanh":
        u = 0.7978845608028654 * (z + 0.044715 * z * z * z)
        result = z / (1.0 + tl.exp(-2.0 * u))
    else:
        result = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    return result


@jit
def gate_rows(
    gate: tl.tensor,
    up: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """One tile of ROWS rows and BLOCK columns; programs walk the columns of a row first."""
    columns: tl.constexpr = (N + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    row = (program // columns).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (program % columns) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < N)
    g = tl.load(gate + row * STRIDE + col, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * STRIDE + col, mask=inside, other=0.0).to(tl.float32)
    result = activate(g, ACTIVATION) * u
    over = inverse_scale(scale)
    if over is not None:
        result *= over
    tl.store(y + row * N + col, result.to(y.dtype.element_ty), mask=inside)
