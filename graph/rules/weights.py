"""Rules about weights: their bytes are there, and as many as type and shape ask for; scales are positive."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ..type_names import type_name
from .rule import Fault, Rule, bodies, node_label


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.values()


def _present(model: ir.Model) -> Iterator[Fault]:
    for value in _initializers(model):
        where, constant = f"weight {value.name!r}", value.const_value
        if constant is None:  # its data comes later; writing the file insists on it
            if value.dtype is None or value.shape is None:
                yield Fault(where, "it has neither data nor a declared type and shape")
            continue
        if value.type is not None and value.dtype != constant.dtype:
            yield Fault(
                where,
                f"declared {type_name(value.dtype)}, its data is {type_name(constant.dtype)}",
            )
        if value.shape is not None and list(value.shape) != list(constant.shape):
            yield Fault(where, f"declared {value.shape}, its data has the shape {constant.shape}")
        if isinstance(constant, ir.ExternalTensor):
            yield from _external(where, constant)


def _external(where: str, tensor: ir.ExternalTensor) -> Iterator[Fault]:
    sizes = [int(n) for n in tensor.shape.numpy()]
    needed = math.ceil(math.prod(sizes) * tensor.dtype.bitwidth / 8)
    offset = tensor.offset or 0
    if tensor.length is not None and tensor.length != needed:
        yield Fault(
            where, f"{tensor.length} bytes of external data", f"Type and shape need {needed} bytes"
        )
        return
    folder, path = Path(tensor.base_dir).resolve(), Path(tensor.path).resolve()
    if not path.is_relative_to(folder):
        yield Fault(where, f"its data {tensor.location} lies outside the model's folder")
    elif not path.is_file():
        yield Fault(where, f"its data file {tensor.location} is missing")
    elif path.stat().st_size < offset + needed:
        yield Fault(
            where,
            f"bytes {offset} to {offset + needed} of {tensor.location}, which has {path.stat().st_size}",
            "The file was cut short: write it again",
        )


def _scales(model: ir.Model) -> Iterator[Fault]:
    for graph, _ in bodies(model):
        for node in graph:
            if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or len(node.inputs) < 2:
                continue
            scale = node.inputs[1]
            if scale is None or scale.const_value is None:
                continue
            numbers = scale.const_value.numpy().astype(np.float64)
            if not bool(np.all(np.isfinite(numbers) & (numbers > 0))):
                bad = numbers[~(np.isfinite(numbers) & (numbers > 0))].flat[0]
                yield Fault(
                    node_label(node),
                    f"scale {scale.name!r} holds {bad}",
                    "A scale is finite and above zero",
                )


RULES = (
    Rule(
        "weights",
        "a weight's data, once it has some, is there and fits its type and shape",
        _present,
    ),
    Rule("scales", "the scales of Q/DQ nodes are finite and above zero", _scales),
)
