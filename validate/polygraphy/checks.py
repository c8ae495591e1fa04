"""The rules that a bundle's outputs are held to, for `polygraphy run`: numpy and the standard library alone.

    polygraphy run fp16/model.onnx --onnxrt --load-inputs polygraphy/inputs.json \\
        --load-outputs polygraphy/outputs.json --compare-func-script polygraphy/checks.py:fp16

The names of this module are the bundle's variants (`fp16`: its check; `load_fp16`: its inputs, in the types
that the graph declares). Their limits are in limits.json, measured when the bundle was built: the root mean
square error of PyTorch in the same type, times what the recipe allows; a cosine; for logits the divergence of next
tokens, the share of greedy tokens and a text's perplexity. A missing, extra, empty or zero output, another type or
shape, NaN, an infinity, a changed integer or greedy token fail whatever the limits, and so does an output that no
limit judges.
"""

import base64
import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

REFERENCE = "float64 reference"  # the runner's name in outputs.json
DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3",
}


class Check:
    """Polygraphy's compare function for one variant: two IterationResults -> output name -> passed."""

    def __init__(self, limits: Mapping[str, Mapping[str, Any]]) -> None:
        self.limits = limits

    def __call__(self, one: Any, other: Any) -> "OrderedDict[str, bool]":
        """Hold the one that is not the reference against the reference; says on stdout what is wrong."""
        if REFERENCE not in (one.runner_name, other.runner_name):
            raise ValueError("neither is the reference: add --load-outputs polygraphy/outputs.json")
        if one.runner_name == REFERENCE:
            one, other = other, one
        found = faults(self.limits, dict(other.items()), dict(one.items()))
        for name, words in found.items():
            print(f"{name}: {'; '.join(words) or 'ok'}")
        return OrderedDict((name, not words) for name, words in found.items())


def faults(
    limits: Mapping[str, Mapping[str, Any]], truth: Mapping[str, Any], outputs: Mapping[str, Any]
) -> "OrderedDict[str, list[str]]":
    """What is wrong with each declared output, and with each that is not declared; nothing where it is right.

    limits: output -> {dtype, max_rms, greedy_gap, min_cosine, language}; None: the recipe sets no such limit. language:
    SHA-256 of a case's truth -> {case, text, max_kl, min_agreement, max_perplexity_ratio}.
    """
    found: OrderedDict[str, list[str]] = OrderedDict()
    for name, limit in limits.items():
        if name not in truth:
            found[name] = ["there is no reference for it"]
        elif name not in outputs:
            found[name] = ["missing"]
        else:
            found[name] = _faults(limit, _array(truth[name]), outputs[name])
    found.update((name, ["not declared"]) for name in outputs if name not in limits)
    return found


def _faults(limit: Mapping[str, Any], truth: np.ndarray, output: Any) -> list[str]:
    dtype = str(output.dtype).removeprefix("torch.")
    actual = _array(output)
    if DTYPES.get(dtype, dtype) != limit["dtype"]:
        return [f"{DTYPES.get(dtype, dtype)}, declared as {limit['dtype']}"]
    if actual.shape != truth.shape or not actual.size:
        return [f"shape {actual.shape}, the reference has {truth.shape}"]
    if truth.dtype.kind != "f":
        wrong = int((actual != truth).sum())
        return [f"{wrong} integers differ"] if wrong else []
    broken = int((~np.isfinite(actual)).sum())
    if broken:
        return [f"{broken} elements are not finite"]
    words = []
    if truth.any() and not actual.any():
        words.append("zero everywhere")
    if not judges(limit):
        words.append("no limit that the recipe sets can be measured on it: nothing to judge by")
    wide = actual.astype(np.float64)
    rms = float(np.sqrt(np.mean(np.square(wide - truth))))
    if limit["max_rms"] is not None and not rms <= limit["max_rms"]:
        words.append(f"rms error {rms:.4g}, at most {limit['max_rms']:.4g} is allowed")
    if limit["min_cosine"] is not None:
        sizes = float(np.sqrt(np.sum(wide * wide) * np.sum(truth * truth)))
        cosine = float(np.sum(wide * truth)) / sizes if sizes else float(not wide.any())
        if not cosine >= limit["min_cosine"]:
            words.append(f"cosine {cosine:.6g}, must be at least {limit['min_cosine']:.6g}")
    if limit["greedy_gap"] is not None:
        words += _greedy(truth, actual, limit["greedy_gap"])
    if limit["language"]:
        words += _language(limit["language"], truth, wide)
    return words


