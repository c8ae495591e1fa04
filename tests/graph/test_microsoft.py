"""Operators of ONNX Runtime's domain against ONNX Runtime itself, in fp32."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from blockforge.core.errors import UsageError

H = ', "com.microsoft" : 1'
CASES = {
    "simplified": (
        "g (float[2, 3, 16] x, float[16] w) => (float[] y) { y = SimplifiedLayerNormalization<axis = -1>(x, w) }"
    ),
    "skip rms": """g (float[2, 3, 16] x, float[2, 3, 16] s, float[16] w, float[16] b) => (float[] y, float[] t)
        { y, m, i, t = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 1e-3>(x, s, w, b) }""",
    "skip rms without bias": """g (float[2, 3, 16] x, float[2, 3, 16] s, float[16] w) => (float[] y)
        { y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 1e-3>(x, s, w) }""",
    "skip layer norm": """g (float[2, 3, 16] x, float[2, 3, 16] s, float[16] w, float[16] b, float[16] c) => (float[] y)
        { y = com.microsoft.SkipLayerNormalization<epsilon = 1e-3>(x, s, w, b, c) }""",
    "gelu": "g (float[2, 16] x) => (float[] y) { y = com.microsoft.Gelu(x) }",
    "bias gelu": "g (float[2, 16] x, float[16] b) => (float[] y) { y = com.microsoft.BiasGelu(x, b) }",
    "fast gelu": "g (float[2, 16] x, float[16] b) => (float[] y) { y = com.microsoft.FastGelu(x, b) }",
    "quick gelu": "g (float[2, 16] x) => (float[] y) { y = com.microsoft.QuickGelu<alpha = 1.2>(x) }",
    "product": """g (float[2, 5, 4] x, float[2, 3, 5] b) => (float[] y)
        { y = com.microsoft.FusedMatMul<transA = 1, transB = 1, alpha = 0.5>(x, b) }""",
    "rotary": """g (float[2, 3, 16] x, int64[2, 3] p, float[8, 4] c, float[8, 4] d) => (float[] y)
        { y = com.microsoft.RotaryEmbedding(x, p, c, d) }""",
    "rotary from an offset": """g (float[2, 2, 3, 8] x, int64[1] p, float[8, 4] c, float[8, 4] d) => (float[] y)
        { y = com.microsoft.RotaryEmbedding(x, p, c, d) }""",
    "rotary interleaved": """g (float[2, 3, 16] x, int64[2, 3] p, float[8, 4] c, float[8, 4] d) => (float[] y)
        { y = com.microsoft.RotaryEmbedding<interleaved = 1>(x, p, c, d) }""",
    "rotary of a part": """g (float[2, 3, 16] x, int64[2, 3] p, float[8, 2] c, float[8, 2] d) => (float[] y)
        { y = com.microsoft.RotaryEmbedding<rotary_embedding_dim = 4, num_heads = 2>(x, p, c, d) }""",
}


@pytest.mark.parametrize("body", CASES.values(), ids=CASES)
def test_equals_onnxruntime(evaluate, body):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20{H}]> {body}')
    generator = torch.Generator().manual_seed(0)
    feeds = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            feeds[value.name] = torch.randint(0, 5, shape, generator=generator)
        else:
            feeds[value.name] = torch.randn(shape, generator=generator)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {name: t.numpy() for name, t in feeds.items()})
    actual = evaluate(body, feeds, opset=20, domains=H).outputs
    for mine, theirs in zip(actual.values(), expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-5, atol=1e-6)


def test_results_without_a_schema_have_their_inputs_type(evaluate):
    body = (
        "g (float16[2, 16] x) => (float16[2, 16] y) { h = com.microsoft.QuickGelu(x)  y = Neg(h) }"
    )
    x = torch.randn(2, 16).half()
    y = evaluate(body, {"x": x}, domains=H).outputs["y"]
    assert torch.equal(
        y, -(x.double() * torch.sigmoid(float(np.float32(1.702)) * x.double())).half()
    )


def test_other_operators_of_the_domain_are_refused_by_name(evaluate):
    body = "g (float[2, 16] x) => (float[] y) { y = com.microsoft.GroupQueryAttention(x) }"
    with pytest.raises(UsageError, match=r"operator GroupQueryAttention of domain 'com.microsoft'"):
        evaluate(body, {"x": torch.zeros(2, 16)}, domains=H)
