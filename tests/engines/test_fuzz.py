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


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_nodes_take_linear_time(count, tmp_path):
    """About 40 microseconds of processor time a node."""
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(count)]
    start = time.process_time()
    report = look(helper.make_graph(nodes, "g", [edge("v0")], [edge(f"v{count}")]), tmp_path)
    assert report.passed and time.process_time() - start < 3e-4 * count


def test_huge_dimensions(tmp_path):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**40])
    node = helper.make_node("Add", ["x", "w"], ["y"])
    report = look(helper.make_graph([node], "g", [edge("x")], [edge("y")], [weight]), tmp_path)
    assert {f.rule for f in report.failures} == {"data.tensor"}


def field(number, content):
    """A length-delimited field of protobuf's wire format."""
    size, length = len(content), bytearray()
    while True:
        length.append((size & 127) | (128 if size > 127 else 0))
        size >>= 7
        if not size:
            return bytes([number << 3 | 2]) + bytes(length) + content


def test_a_name_that_is_no_text_inside_a_function(tmp_path):
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, opsets)
    node = helper.make_node("F", ["x"], ["y"], domain="own")
    graph = helper.make_graph([node], "g", [edge("x")], [edge("y")])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11, functions=[function])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"Relu", b"Re\xe9u"))
    with pytest.raises(ArtefactError, match="no text"):
        preflight(path, RTX)


@pytest.mark.parametrize("depth", [200, 5000])
def test_deep_nesting(depth, tmp_path):
    """Graphs inside each other: GraphProto.node 1, NodeProto.attribute 5, AttributeProto.g 6; more than protobuf reads."""
    graph = b""
    for _ in range(depth):
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes([1 << 3, 11]) + field(7, graph) + field(8, b"\x10\x18"))
    with pytest.raises(ArtefactError):
        preflight(path, RTX)
