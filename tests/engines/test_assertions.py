"""Demands on a plan, against engines that were really built: packed and separate projections, and broken ones."""

import numpy as np
import pytest
from engine_graphs import HIDDEN, INNER, Chain, write

from blockforge.core.errors import UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.assertions import (
    KINDS,
    Demands,
    check_demands,
    check_fused,
    check_kernels_per_block,
    check_required_dtypes,
)
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import load_layers
from blockforge.engines.target import Target
from blockforge.graph.io import load_model

PROFILE = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}
BLOCKS = 3


class Packed(Chain):
    """Gate and up as one product, split behind it; and the activation spelled out as Sigmoid, Mul, Mul."""

    def block(self, x, index, positions):
        end = super().block(x, index, positions)
        m = f"layers.{index}.mlp"
        names = {f"{m}.gate_proj", f"{m}.up_proj"}
        dropped = [n for n in self.nodes if n.output[0] in names or n.op_type == "SwiGLU"]
        source = next(n for n in dropped if n.op_type == "MatMul").input[0]
        at = min(self.nodes.index(n) for n in dropped)
        rest = self.nodes[max(self.nodes.index(n) for n in dropped) + 1 :]
        self.weights = [w for w in self.weights if w.name.removesuffix(".weight") not in names]
        self.nodes = self.nodes[:at]
        both = self.linear(source, f"{m}.gate_up_proj", HIDDEN, 2 * INNER)
        gate, up = f"{m}/gate", f"{m}/up"
        split = self.node("Split", [both], gate, m, axis=-1, num_outputs=2)
        self.nodes[-1].output.append(up)
        assert split == gate
        squashed = self.node("Sigmoid", [gate], f"{m}/sigmoid", m)
        swished = self.node("Mul", [gate, squashed], f"{m}/swished", m)
        self.node("Mul", [swished, up], f"{m}/gated", m)
        self.nodes += rest
        return end


def built(chain, folder):
    """(planned kernels, graph, compile's record) of a chain, for tensorrt-rtx:sm89."""
    folder.mkdir(exist_ok=True)
    path = write(chain.build(), folder)
    request = CompileRequest(
        path, Target.parse("tensorrt-rtx:sm89"), PROFILE, folder, num_blocks=BLOCKS
    )
    record = compile_engine(request)
    return load_layers(folder / record.layers).kernels, load_model(path), record


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = {
        "fp16": Chain("fp16", blocks=BLOCKS),
        "packed": Packed("fp16", blocks=BLOCKS),
        "fp32": Chain("fp32", blocks=BLOCKS),
    }
    return {name: built(c, tmp_path_factory.mktemp(name)) for name, c in made.items()}


def test_kernels_per_block(engines):
    for name in engines:
        kernels, _, record = engines[name]
        assert not check_kernels_per_block(kernels, BLOCKS, record.kernels_per_block)
        (violation,) = check_kernels_per_block(kernels, BLOCKS, record.kernels_per_block - 1)
        assert len(violation.layers) == record.kernels_per_block
        assert f"{record.kernels_per_block:g}, in block 1" in str(violation)


def test_packed_projections_cost_no_more_kernels(engines):
    assert engines["packed"][2].kernels_per_block <= engines["fp16"][2].kernels_per_block


def test_without_blocks_the_demand_is_not_met(engines):
    kernels, _, _ = engines["fp16"]
    assert "no kernel belongs" in str(check_kernels_per_block(kernels, 0, 99)[0])


@pytest.mark.parametrize("name", ["fp16", "packed"])
def test_a_good_engine_is_fused(name, engines):
    kernels, model, _ = engines[name]
    assert not check_fused(kernels, model, KINDS)


def test_fp32_attention_is_not_fused_and_every_node_is_named(engines):
    kernels, model, _ = engines["fp32"]
    (violation,) = check_fused(kernels, model, ["attention"])
    assert violation.found == "3 of 3 are not"
    assert all(
        layer.startswith(f"layers.{i}.self_attn/Attention (")
        for i, layer in enumerate(violation.layers)
    )


def test_a_norm_in_two_kernels_is_not_fused(engines):
    kernels, model, _ = engines["fp16"]
    norm = next(k for k in kernels if "layers.1.input_layernorm/RMSNormalization" in k.nodes)
    (violation,) = check_fused([*kernels, norm], model, ["norm"])
    assert violation.found == "1 of 6 are not"
    assert violation.layers[0].startswith("layers.1.input_layernorm/RMSNormalization (")


def test_an_operator_without_kernel_or_in_primitives_is_not_fused(engines):
    kernels, model, _ = engines["fp16"]
    left = [k for k in kernels if not any("Rotary" in n for n in k.nodes)]
    (violation,) = check_fused(left, model, ["rope"])
    assert "no kernel names it" in violation.layers[0]
    model = model.clone()
    for node in model.graph:
        if node.op_type == "RotaryEmbedding":
            node.op_type = "Identity"
    (violation,) = check_fused(kernels, model, ["rope"])
    assert "spells it out" in violation.found


def test_products_in_a_type(engines):
    kernels, _, _ = engines["fp16"]
    assert not check_required_dtypes(kernels, {"gemm": "fp16", "attention": "fp16"})
    (violation,) = check_required_dtypes(kernels, {"gemm": "fp8"})
    matrix = [k for k in kernels if k.is_matrix]
    assert violation.found == f"{len(matrix)} of {len(matrix)} compute in fp16"
    assert len(violation.layers) == len(matrix)
    spared = [k for k in kernels if any(n.startswith("layers.1.") for n in k.nodes)]
    (fewer,) = check_required_dtypes(kernels, {"gemm": "fp8"}, ["layers.1."])
    assert len(fewer.layers) == len(matrix) - sum(k.is_matrix for k in spared)


def test_no_attention_kernel_is_a_violation(engines):
    kernels, _, _ = engines["fp32"]
    (violation,) = check_required_dtypes(kernels, {"attention": "fp16"})
    assert "no attention kernel" in violation.found


def test_all_demands_at_once(engines):
    kernels, model, record = engines["fp16"]
    met = Demands(record.kernels_per_block, KINDS, {"gemm": "fp16"})
    assert not check_demands(kernels, model, BLOCKS, met)
    missed = Demands(1, ("attention",), {"gemm": "fp32"})
    assert len(check_demands(kernels, model, BLOCKS, missed)) == 2


@pytest.mark.parametrize(
    "demands", [Demands(require_fused=("nrom",)), Demands(require_dtype={"gem": "fp8"})]
)
def test_an_unknown_demand_is_an_error_that_lists_what_exists(demands, engines):
    kernels, model, _ = engines["fp16"]
    with pytest.raises(UsageError, match=r"Known: (norm|gemm)"):
        check_demands(kernels, model, BLOCKS, demands)


def test_numbers_of_the_rig_are_those_of_the_chain(engines):
    """The packed graph is the other one with its weights side by side, not another model."""
    model = engines["packed"][1]
    shapes = {
        n: tuple(v.shape.numpy()) for n, v in model.graph.initializers.items() if "gate_up" in n
    }
    assert set(shapes.values()) == {(HIDDEN, 2 * INNER)} and len(shapes) == BLOCKS
    assert np.isfinite(model.graph.initializers[next(iter(shapes))].const_value.numpy()).all()
