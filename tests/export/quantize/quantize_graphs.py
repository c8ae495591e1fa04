"""Small graphs to quantise, and the oracle that judges them: the unquantised graph in float64."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch

from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import save_model

CORPUS = Path(os.environ.get("BLOCKFORGE_CORPUS", "no-corpus")) / "hf"


def model_from(text, weights=(), opset=24):
    """A model from ONNX text after the header, with named weights: name -> array, whose type is the weight's."""
    model = ir.from_onnx_text(f'<ir_version: 11, opset_import: ["" : {opset}]> {text}')
    for name, array in dict(weights).items():
        value = next(v for n in model.graph for v in n.inputs if v is not None and v.name == name)
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        value.const_value, value.shape = tensor, tensor.shape
        value.type = ir.TensorType(tensor.dtype)
        model.graph.register_initializer(value)
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(model), strict_mode=True)
    return ir.from_proto(proto)


def exact(model, feeds):
    """Outputs of the graph in float64."""
    return TypedEvaluator(model, exact=True).run(feeds).outputs


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


LINEAR = "g (float[b, 4] x) => (float[b, 3] y) { y = MatMul(x, w) }"


def saved(folder, text, weights, opset=24):
    """The file of such a model."""
    path = folder / "source.onnx"
    save_model(model_from(text, weights, opset), path)
    return path


def relative(found, expected):
    """|| found - expected || / || expected ||"""
    return float((found.double() - expected.double()).norm() / expected.double().norm())
