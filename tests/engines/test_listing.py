"""The `Layers:` listing: recorded ones read whole, and nothing that does not fit is skipped."""

import pytest

from blockforge.core.errors import BuildError
from blockforge.engines.kernel import TensorInfo
from blockforge.engines.listing import kernels_from_listing

LINE = (
    "Name: {name}, LayerType: gemm, Inputs: [ {{ Name: x, Dimensions: [-1,4], Strides: [4,1], StrideOrder: [1,0], "
    "Datatype: Half, Format: (Linear) Row major linear format }}], Constants: [], Outputs: [], TacticName: t, "
    "StreamId: 0, Metadata: {metadata}"
)


def listing(*lines):
    return "Layers:\n" + "".join(f"{line}\n" for line in lines) + "\nI/O Tensors:\n Name: x\n"


@pytest.mark.parametrize("name", ["fp16_sm89", "fp8_sm120", "if_sm89", "cache_sm89"])
def test_every_line_is_one_kernel(listings, name):
    text = listings[name].split("\n\n")[0]
    kernels = kernels_from_listing(listings[name], "engine")
    assert [k.name for k in kernels] == [
        line.split(", LayerType")[0].removeprefix("Name: ") for line in text.split("\n")[1:]
    ]


def test_a_kernel_carries_what_its_line_says(listings):
    kernels = kernels_from_listing(listings["fp16_sm89"], "engine")
    (qkv,) = (k for k in kernels if "layers.1.self_attn.q_proj/MatMul" in k.nodes)
    assert qkv.type == "gemm"
    assert qkv.nodes == tuple(f"layers.1.self_attn.{n}_proj/MatMul" for n in "vkq")
    assert [(t.dtype, t.dims) for t in qkv.inputs] == [("fp16", (-1, 64))]
    assert [(t.dtype, t.dims) for t in qkv.outputs] == [("fp16", (-1, 128))]
    assert [(t.dtype, t.dims) for t in qkv.constants] == [
        ("fp16", (64, 128)),
        ("fp32", (1,)),
        ("fp32", (1,)),
    ]
    assert qkv.tactic == "__myelin_CASK_STUB"


def test_node_names_may_hold_brackets_and_commas():
    metadata = "[ONNX Layer: a[0], b/MatMul]\x1f[ONNX Layer: c]"
    (kernel,) = kernels_from_listing(listing(LINE.format(name="a[0], b", metadata=metadata)), "e")
    assert kernel.name == "a[0], b"
    assert kernel.nodes == ("a[0], b/MatMul", "c")
    assert kernel.inputs == (TensorInfo("x", "fp16", (-1, 4)),)


def test_layers_of_tensorrt_itself_have_another_form(listings):
    first, *_ = kernels_from_listing(listings["cache_sm89"], "engine")
    assert (first.name, first.type) == ("[ShapeHostToDeviceCopy 0]", "ShapeHostToDevice")
    assert first.outputs == (TensorInfo("m.self_attn/Attention/Gather", "int64", ()),)


GOOD = LINE.format(name="k", metadata="")
DAMAGE = {
    "no listing": "Engine generation completed",
    "two listings": listing(GOOD) + listing(GOOD),
    "nothing in it": listing(),
    "another layer form": listing(GOOD, "Kernel: k, Type: gemm"),
    "another key order": listing(
        GOOD.replace("TacticName: t, StreamId: 0", "StreamId: 0, TacticName: t")
    ),
    "another tensor form": listing(GOOD.replace("Datatype: Half", "Type: Half")),
    "other metadata": listing(LINE.format(name="k", metadata="[TensorRT Layer: x]")),
}


@pytest.mark.parametrize("text", DAMAGE.values(), ids=DAMAGE)
def test_what_does_not_fit_is_an_error(text):
    with pytest.raises(BuildError, match="cannot be read"):
        kernels_from_listing(text, "engine")


def test_near_miss_the_plain_listing_reads():
    assert len(kernels_from_listing(listing(GOOD), "engine")) == 1


def test_a_node_inside_if_keeps_its_own_name():
    nested = "m/mm | then (then_branch) | m/If (If) | else (else_branch) | If_2 (If)"
    metadata = (
        f"[ONNX Layer: m/sm | then (then_branch) | m/If (If)]\x1f[ONNX Layer: {nested}]"
        "\x1f[ONNX Layer: a | b (If)]"
    )
    (kernel,) = kernels_from_listing(listing(LINE.format(name="k", metadata=metadata)), "e")
    assert kernel.nodes == ("m/sm", "m/mm", "a | b (If)")