def judges(limit: Mapping[str, Any]) -> bool:
    """Whether any limit of the recipe can be measured on the output, in one case or more."""
    by_case = (entry[key] for entry in limit["language"].values() for key in MEASURES)
    return any(one is not None for one in (limit["max_rms"], limit["min_cosine"], *by_case))


def digest(truth: np.ndarray) -> str:
    """By which a case is known: Polygraphy does not say which one it compares."""
    return hashlib.sha256(truth.tobytes()).hexdigest()


def _language(
    limits: Mapping[str, Mapping[str, Any]], truth: np.ndarray, actual: np.ndarray
) -> list[str]:
    """Which language limits of the case are missed."""
    case = limits.get(digest(truth))
    if case is None:
        return ["the reference is not one that this bundle was built with"]
    ids = None
    if case["text"] is not None:
        (given,) = _read("inputs.json")[case["text"]].values()
        ids = _decode(given["array"])
    words = []
    for key, found in language_measures(truth, actual, ids).items():
        what, relation = MEASURES[key]
        allowed = case[key]
        holds = allowed is None or (found <= allowed if relation == "<=" else found >= allowed)
        if not holds:
            words.append(f"{what} {found:.4g}, must be {relation} {allowed:.4g}")
    return words


# Limit -> what it is called, and its relation to the limit.
MEASURES: dict[str, tuple[str, Literal["<=", ">="]]] = {
    "max_kl": ("KL divergence", "<="),
    "min_agreement": ("greedy token agreement", ">="),
    "max_perplexity_ratio": ("perplexity over the truth's", "<="),
}


def language_measures(
    truth: np.ndarray, actual: np.ndarray, ids: np.ndarray | None
) -> dict[str, float]:
    """The measures of MEASURES over the positions of one case, logits [B, S, V] and a text's ids [B, S].

    KL(truth || actual) in nats; a token agrees also where either side gives both the same logit.
    """
    log_p, log_q = _log_softmax(truth), _log_softmax(actual)
    p = np.exp(log_p)
    found = {"max_kl": float(np.mean(np.sum(p * (log_p - log_q), -1)))}
    mine, theirs = truth.argmax(-1)[..., None], actual.argmax(-1)[..., None]
    same = mine == theirs
    for side in (truth, actual):
        same |= np.take_along_axis(side, mine, -1) == np.take_along_axis(side, theirs, -1)
    found["min_agreement"] = float(np.mean(same))
    if ids is not None:
        following = ids[:, 1:, None]
        rise = np.take_along_axis((log_p - log_q)[:, :-1], following, -1)
        found["max_perplexity_ratio"] = float(np.exp(np.mean(rise)))
    return found


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    shifted: np.ndarray = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return shifted


def _greedy(truth: np.ndarray, actual: np.ndarray, gap: float) -> list[str]:
    """Positions whose largest element is another one, by more than noise explains."""
    chosen = actual.argmax(-1)[..., None]
    behind = truth.max(-1) - np.take_along_axis(truth, chosen, -1)[..., 0]
    changed = int((behind > gap).sum())
    if not changed:
        return []
    return [
        f"{changed} greedy tokens changed, by up to {behind.max():.4g}; noise explains {gap:.4g}"
    ]


def _array(value: Any) -> np.ndarray:
    """A numpy array of a numpy array or a torch tensor."""
    if isinstance(value, np.ndarray):
        return value
    wide = value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float8_e4m3fn") else value
    return np.asarray(wide.cpu().numpy())


def _load(variant: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sets of inputs in the types that the graph declares; bf16, which numpy lacks, as torch tensors."""
    return [
        {name: _cast(tensors[name]["array"], dtype) for name, dtype in variant["inputs"].items()}
        for tensors in _read("inputs.json")
    ]


def _read(name: str) -> Any:
    return json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _decode(text: str) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return array


def _cast(text: str, dtype: str) -> Any:
    array = _decode(text)
    if dtype == "bf16":
        import torch

        return torch.from_numpy(array).to(torch.bfloat16)
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    return array.astype(names.get(dtype, dtype))


def __getattr__(name: str) -> Callable[..., Any]:
    """A variant's check, or its inputs under `load_<variant>`."""
    if name.startswith("__"):
        raise AttributeError(name)
    variants = _read("limits.json")["variants"]
    variant = variants.get(name.removeprefix("load_"))
    if variant is None:
        raise AttributeError(f"no variant {name}; the bundle has {', '.join(variants)}")
    return (lambda: _load(variant)) if name.startswith("load_") else Check(variant["outputs"])
