"""preflight as a whole: findings of files, weights and structure; the time it takes; the command's exit codes."""

import json
import os
import time

import numpy as np
import onnx
import pytest
from engine_graphs import HIDDEN, Chain, model_of, write
from onnx import TensorProto, helper, numpy_helper
from preflight_cases import attention, quantised
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import ArtefactError, BuildError, UsageError
from blockforge.engines.legalize import legalize
from blockforge.engines.preflight import Table, preflight, refuse
from blockforge.engines.target import Target
from blockforge.graph.io import load_model

RTX, ORT = Target.parse("tensorrt-rtx:sm89"), Target.parse("onnxruntime:cpu")
SHAPES = tuple(f"hidden_states:{s}x{HIDDEN}" for s in ("1x1", "2x8", "4x32"))
X = {"x": ("fp16", ["b", 8])}


def stored(serialised, folder):
    path = folder / "model.onnx"
    path.write_bytes(serialised)
    return path


def rules(report, *, failing=False):
    return {f.rule for f in report.findings if f.fails or not failing}


def test_a_decoder_is_clean_in_under_a_second(tmp_path):
    """Thirty blocks, in processor time: the machine may be busy."""
    path = write(Chain("fp16", blocks=30).build(), tmp_path)
    preflight(path, RTX, shapes=SHAPES)  # imports, schemas
    start = time.process_time()
    report = preflight(path, RTX, shapes=SHAPES)
    assert time.process_time() - start < 1
    assert report.passed and not report.findings


def test_what_compile_legalises_does_not_fail(tmp_path):
    report = preflight(write(Chain("fp32", blocks=2).build(), tmp_path), RTX, shapes=SHAPES)
    assert report.passed
    assert {(f.rule, f.legalized) for f in report.findings} == {("attention.fp32", True)}
    assert len(report.findings) == 2


def test_onnxruntime_has_no_forms_to_refuse(tmp_path):
    assert preflight(stored(attention(softcap=3.0), tmp_path), ORT).passed


# ---- files


def missing(path):
    (path.parent / "model.onnx.data").unlink()


def truncated(path):
    os.truncate(path.parent / "model.onnx.data", 1000)


def outside(path):
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../model.onnx.data"
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing, "is missing"),
        (truncated, "which has 1000"),
        (outside, "leaves the model's folder"),
    ],
)
def test_external_data_is_a_finding(damage, words, tmp_path):
    path = write(Chain("fp16", blocks=1).build(), tmp_path)
    damage(path)
    report = preflight(path, RTX)
    assert rules(report) == {"data.external"} and not report.passed
    assert all(words in f.found for f in report.findings)
    if damage is not truncated:
        assert len(report.findings) == 1 and "more" in report.findings[0].node


def test_what_is_no_model_is_an_error(tmp_path):
    with pytest.raises(UsageError):
        preflight(tmp_path / "none.onnx", RTX)
    with pytest.raises(ArtefactError):
        preflight(stored(b"no model at all", tmp_path), RTX)


# ---- weights


def weights(folder, **arrays):
    """A model that adds up its weights."""
    nodes = [helper.make_node("Identity", [n], [f"{n}_out"]) for n in arrays]
    outs = {
        f"{n}_out": ("fp16" if a.dtype == np.float16 else "fp32", list(a.shape))
        for n, a in arrays.items()
    }
    nodes.append(helper.make_node("Relu", ["x"], ["y"]))
    return write(model_of(nodes, X, outs | {"y": X["x"]}, arrays), folder)


def test_infinite_weights(tmp_path):
    bad = np.ones((8, 8), np.float16)
    bad[3, 4] = np.inf
    report = preflight(weights(tmp_path, bad=bad, good=np.ones((8, 8), np.float16)), RTX)
    assert [f.node for f in report.failures] == ["bad"] and rules(report, failing=True) == {
        "weight.not-finite"
    }


def test_large_weights_are_read_only_when_asked(tmp_path):
    large = np.ones((512, 512), np.float16)
    large[100, 7] = np.nan
    path = weights(tmp_path, large=large)
    assert preflight(path, RTX).passed
    assert rules(preflight(path, RTX, thorough=True), failing=True) == {"weight.not-finite"}


