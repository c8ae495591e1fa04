"""No file that is read is written over, and an output that stands alone survives its source. Oracle: onnx, ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError, UsageError
from blockforge.export.fusions import FuseOptions, fuse_file
from blockforge.export.linears.packed_file import pack_file
from blockforge.export.precision import PrecisionOptions
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.export.search.cost import roofline
from blockforge.export.search.ranking import Budget
from blockforge.export.search.search import search_file
from blockforge.graph.io import load_model, save_model
from blockforge.graph.output import require_unread
from blockforge.quantization import quantize_graph

SIZE = 64
WEIGHT = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)


def small() -> onnx.ModelProto:
    """x w, two products with one weight under two names, and a table that a Constant holds."""
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["one"]),
        helper.make_node("Tanh", ["one"], ["bent"]),
        helper.make_node("MatMul", ["bent", "b.weight"], ["two"]),
        helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(WEIGHT[:1], "t")),
        helper.make_node("Add", ["two", "table"], ["y"]),
    ]
    edges = [helper.make_tensor_value_info(n, 1, ["batch", SIZE]) for n in "xy"]
    weights = [numpy_helper.from_array(WEIGHT, n) for n in ("a.weight", "b.weight")]
    graph = helper.make_graph(nodes, "g", edges[:1], edges[1:], weights)
    opsets = [helper.make_opsetid("", 23)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10)
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """g.onnx whose weights and table all lie in g.onnx.data, the one weight once."""
    path = tmp_path / "g.onnx"
    onnx.save(
        small(), path, save_as_external_data=True, location="g.onnx.data", size_threshold=0,
        convert_attribute=True,
    )  # fmt: skip
    proto = onnx.load(path, load_external_data=False)
    first, second = proto.graph.initializer
    del second.external_data[:]
    second.external_data.extend(first.external_data)
    path.write_bytes(proto.SerializeToString())
    return path


def result(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": WEIGHT[:3]})[0]


FEEDS = [{"x": torch.from_numpy(WEIGHT[i : i + 8])} for i in (0, 8)]
WAYS = {
    "fuse": lambda a, b: fuse_file(a, b, FuseOptions()),
    "pack": pack_file,
    "type": lambda a, b: quantize_graph(a, b, FEEDS, typing=PrecisionOptions(DType.FP16)),
    "quantize": lambda a, b: quantize_file(a, b, FEEDS, QuantizeOptions(format="int8-weights")),
    "search": lambda a, b: search_file(
        a, b, FEEDS[:1], FEEDS[1:], QuantizeOptions(format="int8-weights"), Budget(1.0, "error"),
        roofline("l4", 8),
    ),
    "copy": lambda a, b: quantize_file(a, b, [], QuantizeOptions("fp8-weights", keep=("*",))),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_the_output_survives_its_source_and_holds_each_weight_once(way, source):
    expected = result(source)
    output = source.with_name("out.onnx")
    WAYS[way](source, output)
    source.unlink()
    source.with_name("g.onnx.data").unlink()
    np.testing.assert_allclose(result(output), expected, atol=0.02 * np.abs(expected).max())
    assert sorted(p.name for p in source.parent.iterdir()) == ["out.onnx", "out.onnx.data"]
    bytes_of = {"type": 2, "quantize": 1, "search": 1}.get(way, 4)
    most = WEIGHT.size * bytes_of + 3 * 4096  # every tensor starts on a page
    if way not in ("quantize", "search"):  # there each product has codes and scales of its own
        assert source.with_name("out.onnx.data").stat().st_size <= most


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("g.onnx", "it is the graph that is read"),
        ("g.onnx.data", "it is the weights of g.onnx"),
        ("soft.onnx", "it is the graph that is read"),
        ("hard.onnx", "it is the graph that is read"),
        ("data.onnx", "its data file data.onnx.data is the weights of g.onnx"),
        ("sub/../g.onnx", "it is the graph that is read"),
    ],
)
def test_what_is_read_is_not_written(way, name, words, source, monkeypatch):
    folder = source.parent
    (folder / "sub").mkdir()
    (folder / "soft.onnx").symlink_to(source)
    (folder / "hard.onnx").hardlink_to(source)
    (folder / "data.onnx.data").symlink_to("g.onnx.data")
    monkeypatch.chdir(folder)
    before = {p: (p.read_bytes(), p.is_symlink()) for p in folder.iterdir() if p.is_file()}
    with pytest.raises(UsageError, match=words):
        WAYS[way](source, Path(name))
    assert before == {p: (p.read_bytes(), p.is_symlink()) for p in folder.iterdir() if p.is_file()}


def test_the_source_may_be_a_link_and_its_data_file_the_next_output_s(source, monkeypatch):
    monkeypatch.chdir(source.parent)
    Path("link.onnx").symlink_to("g.onnx")
    with pytest.raises(UsageError, match="it is the graph that is read"):
        require_unread("link.onnx", "g.onnx")
    source.with_name("g.onnx.data").rename("h.onnx.data")
    proto = onnx.load(source, load_external_data=False)
    for tensor in (*proto.graph.initializer, proto.graph.node[3].attribute[0].t):
        next(e for e in tensor.external_data if e.key == "location").value = "h.onnx.data"
    source.write_bytes(proto.SerializeToString())
    with pytest.raises(UsageError, match=r"its data file h.onnx.data is the weights of g.onnx"):
        require_unread("g.onnx", "h.onnx")
    for name in ("g.onnx", "x.onnx"):  # a graph may have the name of another's data file, too
        Path("x.onnx.data").write_bytes(source.read_bytes())
        with pytest.raises(UsageError, match="the graph that is read"):
            require_unread("x.onnx.data" if name == "x.onnx" else "g.onnx", name)
    with pytest.raises(UsageError, match="it is another input"):
        require_unread("g.onnx", "h.onnx.data", [Path("h.onnx.data")])


def test_near_misses_are_written(source):
    """A file that nothing reads is replaced, with its data; so is one that is no ONNX file."""
    for name in ("old.onnx", "old.onnx.data"):
        source.with_name(name).write_bytes(b"anything")
    require_unread(source, source.with_name("old.onnx"))
    fuse_file(source, source.with_name("old.onnx"))
    np.testing.assert_array_equal(result(source.with_name("old.onnx")), result(source))
    require_unread(source.with_name("none.onnx"), source)  # what is missing is said by who reads it
    source.with_name("bad.onnx").write_bytes(b"anything")
    with pytest.raises(ArtefactError, match="not an ONNX file"):
        require_unread(source.with_name("bad.onnx"), source)


def test_a_constant_in_external_data_moves_with_its_graph(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    loaded = load_model(source)
    before = [n.attributes["value"].as_tensor() for n in loaded.graph if n.op_type == "Constant"]
    save_model(loaded, folder / "copy.onnx")
    np.testing.assert_array_equal(result(folder / "copy.onnx"), result(source))
    after = [n.attributes["value"].as_tensor() for n in loaded.graph if n.op_type == "Constant"]
    assert before == after  # the model itself is left as it was
