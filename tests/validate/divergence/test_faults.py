"""Every planted fault is found at its node, with its cause; the same graph without it is equal."""

import pytest

from blockforge.validate.divergence import DiffOptions, diff, open_source

from .conftest import SHAPES
from .faults import FAULTS
from .planted import attribute, look_ahead, rewire, swap, weight

A0, M0 = "layers.0.self_attn", "layers.0.mlp"


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_its_node_with_its_cause(name, clean, planted_in):
    fault = FAULTS[name]
    options = DiffOptions(shapes=SHAPES.get(fault.graph))
    found = diff(clean(fault.graph), planted_in(fault.graph, fault.edit), options)
    assert found.first is not None, "equal"
    assert (found.first.node, found.first.cause.kind) == (fault.node, fault.cause), found.first
    assert fault.words in found.first.cause.text
    assert found.first.cause.confirmed


@pytest.mark.parametrize("graph", sorted({f.graph for f in FAULTS.values()} - {"overflow", "loud"}))
def test_the_graph_without_the_fault_is_equal(graph, clean):
    found = diff(clean(graph), clean(graph), DiffOptions(shapes=SHAPES.get(graph)))
    assert found.equal, found.first
    assert found.compared == found.values
    assert max(e.over for e in found.errors.values()) < 0.6  # room below the limit, not just below


AGAINST_PYTORCH = {
    "mask": (look_ahead(f"{A0}/Attention", 1), f"{A0}/Attention", "mask", "off by 1 key"),
    "scale": (attribute(f"{A0}/Attention", scale=0.125), f"{A0}/Attention", "scale", "0.125"),
    "swap": (swap(f"{M0}/SwiGLU"), f"{M0}/SwiGLU", "swapped operands", "wrong order"),
    "keys": (
        rewire(f"{A0}/Attention", i1=f"{A0}.k_proj"),
        f"{A0}/Attention",
        "unrotated",
        "keys",
    ),
    "transposed": (
        weight(f"{A0}.q_proj.weight", lambda w: w.T),
        f"{A0}.q_proj/MatMul",
        "transposed weight",
        "transposed",
    ),
    "theta": (FAULTS["rope theta"].edit, "rotary_emb/Mul", "rope theta", "10000"),
    "residual": (
        FAULTS["residual skipped"].edit,
        "layers.0.post_attention_layernorm/RMSNormalization",
        "missing operand",
        "embed_tokens",
    ),
}


@pytest.fixture(scope="module")
def llama_module(module):
    return module("llama")


@pytest.mark.parametrize("name", AGAINST_PYTORCH)
def test_a_fault_is_found_against_the_pytorch_module(name, llama_module, planted_in):
    """Attention and rotation are one region there: the repair still names the node inside."""
    edit, node, cause, words = AGAINST_PYTORCH[name]
    found = diff(llama_module, planted_in("llama", edit))
    assert found.first is not None, "equal"
    if name != "residual":
        assert found.first.node == node
    assert found.first.cause.kind == cause
    assert words in found.first.cause.text


def test_a_shift_of_all_positions_means_nothing_to_the_pytorch_module(llama_module, planted_in):
    """Rotary positions are relative: only a graph whose positions are compared can show the shift."""
    found = diff(llama_module, planted_in("llama", FAULTS["position off by one"].edit))
    assert found.equal


def test_error_in_and_out_frame_the_fault(clean, planted_in):
    fault = FAULTS["wrong scale"]
    first = diff(clean("llama"), planted_in("llama", fault.edit)).first
    assert first.error_in < 0.002 < 0.1 < first.error_out


def test_a_difference_that_inputs_do_not_show_is_noted(clean, planted_in):
    """A softcap of 50 on scores near 1 changes nothing in fp16."""
    edit = attribute(f"{A0}/Attention", softcap=50.0)
    found = diff(clean("llama"), planted_in("llama", edit))
    assert found.equal
    assert any("softcap is 50.0, and None" in note for note in found.notes)


REPROS = ["eps", "swapped gate and up", "wrong scale", "fp16 norm", "one bad row", "fp8 scale"]


@pytest.mark.parametrize("name", REPROS)
def test_the_smallest_graph_shows_the_fault_alone(name, clean, planted_in, tmp_path):
    fault = FAULTS[name]
    options = DiffOptions(repro=tmp_path / "repro")
    found = diff(clean(fault.graph), planted_in(fault.graph, fault.edit), options)
    assert found.command == "blockforge diff repro.safetensors repro.onnx"
    files = sorted(p.name for p in found.repro.iterdir())
    assert files == ["README.md", "repro.onnx", "repro.safetensors"]
    graph = open_source(str(found.repro / "repro.onnx"))
    assert len(list(graph.model.graph)) == len(found.first.nodes)
    again = diff(open_source(str(found.repro / "repro.safetensors")), graph)
    assert again.first is not None
    assert again.first.value == found.first.value
    assert again.first.error.relative == pytest.approx(found.first.error.relative, rel=0.1)
