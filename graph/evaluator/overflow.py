"""Where a graph left its type's range, at the top or at the bottom: found on each result before and after it is rounded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ..rounding import LARGEST
from ..type_names import DataType
from ..values import Narrow, Value, arithmetic

Kind = Literal["range", "infinite", "nan", "saturated"]


@dataclass(frozen=True, slots=True)
class Overflow:
    """One value that left the finite range.

    kind: "range" (finite numbers beyond the declared type's range became infinite), "saturated" (an 8-bit float
    was clipped to its largest), "infinite" (the operator made an infinity from finite inputs), "nan" (a NaN from
    inputs without one). count: elements concerned, over all executions of the node. largest: the largest finite
    magnitude among the value's numbers before rounding.
    """

    value: str
    node: str
    count: int
    largest: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Underflow:
    """One value with numbers that rounding to its declared type made zero: count of elements, over the executions that lost some."""

    value: str
    node: str
    count: int
    elements: int


class Recorder:
    """Collects overflows, underflows and the largest magnitude of every floating value during one run."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, Kind], Overflow] = {}
        self._vanished: dict[tuple[str, str], Underflow] = {}
        self.largest: dict[str, float] = {}

    @property
    def found(self) -> tuple[Overflow, ...]:
        """In the order in which they happened."""
        return tuple(self._found.values())

    @property
    def vanished(self) -> tuple[Underflow, ...]:
        """Underflows, in the order in which they happened."""
        return tuple(self._vanished.values())

    def observe(
        self,
        name: str,
        node: str,
        wide: torch.Tensor,
        rounded: torch.Tensor,
        dtype: DataType,
        inputs: Sequence[Value],
    ) -> None:
        """Look at one floating result: `wide` as computed, `rounded` as stored in `dtype`."""
        if wide.numel() == 0:
            return
        wide, rounded = wide.detach(), rounded.detach()  # what is looked at needs no gradient
        if rounded.itemsize < wide.itemsize:
            self._observe_zeros(name, node, wide, rounded)
        low, high = torch.aminmax(wide)  # both are NaN where one element is
        size = max(-float(low), float(high))
        if size <= LARGEST[dtype]:
            self.largest[name] = max(self.largest.get(name, 0.0), size)
            return
        self._observe_closely(name, node, wide, rounded, dtype, inputs)

    def _observe_zeros(
        self, name: str, node: str, wide: torch.Tensor, rounded: torch.Tensor
    ) -> None:
        stored = rounded.float() if rounded.itemsize == 1 else rounded
        nonzero, size = int(stored.count_nonzero()), wide.numel()
        if nonzero == size or not (lost := int(wide.count_nonzero()) - nonzero):
            return
        before = self._vanished.get((name, node))
        if before is not None:
            lost, size = lost + before.count, size + before.elements
        self._vanished[name, node] = Underflow(name, node, lost, size)

    def _observe_closely(
        self,
        name: str,
        node: str,
        wide: torch.Tensor,
        rounded: torch.Tensor,
        dtype: DataType,
        inputs: Sequence[Value],
    ) -> None:
        finite = torch.isfinite(wide)
        magnitudes = wide.abs()
        largest = float(torch.where(finite, magnitudes, 0.0).amax())
        self.largest[name] = max(self.largest.get(name, 0.0), largest)
        stored = torch.isfinite(rounded.float() if rounded.itemsize == 1 else rounded)
        if lost := int((finite & ~stored).sum()):
            self._add(Overflow(name, node, lost, largest, "range"))
        elif rounded.itemsize == 1 and (cut := int((finite & (magnitudes > LARGEST[dtype])).sum())):
            self._add(Overflow(name, node, cut, largest, "saturated"))
        if bool(finite.all()):
            return
        nan = torch.isnan(wide)
        infinite, nans = int((~finite & ~nan).sum()), int(nan.sum())
        if nans and not any(_has(value, torch.isnan) for value in inputs):
            self._add(Overflow(name, node, nans, largest, "nan"))
        if infinite and not any(_has(value, _not_finite) for value in inputs):
            self._add(Overflow(name, node, infinite, largest, "infinite"))

    def _add(self, event: Overflow) -> None:
        key = (event.value, event.node, event.kind)
        before = self._found.get(key)
        if before is not None:
            count, largest = before.count + event.count, max(before.largest, event.largest)
            event = Overflow(event.value, event.node, count, largest, event.kind)
        self._found[key] = event


def _not_finite(tensor: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(tensor)


def _has(value: Value, test: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    if not isinstance(value, torch.Tensor | Narrow):
        return False
    tensor = arithmetic(value)
    return tensor.is_floating_point() and bool(test(tensor).any())
