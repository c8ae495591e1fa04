"""Each row of the preflight table against TensorRT-RTX's real parser and builder: what we forbid it refuses or spoils,
what we allow it builds, and what we call legalised is built once legalised."""

import onnx
import onnx_ir as ir
import pytest
from builder_rig import Builder
from preflight_cases import CASES, X8, attention, fp8, graph, linear, one, plain

from blockforge.core.errors import BuildError
from blockforge.engines.legalize import legalize
from blockforge.engines.listing import kernels_from_listing
from blockforge.engines.preflight import ROWS, TABLES
from blockforge.engines.preflight.operators import CONTRIBUTED, PLUGIN_ONLY, UNKNOWN
from blockforge.engines.preflight.scene import Scene
from blockforge.engines.preflight.table import installed_version, spots
from blockforge.engines.target import Target

pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
TABLE = TABLES["tensorrt-rtx"]
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


def known_operators():
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(logger).create_network(0)
    parser = trt.OnnxParser(network, logger)
    return parser.supports_operator, (logger, network, parser)


def test_unknown_operators_are_exactly_those_that_the_parser_lacks():
    supports, _alive = known_operators()
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = {
        s.name
        for s in schemas
        if s.domain in ("", "ai.onnx.preview") and s.name != "SimplifiedLayerNormalization"
    }
    assert {name for name in standard if not supports(name)} == UNKNOWN
    assert all(supports(name) for name in CONTRIBUTED | PLUGIN_ONLY)


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
