"""Numbers that are not finite: refused in what is fed, let pass where they only hide scores, named everywhere else.

mask      -inf in a value that goes to a softmax, or to an Attention's mask, and nowhere else, or that a constant puts there
hidden    NaN in the rows that a mask hides whole, and in what is computed from them
unknown   everything else: the FP32 graph itself does not compute finite numbers there, so nothing is proven of them
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import torch

from ...core.errors import UsageError
from .masks import CARRIERS, small_constant
from .report import NonFinite
from .structure import all_nodes

_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_ENDS = _SOFTMAX | {"Exp", "ReduceMax"}  # e^-inf is 0, and the largest score is another one
_NO_OVERFLOW = 1e34  # |q| |k| below it: no sum over a head's channels leaves FP32's range


@dataclass(slots=True)
class Count:
    """How many numbers of a value are not finite, in the runs that show any; size: of how many there.

    feed: the first of these runs, counted from 1, or the first with more than -inf.
    """

    feed: int
    size: int
    nan: int = 0
    infinite: int = 0
    lowest: int = 0  # of the infinite ones: -inf

    def __add__(self, other: "Count") -> "Count":
        feed = other.feed if self.hides and not other.hides else self.feed
        sums = (self.nan + other.nan, self.infinite + other.infinite, self.lowest + other.lowest)
        return Count(feed, self.size + other.size, *sums)

    @property
    def hides(self) -> bool:
        """Nothing but -inf."""
        return not self.nan and self.infinite == self.lowest


def count(tensor: torch.Tensor, feed: int) -> Count:
    """Look at every number of one tensor."""
    numbers = tensor.float() if tensor.itemsize == 1 else tensor
    sums = (torch.isnan(numbers), torch.isinf(numbers), torch.isneginf(numbers))
    return Count(feed, numbers.numel(), *(int(found.sum()) for found in sums))


def require_finite(model: ir.Model, feeds: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Raise UsageError for a float input of `feeds` that is not finite, naming both; -inf in a mask is left."""
    inputs = {str(v.name): v for v in model.graph.inputs}
    known: dict[ir.Value, bool] = {}
    for number, feed in enumerate(feeds, 1):
        for name, tensor in feed.items():
            if name not in inputs or not tensor.is_floating_point():
                continue
            found = count(tensor, number)
            if not found.nan and not found.infinite:
                continue
            mask = only_hides(inputs[name], known)
            if found.hides and mask:
                continue
            bad = found.nan + found.infinite - (found.lowest if mask else 0)
            words = [
                f"{n} {kind}" for n, kind in ((found.nan, "NaN"), (found.infinite, "infinite")) if n
            ]
            raise UsageError(
                f"calibration input {name!r}, feed {number} of {len(feeds)}",
                found=f"{bad} of its {found.size} numbers are not finite ({', '.join(words)})",
                fix="Give numbers as the model reads them in use"
                + ("" if mask else "; only a mask that is added to scores may hold -inf"),
            )  # fmt: skip


def only_hides(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether all that reads the value carries it to a softmax or an Attention's mask. known: answers so far."""
    if value not in known:
        known[value] = bool(value.uses())
        known[value] = known[value] and all(
            _hides_there(use.node, use.idx, known) for use in value.uses()
        )
    return known[value]


def _hides_there(node: ir.Node, index: int, known: dict[ir.Value, bool]) -> bool:
    if node.op_type in _ENDS or (node.op_type == "Attention" and index == 3):
        return True
    results = [v for v in node.outputs if v.dtype is None or v.dtype.is_floating_point()]
    if not results:
        return bool(node.outputs)  # a test of the mask
    return node.op_type in CARRIERS and all(only_hides(v, known) for v in results)


@dataclass(frozen=True, slots=True)
class Judgement:
    """By names of values: those of which nothing is known, those whose finite numbers are all that counts, and why."""

    unknown: frozenset[str] = frozenset()
    partly: frozenset[str] = frozenset()
    causes: tuple[NonFinite, ...] = ()


def judge(model: ir.Model, counts: Mapping[str, Count], largest: Mapping[str, float]) -> Judgement:
    """What the numbers that are not finite mean. counts: of every value that has some; largest: finite magnitudes."""
    unknown: set[str] = set()
    partly = {str(v.name) for v in model.graph.inputs if v.name in counts}  # masks
    causes: list[NonFinite] = []
    known: dict[ir.Value, bool] = {}
    for node in all_nodes(model.graph):
        bad = [counts[str(v.name)] for v in node.inputs if v is not None and v.name in counts]
        doubtful = any(v is not None and v.name in unknown for v in node.inputs)
        for value in node.outputs:
            found = counts.get(str(value.name))
            if found is None:
                continue
            if not doubtful and (
                _mask(node, value, found, bad, known) or _hidden(node, found, counts, largest)
            ):
                partly.add(str(value.name))
                continue
            unknown.add(str(value.name))
            if not doubtful:
                causes.append(
                    NonFinite(
                        str(value.name), node.name or node.op_type, node.op_type,
                        found.feed, found.nan, found.infinite, found.size,
                    )
                )  # fmt: skip
    return Judgement(frozenset(unknown), frozenset(partly), tuple(causes))


def _mask(
    node: ir.Node, value: ir.Value, found: Count, bad: Sequence[Count], known: dict[ir.Value, bool]
) -> bool:
    """-inf that hides scores, or that a mask or constant puts where it says."""
    if not found.hides:
        return False
    put = any(c.hides for c in bad) or any(map(_fills, node.inputs))
    return only_hides(value, known) or (
        put and (node.op_type in CARRIERS or node.op_type in _SOFTMAX)
    )


def _fills(value: ir.Value | None) -> bool:
    """A constant that has -inf."""
    if value is None or not small_constant(value):
        return False
    assert value.const_value is not None
    return bool(np.isneginf(value.const_value.numpy()).any())


def _hidden(
    node: ir.Node, found: Count, counts: Mapping[str, Count], largest: Mapping[str, float]
) -> bool:
    """NaN where a mask hides a whole row of scores, or that follows from it."""
    if found.infinite:
        return False
    names = [str(v.name) for v in node.inputs if v is not None]
    if node.op_type in _SOFTMAX:
        return any(name in counts for name in names)
    if any(name in counts and counts[name].nan for name in names):
        return True
    if node.op_type != "Attention" or len(node.inputs) < 4 or node.inputs[3] is None:
        return False
    sizes = [largest.get(name, np.inf) for name in names[:2]]
    return sizes[0] * sizes[1] < _NO_OVERFLOW
