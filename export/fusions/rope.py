"""Rotary position embedding in any spelling: each pair of lanes of x turned by one angle, the other lanes untouched.

y[i] = x[i] * cos[k] - x[j] * sin[k]
y[j] = x[j] * cos[k] + x[i] * sin[k]        j = i + half (rotate-half) or i + 1 (interleaved)
"""

from collections.abc import Iterator
from dataclasses import replace

import onnx_ir as ir

from ..algebra.coefficients import Coefficient
from ..algebra.facts import TRANSPARENT, Facts
from ..algebra.lane_shapes import Lanes
from ..algebra.lanes import LaneReader
from .match import Match, Refusal, escaping, node_name, region
from .rope_operator import Rotation, standard_rope
from .rope_starts import starts_rotation

MOVES = {
    "Concat",
    "Unsqueeze",
    "Squeeze",
    "Reshape",
    "Transpose",
    "Expand",
    "ScatterND",
    *TRANSPARENT,
}


def find_ropes(facts: Facts) -> Iterator[Match | Refusal]:
    """Every rotary embedding of the graph, and every sum that is nearly one."""
    reader = LaneReader(facts)
    done: set[ir.Value] = set()
    for node in facts.nodes:
        if node.domain or not node.outputs or node.outputs[0] in done:
            continue
        if not starts_rotation(facts, node):
            continue
        found, reason = _climb(facts, reader, node.outputs[0], done)
        if found is not None:
            yield _match(facts, reader, found)
        elif reason:
            yield Refusal("rope", reason, node_name(node))


def _climb(
    facts: Facts, reader: LaneReader, start: ir.Value, done: set[ir.Value]
) -> tuple[Rotation | None, str]:
    """The largest rotation that `start` is a part of."""
    best, reason = None, ""
    frontier, steps = [start], 0
    while frontier and steps < 16:
        value = frontier.pop()
        steps += 1
        dims = facts.dims(value)
        if not dims or (isinstance(dims[-1], int) and dims[-1] > 1024):
            continue
        if isinstance(dims[-1], int):
            lanes = reader.data(value, (dims[-1],))
            rotation, why = rotation_of(reader, value, lanes)
            if rotation is not None and value.producer() is not None:
                best = rotation
                done.add(value)
            reason = reason or why
        frontier += [
            user.outputs[0]
            for user in facts.users(value)
            if user.domain == "" and user.op_type in MOVES
        ]
    if best is not None:
        best = _below_casts(facts, best)
    return best, reason


def _below_casts(facts: Facts, found: Rotation) -> Rotation:
    value = found.root
    while (
        (node := value.producer()) is not None
        and node.op_type in TRANSPARENT
        and node.inputs[0] is not None
    ):
        value = node.inputs[0]
    return replace(found, root=value)


def rotation_of(reader: LaneReader, root: ir.Value, lanes: Lanes) -> tuple[Rotation | None, str]:
    """The rotation that `lanes` spell, read from their source or from a view of it."""
    sources = {t.source for terms in lanes for t in terms}
    if len(sources) == 2 and (why := _two_tensors(reader, lanes)):
        return None, why
    if len(sources) != 1 or not any(t.coefficient is not None for terms in lanes for t in terms):
        return None, ""
    source = sources.pop()
    count = len(lanes)
    reason = ""
    for value, places in _views(reader, source, count):
        rotation, why = _proven(value, root, lanes, places)
        if rotation is not None and not _one_angle(reader, rotation):
            rotation, why = None, "the cosines and the sines are of different angles"
        if rotation is not None:
            return rotation, ""
        reason = reason or why
    order = _order(lanes)
    if order is not None:
        rotation, _ = _proven(source, root, lanes, {at: lane for lane, at in enumerate(order)})
        if rotation is not None and _one_angle(reader, rotation):
            return replace(rotation, order=order), ""
    return None, reason


def _two_tensors(reader: LaneReader, lanes: Lanes) -> str:
    """What turns two tensors at once: x * cos + rotate_half(z) * sin."""
    first, second = (
        {
            t.source
            for terms in lanes
            for t in terms[at : at + 1]
            if _is_angle(reader, t.coefficient)
        }
        for at in (0, 1)
    )
    if len(first) != 1 or len(second) != 1 or first == second:
        return ""
    return f"the one factor is of {first.pop().name}, the other of {second.pop().name}"


def _is_angle(reader: LaneReader, coefficient: Coefficient | None) -> bool:
    return coefficient is not None and coefficient.meaning in reader.coefficients.angle_of