@pytest.mark.parametrize("thorough", [False, True])
def test_weights_stored_twice(thorough, tmp_path):
    random = np.random.default_rng(0)
    embedding = random.standard_normal((1024, 600)).astype(np.float16)
    other = random.standard_normal((1024, 600)).astype(np.float16)
    path = weights(
        tmp_path,
        embedding=embedding,
        other=other,
        head=np.ascontiguousarray(embedding.T),
        copy=other.copy(),
    )
    report = preflight(path, RTX, thorough=thorough)
    doubled = {f.node: f.found for f in report.findings if f.rule == "weight.doubled"}
    assert doubled.keys() == {"head", "copy"}
    assert "transpose of 'embedding'" in doubled["head"] and "same as 'other'" in doubled["copy"]
    assert report.passed


def test_near_miss_one_different_element(tmp_path):
    first = np.random.default_rng(0).standard_normal((1024, 600)).astype(np.float16)
    second = first.copy()
    second[5, 5] += 1
    report = preflight(weights(tmp_path, first=first, second=second), RTX, thorough=True)
    assert "weight.doubled" not in rules(report)


# ---- structure


def chain_of(*nodes):
    made = [helper.make_node(op, ins, [out], name=name) for op, ins, out, name in nodes]
    return graph_without_inference(made)


def graph_without_inference(nodes):
    infos = [helper.make_tensor_value_info(n, 1, ["b", 8]) for n in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(
            nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(np.ones(8, np.float32), "w")]
        ),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=11,
    )
    return model.SerializeToString()


STRUCTURE = {
    "cycle": (
        chain_of(
            ("Add", ["x", "b"], "a", "1"), ("Relu", ["a"], "b", "2"), ("Relu", ["a"], "y", "3")
        ),
        "graph.order",
    ),
    "from nowhere": (chain_of(("Add", ["x", "nope"], "y", "1")), "graph.order"),
    "two values": (
        chain_of(("Relu", ["x"], "a", "1"), ("Relu", ["x"], "a", "2"), ("Relu", ["a"], "y", "3")),
        None,
    ),
    "arity": (chain_of(("Add", ["x"], "y", "1")), "graph.arity"),
}


@pytest.mark.parametrize(("model", "rule"), STRUCTURE.values(), ids=STRUCTURE)
def test_a_graph_that_does_not_hold_together(model, rule, tmp_path):
    try:
        report = preflight(stored(model, tmp_path), RTX)
    except ArtefactError:  # two values of one name do not even load
        assert rule is None
        return
    assert rule in rules(report, failing=True)


def test_an_unsorted_graph_is_noted(tmp_path):
    model = chain_of(("Relu", ["a"], "y", "1"), ("Relu", ["x"], "a", "2"))
    report = preflight(stored(model, tmp_path), RTX)
    assert "graph.order" in rules(report) and report.passed


def test_mixed_types_are_refused(tmp_path):
    mixed = {"x": ("fp16", ["b", 8]), "z": ("fp32", ["b", 8])}
    infos = [
        helper.make_tensor_value_info(n, {"fp16": 10, "fp32": 1}[t], d)
        for n, (t, d) in mixed.items()
    ]
    out = helper.make_tensor_value_info("y", 1, ["b", 8])
    made = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["y"], name="add")], "g", infos, [out]
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    assert "graph.agree" in rules(
        preflight(stored(model.SerializeToString(), tmp_path), RTX), failing=True
    )


# ---- compile's use of it


def test_refuse_names_node_rule_and_fix(tmp_path):
    model = load_model(stored(quantised(scale=np.float16(0)), tmp_path))
    legal, _ = legalize(model, RTX)
    with pytest.raises(BuildError, match=r"'xq'.*scale\.sign") as error:
        refuse(legal, RTX, "engine")
    assert "Calibrate" in error.value.fix


def test_refuse_leaves_other_versions_alone(tmp_path, monkeypatch):
    model = load_model(stored(quantised(scale=np.float16(0)), tmp_path))
    monkeypatch.setattr(Table, "binding", False)
    refuse(model, RTX, "engine")


# ---- the command


def run(*arguments):
    return CliRunner().invoke(app, ["preflight", *map(str, arguments)])


def test_the_command_is_0_when_clean_or_legalised_and_1_otherwise(tmp_path):
    path = stored(attention(softcap=3.0), tmp_path)
    done = run(path, "-t", "tensorrt-rtx:sm89")
    assert done.exit_code == 0 and "legalised" in done.stdout
    failed = run(
        stored(quantised(scale=np.float16(0)), tmp_path), "-t", "tensorrt-rtx:sm80", "--json"
    )
    assert failed.exit_code == 1
    (report,) = json.loads(failed.stdout)
    assert not report["passed"] and report["table"] == "tensorrt-rtx 1.7"
    assert {"scale.sign", "architecture.fp8_e4m3"} <= {f["rule"] for f in report["findings"]}
    assert {"node", "severity", "happens", "fix", "legalized"} <= report["findings"][0].keys()


