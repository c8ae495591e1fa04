"""The worked example of CONTRIBUTING: one file is a whole operator, and every check of ours takes it."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from plugin_samples import ROUNDING, Case
from tensorrt_stand_in import DataType, drive
from test_bodies import run_in_onnxruntime

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.plugins.aot import compile_kernel
from blockforge.plugins.checks import Given, check_call
from blockforge.plugins.cubin import resources
from blockforge.plugins.interpreter import Interpreter
from blockforge.plugins.registry import load_operator
from blockforge.plugins.table import markdown
from blockforge.plugins.tensorrt_layer import register_with_tensorrt
from blockforge.plugins.traffic import fused_bytes

FILE = Path(__file__).with_name("scaled_residual.py")


@pytest.fixture(scope="module")
def plugin():
    return load_operator(FILE)


@pytest.fixture(scope="module")
def case(plugin):
    rng = torch.Generator().manual_seed(1)
    x, branch = (torch.randn(3, 5, 40, generator=rng).half() for _ in range(2))
    return Case(plugin, [x, branch, torch.rand(40, generator=rng)], {})


def assert_right(case, y):
    """x + w * b can cancel: two float32 roundings of its parts, and one rounding to float16."""
    x, branch, weight = case.arrays
    expected = case.reference()[0]
    limit = np.abs(expected) * 2.0**-11 + 2 * ROUNDING * (np.abs(x) + np.abs(weight * branch))
    assert (np.abs(y.double().numpy() - expected) <= limit).all()


def test_body(case):
    assert onnxruntime.get_available_providers()
    assert_right(case, run_in_onnxruntime(case)[0])


def test_kernel(case):
    with Interpreter(FILE) as run:
        assert_right(case, run("ScaledResidual", case.inputs, {})[0])


def test_ahead_of_time(plugin):
    dtypes = [DType.FP16, DType.FP16, DType.FP32]
    built = compile_kernel(plugin, dtypes, {"N": 4096}, {}, 90)
    assert resources(built.ptx, 90).spilled == 0


def test_tensorrt(trtp, plugin, case):
    register_with_tensorrt(trtp, plugin, 90)
    found = drive(
        trtp,
        "blockforge::ScaledResidual",
        [DataType.HALF, DataType.HALF, DataType.FLOAT],
        [tuple(t.shape) for t in case.inputs],
        (0, 1),
        {},
        [DataType.HALF],
    )
    assert found.output_shapes == [(3, 5, 40)]
    assert found.extras == [15]


def test_checks_and_documentation(plugin):
    assert "| weight | [N] | W: fp32, fp16, bf16 |" in markdown(plugin.table)
    assert fused_bytes(plugin.table) == 6
    with pytest.raises(UsageError, match="ScaledResidual input 'weight'"):
        check_call(
            plugin.table,
            [Given(DType.FP16, (2, 4)), Given(DType.FP16, (2, 4)), Given(DType.FP16, (5,))],
            {},
        )


def test_a_file_without_an_operator(tmp_path):
    empty = tmp_path / "empty.py"
    empty.write_text("")
    with pytest.raises(UsageError, match="no PLUGIN in it"):
        load_operator(empty)
    with pytest.raises(UsageError, match="no Python file"):
        load_operator(tmp_path / "missing.py")
