"""Graphs that hypothesis makes, right and wrong: preflight and the reader give a report or a clear error, whatever is in them."""

import time

import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from blockforge.core.errors import BlockforgeError
from blockforge.engines.preflight import preflight
from blockforge.engines.target import Target
from blockforge.graph.io import load_model

NAMES = st.sampled_from(["", "x", "y", "w", "v0", "v1", "v2", "layers.0/a"])
OPERATORS = st.sampled_from(
    [
        "Add",
        "MatMul",
        "Gemm",
        "Softmax",
        "RMSNormalization",
        "LayerNormalization",
        "Attention",
        "RotaryEmbedding",
        "TensorScatter",
        "Cast",
        "Reshape",
        "Concat",
        "Split",
        "Where",
        "Gather",
        "QuantizeLinear",
        "DequantizeLinear",
        "If",
        "Loop",
        "Constant",
        "Relu",
        "Unknown",
    ]
)
DOMAINS = st.sampled_from(["", "ai.onnx", "com.microsoft", "blockforge", "nobody's"])
KINDS = [
    "axis",
    "axes",
    "to",
    "perm",
    "is_causal",
    "softcap",
    "num_heads",
    "epsilon",
    "then_branch",
    "value",
    "x",
]
NUMBERS = st.sampled_from([0, 1, -1, 7, 2**31, -(2**63), 2**63 - 1])
SIZES = st.lists(st.sampled_from([0, 1, 2, 16, -1, 2**40, 2**62]), max_size=5)
TYPES = st.sampled_from([0, 1, 2, 7, 9, 10, 16, 17, 22, 99])


@st.composite
def tensors(draw):
    raw = draw(st.binary(max_size=40))
    tensor = TensorProto(name=draw(NAMES), data_type=draw(TYPES), dims=draw(SIZES))
    if draw(st.booleans()):
        tensor.raw_data = raw
    else:
        tensor.float_data.extend(raw[:4])
    if draw(st.integers(0, 5)) == 0:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {
            "location": draw(
                st.sampled_from(["model.onnx", "../../etc/passwd", "/dev/zero", "w.bin"])
            ),
            "offset": str(draw(NUMBERS)),
            "length": str(draw(NUMBERS)),
        }.items():
            tensor.external_data.add(key=key, value=value)
    return tensor


@st.composite
def attributes(draw, depth):
    made = AttributeProto(name=draw(st.sampled_from(KINDS)))
    kind = draw(st.integers(0, 5 if depth else 4))
    if kind == 0:
        made.type, made.i = AttributeProto.INT, draw(NUMBERS)
    elif kind == 1:
        made.type = AttributeProto.INTS
        made.ints.extend(draw(st.lists(NUMBERS, max_size=4)))
    elif kind == 2:
        made.type, made.f = AttributeProto.FLOAT, draw(st.floats(width=32))
    elif kind == 3:
        made.type, made.s = AttributeProto.STRING, draw(st.binary(max_size=5))
    elif kind == 4:
        made.type = AttributeProto.TENSOR
        made.t.CopyFrom(draw(tensors()))
    else:
        made.type = AttributeProto.GRAPH
        made.g.CopyFrom(draw(graphs(depth - 1)))
    return made


@st.composite
def graphs(draw, depth=2):
    graph = GraphProto(name="g")
    for _ in range(draw(st.integers(0, 4))):
        node = NodeProto(op_type=draw(OPERATORS), domain=draw(DOMAINS), name=draw(NAMES))
        node.input.extend(draw(st.lists(NAMES, max_size=5)))
        node.output.extend(draw(st.lists(NAMES, max_size=3)))
        node.attribute.extend(draw(st.lists(attributes(depth), max_size=3)))
        graph.node.append(node)
    for field in (graph.input, graph.output, graph.value_info):
        for name in draw(st.lists(NAMES, max_size=3)):
            info = field.add(name=name)
            info.type.tensor_type.elem_type = draw(TYPES)
            for size in draw(SIZES):
                info.type.tensor_type.shape.dim.add(dim_value=size)
    graph.initializer.extend(draw(st.lists(tensors(), max_size=3)))
    return graph


@st.composite
def models(draw):
    model = onnx.ModelProto(ir_version=draw(st.sampled_from([0, 3, 11, 99])))
    model.graph.CopyFrom(draw(graphs()))
    for domain, number in draw(
        st.lists(st.tuples(DOMAINS, st.sampled_from([0, 7, 20, 24, 999])), max_size=3)
    ):
        model.opset_import.add(domain=domain, version=number)
    if draw(st.booleans()):
        function = model.functions.add(name="Unknown", domain=draw(DOMAINS))
        function.input.extend(draw(st.lists(NAMES, max_size=3)))
        function.output.extend(draw(st.lists(NAMES, max_size=3)))
        function.node.extend(draw(graphs(1)).node)
    return model


@given(model=models(), thorough=st.booleans())
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_graph_is_a_report_or_a_clear_error(model, thorough, tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "model.onnx"
    path.write_bytes(model.SerializeToString())
    started = time.process_time()
    for target in ("tensorrt-rtx:sm89", "onnxruntime:cpu"):
        try:
            preflight(path, Target.parse(target), thorough=thorough)
        except BlockforgeError as error:
            assert error.found
    try:
        load_model(path)
    except BlockforgeError as error:
        assert error.found
    assert time.process_time() - started < 5
