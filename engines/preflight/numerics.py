"""Forms that build and then compute something else than the model meant: masks, norms, angles, fp32 products in fp16.

The rows on Cast and products were measured on TensorRT-RTX 1.7.1; those on 16-bit masks and sums follow from the types.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ...graph.rules import SUSPICIONS, domain_of
from ...graph.rules import Rule as GraphRule
from .row import RTX, Check, Row, Spot
from .scene import Scene, constant, input_of, integer, label, tensor_of

D = ir.DataType
HALF = 65504.0
SIXTEEN = (D.FLOAT16, D.BFLOAT16)
MASK_BYTES = 1 << 24  # a [2048, 2048] mask in fp32


def _narrowed_masks(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Cast"):
        x = input_of(node, 0)
        if x is None or integer(node, "to", 0) != int(D.FLOAT16):
            continue
        for origin in scene.origins(x):
            numbers = constant(origin, MASK_BYTES)
            if numbers is None or not numbers.size or numbers.dtype != np.float64:
                continue
            lowest = float(np.min(numbers))
            if np.isfinite(lowest) and lowest < -HALF - 16:
                yield Spot(
                    label(node), f"{origin.name!r} holds {lowest:.4g}, which fp16 rounds to -inf"
                )
                break


def _infinite_masks(scene: Scene) -> Iterator[Spot]:
    for node in (*scene.of("Add", "Where"), *scene.of("Attention")):
        first, last = {"Add": (0, 2), "Where": (1, 3), "Attention": (3, 4)}[node.op_type]
        for value in node.inputs[first:last]:
            tensor = tensor_of(value)
            if tensor is None or tensor.dtype not in SIXTEEN:
                continue
            numbers = constant(value, MASK_BYTES)
            if numbers is not None and bool(np.isneginf(numbers).any()):
                assert value is not None
                yield Spot(
                    label(node), f"the {tensor.dtype.name} constant {value.name!r} holds -inf"
                )


def _fp32_islands(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("MatMul", "Gemm"):
        y = node.outputs[0] if node.outputs else None
        if y is None or y.dtype != D.FLOAT or y.is_graph_output():
            continue
        readers = [reader for reader, _ in y.uses()]
        narrowed = [
            r for r in readers if r.op_type == "Cast" and integer(r, "to", 0) == int(D.FLOAT16)
        ]
        if not readers or len(narrowed) != len(readers):
            continue
        given = [v for v in node.inputs if v is not None]
        widened = [v for v in given if _is_widened(v)]
        own = [v for v in given if tensor_of(v) is not None]
        if own and widened and len(own) + len(widened) == len(given):
            yield Spot(
                label(node),
                f"an fp32 product with the fp32 weight {own[0].name!r} between casts of fp16",
            )


def _is_widened(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or node.op_type != "Cast" or domain_of(node):
        return False
    source = input_of(node, 0)
    return source is not None and source.dtype == D.FLOAT16


def _suspicion(name: str) -> Check:
    """A suspicion of the graph's spec as a check."""
    rule: GraphRule = next(rule for rule in SUSPICIONS if rule.name == name)

    def check(scene: Scene) -> Iterator[Spot]:
        if not scene.model.functions and next(scene.of(*rule.operators), None) is None:
            return
        for fault in rule.check(scene.model):
            yield Spot(_bare(fault.where), fault.found, fault.fix)

    return check


def _bare(where: str) -> str:
    """`node 'layers.0/Sin' (Sin)` -> layers.0/Sin."""
    parts = where.split("'")
    return parts[1] if where.startswith("node '") and len(parts) > 2 else where


ROWS = (
    Row("mask.narrowed", "Cast", "a constant below fp16's range is cast to fp16",
        "It builds, and the mask becomes -inf: a row that hides every key is NaN",
        "Use half the lowest fp16 number, -32752", _narrowed_masks, "silent"),
    Row("mask.infinite", "Add, Where, Attention", "a 16-bit constant holds -inf",
        "It builds, and a row that hides every key is NaN", "Use half the lowest finite number", _infinite_masks, "note"),
    Row("norm.half-sums", "ReduceMean, ReduceSum, ...", "fp16 numbers are summed in fp16, as a spelled-out norm does",
        "It builds with the sum in fp16, which overflows from 65504 on", "Use RMSNormalization or LayerNormalization (blockforge fuse), or cast to fp32",
        _suspicion("half sums"), "silent"),
    Row("rotary.half-angles", "Sin, Cos", "angles are 16-bit", "It builds, and late positions come out wrong",
        "Compute angles in fp32 and cast the sine and cosine", _suspicion("angles"), "silent"),
    Row("attention.causal-offset", "Attention", "is_causal without a cache, for other numbers of queries than keys",
        "Query i sees keys 0..i, not those before the last queries", "Give past inputs, nonpad_kv_seqlen or a mask",
        _suspicion("causal offset"), "note"),
    Row("product.narrowed", "MatMul, Gemm", "an fp32 product with an fp32 weight stands between casts from and to fp16",
        "It builds: the casts are dropped, the product runs in fp16 and its weight is rounded",
        "Keep the result in fp32 further on, or give the weight in fp16", _fp32_islands, "silent", runtimes=RTX),
)  # fmt: skip
