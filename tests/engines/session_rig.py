"""Sessions of plans over a fake TensorRT and a fake CUDA device, with a graph whose numbers are exact in every type.

y = x W + b, z = 2 y, for x [batch, sequence, 2]: small whole numbers, exact in float32 and in the 16-bit types.
"""

import hashlib
from types import SimpleNamespace

import numpy as np
from engine_graphs import model_of
from fake_cuda import FakeCuda
from fake_tensorrt import FakeTensorRT, plan_of
from onnx import helper

from blockforge.core.dtypes import dtype_from_name
from blockforge.engines import dlpack, session_fit, session_opening
from blockforge.engines.cuda import runtime
from blockforge.engines.gpu import Gpu
from blockforge.engines.session import Session, SessionOptions

WEIGHT = np.array([[1, 2, 3], [-4, 0, 5]])
BIAS = np.array([1, -1, 2])
SMALL = {"x": ((1, 1, 2), (1, 2, 2), (2, 4, 2))}
LARGE = {"x": ((1, 1, 2), (4, 8, 2), (8, 16, 2))}


def linear(kind="fp32"):
    """The graph."""
    numpy = dtype_from_name(kind).numpy
    nodes = [
        helper.make_node("MatMul", ["x", "pair_w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "pair_b"], ["y"], name="sum"),
        helper.make_node("Add", ["y", "y"], ["z"], name="double"),
    ]
    edges = {n: (kind, ["batch", "sequence", 3]) for n in "yz"}
    weights = {"pair_w": WEIGHT.astype(numpy), "pair_b": BIAS.astype(numpy)}
    return model_of(nodes, {"x": (kind, ["batch", "sequence", 2])}, edges, weights)


def expected(x, weight=WEIGHT, bias=BIAS):
    """y and z in float64."""
    y = np.asarray(x, np.float64) @ weight + bias
    return {"y": y, "z": 2 * y}


def check(results, x):
    """Hold arrays, or tensors that have them, against `expected`."""
    for name, value in expected(x).items():
        got = results[name] if isinstance(results[name], np.ndarray) else results[name].numpy()
        np.testing.assert_array_equal(got.astype(np.float64), value)


def ran(session, x, weight=WEIGHT, bias=BIAS, **how):
    """Hold one run against `expected`."""
    results = session.run({"x": x}, **how)
    for name, value in expected(x, weight, bias).items():
        np.testing.assert_array_equal(results[name], value)


def weights(**changes):
    """Those of the graph, for a refit."""
    return {"pair_w": WEIGHT.astype(np.float32), "pair_b": BIAS.astype(np.float32), **changes}


def numbers(batch, sequence, kind="fp32", seed=0):
    """Whole numbers from -8 to 8."""
    values = np.random.default_rng(seed).integers(-8, 9, (batch, sequence, 2))
    return values.astype(dtype_from_name(kind).numpy)


class OnGpu:
    """A tensor of another library on the fake GPU; `producer` is the stream that still writes it."""

    def __init__(self, cuda, array, producer=None, ordinal=0, strides=None):
        self.cuda, self.array, self.producer = cuda, array, producer
        self.address = cuda.put(array, producer)
        self.ordinal, self.strides, self.asked = ordinal, strides, []

    def __dlpack_device__(self):
        return dlpack.CUDA, self.ordinal

    def __dlpack__(self, *, stream=None, **_):
        self.asked.append(stream)
        if self.producer is not None:
            self.cuda.order(self.producer, stream)
        dtype = next(d for d in dlpack.CODES if d.numpy == self.array.dtype)
        return dlpack.export(self.address, self.array.shape, dtype, self.__dlpack_device__(), self)

    def values(self):
        """What the host reads, once it has waited."""
        data = self.cuda.peek(self.address, self.array.nbytes)
        return np.frombuffer(data, self.array.dtype).reshape(self.array.shape)


class ByInterface:
    """The same through `__cuda_array_interface__`."""

    def __init__(self, cuda, array, producer=None, strides=None, read_only=False):
        self.address = cuda.put(array, producer)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.address, read_only),
            "strides": strides,
            "stream": producer,
            "version": 3,
        }


class Rig:
    """Opens sessions over one fake device."""

    def __init__(self, monkeypatch, folder, *, architecture="sm90", **module):
        self.cuda = FakeCuda()
        self.trt = FakeTensorRT(self.cuda, **module)
        self.folder, self.patch = folder, monkeypatch
        self.runtime = "tensorrt-rtx" if self.trt.rtx else "tensorrt"
        self.version = f"{self.runtime} {self.trt.__version__}"
        api = SimpleNamespace(trt=self.trt, version=self.version, features=self.trt.features)
        monkeypatch.setattr(session_opening, "load_api", lambda name: api)
        monkeypatch.setattr(runtime, "CudaRuntime", lambda ordinal: self.cuda)
        monkeypatch.setattr(session_fit, "gpus", lambda: (Gpu("fake", architecture, 1 << 30),))
        self.target = f"{self.runtime}:{architecture}"

    def plan(self, kind="fp32", profiles=(SMALL, LARGE), **head):
        """Write a plan; (path, its SHA-256)."""
        data = plan_of(linear(kind), list(profiles), **head)
        path = self.folder / "engine.plan"
        path.write_bytes(data)
        return path, hashlib.sha256(data).hexdigest()

    def open(self, kind="fp32", profiles=(SMALL, LARGE), *, head=None, **options):
        """A session of a new plan."""
        path, digest = self.plan(kind, profiles, **(head or {}))
        return Session(path, target=self.target, verify=digest, options=SessionOptions(**options))
