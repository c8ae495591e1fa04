"""Which value of one side is which value of the other.

names       the same name and shape; a name that says nothing (val_12) counts only if the operators agree
positions   where names fail: equal numbers first, then topological order with operator and shape
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import onnx_ir as ir

from .sides import GraphSide, Seen, Side

How = Literal["names", "positions"]
_ANONYMOUS = re.compile(r"/?[A-Za-z]+_?\d*(_output_\d+)?|\d+|.*/[A-Za-z]+_\d+(_output_\d+)?")
ENOUGH = 0.3  # of the smaller side's values, from which names are believed
PRINT = 0.02  # how far prints of equal values may differ, relative to their size


@dataclass(frozen=True, slots=True)
class Mapping_:
    """pairs: value of the graph -> value of the other side. how: by what. sizes: values on each side."""

    pairs: Mapping[str, str]
    how: How
    graph_values: int
    other_values: int


def map_values(
    graph: GraphSide, other: Side, seen: Mapping[str, Seen], theirs: Mapping[str, Seen]
) -> Mapping_:
    """Map what `graph` computes (`seen`) to what `other` showed (`theirs`)."""
    named = _by_names(graph, other, seen, theirs)
    least = min(len(seen), len(theirs))
    how: How = "names"
    if len(named) < ENOUGH * least and len(theirs) > len(graph.model.graph.outputs):
        placed = _by_positions(graph, other, seen, theirs)
        if len(placed) > len(named):
            named, how = placed, "positions"
    _map_outputs(graph, other, named, seen, theirs)
    return Mapping_(named, how, len(seen), len(theirs))


def _by_names(
    graph: GraphSide, other: Side, seen: Mapping[str, Seen], theirs: Mapping[str, Seen]
) -> dict[str, str]:
    pairs = {}
    for name, mine in seen.items():
        their = theirs.get(name)
        if their is None or their.shape != mine.shape or not _same_kind(mine, their):
            continue
        if isinstance(other, GraphSide) and _ANONYMOUS.fullmatch(name):
            one, two = graph.values[name].producer(), other.values[name].producer()
            if one is None or two is None or one.op_type != two.op_type:
                continue
        pairs[name] = name
    return pairs


def _same_kind(one: Seen, two: Seen) -> bool:
    return one.dtype.is_floating_point == two.dtype.is_floating_point


def _by_positions(
    graph: GraphSide, other: Side, seen: Mapping[str, Seen], theirs: Mapping[str, Seen]
) -> dict[str, str]:
    """Equal numbers pin values down up to the fault; order, operator and shape carry on from there."""
    pairs = _by_prints(seen, theirs)
    taken = set(pairs.values())
    mine = list(seen)
    their = list(theirs)
    keys = [_key(graph, n, seen[n], pairs) for n in mine]
    there = {b: a for a, b in pairs.items()}
    other_keys = [_key(other, n, theirs[n], there, reverse=True) for n in their]
    matcher = SequenceMatcher(None, keys, other_keys, autojunk=False)
    for one, two, length in matcher.get_matching_blocks():
        for i in range(length):
            a, b = mine[one + i], their[two + i]
            if a not in pairs and b not in taken:
                pairs[a] = b
                taken.add(b)
    return {name: pairs[name] for name in seen if name in pairs}


def _key(
    side: Side, name: str, seen: Seen, pinned: Mapping[str, str], *, reverse: bool = False
) -> tuple[object, ...]:
    if name in pinned:
        return ("pinned", pinned[name] if reverse else name)
    kind = "?"
    if isinstance(side, GraphSide):
        producer = side.values[name].producer()
        kind = producer.op_type if producer is not None else "?"
    return (kind, seen.shape, seen.dtype.is_floating_point)


def _by_prints(seen: Mapping[str, Seen], theirs: Mapping[str, Seen]) -> dict[str, str]:
    """Pairs of equal shape whose prints agree; in order, each value once."""
    by_shape: dict[tuple[object, ...], list[str]] = {}
    for name, value in theirs.items():
        by_shape.setdefault((value.shape, value.dtype.is_floating_point), []).append(name)
    pairs: dict[str, str] = {}
    for name, value in seen.items():
        rivals = by_shape.get((value.shape, value.dtype.is_floating_point), [])
        near = [(distance, r) for r in rivals if (distance := _apart(value, theirs[r])) < PRINT]
        if near:
            best = min(near, key=lambda pair: pair[0])[1]
            pairs[name] = best
            rivals.remove(best)
    return pairs


def _apart(one: Seen, two: Seen) -> float:
    size = max(one.print[1], two.print[1])
    if size == 0:
        return 0.0
    return max(abs(a - b) for a, b in zip(one.print, two.print, strict=True)) / size


def _map_outputs(
    graph: GraphSide,
    other: Side,
    pairs: dict[str, str],
    seen: Mapping[str, Seen],
    theirs: Mapping[str, Seen],
) -> None:
    """Outputs of two graphs, or of a graph and a module, correspond in order if nothing else says so."""
    names = [str(v.name) for v in graph.model.graph.outputs]
    if isinstance(other, GraphSide):
        rivals = [str(v.name) for v in other.model.graph.outputs]
    else:
        rivals = list(getattr(other, "outputs", ()))
    if len(rivals) != len(names):
        return
    for name, rival in zip(names, rivals, strict=True):
        ours, their = seen.get(name), theirs.get(rival)
        free = name not in pairs and rival not in pairs.values()
        if free and ours is not None and their is not None and ours.shape == their.shape:
            pairs[name] = rival


def producer_of(graph: GraphSide, name: str) -> ir.Node:
    """The node that gives the value `name`."""
    node = graph.values[name].producer()
    assert node is not None
    return node
