"""Rules that ONNX's node tests do not reach: 16-bit arithmetic, fp32 accumulation, odd types, old opsets."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.graph.operators import OPERATORS

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
UNARY = {
    "Exp": np.exp, "Sqrt": np.sqrt, "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Neg": np.negative, "Abs": np.abs, "Reciprocal": lambda x: 1 / x, "Sin": np.sin, "Cos": np.cos, "Log": np.log,
    "Swish": lambda x: x / (1 + np.exp(-x)), "Softplus": lambda x: np.logaddexp(x, 0), "Relu": lambda x: np.maximum(x, 0),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("operator", UNARY)
def test_every_half_through_a_function_rounds_once(evaluate, operator, name):
    """All finite patterns: half an ulp from float64, plus fp32's error of a few ulp of its own."""
    dtype = HALVES[name]
    x = torch.arange(2**16).to(torch.int16).view(dtype)
    x = x[torch.isfinite(x)]
    x = x[x.abs() < 1000] if operator in ("Sin", "Cos") else x
    body = f"g ({name}[N] x) => ({name}[N] y) {{ y = {operator}(x) }}"
    y = evaluate(body, {"x": x}).outputs["y"].double().numpy()
    expected = UNARY[operator](x.double().numpy())
    info = torch.finfo(dtype)
    usable = np.isfinite(expected) & (np.abs(expected) < info.max)
    relative = (info.eps / 2 + 2.0**-20) * np.abs(expected)
    # fp32's exp overflows where a sigmoid falls below its smallest normal number; sine and cosine near their
    # zeros are as exact as fp32's argument reduction
    absolute = info.tiny * info.eps / 2 + 2.0**-126 * (1 + np.abs(x.double().numpy()))
    tolerance = relative + absolute + 1e-7 * (operator in ("Sin", "Cos"))
    assert (np.abs(y - expected)[usable] <= tolerance[usable]).all()
    assert np.isnan(y[np.isnan(expected)]).all()


@pytest.mark.parametrize("name", HALVES)
def test_products_accumulate_in_fp32(evaluate, name):
    """1 + 2**-12 a thousand times: a 16-bit sum would stand still."""
    dtype = HALVES[name]
    a, b = torch.full((1, 4096), 1.0), torch.full((4096, 1), 2.0**-12)
    a[0, 0], b[0, 0] = 64.0, 1.0
    body = f"g ({name}[1, K] a, {name}[K, 1] b) => ({name}[1, 1] y, {name}[1, 1] z) {{ y = MatMul(a, b)  z = Gemm(a, b) }}"
    outputs = evaluate(body, {"a": a.to(dtype), "b": b.to(dtype)}).outputs
    expected = torch.tensor(64 + 4095 * 2.0**-12).to(dtype).item()
    assert expected != 64
    assert outputs["y"].item() == outputs["z"].item() == expected


@pytest.mark.parametrize("name", HALVES)
def test_matmul_is_one_rounding_from_float64(evaluate, name):
    dtype = HALVES[name]
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator).to(dtype) for s in ((3, 8, 128), (128, 16)))
    body = (
        f"g ({name}[3, 8, 128] a, {name}[128, 16] b) => ({name}[3, 8, 16] y) {{ y = MatMul(a, b) }}"
    )
    y = evaluate(body, {"a": a, "b": b}).outputs["y"]
    exact = a.double() @ b.double()
    bound = torch.finfo(dtype).eps / 2 * exact.abs() + 128 * 2.0**-24 * (
        a.double().abs() @ b.double().abs()
    )
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize(
    "name", ["float8e4m3fn", "uint16", "uint32", "uint64", "bool", "bfloat16", "int8"]
)
def test_elements_of_any_type_are_moved_bit_for_bit(evaluate, name):
    """Through reshape, transpose, gather, slice, concat, expand, pad and where."""
    torch_types = {"float8e4m3fn": torch.float8_e4m3fn, "bfloat16": torch.bfloat16}
    dtype = torch_types.get(name) or getattr(torch, name)
    raw = torch.arange(24, dtype=torch.uint8) * 5 + 1
    x = (
        (raw % 2 == 0)
        if name == "bool"
        else raw.view(dtype)
        if dtype.itemsize == 1
        else raw.to(torch.int64).to(dtype)
    )
    x = x.reshape(4, 6)
    body = f"""g ({name}[4, 6] x, bool[6, 6] c) => ({name}[6, 6] y) {{
        p = Constant<value_ints = [3, 1]>()  s = Constant<value_ints = [-1, 4]>()
        a = Constant<value_ints = [1]>()  z = Constant<value_ints = [0]>()  e = Constant<value_ints = [2]>()
        t = Transpose(x)  g1 = Gather<axis = 1>(t, p)  part = Slice(x, z, e, z)  q = Reshape(part, s)
        u = Unsqueeze(q, z)  v = Squeeze(u, z)  w = Concat<axis = 1>(t, g1)  y = Where(c, w, w) }}"""
    y = evaluate(body, {"x": x, "c": torch.ones(6, 6, dtype=torch.bool)}).outputs["y"]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize]
    columns = x.view(bits).T
    assert y.dtype == dtype
    assert torch.equal(y.view(bits), torch.cat([columns, columns[:, [3, 1]]], 1))


