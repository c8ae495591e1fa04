"""Operands: swapped, taken from elsewhere, or missing."""

from collections.abc import Iterator

import onnx_ir as ir
import torch

from ..sides import GraphSide
from .case import Case, Cause, Edit

NEAR = 8  # earlier values of the same shape that are tried where no graph says what the reference reads
_ORDERLESS = frozenset({"Add", "Mul", "And", "Or", "Max", "Min", "Equal", "Sum"})


def swapped(case: Case) -> Iterator[Cause]:
    """Two inputs of one node, exchanged."""
    for number, node in enumerate(case.region.nodes):
        if len(node.inputs) < 2 or node.op_type in _ORDERLESS:
            continue
        for one in range(len(node.inputs) - 1):
            for two in range(one + 1, len(node.inputs)):
                if case.repaired(_swap(number, one, two)):
                    a, b = (getattr(node.inputs[i], "name", None) for i in (one, two))
                    text = f"{node.op_type} takes {a} and {b} in the wrong order"
                    yield Cause("swapped operands", text, {"operands": [a, b]}, node=node.name)
                    return


def _swap(number: int, one: int, two: int) -> Edit:
    def edit(graph: ir.Graph) -> None:
        node = graph.node(number)
        a, b = node.inputs[one], node.inputs[two]
        node.replace_input_with(one, b)
        node.replace_input_with(two, a)

    return edit


def elsewhere(case: Case) -> Iterator[Cause]:
    """One input is another value of the other side: what its graph reads there, or an earlier one of that shape."""
    mine = [str(v.name) for v in case.region.inputs]
    for name, rivals in _rivals(case, mine).items():
        values = case.fetch(rivals)
        for rival in rivals:
            value = values.get(rival)
            if value is None or value.shape != case.evidence.given[name].shape:
                continue
            if case.repaired(given={name: value}):
                own, other = case.sides(name, rival)
                text = f"it reads {own}, the reference reads {other}"
                facts = {"candidate": own, "reference": other}
                yield Cause("wrong operand", text, facts, node=case.reader(name))
                return


def missing(case: Case) -> Iterator[Cause]:
    """The error is a value that one side adds and the other does not."""
    error = case.actual - case.expected
    names = _earlier(case, tuple(error.shape))
    for name, value in case.fetch(names).items():
        x = value.double()
        if x.shape != error.shape:
            continue
        for sign, word in ((-1.0, "missing operand"), (1.0, "operand too many")):
            if case.close(error, sign * x) and float(x.abs().max()) > 0:
                have = "is not added" if sign < 0 else "is added once too often"
                text = f"the error is {name} itself: it {have}"
                yield Cause(word, text, {"operand": name})
                return
    yield from _missing_before(case)


def _missing_before(case: Case) -> Iterator[Cause]:
    """An input of the region lacks a term: with an earlier value added to it the error is gone."""
    for name, x in case.evidence.given.items():
        if not x.is_floating_point():
            continue
        own = case.setting.mapping.pairs.get(name)
        names = [n for n in _earlier(case, tuple(x.shape)) if n != own]
        for rival, value in case.fetch(names).items():
            if value.shape == x.shape and case.repaired(given={name: x.double() + value.double()}):
                text = f"{rival} is not added to {name}: with it the error is gone"
                yield Cause("missing operand", text, {"operand": rival}, node=case.reader(name))
                return


def _rivals(case: Case, mine: list[str]) -> dict[str, list[str]]:
    """Input of the region -> names on the other side that may belong there."""
    pairs = case.setting.mapping.pairs
    if case.twin is not None:
        theirs = [str(v.name) for v in case.twin.inputs]
        own = {pairs.get(n, n) for n in mine}
        only_mine = [n for n in mine if pairs.get(n, n) not in theirs]
        only_theirs = [n for n in theirs if n not in own]
        used = only_theirs or theirs
        return {n: used for n in only_mine or mine if n in pairs}
    return {
        n: [e for e in _earlier(case, tuple(case.evidence.given[n].shape)) if e != pairs[n]]
        for n in mine
        if n in pairs
    }


def _earlier(case: Case, shape: tuple[int, ...]) -> list[str]:
    """The nearest values of the other side before the region that have this shape, and the twin's inputs."""
    setting = case.setting
    names = list(setting.theirs)
    stop = names.index(setting.mapping.pairs[case.region.name])
    near = [n for n in reversed(names[:stop]) if setting.theirs[n].shape == shape][:NEAR]
    twin = [str(v.name) for v in case.twin.inputs] if case.twin is not None else []
    return list(dict.fromkeys([*(n for n in twin if n in setting.theirs), *near]))


def bias(case: Case) -> Iterator[Cause]:
    """The error is the same in every row: a bias is missing, or too many."""
    error = (case.actual - case.expected).reshape(-1, case.actual.shape[-1])
    if len(error) < 4:
        return
    mean = error.mean(0)
    if float(mean.abs().max()) == 0 or not _close_to(case, error, mean):
        return
    for name, tensor in _vectors(case).items():
        if tensor.shape == mean.shape:
            for sign, kind in ((-1, "missing bias"), (1, "bias too many")):
                if _close_to(case, sign * tensor.expand_as(error), mean):
                    text = f"the error is the same in every row and equals {name}: it is {'not added' if sign < 0 else 'added once too often'}"
                    yield Cause(kind, text, {"bias": name})
                    return
    text = "the error is the same in every row: a bias is missing or another one"
    yield Cause("missing bias", text, {"largest": float(mean.abs().max())})


def _close_to(case: Case, error: torch.Tensor, mean: torch.Tensor) -> bool:
    allowed = case.evidence.error
    limit = 4 * max(allowed.noise, allowed.unit) * float(case.expected.square().mean().sqrt())
    return float((error - mean).square().mean().sqrt()) <= limit


def _vectors(case: Case) -> dict[str, torch.Tensor]:
    """The one-axis weights that the other side has here."""
    found = {}
    other = case.setting.other
    if isinstance(other, GraphSide) and case.twin is not None:
        for value in case.twin.weights:
            weight = other.weight(str(value.name))
            if weight is not None and weight.ndim == 1 and weight.is_floating_point():
                found[str(value.name)] = weight.double()
    own = case.region.name
    if (weight := other.weight(f"{own}.bias")) is not None:
        found[f"{own}.bias"] = weight.double()
    return found
