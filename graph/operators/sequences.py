"""ONNX sequences (Python lists here) and optional values (None where absent)."""

import torch

from ..values import Value, integers
from .registry import Call, Tensor, raw


@raw("SequenceConstruct")
def sequence_construct(call: Call, *inputs: Value) -> list[Value]:
    """A sequence of the inputs."""
    return list(inputs)


@raw("SequenceEmpty")
def sequence_empty(call: Call) -> list[Value]:
    """A sequence of nothing."""
    return []


@raw("SequenceAt")
def sequence_at(call: Call, items: list[Value], position: Tensor) -> Value:
    """The item at a position, counted from the end where negative."""
    return items[int(position)]


@raw("SequenceLength")
def sequence_length(call: Call, items: list[Value]) -> Tensor:
    """The number of items."""
    return torch.tensor(len(items), dtype=torch.int64)


@raw("SequenceInsert")
def sequence_insert(
    call: Call, items: list[Value], item: Value, position: Tensor | None = None
) -> list[Value]:
    """A copy with an item put before `position`, at the end by default."""
    place = len(items) if position is None else int(position)
    if not -len(items) <= place <= len(items):
        raise IndexError(f"position {place} in a sequence of {len(items)}")
    place = place + len(items) if place < 0 else place
    return [*items[:place], item, *items[place:]]


@raw("SequenceErase")
def sequence_erase(call: Call, items: list[Value], position: Tensor | None = None) -> list[Value]:
    """A copy without the item at `position`, the last by default."""
    place = len(items) - 1 if position is None else int(position) % len(items)
    return items[:place] + items[place + 1 :]


@raw("SequenceMap")
def sequence_map(call: Call, items: list[Value], *extra: Value) -> tuple[list[Value], ...]:
    """body(item, extra...) for every item; extra sequences go along item by item."""
    columns: list[list[Value]] = [[] for _ in call.wanted]
    for index, item in enumerate(items):
        others = [e[index] if isinstance(e, list) else e for e in extra]
        results = call.bodies["body"]([item, *others])
        for column, result in zip(columns, results, strict=True):
            column.append(result)
    return tuple(columns)


@raw("SplitToSequence")
def split_to_sequence(call: Call, x: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
    """Parts of an axis: of the given sizes, of one size, or of one element each."""
    axis = call.get_int("axis", 0)
    if sizes is None:
        parts = x.split_with_sizes([1] * x.shape[axis], axis)
        return list(parts) if call.get_int("keepdims", 1) else [p.squeeze(axis) for p in parts]
    if sizes.ndim == 0:  # equal parts, the last one shorter
        step, length = int(sizes), x.shape[axis]
        given = [min(step, length - start) for start in range(0, length, step)]
    else:
        given = integers(sizes)
    return list(x.split_with_sizes(given, axis))


@raw("ConcatFromSequence")
def concat_from_sequence(call: Call, items: list[Tensor]) -> Tensor:
    """The items joined along an axis, or stacked along a new one."""
    join = torch.stack if call.get_int("new_axis", 0) else torch.cat
    return join(items, call.get_int("axis", 0))


@raw("Optional")
def optional(call: Call, value: Value = None) -> Value:
    """An optional value: the input, or absent."""
    return value


@raw("OptionalHasElement")
def optional_has_element(call: Call, value: Value = None) -> Tensor:
    """Whether the value is there."""
    return torch.tensor(value is not None)


@raw("OptionalGetElement")
def optional_get_element(call: Call, value: Value) -> Value:
    """The value; an error where it is absent."""
    if value is None:
        raise ValueError("the optional value is absent")
    return value
