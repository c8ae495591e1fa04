"""RotaryEmbedding against complex multiplication in float64."""

import numpy as np
import onnx_ir as ir
import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.graph.evaluator import TypedEvaluator


def turned(x_BNSD: np.ndarray, angles_BSR: np.ndarray, interleaved: bool) -> np.ndarray:
    """Each pair of numbers as one complex number, times exp(i * angle)."""
    half = angles_BSR.shape[-1]
    x = x_BNSD.astype(np.float64).copy()
    part = x[..., : 2 * half]
    pairs = (
        (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    )
    z = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angles_BSR[:, None])
    if interleaved:
        x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2] = z.real, z.imag
    else:
        x[..., :half], x[..., half : 2 * half] = z.real, z.imag
    return x


def build(inputs: str, dtype: str = "float", **attributes) -> ir.Model:
    settings = ", ".join(f"{k}={v}" for k, v in {"interleaved": 0, **attributes}.items())
    names = ", ".join(part.split()[-1] for part in inputs.split(","))
    return ir.from_onnx_text(
        f'<ir_version: 11, opset_import: ["" : 23]> g ({inputs}) => ({dtype}[] y) '
        f"{{ y = RotaryEmbedding <{settings}> ({names}) }}"
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_equals_complex_rotation(cached, packed, partial, interleaved):
    rng = np.random.default_rng(0)
    b, n, s, d = 2, 3, 5, 8
    size = 4 if partial else d
    x = rng.normal(size=(b, n, s, d)).astype(np.float32)
    table = rng.uniform(-50, 50, (20, size // 2))
    positions = rng.integers(0, 20, (b, s))
    angles = table[positions]
    fed = table if cached else angles
    cos, sin = np.cos(fed).astype(np.float32), np.sin(fed).astype(np.float32)
    feeds = {"x": x, "c": cos, "s": sin}
    inputs = "float[] x, float[] c, float[] s"
    attributes = {"interleaved": int(interleaved), "rotary_embedding_dim": size if partial else 0}
    if cached:
        feeds["p"], inputs = positions, inputs + ", int64[] p"
    if packed:
        feeds["x"], attributes["num_heads"] = x.transpose(0, 2, 1, 3).reshape(b, s, n * d), n
    result = TypedEvaluator(build(inputs, **attributes)).run(
        {k: torch.from_numpy(v) for k, v in feeds.items()}
    )
    y = result.outputs["y"].numpy()
    if packed:
        y = y.reshape(b, s, n, d).transpose(0, 2, 1, 3)
    # cos and sin are rounded to fp32, and each product and the sum once more.
    np.testing.assert_allclose(
        y, turned(x, angles, interleaved), rtol=0, atol=4 * 2.0**-24 * np.abs(x).max() * 2
    )


def test_half_precision_rounds_once():
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(1, 2, 4, 8))).half()
    angles = rng.uniform(-3, 3, (1, 4, 4))
    cos, sin = torch.from_numpy(np.cos(angles)).half(), torch.from_numpy(np.sin(angles)).half()
    model = build("float16[] x, float16[] c, float16[] s", "float16")
    y = TypedEvaluator(model).run({"x": x, "c": cos, "s": sin}).outputs["y"]
    first, second = x.double().chunk(2, -1)
    c, s = cos.double().unsqueeze(1), sin.double().unsqueeze(1)
    exact = torch.cat([c * first - s * second, s * first + c * second], -1)
    # half an ulp of the result, beside the fp32 error where the two products cancel
    spacing = 2.0 ** (torch.floor(torch.log2(exact.abs().clamp(min=2.0**-14))) - 10)
    assert ((y.double() - exact).abs() <= spacing / 2 + 1e-6).all()


def test_a_cache_of_another_batch_is_refused():
    """The opset-23 exporter writes a batch-1 cache for any batch; ONNX and TensorRT do not broadcast it."""
    model = build("float[] x, float[] c, float[] s")
    feeds = {"x": torch.randn(2, 1, 3, 4), "c": torch.randn(1, 3, 2), "s": torch.randn(1, 3, 2)}
    with pytest.raises(UsageError, match=r"cos \[1, 3, 2\] for batch and sequence \[2, 3\]"):
        TypedEvaluator(model).run(feeds)
    TypedEvaluator(model).run(feeds | {"x": torch.randn(1, 1, 3, 4)})
