"""Run in a child process with TRITON_INTERPRET=1: cast test vectors in a Triton kernel, count wrong results.

argv: `as-is` or `corrected`. Prints one JSON object: cast -> [vectors, wrong]. The oracle is ml_dtypes.
"""

import json
import sys

import ml_dtypes
import numpy as np
import torch
import triton
import triton.language as tl

if sys.argv[1] == "corrected":
    from blockforge.plugins.interpreter import correct_casts

    correct_casts()

NUMPY = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
}


@triton.jit
def cast(x, y, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty))


def vectors(dtype):
    """Every value of the narrow types; for float32 every upper half with sixteen lower halves."""
    bits = dtype.itemsize * 8
    if bits < 32:
        raw = np.arange(2**bits, dtype=f"uint{bits}")
    else:
        low = [0, 1, 2, 0xFFF, 0x1000, 0x1001, 0x7FFE, 0x7FFF]
        low += [0x8000, 0x8001, 0x8002, 0xEFFF, 0xF000, 0xF001, 0xFFFE, 0xFFFF]
        high = np.arange(2**16, dtype=np.uint32) << 16
        raw = (high[:, None] + np.array(low, np.uint32)).ravel()
    return raw.view(NUMPY[dtype])


def expected(values, target):
    with np.errstate(all="ignore"):
        if target is torch.float8_e4m3fn:  # the GPU's conversion saturates
            values = np.clip(values.astype(np.float32), -448, 448)
        return values.astype(NUMPY[target])


def wrong(source, target):
    values = vectors(source)
    raw = torch.from_numpy(values.view(f"int{8 * source.itemsize}").copy()).view(source)
    out = torch.empty(len(values), dtype=target)
    cast[(1,)](raw, out, len(values))
    bits = f"int{8 * target.itemsize}"
    got = out.view(getattr(torch, bits)).numpy().view(NUMPY[target])
    want = expected(values, target)
    nan = np.isnan(want.astype(np.float32))
    same = (got.view(bits) == want.view(bits)) | (nan & np.isnan(got.astype(np.float32)))
    return [len(values), int((~same).sum())]


f32, f16, bf16, f8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
CASTS = [(f32, f16), (f32, bf16), (f32, f8), (f16, f32), (bf16, f32), (f8, f32)]
print(json.dumps({f"{s}->{t}".replace("torch.", ""): wrong(s, t) for s, t in CASTS}))
