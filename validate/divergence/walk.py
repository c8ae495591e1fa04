"""Walk a graph value by value: the local error of each, with the other side's values as inputs.

the other side runs once and shows its values; as soon as a region's inputs and its own value are there,
the region is run on them and judged, and values that nothing waits for are forgotten
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir
import torch

from ...core.progress import Progress, Step, silent
from ...graph.type_names import DataType
from ...graph.values import TORCH_TYPES
from .forced import Forced
from .mapping import Mapping_
from .measure import CAP, CAP_NARROW, LocalError, local_error
from .regions import Region, cut_region
from .sides import Feeds, GraphSide, Seen, Side
from .units import unit_of, unit_of_torch

DRAWS = 2
_FINE = 2.0**-20  # fp32 and wider


@dataclass(frozen=True)
class Setting:
    """graph: the side whose operators run. other: the side whose values are given.

    graph_is_candidate: its operators are under judgement (else the other's values are, and the graph says what
    they should be). exact: the graph computes in float64 without rounding. same_type: both compute mostly in one
    floating type. other_unit: unit roundoff of the other side's type, where the graph's is wider.
    tolerance: multiplies what is allowed. kept: values of the graph's own run whose total errors are reported.
    """

    graph: GraphSide
    other: Side
    mapping: Mapping_
    feeds: Feeds
    seen: Mapping[str, Seen]
    theirs: Mapping[str, Seen]
    kept: Mapping[str, torch.Tensor]
    graph_is_candidate: bool
    exact: bool
    same_type: bool = False
    other_unit: float = 0.0
    tolerance: float = 1.0

    @property
    def exact_graph(self) -> bool:
        """Whether the graph computes in float64: it is the reference, or both do."""
        return self.exact or not self.graph_is_candidate

    @property
    def exact_other(self) -> bool:
        """The same of the other side."""
        return self.exact or self.graph_is_candidate

    def total(self, own: torch.Tensor, other: torch.Tensor) -> float | None:
        """Relative error of the candidate's value, each side's own; None for values that hold no comparable numbers."""
        if not own.is_floating_point() or own.shape != other.shape:
            return None
        one, two = (other, own) if self.graph_is_candidate else (own, other)
        return relative_error(one, two)

    def region_of(self, name: str) -> Region | None:
        """What the other side, where it is a graph, computes its value `name` with."""
        if not isinstance(self.other, GraphSide) or name not in self.other.values:
            return None
        return cut_region(self.other.values[name], self._mapped_of_other)

    @cached_property
    def _mapped_of_other(self) -> set[ir.Value]:
        assert isinstance(self.other, GraphSide)
        values = self.other.values
        return {values[n] for n in self.mapping.pairs.values() if n in values}

    def types(self) -> dict[str, DataType]:
        """The element type of every value that ran, for graphs that declare none."""
        names = {torch_type: data_type for data_type, torch_type in TORCH_TYPES.items()}
        return {name: names[seen.dtype] for name, seen in self.seen.items()}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One region with the numbers that convict or acquit it. unit, cap: see measure.py."""

    region: Region
    forced: Forced
    given: Mapping[str, torch.Tensor]
    expected: torch.Tensor
    actual: torch.Tensor
    unit: float
    cap: float
    error: LocalError


@dataclass(frozen=True, slots=True)
class Walked:
    """errors: by value, in the graph's order. first: the first that diverged, with its numbers. totals: of values
    that the graph's own run kept."""

    errors: Mapping[str, LocalError]
    first: Evidence | None
    totals: Mapping[str, float]


def walk(setting: Setting, progress: Progress = silent) -> Walked:
    """Judge every mapped value; see the module text."""
    return _Walk(setting, progress).run()


