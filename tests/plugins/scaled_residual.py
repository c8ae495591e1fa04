"""ScaledResidual: add a branch to the residual, scaled per channel (LayerScale, arXiv 2103.17239).

    y = x + weight * branch

x, branch and y are [..., N]; weight is [N].
"""

from .bodies import NARROW, function
from .launch import launch_glu
from .oracle import Array, wide
from .registry import Plugin
from .table import T, Table, W, tensors
from .traffic import ADD, Step
from .triton_api import jit, tl

TABLE = Table(
    name="ScaledResidual",
    doc="y = x + weight * branch",
    inputs=tensors("x: T[... N], branch: T[... N], weight: W[N]"),
    outputs=tensors("y: T[... N]"),
    types=T | W,
)

BODY = function(
    TABLE,
    """
    x32 = Cast<to = 1>(x)
    branch32 = Cast<to = 1>(branch)
    weight32 = Cast<to = 1>(weight)
    scaled = Mul(weight32, branch32)
    y32 = Add(x32, scaled)
    """,
    NARROW,
)


def reference(x: Array, branch: Array, weight: Array) -> Array:
    """The oracle, in float64."""
    return wide(x) + wide(weight) * wide(branch)


@jit
def scaled_residual(
    x: tl.tensor,
    branch: tl.tensor,
    weight: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program per tile of ROWS x BLOCK elements."""
    columns: tl.constexpr = (N + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // columns).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (tl.program_id(0) % columns) * BLOCK + tl.arange(0, BLOCK)[None, :]
    at, inside = row * N + col, (row < rows) & (col < N)
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + col, mask=col < N, other=0.0).to(tl.float32)
    tl.store(y + at, (a + w * b).to(y.dtype.element_ty), mask=inside)


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=scaled_residual,
    family="glu",
    launch=launch_glu,
    steps=(Step("scale", 6, 4), ADD),
)
