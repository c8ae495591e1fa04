"""The typed evaluator: executes a typed ONNX graph in torch by TensorRT's rules."""

from .evaluator import Evaluation, TypedEvaluator
from .limits import Limits, limits_here
from .overflow import Overflow, Underflow

__all__ = [
    "Evaluation",
    "Limits",
    "Overflow",
    "TypedEvaluator",
    "Underflow",
    "limits_here",
]
