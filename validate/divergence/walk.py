"""Walk a graph value by value: the local error of each, with the other side's values as inputs.

the other side runs once and shows its values; as soon as a region's own value is there and its inputs are judged,
the region is run on them and judged, and values that nothing waits for are forgotten. A value that the graph holds
at powers of two of the other's (held.py) is given at these powers to what reads it: an operator that undoes them is right
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir
import torch

from ...core.progress import Progress, Step, silent
from ...graph.type_names import DataType
from ...graph.values import TORCH_TYPES
from .forced import Forced
from .held import powers, scaled
from .mapping import Mapping_
from .measure import CAP, CAP_NARROW, LocalError, local_error, relative_error
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
    that the graph's own run kept. held: values that the graph holds at powers of two. right: the regions that gave
    what they should."""

    errors: Mapping[str, LocalError]
    first: Evidence | None
    totals: Mapping[str, float]
    held: tuple[str, ...] = ()
    right: tuple[Region, ...] = ()


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
        self.given: dict[str, torch.Tensor] = {}
        self.shows: dict[str, list[int]] = {}  # their value -> regions that give it
        self.waiting: dict[str, list[int]] = {}  # own value -> regions that read it
        self.missing: list[int] = []
        self.users: Counter[str] = Counter()
        for number, region in enumerate(self.regions):
            reads = self._reads(region)
            self.missing.append(1 + len(reads))
            self.users.update(setting.mapping.pairs[name] for name in (region.name, *reads))
            self.shows.setdefault(setting.mapping.pairs[region.name], []).append(number)
            for name in reads:
                self.waiting.setdefault(name, []).append(number)
        self.outputs = _outputs(setting)
        self.errors: dict[int, LocalError] = {}
        self.powers: dict[str, torch.Tensor] = {}
        self.origins: dict[str, tuple[int, Evidence]] = {}
        self.totals: dict[str, float] = {}
        self.first: tuple[int, Evidence] | None = None

    def _reads(self, region: Region) -> list[str]:
        """The mapped values among the region's inputs."""
        pairs = self.setting.mapping.pairs
        return [str(v.name) for v in region.inputs if str(v.name) in pairs]

    def run(self) -> Walked:
        setting = self.setting
        shown, exact = frozenset(self.shows), setting.exact_other
        setting.other.run(setting.feeds, self.see, shown, exact=exact)
        self.progress(Step("compare", len(self.regions), len(self.regions)))
        for name in (
            self.origins.keys() - self.waiting.keys()
        ):  # nothing reads it, so nothing undoes it
            self._convict(*self.origins[name])
        ordered = {self.regions[n].name: self.errors[n] for n in sorted(self.errors)}
        right = tuple(self.regions[n] for n in sorted(self.errors) if not self.errors[n].diverged)
        held = tuple(n for n in self.powers if not ordered[n].diverged)
        first = self.first[1] if self.first else None
        return Walked(ordered, first, self.totals, held, right)

    def see(self, name: str, value: torch.Tensor) -> None:
        """Take one value of the other side, and judge what it completes."""
        if name in self.given:  # a module that runs twice shows its value twice: the first counts
            return
        self.given[name] = value
        ready = [n for n in self.shows.get(name, ()) if self._is_last(n)]
        while ready:
            number = ready.pop()
            self._judge(number)
            self._forget(self.regions[number])
            readers = self.waiting.get(self.regions[number].name, ())
            ready += [n for n in readers if self._is_last(n)]

    def _is_last(self, number: int) -> bool:
        """Note that the region has one thing more; whether that was the last."""
        self.missing[number] -= 1
        return self.missing[number] == 0

    def _judge(self, number: int) -> None:
        region, setting = self.regions[number], self.setting
        self.progress(Step("compare", len(self.errors), len(self.regions), region.name))
        reads = self._reads(region)
        given = {
            str(v.name): self.given[setting.mapping.pairs[str(v.name)]]
            if str(v.name) in reads
            else setting.feeds[str(v.name)]
            for v in region.inputs
        }
        value = self.given[setting.mapping.pairs[region.name]]
        at_powers = {name: scaled(g, self.powers.get(name)) for name, g in given.items()}
        forced = Forced(region, setting.graph.model, setting.exact_graph, self.types)
        evidence = judge(forced, at_powers, value, setting)
        origins = [self.origins[name] for name in reads if name in self.origins]
        before = min(origins, key=lambda o: o[0], default=None)
        self.errors[number] = evidence.error
        if evidence.error.diverged:
            held = self._held(forced, at_powers, value, evidence)
            plain = judge(forced, given, value, setting).error if before else evidence.error
            if held is not None:
                self.powers[region.name], self.errors[number] = held
                self.origins[region.name] = before or (number, evidence)
            elif before and not plain.diverged:  # right but for powers that nothing undoes
                self.errors[number] = plain
                self._convict(*before)
            else:
                self._convict(number, evidence)
        if region.name in setting.kept:
            value = scaled(value, self.powers.get(region.name))
            total = setting.total(setting.kept[region.name], value)
            self.totals |= {} if total is None else {region.name: total}

    def _convict(self, number: int, evidence: Evidence) -> None:
        self.errors[number] = evidence.error
        if self.first is None or number < self.first[0]:
            self.first = number, evidence

    def _held(
        self,
        forced: Forced,
        given: Mapping[str, torch.Tensor],
        value: torch.Tensor,
        evidence: Evidence,
    ) -> tuple[torch.Tensor, LocalError] | None:
        """The powers of two at which the graph holds the value, and its error at them; None where it does not."""
        computed = evidence.actual if self.setting.graph_is_candidate else evidence.expected
        k = None if forced.region.name in self.outputs else powers(computed, value)
        if k is None:
            return None
        error = judge(forced, given, value, self.setting, k).error
        return None if error.diverged else (k, error)

    def _forget(self, region: Region) -> None:
        for name in (region.name, *self._reads(region)):
            their = self.setting.mapping.pairs[name]
            self.users[their] -= 1
            if not self.users[their]:
                self.given[their] = torch.empty(0)


def _outputs(setting: Setting) -> set[str]:
    """Values that are outputs on either side: these are never held at another size."""
    sides = [getattr(s, "model", None) for s in (setting.graph, setting.other)]
    own, rivals = ({str(v.name) for v in m.graph.outputs} if m else set() for m in sides)
    rivals |= set(getattr(setting.other, "outputs", ()))
    return {name for name, their in setting.mapping.pairs.items() if name in own or their in rivals}


def judge(
    forced: Forced,
    given: Mapping[str, torch.Tensor],
    value: torch.Tensor,
    setting: Setting,
    k: torch.Tensor | None = None,
) -> Evidence:
    """Run a region on `given` and compare what it gives with `value` * 2^k, the other side's."""
    computed = forced.compute(given)
    unit = max(forced.unit(), setting.other_unit)
    if not setting.graph_is_candidate:
        unit = max(unit, unit_of_torch(value.dtype))
    value = scaled(value, k)
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
