"""AddRMSNorm: add the residual and normalise by the root mean square, in one trip to memory.

    total = x + skip
    y     = total / (sqrt(mean(total ** 2, axis=-1) + epsilon) + epsilon_outside) * (weight + weight_offset)

x, skip, y and total are [..., N]; weight is [N].
total is rounded to its type as it is stored; the norm reads the float32 sum.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import NARROW, RMS, function
from .launch import launch_norm
from .norm_kernel import norm_rows
from .oracle import Array, rms_normalise, wide
from .registry import Plugin
from .table import NORM_ATTRIBUTES, T, Table, W, tensors
from .traffic import ADD, RMS_NORM
from .triton_api import jit, tl

TABLE = Table(
    name="AddRMSNorm",
    doc="total = x + skip; y = rms_norm(total) * (weight + weight_offset)",
    inputs=tensors("x: T[... N], skip: T[... N], weight: W[N]"),
    outputs=tensors("y: T[... N], total: T[... N]"),
    types=T | W,
    attributes=NORM_ATTRIBUTES,
)

BODY = function(
    TABLE,
    """
    x32 = Cast<to = 1>(x)
    skip32 = Cast<to = 1>(skip)
    total32 = Add(x32, skip32)
    total = CastLike(total32, x)
    """,
    RMS,
    "y32 = Identity(n32)",
    NARROW,
)


def reference(
    x: Array,
    skip: Array,
    weight: Array,
    *,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[Array, Array]:
    """The oracle, in float64."""
    total = wide(x) + wide(skip)
    n = rms_normalise(total, epsilon, epsilon_outside) * (wide(weight) + weight_offset)
    return n, total


@jit
def add_rms_norm(
    x: tl.tensor,
    skip: tl.tensor,
    weight: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    EPSILON: tl.constexpr,
    EPSILON_OUTSIDE: tl.constexpr,
    WEIGHT_OFFSET: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
) -> tl.tensor:
    """One program per ROWS rows."""
    norm_rows(
        x,
        skip,
        weight,
        None,
        None,
        rows,
        y,
        total,
        False,
        EPSILON,
        EPSILON_OUTSIDE,
        WEIGHT_OFFSET,
        N,
        BLOCK,
        ROWS,
        EARLY,
    )


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=add_rms_norm,
    family="norm",
    launch=launch_norm,
    steps=(
        ADD,
        RMS_NORM,
    ),
)
