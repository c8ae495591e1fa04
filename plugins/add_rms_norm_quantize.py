"""AddRMSNormQuantize: add the residual and normalise by the root mean square, and quantise to FP8, in one trip to memory.

    total = x + skip
    n     = total / (sqrt(mean(total ** 2, axis=-1) + epsilon) + epsilon_outside) * (weight + weight_offset)
    y     = e4m3(n / scale)          saturating, to nearest even

x, skip, y and total are [..., N]; weight is [N]; scale is a scalar.
total is rounded to its type as it is stored; the norm reads the float32 sum.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import QUANTISE, RMS, function
from .launch import launch_norm
from .norm_kernel import norm_rows
from .oracle import Array, quantise, rms_normalise, wide
from .registry import Plugin
from .table import NORM_ATTRIBUTES, Q, T, Table, W, tensors
from .traffic import ADD, RMS_NORM
from .traffic import QUANTISE as QUANTISE_STEP
from .triton_api import jit, tl

TABLE = Table(
    name="AddRMSNormQuantize",
    doc="total = x + skip; y = e4m3(rms_norm(total) * (weight + weight_offset) / scale)",
    inputs=tensors("x: T[... N], skip: T[... N], weight: W[N], scale: S[]"),
    outputs=tensors("y: Q[... N], total: T[... N]"),
    types=T | W | Q,
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
    QUANTISE,
)


def reference(
    x: Array,
    skip: Array,
    weight: Array,
    scale: Array,
    *,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[Array, Array]:
    """The oracle, in float64; y as E4M3 codes in uint8."""
    total = wide(x) + wide(skip)
    n = rms_normalise(total, epsilon, epsilon_outside) * (wide(weight) + weight_offset)
    return quantise(n, scale), total


@jit
def add_rms_norm_quantize(
    x: tl.tensor,
    skip: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
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
        scale,
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
    kernel=add_rms_norm_quantize,
    family="norm",
    launch=launch_norm,
    steps=(
        ADD,
        RMS_NORM,
        QUANTISE_STEP,
    ),
)
