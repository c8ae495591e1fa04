"""Each row of the preflight table against TensorRT-RTX's real parser and builder: what we forbid it refuses or spoils,
what we allow it builds, and what we call legalised is built once legalised."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builder_rig import Builder
from preflight_cases import CASES as OLD_CASES
from preflight_cases import X8, attention, called, fp8, graph, linear, one, plain
from preflight_form_cases import FORM_CASES

from blockforge.core.errors import BuildError
from blockforge.engines.legalize import legalize
from blockforge.engines.listing import kernels_from_listing
from blockforge.engines.preflight import ROWS, TABLES
from blockforge.engines.preflight.operator_types import REFUSED
from blockforge.engines.preflight.operators import CONTRIBUTED, PLUGIN_ONLY
from blockforge.engines.preflight.parser_operators import KNOWN, VERSION
from blockforge.engines.preflight.scene import Scene
from blockforge.engines.preflight.table import installed_version, spots
from blockforge.engines.target import Target
from blockforge.engines.tensorrt_api import load_api

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
TABLE = TABLES["tensorrt-rtx"]
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "parser_operators.py"
CASES = (*OLD_CASES, *FORM_CASES)
ROW = {row.id: row for row in ROWS}
IDS = [f"{case.row}-{sum(c.row == case.row for c in CASES[:i])}" for i, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def builder():
    made = Builder()
    yield made
    made.close()


def model_of(serialised):
    return ir.from_proto(onnx.load_from_string(serialised))


def target(arch):
    return Target("tensorrt-rtx", arch.lower())


def fired(serialised, arch="SM89"):
    """The rows that hold for a graph."""
    return {row.id for row, _ in spots(Scene(model_of(serialised), target(arch)), TABLE.rows)}


def legal(serialised, arch):
    model, _ = legalize(model_of(serialised), target(arch))
    return ir.to_proto(model).SerializeToString()


def test_the_table_is_that_of_the_installed_version():
    """A new TensorRT-RTX needs a new measurement: run this file, correct the rows, then the version."""
    assert installed_version("tensorrt-rtx").startswith(TABLE.measured)


def test_every_row_has_a_case_and_a_near_miss():
    assert len(ROW) == len(ROWS)
    assert {case.row for case in CASES} == set(ROW)
    assert {case.row for case in CASES if case.good} == set(ROW)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_is_forbidden_is_refused(case, builder):
    row = ROW[case.row]
    assert case.row in fired(case.bad, case.arch)
    outcome = builder.build(case.bad, case.arch)
    assert outcome.built == (row.severity != "refused"), outcome.words


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_what_is_allowed_is_built(case, builder):
    for good in case.good:
        assert case.row not in fired(good, case.good_arch)
        outcome = builder.build(legal(good, case.good_arch), case.good_arch)
        assert outcome.built, outcome.words


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_legalised_is_what_the_row_says(case, builder):
    row = ROW[case.row]
    try:
        changed = legal(case.bad, case.arch)
    except BuildError:
        assert not row.legalized
        return
    assert (case.row not in fired(changed, case.arch)) == row.legalized
    if row.legalized:
        outcome = builder.build(changed, case.arch)
        assert outcome.built, outcome.words


# ---- silent rows: what the engine computes instead


def kernels(builder, serialised):
    return kernels_from_listing(builder.build(serialised).listing, "a test")


def case_of(row):
    return next(case for case in CASES if case.row == row)


def test_nonpad_is_ignored(builder):
    assert "Unused Input: n" in builder.build(case_of("attention.nonpad").bad).warnings
    assert not [
        k
        for k in kernels(builder, case_of("attention.nonpad").bad)
        for t in k.inputs
        if t.name == "n"
    ]


def test_a_window_is_ignored(builder):
    """The plan of a window is the plan of none, tactic by tactic."""
    case = case_of("attention.window")
    with_window, without = (kernels(builder, model) for model in (case.bad, case.good[0]))
    assert [(k.type, k.tactic) for k in with_window] == [(k.type, k.tactic) for k in without]


def test_fp64_is_fp32(builder):
    case = case_of("type.fp64")
    assert builder.build(case.bad).outputs == {"y": "FLOAT"}
    assert "fp64" not in {k.dtype for k in kernels(builder, case.bad)}


def test_a_dynamic_scale_undoes_the_quantisation(builder):
    product = {k.dtype for k in kernels(builder, case_of("scale.dynamic").bad) if k.is_matrix}
    assert product == {"fp16"}
    assert {k.dtype for k in kernels(builder, fp8) if k.is_matrix} == {"fp8_e4m3"}


def test_a_float_zero_point_is_ignored(builder):
    case = case_of("zero-point.float")
    bad, good = (kernels(builder, model) for model in (case.bad, case.good[0]))
    assert [(k.type, k.tactic, len(k.constants)) for k in bad] == [
        (k.type, k.tactic, len(k.constants)) for k in good
    ]


def test_an_fp32_product_runs_in_fp16(builder):
    case = case_of("product.narrowed")
    assert [k.dtype for k in kernels(builder, case.bad) if k.is_matrix] == ["fp16"]
    assert [k.dtype for k in kernels(builder, case.good[1]) if k.is_matrix] == ["fp32"]


def test_a_spelled_out_norm_is_said_to_overflow(builder):
    case = case_of("norm.half-sums")
    assert any("may cause overflow" in w for w in builder.build(case.bad).warnings)
    assert not builder.build(case.good[0]).warnings


# ---- the lists of operators, name by name


@pytest.fixture(scope="module")
def measured():
    """The script that writes the list, and what the installed parser knows."""
    spec = importlib.util.spec_from_file_location("parser_operators", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script, script.known(load_api("tensorrt-rtx").trt)


def test_the_list_of_operators_is_what_the_parser_knows(measured):
    script, names = measured
    assert set(names) == KNOWN
    assert script.FILE.read_text() == script.text(VERSION, names)
    assert CONTRIBUTED | PLUGIN_ONLY <= KNOWN and "Frobnicate" not in KNOWN


def test_every_operator_outside_of_the_list_is_refused(builder):
    """Those that ONNX has and the parser lacks, each as one node."""
    schemas = onnx.defs.get_all_schemas_with_history()
    lacking = {s.name for s in schemas if s.domain == ""} - KNOWN
    assert len(lacking) > 40
    for name in sorted(lacking):
        node = onnx.helper.make_node(name, ["x"], ["y"])
        outcome = builder.build(graph_of(node))
        assert not outcome.built and outcome.stage == "parse", name
        assert "operator.unknown" in fired(graph_of(node)), name


def graph_of(node):
    edges = [onnx.helper.make_tensor_value_info(n, 1, [2, 8]) for n in "xy"]
    made = onnx.helper.make_graph([node], "g", edges[:1], edges[1:])
    opsets = [onnx.helper.make_opsetid("", 24)]
    return onnx.helper.make_model(made, opset_imports=opsets, ir_version=11).SerializeToString()


def test_bodies_are_looked_into(builder):
    """A function body with an operator that the parser lacks is found once it is inlined; full TensorRT may have plugins."""
    body = [onnx.helper.make_node("Frobnicate", ["a"], ["b"], name="inner")]
    function = onnx.helper.make_function(
        "other", "F", ["a"], ["b"], body, [onnx.helper.make_opsetid("", 24)]
    )
    call = onnx.helper.make_node("F", ["x"], ["y"], domain="other", name="call")
    model = graph([call], X8, {"y": X8["x"]}, functions=[function])
    assert not fired(model) and "operator.unknown" in fired(legal(model, "SM89"))
    assert not builder.build(model).built
    assert not fired(legal(called(1, "mul"), "SM89"))
    plugin = graph_of(onnx.helper.make_node("Anything", ["x"], ["y"], domain="trt"))
    full = Scene(model_of(plugin), Target("tensorrt", "sm90"))
    assert not list(spots(full, TABLES["tensorrt"].rows)) and "operator.unknown" in fired(plugin)


CHECKED = [(t, op) for t, names in REFUSED.items() for op in sorted(names)]
ATTRIBUTES = {
    **{key: {"kernel_shape": [2, 2]} for key in ("LpPool", "MaxPool")},
    **{key: {"blocksize": 2} for key in ("DepthToSpace", "SpaceToDepth")},
    "Concat": {"axis": 0}, "Split": {"num_outputs": 1, "axis": 0}, "Einsum": {"equation": "abcd->abdc"},
}  # fmt: skip
NUMBERS = {
    "Expand": [2, 4, 4, 4], "Tile": [1, 1, 1, 1], "Pad": [0] * 8, "Squeeze": [0], "Unsqueeze": [0], "Gather": [0],
    "GatherND": [0],
}  # fmt: skip


def of_type(op, dtype):
    """`op` on a tensor (twice, where it takes two) of that type, with its sizes and indices as constants."""
    weights = {"n": np.array(NUMBERS[op])} if op in NUMBERS else {}
    schema = onnx.defs.get_schema(op, 24)
    edge = (int(dtype), [1 if op == "Squeeze" else 2, 4, 4, 4])
    ins = dict.fromkeys("xz"[: 1 if weights else max(schema.min_input, 2 * (op in ("Max", "Min")))], edge)  # fmt: skip
    result = schema.outputs[0].type_str
    y = int(dtype) if result == schema.inputs[0].type_str else 9 if "bool" in result else 7
    return one(op, ins, (y, None), weights, **ATTRIBUTES.get(op, {}))


@pytest.mark.parametrize(("dtype", "op"), CHECKED, ids=[f"{op}-{t.name}" for t, op in CHECKED])
def test_an_operator_lacks_the_type(dtype, op, builder):
    """And has fp32, which ONNX allows it as well."""
    assert "operator.type" in fired(of_type(op, dtype))
    outcome = builder.build(of_type(op, dtype))
    assert not outcome.built, outcome.words
    allowed = 9 if op in ("And", "Or", "Xor") else 1
    outcome = builder.build(of_type(op, allowed))
    assert "operator.type" not in fired(of_type(op, allowed)) and outcome.built, outcome.words


def test_an_operator_of_another_domain_is_taken_by_its_name(builder):
    swish = one("Swish", {"x": ("fp16", ["b", 8])}, ("fp16", ["b", 8]))
    assert builder.build(swish).built and not fired(swish)


def test_rows_say_something(builder):
    for row in ROWS:
        assert row.when and row.happens and row.fix and row.operator, row.id
        assert row.legalized is False or row.severity != "note", row.id


def test_clean_graphs_are_clean():
    for model in (plain, linear("fp16"), attention("bf16")):
        assert not fired(model)
    assert not fired(graph([onnx.helper.make_node("Relu", ["x"], ["y"])], X8, {"y": X8["x"]}))


def test_a_rotary_cache_behind_undeclared_shapes_is_built_once_legalised(builder):
    """cos and sin as an exporter leaves them: batch 1, by nodes without a declared shape."""
    nodes = [
        onnx.helper.make_node("Cos", ["angles"], ["c"]),
        onnx.helper.make_node("Sin", ["angles"], ["s"]),
        onnx.helper.make_node("RotaryEmbedding", ["x", "c", "s"], ["y"], name="rope"),
    ]
    dims = {"x": ["b", 2, "s", 64], "angles": [1, "s", 32], "y": None}
    infos = [onnx.helper.make_tensor_value_info(n, 1, d) for n, d in dims.items()]
    made = onnx.helper.make_graph(nodes, "g", infos[:2], infos[2:])
    opsets = [onnx.helper.make_opsetid("", 24)]
    model = onnx.helper.make_model(made, opset_imports=opsets, ir_version=11).SerializeToString()
    refused = builder.build(model)
    assert not refused.built and "same batch size" in refused.words
    assert builder.build(legal(model, "SM89")).built
