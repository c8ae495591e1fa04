"""Legal forms that are reported as suspicious, and their innocent neighbours."""

import onnx_ir as ir
import pytest

from blockforge.graph.rules import SUSPICIONS
from blockforge.graph.spec import suspicious


def graph(body: str, opset: int = 24) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 11, opset_import: ["" : {opset}]> {body}')


ATTENTION = """g (float16[b, 2, {q}, 8] q, float16[b, 2, {k}, 8] k, float16[b, 2, {k}, 8] v{more}) => (float16[] y)
    {{ y = Attention<is_causal = {causal}>(q, k, v{given}) }}"""


def attention(q="s", k="s", causal=1, more="", given="") -> ir.Model:
    return graph(ATTENTION.format(q=q, k=k, causal=causal, more=more, given=given))


SUSPECTS = {
    "half angles": (graph("g (float16[n] a) => (float16[n] y) { y = Cos(a) }"), "angles", "its angles 'a' are fp16"),
    "bf16 angles": (graph("g (bfloat16[n] a) => (bfloat16[n] y) { y = Sin(a) }"), "angles", "its angles 'a' are bf16"),
    "causal over more keys": (attention(k="t"), "causal offset", "for s queries and t keys"),
    "causal over fixed lengths": (attention(q=3, k=8), "causal offset", "for 3 queries and 8 keys"),
    "half sums": (
        graph("g (float16[n, 8] a) => (float16[n] y) { y = ReduceMean<keepdims = 0>(a) }"), "half sums", "'a' in fp16"
    ),
    "rotary cache of batch 1": (
        graph("g (float[b, 2, s, 8] x, float[1, s, 4] c, float[1, s, 4] d) => (float[] y) { y = RotaryEmbedding(x, c, d) }"),
        "rotary batch",
        "cos and sin have batch 1",
    ),
}  # fmt: skip
INNOCENT = {
    "fp32 angles": graph("g (float[n] a) => (float[n] y) { y = Cos(a) }"),
    "causal square": attention(),
    "not causal": attention(k="t", causal=0),
    "causal with past": attention(
        k="t", more=", float16[b, 2, p, 8] pk, float16[b, 2, p, 8] pv", given=", , pk, pv"
    ),
    "causal with lengths": attention(k="t", more=", int64[b] n", given=", , , , n"),
    "fp32 sums": graph("g (float[n, 8] a) => (float[n] y) { y = ReduceMean<keepdims = 0>(a) }"),
    "rotary cache of the batch": graph(
        "g (float[b, 2, s, 8] x, float[b, s, 4] c, float[b, s, 4] d) => (float[] y) { y = RotaryEmbedding(x, c, d) }"
    ),
    "everything of batch 1": graph(
        "g (float[1, 2, s, 8] x, float[1, s, 4] c, float[1, s, 4] d) => (float[] y) { y = RotaryEmbedding(x, c, d) }"
    ),
}


@pytest.mark.parametrize(("model", "rule", "words"), SUSPECTS.values(), ids=SUSPECTS)
def test_suspicions(model, rule, words):
    (suspicion,) = suspicious(model)
    assert suspicion.rule == rule
    assert words in str(suspicion)


@pytest.mark.parametrize("model", INNOCENT.values(), ids=INNOCENT)
def test_near_misses_of_suspicions(model):
    assert suspicious(model) == []


def test_every_suspicion_is_tested():
    assert {rule for _, rule, _ in SUSPECTS.values()} == {rule.name for rule in SUSPICIONS}
