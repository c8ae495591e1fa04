"""Attention scores, read back from the softmax: softcap(scale * Q K^T) plus masks, whatever their order and spelling."""

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ..algebra.facts import Facts

DEPTH = 24


@dataclass(frozen=True, slots=True)
class Masked:
    """Where(mask, scores, fill): `keep_when` is the mask's value where the score stays."""

    mask: ir.Value
    keep_when: bool
    fill: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """What a softmax reads."""

    product: ir.Node  # MatMul or Einsum of queries and keys
    scale: float = 1.0
    softcap: float = 0.0
    saturated: bool = False  # tanh taken, its factor still to come
    biases: tuple[tuple[ir.Value, float], ...] = ()
    masks: tuple[Masked, ...] = ()
    sink: ir.Value | None = None
    transposed: bool = False  # the softmax reads the product's transpose
    oddities: tuple[str, ...] = field(default=())  # what no standard operator has

    def odd(self, what: str) -> "Scores":
        return replace(self, oddities=(*self.oddities, what))


def read_scores(facts: Facts, value: ir.Value, depth: int = DEPTH) -> Scores | None:
    """The scores that `value` is, None where no product of two tensors is at its end."""
    value = facts.peel(value)
    node = value.producer()
    if node is None or node.domain or depth == 0:
        return None
    op = node.op_type
    inputs = [v for v in node.inputs if v is not None]
    if op == "MatMul" or (op == "Einsum" and len(inputs) == 2):
        return Scores(node) if not any(facts.constant(v) for v in inputs[1:]) else None
    if op in ("Mul", "Div"):
        return _scaled(facts, node, inputs, depth)
    if op == "Tanh":
        inner = read_scores(facts, inputs[0], depth - 1)
        if inner is None or inner.softcap or inner.sink is not None:
            return None
        if inner.biases or inner.masks:
            inner = inner.odd("the softcap bounds the mask as well")
        return replace(inner, saturated=True)
    if op == "Transpose":
        inner = read_scores(facts, inputs[0], depth - 1)
        if inner is None or not swaps_last(facts, node):
            return None
        if inner.biases or inner.masks or inner.sink:
            return None
        return replace(inner, transposed=not inner.transposed)
    if op in ("Reshape", "Unsqueeze", "Squeeze"):
        inner = read_scores(facts, inputs[0], depth - 1)
        return inner.odd("the scores change their axes") if inner is not None else None
    if op in ("Add", "Sum", "Sub") and len(inputs) == 2:
        return _biased(facts, node, inputs, depth)
    if op == "Where":
        return _masked(facts, inputs, depth)
    if op == "Concat" and len(inputs) == 2:
        inner = read_scores(facts, inputs[0], depth - 1)
        rank = len(facts.dims(value) or ())
        if inner is None or not rank or node.attributes.get_int("axis", -1) % rank != rank - 1:
            return None
        return replace(inner, sink=inputs[1]).odd("a sink joins the softmax")
    if op in ("Max", "Clip", "Min"):
        inner = read_scores(facts, inputs[0], depth - 1)
        bounded = all(facts.constant(v) for v in inputs[1:])
        return inner.odd("the scores are bounded") if inner is not None and bounded else None
    return None


def swaps_last(facts: Facts, node: ir.Node) -> bool:
    """Whether a Transpose swaps the last two axes and keeps the others."""
    rank = len(facts.dims(node.outputs[0]) or ())
    swap = [*range(rank - 2), rank - 1, rank - 2]
    return rank > 1 and list(node.attributes.get_ints("perm", [])) == swap


def _scaled(facts: Facts, node: ir.Node, inputs: list[ir.Value], depth: int) -> Scores | None:
    numbers = [facts.scalar(v) for v in inputs]
    if node.op_type == "Mul" and numbers[0] is not None and numbers[1] is None:
        inputs, numbers = inputs[::-1], numbers[::-1]
    if numbers[1] is None:
        inner = read_scores(
            facts, inputs[0], depth - 1
        )  # scaled by a tensor: of the position, of the graph's input
        tensor = inputs[1]
        if inner is None and node.op_type == "Mul":
            inner, tensor = read_scores(facts, inputs[1], depth - 1), inputs[0]
        if inner is None or not (facts.constant(tensor) or _small(facts, tensor)):
            return None
        return inner.odd(f"the scores are scaled by {tensor.name}")
    if not numbers[1]:
        return None
    factor = numbers[1] if node.op_type == "Mul" else 1 / numbers[1]
    inner = read_scores(facts, inputs[0], depth - 1)
    if inner is None:
        return None
    if inner.saturated:
        return replace(inner, saturated=False, softcap=factor, scale=inner.scale * factor)
    if inner.softcap or inner.masks:
        return inner.odd("a factor follows the softcap or mask")
    biases = tuple((v, f * factor) for v, f in inner.biases)
    return replace(inner, scale=inner.scale * factor, biases=biases)


def _small(facts: Facts, tensor: ir.Value) -> bool:
    """Whether a factor is no more than one number, or one matrix for every head: a mask of zeros and ones."""
    dims = facts.dims(tensor)
    return dims is not None and (
        dims in ((), (1,)) or (len(dims) > 1 and all(d == 1 for d in dims[:-2]))
    )


def _biased(facts: Facts, node: ir.Node, inputs: list[ir.Value], depth: int) -> Scores | None:
    inner, other = read_scores(facts, inputs[0], depth - 1), inputs[1]
    if node.op_type == "Sub":
        peak = facts.peel(other).producer()
        if inner is not None and peak is not None and peak.op_type == "ReduceMax":
            return inner  # the shift that keeps a softmax finite
        return inner.odd("a bias is subtracted") if inner is not None else None
    if inner is None:
        inner, other = read_scores(facts, inputs[1], depth - 1), inputs[0]
    if inner is None:
        return None
    return replace(inner, biases=(*inner.biases, (other, 1.0)))


def _masked(facts: Facts, inputs: list[ir.Value], depth: int) -> Scores | None:
    mask, first, second = inputs
    for keep, scores, fill in ((True, first, second), (False, second, first)):
        number = facts.scalar(fill)
        if number is None:
            node = facts.peel(fill).producer()
            spread = (
                node is not None
                and node.op_type in ("Expand", "ConstantOfShape")
                and node.domain == ""
            )
            number = (
                facts.scalar(node.inputs[0])
                if spread and node is not None and node.op_type == "Expand"
                else number
            )
            if number is None and not facts.constant(fill):
                continue
        inner = read_scores(facts, scores, depth - 1)
        if inner is not None:
            return replace(inner, masks=(*inner.masks, Masked(mask, keep, number)))
    return None
