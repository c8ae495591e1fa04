"""The part of FakeTensorRT that exchanges weights, and how it names element types."""

import ctypes
from types import SimpleNamespace

import numpy as np
from fake_memory import DeviceError
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from blockforge.engines.tensorrt_session import DTYPES

NUMPY = {name: dtype.numpy for name, dtype in DTYPES.items()}
BY_ONNX = {dtype.onnx: name for name, dtype in DTYPES.items()}


class Member(SimpleNamespace):
    """A member of an enumeration."""

    def __hash__(self):
        return hash(self.name)


class Refitter:
    """New initialisers for an engine. A weight whose name starts with `pair` needs every other such weight too."""

    def __init__(self, engine, logger):
        self.engine, self.logger, self.given = engine, logger, {}
        self.weights = {t.name: t for t in engine.model.graph.initializer}

    def get_all_weights(self):
        return list(self.weights)

    def get_weights_prototype(self, name):
        tensor = self.weights[name]
        kind = Member(name=BY_ONNX[tensor.data_type])
        return SimpleNamespace(dtype=kind, size=int(np.prod(tensor.dims, dtype=np.int64)))

    def set_named_weights(self, name, weights):
        self.given[name] = weights
        return True

    def get_missing_weights(self):
        pairs = {name for name in self.weights if name.startswith("pair")}
        return sorted(pairs - set(self.given)) if pairs & set(self.given) else []

    def refit_cuda_engine(self):
        assert not self.get_missing_weights()
        if self.engine.queued:
            raise DeviceError("refit with work in flight")
        if self.engine.trt.cuda.graphs:
            raise DeviceError("refit with graphs that hold the old weights")
        for name, weights in self.given.items():
            tensor = self.weights[name]
            kind = NUMPY[weights.kind]
            data = ctypes.string_at(weights.address, weights.count * kind.itemsize)
            array = np.frombuffer(data, kind).reshape(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(array, name))
        self.engine.evaluator = ReferenceEvaluator(self.engine.model)
        return True
