"""Forms of Attention, a float64 oracle for them, and how to run one."""

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import TensorProto, helper

from blockforge.graph.evaluator import Evaluation, TypedEvaluator


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
) -> Evaluation:
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
