"""The drawing of a block: every kernel once and in order, every tensor from its writer to its readers, names as text."""

from dataclasses import replace

import pytest

from blockforge.engines.kernel import Kernel, TensorInfo
from blockforge.validate.report.flow import MOST, edges_of, flow_plots, rails_of, tensor_text
from blockforge.validate.report.view import BlockKernels

from .pages import HOSTILE, Page, engine, variant


def tensor(name, dtype="fp16", dims=(-1, -1, 576)):
    return TensorInfo(name, dtype, dims)


def kernel(name, reads, writes, *, kind="kgen", nodes=()):
    return Kernel(
        name=name,
        type=kind,
        inputs=tuple(map(tensor, reads)),
        outputs=tuple(map(tensor, writes)),
        nodes=tuple(nodes),
    )


BLOCK = (
    kernel("norm", ["x"], ["h"], nodes=["layers.1.input_layernorm/RMSNormalization"]),
    kernel("qkv", ["h"], ["q"], kind="gemm", nodes=["layers.1.self_attn.q_proj/MatMul"]),
    kernel("_gemm_mha_v2", ["q", "cos"], ["a"], nodes=["layers.1.self_attn/Attention"]),
    kernel("wait", [], [], kind="wait"),
    kernel("out", ["a", "x"], ["x"], kind="gemm", nodes=["layers.1/Add"]),
)


def block(kernels):
    return BlockKernels(variant(), engine(), 1, "builder", tuple(kernels))


def named(edges):
    return [(e.tensor.name, e.start, e.end) for e in edges]


def test_edges_lead_from_the_last_writer_to_each_reader():
    assert named(edges_of(BLOCK)) == [
        ("x", -1, 0),
        ("h", 0, 1),
        ("q", 1, 2),
        ("cos", -1, 2),
        ("a", 2, 4),
        ("x", -1, 4),  # the residual: what came in, not what this kernel writes
        ("x", 4, 5),
    ]


def test_a_tensor_written_twice_leaves_once():
    kernels = [kernel("a", ["x"], ["y"]), kernel("b", ["y"], ["y"])]
    assert named(edges_of(kernels)) == [("x", -1, 0), ("y", 0, 1), ("y", 1, 2)]


def test_rails_do_not_share_a_lane_where_they_run_side_by_side():
    rails = {rail.tensor.name: rail for rail in rails_of(edges_of(BLOCK))}
    ends = {name: (rail.start, rail.ends) for name, rail in rails.items()}
    assert ends == {"cos": (-1, (2,)), "x": (-1, (4,)), "a": (2, (4,))}
    assert rails["cos"].lane == rails["a"].lane == 0  # one ends where the other begins
    assert rails["x"].lane == 1


def test_a_tensor_with_several_readers_is_one_rail():
    kernels = [kernel("a", ["x"], ["y"])] + [kernel(f"k{n}", ["y"], [f"z{n}"]) for n in range(3)]
    (rail,) = [r for r in rails_of(edges_of(kernels)) if r.tensor.name == "y"]
    assert (rail.start, rail.ends) == (0, (2, 3))


def test_the_profile_of_onnxruntime_is_not_drawn():
    """Its tensors have no names: nothing says what flows where."""
    assert flow_plots(replace(block(BLOCK), source="profiler")) is None


def test_every_kernel_is_a_box_with_its_type_and_nodes():
    page = Page(str(flow_plots(block(BLOCK))))
    assert not page.open
    words = [text for text in page.text if text.strip()]
    for svg in range(2):  # wide, then narrow
        half = words[svg * len(words) // 2 : (svg + 1) * len(words) // 2]
        for number, each in enumerate(BLOCK, 1):
            assert f"{number}  {each.type}" in half
        assert "self_attn.q_proj/MatMul" in half and "fp16 [?×?×576]" in half
        assert half[0] == "block 1" and half[-1] == "next kernels"
    kinds = [a["class"] for a in page.all("g")]
    assert kinds[:5] == [f"kernel {k}" for k in ("other", "matrix", "attention", "idle", "matrix")]


def test_long_and_hostile_names_stay_inside_and_text():
    long = kernel("k", ["x"], ["y"], nodes=[f"layers.1.{'very' * 40}", HOSTILE, *"abcdefgh"])
    html = str(flow_plots(block([long])))
    page = Page(html)
    assert "<script" not in html and not page.all("script")
    assert max(len(text) for text in page.text) < 90
    assert "and 5 more" in page.text


@pytest.mark.parametrize(
    ("count", "drawn"), [(0, False), (1, True), (MOST, True), (MOST + 1, False)]
)
def test_a_list_that_is_too_long_is_left_to_the_table(count, drawn):
    found = flow_plots(block([kernel(f"k{n}", [f"t{n}"], [f"t{n + 1}"]) for n in range(count)]))
    assert (found is not None) == drawn


def test_tensors_read_as_type_and_shape():
    assert tensor_text(tensor("x")) == "fp16 [?×?×576]"
    assert tensor_text(TensorInfo("s", "fp32", ())) == "fp32 scalar"
