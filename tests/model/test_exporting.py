"""Under torch.onnx the module emits its own operators, and they compute what its plain torch computes."""

import functools
import warnings
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper
from torch._subclasses.fake_tensor import FakeTensorMode

from blockforge.model.build import build_module, load_module
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.model.exporting import exporting
from blockforge.model.presets import PRESETS

FLOAT32 = (
    3 * 14 * 2**-24
)  # as test_decoder.py: 14 roundings for each of two layers and the ends, the worst case
FLOAT16 = 3 * 14 * 2**-11
SIZES = [(1, 1), (2, 1), (1, 7), (3, 50)]  # captured at (2, 5)
SHAPE_ARITHMETIC = {"Shape", "Squeeze", "Constant", "CastLike", "Range", "Reshape", "Concat"}


@functools.cache
def captured(name: str, dtype: torch.dtype, layer: int | None) -> onnx.ModelProto:
    """The preset's graph without weights: the module is on meta and traced under fake tensors."""
    config = PRESETS[name]
    module = build_module(config, layer=layer)
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path, weight in list(module.named_parameters()):
            owner, _, attribute = path.rpartition(".")
            fake = torch.nn.Parameter(torch.empty(weight.shape, dtype=dtype), requires_grad=False)
            setattr(module.get_submodule(owner), attribute, fake)
        decoder = torch.zeros(2, 5, dtype=torch.int64)
        block = torch.zeros(2, 5, config.hidden_size, dtype=dtype)
        dynamic = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
        program = torch.onnx.export(
            module,
            (decoder if layer is None else block,),
            dynamo=True,
            optimize=False,
            opset_version=24,
            dynamic_shapes=dynamic,
            input_names=["input"],
            output_names=["output"],
            verbose=False,
        )
    for weight in program.model.graph.initializers.values():
        values = preset_checkpoint(name).read(
            weight.name, dtype
        )  # raises for anything but a parameter
        weight.const_value = ir.tensor(values.contiguous())
    model = ir.to_proto(program.model)
    swiglu = [helper.make_node("Swish", ["g"], ["s"]), helper.make_node("Mul", ["s", "u"], ["y"])]
    opset = [helper.make_opsetid("", 24)]
    model.functions.append(
        helper.make_function("blockforge", "SwiGLU", ["g", "u"], ["y"], swiglu, opset)
    )
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("layer", [None, 1], ids=["decoder", "block"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama-tiny", "llama-tiny-untied"])
def test_graph_computes_what_the_module_computes(name, dtype, layer):
    model = captured(name, dtype, layer)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    module = load_module(preset_checkpoint(name), layer=layer, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        if layer is None:
            x = torch.randint(0, 256, size, generator=generator)
        else:
            x = torch.randn(*size, 64, generator=generator).to(dtype)
        expected = module(x).double().numpy()
        (actual,) = session.run(None, {"input": x.numpy()})
        assert actual.dtype == np.dtype(str(dtype).removeprefix("torch."))
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        assert error < (FLOAT32 if dtype == torch.float32 else FLOAT16), size


def test_the_operators_are_ours():
    """One node per idea; besides them only what computes positions and shapes."""
    operators = Counter(n.op_type for n in captured("llama-tiny", torch.float16, None).graph.node)
    for name in SHAPE_ARITHMETIC:
        operators.pop(name, None)
    assert operators == {
        "Gather": 1,
        "Expand": 1,  # positions over the batch
        "Unsqueeze": 1,
        "Mul": 1,  # position * frequency
        "Cos": 1,
        "Sin": 1,
        "Cast": 3,  # positions to float32, cos and sin to float16
        "RMSNormalization": 5,
        "Transpose": 15,  # of weights, to be folded
        "MatMul": 15,
        "RotaryEmbedding": 4,
        "Attention": 2,
        "SwiGLU": 2,
        "Add": 4,
    }


def test_what_must_stay_wide_is_float32_in_the_float16_graph():
    graph = captured("llama-tiny", torch.float16, None).graph
    types = {v.name: v.type.tensor_type.elem_type for v in graph.value_info}
    of = {n.op_type: n for n in graph.node}
    attributes = {
        kind: {a.name: helper.get_attribute_value(a) for a in of[kind].attribute}
        for kind in ("RMSNormalization", "Attention", "RotaryEmbedding")
    }
    assert attributes["RMSNormalization"]["stash_type"] == onnx.TensorProto.FLOAT
    assert attributes["RMSNormalization"]["epsilon"] == np.float32(1e-5)
    assert attributes["Attention"] == {
        "is_causal": 1,
        "q_num_heads": 4,
        "kv_num_heads": 2,
        "scale": 0.25,
    }
    assert attributes["RotaryEmbedding"]["num_heads"] in (2, 4)
    for kind in ("Cos", "Sin"):
        assert types[of[kind].input[0]] == types[of[kind].output[0]] == onnx.TensorProto.FLOAT
    half = {t for name, t in types.items() if "linear" in name or "norm" in name}
    assert half == {onnx.TensorProto.FLOAT16}
    assert {w.data_type for w in graph.initializer} == {onnx.TensorProto.FLOAT16}


def test_frequencies_are_exact_in_the_graph():
    """float32 roundings of the double-precision values, although nothing had numbers when it was traced."""
    graph = captured("llama-tiny", torch.float32, 0).graph
    (values,) = [a.floats for n in graph.node for a in n.attribute if a.name == "value_floats"]
    assert list(values) == [np.float32(10000.0 ** (-2 * i / 16)) for i in range(8)]


def test_outside_export_it_is_plain_torch():
    assert not exporting()
    program = torch.export.export(
        load_module(preset_checkpoint("llama-tiny"), layer=0, dtype=torch.float32),
        (torch.zeros(1, 3, 64),),
    )
    targets = {str(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert "aten.scaled_dot_product_attention.default" in targets
    assert not any("onnx" in target for target in targets), targets
