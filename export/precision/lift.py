"""Bring up by powers of two what FP16 would hold as subnormals for the most part: the laws of overflow, reversed.

    y = x W, read by a linear V or a norm      ->      y 2^k = x (W 2^k),  V 2^-k;  a norm drops the factor
    y = x W, read by anything else             ->      y = (x (W 2^k)) 2^-k,  one Mul more

The first brings up y as well, and needs room in its whole stream and weights on both sides that can take the factor.
Exact in FP32 but for subnormal numbers. What neither can bring up stays wide; what cannot be wide either is named.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ...graph.type_names import type_name
from .islands import only_added, only_hides
from .laws import Kind, Law, operand
from .report import PrecisionReport, Scaled
from .rescale import COPIED, Rescaling
from .sizes import Sizes
from .structure import Reasons, all_nodes
from .subnormal import bits_to_hold, room_to_shrink

_NO_END = 32  # bits that a norm's epsilon can take squared, and FP32 anyhow


@dataclass(frozen=True, slots=True)
class _Wish:
    """By how many bits a stream must grow at least, and how many are better; for whose sake."""

    least: int
    bits: int
    because: ir.Value


def lift_streams(sizes: Sizes, wide: Reasons, report: PrecisionReport) -> None:
    """Give exponents below 0 to the streams that hold what is too faint, or are written by it: before the rewrite."""
    streams = sizes.streams
    for roots, wish in _wishes(sizes, wide).items():
        room = _room(roots, sizes, wide)
        if room < wish.least:
            continue
        bits = min(room, wish.bits)
        streams.lift(roots, bits, wide)
        weight = streams.constant(wish.because)
        size = sizes.size(wish.because) if weight is None else sizes.weights.largest(weight)
        members = tuple(str(v.name) for root in roots for v in streams.members[root])
        report.streams.append(Scaled(-bits, str(wish.because.name), size, members))


def lift_weights(rescaling: Rescaling, sizes: Sizes, wide: Reasons) -> None:
    """Let each weight that is too faint still grow alone, with a Mul behind its readers: after the rewrite."""
    streams = sizes.streams
    nodes = [node for node in streams.graph if node not in wide]
    for weight in {w: None for node in nodes for w in _faint_constants(node, sizes)}:
        readers = _readers(weight, sizes)
        if readers is None or weight.is_graph_output():
            continue
        least, bits = bits_to_hold(sizes.weights.faint(weight).rms)
        rooms = [_grow(sizes.weights.largest(weight), sizes)]
        for node, index in readers:
            rooms.append(_room_behind(node, index, rescaling, sizes, wide))
        if min(rooms) >= least:
            rescaling.lift(weight, readers, min(*rooms, bits))


def still_faint(model: ir.Model, rescaling: Rescaling, sizes: Sizes, wide: Reasons) -> Reasons:
    """The nodes outside `wide` that read or give what is too faint still, each with the share of it that is lost."""
    found: Reasons = {}
    held = {v: f for v, f in sizes.held_faint(rescaling).items() if f.too_faint}
    for node in all_nodes(model.graph):
        if node in wide:
            continue
        for weight in _faint_constants(node, sizes):
            found.setdefault(node, _words(weight, sizes.weights.faint(weight).lost))
        for value in (*node.inputs, *node.outputs):
            if value is not None and value in held and not only_added(value, held, sizes.options):
                found.setdefault(node, _words(value, held[value].lost))
    return found


def lost_at_edges(model: ir.Model, rescaling: Rescaling, sizes: Sizes) -> list[str]:
    """What inputs and outputs lose that are 16 bit because the caller wants them so: once the graph is typed."""
    held = sizes.held_faint(rescaling)
    return [
        f"{_words(v, held[v].lost)}, as an input or output in {type_name(v.dtype)}"
        for v in dict.fromkeys((*model.graph.inputs, *model.graph.outputs))
        if v in held and held[v].too_faint and v.dtype == sizes.options.low
    ]


def _words(value: ir.Value, lost: float) -> str:
    return f"{value.name} would lose {min(lost, 1.0):.2g} of its energy among the subnormals"


def _wishes(sizes: Sizes, wide: Reasons) -> dict[tuple[ir.Value, ...], _Wish]:
    """Streams that grow together, by their roots -> what it takes to bring up their members and the weights that write them."""
    streams = sizes.streams
    wishes: dict[tuple[ir.Value, ...], _Wish] = {}
    groups: dict[ir.Value, tuple[ir.Value, ...]] = {}

    def wish(value: ir.Value, rms: float, because: ir.Value) -> None:
        root = streams.root(value)
        if root not in streams.members:
            return
        if root not in groups:
            found = _together(root, sizes)
            groups.update(dict.fromkeys(found, found))
        least, bits = bits_to_hold(rms)
        known = wishes.get(groups[root])
        if known is None or known.least < least:
            wishes[groups[root]] = _Wish(least, bits, because)

    faint = {value: f for value, f in sizes.faint.items() if f.too_faint}
    for node in streams.graph:
        if node in wide:
            continue
        for weight in _faint_constants(node, sizes):
            wish(node.outputs[0], sizes.weights.faint(weight).rms, weight)
        for value in (*node.inputs, *node.outputs):
            if value is not None and value in faint and not only_added(value, faint, sizes.options):
                wish(value, faint[value].rms, value)
    return wishes


def _faint_constants(node: ir.Node, sizes: Sizes) -> Iterator[ir.Value]:
    """Weights that a node multiplies or picks from, and that lose too much. What is only added counts with its sum."""
    law = sizes.streams.laws.get(node)
    added = () if law is None else law.weights[law.kind is Kind.NORM :]
    for index, value in enumerate(node.inputs):
        weight = sizes.streams.constant(value)
        if value is None or weight is None or index in added or only_hides(node, weight):
            continue
        moved = any(v in sizes.streams.constants for v in node.outputs)  # then its readers count
        if not moved and sizes.weights.faint(weight).too_faint:
            yield weight


def _grow(size: float, sizes: Sizes) -> int:
    """By how many bits a number may grow."""
    return math.floor(math.log2(sizes.options.limit / size)) if size else _NO_END


def _together(root: ir.Value, sizes: Sizes) -> tuple[ir.Value, ...]:
    """The roots of the streams that a factor passes through from this one: values of an attention and its result."""
    streams, roots = sizes.streams, [root]
    for known in roots:
        for node in itertools.chain(*streams.boundary(known)):
            linked = {streams.root(v) for v in streams.link(node) or ()}
            if known in linked:
                roots += [r for r in linked if r in streams.members and r not in roots]
    return tuple(roots)


def _room(roots: tuple[ir.Value, ...], sizes: Sizes, wide: Reasons) -> int:
    """By how many bits these streams may grow without a new node inside the graph."""
    streams = sizes.streams
    if any(root in streams.locked or streams.exponents.get(root) for root in roots):
        return 0
    members = {v for root in roots for v in streams.members[root]}
    if any(not sizes.known(v) for v in members):
        return 0
    ends = [streams.boundary(root) for root in roots]
    writers = {node: None for found, _ in ends for node in found}
    readers = {node: None for _, found in ends for node in found}
    rooms = [_grow(sizes.size(v), sizes) for v in members]
    rooms += [_writing(node, members, sizes) for node in writers]
    rooms += [_reading(node, members, sizes, wide) for node in readers]
    return min(rooms)


def _alone(value: ir.Value | None, sizes: Sizes) -> ir.Value | None:
    """The weight behind a constant operand, where it can change for this reader."""
    weight = sizes.streams.constant(value)
    if weight is None or weight.is_graph_output():
        return None
    small = weight is value and sizes.weights.size(weight) <= COPIED
    return weight if small or len(weight.uses()) == 1 else None


def _growing(node: ir.Node, indices: tuple[int, ...], sizes: Sizes) -> int:
    """By how many bits the constants that a node reads there may grow; not at all where one is none."""
    present = [v for i in indices if (v := operand(node, i)) is not None]
    weights = [_alone(v, sizes) for v in present]
    return min(
        (0 if w is None else _grow(sizes.weights.largest(w), sizes) for w in weights),
        default=_NO_END,
    )


def _writing(node: ir.Node, members: set[ir.Value], sizes: Sizes) -> int:
    law = sizes.streams.laws[node]
    linked = sizes.streams.link(node)
    if linked is not None:
        return _NO_END if linked[0] in members else 0
    outside = tuple(i for i in law.data if operand(node, i) not in members)
    if law.kind is Kind.SAME:
        return _growing(node, outside, sizes)
    if law.kind is Kind.PRODUCT:
        factors = tuple(i for i in law.data if sizes.streams.constant(operand(node, i)) is not None)
        return _growing(node, (*factors[-1:], *law.weights), sizes) if factors else 0
    if law.kind is not Kind.NORM:
        return 0
    sums = outside if law.total is not None and node.outputs[law.total] in members else ()
    scales = law.weights if node.outputs[0] in members else ()
    if node.outputs[0] in members and not scales:
        return 0
    return _growing(node, (*sums, *scales), sizes)


def _reading(node: ir.Node, members: set[ir.Value], sizes: Sizes, wide: Reasons) -> int:
    law = sizes.streams.laws[node]
    places = [i for i in range(len(node.inputs)) if operand(node, i) in members]
    if not set(places) <= set(law.data):
        return 0
    linked = sizes.streams.link(node)
    if linked is not None and (linked[0] in members) == (linked[1] in members):
        others = [i for i in places if operand(node, i) is not linked[0]]
        scaled = law.kind is Kind.ATTENTION and node.attributes.get_float("scale", 0.0) != 0
        return 0 if others and not scaled else _NO_END
    if law.kind in (Kind.SAME, Kind.NORM):
        return _NO_END
    if law.kind is not Kind.PRODUCT or len(places) != 1:
        return 0
    weight = _alone(operand(node, law.data[1 - law.data.index(places[0])]), sizes)
    if weight is None:
        return 0
    return _NO_END if node in wide else room_to_shrink(sizes.weights.faint(weight).rms)


def _readers(weight: ir.Value, sizes: Sizes) -> list[tuple[ir.Node, int]] | None:
    """Who reads the weight, through moves too; None where the moved form cannot be followed."""
    found: list[tuple[ir.Node, int]] = []
    values = [weight]
    for value in values:
        for use in value.uses():
            moved = [v for v in use.node.outputs if v in sizes.streams.constants]
            if not moved:
                found.append((use.node, use.idx))
            elif sizes.streams.constant(moved[0]) is weight:
                values.append(moved[0])
            else:
                return None
    return found


def _room_behind(
    node: ir.Node, index: int, rescaling: Rescaling, sizes: Sizes, wide: Reasons
) -> int:
    """By how many bits the result of a reader may grow before a Mul takes them back, and what is added with it."""
    law, result = sizes.streams.laws.get(node), node.outputs[0]
    if law is None or not _scales_result(law, index) or not sizes.known(result):
        return 0
    room = _growing(node, rescaling.companions(node, index), sizes)
    size = sizes.size(result) * 2.0 ** -rescaling.held.get(result, 0)
    return room if node in wide else min(room, _grow(size, sizes))


def _scales_result(law: Law, index: int) -> bool:
    """Whether a factor of this operand is a factor of the first output, and of no other."""
    if law.outputs != (0,):
        return False
    if law.kind is Kind.PRODUCT:
        return index in law.data
    return (
        law.data == (index,)
        if law.kind is Kind.SAME
        else law.kind is Kind.NORM and index in law.weights
    )
