"""QKNormRope: normalise every head of q and k by its root mean square and rotate it, in one trip to memory.

    n = h / (sqrt(mean(h ** 2) + epsilon) + epsilon_outside) * (weight + weight_offset)      h: one head of q or k
    y = n_low * cos - n_high * sin, n_high * cos + n_low * sin     halves of the head (RoFormer, arXiv 2104.09864)

q and q_out are [B, S, q_num_heads*D], k and k_out [B, S, kv_num_heads*D]; the weights are [D]; cos and sin, best
kept in float32, are [B, S, D/2]. Pairs are (i, i + D/2), as in Llama, Qwen3 and Gemma 3.
Five views side by side: TABLE (what it accepts, and so the ONNX schema and TensorRT's registration), BODY (the
same in standard operators), reference (the oracle), the kernel, and PLUGIN, which names how it is launched.
"""

from .bodies import function
from .launch import launch_heads
from .norm_kernel import inverse_root
from .oracle import Array, rms_normalise, rotate, wide
from .registry import Plugin
from .table import ACTIVATIONS, NORM_ATTRIBUTES, Attribute, T, Table, W, tensors
from .traffic import RMS_NORM, ROPE
from .triton_api import jit, tl

TABLE = Table(
    name="QKNormRope",
    doc="rms_norm over each head of q and k, then rotary embedding of its halves",
    inputs=tensors(
        "q: T[B S q_num_heads*D], k: T[B S kv_num_heads*D], q_weight: W[D], k_weight: W[D], "
        "cos: A[B S D/2], sin: A[B S D/2]"
    ),
    outputs=tensors("q_out: T[B S q_num_heads*D], k_out: T[B S kv_num_heads*D]"),
    types=T | W | {"A": ACTIVATIONS},
    attributes=(
        Attribute("q_num_heads", "int", "heads of q", low=1),
        Attribute("kv_num_heads", "int", "heads of k", low=1),
        *NORM_ATTRIBUTES,
    ),
    row="D",
)


def _branch(side: str, heads: str) -> str:
    return f"""
    {side}_in = Cast<to = 1>({side})
    {side}_weight32 = Cast<to = 1>({side}_weight)
    {side}_size = Shape({side}_weight)
    {side}_split = Concat<axis = 0>(copy2, any, {side}_size)
    {side}_heads = Reshape({side}_in, {side}_split)
    {side}_square = Mul({side}_heads, {side}_heads)
    {side}_mean = ReduceMean<keepdims = 1>({side}_square, any)
    {side}_inside = Add({side}_mean, inside)
    {side}_root = Sqrt({side}_inside)
    {side}_divisor = Add({side}_root, outside)
    {side}_unit = Div({side}_heads, {side}_divisor)
    {side}_by = Add({side}_weight32, offset)
    {side}_n = Mul({side}_unit, {side}_by)
    {side}_flat = Reshape({side}_n, copy2_any)
    {side}_turned = RotaryEmbedding<num_heads: int = @{heads}>({side}_flat, cos32, sin32)
    {side}_out = CastLike({side}_turned, {side})
"""


BODY = function(
    TABLE,
    """
    copy2 = Constant<value_ints = [0, 0]>()
    any = Constant<value_ints = [-1]>()
    copy2_any = Constant<value_ints = [0, 0, -1]>()
    inside = Constant<value_float: float = @epsilon>()
    outside = Constant<value_float: float = @epsilon_outside>()
    offset = Constant<value_float: float = @weight_offset>()
    cos32 = Cast<to = 1>(cos)
    sin32 = Cast<to = 1>(sin)
    """,
    _branch("q", "q_num_heads"),
    _branch("k", "kv_num_heads"),
)


def reference(
    q: Array,
    k: Array,
    q_weight: Array,
    k_weight: Array,
    cos: Array,
    sin: Array,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    epsilon: float,
    epsilon_outside: float = 0.0,
    weight_offset: float = 0.0,
) -> tuple[Array, Array]:
    """The oracle, in float64."""

    def turn(x: Array, weight: Array, heads: int) -> Array:
        batch, sequence, width = x.shape
        split = wide(x).reshape(batch, sequence, heads, width // heads)
        n = rms_normalise(split, epsilon, epsilon_outside) * (wide(weight) + weight_offset)
        return rotate(n, cos, sin).reshape(x.shape)

    return turn(q, q_weight, q_num_heads), turn(k, k_weight, kv_num_heads)


@jit
def turn_heads(
    x: tl.tensor,
    weight: tl.tensor,
    c: tl.tensor,
    s: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    HEADS: tl.constexpr,
    EPSILON: tl.constexpr,
    EPSILON_OUTSIDE: tl.constexpr,
    WEIGHT_OFFSET: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """All heads of one token, TILE at a time: tiles of TILE heads by HALF pairs."""
    pair = tl.arange(0, HALF)[None, :]
    known = pair < D // 2
    low_by = tl.load(weight + pair, mask=known, other=0.0).to(tl.float32) + WEIGHT_OFFSET
    high_by = tl.load(weight + D // 2 + pair, mask=known, other=0.0).to(tl.float32) + WEIGHT_OFFSET
    for start in range(0, HEADS, TILE):
        head = start + tl.arange(0, TILE)[:, None]
        inside = (head < tl.where(row < rows, HEADS, 0)) & (pair < D // 2)
        at = row * (HEADS * D) + head * D + pair
        low = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(x + at + D // 2, mask=inside, other=0.0).to(tl.float32)
        square = tl.sum(low * low + high * high, axis=1, keep_dims=True) / D
        inverse = inverse_root(square, EPSILON, EPSILON_OUTSIDE)
        low = low * inverse * low_by
        high = high * inverse * high_by
        tl.store(y + at, (low * c - high * s).to(y.dtype.element_ty), mask=inside)
        tl.store(y + at + D // 2, (high * c + low * s).to(y.dtype.element_ty), mask=inside)


@jit
def qk_norm_rope(
    q: tl.tensor,
    k: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    rows: tl.tensor,
    q_out: tl.tensor,
    k_out: tl.tensor,
    Q_NUM_HEADS: tl.constexpr,
    KV_NUM_HEADS: tl.constexpr,
    EPSILON: tl.constexpr,
    EPSILON_OUTSIDE: tl.constexpr,
    WEIGHT_OFFSET: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """One program per token; its angles are read once for all heads."""
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, HALF)[None, :]
    inside = pair < tl.where(row < rows, D // 2, 0)
    c = tl.load(cos + row * (D // 2) + pair, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + row * (D // 2) + pair, mask=inside, other=0.0).to(tl.float32)
    turn_heads(
        q, q_weight, c, s, row, rows, q_out, Q_NUM_HEADS,
        EPSILON, EPSILON_OUTSIDE, WEIGHT_OFFSET, D, HALF, TILE,
    )  # fmt: skip
    turn_heads(
        k, k_weight, c, s, row, rows, k_out, KV_NUM_HEADS,
        EPSILON, EPSILON_OUTSIDE, WEIGHT_OFFSET, D, HALF, TILE,
    )  # fmt: skip


PLUGIN = Plugin(
    table=TABLE,
    body=BODY,
    reference=reference,
    kernel=qk_norm_rope,
    family="heads",
    launch=launch_heads,
    steps=(RMS_NORM, ROPE),
)