def test_unsigned_integers_compute(evaluate):
    body = "g (uint32[3] x, uint32[3] z) => (uint32[3] y, bool[3] g) { y = Sub(x, z)  g = Greater(x, z) }"
    x, z = torch.tensor([1, 2**31 + 5, 7]), torch.tensor([2, 5, 7])
    outputs = evaluate(body, {"x": x.to(torch.uint32), "z": z.to(torch.uint32)}).outputs
    assert outputs["y"].tolist() == [2**32 - 1, 2**31, 0]  # wraps
    assert outputs["g"].tolist() == [False, True, False]


def test_uint64_beyond_int64_is_refused_rather_than_wrong(evaluate):
    body = "g (uint64[1] x) => (uint64[1] y) { y = Max(x, x) }"
    with pytest.raises(UsageError, match=r"node 'Max_0'.*2\*\*63"):
        evaluate(body, {"x": torch.tensor([2**63], dtype=torch.uint64)})


def test_strings_are_refused(evaluate):
    body = 'g () => (string[1] y) { y = Constant<value_strings = ["a"]>() }'
    with pytest.raises(UsageError, match="value_strings is not supported"):
        evaluate(body, {})


def test_gather_out_of_range_names_the_index(evaluate):
    body = "g (float[3] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"
    assert (
        evaluate(body, {"x": torch.arange(3.0), "i": torch.tensor([-3])}).outputs["y"].item() == 0
    )
    for wrong in (3, -4):
        with pytest.raises(UsageError, match=f"index {wrong} into an axis of size 3"):
            evaluate(body, {"x": torch.arange(3.0), "i": torch.tensor([wrong])})


def test_a_cache_written_past_its_end_is_refused(evaluate):
    body = "g (float[1, 4, 2] c, float[1, 2, 2] u, int64[1] w) => (float[1, 4, 2] y) { y = TensorScatter<axis = 1>(c, u, w) }"
    feeds = {"c": torch.zeros(1, 4, 2), "u": torch.ones(1, 2, 2)}
    y = evaluate(body, feeds | {"w": torch.tensor([2])}).outputs["y"]
    assert y[0, :, 0].tolist() == [0, 0, 1, 1]
    with pytest.raises(UsageError, match="writes position 4 of a cache of 4"):
        evaluate(body, feeds | {"w": torch.tensor([3])})


OLD = {
    "axes as attributes": (9, "g (float[2, 1, 3] x) => (float[] y) { a = Squeeze<axes = [1]>(x)  b = ReduceSum<axes = [1], keepdims = 0>(a)  y = Unsqueeze<axes = [0]>(b) }"),
    "slice by attributes": (9, "g (float[2, 1, 3] x) => (float[] y) { y = Slice<axes = [2], starts = [-2], ends = [100]>(x) }"),
    "clip by attributes": (10, "g (float[2, 1, 3] x) => (float[] y) { y = Clip<min = -0.5, max = 0.5>(x) }"),
    "split by attribute": (11, "g (float[2, 1, 3] x) => (float[] y, float[] z) { y, z = Split<axis = 2, split = [1, 2]>(x) }"),
    "pad by attributes": (9, "g (float[2, 1, 3] x) => (float[] y) { y = Pad<pads = [0, 0, 1, 0, 0, 2], value = 7.0>(x) }"),
    "top k by attribute": (9, "g (float[2, 1, 3] x) => (float[] y, int64[] i) { y, i = TopK<k = 2>(x) }"),
    "softmax over flattened axes": (11, "g (float[2, 1, 3] x) => (float[] y) { y = Softmax<axis = 1>(x) }"),
    "reshape to -1 and 0": (13, "g (float[2, 1, 3] x) => (float[] y) { s = Constant<value_ints = [0, -1]>() y = Reshape(x, s) }"),
    "upsample": (9, "g (float[2, 1, 3] x) => (float[] y) { s = Constant<value_floats = [1.0, 1.0, 2.0]>() y = Upsample(x, s) }"),
    "dropout": (10, "g (float[2, 1, 3] x) => (float[] y) { y = Dropout<ratio = 0.5>(x) }"),
}  # fmt: skip


@pytest.mark.parametrize(("opset", "body"), OLD.values(), ids=OLD)
def test_old_opsets_equal_onnxruntime(evaluate, opset, body):
    x = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0))
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x.numpy()})
    for mine, theirs in zip(
        evaluate(body, {"x": x}, opset=opset).outputs.values(), expected, strict=True
    ):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6)


def test_registry_covers_onnx_but_for_the_named_rest():
    """Every standard operator of the newest opset is either known or listed in test_backend_nodes.UNKNOWN."""
    current = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    missing = {name for name in current if ("", name) not in OPERATORS}
    assert missing == {
        "ImageDecoder", "MaxRoiPool", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer",
    }  # fmt: skip
