"""The row loop of every norm: one trip to memory while a row fits in registers, two beyond that.

    total = x (+ skip)
    n     = total / (sqrt(mean(total ** 2) + epsilon) + epsilon_outside)        root mean square
    n     = (total - mean) / (sqrt(var(total) + epsilon) + epsilon_outside)     centred (LayerNorm)
    y     = n * (weight + weight_offset) (+ bias) (/ scale)

Statistics and arithmetic are float32 whatever the tensors' types; y and total are rounded once, as they are
stored. An absent tensor is None: its code is not compiled. One program takes ROWS rows of N elements.
A row whose sum of squares passes the range of float32 (3e38) gives zeros, as it does in PyTorch.
"""

from .triton_api import jit, tl


@jit
def load_total(
    x: tl.tensor,
    skip: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
) -> tl.tensor:
    """x (+ skip) in float32; zero outside the row."""
    total = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if skip is not None:
        total += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)
    return total


@jit
def inverse_root(
    square: tl.tensor,
    EPSILON: tl.constexpr,
    EPSILON_OUTSIDE: tl.constexpr,
) -> tl.tensor:
    """1 / (sqrt(square + EPSILON) + EPSILON_OUTSIDE), each step rounded to nearest: a row costs it once."""
    return tl.div_rn(1.0, tl.sqrt_rn(square + EPSILON) + EPSILON_OUTSIDE)


@jit
def inverse_scale(
    scale: tl.tensor,
) -> tl.tensor:
    """1 / scale; None where nothing is quantised. One multiplication per element instead of one division."""
    result = None
    if scale is not None:
        result = tl.div_rn(1.0, tl.load(scale).to(tl.float32))
    return result


@jit
def load_column(
    vector: tl.tensor,
    col: tl.tensor,
    N: tl.constexpr,
) -> tl.tensor:
    """A [N] tensor along the row, in float32; None stays None."""
    result = None
    if vector is not None:
        result = tl.load(vector + col, mask=col < N, other=0.0).to(tl.float32)
    return result


@jit
def store_normed(
    y: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    n: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    over: tl.tensor,
    WEIGHT_OFFSET: tl.constexpr,
) -> tl.tensor:
    """Scale, shift, quantise; the store's rounding is to nearest even, saturating for FP8."""
    if WEIGHT_OFFSET != 0.0:
        n *= weight + WEIGHT_OFFSET
    else:
        n *= weight
    if bias is not None:
        n += bias
    if over is not None:
        n *= over
    tl.store(y + at, n.to(y.dtype.element_ty), mask=inside)


@jit
def norm_rows(
    x: tl.tensor,
    skip: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    CENTRED: tl.constexpr,
    EPSILON: tl.constexpr,
    EPSILON_OUTSIDE: tl.constexpr,
    WEIGHT_OFFSET: tl.constexpr,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    EARLY: tl.constexpr,
) -> tl.tensor:
    """Normalise ROWS rows; see the module text."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    over = inverse_scale(scale)
    if BLOCK >= N:
        at = row * N + col
        inside = (row < rows) & (col < N)
        t = load_total(x, skip, at, inside)
        if EARLY:  # before the reduction, so that the loads overlap; it costs registers
            w = load_column(weight, col, N)
            b = load_column(bias, col, N)
        if total is not None:
            tl.store(total + at, t.to(total.dtype.element_ty), mask=inside)
        if CENTRED:
            t -= tl.sum(t, axis=1, keep_dims=True) / N
            t = tl.where(inside, t, 0.0)
        inverse = inverse_root(tl.sum(t * t, axis=1, keep_dims=True) / N, EPSILON, EPSILON_OUTSIDE)
        if not EARLY:
            w = load_column(weight, col, N)
            b = load_column(bias, col, N)
        store_normed(y, at, inside, t * inverse, w, b, over, WEIGHT_OFFSET)
    else:
        count = 0.0
        mean = tl.zeros([ROWS, 1], tl.float32)
        square = tl.zeros([ROWS, 1], tl.float32)  # sum of squared distances from mean
        for start in range(0, N, BLOCK):
            at = row * N + start + col
            inside = (row < rows) & (start + col < N)
            t = load_total(x, skip, at, inside)
            if total is not None:
                tl.store(total + at, t.to(total.dtype.element_ty), mask=inside)
            if CENTRED:  # merge the block's moments: Chan, Golub, LeVeque 1983
                size = tl.minimum(N - start, BLOCK).to(tl.float32)
                center = tl.sum(t, axis=1, keep_dims=True) / size
                t = tl.where(inside, t - center, 0.0)
                delta = center - mean
                square += delta * delta * (count * size / (count + size))
                mean += delta * (size / (count + size))
                count += size
            square += tl.sum(t * t, axis=1, keep_dims=True)
        inverse = inverse_root(square / N, EPSILON, EPSILON_OUTSIDE)
        for start in range(0, N, BLOCK):
            at = row * N + start + col
            inside = (row < rows) & (start + col < N)
            n = (load_total(x, skip, at, inside) - mean) * inverse
            w = load_column(weight, start + col, N)
            b = load_column(bias, start + col, N)
            store_normed(y, at, inside, n, w, b, over, WEIGHT_OFFSET)
