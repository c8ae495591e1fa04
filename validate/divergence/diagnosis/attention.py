"""Attention: which keys a query sees, and which key head a query head reads."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from ..walk import judge_error
from .case import Case, Cause, Edit, edited


def masks(case: Case) -> Iterator[Cause]:
    """The mask that explains each side: causal, shifted by some keys, or none."""
    for number, node in enumerate(case.region.nodes):
        if node.op_type != "Attention" or len(node.outputs) != 1:
            continue
        reference = _seen_by(case, number, case.expected)
        candidate = _seen_by(case, number, case.actual)
        if reference is None or candidate is None or reference == candidate:
            continue
        text = f"a query sees {candidate.words()}, in the reference {reference.words()}"
        text += candidate.off_by(reference)
        facts = {"candidate": candidate, "reference": reference}
        yield Cause("mask", text, facts, node=node.name)
        return


@dataclass(frozen=True, slots=True)
class Seen:
    """Which keys a query sees: from `window` - 1 before its own position (None: all) to `ahead` after it (None: all)."""

    ahead: int | None
    window: int | None = None

    def words(self) -> str:
        if self.ahead is None:
            return "every key"
        if self.window is not None:
            return f"the last {self.window} keys"
        if self.ahead == 0:
            return "keys up to its own position (causal)"
        side = "beyond" if self.ahead > 0 else "short of"
        return f"keys up to {abs(self.ahead)} {side} its own position"

    def off_by(self, other: "Seen") -> str:
        """ ": off by 1 key" where one number differs."""
        pair = (
            (self.window, other.window)
            if self.window and other.window
            else (self.ahead, other.ahead)
        )
        if None in pair or pair[0] == pair[1]:
            return ""
        step = abs(pair[0] - pair[1])  # type: ignore[operator]
        return f": off by {step} key{'s' if step > 1 else ''}"

    def mask(self, size: int) -> np.ndarray:
        """bool [queries, keys]"""
        seen = (
            np.ones((size, size), bool)
            if self.ahead is None
            else np.tril(np.ones((size, size), bool), self.ahead)
        )
        if self.window is not None:
            seen &= ~np.tril(np.ones((size, size), bool), -self.window)
        seen[~seen.any(1)] = True
        return seen


def _hypotheses(size: int) -> Iterator[Seen]:
    yield from (Seen(ahead) for ahead in (0, 1, -1, 2, -2, None))
    for power in range(1, size.bit_length()):
        yield from (
            Seen(0, window)
            for window in (2**power, 2**power + 1, 2**power - 1)
            if 1 < window < size
        )


def _seen_by(case: Case, number: int, value: torch.Tensor) -> Seen | None:
    """The mask that gives `value`; None if no hypothesis does."""
    size = value.shape[-2]
    for seen in _hypotheses(size):
        forced = edited(case.evidence.forced, _masked(number, seen, size))
        try:
            computed = forced.compute(case.evidence.given)
        except Exception:  # a mask that this form of the operator cannot take
            return None
        if not judge_error(value, computed, [computed], case.evidence.unit).diverged:
            return seen
    return None


def _masked(number: int, seen: Seen, size: int) -> Edit:
    def edit(graph: ir.Graph) -> None:
        node = graph.node(number)
        for key in ("is_causal", "left_window_size", "right_window_size"):
            node.attributes.pop(key, None)
        array = seen.mask(size)
        mask = ir.Value(name="mask/repaired", const_value=ir.tensor(array, name="mask/repaired"))
        mask.dtype, mask.shape = ir.DataType.BOOL, ir.Shape(array.shape)
        graph.register_initializer(mask)
        if len(node.inputs) < 4:
            node.resize_inputs(4)
        node.replace_input_with(3, mask)

    return edit


def unrotated(case: Case) -> Iterator[Cause]:
    """Rotary embedding reaches the queries and not the keys."""
    nodes = case.region.nodes
    rotations = [n for n in nodes if n.op_type == "RotaryEmbedding"]
    for number, node in enumerate(nodes):
        if node.op_type != "Attention" or len(rotations) != 1:
            continue
        makers = [v.producer() if v is not None else None for v in node.inputs[:2]]
        if rotations[0] not in makers:
            continue
        index = 1 - makers.index(rotations[0])
        if case.repaired(_rotated(number, nodes.index(rotations[0]), index)):
            what = ("queries", "keys")[index]
            text = f"the {what} ({node.inputs[index].name}) are not rotated"  # type: ignore[union-attr]
            yield Cause("unrotated", text, {"input": what}, node=node.name)
            return


def _rotated(number: int, rotation: int, index: int) -> Edit:
    def edit(graph: ir.Graph) -> None:
        node, other = graph.node(number), graph.node(rotation)
        attributes = dict(other.attributes)
        key = "kv_num_heads" if index == 1 else "q_num_heads"
        if key in node.attributes:
            attributes["num_heads"] = ir.AttrInt64("num_heads", node.attributes[key].as_int())
        old = node.inputs[index]
        assert old is not None
        new = ir.Node("", "RotaryEmbedding", [old, *other.inputs[1:]], list(attributes.values()))
        new.outputs[0].name, new.outputs[0].type = "repaired/rotated", old.type
        graph.insert_before(node, new)
        node.replace_input_with(index, new.outputs[0])

    return edit


def mask_values(case: Case) -> Iterator[Cause]:
    """A mask computed as a value: on which diagonals (key - query) the two differ."""
    expected, actual = case.evidence.expected, case.evidence.actual
    if expected.ndim < 2 or min(expected.shape[-2:]) < 2:
        return
    masking = expected.dtype == torch.bool or bool((expected.double() <= -1e4).any())
    if not masking:
        return
    differs = expected.double() != actual.double()
    if expected.dtype != torch.bool:
        differs = (expected.double() <= -1e4) != (actual.double() <= -1e4)
    at = differs.reshape(-1, *differs.shape[-2:]).any(0).nonzero()
    offsets = sorted({int(k - q) for q, k in at})
    if not offsets:
        return
    some = ", ".join(map(str, offsets[:6])) + (", ..." if len(offsets) > 6 else "")
    few = len(offsets) <= 2
    text = f"the mask differs at {len(at)} query-key pairs, where key - query is {some}"
    if few:
        text += f": off by {len(offsets)} key{'s' if len(offsets) > 1 else ''}"
    yield Cause("mask", text, {"offsets": offsets[:16], "pairs": len(at)})


def head_mapping(case: Case) -> Iterator[Cause]:
    """Query head n reads key head n // group or n % groups."""
    for number, node in enumerate(case.region.nodes):
        if node.op_type != "Attention" or "q_num_heads" not in node.attributes:
            continue
        heads = node.attributes["q_num_heads"].as_int()
        kv = node.attributes["kv_num_heads"].as_int()
        for groups in (g for g in range(1, heads + 1) if heads % g == 0):
            for word, order in _orders(heads, kv, groups).items():
                if max(order) < kv and case.repaired(_reordered(number, order, kv)):
                    text = (
                        f"query heads read other key heads than the reference's: taking key heads "
                        f"{' '.join(map(str, order))} ({word}) gives its values"
                    )
                    yield Cause("head mapping", text, {"order": order}, node=node.name)
                    return


