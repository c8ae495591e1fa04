"""The two things to compare, under one protocol: each shows its named values one after another as it runs.

GraphSide    an ONNX file by the typed evaluator, rounded to its own types or exact (float64)
ModuleSide   a PyTorch module in float64 (or another type); values are named by the module tree
SavedSide    values from a file
PlanSide     an engine on its GPU: plan_side.py
"""

import contextlib
import ctypes
import gc
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Protocol

import onnx_ir as ir
import torch
from torch import nn

from ...core.dtypes import dtype_from_name
from ...core.manifest import TensorRecord
from ...graph.evaluator import Overflow, TypedEvaluator
from ...graph.spec import summarise
from .forced import weight_tensor

Show = Callable[[str, torch.Tensor], None]
Load = Callable[[torch.dtype], nn.Module]
Feeds = Mapping[str, torch.Tensor]


class Side(Protocol):
    """label: how reports call it. inputs: what it takes; empty for values that were saved."""

    label: str

    @property
    def inputs(self) -> tuple[TensorRecord, ...]: ...

    def run(self, feeds: Feeds, show: Show, names: Collection[str] | None, *, exact: bool) -> None:
        """Run once and call `show(name, value)` for each value named (None: all), inputs not included."""

    def weight(self, name: str) -> torch.Tensor | None:
        """The weight of that name, None where there is none."""

    def release(self) -> None:
        """Free what a run needed; another run loads it again."""


@dataclass
class GraphSide:
    """golden: whole inputs by case, where a bundle has them. overflow: what the last run noticed."""

    label: str
    model: ir.Model
    golden: Mapping[str, Feeds] = field(default_factory=dict)
    overflow: tuple[Overflow, ...] = ()

    @cached_property
    def inputs(self) -> tuple[TensorRecord, ...]:
        return summarise(self.model).inputs

    @cached_property
    def values(self) -> dict[str, ir.Value]:
        """The values that nodes of the main graph give, in order."""
        return {str(v.name): v for node in self.model.graph for v in node.outputs if v.name}

    def run(self, feeds: Feeds, show: Show, names: Collection[str] | None, *, exact: bool) -> None:
        wanted = self.values if names is None else names
        evaluator = TypedEvaluator(self.model, exact=exact)
        types = {r.name: dtype_from_name(r.dtype).torch for r in self.inputs}
        given = {name: feeds[name].to(dtype) for name, dtype in types.items()}
        found = evaluator.run(given, watch={name: partial(show, name) for name in wanted})
        self.overflow = found.overflow

    def weight(self, name: str) -> torch.Tensor | None:
        value = self.model.graph.initializers.get(name)
        return None if value is None or value.const_value is None else weight_tensor(value)

    def release(self) -> None:
        """Weights are mapped from their file: nothing is held."""


@dataclass
class ModuleSide:
    """load: the module with its weights in a dtype. outputs: names for what its forward returns."""

    label: str
    load: Load
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[str, ...]
    dtype: torch.dtype = torch.float64
    golden: Mapping[str, Feeds] = field(default_factory=dict)
    read: Callable[[str], torch.Tensor | None] = field(default=lambda _: None)

    @cached_property
    def module(self) -> nn.Module:
        """Loaded at the first run and kept until `release`."""
        return self.load(self.dtype)

    def release(self) -> None:
        """Free the module, and give its memory back: glibc would keep the smaller blocks (240 of 1,060 MB for SmolLM2)."""
        if self.__dict__.pop("module", None) is not None:
            gc.collect()
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)

    def run(self, feeds: Feeds, show: Show, names: Collection[str] | None, *, exact: bool) -> None:
        module = self.module

        def hook(name: str, _module: nn.Module, _inputs: object, output: object) -> None:
            value = output[0] if isinstance(output, tuple) and len(output) == 1 else output
            if isinstance(value, torch.Tensor) and (names is None or name in names):
                show(name, value)

        hooks = [
            part.register_forward_hook(partial(hook, name))
            for name, part in module.named_modules()
            if name
        ]
        given = [feeds[record.name] for record in self.inputs]
        given = [g.to(self.dtype) if g.is_floating_point() else g for g in given]
        try:
            with torch.no_grad():
                result = module(*given)
        finally:
            for handle in hooks:
                handle.remove()
        results = result if isinstance(result, tuple) else (result,)
        for name, value in zip(self.outputs, results, strict=True):
            if names is None or name in names:
                show(name, value)

    def weight(self, name: str) -> torch.Tensor | None:
        return self.read(name)


@dataclass
class SavedSide:
    """values: everything that the file holds, inputs of the run among them perhaps. later: its further sets, which only
    another file is compared with.
    """

    label: str
    values: Mapping[str, torch.Tensor]
    inputs: tuple[TensorRecord, ...] = ()
    later: tuple[Mapping[str, torch.Tensor], ...] = ()

    def whole(self) -> "SavedSide":
        """All sets as one: `logits`, `logits of set 2`, ..."""
        values = dict(self.values)
        for number, found in enumerate(self.later, 2):
            values |= {f"{name} of set {number}": value for name, value in found.items()}
        return SavedSide(self.label, values)

    def run(self, feeds: Feeds, show: Show, names: Collection[str] | None, *, exact: bool) -> None:
        for name, value in self.values.items():
            if names is None or name in names:
                show(name, value)

    def weight(self, name: str) -> torch.Tensor | None:
        return None

    def release(self) -> None:
        """The values stay: there is nothing to read them from again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run showed of one value: type, shape, and a print of its numbers (mean, size, a projection)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    print: tuple[float, float, float]


def survey(
    side: Side, feeds: Feeds, *, exact: bool = False, kept: dict[str, torch.Tensor] | None = None
) -> dict[str, Seen]:
    """Run once and note every value, keeping none but those that `kept` has a key for."""
    seen: dict[str, Seen] = {}

    def note(name: str, value: torch.Tensor) -> None:
        if isinstance(value, torch.Tensor):
            seen[name] = Seen(value.dtype, tuple(value.shape), _print(value))
            if kept is not None and name in kept:
                kept[name] = value

    side.run(feeds, note, None, exact=exact)
    return seen


def _print(value: torch.Tensor) -> tuple[float, float, float]:
    if value.numel() == 0 or value.is_complex():
        return (0.0, 0.0, 0.0)
    x = value.reshape(-1)
    x = x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x
    x = x.double().nan_to_num(0.0, 0.0, 0.0).clamp(-1e30, 1e30)
    n = len(x)
    return float(x.mean()), float(x.square().mean().sqrt()), float((x * _wave(n)).sum()) / n**0.5


@lru_cache(maxsize=2)  # values of one length follow each other
def _wave(size: int) -> torch.Tensor:
    return torch.cos(torch.arange(size, dtype=torch.float64) * 0.7)
