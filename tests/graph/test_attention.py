"""Attention in every form against a float64 loop over single queries, and the alignment of is_causal."""

from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import UsageError
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.operators import attention as kernel

# fp32 products over at most 16 numbers and one softmax: far below this, and far above float64's own error.
RTOL, ATOL = 2e-5, 2e-6


@dataclass(frozen=True)
class Case:
    """One form of the operator; sizes: batch, query heads, key heads, queries, new keys, head, value head."""

    sizes: tuple[int, ...] = (2, 4, 2, 3, 3, 8, 6)
    packed: bool = False
    past: int = 0
    mask: tuple[int, ...] | None = None  # shape of the mask
    boolean: bool = True
    nonpad: tuple[int, ...] | None = None
    causal: bool = False
    left: int = -1
    right: int = -1
    softcap: float = 0.0
    scale: float | None = None
    opset: int = 25


def tensors(case: Case, dtype=np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    b, n, g, s, t, d, e = case.sizes
    made = {
        "q": rng.normal(size=(b, n, s, d)),
        "k": rng.normal(size=(b, g, t, d)),
        "v": rng.normal(size=(b, g, t, e)),
    }
    if case.past:
        made["pk"] = rng.normal(size=(b, g, case.past, d))
        made["pv"] = rng.normal(size=(b, g, case.past, e))
    made = {name: (2 * x).astype(dtype) for name, x in made.items()}
    if case.mask is not None:
        seen = rng.random(case.mask) > 0.4
        made["m"] = (
            seen
            if case.boolean
            else np.where(seen, rng.normal(size=case.mask), -np.inf).astype(dtype)
        )
    if case.nonpad is not None:
        made["np"] = np.array(case.nonpad, np.int64)
    return made


def oracle(case: Case, x: dict[str, np.ndarray]) -> np.ndarray:
    """[B, N, S, E], one query at a time, in float64."""
    k, v = (
        np.concatenate([x[p], x[c]], 2) if p in x else x[c] for c, p in (("k", "pk"), ("v", "pv"))
    )
    q, k, v = (a.astype(np.float64) for a in (x["q"], k, v))
    b, n, s, d = q.shape
    g, t = k.shape[1:3]
    y = np.zeros((b, n, s, v.shape[3]))
    bias = np.zeros((b, n, s, t))
    if "m" in x:
        mask = x["m"]
        short = t - mask.shape[-1]
        fill = False if mask.dtype == bool else -np.inf
        mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, short)], constant_values=fill)
        bias = bias + (
            np.where(mask, 0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
        )
    for batch, head, i in np.ndindex(b, n, s):
        offset = case.past if case.nonpad is None else case.nonpad[batch] - s
        scores = np.empty(t)
        for j in range(t):
            score = q[batch, head, i] @ k[batch, head * g // n, j]
            score = score * (d**-0.5 if case.scale is None else case.scale)
            if case.softcap:
                score = case.softcap * np.tanh(score / case.softcap)
            seen = (
                (not case.causal or j <= i + offset)
                and (case.left < 0 or j >= i + offset - case.left)
                and (case.right < 0 or j <= i + offset + case.right)
                and (case.nonpad is None or j < case.nonpad[batch])
            )
            scores[j] = score + bias[batch, head, i, j] if seen else -np.inf
        if np.isneginf(scores).all():
            continue
        weights = np.exp(scores - scores.max())
        y[batch, head, i] = weights / weights.sum() @ v[batch, head * g // n]
    return y


def model(case: Case, elem=TensorProto.FLOAT, outputs: int = 1, **attributes) -> onnx.ModelProto:
    names = ["q", "k", "v", "m", "pk", "pv", "np"]
    present = tensors(case)
    inputs = [n if n in present else "" for n in names]
    while not inputs[-1]:
        inputs.pop()
    if case.packed:
        attributes |= {"q_num_heads": case.sizes[1], "kv_num_heads": case.sizes[2]}
    for key, value, absent in (
        ("is_causal", int(case.causal), 0),
        ("left_window_size", case.left, -1),
        ("right_window_size", case.right, -1),
        ("softcap", case.softcap, 0.0),
        ("scale", case.scale, None),
    ):
        if value != absent:
            attributes[key] = value
    node = helper.make_node("Attention", inputs, ["y", "nk", "nv", "qk"][:outputs], **attributes)
    kinds = {"m": TensorProto.BOOL if case.boolean else elem, "np": TensorProto.INT64}
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(n, kinds.get(n, elem), None) for n in inputs if n],
        [helper.make_tensor_value_info(n, elem, None) for n in node.output],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=11
    )


def packed(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def run(
    case: Case,
    x: dict[str, np.ndarray],
    dtype=torch.float32,
    outputs: int = 1,
    exact=False,
    **attributes,
):
    elem = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16, torch.float64: 11}[dtype]
    feeds = {}
    for name, array in x.items():
        array = packed(array) if case.packed and name in "qkv" else array
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        feeds[name] = tensor.to(dtype) if tensor.is_floating_point() and not exact else tensor
    evaluator = TypedEvaluator(ir.from_proto(model(case, elem, outputs, **attributes)), exact=exact)
    return evaluator.run(feeds)


CASES = {
    "plain": Case(),
    "packed heads": Case(packed=True),
    "one key head": Case(sizes=(1, 4, 1, 3, 5, 8, 8)),
    "cross lengths": Case(sizes=(2, 4, 2, 3, 7, 8, 8)),
    "causal square": Case(causal=True),
    "causal, more keys, no cache: top-left": Case(sizes=(2, 4, 2, 3, 7, 8, 8), causal=True),
    "causal with past: bottom-right": Case(causal=True, past=5),
    "packed, causal with past": Case(packed=True, causal=True, past=5),
    "causal with lengths: bottom-right": Case(
        sizes=(2, 4, 2, 3, 9, 8, 8), causal=True, nonpad=(5, 9)
    ),
    "lengths alone": Case(sizes=(2, 4, 2, 3, 9, 8, 8), nonpad=(5, 9)),
    "fewer keys than queries: empty rows": Case(
        sizes=(2, 4, 2, 5, 9, 8, 8), causal=True, nonpad=(3, 6)
    ),
    "mask [T]": Case(mask=(3,)),
    "mask [S, T]": Case(mask=(3, 3)),
    "mask [N, S, T]": Case(mask=(4, 3, 3)),
    "mask [B, 1, S, T]": Case(mask=(2, 1, 3, 3)),
    "mask [B, N, S, T]": Case(mask=(2, 4, 3, 3)),
    "mask [1, 1, 1, T]": Case(mask=(1, 1, 1, 3)),
    "float mask": Case(mask=(2, 1, 3, 3), boolean=False),
    "float mask [N, S, T], per-batch offsets": Case(
        sizes=(2, 4, 2, 3, 9, 8, 8), mask=(4, 3, 9), boolean=False, causal=True, nonpad=(5, 9)
    ),
    "short mask": Case(sizes=(2, 4, 2, 3, 9, 8, 8), mask=(3, 6), nonpad=(5, 6)),
    "short float mask": Case(sizes=(2, 4, 2, 3, 9, 8, 8), mask=(3, 6), boolean=False),
    "mask and causal": Case(mask=(2, 1, 3, 3), causal=True),
    "mask, causal, past": Case(mask=(3, 8), causal=True, past=5),
    "softcap": Case(softcap=1.5),
    "softcap under a mask": Case(softcap=0.5, mask=(3, 3)),
    "scale": Case(scale=0.7),
    "negative scale": Case(scale=-0.4),
    "window left": Case(sizes=(1, 2, 2, 6, 6, 8, 8), left=2, causal=True),
    "window both sides": Case(sizes=(1, 2, 2, 6, 6, 8, 8), left=2, right=1),
    "window with past": Case(sizes=(1, 2, 2, 3, 3, 8, 8), left=2, right=0, past=5),
    "window with lengths": Case(sizes=(2, 2, 2, 3, 9, 8, 8), left=1, causal=True, nonpad=(4, 9)),
    "one query, long past": Case(sizes=(1, 4, 2, 1, 1, 8, 8), causal=True, past=9),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_the_loop(case):
    x = tensors(case, np.float32)
    expected = oracle(case, x)
    y = run(case, x).outputs["y"].numpy()
    np.testing.assert_allclose(
        y, packed(expected) if case.packed else expected, rtol=RTOL, atol=ATOL
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_exact_equals_the_loop_to_float64(case):
    x = tensors(case)
    y = run(case, x, exact=True).outputs["y"].numpy()
    expected = oracle(replace(case, scale=case.scale and float(np.float32(case.scale))), x)
    np.testing.assert_allclose(
        y, packed(expected) if case.packed else expected, rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(
    "name", ["plain", "causal with past: bottom-right", "float mask", "softcap under a mask"]
)
def test_sixteen_bits_round_the_weights_and_the_result(name, dtype):
    """Weights of at most 1 rounded once (eps/2 of their sum) and the result rounded once (eps/2)."""
    case = CASES[name]
    x = tensors(case, np.float32)
    x = {
        n: (torch.from_numpy(a).to(dtype).float().numpy() if a.dtype.kind == "f" else a)
        for n, a in x.items()
    }
    y = run(case, x, dtype).outputs["y"].double().numpy()
    eps = torch.finfo(dtype).eps
    largest = np.abs(x["v"]).max()
    np.testing.assert_allclose(
        y, oracle(case, x), rtol=eps / 2 + RTOL, atol=eps / 2 * largest + ATOL
    )


def test_weights_are_rounded_before_they_meet_the_values():
    """Eleven equal keys: 1/11 in fp16, eleven times, is one step below 1; unrounded weights would give 1."""
    case = Case(sizes=(1, 1, 1, 1, 11, 8, 1))
    x = {"q": np.zeros((1, 1, 1, 8)), "k": np.zeros((1, 1, 11, 8)), "v": np.ones((1, 1, 11, 1))}
    expected = float(np.float16(11 * float(np.float16(1 / 11))))
    assert expected == 1 - 2.0**-11
    assert run(case, x, torch.float16).outputs["y"].item() == expected
    assert abs(run(case, x, torch.float16, exact=True).outputs["y"].item() - 1) < 1e-15


def test_sixteen_bit_scores_do_not_overflow():
    """Scores of 4e5 before the scale: a kernel that kept them in fp16 would give inf - inf."""
    case = Case(sizes=(1, 1, 1, 2, 2, 64, 8))
    x = tensors(case, np.float32) | {
        "q": np.full((1, 1, 2, 64), 80.0),
        "k": np.full((1, 1, 2, 64), 80.0),
    }
    result = run(case, x, torch.float16)
    np.testing.assert_allclose(result.outputs["y"].numpy(), oracle(case, x), rtol=2e-3)
    assert result.overflow == ()


def test_long_queries_go_in_parts(monkeypatch):
    for name in (
        "causal with past: bottom-right",
        "mask [B, N, S, T]",
        "window both sides",
        "mask [1, 1, 1, T]",
    ):
        case = CASES[name]
        x = tensors(case, np.float32)
        monkeypatch.setattr(kernel, "_MAX_SCORES", 1)  # one query at a time
        y = run(case, x).outputs["y"].numpy()
        np.testing.assert_allclose(y, oracle(case, x), rtol=RTOL, atol=ATOL)


def test_present_outputs_are_past_and_new():
    case = CASES["packed, causal with past"]
    x = tensors(case, np.float32)
    outputs = run(case, x, outputs=3).outputs
    np.testing.assert_array_equal(outputs["nk"], np.concatenate([x["pk"], x["k"]], 2))
    np.testing.assert_array_equal(outputs["nv"], np.concatenate([x["pv"], x["v"]], 2))


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_score_output(mode):
    """0 raw, 1 after softcap, 2 after the mask, 3 after softmax (zeros for a row without keys)."""
    case = Case(sizes=(1, 2, 1, 3, 3, 8, 8), softcap=1.5, mask=(3, 3), causal=True)
    x = tensors(case, np.float32)
    x["m"] = np.array([[False, True, True], [True, True, True], [True, False, True]])
    qk = run(case, x, outputs=4, qk_matmul_output_mode=mode).outputs["qk"].numpy()
    raw = x["q"].astype(float) @ x["k"].astype(float).swapaxes(2, 3) / 8**0.5
    capped = 1.5 * np.tanh(raw / 1.5)
    biased = np.where(x["m"] & np.tri(3, dtype=bool), capped, -np.inf)
    biased_safe = np.where(np.isneginf(biased).all(-1, keepdims=True), 0, biased)
    weights = np.exp(biased_safe) / np.exp(biased_safe).sum(-1, keepdims=True)
    weights[:, :, 0] = 0  # its only causal key is masked
    np.testing.assert_allclose(qk, (raw, capped, biased, weights)[mode], rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_decode_equals_prefill(opset):
    """Logits of step t with a cache are those of position t without: the check that catches a wrong offset."""
    steps, prompt = 3, 5
    whole = Case(sizes=(1, 4, 2, steps + prompt, steps + prompt, 8, 8), causal=True, opset=opset)
    x = tensors(whole, np.float32)
    full = run(whole, x).outputs["y"].numpy()[:, :, prompt:]
    cached = replace(whole, sizes=(1, 4, 2, steps, steps, 8, 8), past=prompt)
    split = {"q": x["q"][:, :, prompt:]}
    for new, old in (("k", "pk"), ("v", "pv")):
        split[new], split[old] = x[new][:, :, prompt:], x[new][:, :, :prompt]
    np.testing.assert_allclose(run(cached, split).outputs["y"].numpy(), full, rtol=RTOL, atol=ATOL)
    # The same keys handed over whole, without a past: top-left, so a wrong answer for a decoder.
    whole_keys = replace(whole, sizes=(1, 4, 2, steps, steps + prompt, 8, 8))
    top_left = run(whole_keys, x | {"q": split["q"]}).outputs["y"].numpy()
    assert np.abs(top_left - full).max() > 0.1
    if opset >= 24:
        lengths = replace(whole_keys, nonpad=(steps + prompt,))
        given = x | {"q": split["q"], "np": np.array([steps + prompt])}
        np.testing.assert_allclose(
            run(lengths, given).outputs["y"].numpy(), full, rtol=RTOL, atol=ATOL
        )


def test_a_fully_masked_row_is_zero_even_over_infinite_scores():
    case = Case(sizes=(1, 1, 1, 2, 2, 4, 4), mask=(2, 2))
    x = tensors(case, np.float32)
    x["m"] = np.array([[False, False], [True, True]])
    x["k"][0, 0, 0, 0] = np.inf
    y = run(case, x).outputs["y"].numpy()
    assert (y[0, 0, 0] == 0).all()


def test_agrees_with_the_onnx_reference_on_opset_23():
    case = replace(CASES["mask, causal, past"], opset=23)
    x = tensors(case, np.float32)
    expected = ReferenceEvaluator(model(case, outputs=3)).run(None, x)[0]
    np.testing.assert_allclose(run(case, x, outputs=3).outputs["y"], expected, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize(
    ("case", "attributes", "words"),
    [
        (Case(sizes=(1, 3, 2, 2, 2, 8, 8)), {}, "3 query heads over 2 key heads"),
        (Case(left=-2), {}, "left_window_size is -2"),
        (Case(past=3, nonpad=(3, 3)), {}, "exclude each other"),
    ],
)
def test_refusals_name_the_node_and_the_reason(case, attributes, words):
    with pytest.raises(UsageError, match=words):
        run(case, tensors(case, np.float32), **attributes)


def test_packed_heads_need_their_number():
    case = Case(sizes=(1, 2, 2, 3, 3, 8, 8))
    x = {n: packed(a) for n, a in tensors(case, np.float32).items()}
    with pytest.raises(UsageError, match="q_num_heads"):
        run(case, x)
