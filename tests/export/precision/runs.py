"""Run what was typed: ONNX Runtime without optimisations for FP32 bits, the typed evaluator for 16-bit numbers."""

import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch

from blockforge.core.dtypes import DType
from blockforge.export.precision import (
    PrecisionOptions,
    PrecisionReport,
    measure_ranges,
    repair_model,
    typed_model,
)
from blockforge.export.precision.prepare import prepare
from blockforge.graph.evaluator import Evaluation, TypedEvaluator
from blockforge.graph.spec import check_graph

FP16 = PrecisionOptions(DType.FP16)
UNIT = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}  # half the distance of neighbours at 1
Feeds = dict[str, torch.Tensor]


def prepared(proto: onnx.ModelProto, options: PrecisionOptions = FP16) -> ir.Model:
    """The FP32 graph whose values have the names that ranges are measured by."""
    model = ir.from_proto(proto)
    prepare(model, options)
    return model


def copied(model: ir.Model) -> ir.Model:
    return ir.from_proto(ir.to_proto(model))


def in_onnxruntime(model: ir.Model, feeds: Feeds) -> list[torch.Tensor]:
    """FP32 results, operator by operator as the graph says."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    proto = ir.to_proto(model).SerializeToString()
    session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: t.numpy() for name, t in feeds.items()})
    return [torch.from_numpy(x) for x in found]


def repaired(
    proto: onnx.ModelProto, feeds: Feeds, options: PrecisionOptions = FP16
) -> tuple[ir.Model, ir.Model, PrecisionReport]:
    """The prepared FP32 graph, the same after repair, and the report."""
    before = prepared(proto, options)
    after = copied(before)
    report = repair_model(after, measure_ranges(before, [feeds]), options)
    return before, after, report


def typed(
    proto: onnx.ModelProto, feeds: Feeds, options: PrecisionOptions = FP16
) -> tuple[ir.Model, PrecisionReport, Evaluation]:
    """The typed graph, checked by the spec and by ONNX, its report and its run by TensorRT's rules."""
    model = prepared(proto, options)
    report = typed_model(model, measure_ranges(model, [feeds]), options)
    check_graph(model)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    no_needless_cast(model)
    return model, report, TypedEvaluator(model).run(feeds)


def no_needless_cast(model: ir.Model) -> None:
    """No Cast of a Cast between floats, none to the type there is, none twice of one value to one type."""
    seen = set()
    for graph in model.graphs():
        for node in (n for n in graph if n.op_type == "Cast"):
            source, result = node.inputs[0], node.outputs[0]
            if not source.dtype.is_floating_point():
                continue  # the source's own, from integers
            assert source.dtype != result.dtype, node
            assert (source, result.dtype) not in seen, node
            seen.add((source, result.dtype))
            maker = source.producer()
            if maker is not None and maker.op_type == "Cast" and result.dtype.is_floating_point():
                assert not maker.inputs[0].dtype.is_floating_point(), node


def exact(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, torch.Tensor]:
    """The source graph in float64."""
    return TypedEvaluator(ir.from_proto(proto), exact=True).run(feeds).outputs


def relative(found: torch.Tensor, true: torch.Tensor) -> float:
    """Norm of the error over the norm of the truth."""
    return float((found.double() - true.double()).norm() / true.double().norm())