def _order(lanes: Lanes) -> tuple[int, ...] | None:
    """The source lane that each lane keeps (its factor is the cosine), where the pairs change their layout.

    DeepSeek reads neighbours and writes halves: 0, 2, 4, ... 1, 3, 5, ...
    """
    cosines = set()
    for terms in lanes:
        signs = {t.sign: t for t in terms}
        if len(terms) == 2 and len(signs) == 2 and (c := signs[1].coefficient) is not None:
            cosines.add(c.meaning)
    order = []
    for terms in lanes:
        own = [t for t in terms if t.coefficient is None or t.coefficient.meaning in cosines]
        if len(own) != 1:
            return None
        order.append(own[0].at)
    first, count = min(order), len(order)
    plain = range(count)
    layouts = (plain, [*plain[::2], *plain[1::2]], [i // 2 + (i % 2) * (count // 2) for i in plain])
    return tuple(order) if any([first + i for i in known] == order for known in layouts) else None


def _one_angle(reader: LaneReader, found: Rotation) -> bool:
    """Whether cosine and sine of every pair belong together, as far as the graph shows their angles."""
    angles = reader.coefficients.angle_of
    return all(
        angles.get(c.meaning) == angles.get(s.meaning)
        or c.meaning not in angles
        or s.meaning not in angles
        for c, s in zip(found.cosines, found.sines, strict=True)
    )


def _views(
    reader: LaneReader, source: ir.Value, count: int
) -> Iterator[tuple[ir.Value, dict[int, int]]]:
    """Values with `count` lanes that are a move of `source`, each with source lane -> own lane."""
    dims = reader.facts.dims(source)
    if dims and dims[-1] == count:
        yield source, {i: i for i in range(count)}
    for value, shape, lanes in reader.read():
        if shape != (count,) or value is source:
            continue
        pure = [terms[0] for terms in lanes if len(terms) == 1]
        if len(pure) == count and all(
            t.source is source and t.sign == 1 and t.coefficient is None for t in pure
        ):
            places = {t.at: i for i, t in enumerate(pure)}
            if len(places) == count:
                yield value, places


def _proven(
    x: ir.Value, root: ir.Value, lanes: Lanes, places: dict[int, int]
) -> tuple[Rotation | None, str]:
    own: dict[int, tuple[int, Coefficient]] = {}
    other: dict[int, tuple[int, int, Coefficient]] = {}
    passed = 0
    for lane, terms in enumerate(lanes):
        at = [places.get(t.at, -1) for t in terms]
        if (
            len(terms) == 1
            and terms[0].coefficient is None
            and terms[0].sign == 1
            and at[0] == lane
        ):
            passed += 1
            continue
        if (
            len(terms) != 2
            or any(t.coefficient is None for t in terms)
            or lane not in at
            or min(at) < 0
        ):
            return None, ""
        for t, position in zip(terms, at, strict=True):
            assert t.coefficient is not None
            if position == lane and lane not in own:
                own[lane] = (t.sign, t.coefficient)
            else:
                other[lane] = (position, t.sign, t.coefficient)
    width = len(own)
    if not width or width % 2 or sorted(own) != list(range(width)) or len(other) != width:
        return None, ""
    half = width // 2
    partner = {lane: position for lane, (position, _, _) in other.items()}
    if all(partner[i] == i + half and partner[i + half] == i for i in range(half)):
        pairs, interleaved = [(i, i + half) for i in range(half)], False
    elif all(partner[i] == i ^ 1 for i in range(width)):
        pairs, interleaved = [(i, i + 1) for i in range(0, width, 2)], True
    else:
        return None, "the lanes are paired in no order that RotaryEmbedding has"
    signs = {(other[i][1], other[j][1]) for i, j in pairs}
    if any(own[i][0] != 1 for i in own) or len(signs) != 1 or signs not in ({(-1, 1)}, {(1, -1)}):
        return None, "the signs are not those of a rotation"
    if any(own[i][1].meaning != own[j][1].meaning for i, j in pairs):
        return None, "the two lanes of a pair have different cosines"
    if any(other[i][2].meaning != other[j][2].meaning for i, j in pairs):
        return None, "the two lanes of a pair have different sines"
    backwards = signs == {(1, -1)}
    cosines = tuple(own[i][1] for i, _ in pairs)
    # of the two sines of a pair, the one that is read with its own sign
    sines = tuple(
        next((other[k][2] for k in (j, i) if other[k][2].sign == 1), other[j][2]) for i, j in pairs
    )
    return Rotation(x, root, width, interleaved, cosines, sines, backwards), ""


def _match(facts: Facts, reader: LaneReader, found: Rotation) -> Match | Refusal:
    where = node_name(found.root.producer())
    tables = {c.value: None for c in (*found.cosines, *found.sines)}
    used = {
        c.value
        for terms in reader.data(found.root, (facts_width(facts, found.root),))
        for t in terms
        if (c := t.coefficient)
    }
    leaves = [found.x, *tables, *(v for v in used if v not in tables)]
    span = region(facts, [found.root], leaves)
    if isinstance(span, ir.Value):
        return Refusal("rope", f"it also depends on {span.name}", where)
    nodes, sizes = span
    views = {
        value
        for value, _, lanes in reader.read()
        if all(t.coefficient is None for terms in lanes.reshape(-1) for t in terms)
    }
    escaped = [v for v in escaping(facts, nodes, [found.root]) if v not in views]
    if escaped:
        place = "a graph output" if escaped[0] in facts.outputs else "used elsewhere"
        return Refusal("rope", f"the inner value {escaped[0].name} is {place}", where)
    standard = standard_rope(facts, found)
    name = "RotaryInterleaved" if found.interleaved else "Rotary"
    match = Match("rope", name, [found.root], [*leaves, *sizes], nodes, standard)
    match.details = {"width": found.width, "interleaved": found.interleaved}
    return match


def facts_width(facts: Facts, value: ir.Value) -> int:
    """The number of lanes of a value's last axis."""
    dims = facts.dims(value)
    assert dims and isinstance(dims[-1], int)
    return dims[-1]