class _Walk:
    def __init__(self, setting: Setting, progress: Progress) -> None:
        self.setting, self.progress = setting, progress
        graph = setting.graph
        mapped = {graph.values[name] for name in setting.mapping.pairs}
        self.regions = [
            cut_region(value, mapped) for value in graph.values.values() if value in mapped
        ]
        self.types = setting.types()
        self.held: dict[str, torch.Tensor] = {}
        self.waiting: dict[str, list[int]] = {}
        self.missing: list[int] = []
        for number, region in enumerate(self.regions):
            needs = self._needs(region)
            self.missing.append(len(needs))
            for name in needs:
                self.waiting.setdefault(name, []).append(number)
        self.users = {name: len(numbers) for name, numbers in self.waiting.items()}
        self.errors: dict[int, LocalError] = {}
        self.own = {setting.mapping.pairs[name]: name for name in setting.kept}
        self.totals: dict[str, float] = {}
        self.first: tuple[int, Evidence] | None = None

    def _needs(self, region: Region) -> list[str]:
        """Names, on the other side, of what the region waits for."""
        pairs = self.setting.mapping.pairs
        names = [pairs[str(v.name)] for v in region.inputs if str(v.name) in pairs]
        return list(dict.fromkeys([*names, pairs[region.name]]))

    def run(self) -> Walked:
        setting = self.setting
        setting.other.run(
            setting.feeds,
            self.see,
            frozenset(self.waiting),
            exact=setting.exact_other,
        )
        self.progress(Step("compare", len(self.regions), len(self.regions)))
        ordered = {self.regions[n].name: self.errors[n] for n in sorted(self.errors)}
        return Walked(ordered, self.first[1] if self.first else None, self.totals)

    def see(self, name: str, value: torch.Tensor) -> None:
        """Take one value of the other side, and judge what it completes."""
        if name in self.held:  # a module that runs twice shows its value twice: the first counts
            return
        self.held[name] = value
        own = self.own.get(name)
        if own is not None:
            total = self.setting.total(self.setting.kept[own], value)
            self.totals |= {} if total is None else {own: total}
        for number in self.waiting.get(name, ()):
            self.missing[number] -= 1
            if self.missing[number] == 0:
                self._judge(number)
                self._forget(self.regions[number])

    def _judge(self, number: int) -> None:
        region, pairs = self.regions[number], self.setting.mapping.pairs
        self.progress(Step("compare", len(self.errors), len(self.regions), region.name))
        given = {
            str(v.name): self.held[pairs[str(v.name)]]
            if str(v.name) in pairs
            else self.setting.feeds[str(v.name)]
            for v in region.inputs
        }
        forced = Forced(region, self.setting.graph.model, self.setting.exact_graph, self.types)
        evidence = judge(forced, given, self.held[pairs[region.name]], self.setting)
        self.errors[number] = evidence.error
        if evidence.error.diverged and (self.first is None or number < self.first[0]):
            self.first = number, evidence

    def _forget(self, region: Region) -> None:
        for name in self._needs(region):
            self.users[name] -= 1
            if not self.users[name]:
                self.held[name] = torch.empty(0)


def judge(
    forced: Forced, given: Mapping[str, torch.Tensor], value: torch.Tensor, setting: Setting
) -> Evidence:
    """Run a region on `given` and compare what it gives with `value`, the other side's."""
    computed = forced.compute(given)
    unit = max(forced.unit(), setting.other_unit)
    if not setting.graph_is_candidate:
        unit = max(unit, unit_of_torch(value.dtype))
    redrawn = [computed, *(forced.redraw(given, draw, unit) for draw in range(DRAWS))]
    if (
        unit < _FINE and not forced.exact
    ):  # what a kernel of this type loses by itself (gelu's 1 + erf)
        wide = Forced(forced.region, forced.model, True, forced.types)
        redrawn.append(wide.compute(given))
    expected, actual = (value, computed) if setting.graph_is_candidate else (computed, value)
    cap = CAP
    if setting.same_type:
        twin = setting.region_of(setting.mapping.pairs[forced.region.name])
        narrow = forced.unit()
        if twin is not None and 0 < max(unit_of(v.dtype) for v in twin.values()) < narrow < 2.0**-7:
            cap = CAP_NARROW
    error = judge_error(expected, actual, redrawn, unit, cap)
    error = replace(error, over=error.over / setting.tolerance)
    return Evidence(forced.region, forced, given, expected, actual, unit, cap, error)


def judge_error(
    expected: torch.Tensor,
    actual: torch.Tensor,
    redrawn: Sequence[torch.Tensor],
    unit: float,
    cap: float = CAP,
) -> LocalError:
    """local_error with the subnormal numbers of the actual value's type."""
    smallest = 0.0
    if actual.is_floating_point():
        info = torch.finfo(actual.dtype)
        smallest = info.smallest_normal * info.eps / 2
    return local_error(expected, actual, redrawn, unit=unit, smallest=smallest, cap=cap)


def relative_error(reference: torch.Tensor, actual: torch.Tensor) -> float:
    """rms(actual - reference) / rms(reference), over elements that are finite in the reference."""
    r, a = reference.double(), actual.double()
    keep = r.isfinite() & (r.abs() < 1e30)
    r, a = r[keep], a[keep]
    size = float(r.square().mean().sqrt()) if r.numel() else 0.0
    error = float((a - r).square().mean().sqrt()) if r.numel() else 0.0
    if error != error:
        return torch.inf
    return error / size if size else (0.0 if error == 0 else torch.inf)
