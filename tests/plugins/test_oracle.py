"""The float64 references against other people's float64: torch's functions, ml_dtypes' codes, complex numbers."""

import ml_dtypes
import numpy as np
import pytest
import torch
from plugin_samples import NAMES, make_case
from torch.nn import functional

from blockforge.core.dtypes import DType
from blockforge.plugins.oracle import quantise
from blockforge.plugins.registry import plugin_named

EPSILON = 1e-5


def by_torch(name, given):
    """The operator in torch's float64, before quantisation; `given`: input name -> tensor."""
    if "GLU" in name:
        gate, up = (
            given["gate_up"].chunk(2, -1) if "gate_up" in given else (given["gate"], given["up"])
        )
        return (functional.silu if name.startswith("SwiGLU") else functional.gelu)(gate) * up
    x = given["x"] + given.get("skip", 0)
    shape = (x.shape[-1],)
    if "Layer" in name:
        return functional.layer_norm(x, shape, given["weight"], given["bias"], EPSILON)
    return functional.rms_norm(x, shape, given["weight"], EPSILON)


@pytest.mark.parametrize("name", [n for n in NAMES if not n.endswith("Quantize")])
def test_references_equal_torch(name):
    case = make_case(plugin_named(name), (3, 4), 30, DType.FP32)
    given = {k: torch.from_numpy(v) for k, v in case.given.items()}
    expected = case.reference()
    if name != "QKNormRope":
        np.testing.assert_allclose(expected[0], by_torch(name, given).numpy(), rtol=1e-12)
        return
    for side, heads, found in (("q", 3, expected[0]), ("k", 2, expected[1])):
        x = given[side].unflatten(-1, (heads, 30))
        n = functional.rms_norm(x, (30,), given[f"{side}_weight"], EPSILON)
        turn = torch.complex(given["cos"], given["sin"])[:, :, None]
        z = torch.complex(n[..., :15], n[..., 15:]) * turn
        want = torch.cat([z.real, z.imag], -1).flatten(-2)
        np.testing.assert_allclose(found, want.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", [n for n in NAMES if n.endswith("Quantize")])
def test_quantising_references_quantise_the_plain_one(name):
    case = make_case(plugin_named(name), (3, 4), 30, DType.FP32)
    given = {k: torch.from_numpy(v) for k, v in case.given.items()}
    ratio = (by_torch(name, given) / given["scale"]).numpy().clip(-448, 448)
    codes = ratio.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(case.reference()[0], codes)


def test_codes_equal_ml_dtypes():
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    around = np.float32(2.0) ** np.random.default_rng(1).uniform(-12, 10, 200_000).astype(
        np.float32
    )
    values = np.concatenate([bits.view(np.float32), around, -around])
    values = values[np.isfinite(values)]
    expected = values.clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(quantise(values, np.float64(1)), expected)
