"""Attention in every form against a float64 loop over single queries, and the alignment of is_causal."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from attention_cases import CASES, Case, model, oracle, packed, run, tensors
from onnx.reference import ReferenceEvaluator

from blockforge.core.errors import UsageError
from blockforge.graph.operators import attention as kernel

# fp32 products over at most 16 numbers and one softmax: far below this, and far above float64's own error.
RTOL, ATOL = 2e-5, 2e-6


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
