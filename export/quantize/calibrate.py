"""One walk through the graph that quantises its linears one after another.

Each linear sees what the quantised graph before it really gives, so its activation scale and its rounding fit the
errors made so far. Held at any time: the live values of all feeds, and one weight.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from ...core.progress import Progress, Step
from ...graph.evaluator.walk import Walk
from ...graph.rounding import round_to
from ..calibration.observers import Observed, observe
from ..linears.find import Linear
from .cache import Cache
from .gptq import Hessian, gptq
from .grids import E4M3
from .options import QuantizeOptions
from .weights import (
    WEIGHT_FORMATS,
    expanded,
    nearest,
    read_weight,
    representable,
    weight_scales,
)

Feeds = Sequence[Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Quantized:
    """One linear's outcome: codes fp32 [in, out], scales, its activation's scale, and the error it leaves."""

    linear: Linear
    codes: torch.Tensor
    scales: torch.Tensor
    activation: Observed | None
    error: float | None


@dataclass(slots=True)
class _Input:
    """What linears that read one value share: its scale, its quantised form and its Hessian."""

    readers: int
    observed: Observed | None
    seen: list[torch.Tensor]
    hessian: Hessian | None


@dataclass(slots=True)
class Calibration:
    """Quantises `linears` of `model` on `feeds`; `store` takes each outcome as soon as it is there.

    caches: key-value caches, whose scales are taken as well. known: scales of values that are not to be chosen again;
    found: those used, by value.
    """

    model: ir.Model
    linears: Sequence[Linear]
    options: QuantizeOptions
    scale_dtype: ir.DataType
    store: Callable[[Quantized], None]
    caches: Sequence[Cache] = ()
    known: Mapping[str, Observed] = field(default_factory=dict)
    found: dict[str, Observed] = field(default_factory=dict)
    _inputs: dict[ir.Value, _Input] = field(default_factory=dict)
    _done: dict[ir.Value, Quantized] = field(default_factory=dict)

    def run(self, feeds: Feeds, attention: Sequence[ir.Value], progress: Progress) -> None:
        """Walk; `attention`: values whose range is observed as well. Weights rounded to nearest need no feeds."""
        if not feeds:
            for one in self.linears:
                self.store(self._round(one, read_weight(one), None))
            return
        by_node = {linear.node: linear for linear in self.linears}
        watched = set(attention)
        caches = {
            cache.node: [c for c in self.caches if c.node is cache.node] for cache in self.caches
        }
        left = len(by_node) + len(watched) + len(caches)
        walk = Walk(self.model, feeds)
        for step in walk.steps():
            if not left:
                break
            node = step.outputs[0].producer()
            linear = None if node is None else by_node.get(node)
            if node in caches:
                for cache in caches.pop(node):
                    self._cache(cache, walk)
                left -= 1
            if linear is None:
                walk.advance(step)
            else:
                walk.put(step.outputs[0], self._linear(linear, walk))
                left -= 1
                total = len(by_node)
                progress(Step("quantize", total - left + len(watched), total, linear.name))
            for value in watched & set(step.outputs):
                self._scale(value, walk.inputs(value), None)
                watched.discard(value)
                left -= 1

    def _cache(self, cache: Cache, walk: Walk) -> None:
        """Take the scale of what the cache holds and gets, and let the node read both rounded."""
        given = {v: walk.inputs(v) for v in (cache.held, cache.update)}
        seen = [x.float() for tensors in given.values() for x in tensors if x.numel()]
        scale = self._scale(cache.past, seen, None).scale
        for value, tensors in given.items():
            if all(use.node is cache.node for use in value.uses()):
                rounded = [E4M3.round(x.float() / scale) * scale for x in tensors]
                walk.put(value, [x.to(t.dtype) for x, t in zip(rounded, tensors, strict=True)])

    def _scale(
        self, value: ir.Value, tensors: Sequence[torch.Tensor], importance: torch.Tensor | None
    ) -> Observed:
        """The value's scale, exact in the graph's scale type."""
        name = value.name or ""
        observer = self.options.observes
        assert observer is not None, name
        seen = self.known.get(name) or observe(name, tensors, E4M3, observer, importance)
        scale = representable(torch.tensor([seen.scale]), self.scale_dtype)
        self.found[name] = Observed(seen.amax, float(scale), seen.observer)
        return self.found[name]

    def _linear(self, linear: Linear, walk: Walk) -> list[torch.Tensor]:
        """Quantise one linear; returns its outputs in the quantised graph."""
        weight = read_weight(linear)
        given = [x.float() for x in walk.inputs(linear.x)]
        wanted = [x @ weight for x in given]
        shared = self._inputs.get(linear.x)
        if shared is None:
            shared = self._inputs[linear.x] = self._observe(linear, weight, given, wanted)
        outcome = self._done.get(linear.weight)
        if outcome is None or outcome.codes.shape != weight.shape:
            outcome = self._round(linear, weight, shared.hessian)
            if any(other.weight is linear.weight for other in self.linears if other is not linear):
                self._done[linear.weight] = outcome
        form = WEIGHT_FORMATS[self.options.format]
        rounded = outcome.codes * expanded(outcome.scales, form)
        products = [x @ rounded for x in shared.seen]
        error = _error(products, wanted)
        self.store(Quantized(linear, outcome.codes, outcome.scales, shared.observed, error))
        shared.readers -= 1
        if not shared.readers:
            del self._inputs[linear.x]
        return [typed_product(linear, y) for y in products]

    def _observe(
        self,
        linear: Linear,
        weight: torch.Tensor,
        given: list[torch.Tensor],
        wanted: Sequence[torch.Tensor],
    ) -> _Input:
        readers = [x for x in self.linears if x.x is linear.x]
        observed = None
        seen = given
        if self.options.activations:
            importance = weight.square().sum(1)
            for other in readers:
                if other is not linear:
                    importance = importance + read_weight(other).square().sum(1)
            observed = self._scale(linear.x, given, importance)
            scale = observed.scale
            seen = [E4M3.round(x / scale) * scale for x in given]
        hessian = None
        if self.options.rounding == "gptq":
            hessian = Hessian(linear.size_in)
            for x, product in zip(seen, wanted, strict=True):
                hessian.add(x.reshape(-1, linear.size_in), product.reshape(-1, linear.size_out))
        return _Input(len(readers), observed, seen, hessian)

    def _round(self, linear: Linear, weight: torch.Tensor, hessian: Hessian | None) -> Quantized:
        form = WEIGHT_FORMATS[self.options.format]
        importance = None if hessian is None else hessian.h.diagonal()
        scales = weight_scales(weight, form, importance, self.scale_dtype)
        if hessian is None:
            codes = nearest(weight, scales, form)
        else:
            codes = gptq(weight, expanded(scales, form), hessian, form.grid)
        return Quantized(linear, codes, scales, None, None)


def typed_product(linear: Linear, product: torch.Tensor) -> torch.Tensor:
    """The product as the graph gives it: with a Gemm's bias, in its declared type."""
    inputs = linear.node.inputs
    if len(inputs) > 2 and inputs[2] is not None:
        bias = inputs[2].const_value
        assert bias is not None, "find_linears admits constant biases only"
        product = product + torch.from_numpy(bias.numpy().astype("float32"))
    dtype = linear.node.outputs[0].dtype or linear.weight.dtype
    assert dtype is not None
    typed = round_to(product, dtype)
    assert isinstance(typed, torch.Tensor)
    return typed


def _error(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """|| quantised product - unquantised product || / || unquantised product ||, from the same inputs."""
    lost = sum(float((y - y0).square().sum()) for y, y0 in zip(found, wanted, strict=True))
    total = sum(float(y0.square().sum()) for y0 in wanted)
    return (lost / total) ** 0.5 if total else 0.0
