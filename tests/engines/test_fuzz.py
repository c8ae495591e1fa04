"""Damaged files, a few hundred of them: a report or a clear error each, soon and in little memory."""

import importlib.util
import time
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from blockforge.core.errors import ArtefactError
from blockforge.engines.preflight import preflight
from blockforge.engines.target import Target

RTX = Target.parse("tensorrt-rtx:sm89")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzz_reader.py"


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz_reader", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_damaged_files_are_reports_or_clear_errors(fuzz, tmp_path):
    import random

    rng, base = random.Random(1), fuzz.seeds()
    outcomes = [fuzz.look(fuzz.mutated(rng.choice(base), rng), tmp_path) for _ in range(300)]
    assert {"report", "ArtefactError"} <= set(outcomes)


def test_the_seed_itself_is_a_clean_report(fuzz, tmp_path):
    path = tmp_path / "seed.onnx"
    path.write_bytes(fuzz.seeds()[0])
    assert preflight(path, RTX).passed


def look(graph, folder):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return preflight(path, RTX)


def edge(name, dims=(8,)):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))


def test_a_hundred_thousand_nodes(tmp_path):
    count = 100_000
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(count)]
    start = time.process_time()
    report = look(helper.make_graph(nodes, "g", [edge("v0")], [edge(f"v{count}")]), tmp_path)
    assert report.passed and time.process_time() - start < 60


def test_huge_dimensions(tmp_path):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**40])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    report = look(helper.make_graph([node], "g", [edge("x")], [edge("y")], [weight]), tmp_path)
    assert {f.rule for f in report.failures} == {"data.tensor"}


def test_deep_nesting(tmp_path):
    """Sixty branches inside each other: more than protobuf reads."""
    inner = helper.make_graph([helper.make_node("Relu", ["x"], ["y0"])], "g0", [], [edge("y0")])
    for depth in range(1, 60):
        node = helper.make_node("If", ["c"], [f"y{depth}"], then_branch=inner)
        inner = helper.make_graph([node], f"g{depth}", [], [edge(f"y{depth}")])
    inner.input.append(edge("x"))
    with pytest.raises(ArtefactError):
        look(inner, tmp_path)
