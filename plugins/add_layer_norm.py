"""AddLayerNorm: add the residual and normalise by the mean and variance, in one trip to memory.

    total = x + skip
    c     = total - mean(total, axis=-1)
    y     = c / (sqrt(mean(c ** 2, axis=-1) + epsilon) + epsilon_outside) * (weight + weight_offset) + bias

x, skip, y and total are [..., N]; weight and bias are [N].
total is rounded to its type as it is stored; the norm reads the float32 sum.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import BIAS, LAYER, NARROW, function
from .launch import launch_norm
from .norm_kernel import norm_rows
from .oracle import Array, layer_normalise, wide
from .registry import Plugin
from .table import NORM_ATTRIBUTES, T, Table, W, tensors
from .traffic import ADD, LAYER_NORM
from .triton_api import jit, tl

TABLE = Table(
    name="AddLayerNorm",
    doc="total = x + skip; y = layer_norm(total) * (weight + weight_offset) + bias",
    inputs=tensors("x: T[... N], skip: T[... N], weight: W[N], bias: W[N]"),
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
    LAYER,
    BIAS,
    NARROW,
)


def reference(
    x: Array,
    skip: Array,
    weight: Array,
    bias: Array,
    *,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[Array, Array]:
    """The oracle, in float64."""
    total = wide(x) + wide(skip)
    n = layer_normalise(total, epsilon, epsilon_outside) * (wide(weight) + weight_offset) + wide(
        bias
    )
    return n, total


@jit
def add_layer_norm(
    x: tl.tensor,
    skip: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
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
        bias,
        None,
        rows,
        y,
        total,
        True,
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
    kernel=add_layer_norm,
    family="norm",
    launch=launch_norm,
    steps=(
        ADD,
        LAYER_NORM,
    ),
)
