"""The rules that a bundle's outputs are held to, for `polygraphy run`: numpy and the standard library alone.

    polygraphy run fp16/model.onnx --onnxrt --load-inputs polygraphy/inputs.json \\
        --load-outputs polygraphy/outputs.json --compare-func-script polygraphy/checks.py:fp16

The names of this module are the bundle's variants (`fp16`: its check; `load_fp16`: its inputs, in the types
that the graph declares). Their limits are in limits.json, measured when the bundle was built: the root mean
square error of PyTorch in the same type, times what the recipe allows. A missing, extra, empty or zero
output, another type or shape, NaN, an infinity, a changed integer or greedy token fail whatever the limits.
"""

import base64
import io
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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

    limits: output -> {dtype, max_rms, greedy_gap}; None: the recipe sets no such limit.
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
    rms = float(np.sqrt(np.mean(np.square(actual.astype(np.float64) - truth))))
    if limit["max_rms"] is None:
        words.append("the recipe sets no limit max_error_over_floor: nothing to judge by")
    elif not rms <= limit["max_rms"]:
        words.append(f"rms error {rms:.4g}, at most {limit['max_rms']:.4g} is allowed")
    if limit["greedy_gap"] is not None:
        words += _greedy(truth, actual, limit["greedy_gap"])
    return words


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
    sets = json.loads((Path(__file__).parent / "inputs.json").read_text(encoding="utf-8"))
    return [
        {name: _cast(tensors[name]["array"], dtype) for name, dtype in variant["inputs"].items()}
        for tensors in sets
    ]


def _cast(text: str, dtype: str) -> Any:
    array = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    if dtype == "bf16":
        import torch

        return torch.from_numpy(array).to(torch.bfloat16)
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    return array.astype(names.get(dtype, dtype))


def __getattr__(name: str) -> Callable[..., Any]:
    """A variant's check, or its inputs under `load_<variant>`."""
    if name.startswith("__"):
        raise AttributeError(name)
    path = Path(__file__).parent / "limits.json"
    variants = json.loads(path.read_text(encoding="utf-8"))["variants"]
    variant = variants.get(name.removeprefix("load_"))
    if variant is None:
        raise AttributeError(f"no variant {name}; the bundle has {', '.join(variants)}")
    return (lambda: _load(variant)) if name.startswith("load_") else Check(variant["outputs"])
