"""Packing alone: the same numbers, one product for each shared input, and fewer kernels in the real engine."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from engine_graphs import HIDDEN, Chain, write

from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.target import Target
from blockforge.export.fusions import FuseOptions, fuse_file
from blockforge.export.linears.packed_file import pack_file
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.evaluator import TypedEvaluator

BLOCKS = 3


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """(source, packed, what was packed) of a chain of FP16 blocks."""
    folder = tmp_path_factory.mktemp("chain")
    source = write(Chain("fp16", blocks=BLOCKS).build(), folder, "source.onnx")
    return source, folder / "packed.onnx", pack_file(source, folder / "packed.onnx")


def test_the_numbers_stay(chain):
    source, packed, _ = chain
    x = torch.randn(2, 7, HIDDEN, generator=torch.Generator().manual_seed(0)).half()
    before, after = (TypedEvaluator(p).run({"hidden_states": x}).outputs for p in (source, packed))
    for name, expected in before.items():
        assert torch.equal(
            after[name], expected
        )  # each column is the same sum of the same products
    sessions = [onnxruntime.InferenceSession(str(p)) for p in (source, packed)]
    one, two = (s.run(None, {"hidden_states": x.numpy()})[0].astype(np.float64) for s in sessions)
    assert np.linalg.norm(one - two) <= 2**-9 * np.linalg.norm(one)


def test_one_product_for_each_shared_input(chain):
    source, packed, parts = chain
    count = [
        sum(n.op_type == "MatMul" for n in onnx.load(p, load_external_data=False).graph.node)
        for p in (source, packed)
    ]
    assert count == [7 * BLOCKS, 4 * BLOCKS]
    assert sorted(map(len, parts.values())) == [2] * BLOCKS + [3] * BLOCKS
    assert pack_file(packed, packed.with_name("again.onnx")) == {}  # nothing is left to pack


def test_a_quantised_weight_is_left_alone(chain, tmp_path):
    source, _, _ = chain
    options = QuantizeOptions(format="fp8-weights", rounding="nearest", pack=False)
    quantize_file(source, tmp_path / "q.onnx", [], options)
    assert pack_file(tmp_path / "q.onnx", tmp_path / "p.onnx") == {}


def test_fuse_packs_where_it_is_asked_to(chain, tmp_path):
    source, _, parts = chain
    found = fuse_file(source, tmp_path / "fused.onnx", FuseOptions(pack=True))
    assert found.packed == parts and found.verified and found.nodes_after < found.nodes_before
    assert found.to_json()["packed"] == {k: list(v) for k, v in parts.items()}
    left = fuse_file(source, tmp_path / "plain.onnx", FuseOptions())
    assert left.packed == {} and left.nodes_after > found.nodes_after


def test_the_engine_has_fewer_kernels(chain, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    source, packed, _ = chain
    profile = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}
    found = []
    for path in (source, packed):
        target = Target.parse("tensorrt-rtx:sm120")
        request = CompileRequest(path, target, profile, tmp_path, num_blocks=BLOCKS)
        found.append(compile_engine(request).kernels_per_block)
    assert found[1] == 10 < found[0]