def test_compile_sorts_what_is_not_and_refuses_a_circle(tmp_path):
    unsorted = chain_of(("Relu", ["a"], "y", "1"), ("Relu", ["x"], "a", "2"))
    legal, _ = legalize(load_model(stored(unsorted, tmp_path)), RTX)
    assert [n.name for n in legal.graph] == ["2", "1"]
    with pytest.raises(BuildError, match="circle"):
        legalize(load_model(stored(STRUCTURE["cycle"][0], tmp_path), allow_circles=True), RTX)


# ---- what a graph leaves out


def declared(folder, nodes, ins, outs, weights=(), opset=24):
    """A model stored as it is: no shape is inferred. ins and outs: name -> (ONNX type or 0, dims or None)."""
    edges = [
        [helper.make_tensor_value_info(n, t, d) for n, (t, d) in e.items()] for e in (ins, outs)
    ]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(weights).items()]
    graph = helper.make_graph(list(nodes), "g", *edges, tensors)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return stored(model.SerializeToString(), folder)


def unlabelled_rotary(folder, batch):
    """RotaryEmbedding whose cos and sin [batch, S, 32] come from nodes that declare nothing, as exporters write them."""
    nodes = [
        helper.make_node("Cos", ["angles"], ["c"]),
        helper.make_node("Sin", ["angles"], ["s"]),
        helper.make_node("RotaryEmbedding", ["x", "c", "s"], ["y"], name="rope"),
    ]
    x = (1, ["b", 2, "s", 64])
    return declared(folder, nodes, {"x": x, "angles": (1, [batch, "s", 32])}, {"y": (1, None)})


def test_a_form_behind_undeclared_shapes_is_found_and_legalised(tmp_path):
    path = unlabelled_rotary(tmp_path, 1)
    report = preflight(path, RTX)
    assert {(f.rule, f.legalized) for f in report.findings} >= {("rotary.batch", True)}
    _, changed = legalize(load_model(path), RTX)
    assert [line for line in changed if "expanded to the batch" in line]
    near = unlabelled_rotary(tmp_path, "b")
    assert "rotary.batch" not in rules(preflight(near, RTX))
    assert not legalize(load_model(near), RTX)[1]


def test_an_output_needs_no_shape_but_an_input_does(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    assert preflight(declared(tmp_path, [node], {"x": (1, ["b", 8])}, {"y": (1, None)}), RTX).passed
    report = preflight(declared(tmp_path, [node], {"x": (1, None)}, {"y": (1, ["b", 8])}), RTX)
    assert [(f.rule, f.node) for f in report.failures] == [("input.undeclared", "input 'x'")]


@pytest.mark.parametrize("name", ["INT16", "UINT32", "STRING", "COMPLEX64", "FLOAT8E5M2"])
def test_a_type_that_tensorrt_lacks_names_the_input(name, tmp_path):
    kind = TensorProto.DataType.Value(name)
    node = helper.make_node("Identity", ["x"], ["y"])
    path = declared(tmp_path, [node], {"x": (kind, ["b"])}, {"y": (kind, ["b"])})
    done = run(
        path, "-t", "tensorrt-rtx:sm89", "--min", "x:1", "--opt", "x:2", "--max", "x:4", "--json"
    )
    assert done.exit_code == 1
    (report,) = json.loads(done.stdout)
    assert [(f["rule"], f["node"]) for f in report["findings"] if f["fails"]] == [
        ("type.unknown", "x")
    ]


def test_a_circle_is_a_finding_and_recursion_an_error(tmp_path):
    assert rules(preflight(stored(STRUCTURE["cycle"][0], tmp_path), RTX), failing=True) == {
        "graph.order"
    }
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("f", 1)]
    call = [helper.make_node("A", ["x"], ["y"], domain="f")]
    function = helper.make_function("f", "A", ["x"], ["y"], call, opsets)
    infos = [helper.make_tensor_value_info(n, 1, [8]) for n in "xy"]
    graph = helper.make_graph(call, "g", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11, functions=[function])
    with pytest.raises(ArtefactError, match="calls itself"):
        preflight(stored(model.SerializeToString(), tmp_path), RTX)
