"""Every kernel against the float64 reference, under Triton's interpreter with corrected casts."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from plugin_samples import FLOATS, NAMES, assert_close, make_case

from blockforge.core.dtypes import DType
from blockforge.plugins.launch import ARCHITECTURES, tuning
from blockforge.plugins.oracle import E4M3_BOUNDARIES
from blockforge.plugins.registry import plugin_named

pytest.importorskip("triton")

NORMS = [n for n in NAMES if "Norm" in n and n != "QKNormRope"]
QUANTISING = [n for n in NAMES if n.endswith("Quantize")]
FAST_SHAPES = [((3,), 42), ((2, 5), 64)]  # ragged rows, several per program; a batch
SHAPES = [((1,), 2), ((4, 3), 6), ((0,), 64), ((33,), 128), ((2,), 1024), ((1,), 4098)]


def check(interpret, case, **options):
    assert_close(case, interpret(case.plugin, case.inputs, case.attributes, **options))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize(("lead", "row"), FAST_SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_reference(interpret, name, lead, row, dtype):
    check(interpret, make_case(plugin_named(name), lead, row, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("weight", FLOATS, ids=lambda d: f"weight-{d.value}")
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize(("lead", "row"), SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_shape_and_type(interpret, name, lead, row, dtype, weight):
    case = make_case(plugin_named(name), lead, row, dtype, weight=weight, scale=3.0, seed=row)
    check(interpret, case)


@pytest.mark.parametrize("family", ["norm", "glu", "heads"])
def test_architectures_launch_alike(family):
    """What is proven for one launch holds for all. When this fails, interpret the one that differs, too."""
    geometry = {replace(tuning(family, arch), reason="") for arch in ARCHITECTURES}
    assert len(geometry) == 1


@pytest.mark.parametrize("row", [1, 3, 1023, 8193, 16385, 65535, 65536])
@pytest.mark.parametrize("name", ["AddRMSNorm", "AddLayerNormQuantize", "GeGLUPacked"])
def test_any_row_length(interpret, name, row):
    dtype = DType.FP32 if row == 8193 else DType.FP16  # in float32, the long-row path starts there
    check(interpret, make_case(plugin_named(name), (2,), row, dtype))


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm", "SwiGLUQuantize", "QKNormRope"])
def test_no_rows_at_all(interpret, name):
    case = make_case(plugin_named(name), (0, 4), 32, DType.FP16)
    outputs = interpret(case.plugin, case.inputs, case.attributes)
    assert [prod(o.shape) for o in outputs] == [0] * len(outputs)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_zeros(interpret, name):
    case = make_case(plugin_named(name), (2, 3), 20, DType.BF16)
    for tensor, value in zip(case.plugin.table.inputs, case.inputs, strict=True):
        if tensor.type == "T":
            value.zero_()
    check(interpret, case)


@pytest.mark.parametrize("scale", [300, 60000])
@pytest.mark.parametrize("name", NAMES)
def test_large_values_in_fp16(interpret, name, scale):
    """300 squared overflows fp16; 60000 + 60000 overflows it in the sum that is stored."""
    check(interpret, make_case(plugin_named(name), (4,), 96, DType.FP16, scale=scale))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity_stay_in_their_row(interpret, name, dtype):
    case = make_case(plugin_named(name), (1, 5), 24, dtype)
    first = case.inputs[0][0]
    first[0, 3], first[1, 5], first[2, 7] = float("nan"), float("inf"), float("-inf")
    check(interpret, case)


@pytest.mark.parametrize(
    "attributes",
    [
        {"epsilon": 0.0},
        {"epsilon": 0.0, "epsilon_outside": 1e-2},
        {"epsilon": 0.5},
        {"weight_offset": 1.0},
        {"epsilon": 1e-6, "epsilon_outside": 1e-3, "weight_offset": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [*NORMS, "QKNormRope"])
def test_norm_options(interpret, name, attributes):
    check(interpret, make_case(plugin_named(name), (2, 2), 34, DType.FP32, **attributes))


@pytest.mark.parametrize("row", [500, 20000])  # in registers; in blocks
def test_a_large_mean_does_not_drown_the_variance(interpret, row):
    """E[x^2] - E[x]^2 would lose every digit here."""
    case = make_case(plugin_named("LayerNorm"), (2,), row, DType.FP32)
    case.inputs[0] += 3000
    check(interpret, case)


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("GeGLU")])
def test_gelu_by_tanh(interpret, name):
    check(interpret, make_case(plugin_named(name), (3,), 50, DType.FP32, approximate="tanh"))


@pytest.mark.parametrize("heads", [(1, 1), (8, 2), (9, 3), (32, 8)], ids=str)
def test_any_number_of_heads(interpret, heads):
    check(interpret, make_case(plugin_named("QKNormRope"), (2, 2), 48, DType.FP16, heads=heads))


@pytest.mark.parametrize(("weight", "dtype"), [(DType.FP32, DType.FP16), (DType.FP16, DType.BF16)])
@pytest.mark.parametrize("name", [*NORMS, "QKNormRope"])
def test_weight_in_another_type(interpret, name, weight, dtype):
    check(interpret, make_case(plugin_named(name), (3,), 40, dtype, weight=weight))


@pytest.mark.parametrize("power", [-3, 0, 5])
def test_every_boundary_of_e4m3_goes_to_the_even_code(interpret, power):
    """x of +-1 with epsilon 0 has a root of exactly 1: the weights reach the rounding unchanged."""
    ties = np.concatenate([E4M3_BOUNDARIES, [448, 456, 464, 465, 1e30]])
    around = np.concatenate([np.nextafter(np.float32(ties), np.float32(w)) for w in (0, 1e38)])
    weight = torch.from_numpy(np.concatenate([ties, around]).astype(np.float32))
    x = torch.ones(2, len(weight))
    x[1] = -1
    scale = torch.tensor(2.0**power)
    (codes,) = interpret("RMSNormQuantize", [x, weight * scale, scale], {"epsilon": 0.0})
    plugin = plugin_named("RMSNormQuantize")
    expected = plugin.reference(
        x.numpy(), (weight * scale).double().numpy(), scale.numpy(), epsilon=0.0
    )
    np.testing.assert_array_equal(codes.view(torch.uint8).numpy(), expected)
    # ties once more without our own table: the tie between code c and c + 1 goes to the even one
    even = np.arange(len(E4M3_BOUNDARIES))
    np.testing.assert_array_equal(expected[0, : len(even)], even + even % 2)


@pytest.mark.parametrize("name", QUANTISING)
def test_a_scale_of_zero_or_nan_computes_what_division_means(interpret, name):
    """Checks refuse such a scale where it is known; where it is not, nothing is hidden."""
    for scale in (0.0, float("nan")):
        case = make_case(plugin_named(name), (2,), 32, DType.FP32)
        case.inputs[-1].fill_(scale)
        codes = interpret(case.plugin, case.inputs, case.attributes)[0].view(torch.uint8)
        assert set((codes & 0x7F).unique().tolist()) <= ({0x7F} if scale else {0x7E, 0x7F})
