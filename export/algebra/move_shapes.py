"""Sizes after operators that move or make elements: slices, splits, gathers, concatenations, expansions, einsum."""

import itertools
from collections.abc import Sequence

import onnx_ir as ir

from . import symbols
from .content import Content
from .einsum import einsum_terms
from .symbols import Dim, Dims, Sym

_names = itertools.count()


def unknown() -> Sym:
    """A size that nothing is known of; equal to itself only."""
    return symbols.named(f"?{next(_names)}")


def broadcast(shapes: Sequence[Dims | None]) -> Dims | None:
    """The sizes that the tensors have together (ONNX multidirectional broadcasting)."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(len(s) for s in known)
    result: list[Dim] = []
    for position in range(rank):
        sizes = {s[position - rank] for s in known if position - rank >= -len(s)} - {1}
        if len(sizes) > 1:
            numbers = [s for s in sizes if isinstance(s, int)]
            result.append(numbers[0] if numbers else unknown())
        else:
            result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def sliced(size: Dim, start: object, end: object, step: object) -> Dim:
    """The length of size[start:end:step]."""
    if not isinstance(start, int) or not isinstance(step, int):
        return unknown()
    if isinstance(size, int) and isinstance(end, int):
        return len(
            range(*slice(start, end if step > 0 or end >= -size else None, step).indices(size))
        )
    if step != 1:
        return unknown()
    if start < 0 or (isinstance(end, int) and end < 0):
        low: Dim = symbols.add(size, start) if start < 0 else start
        high = size if isinstance(end, int) and end >= 2**31 - 1 else end
        if isinstance(high, int) and high < 0:
            high = symbols.add(size, high)
        if isinstance(high, int | Sym) and (high == size or not isinstance(high, int)):
            return symbols.subtract(high, low)
        return unknown()
    if (isinstance(end, int) and end >= 2**31 - 1) or end == size:
        return symbols.subtract(size, start)
    if isinstance(end, Sym) and isinstance(size, int):  # a table cut to a length: the length rules
        return symbols.subtract(end, start)
    return unknown()


def generated(op: str, dims: list[Dims | None], contents: list[Content | None]) -> Dims | None:
    """The sizes of Expand, ConstantOfShape and Range."""
    first = dims[0]
    if op == "Range":
        start, stop, step = (None if c is None else c.reshape(-1)[0] for c in contents[:3])
        if start == 0 and step == 1 and isinstance(stop, int | Sym):
            return (stop,)
        return (unknown(),)
    target = contents[1 if op == "Expand" else 0]
    if target is None:
        length = dims[1 if op == "Expand" else 0]
        if length is None or len(length) != 1 or not isinstance(length[0], int):
            return None
        rank = max(length[0], len(first or ())) if op == "Expand" else length[0]
        return tuple(unknown() for _ in range(rank))
    wanted: Dims = tuple(target.reshape(-1).tolist())
    return broadcast([first, wanted]) if op == "Expand" else wanted


def einsum(node: ir.Node, dims: list[Dims | None]) -> Dims | None:
    """The sizes of an einsum."""
    terms = einsum_terms(node, [None if d is None else len(d) for d in dims])
    if terms is None:
        return None
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms[0], dims, strict=True):
        for letter, size in zip(term, shape or (), strict=False):
            if sizes.get(letter, 1) == 1:
                sizes[letter] = size
    return tuple(sizes[c] for c in terms[1]) if all(c in sizes for c in terms[1]) else None


def moved(
    node: ir.Node,
    index: int,
    dims: list[Dims | None],
    contents: list[Content | None],
    axes: list[int] | None,
) -> Dims | None:
    """The sizes of the operators that move elements and keep them."""
    op, attributes, first = node.op_type, node.attributes, dims[0]
    assert first is not None
    if op == "Slice":
        starts, ends = contents[1], contents[2]
        steps = contents[4] if len(contents) > 4 else None
        result = list(first)
        at = axes if axes is not None else list(range(len(starts))) if starts is not None else None
        if at is None:
            return tuple(unknown() for _ in first)
        for i, axis in enumerate(at):
            start = starts.reshape(-1)[i] if starts is not None else None
            end = ends.reshape(-1)[i] if ends is not None else None
            step = steps.reshape(-1)[i] if steps is not None else 1
            result[axis] = sliced(first[axis], start, end, step)
        return tuple(result)
    axis = attributes.get_int("axis", -1 if op == "Concat" else 0) % max(len(first), 1)
    if op == "Concat":
        if any(d is None for d in dims):
            return None
        size: Dim = 0
        for d in dims:
            assert d is not None
            size = symbols.add(size, d[axis])
        return (*first[:axis], size, *first[axis + 1 :])
    if op == "Gather":
        return None if dims[1] is None else (*first[:axis], *dims[1], *first[axis + 1 :])
    if op == "Split":
        sizes = contents[1] if len(contents) > 1 else None
        if sizes is None and "split" in attributes:
            length: Dim = attributes["split"].as_ints()[index]
        elif sizes is not None:
            length = sizes.reshape(-1)[index]
        else:
            count = attributes.get_int("num_outputs", len(node.outputs))
            exact = symbols.divide(first[axis], count)
            length = exact if exact is not None else unknown()
        return (*first[:axis], length, *first[axis + 1 :])
    if op == "Tile" and contents[1] is not None:
        return tuple(
            symbols.multiply(d, r)
            for d, r in zip(first, contents[1].reshape(-1).tolist(), strict=True)
        )
    if op == "Flatten":
        axis = attributes.get_int("axis", 1)
        axis += len(first) if axis < 0 else 0
        return (symbols.product(first[:axis]), symbols.product(first[axis:]))
    return None
