"""LayerNorm: normalise by the mean and variance, in one trip to memory.

    c     = x - mean(x, axis=-1)
    y     = c / (sqrt(mean(c ** 2, axis=-1) + epsilon) + epsilon_outside) * (weight + weight_offset) + bias

x and y are [..., N]; weight and bias are [N].
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import BIAS, LAYER, NARROW, function
from .launch import launch_norm
from .norm_kernel import norm_rows
from .oracle import Array, layer_normalise, wide
from .registry import Plugin
from .table import NORM_ATTRIBUTES, T, Table, W, tensors
from .traffic import LAYER_NORM
from .triton_api import jit, tl

TABLE = Table(
    name="LayerNorm",
    doc="y = layer_norm(x) * (weight + weight_offset) + bias",
    inputs=tensors("x: T[... N], weight: W[N], bias: W[N]"),
    outputs=tensors("y: T[... N]"),
    types=T | W,
    attributes=NORM_ATTRIBUTES,
)

BODY = function(
    TABLE,
    "total32 = Cast<to = 1>(x)",
    LAYER,
    BIAS,
    NARROW,
)


def reference(
    x: Array,
    weight: Array,
    bias: Array,
    *,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> Array:
    """The oracle, in float64."""
    return layer_normalise(wide(x), epsilon, epsilon_outside) * (
        wide(weight) + weight_offset
    ) + wide(bias)


@jit
def layer_norm(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
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
        bias,
        None,
        rows,
        y,
        None,
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
    kernel=layer_norm,
    family="norm",
    launch=launch_norm,
    steps=(LAYER_NORM,),
)
