"""Q/DQ pairs with FP32 scales around FP16 products: ONNX Runtime's rewrites spoil them, our sessions open them all the same."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import BuildError
from blockforge.engines.onnxruntime_api import open_session

IN, OUT = 32, 16
HALF = TensorProto.FLOAT16


def weight_only():
    """An INT8 weight with FP32 scales, dequantised to FP16: the fusion into MatMulNBits breaks it."""
    random = np.random.default_rng(0)
    codes = random.integers(-127, 128, (IN, OUT), dtype=np.int8)
    scales = random.uniform(0.001, 0.01, OUT).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scales"], ["w"], axis=1, output_dtype=HALF),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return nodes, {"codes": codes, "scales": scales}, [2, 5, OUT]


def activation_behind_a_move():
    """An FP8 pair whose result is reshaped: QDQPropagation sets another pair behind the move, without the type."""
    random = np.random.default_rng(1)
    codes = random.normal(size=(IN, OUT)).astype(ml_dtypes.float8_e4m3fn)
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node(
            "QuantizeLinear", ["flat", "scale"], ["q"], output_dtype=TensorProto.FLOAT8E4M3FN
        ),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"], output_dtype=HALF),
        helper.make_node("DequantizeLinear", ["codes", "scales"], ["w"], axis=1, output_dtype=HALF),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    constants = {
        "codes": codes,
        "scales": random.uniform(0.1, 1, OUT).astype(np.float32),
        "scale": np.float32(0.01),
        "shape": np.array([10, IN]),
    }
    return nodes, constants, [10, OUT]


def written(path, nodes, constants, shape, output=HALF):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", HALF, [2, 5, IN])],
        [helper.make_tensor_value_info("y", output, shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.save(model, path)
    return model


@pytest.mark.parametrize("graph", [weight_only, activation_behind_a_move])
def test_a_graph_that_its_rewrites_spoil_is_opened_and_computes_what_onnx_says(tmp_path, graph):
    model = written(tmp_path / "m.onnx", *graph())
    onnx.checker.check_model(model, full_check=True)
    with pytest.raises(Exception, match=r"Type Error|different types"):  # else this can go
        onnxruntime.InferenceSession(tmp_path / "m.onnx")
    x = np.random.default_rng(2).normal(size=(2, 5, IN)).astype(np.float16)
    (found,) = open_session(tmp_path / "m.onnx", "cpu").run(None, {"x": x})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_a_graph_of_wrong_types_is_still_refused_in_the_first_words(tmp_path):
    nodes, constants, shape = weight_only()
    written(tmp_path / "m.onnx", nodes, constants, shape, output=TensorProto.FLOAT)
    with pytest.raises(BuildError, match=r"Type Error.*\(y\)"):
        open_session(tmp_path / "m.onnx", "cpu")
