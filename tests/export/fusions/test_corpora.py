"""Whole corpora: ONNX's own definitions of the operators, and the exporters' graphs where they are at hand."""

import collections
import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from blockforge.export.fusions import fuse

from .equal import fused

CORPUS = Path(os.environ.get("BLOCKFORGE_CORPUS", "no-corpus"))
# Where the definition of an operator is written out: pattern and the number of cases that must be recognised.
DEFINED = {"rms_normalization": "rms", "gelu": "act", "swiglu": "glu", "rotary_embedding": "rope"}


@pytest.fixture(scope="module")
def definitions():
    from onnx.backend.test.case.node import collect_testcases

    return [c for c in collect_testcases(None) if "expanded" in c.name and c.model is not None]


@pytest.mark.slow
def test_the_definitions_in_the_onnx_specification_fuse(definitions):
    missed = collections.Counter()
    for case in definitions:
        pattern = next(
            (p for name, p in DEFINED.items() if case.name.startswith(f"test_{name}")), None
        )
        after, report = fused(case.model)
        if pattern is not None and not report.counts[pattern]:
            missed[pattern] += 1
        if not report.fused:
            continue
        inputs, _ = case.data_sets[0]
        feeds = {i.name: v for i, v in zip(case.model.graph.input, inputs, strict=False)}
        for before, now in zip(
            *(ReferenceEvaluator(m).run(None, feeds) for m in (case.model, after)), strict=True
        ):
            assert before.dtype == now.dtype
            # the same float32 products in another order; in 16 bits a few roundings of the type
            close = 1e-5 if before.dtype != np.float16 else 5e-3
            np.testing.assert_allclose(
                now.astype("f8"), before.astype("f8"), atol=close, rtol=close, err_msg=case.name
            )
    assert not missed


@pytest.mark.slow
@pytest.mark.skipif(
    not (CORPUS / "truth.json").is_file(),
    reason="BLOCKFORGE_CORPUS names no folder of exported graphs",
)
def test_every_operator_of_the_corpus_is_found():
    truth = json.loads((CORPUS / "truth.json").read_text())
    for name, entry in truth.items():
        model = ir.load(CORPUS / name)
        report = fuse(model)
        assert report.counts == {p: entry[p] for p in report.counts}, name
        onnx.checker.check_model(ir.to_proto(model), full_check=True)


def chain(blocks: int) -> onnx.ModelProto:
    """A chain of norms, gates and residual additions, 14 nodes each."""
    nodes, value = [], "x"
    for i in range(blocks):
        p = f"b{i}_"
        for op, inputs, output in (
            ("Mul", [value, value], "square"), ("ReduceMean", [p + "square", "last"], "mean"),
            ("Add", [p + "mean", "eps"], "shifted"), ("Sqrt", [p + "shifted"], "root"),
            ("Reciprocal", [p + "root"], "inverse"), ("Mul", [value, p + "inverse"], "unit"),
            ("Mul", [p + "unit", "w"], "y"), ("MatMul", [p + "y", "m"], "gate"), ("MatMul", [p + "y", "n"], "up"),
            ("Sigmoid", [p + "gate"], "sigmoid"), ("Mul", [p + "gate", p + "sigmoid"], "act"),
            ("Mul", [p + "act", p + "up"], "product"), ("MatMul", [p + "product", "m"], "down"),
            ("Add", [value, p + "down"], "out"),
        ):  # fmt: skip
            nodes.append(onnx.helper.make_node(op, inputs, [p + output], name=p + op + output))
        value = p + "out"
    constants = {
        "last": np.array([-1]), "eps": np.float32(1e-5), "w": np.ones(8, np.float32), "m": np.eye(8, dtype=np.float32), "n": np.ones((8, 8), np.float32),
    }  # fmt: skip
    infos = [onnx.helper.make_tensor_value_info(n, 1, ["b", "s", 8]) for n in ("x", value)]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        infos[:1],
        infos[1:],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10
    )


def fused_counting(model):
    """The report, and how many functions, Python's and C's, ran: work that no other process on the machine adds to."""
    count = 0

    def count_one(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        report = fuse(model)
    finally:
        sys.setprofile(None)
    return report, count


@pytest.mark.slow
def test_time_grows_with_the_nodes():
    """7,000 nodes; four times the nodes are four times the work, not sixteen."""
    work = []
    for blocks in (125, 500):
        report, count = fused_counting(ir.from_proto(chain(blocks)))
        assert report.counts["rms"] == report.counts["glu"] == blocks
        work.append(count)
    assert work[1] < 4.5 * work[0], work
