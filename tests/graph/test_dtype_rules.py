"""Output types from the schemas against ONNX's own shape inference, over all of ONNX's node test models."""

import onnx
import onnx_ir as ir
import pytest
from onnx.backend.test.case.node import collect_testcases

from blockforge.core.errors import UsageError
from blockforge.graph.dtype_rules import Operation, first_version, output_types
from blockforge.graph.type_names import DataType


def operation(name, version=24, outputs=1, **attributes) -> Operation:
    made = {k: ir.Attr(k, ir.AttributeType.INT, v) for k, v in attributes.items()}
    return Operation(name, "", version, made, outputs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx")
def test_types_equal_onnx_inference():
    compared = 0
    for case in collect_testcases(None):
        if case.model.functions:
            continue
        inferred = ir.from_proto(onnx.shape_inference.infer_shapes(case.model))
        for node in inferred.graph:
            inputs = tuple(
                None if v is None or isinstance(v.type, ir.SequenceType) else v.dtype
                for v in node.inputs
            )
            domain = "" if node.domain == "ai.onnx" else node.domain
            version = inferred.opset_imports[domain]
            given = output_types(
                Operation(node.op_type, domain, version, node.attributes, len(node.outputs)), inputs
            )
            for value, dtype in zip(node.outputs, given, strict=True):
                if dtype is not None and isinstance(value.type, ir.TensorType):
                    assert dtype == value.dtype, (case.name, node.op_type, value.name)
                    compared += 1
    assert compared > 1500


def test_one_type_variable_stands_for_one_type():
    same = (DataType.FLOAT16, DataType.FLOAT16)
    assert output_types(operation("Add"), same) == (DataType.FLOAT16,)
    with pytest.raises(UsageError, match=r"input B of Add: fp32 beside fp16"):
        output_types(operation("Add"), (DataType.FLOAT16, DataType.FLOAT))


def test_strict_types_follow_the_opset():
    bf16 = (DataType.BFLOAT16,)
    assert output_types(operation("Erf", 13), bf16, strict=True) == bf16
    with pytest.raises(UsageError, match=r"Version 9 of it takes"):
        output_types(operation("Erf", 12), bf16, strict=True)


@pytest.mark.parametrize(
    ("asked", "inputs", "expected"),
    [
        (operation("Cast", to=10), (DataType.FLOAT,), DataType.FLOAT16),
        (operation("Shape"), (DataType.BFLOAT16,), DataType.INT64),
        (operation("QuantizeLinear"), (DataType.FLOAT, DataType.FLOAT), DataType.UINT8),
        (operation("QuantizeLinear"), (DataType.FLOAT,) * 2 + (DataType.INT8,), DataType.INT8),
        (
            operation("QuantizeLinear", output_dtype=17),
            (DataType.FLOAT,) * 2,
            DataType.FLOAT8E4M3FN,
        ),
        (operation("DequantizeLinear"), (DataType.INT8, DataType.FLOAT16), DataType.FLOAT16),
        (
            operation("DequantizeLinear", output_dtype=16),
            (DataType.INT8, DataType.FLOAT),
            DataType.BFLOAT16,
        ),
        (operation("Pow"), (DataType.FLOAT16, DataType.FLOAT), DataType.FLOAT16),
        (operation("Where"), (DataType.BOOL, DataType.FLOAT16, DataType.FLOAT16), DataType.FLOAT16),
        (operation("RMSNormalization"), (DataType.FLOAT16, DataType.FLOAT), DataType.FLOAT),
    ],
    ids=lambda v: v.name if isinstance(v, Operation) else None,
)
def test_types_that_attributes_and_inputs_decide(asked, inputs, expected):
    assert output_types(asked, inputs) == (expected,)


def test_first_versions():
    assert first_version("RMSNormalization", "") == 23
    assert first_version("Add", "") == 1
    assert first_version("NoSuchOperator", "") is None
