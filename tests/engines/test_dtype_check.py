"""Which products run wider than declared: judged on real plans and on kernels made up for each guard."""

import numpy as np
import onnx_ir as ir
import pytest
from engine_graphs import HIDDEN, Chain, model_of, write
from onnx import TensorProto, helper

from blockforge.core.dtypes import DType
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.dtype_check import Offence, check_dtypes
from blockforge.engines.kernel import Kernel, TensorInfo
from blockforge.engines.layers_file import load_layers
from blockforge.engines.target import Target

RTX = Target.parse("tensorrt-rtx:sm89")
PROFILE = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}


def planned(model, folder, profile=PROFILE):
    request = CompileRequest(write(model, folder), RTX, profile, folder)
    record = compile_engine(request)
    return record, load_layers(folder / record.layers).kernels


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_16_bit_chain_runs_in_16_bit(dtype, tmp_path):
    model = Chain(dtype, blocks=2).build()
    record, kernels = planned(model, tmp_path)
    assert record.violations == ()
    assert record.dtypes == {dtype: record.kernels}
    assert check_dtypes(kernels, ir.from_proto(model), DType(dtype)) == ()


def test_an_fp32_chain_is_no_offence_by_itself_but_is_as_an_fp16_engine(tmp_path):
    model = Chain("fp32", blocks=1).build()
    record, kernels = planned(model, tmp_path)
    assert record.violations == ()
    offences = check_dtypes(kernels, ir.from_proto(model), DType.FP16)
    products = [n.name for n in model.graph.node if n.op_type in ("MatMul", "Attention")]
    assert len(products) == 8 and {o.node for o in offences} == set(products)
    assert {(o.expected, o.actual) for o in offences} == {("fp16", "fp32")}


def linear(form):
    """y = x @ w with fp16 edges: "fp16", "fp32" (an Exp in fp32 before it), or "between casts" (nothing but the casts)."""
    weight = np.full((HIDDEN, HIDDEN), 1 / 3, np.float16 if form == "fp16" else np.float32)
    product = [
        helper.make_node(
            "MatMul", ["x" if form == "fp16" else "wide", "w"], ["product"], name="proj/MatMul"
        )
    ]
    if form != "fp16":
        product.insert(
            0, helper.make_node("Cast", ["x"], ["wide"], name="Cast", to=TensorProto.FLOAT)
        )
    if form == "fp32":
        product[0].output[0] = "cast"
        product.insert(1, helper.make_node("Exp", ["cast"], ["wide"], name="Exp"))
    product.append(
        helper.make_node("Cast", ["product"], ["y"], name="Cast_1", to=TensorProto.FLOAT16)
    )
    edge = ("fp16", ["b", HIDDEN])
    return model_of(product, {"x": edge}, {"y": edge}, {"w": weight})


ROWS = {"x": ShapeRange((1, HIDDEN), (4, HIDDEN), (8, HIDDEN))}
PROJ = ir.from_proto(linear("fp16"))


def test_a_16_bit_product_that_was_built_in_fp32_is_found(tmp_path):
    _, wide = planned(linear("fp32"), tmp_path, ROWS)
    (offence,) = check_dtypes(wide, PROJ)
    assert (offence.node, offence.expected, offence.actual) == ("proj/MatMul", "fp16", "fp32")
    record, _ = planned(linear("fp32"), tmp_path, ROWS)
    assert record.violations == ()  # its own graph declares fp32
    record, _ = planned(linear("fp16"), tmp_path, ROWS)
    assert record.violations == ()


def test_an_fp32_product_that_tensorrt_narrows_is_found(tmp_path):
    record, _ = planned(linear("between casts"), tmp_path, ROWS)
    (violation,) = record.violations
    assert violation.startswith("proj/MatMul: fp16 in kernel") and violation.endswith("not fp32")


def tensor(dtype, *dims):
    return TensorInfo("t", dtype, dims)


def gemm(dtype, node, type="gemm"):
    return Kernel(
        "gemm_0",
        type,
        (tensor(dtype, -1, 8),),
        (tensor(dtype, 8, 8),),
        (tensor("fp16", -1, 8),),
        nodes=(node,),
    )


def test_a_node_that_no_kernel_names_is_not_taken_on_trust():
    (offence,) = check_dtypes([gemm("fp16", "other/MatMul")], PROJ)
    assert offence == Offence("proj/MatMul", "fp16", "", None)
    assert "no planned kernel" in str(offence)


def test_legalised_nodes_are_found_by_prefix_and_not_by_chance():
    assert check_dtypes([gemm("fp16", "proj/MatMul/MatMul")], PROJ) == ()
    assert check_dtypes([gemm("fp16", "proj/MatMul_1")], PROJ) != ()


@pytest.mark.parametrize(
    ("kernel", "offends"),
    [
        (gemm("fp32", "proj/MatMul"), True),
        (gemm("fp16", "proj/MatMul"), False),
        (
            gemm("fp32", "proj/MatMul", type="kgen"),
            False,
        ),  # an fp16 output: a fused cast, sums in fp32
        (
            Kernel(
                "k",
                "kgen",
                (tensor("fp32", -1, 8),),
                (),
                (tensor("fp32", -1, 8),),
                nodes=("proj/MatMul",),
            ),
            True,
        ),
        (
            gemm("fp8_e4m3", "proj/MatMul"),
            False,
        ),  # narrower than declared is another check's matter
    ],
)
def test_what_counts_as_running_in_fp32(kernel, offends):
    assert bool(check_dtypes([kernel], PROJ)) == offends


def test_an_fp32_copy_beside_the_product_is_no_offence():
    copy = Kernel(
        "k", "kgen", (tensor("fp32", -1, 8),), (), (tensor("fp32", -1, 8),), nodes=("proj/MatMul",)
    )
    assert check_dtypes([copy, gemm("fp16", "proj/MatMul")], PROJ) == ()
    assert check_dtypes([copy, gemm("fp32", "proj/MatMul")], PROJ) != ()


def test_casts_fused_into_a_generated_kernel_are_no_offence():
    """Angles in fp32 between an integer position and fp16 cosines: nothing of it is seen at the edges."""
    angles = Kernel(
        "k", "kgen", (tensor("int64", -1),), (), (tensor("fp16", -1, 8),), nodes=("proj/MatMul",)
    )
    declared_fp32 = ir.from_proto(linear("fp32"))
    assert check_dtypes([angles], declared_fp32) == ()
    assert check_dtypes([gemm("fp16", "proj/MatMul")], declared_fp32) != ()


def test_norm_statistics_in_fp32_are_no_offence(tmp_path):
    """The near miss: RMSNormalization(stash_type=1) computes its sum in fp32 inside an fp16 kernel."""
    record, kernels = planned(Chain("fp16", blocks=1).build(), tmp_path)
    norms = [k for k in kernels if any("RMSNormalization" in n for n in k.nodes)]
    assert norms and all("Cast" in k.name for k in norms)  # it does cast inside
    assert record.violations == ()
