"""Function bodies: valid ONNX, equal to the float64 reference in ONNX Runtime in every type."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from plugin_samples import FLOATS, NAMES, assert_close, make_case

from blockforge.core.domain import DOMAIN, DOMAIN_VERSION
from blockforge.core.dtypes import DType
from blockforge.plugins.bodies import OPSET
from blockforge.plugins.registry import plugin_named

F32 = onnx.TensorProto.FLOAT


def model_of(case):
    """One node between casts: float32 at the edges, the operator's own types inside."""
    table = case.plugin.table
    nodes, inputs, outputs = [], [], []
    for tensor, value in zip(table.inputs, case.inputs, strict=True):
        dtype = next(d for d in DType if d.torch == value.dtype)
        inputs.append(onnx.helper.make_tensor_value_info(f"{tensor.name}_edge", F32, value.shape))
        nodes.append(
            onnx.helper.make_node("Cast", [f"{tensor.name}_edge"], [tensor.name], to=dtype.onnx)
        )
    nodes.append(
        onnx.helper.make_node(
            table.name,
            [t.name for t in table.inputs],
            [t.name for t in table.outputs],
            name="fused",
            domain=DOMAIN,
            **case.attributes,
        )
    )
    for tensor, value in zip(table.outputs, case.reference(), strict=True):
        outputs.append(onnx.helper.make_tensor_value_info(f"{tensor.name}_edge", F32, value.shape))
        nodes.append(onnx.helper.make_node("Cast", [tensor.name], [f"{tensor.name}_edge"], to=F32))
    return onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[
            onnx.helper.make_opsetid("", OPSET),
            onnx.helper.make_opsetid(DOMAIN, DOMAIN_VERSION),
        ],
        functions=[case.plugin.body],
        ir_version=11,
    )


def run_in_onnxruntime(case):
    session = onnxruntime.InferenceSession(model_of(case).SerializeToString())
    feeds = {
        f"{t.name}_edge": v.float().numpy()
        for t, v in zip(case.plugin.table.inputs, case.inputs, strict=True)
    }
    outputs = session.run(None, feeds)
    first = case.inputs[0].dtype
    quantised = [
        DType.FP8_E4M3 in case.plugin.table.types[t.type] for t in case.plugin.table.outputs
    ]
    return [
        torch.from_numpy(np.asarray(o)).to(torch.float8_e4m3fn if q else first)
        for o, q in zip(outputs, quantised, strict=True)
    ]


ROUNDS_TWICE = {"SwiGLU"}  # its body is two operators in the tensors' type


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize("name", NAMES)
def test_body_equals_reference(name, dtype):
    if name == "SwiGLU" and dtype is DType.BF16:
        pytest.skip("ONNX Runtime has no bfloat16 Sigmoid; the body stays in the tensors' type")
    case = make_case(plugin_named(name), (2, 5), 24, dtype)
    outputs = run_in_onnxruntime(case)
    if name in ROUNDS_TWICE and dtype is not DType.FP32:
        expected = case.reference()[0]
        assert (
            np.abs(outputs[0].double().numpy() / expected - 1).max()
            <= 4 * torch.finfo(dtype.torch).eps
        )
        return
    assert_close(case, outputs)


@pytest.mark.parametrize(
    "attributes",
    [
        {"epsilon": 0.0, "epsilon_outside": 1e-2},
        {"weight_offset": 1.0},
        {"epsilon": 0.5, "weight_offset": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["AddRMSNorm", "LayerNorm", "QKNormRope"])
def test_attributes_reach_the_body(name, attributes):
    case = make_case(plugin_named(name), (2, 3), 16, DType.FP32, **attributes)
    assert_close(case, run_in_onnxruntime(case))


def test_gelu_forms_differ():
    plugin = plugin_named("GeGLU")
    exact, tanh = (make_case(plugin, (4,), 32, DType.FP32, approximate=a) for a in ("none", "tanh"))
    assert_close(tanh, run_in_onnxruntime(tanh))
    with pytest.raises(AssertionError, match="past its bound"):
        assert_close(exact, run_in_onnxruntime(tanh))


@pytest.mark.parametrize("name", NAMES)
def test_body_and_schema_agree(name):
    plugin = plugin_named(name)
    body, schema = plugin.body, plugin.schema
    assert (body.domain, body.name) == (schema.domain, schema.name)
    assert list(body.input) == [i.name for i in schema.inputs]
    assert list(body.output) == [o.name for o in schema.outputs]
    given = {*body.attribute, *(a.name for a in body.attribute_proto)}
    assert given == set(schema.attributes)
    onnx.checker.check_model(model_of(make_case(plugin, (2, 2), 8, DType.FP16)), full_check=True)
