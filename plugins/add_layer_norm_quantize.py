"""AddLayerNormQuantize: add the residual and normalise by the mean and variance, and quantise to FP8, in one trip to memory.

    total = x + skip
    c     = total - mean(total, axis=-1)
    n     = c / (sqrt(mean(c ** 2, axis=-1) + epsilon) + epsilon_outside) * (weight + weight_offset) + bias
    y     = e4m3(n / scale)          saturating, to nearest even

x, skip, y and total are [..., N]; weight and bias are [N]; scale is a scalar.
total is rounded to its type as it is stored; the norm reads the float32 sum.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import BIAS, LAYER, QUANTISE, function
from .launch import launch_norm
from .norm_kernel import norm_rows
from .oracle import Array, layer_normalise, quantise, wide
from .registry import Plugin
from .table import NORM_ATTRIBUTES, Q, T, Table, W, tensors
from .traffic import ADD, LAYER_NORM
from .traffic import QUANTISE as QUANTISE_STEP
from .triton_api import jit, tl

TABLE = Table(
    name="AddLayerNormQuantize",
    doc="total = x + skip; y = e4m3((layer_norm(total) * (weight + weight_offset) + bias) / scale)",
    inputs=tensors("x: T[... N], skip: T[... N], weight: W[N], bias: W[N], scale: S[]"),
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
    LAYER,
    BIAS,
    QUANTISE,
)


def reference(
    x: Array,
    skip: Array,
    weight: Array,
    bias: Array,
    scale: Array,
    *,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[Array, Array]:
    """The oracle, in float64; y as E4M3 codes in uint8."""
    total = wide(x) + wide(skip)
    n = layer_normalise(total, epsilon, epsilon_outside) * (wide(weight) + weight_offset) + wide(
        bias
    )
    return quantise(n, scale), total


@jit
def add_layer_norm_quantize(
    x: tl.tensor,
    skip: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
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
        bias,
        scale,
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
    kernel=add_layer_norm_quantize,
    family="norm",
    launch=launch_norm,
    steps=(
        ADD,
        LAYER_NORM,
        QUANTISE_STEP,
    ),
)
