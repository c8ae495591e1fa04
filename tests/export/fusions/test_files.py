"""fuse_file: options, names, metadata, errors, and nothing written where something is wrong."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.export.fusions import FuseOptions, fuse_file

from .equal import fused
from .graphs import graph, norm, operators

BLOCK = """block (float[b, s, 8] x, float[b, s, 8] skip) => (float[b, s, 8] y, float[b, s, 8] total)
<float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
    total = Add(x, skip)
    y = RMSNormalization<axis = -1, epsilon = 0.00001>(total, w)
}"""


def test_a_file_is_fused_and_keeps_its_names(tmp_path):
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(norm(), source)
    report = fuse_file(source, target)
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    (node,) = model.graph.node
    assert list(node.output) == ["y"]
    replaced = {p.key: p.value for p in node.metadata_props}["blockforge.replaced"]
    assert replaced == "n0, n1, n2, n3, n4, n5"
    written = json.loads(json.dumps(report.to_json()))
    assert {k: written[k] for k in ("rms", "ln", "glu", "rope", "attn", "act")} == {
        "rms": 1, "ln": 0, "glu": 0, "rope": 0, "attn": 0, "act": 0,
    }  # fmt: skip
    assert "RMSNormalization replaces 6 nodes at n5" in report.explain()


def test_only_and_keep():
    model = norm()
    for options in (
        FuseOptions(only=frozenset({"ln"})),
        FuseOptions(keep=frozenset({"rms"})),
        FuseOptions(keep=frozenset({"n5"})),
    ):
        after, report = fused(model, options)
        assert operators(after) == operators(model)
        assert report.counts["rms"] == 0
    assert operators(fused(model, FuseOptions(only=frozenset({"rms"})))[0]) == ["RMSNormalization"]


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        ("standard", ["Add", "RMSNormalization"]),
        ("blockforge", ["blockforge::AddRMSNorm"]),
        ("ort", ["com.microsoft::SkipSimplifiedLayerNormalization"]),
    ],
)
def test_residual_additions_join_for_those_who_run_it(ops, expected):
    after, report = fused(graph(BLOCK, opset=24), FuseOptions(ops=ops))
    assert operators(after) == expected
    assert [o.name for o in after.graph.output] == ["y", "total"]
    assert report.counts["rms"] == 1


@pytest.mark.parametrize("ops", ["blockforge", "ort"])
def test_a_joined_norm_computes_the_same(ops):
    import onnxruntime as ort

    model = graph(BLOCK, opset=24)
    after, _ = fused(model, FuseOptions(ops=ops))
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=(2, 3, 8)).astype(np.float32) for n in ("x", "skip")}
    results = [
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, feeds
        )
        for m in (model, after)
    ]
    for before, now in zip(*results, strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-6)  # eight float32 roundings


def test_wrong_input_is_one_clear_error(tmp_path):
    target = tmp_path / "out.onnx"
    with pytest.raises(UsageError, match="no such file"):
        fuse_file(tmp_path / "none.onnx", target)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(norm().SerializeToString()[:-40])
    with pytest.raises(ArtefactError):
        fuse_file(damaged, target)
    onnx.save(norm(), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match="Known: rms, ln"):
        fuse_file(tmp_path / "in.onnx", target, FuseOptions(only=frozenset({"rmsnorm"})))
    assert not target.exists()


def test_subgraphs_are_fused_too():
    inner = norm().graph
    branch = onnx.helper.make_graph(
        list(inner.node),
        "then",
        [],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        list(inner.initializer),
    )
    other = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y2"])],
        "else",
        [],
        [onnx.helper.make_tensor_value_info("y2", 1, None)],
    )
    node = onnx.helper.make_node("If", ["c"], ["out"], then_branch=branch, else_branch=other)
    infos = [onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])]
    infos += [onnx.helper.make_tensor_value_info(n, 1, ["b", "s", 8]) for n in ("x", "z", "out")]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", infos[:3], infos[3:]),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
    )
    loaded = ir.from_proto(model)
    from blockforge.export.fusions import fuse

    assert fuse(loaded).counts["rms"] == 1
