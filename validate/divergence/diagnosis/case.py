"""A diverged value under diagnosis: its evidence, what the other side computes there, and trials of a repair.

A repair changes the region (an attribute, an operand, a weight) and runs it again on the same inputs. What brings
the local error back into the noise is the cause; everything else is a guess and is not made.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir
import torch

from ..forced import Forced
from ..measure import LocalError
from ..regions import Region
from ..walk import DRAWS, Evidence, Setting, judge_error

Edit = Callable[[ir.Graph], object]
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Cause:
    """kind: one of a short list (docs). text: a sentence. facts: its numbers. confirmed: a repair proved it."""

    kind: str
    text: str
    facts: Mapping[str, object] = field(default_factory=dict)
    confirmed: bool = True
    node: str | None = None  # the culprit, where it is not the node that gives the value


@dataclass
class Case:
    """evidence: of the first value that diverged. setting: what was compared."""

    evidence: Evidence
    setting: Setting

    @property
    def region(self) -> Region:
        return self.evidence.region

    @property
    def candidate(self) -> bool:
        """Whether the graph whose region this is stands under judgement (else it is the reference)."""
        return self.setting.graph_is_candidate

    @property
    def expected(self) -> torch.Tensor:
        return self.evidence.expected.double()

    @property
    def actual(self) -> torch.Tensor:
        return self.evidence.actual.double()

    @property
    def target(self) -> torch.Tensor:
        """The other side's value: what a repaired region must give."""
        return self.evidence.expected if self.candidate else self.evidence.actual

    @cached_property
    def twin(self) -> Region | None:
        """What the other side, where it is a graph, computes the value with."""
        return self.setting.region_of(self.setting.mapping.pairs[self.region.name])

    def run(
        self,
        edit: Edit | None = None,
        *,
        given: Tensors | None = None,
        weights: Tensors | None = None,
    ) -> LocalError | None:
        """The error left after a repair; None where the repaired region does not run or has another shape.

        given, weights: replace those of the evidence by name.
        """
        evidence = self.evidence
        try:
            forced = evidence.forced
            if edit is not None:
                forced = edited(forced, edit)
            feeds = {**evidence.given, **(given or {})}
            computed = forced.compute(feeds, weights)
            if computed.shape != self.target.shape:
                return None
            if weights:
                forced = replace_weights(forced, weights)
            unit = evidence.unit
            redrawn = [computed, *(forced.redraw(feeds, draw, unit) for draw in range(DRAWS))]
        except Exception:  # a repair that the operators refuse, each in its own way
            return None
        pair = (self.target, computed) if self.candidate else (computed, self.target)
        return judge_error(*pair, redrawn, unit, evidence.cap)

    def repaired(
        self,
        edit: Edit | None = None,
        *,
        given: Tensors | None = None,
        weights: Tensors | None = None,
    ) -> bool:
        """Whether the repair brings the error into the noise."""
        error = self.run(edit, given=given, weights=weights)
        return error is not None and not error.diverged

    def reader(self, name: str) -> str | None:
        """The region's first node that reads the value or weight `name`."""
        for node in self.region.nodes:
            if any(v is not None and v.name == name for v in node.inputs):
                return node.name
        return None

    def close(self, one: torch.Tensor, two: torch.Tensor) -> bool:
        """Whether two tensors agree within what was allowed for the region's value."""
        allowed = self.evidence.error
        limit = max(allowed.noise, allowed.unit) * 4
        size = float(two.square().mean().sqrt())
        return float((one - two).square().mean().sqrt()) <= limit * size

    def fetch(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Values of the other side by their names there, from one more run of it."""
        found: dict[str, torch.Tensor] = {}
        setting = self.setting
        setting.other.run(
            setting.feeds, found.__setitem__, frozenset(names), exact=setting.exact_other
        )
        return found

    def sides(self, own: object, other: object) -> tuple[object, object]:
        """(the candidate's, the reference's) of a property of the region and of what repairs it."""
        return (own, other) if self.candidate else (other, own)


def edited(forced: Forced, edit: Edit) -> Forced:
    """The region with its graph changed; weights are inputs of it."""
    return Forced(forced.region, forced.model, forced.exact, forced.types, edit)


def replace_weights(forced: Forced, weights: Tensors) -> Forced:
    """The same region with other weights."""
    changed = replace(forced)
    changed.weights = {**forced.weights, **weights}
    return changed
