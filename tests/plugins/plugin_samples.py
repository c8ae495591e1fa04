"""Seeded inputs for every operator, their float64 results, and how far a float32 computation may be off.

A bound is one rounding to the output's type plus eight float32 roundings, and what cancellation adds to that:
no result is compared with an absolute tolerance unless it can cancel to zero.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from blockforge.core.dtypes import DType
from blockforge.plugins import OPERATORS
from blockforge.plugins.oracle import E4M3_BOUNDARIES, wide
from blockforge.plugins.registry import Plugin

FLOATS = (DType.FP32, DType.FP16, DType.BF16)
ROUNDING = 2.0**-24  # half an ulp of float32, relative
STEPS = 8 * ROUNDING
TINY = 2.0**-120  # below: float32's exponential may have underflowed
NAMES = [p.name for p in OPERATORS]


@dataclass(frozen=True)
class Case:
    plugin: Plugin
    inputs: list[torch.Tensor]
    attributes: dict

    @property
    def arrays(self):
        return [t.double().numpy() for t in self.inputs]

    @property
    def given(self):
        names = [t.name for t in self.plugin.table.inputs]
        return dict(zip(names, self.arrays, strict=True))

    def reference(self):
        result = self.plugin.reference(*self.arrays, **self.attributes)
        return result if isinstance(result, tuple) else (result,)


def make_case(
    plugin, lead, row, dtype, *, weight=None, scale=1.0, seed=0, heads=(3, 2), **attributes
):
    """Inputs of `plugin`: leading sizes, row length (head size for QKNormRope), types, magnitude of x."""
    rng = torch.Generator().manual_seed(seed)
    weight = weight or dtype
    filled = {a.name: a.default for a in plugin.table.attributes} | attributes
    if "epsilon" in filled and filled["epsilon"] is None:
        filled["epsilon"] = 1e-5
    if plugin.table.row == "D":
        filled["q_num_heads"], filled["kv_num_heads"] = heads
        lead = lead if len(lead) == 2 else (1, prod(lead))
    inputs = []
    for tensor in plugin.table.inputs:
        match tensor.type, tensor.shape:
            case "S", _:
                value = torch.tensor(0.0147)  # quantised rows reach past +-448, as outliers do
                inputs.append(value.to(dtype.torch))
                continue
            case "A", _:
                angle = 6.28 * torch.rand(*lead, row // 2, generator=rng)
                inputs.append(angle.cos() if tensor.name == "cos" else angle.sin())
                continue
            case "W", _:
                value = torch.rand(row, generator=rng) + 0.5
                if tensor.name == "bias":
                    value -= 1.0
                inputs.append(value.to(weight.torch))
                continue
        width = {"q": heads[0], "k": heads[1], "gate_up": 2}.get(tensor.name, 1) * row
        value = scale * torch.randn(*lead, width, generator=rng)
        inputs.append(value.clamp(-65504, 65504).to(dtype.torch))
    return Case(plugin, inputs, filled)


def float32_bound(case, references):
    """Per output: how far float32 arithmetic may be from float64, before the output is rounded."""
    a, given = case.attributes, case.given
    name = case.plugin.name
    with np.errstate(all="ignore"):
        if "Norm" not in name:
            gate, up = (
                np.split(given["gate_up"], 2, axis=-1)
                if "gate_up" in given
                else (given["gate"], given["up"])
            )
            y = references[0]
            if name.startswith("SwiGLU"):
                return [np.abs(y) * (STEPS + 2 * np.abs(gate) * ROUNDING) + TINY * np.abs(up)]
            return [
                np.abs(y) * STEPS + 4 * ROUNDING * np.abs(gate * up)
            ]  # 1 + erf, 1 + tanh cancel
        if name == "QKNormRope":
            bounds = []
            for side, heads in (("q", "q_num_heads"), ("k", "kv_num_heads")):
                width = given[side].shape[-1] // a[heads]
                x = given[side].reshape(*given[side].shape[:2], a[heads], width)
                n = np.abs(x) / (
                    np.sqrt(np.mean(x**2, -1, keepdims=True) + a["epsilon"]) + a["epsilon_outside"]
                )
                n *= np.abs(given[f"{side}_weight"] + a["weight_offset"])
                low, high = np.split(n, 2, axis=-1)
                c, s = (np.abs(given[k])[:, :, None] for k in ("cos", "sin"))
                size = np.concatenate([low * c + high * s, high * c + low * s], -1)
                bounds.append(STEPS * size.reshape(given[side].shape))
            return bounds
        total = given["x"] + given.get("skip", 0)
        offset = np.abs(given["weight"] + a["weight_offset"])
        shift = np.mean(total, -1, keepdims=True) if "Layer" in name else 0.0
        centred = total - shift
        root = np.sqrt(np.mean(centred**2, -1, keepdims=True) + a["epsilon"]) + a["epsilon_outside"]
        bound = STEPS * (np.abs(centred) / root * offset + np.abs(given.get("bias", 0.0)))
        if "Layer" in name:  # the mean's own error, and the subtraction's
            bound = bound + 4 * ROUNDING * np.max(np.abs(total), -1, keepdims=True) / root * offset
        return [bound, ROUNDING * np.abs(total)]


def assert_close(case, outputs):
    """Every output within its bound; infinities and NaN where the rounded reference has them; FP8 codes exact."""
    references = case.reference()
    bounds = float32_bound(case, references)
    assert len(outputs) == len(references)
    for tensor, actual, expected, bound in zip(
        case.plugin.table.outputs, outputs, references, bounds, strict=False
    ):
        if actual.dtype == torch.float8_e4m3fn:
            assert_codes(actual, expected, case)
            continue
        info = torch.finfo(actual.dtype)
        rounded = torch.from_numpy(np.atleast_1d(expected)).to(actual.dtype).double().numpy()
        got = np.atleast_1d(actual.double().numpy())
        np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded), err_msg=tensor.name)
        edge = np.abs(expected) > info.max * (1 - info.eps)  # may round to infinity or not
        finite = np.isfinite(rounded) & ~edge
        np.testing.assert_array_equal(
            got[np.isinf(rounded) & ~edge], rounded[np.isinf(rounded) & ~edge]
        )
        got, expected, bound = got[finite], np.atleast_1d(expected)[finite], bound[finite]
        limit = np.abs(expected) * info.eps / 2 + info.smallest_normal * info.eps / 2 + bound
        excess = np.abs(got - expected) - limit
        assert not (excess > 0).any(), f"{tensor.name}: {excess.max():.3g} past its bound"


def assert_codes(actual, expected, case):
    """E4M3 codes equal, except where the float32 value may lie on the other side of a rounding boundary.

    That is within one ulp of a boundary; where float32 cancels (LayerNorm's mean, GELU's 1 + erf), within the
    bound of that.
    """
    codes = actual.view(torch.uint8).numpy()
    nan = ((codes & 0x7F) == 0x7F) & ((expected & 0x7F) == 0x7F)  # of either sign
    wrong = (codes != expected) & ~nan
    if not wrong.any():
        return
    values, bound = unquantised(case)
    scale = float(case.inputs[-1].double())
    values, bound = np.abs(values[wrong]) / scale, bound[wrong] / scale
    nearest = E4M3_BOUNDARIES[np.abs(values[:, None] - E4M3_BOUNDARIES[None]).argmin(axis=1)]
    allowed = np.spacing(nearest.astype(np.float32)).astype(np.float64)
    if case.plugin.name.startswith(("GeGLU", "LayerNorm", "AddLayerNorm")):
        allowed = np.maximum(allowed, bound)
    away = np.abs(values - nearest) / allowed
    assert (away <= 1).all(), (
        f"{wrong.sum()} codes differ, up to {away.max():.2f} times the distance"
    )


def unquantised(case):
    """The float64 values before quantisation, and float32's bound: the operator without Quantize."""
    plain = next(p for p in OPERATORS if p.name == case.plugin.name.removesuffix("Quantize"))
    case = Case(plain, case.inputs[:-1], case.attributes)
    references = case.reference()
    return wide(references[0]), float32_bound(case, references)[0]
