"""The largest magnitude of every value of an FP32 graph, over a set of inputs.

feeds -> typed evaluator, one run each -> value name -> max |x|; of values with channels, each channel's too
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import torch

from ...core.progress import Progress, Step, silent
from ...graph.evaluator import TypedEvaluator
from ...graph.rules import graphs_of
from .channels import Channels
from .finite import Count, Judgement, count, judge, require_finite
from .streams import Streams
from .structure import all_nodes, is_float
from .subnormal import SMALL, Faint

Feeds = Mapping[str, torch.Tensor]
Note = Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class Ranges:
    """What a calibration run showed, by the names of values.

    largest: max |x| of the finite numbers; a value without any has none. channels: the same for each channel of the
    values that linears and norms make and pass on, with the value's rank and size 1 on the axes over which it was
    taken: one number a channel. faint: of small values, what FP16's subnormals would take. judged: which values were
    not finite, and what that means.
    """

    largest: dict[str, float] = field(default_factory=dict)
    channels: dict[str, np.ndarray] = field(default_factory=dict)
    faint: dict[str, Faint] = field(default_factory=dict)
    judged: Judgement = field(default_factory=Judgement)


def measure_ranges(model: ir.Model, feeds: Sequence[Feeds], progress: Progress = silent) -> Ranges:
    """Run the graph on each of `feeds`; graph inputs are measured too. Raises UsageError for an input that is not finite.

    -inf in masks, and NaN in the rows that a mask hides whole, are left out: the largest finite magnitude counts.
    """
    require_finite(model, feeds)
    evaluator = TypedEvaluator(model)
    run = _Run()
    largest, channels = run.largest, Channels(Streams(model.graph, set())).of
    calls = {str(v.name): [run.closely(str(v.name))] for v in _values(model)}
    for value in _results_of_bodies(model):
        calls[str(value.name)].append(run.size(str(value.name)))
    for value, numbers in channels.items():
        calls[str(value.name)].append(run.by_channel(str(value.name), numbers.shape))
    watch = {name: _each(notes) for name, notes in calls.items()}
    for number, fed in enumerate(feeds):
        run.feed = number + 1
        progress(Step("measure ranges", number, detail=f"run {number + 1}"))
        found = evaluator.run(fed, watch=watch)
        for name, size in found.largest.items():
            largest[name] = max(largest.get(name, 0.0), size)
        for name, tensor in fed.items():
            run.size(name)(tensor)
    return run.result(model)


def _values(model: ir.Model) -> list[ir.Value]:
    """Every float value that the graph reads or computes, and that has a name."""
    values = [*model.graph.inputs, *(v for n in all_nodes(model.graph) for v in n.outputs)]
    return [v for v in values if is_float(v) and v.name]


def _results_of_bodies(model: ir.Model) -> list[ir.Value]:
    """Values that local functions, branches and loops give: the evaluator measures what is inside them."""
    nodes = [
        n for n in all_nodes(model.graph) if graphs_of(n) or n.op_identifier() in model.functions
    ]
    return [v for n in nodes for v in n.outputs if is_float(v) and v.name]


def _each(notes: list[Note]) -> Note:
    def note(tensor: torch.Tensor) -> None:
        for one in notes:
            one(tensor)

    return note


class _Run:
    """What the runs over all feeds have shown so far."""

    def __init__(self) -> None:
        self.feed = 0
        self.largest: dict[str, float] = {}
        self.channels: dict[str, np.ndarray] = {}
        self._counts: dict[str, Count] = {}
        self._shown: set[str] = set()  # names of values with finite numbers
        self._faint: dict[str, Faint] = {}
        self._clear: set[str] = (
            set()
        )  # names of values with numbers that no 16-bit type makes subnormal

    def closely(self, name: str) -> Note:
        """Whether the numbers are finite, and not too small."""

        def note(tensor: torch.Tensor) -> None:
            if not tensor.is_floating_point() or not tensor.numel() or tensor.itemsize == 1:
                return
            low, high = torch.aminmax(tensor)
            size = max(-float(low), float(high))
            if not math.isfinite(size):
                found = count(tensor, self.feed)
                self._counts[name] = self._counts[name] + found if name in self._counts else found
                if found.nan + found.infinite == found.size:
                    return
            elif 0 < size < SMALL and name not in self._clear:
                self._faint[name] = self._faint.get(name, Faint()) + Faint.of(tensor)
            elif size:
                self._clear.add(name)
            self._shown.add(name)

        return note

    def size(self, name: str) -> Note:
        """The largest finite magnitude."""

        def note(tensor: torch.Tensor) -> None:
            if not tensor.is_floating_point() or not tensor.numel():
                return
            finite = tensor[torch.isfinite(tensor)]
            size = float(finite.abs().max()) if finite.numel() else 0.0
            self.largest[name] = max(self.largest.get(name, 0.0), size)

        return note

    def by_channel(self, name: str, shape: tuple[int, ...]) -> Note:
        """The largest finite magnitude of each channel. shape: of the channels, 1 on the other axes."""
        over = tuple(axis for axis, size in enumerate(shape) if size == 1)
        channels = self.channels

        def note(tensor: torch.Tensor) -> None:
            if not tensor.numel() or tensor.ndim != len(shape):
                return
            ends = (tensor.amin(over, keepdim=True), tensor.amax(over, keepdim=True))
            sizes = torch.maximum(-ends[0], ends[1])
            if not bool(torch.isfinite(sizes).all()):
                sizes = torch.where(torch.isfinite(tensor), tensor.abs(), 0.0).amax(
                    over, keepdim=True
                )
            found = sizes.numpy()
            if found.shape == shape:
                channels[name] = np.maximum(channels[name], found) if name in channels else found

        return note

    def result(self, model: ir.Model) -> Ranges:
        """Without the sizes of what had no finite number, and without channels where a value is unknown."""
        blank = self._counts.keys() - self._shown
        largest = {name: size for name, size in self.largest.items() if name not in blank}
        judged = judge(model, self._counts, largest)
        lost = judged.unknown | blank
        return Ranges(
            largest,
            {name: sizes for name, sizes in self.channels.items() if name not in lost},
            {
                n: f
                for n, f in self._faint.items()
                if n not in self._clear and n not in self._counts
            },
            judged,
        )
