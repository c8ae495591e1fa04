"""Epilogues of a whole chain of blocks: every norm and gate is folded, no bit changes, and plugins can take them."""

import numpy as np
import pytest
import torch
from engine_graphs import HIDDEN, Chain, write
from quantize_graphs import numbers

from blockforge.core.errors import UsageError
from blockforge.engines.plugin_nodes import choose_plugins, mark_plugins
from blockforge.engines.session import Session
from blockforge.engines.target import Target
from blockforge.export.quantize.check import check_quantized
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model
from blockforge.graph.spec import check_graph

BLOCKS = 2
PLAIN = QuantizeOptions(rounding="nearest")
FOLDED = QuantizeOptions(rounding="nearest", epilogues=True)
UNSEEN = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(scope="module", params=["fp16", "bf16"])
def pair(request, tmp_path_factory):
    """(type, the quantised chain, the same with its epilogues folded, the report of the latter)."""
    folder = tmp_path_factory.mktemp(request.param)
    source = write(Chain(request.param, blocks=BLOCKS).build(), folder, "source.onnx")
    feeds = [{"hidden_states": numbers(2, 16, HIDDEN, seed=1, dtype=UNSEEN[request.param])}]
    quantize_file(source, folder / "plain.onnx", feeds, PLAIN)
    report = quantize_file(source, folder / "folded.onnx", feeds, FOLDED)
    return request.param, folder / "plain.onnx", folder / "folded.onnx", report


def outputs(path, dtype, seed=3):
    return TypedEvaluator(path).run(
        {"hidden_states": numbers(2, 9, HIDDEN, seed=seed, dtype=UNSEEN[dtype])}
    ).outputs["output"]  # fmt: skip


def operators(model):
    return [n.op_type for n in model.graph]


def test_every_norm_and_gate_of_a_chain_is_folded(pair):
    """The first norm reads the input, every other one a sum; gate and up are halves of one product."""
    model = load_model(pair[2])
    check_graph(model)
    check_quantized(model)
    found = {"RMSNormQuantize": 1, "AddRMSNormQuantize": 2 * BLOCKS - 1, "SwiGLUPackedQuantize": BLOCKS}  # fmt: skip
    assert pair[3].epilogues == found and pair[3].notes == ()
    kept = operators(model)
    assert {name: kept.count(name) for name in found} == found
    assert kept.count("RMSNormalization") == 0 and kept.count("QuantizeLinear") == BLOCKS
    assert kept.count("Add") == 1 and {name for _, name, _ in model.functions} == set(found)


def test_not_a_bit_changes(pair):
    dtype, plain, folded, _ = pair
    for seed in (3, 4):
        assert torch.equal(outputs(plain, dtype, seed), outputs(folded, dtype, seed))


def test_onnxruntime_runs_the_bodies(pair):
    dtype, plain, folded, _ = pair
    if dtype == "bf16":
        pytest.skip("ONNX Runtime has no bf16 kernels on a CPU")
    x = numbers(2, 9, HIDDEN, seed=3, dtype=torch.float16).numpy()
    found = []
    for path in (plain, folded):
        with Session(path, target="onnxruntime:cpu") as session:
            found.append(session.run({"hidden_states": x})["output"])
    assert np.array_equal(found[0], found[1])


def test_folding_again_changes_nothing(pair, tmp_path):
    report = quantize_file(pair[2], tmp_path / "again.onnx", [], FOLDED)
    assert report.already and report.epilogues == {}
    assert operators(load_model(tmp_path / "again.onnx")) == operators(load_model(pair[2]))


def test_a_graph_quantised_before_is_folded(pair, tmp_path):
    report = quantize_file(pair[1], tmp_path / "later.onnx", [], FOLDED)
    assert report.already and report.epilogues == pair[3].epilogues
    assert torch.equal(outputs(tmp_path / "later.onnx", pair[0]), outputs(pair[2], pair[0]))


def test_full_tensorrt_gets_plugin_calls_with_every_attribute(pair):
    target = Target.parse("tensorrt:sm90")
    model = load_model(pair[2])
    choices = choose_plugins(model, target, tuple(pair[3].epilogues))
    marked = mark_plugins(model, choices)
    assert all(c.plugin for c in choices) and not marked.functions
    node = next(n for n in marked.graph if n.op_type == "AddRMSNormQuantize")
    held = {
        name: node.attributes[name].value
        for name in ("epsilon", "epsilon_outside", "weight_offset")
    }
    assert held == {"epsilon": pytest.approx(1e-5), "epsilon_outside": 0.0, "weight_offset": 0.0}
    assert [v.name for v in node.outputs] == ["layers.0.post_attention_layernorm/quantized/codes", "layers.0/attended"]  # fmt: skip


@pytest.mark.parametrize("form", ["fp8-weights", "int4-weights"])
def test_formats_without_activations_are_refused(form):
    with pytest.raises(UsageError, match="epilogues with format"):
        QuantizeOptions(format=form, epilogues=True)
