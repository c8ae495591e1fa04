"""The proof after every file: a result that differs is thrown away, and a file that cannot be evaluated says so."""

import onnx
import onnx_ir as ir
import pytest

from blockforge.export.fusions import files, fuse_file
from blockforge.export.fusions.equality import compare

from .graphs import graph, norm, operators


def models(*changes: dict[str, str]) -> list[ir.Model]:
    return [ir.from_proto(norm(**c)) for c in changes]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"epsilon": "0.0001"}, "differs by"),  # seen in the row of small numbers
        ({"numerator": "z"}, "differs by"),
        ({"axis": "1"}, "differs by"),
        ({"epsilon": "0.0"}, "not finite"),  # seen in the row of zeros
        ({"root": "rms = Sqrt(mean)"}, "not finite"),
    ],
)
def test_a_difference_is_seen(change, words):
    compared = compare(*models({}, change))
    assert compared.shapes >= 1
    assert words in compared.fault
    assert bool(compared.fault) == bool(words)


def test_a_result_that_differs_is_thrown_away(tmp_path, monkeypatch):
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(norm(), source)
    honest = files.fuse

    def spoiled(model, options):
        report = honest(model, options)
        for node in model.graph:
            if node.op_type == "RMSNormalization":
                node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 1e-3)
        return report

    monkeypatch.setattr(files, "fuse", spoiled)
    report = fuse_file(source, target)
    assert any(n.startswith("left as it was: output 'y' differs") for n in report.notes)
    assert report.counts["rms"] == 0
    assert operators(onnx.load(target)) == operators(norm())


def test_a_file_is_verified_unless_it_cannot_be(tmp_path):
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(norm(), source)
    assert fuse_file(source, target).verified == 2
    assert fuse_file(source, target, verify=False).verified == 0
    strange = norm()
    strange.graph.node.add(op_type="Strange", domain="nobody", input=["y"], output=["other"])
    strange.opset_import.add(domain="nobody", version=1)
    onnx.save(strange, source)
    report = fuse_file(source, target)
    assert report.verified == 0
    assert "not verified" in report.notes[-1]


CHAIN = """chain (float[b, 2, s, 4] x, float[b, 2, s, 4] v, float[b, s] p) => (float[b, 2, s, 4] y)
<float[4] w = {1, 2, 3, 4}, float eps = {0.00001}, int64[1] last = {-1}, int64[2] at = {1, 3}, float[2] f = {1, 0.5}> {
    square = Mul(x, x)
    mean = ReduceMean(square, last)
    shifted = Add(mean, eps)
    root = Sqrt(shifted)
    unit = Div(x, root)
    q = Mul(unit, w)
    positions = Unsqueeze(p, at)
    angle = Mul(positions, f)
    c = Cos(angle)
    s_ = Sin(angle)
    a, b_ = Split <axis = -1, num_outputs = 2> (q)
    ac = Mul(a, c)
    bs = Mul(b_, s_)
    first = Sub(ac, bs)
    as_ = Mul(a, s_)
    bc = Mul(b_, c)
    second = Add(as_, bc)
    turned = Concat <axis = -1> (first, second)
    kt = Transpose <perm = [0, 1, 3, 2]> (turned)
    scores = MatMul(turned, kt)
    weights = Softmax <axis = -1> (scores)
    y = MatMul(weights, v)
}"""


def test_a_match_reads_what_the_match_before_it_wrote():
    """Norm, rotation and attention in a row: each is in the graph, and nothing of their spelling is left."""
    model = ir.from_proto(graph(CHAIN))
    report = files.fuse(model)
    left = {n.op_type for n in model.graph}
    assert report.counts == {"rms": 1, "ln": 0, "glu": 0, "rope": 1, "attn": 1, "act": 0}
    assert {"RMSNormalization", "RotaryEmbedding", "Attention"} <= left
    assert not {"Softmax", "Sqrt", "Sub", "MatMul"} & left
    assert compare(ir.from_proto(graph(CHAIN)), model) == compare(model, model)
