"""Which operators TensorRT lacks for an element type that ONNX allows them. Measured on TensorRT-RTX 1.7.1.

One operator a graph, every type that ONNX's schema allows its first input, asked of the parser and the builder
(tests/engines/test_preflight_types.py asks again). Rows of their own have MatMul, Mod and TensorScatter.
"""

import onnx_ir as ir

D = ir.DataType

REFUSED: dict[ir.DataType, frozenset[str]] = {
    D.FLOAT16: frozenset(["Celu", "MeanVarianceNormalization"]),
    D.BFLOAT16: frozenset(
        [
            "Celu",
            "GlobalLpPool",
            "HardSwish",
            "LpNormalization",
            "LpPool",
            "MeanVarianceNormalization",
            "Mish",
        ]
    ),
    D.INT8: frozenset(["Einsum"]),
    D.UINT8: frozenset(
        [
            "Abs",
            "Add",
            "ArgMax",
            "ArgMin",
            "Clip",
            "Concat",
            "DepthToSpace",
            "Div",
            "Einsum",
            "Expand",
            "Flatten",
            "Gather",
            "GatherND",
            "Greater",
            "GreaterOrEqual",
            "Less",
            "LessOrEqual",
            "Max",
            "MaxPool",
            "Min",
            "Mul",
            "Pad",
            "ReduceMax",
            "ReduceMin",
            "Shrink",
            "Sign",
            "SpaceToDepth",
            "Split",
            "Squeeze",
            "Sub",
            "Tile",
            "Transpose",
            "Trilu",
            "Unsqueeze",
        ]
    ),
    D.INT32: frozenset(["Einsum", "PRelu", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "Relu"]),
    D.INT64: frozenset(["Einsum", "PRelu", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]),
    D.BOOL: frozenset(["DepthToSpace", "ReduceMax", "ReduceMin", "SpaceToDepth"]),
}
