"""The typed evaluator: executes a typed ONNX graph in torch by TensorRT's rules."""

from .evaluator import Evaluation, TypedEvaluator
from .overflow import Overflow, Underflow

__all__ = ["Evaluation", "Overflow", "TypedEvaluator", "Underflow"]
