"""Legalisation: the numbers stay, TensorRT accepts what it refused, and near misses stay as they are.

The oracle is ONNX's own reference evaluator on the graph before legalisation; ONNX Runtime repeats it.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from engine_graphs import Chain, model_of, typed
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import BuildError
from blockforge.core.shapes import ShapeRange
from blockforge.engines import compile as compiling
from blockforge.engines.legalize import legalize
from blockforge.engines.target import Target

RTX = Target.parse("tensorrt-rtx:sm89")
B, S, PAST, HEADS, KV_HEADS, D = 2, 3, 5, 4, 2, 16
SIZES = {"b": B, "s": S, "p": PAST, "t": PAST + S, "w": S}


def attention(
    dtype,
    *,
    opset=24,
    past=False,
    present=False,
    mask=None,
    nonpad=False,
    flat=False,
    keys="s",
    vd=D,
    **attributes,
):
    """One Attention node; mask is (type, dims). flat: heads folded into the last axis (3-D)."""
    heads = lambda n, length, size: (  # noqa: E731
        ["b", length, n * size] if flat else ["b", n, length, size]
    )
    inputs = {
        "q": (dtype, heads(HEADS, "s", D)),
        "k": (dtype, heads(KV_HEADS, keys, D)),
        "v": (dtype, heads(KV_HEADS, keys, vd)),
    }
    names = ["q", "k", "v", "", "", "", ""]
    if mask:
        inputs["mask"], names[3] = (
            (dtype if mask[0] == "float" else TensorProto.BOOL, mask[1]),
            "mask",
        )
    if past:
        inputs |= {n: (dtype, ["b", KV_HEADS, "p", D]) for n in ("past_key", "past_value")}
        names[4:6] = ["past_key", "past_value"]
    if nonpad:
        inputs["nonpad"], names[6] = (TensorProto.INT64, ["b"]), "nonpad"
    outputs = {"y": (dtype, heads(HEADS, "s", vd))}
    if present:
        total = "t" if past else keys
        outputs |= {n: (dtype, ["b", KV_HEADS, total, D]) for n in ("present_key", "present_value")}
    if flat:
        attributes |= {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS}
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "Attention", names, list(outputs), name="m.self_attn/Attention", **attributes
    )
    return model_of([node], inputs, outputs, opset=opset)


FORMS = {
    "cache, causal": {"past": True, "present": True, "is_causal": 1},
    "cache, causal, 3-D": {"past": True, "present": True, "is_causal": 1, "flat": True},
    "cache, causal, bool mask": {"past": True, "present": True, "is_causal": 1, "mask": ("bool", ["s", "t"])},
    "cache, causal, float mask": {
        "past": True, "present": True, "is_causal": 1, "mask": ("float", ["b", 1, "s", "t"]),
    },
    "cache": {"past": True, "present": True},
    "past, nothing read": {"past": True, "is_causal": 1},
    "present without past": {"present": True, "is_causal": 1},
    "present without past, 3-D": {"present": True, "is_causal": 1, "flat": True},
    "float mask and causal": {"mask": ("float", ["b", 1, "s", "s"]), "is_causal": 1},
    "bool mask and causal": {"mask": ("bool", ["s", "s"]), "is_causal": 1},
    "bool mask": {"mask": ("bool", ["b", HEADS, "s", "s"])},
    "nonpad, causal": {"nonpad": True, "keys": "t", "is_causal": 1},
    "nonpad, mask": {"nonpad": True, "keys": "t", "mask": ("float", ["s", "t"])},
    "window": {"left_window_size": 1, "right_window_size": 1, "opset": 25},
    "window, causal, cache": {
        "left_window_size": 2, "is_causal": 1, "past": True, "present": True, "opset": 25,
    },
    "softcap, causal": {"softcap": 0.5, "is_causal": 1},
    "softcap, 3-D, scale": {"softcap": 0.5, "flat": True, "scale": 0.7},
    "softcap, mask, cache": {
        "softcap": 0.5, "mask": ("float", ["s", "t"]), "past": True, "present": True, "is_causal": 1,
    },
    "wide values": {"vd": 2 * D, "is_causal": 1},
    "softmax precision": {"softmax_precision": 1, "is_causal": 1},
}  # fmt: skip
SILENT = {
    "nonpad, causal",
    "nonpad, mask",
    "bool mask",
    "window",
}  # TensorRT-RTX builds these as they are


def legal(model):
    changed, lines = legalize(ir.from_proto(model), RTX)
    return ir.to_proto(changed), lines


def without_marks(model):
    """Drop the attribute that only TensorRT knows."""
    for node in model.graph.node:
        kept = [a for a in node.attribute if a.name != "TRT_decomposable"]
        del node.attribute[:]
        node.attribute.extend(kept)
    return model


def feeds(model, seed=0):
    random = np.random.default_rng(seed)
    made = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [SIZES[d.dim_param] if d.dim_param else d.dim_value for d in dims]
        kind = value.type.tensor_type.elem_type
        if value.name == "nonpad":  # every query sees a key: S and more valid ones
            made[value.name] = np.array([S, S + 2], np.int64)
        elif kind == TensorProto.BOOL:
            made[value.name] = random.random(shape) < 0.6
            made[value.name][..., 0] = True  # no row without a key
        else:
            array = random.standard_normal(shape)
            made[value.name] = array.astype(helper.tensor_dtype_to_np_dtype(kind))
    return made


def assert_equal(actual, expected):
    # A weighted mean of values: 2 roundings a term and those of exp (about 4 units), values below 4.
    scale = 4 * max(1.0, max(float(np.abs(e).max()) for e in expected))
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=16 * np.finfo(np.float32).eps * scale)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_numbers_stay(form):
    model = attention("fp32", **form)
    changed, lines = legal(model)
    assert lines
    inputs = feeds(model)
    expected = ReferenceEvaluator(model).run(None, inputs)
    changed = without_marks(changed)
    assert [o.name for o in changed.graph.output] == [o.name for o in model.graph.output]
    assert_equal(ReferenceEvaluator(changed).run(None, inputs), expected)
    ort = onnxruntime.InferenceSession(
        changed.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert_equal(ort.run(None, inputs), expected)


def compile_graph(model, folder, monkeypatch, *, legalised):
    path = folder / "model.onnx"
    onnx.save(model, path)
    ranges = {"b": (1, B, 4), "s": (1, S, 8), "p": (1, PAST, 16), "t": (1, PAST + S, 24)}
    profile = {}
    for value in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        sizes = zip(*(ranges.get(d, (d, d, d)) for d in dims), strict=True)
        profile[value.name] = ShapeRange(*sizes)
    if not legalised:
        monkeypatch.setattr(compiling, "legalize", lambda model, target: (model, ()))
    return compiling.compile_engine(compiling.CompileRequest(path, RTX, profile, folder))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_tensorrt_builds_the_legal_form(form, tmp_path, monkeypatch):
    record = compile_graph(attention("fp16", **form), tmp_path, monkeypatch, legalised=True)
    assert record.legalized and record.bytes > 0 and not record.violations


@pytest.mark.parametrize("name", sorted(FORMS.keys() - SILENT))
def test_tensorrt_refuses_the_form_as_it_was(name, tmp_path, monkeypatch):
    with pytest.raises(BuildError, match="tensorrt-rtx"):
        compile_graph(attention("fp16", **FORMS[name]), tmp_path, monkeypatch, legalised=False)


def test_a_bool_mask_costs_one_kernel_instead_of_many(tmp_path, monkeypatch):
    form = attention("fp16", mask=("bool", ["s", "s"]))
    after = compile_graph(form, tmp_path, monkeypatch, legalised=True)
    before = compile_graph(form, tmp_path, monkeypatch, legalised=False)
    assert after.kernels < before.kernels


@pytest.mark.parametrize("name", ["fp32", "head size 320"])
def test_attention_without_a_fused_kernel_may_be_decomposed(name, tmp_path, monkeypatch):
    dtype, size = ("fp32", D) if name == "fp32" else ("fp16", 320)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], name="A", is_causal=1)
    edge = (dtype, ["b", HEADS, "s", size])
    model = model_of([node], {"q": edge, "k": edge, "v": edge}, {"y": edge})
    record = compile_graph(model, tmp_path, monkeypatch, legalised=True)
    assert any("TRT_decomposable" in line and name in line for line in record.legalized)
    with pytest.raises(BuildError, match="decomposable"):
        compile_graph(model, tmp_path, monkeypatch, legalised=False)


NEAR_MISSES = {
    "causal": attention("fp16", is_causal=1),
    "no mask": attention("fp16"),
    "one float mask": attention("fp16", mask=("float", ["s", "s"])),
    "head size 256": model_of(
        [helper.make_node("Attention", ["q", "k", "v"], ["y"], name="A")],
        {n: ("fp16", ["b", HEADS, "s", 256]) for n in "qkv"},
        {"y": ("fp16", ["b", HEADS, "s", 256])},
    ),
}


@pytest.mark.parametrize("model", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_what_tensorrt_takes_is_left_alone(model):
    changed, lines = legal(model)
    assert lines == ()
    assert changed.graph.node == model.graph.node


def test_the_bundle_graph_stays_as_it_was():
    model = ir.from_proto(attention("fp32", past=True, present=True, softcap=1.0))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    legalize(model, RTX)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_onnxruntime_gets_the_graph_as_it_is():
    model = ir.from_proto(attention("fp32", mask=("float", ["s", "s"]), is_causal=1))
    assert legalize(model, Target.parse("onnxruntime:cpu"))[1] == ()


def test_functions_are_inlined_under_the_calls_name():
    model = Chain("fp32", blocks=2).build()
    changed, lines = legal(model)
    assert "inlined blockforge::SwiGLU (2x)" in lines
    names = [n.name for n in changed.graph.node]
    assert len(set(names)) == len(names)
    for i in range(2):
        assert f"layers.{i}.mlp/SwiGLU/Swish" in names and f"layers.{i}.mlp/SwiGLU/Mul" in names
    assert not changed.functions and [o.domain for o in changed.opset_import] == [""]
    x = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"hidden_states": x})
    actual = ReferenceEvaluator(without_marks(changed)).run(None, {"hidden_states": x})
    np.testing.assert_array_equal(actual[0], expected[0])  # the same operators in the same order


def test_nested_functions_keep_the_outer_name():
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("blockforge", 1)]
    inner = helper.make_function(
        "blockforge",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Add", ["x", "x"], ["y"])],
        opsets[:1],
    )
    outer = helper.make_function(
        "blockforge",
        "Four",
        ["x"],
        ["y"],
        [
            helper.make_node("Twice", ["x"], ["t"], domain="blockforge", name="a"),
            helper.make_node("Twice", ["t"], ["y"], domain="blockforge", name="b"),
        ],
        opsets,
    )
    calls = [
        helper.make_node("Four", ["x"], ["h"], domain="blockforge", name="layers.0/Four"),
        helper.make_node("Four", ["h"], ["y"], domain="blockforge", name="layers.1/Four"),
    ]
    edge = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    model = typed(helper.make_graph(calls, "g", edge[:1], edge[1:]), [inner, outer])
    changed, _ = legal(model)
    assert [n.name for n in changed.graph.node] == [
        f"layers.{i}/Four/Add{end}" for i in range(2) for end in ("", "_1")
    ]
    assert (
        ReferenceEvaluator(changed).run(None, {"x": np.ones(3, np.float32)})[0].tolist() == [16] * 3
    )


def test_outputs_that_nothing_reads_are_dropped_and_what_hides_keys_stays(tmp_path, monkeypatch):
    inputs = {n: ("fp16", ["b", HEADS, "s", D]) for n in "qkv"}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y", "nk", "nv"], name="A", is_causal=1)
    model = model_of([node], inputs, {"y": inputs["q"]})
    changed, lines = legal(model)
    assert lines == ("A: dropped outputs that nothing reads",)
    (made,) = changed.graph.node
    assert list(made.output) == ["y"] and made.attribute == node.attribute
    assert compile_graph(model, tmp_path, monkeypatch, legalised=True).kernels


def test_scores_that_are_read_are_refused():
    inputs = {n: ("fp32", ["b", HEADS, "s", D]) for n in "qkv"}
    outputs = {"y": ("fp32", ["b", HEADS, "s", D]), "scores": ("fp32", ["b", HEADS, "s", "s"])}
    node = helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "scores"], name="A")
    with pytest.raises(BuildError, match="qk_matmul_output"):
        legal(model_of([node], inputs, outputs))


def test_a_narrow_softmax_is_refused():
    with pytest.raises(BuildError, match="softmax_precision"):
        legal(attention("fp32", softmax_precision=TensorProto.FLOAT16))


def test_a_row_without_keys_stays_finite():
    model = attention("fp32", mask=("bool", ["s", "s"]), is_causal=1, softcap=1.0)
    inputs = feeds(model) | {"mask": np.zeros((S, S), bool)}
    (y,) = ReferenceEvaluator(without_marks(legal(model)[0])).run(None, inputs)
    assert np.isfinite(y).all()