def _orders(heads: int, kv: int, groups: int) -> dict[str, list[int]]:
    size = heads // groups
    orders = {
        "each key head repeated for its group": [n // size for n in range(heads)],
        "key heads one after another, again and again": [n % groups for n in range(heads)],
        "key heads one after another, out of repeated ones": [
            (n % groups) * size for n in range(heads)
        ],
    }
    same = [n // max(heads // kv, 1) for n in range(heads)]
    return {word: order for word, order in orders.items() if order != same}


def _reordered(number: int, order: list[int], kv: int) -> Edit:
    """K and V with their heads picked by `order`, one for each query head."""

    def edit(graph: ir.Graph) -> None:
        node = graph.node(number)
        for index in (1, 2):
            old = node.inputs[index]
            assert old is not None
            shape = ir.Value(name=f"repaired/{index}/shape")
            picked = ir.Value(name=f"repaired/{index}/order")
            for made, array in (
                (shape, np.array([0, 0, kv, -1], np.int64)),
                (picked, np.array(order, np.int64)),
            ):
                made.const_value = ir.tensor(array, name=made.name)
                made.dtype, made.shape = ir.DataType.INT64, ir.Shape(array.shape)
                graph.register_initializer(made)
            flat = ir.Value(name=f"repaired/{index}/flat")
            array = np.array([0, 0, -1], np.int64)
            flat.const_value = ir.tensor(array, name=flat.name)
            flat.dtype, flat.shape = ir.DataType.INT64, ir.Shape(array.shape)
            graph.register_initializer(flat)
            apart = ir.Node("", "Reshape", [old, shape])
            pick = ir.Node("", "Gather", [apart.outputs[0], picked], [ir.AttrInt64("axis", 2)])
            back = ir.Node("", "Reshape", [pick.outputs[0], flat])
            for step, made_node in enumerate((apart, pick, back)):
                made_node.outputs[0].name = f"repaired/{index}/{step}"
                made_node.outputs[0].type = old.type
            graph.insert_before(node, [apart, pick, back])
            node.replace_input_with(index, back.outputs[0])
        node.attributes["kv_num_heads"] = ir.AttrInt64("kv_num_heads", len(order))

    return edit
