"""RMSNorm: normalise by the root mean square, in one trip to memory.

    y     = x / (sqrt(mean(x ** 2, axis=-1) + epsilon) + epsilon_outside) * (weight + weight_offset)

x and y are [..., N]; weight is [N].
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import NARROW, RMS, function
from .launch import launch_norm
from .norm_kernel import norm_rows
from .oracle import Array, rms_normalise, wide
from .registry import Plugin
from .table import NORM_ATTRIBUTES, T, Table, W, tensors
from .traffic import RMS_NORM
from .triton_api import jit, tl

TABLE = Table(
    name="RMSNorm",
    doc="y = rms_norm(x) * (weight + weight_offset)",
    inputs=tensors("x: T[... N], weight: W[N]"),
    outputs=tensors("y: T[... N]"),
    types=T | W,
    attributes=NORM_ATTRIBUTES,
)

BODY = function(
    TABLE,
    "total32 = Cast<to = 1>(x)",
    RMS,
    "y32 = Identity(n32)",
    NARROW,
)


def reference(
    x: Array,
    weight: Array,
    *,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> Array:
    """The oracle, in float64."""
    return rms_normalise(wide(x), epsilon, epsilon_outside) * (wide(weight) + weight_offset)


@jit
def rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
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
        None,
        weight,
        None,
        None,
        rows,
        y,
        None,
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
    kernel=rms_norm,
    family="norm",
    launch=launch_norm,
    steps=(RMS_NORM,),
)
