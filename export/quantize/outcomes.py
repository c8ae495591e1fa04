"""What calibration decided, kept until the walk is over and then written into the graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..calibration.observers import Observed
from ..linears.find import Linear, share_of_flops
from .cache import Cache
from .cache_qdq import store_cache
from .calibrate import Quantized
from .grids import E4M3, ONNX_TYPES
from .options import QuantizeOptions
from .qdq import StoredWeight, Writer, scale_tensor
from .report import LinearRecord
from .spill import Spill
from .weights import WEIGHT_FORMATS

SCALES_OF_THEIR_OWN_TYPE = 23  # from this opset on a scale may be fp32 beside 16-bit values


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is kept of one quantised linear."""

    weight: StoredWeight
    activation: Observed | None
    weight_scales: tuple[float, float]
    error: float | None


@dataclass(slots=True)
class Outcomes:
    """Takes the outcomes of calibration, and writes them into the graph when it is over."""

    model: ir.Model
    options: QuantizeOptions
    spill: Spill
    found: dict[Linear, Outcome] = field(default_factory=dict)

    @property
    def scale_dtype(self) -> ir.DataType:
        """fp32 where opset and builder allow it beside any type, else the narrowest float of the graph.

        TensorRT-RTX 1.7.1 refuses fp32 scales of blocks beside 16-bit outputs.
        """
        blocked = WEIGHT_FORMATS[self.options.format].block
        if not blocked and self.model.opset_imports[""] >= SCALES_OF_THEIR_OWN_TYPE:
            return ir.DataType.FLOAT
        types = {x.dtype for x in self.model.graph.initializers.values()}
        narrow = [t for t in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) if t in types]
        return narrow[0] if narrow else ir.DataType.FLOAT

    def store(self, done: Quantized) -> None:
        """Keep an outcome; its codes go to a file."""
        form = WEIGHT_FORMATS[self.options.format]
        weight = self.spill.store(done, form, self.scale_dtype)
        spread = float(done.scales.min()), float(done.scales.max())
        self.found[done.linear] = Outcome(weight, done.activation, spread, done.error)

    def write(
        self,
        scales: Mapping[str, Observed],
        attention: Mapping[ir.Value, Sequence[tuple[ir.Node, int]]],
        caches: Sequence[Cache] = (),
    ) -> None:
        """Write the nodes, and drop weights that nothing reads any more."""
        writer = Writer(self.model.graph)
        dtype = ONNX_TYPES[E4M3.name]
        for linear, outcome in self.found.items():
            writer.quantize_weight(linear, outcome.weight)
            if outcome.activation is not None:
                scale = self._scale(outcome.activation, linear.x)
                writer.quantize_activation(linear.node, 0, scale, dtype)
        for value, users in attention.items():
            for node, index in users:
                writer.quantize_activation(
                    node, index, self._scale(scales[value.name or ""], value), dtype
                )
        for cache in caches:
            store_cache(writer, cache, self._scale(scales[cache.name], cache.past))
        _remove_unused(self.model.graph)

    def _scale(self, observed: Observed, value: ir.Value) -> ir.TensorProtocol:
        return scale_tensor(observed.scale, self.scale_dtype, f"{value.name}/scale")


def _remove_unused(graph: ir.Graph) -> None:
    """Transposes of weights that no product reads any more, then the weights."""
    for node in list(graph):
        if node.op_type == "Transpose" and not any(
            v.uses() or v.is_graph_output() for v in node.outputs
        ):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def records_of(
    linears: Sequence[Linear], outcomes: Mapping[Linear, Outcome], options: QuantizeOptions
) -> tuple[LinearRecord, ...]:
    """The report's line for every linear."""
    records = []
    for linear, share in share_of_flops(list(linears)):
        outcome = outcomes.get(linear)
        seen = None if outcome is None else outcome.activation
        records.append(
            LinearRecord(
                name=linear.name,
                size_in=linear.size_in,
                size_out=linear.size_out,
                flops=share,
                format=options.format if outcome else "",
                scale=seen.scale if seen else None,
                amax=seen.amax if seen else None,
                observer=seen.observer if seen else "",
                weight_scales=outcome.weight_scales if outcome else None,
                error=outcome.error if outcome else None,
                reason=linear.reason,
            )
        )
    return tuple(records)
