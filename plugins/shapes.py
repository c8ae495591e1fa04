"""The sizes behind a table's shape texts: bind them from the inputs, derive the outputs'.

`... N`, `... 2*N`, `B S heads*D`, `B S D/2`; sizes may be ints or TensorRT's shape expressions, which know
+, * and // but cannot be compared while a network is described.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError
from .table import AttributeValue, Table

REST = "..."
_AXIS = re.compile(r"(?:(?P<times>\w+)\*)?(?P<name>[A-Z])(?:/(?P<over>\d+))?")


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis text: size = times * name / over."""

    name: str
    times: int = 1
    over: int = 1

    def size(self, bound: int | Any) -> Any:
        """The axis's size where `name` is `bound`."""
        return bound * self.times // self.over if self.over > 1 else bound * self.times

    def bind(self, size: int | Any) -> Any:
        """What `name` must be where the axis has this size."""
        return size * self.over // self.times if self.times > 1 else size * self.over


def axes(shape: str, attributes: Mapping[str, AttributeValue]) -> tuple[Axis | None, ...]:
    """The axes of a shape text; None stands for `...`."""
    found: list[Axis | None] = []
    for text in shape.split():
        match = _AXIS.fullmatch(text)
        if text == REST:
            found.append(None)
            continue
        assert match, f"axis {text!r}"
        times = match["times"] or "1"
        factor = int(times) if times.isdigit() else int(attributes[times])
        found.append(Axis(match["name"], factor, int(match["over"] or 1)))
    return tuple(found)


def bind_sizes(
    table: Table,
    shapes: Sequence[Sequence[Any]],
    attributes: Mapping[str, AttributeValue],
    *,
    check: bool = True,
) -> dict[str, Any]:
    """Size per letter from the input shapes; `...` maps to the tuple of leading sizes.

    check: compare what is bound twice (off for symbolic sizes). UsageError names the tensor and the axis.
    """
    sizes: dict[str, Any] = {}
    for tensor, shape in zip(table.inputs, shapes, strict=True):
        wanted = axes(tensor.shape, attributes)
        rest = len(shape) - len([a for a in wanted if a])
        if rest < 0 or (rest and None not in wanted):
            raise _misfit(table, tensor.name, shape, f"rank {len(shape)}", tensor.shape)
        at = 0
        for axis in wanted:
            if axis is None:
                lead = tuple(shape[:rest])
                if check and sizes.setdefault(REST, lead) != lead:
                    raise _misfit(table, tensor.name, shape, f"leading axes {lead}", tensor.shape)
                sizes.setdefault(REST, lead)
                at = rest
                continue
            value = axis.bind(shape[at])
            known = sizes.setdefault(axis.name, value)
            if check and (known != value or axis.size(known) != shape[at]):
                raise _misfit(table, tensor.name, shape, f"axis {at} is {shape[at]}", tensor.shape)
            at += 1
    return sizes


def output_shapes(
    table: Table, sizes: Mapping[str, Any], attributes: Mapping[str, AttributeValue]
) -> tuple[tuple[Any, ...], ...]:
    """The shape of each output, from bound sizes."""
    shapes = []
    for tensor in table.outputs:
        shape: list[Any] = []
        for axis in axes(tensor.shape, attributes):
            if axis is None:
                shape.extend(sizes[REST])
            else:
                shape.append(axis.size(sizes[axis.name]))
        shapes.append(tuple(shape))
    return tuple(shapes)


def _misfit(table: Table, name: str, shape: Sequence[Any], what: str, wanted: str) -> UsageError:
    return UsageError(
        f"{table.identifier} input {name!r}",
        found=f"shape {tuple(shape)} ({what})",
        fix=f"It must be [{wanted}], with the sizes of the other inputs",
    )
