"""What must not be called a divergence: rounding of narrow types, other names, fused operators, other order."""

import onnx_ir as ir
import pytest
import torch
from torch import nn

from blockforge.export.fusions import FuseOptions, fuse_file
from blockforge.graph.io import load_model
from blockforge.validate.divergence import GraphSide, diff, open_graph

from .faults import FAULTS
from .planted import attribute, fp8_activation, node


@pytest.mark.parametrize("name", ["llama", "gemma", "bert", "qwen"])
def test_an_honest_graph_is_equal_to_its_pytorch_module(name, module, exports):
    """fp16, fp16, fp32 and bf16 graphs of four families against float64."""
    found = diff(module(name), open_graph(exports(name)))
    assert found.equal, found.first
    assert found.compared >= 8
    assert max(e.over for e in found.errors.values()) < 0.6


def test_an_honest_fp8_activation_is_equal(clean, planted_in):
    """The scale holds the largest number: what is left is the grid of e4m3."""
    edit = fp8_activation("layers.0.mlp.down_proj/MatMul", 16.0)
    assert diff(clean("llama"), planted_in("llama", edit)).equal


def test_the_pytorch_module_is_equal_to_the_graph(module, exports):
    """The graph as the reference: its operators say what the module's values should be."""
    assert diff(open_graph(exports("llama")), module("llama")).equal


def renamed(model: ir.Model) -> ir.Model:
    """Values, weights and nodes named by numbers; inputs keep theirs."""
    for number, value in enumerate(list(model.graph.initializers.values())):
        value.name = f"w{number}"
    number = 0
    for each in model.graph:
        each.name = f"n{number}"
        for value in each.outputs:
            number += 1
            value.name = f"val_{number}"
    return model


def test_a_graph_of_other_names_is_mapped_by_position(clean):
    model = renamed(clean("llama").model)
    found = diff(clean("llama"), GraphSide("renamed", model))
    assert found.equal, found.first
    assert found.mapping == "positions"
    assert found.compared == found.values


@pytest.mark.parametrize("name", ["wrong scale", "swapped gate and up", "eps"])
def test_a_fault_is_found_in_a_graph_of_other_names(name, clean, planted_in):
    fault = FAULTS[name]
    side = planted_in("llama", fault.edit)
    culprit = node(side.model, fault.node)
    renamed(side.model)
    first = diff(clean("llama"), side).first
    assert (first.node, first.cause.kind) == (culprit.name, fault.cause)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(32) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = Norm(), Norm()
        self.gate, self.up = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return self.last(x + self.down(nn.functional.silu(self.gate(h)) * self.up(h)))


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """(spelled out by torch.onnx, fused by `blockforge fuse`)."""
    folder = tmp_path_factory.mktemp("fused")
    torch.manual_seed(3)
    module, example = Gated().eval(), torch.randn(2, 12, 32)
    plain, made = folder / "plain.onnx", folder / "fused.onnx"
    torch.onnx.export(module, (example,), plain, dynamo=True, opset_version=18, verbose=False)
    report = fuse_file(plain, made, FuseOptions(ops="standard"))
    assert report is not None
    operators = {n.op_type for n in load_model(made).graph}
    assert "RMSNormalization" in operators
    return plain, made


def test_a_fused_graph_is_equal_to_the_graph_it_came_from(fused):
    plain, made = fused
    for pair in ((plain, made), (made, plain)):
        found = diff(*map(open_graph, pair))
        assert found.equal, found.first
        assert found.compared >= 5


def test_a_fault_in_the_fused_graph_is_found_against_the_spelled_out_one(fused):
    plain, made = fused
    side = open_graph(made)
    norms = [n for n in side.model.graph if n.op_type == "RMSNormalization"]
    attribute(str(norms[1].name), epsilon=0.1)(side.model)
    first = diff(open_graph(plain), side).first
    assert (first.node, first.cause.kind) == (norms[1].name, "epsilon")
