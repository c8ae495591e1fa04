"""How large each value is: before any scaling, as the scaled graph holds it, and beside what 16 bits can hold."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...graph.type_names import type_name
from .bounds import bounds
from .options import PrecisionOptions
from .prepare import FLOAT
from .ranges import Ranges
from .report import Headroom, Source, layer_of
from .rescale import Rescaling
from .streams import Streams, bits_beyond
from .structure import MOVES, Reasons, all_nodes, is_constant, is_float
from .subnormal import NORMAL, Faint
from .weights import Weights


class Sizes:
    """The largest magnitude of each value, measured (with the margin) or bounded, whichever is smaller."""

    def __init__(
        self,
        model: ir.Model,
        ranges: Ranges,
        weights: Weights,
        streams: Streams,
        options: PrecisionOptions,
    ) -> None:
        self.model, self.options, self.weights, self.streams = model, options, weights, streams
        self.bounded = bounds(model, weights)
        values = [*model.graph.inputs, *(v for n in all_nodes(model.graph) for v in n.outputs)]
        self.values = [v for v in values if is_float(v)]
        self.measured = {v: ranges.largest[v.name] for v in self.values if v.name in ranges.largest}
        self.channels = {
            v: ranges.channels[v.name] for v in self.values if v.name in ranges.channels
        }
        self.unknown = {v for v in self.values if v.name in ranges.judged.unknown}
        self.causes = ranges.judged.causes
        self.partly = {v for v in self.values if v.name in ranges.judged.partly}
        faint = ranges.faint if options.smallest == NORMAL else {}
        self.faint = {
            v: faint[v.name]
            for v in self.values
            if v.name in faint and v not in streams.kept and streams.constant(v) is None
        }
        for value, sizes in self.channels.items():
            self.measured.setdefault(value, float(sizes.max(initial=0.0)))
        self.shrunk: dict[
            ir.Value, float
        ] = {}  # by how much channels with exponents changed the size
        for node in all_nodes(model.graph):
            if node.op_type in MOVES:
                self._move(node)

    def _move(self, node: ir.Node) -> None:
        """What only moves numbers has the range of what it moves; the evaluator does not measure it."""
        sizes = []
        for value in filter(is_float, node.inputs):
            assert value is not None
            known = self.weights.largest(value) if is_constant(value) else self.measured.get(value)
            if known is None:
                return
            sizes.append(known)
        if sizes:
            for value in filter(is_float, node.outputs):
                self.measured.setdefault(value, max(sizes))

    def size(self, value: ir.Value) -> float:
        """What the type must hold; 0 where nothing is known."""
        if value in self.streams.kept:
            return min(self.options.limit, self.measured.get(value, 0.0))
        weight = self.streams.constant(value)
        if weight is not None:
            return self.weights.largest(weight)
        measured = self.measured.get(value, math.inf) * self.options.margin
        size = min(measured, self.bounded.get(value, math.inf)) * self.shrunk.get(value, 1.0)
        return size if math.isfinite(size) else 0.0

    def known(self, value: ir.Value) -> bool:
        """Whether a size is measured or bounded, by finite numbers alone."""
        return value not in self.unknown and (value in self.measured or value in self.bounded)

    def by_channel(self, value: ir.Value) -> np.ndarray | None:
        """The size of each channel, None where the calibration run did not show it."""
        if value not in self.channels:
            return None
        return np.minimum(
            self.channels[value] * self.options.margin, self.bounded.get(value, math.inf)
        )

    def needs(self, wide: Reasons) -> dict[ir.Value, int]:
        """Bits by which each 16-bit value, or the weight behind it, passes the range."""
        limit = self.options.limit
        needs: dict[ir.Value, int] = {}
        for node in all_nodes(self.model.graph):
            if node in wide:
                continue
            for value in (*node.inputs, *node.outputs):
                if value is None or not is_float(value):
                    continue
                bits = bits_beyond(self.size(value), limit)
                if self.streams.constant(value) is not None:
                    value = node.outputs[0]
                if bits and value not in self.streams.kept:
                    needs[value] = max(bits, needs.get(value, 0))
        return needs

    def held(self, rescaling: Rescaling) -> dict[ir.Value, float]:
        """The magnitude of each value as the scaled graph holds it."""
        held = {v: self.size(v) * 2.0 ** -rescaling.held.get(v, 0) for v in self.values}
        for value, source in rescaling.source.items():
            held[value] = self.size(source) * 2.0 ** -rescaling.held[value]
        return held

    def held_faint(self, rescaling: Rescaling) -> dict[ir.Value, Faint]:
        """What is lost of each small value as the scaled graph holds it; a large one has none."""
        sources = {v: v for v in self.values} | rescaling.source
        held = {}
        for value, source in sources.items():
            if source in self.faint:
                found = self.faint[source]
                held[value] = found.scaled(-rescaling.held.get(value, 0)) or found
        return held

    def headroom(self, rescaling: Rescaling, names: Mapping[ir.Value, str]) -> list[Headroom]:
        """A row for each value of the prepared graph that ended in 16 bits or passed their range."""
        rows = []
        for value in self.values:
            measured, bound = self.measured.get(value), self.bounded.get(value, math.inf)
            if not self.known(value) or value in self.streams.kept:
                continue
            known = measured is not None and measured * self.options.margin < bound
            largest = measured if known and measured is not None else bound
            before = math.log2(self.options.limit / largest) if largest else math.inf
            if value.dtype == FLOAT and before >= 0:
                continue
            name = names.get(value, str(value.name))
            after = before + rescaling.held.get(value, 0) - math.log2(self.shrunk.get(value, 1.0))
            rows.append(
                Headroom(
                    layer_of(name), name, largest, self._source(value, known),
                    before, after, type_name(value.dtype),
                )
            )  # fmt: skip
        return rows

    def _source(self, value: ir.Value, measured: bool) -> Source:
        if not measured:
            return "bound"
        return "measured where finite" if value in self.partly else "measured"

    def unproved(self, rescaling: Rescaling, names: Mapping[ir.Value, str]) -> list[str]:
        """16-bit values of which nothing is known."""
        return [
            names.get(v, str(v.name))
            for v in self.values
            if not self.known(v) and v.dtype == self.options.low and v not in rescaling.source
        ]
