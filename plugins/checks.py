"""Refuse what an operator does not accept, in words that come from its table.

check_call -> sizes of the call, or UsageError: which tensor or attribute, what it is, what would work
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.dtypes import DType
from ..core.errors import UsageError
from .shapes import bind_sizes
from .table import MAX_ROW, Attribute, AttributeValue, Table


@dataclass(frozen=True, slots=True)
class Given:
    """What a caller hands over for one input. strides in elements; None: contiguous by construction."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def check_call(
    table: Table, given: Sequence[Given], attributes: Mapping[str, AttributeValue]
) -> dict[str, Any]:
    """Check one call and return its sizes (shapes.bind_sizes).

    Raises UsageError for a wrong number of inputs, dtype, rank, size, attribute, row length or stride.
    """
    if len(given) != len(table.inputs):
        raise UsageError(
            table.identifier,
            found=f"{len(given)} inputs",
            fix=f"It takes {len(table.inputs)}: {', '.join(t.name for t in table.inputs)}",
        )
    filled = check_attributes(table, attributes)
    check_dtypes(table, [g.dtype for g in given])
    sizes = bind_sizes(table, [g.shape for g in given], filled)
    for tensor, one in zip(table.inputs, given, strict=True):
        if one.strides is not None and not contiguous(one.shape, one.strides):
            raise UsageError(
                f"{table.identifier} input {tensor.name!r}",
                found=f"strides {one.strides} for shape {one.shape}",
                fix="Kernels read rows back to back: pass a contiguous tensor",
            )
    row = sizes[table.row]
    if not 1 <= row <= MAX_ROW:
        raise UsageError(
            f"{table.identifier}",
            found=f"rows of {row}",
            fix=f"Rows may have 1 to {MAX_ROW} elements",
        )
    return sizes


def contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Do the elements lie back to back? Axes of one element may have any stride."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


def check_dtypes(table: Table, dtypes: Sequence[DType]) -> dict[str, DType]:
    """The type behind each letter, from the inputs; UsageError for one that the table does not allow."""
    letters: dict[str, tuple[str, DType]] = {}
    for tensor, dtype in zip(table.inputs, dtypes, strict=True):
        allowed = table.types[tensor.type]
        first, known = letters.setdefault(tensor.type, (tensor.name, dtype))
        if dtype not in allowed:
            names = ", ".join(d.value for d in allowed)
            raise UsageError(
                f"{table.identifier} input {tensor.name!r}",
                found=f"dtype {dtype.value}",
                fix=f"Allowed: {names}",
            )
        if dtype is not known:
            raise UsageError(
                f"{table.identifier} input {tensor.name!r}",
                found=f"dtype {dtype.value}, but {first!r} is {known.value}",
                fix=f"Inputs of type {tensor.type} share one dtype: cast one of them",
            )
    return {letter: dtype for letter, (_, dtype) in letters.items()}


def output_dtypes(table: Table, dtypes: Sequence[DType]) -> tuple[DType, ...]:
    """The outputs' types; a letter that no input has stands for its only type."""
    letters = check_dtypes(table, dtypes)
    return tuple(letters.get(t.type, table.types[t.type][0]) for t in table.outputs)


def check_attributes(
    table: Table, attributes: Mapping[str, AttributeValue]
) -> dict[str, AttributeValue]:
    """The attributes in the table's order, defaults filled in; UsageError for one that does not fit."""
    unknown = attributes.keys() - {a.name for a in table.attributes}
    if unknown:
        raise UsageError(
            f"{table.identifier} attribute {min(unknown)!r}",
            found="no such attribute",
            fix=f"Known: {', '.join(a.name for a in table.attributes) or 'none'}",
        )
    return {a.name: _check_attribute(table, a, attributes.get(a.name)) for a in table.attributes}


def _check_attribute(
    table: Table, attribute: Attribute, value: AttributeValue | None
) -> AttributeValue:
    asked = f"{table.identifier} attribute {attribute.name!r}"
    if value is None:
        if attribute.default is None:
            raise UsageError(asked, found="missing", fix=f"Set it: {attribute.doc}")
        return attribute.default
    wrong = isinstance(value, str) != (attribute.kind == "string")
    if wrong or (attribute.kind == "int" and value != int(value)):
        raise UsageError(asked, found=repr(value), fix=f"It is of kind {attribute.kind}")
    if attribute.choices and value not in attribute.choices:
        choices = ", ".join(map(str, attribute.choices))
        raise UsageError(asked, found=str(value), fix=f"Allowed: {choices}")
    if attribute.low is not None and not (attribute.low <= float(value) < math.inf):
        raise UsageError(
            asked, found=str(value), fix=f"It must be finite, {attribute.low:g} or more"
        )
    return value


def check_scale(table: Table, scale: float) -> float:
    """Return a known quantisation scale; UsageError unless a float32 kernel can divide by it.

    Zero, NaN, infinity and negative scales have no meaning; below 2**-126 the reciprocal is not finite.
    """
    if not (2.0**-126 <= scale <= 2.0**126):
        raise UsageError(
            f"{table.identifier} scale",
            found=str(scale),
            fix="A scale is positive and finite, between 2**-126 and 2**126: calibrate again",
        )
    return scale
