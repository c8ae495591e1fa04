"""A TensorRT whose engines run ONNX's reference evaluator on the memory of a FakeCuda.

It holds callers to TensorRT's rules: sizes within the active profile, a launch after new sizes before a capture, a context
that is left alone once it was captured, one user of a context's scratch at a time, and no work in flight during a refit.
"""

import json
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import onnx
from fake_memory import DeviceError
from fake_refitter import BY_ONNX, NUMPY, Member, Refitter
from onnx.reference import ReferenceEvaluator

MAGIC, SCRATCH = b"fakeplan", 512


def plan_of(model, profiles, *, refit=False, stripped=False, host_code=False, aliases=None):
    """The bytes of a plan. profiles: name -> (min, opt, max), for each."""
    has = {"refit": refit, "stripped": stripped, "host_code": host_code, "aliases": aliases or {}}
    head = json.dumps({"profiles": profiles, **has}).encode()
    return MAGIC + len(head).to_bytes(4, "little") + head + model.SerializeToString()


def members(*names):
    return SimpleNamespace(**{name: Member(name=name) for name in names})


class FakeTensorRT:
    """The module `tensorrt`, for one device. rtx: with what only TensorRT-RTX has."""

    def __init__(self, cuda, *, version="11.4.0", rtx=False, capturable=True):
        self.cuda, self.__version__, self.rtx, self.capturable = cuda, version, rtx, capturable
        self.TensorIOMode = members("INPUT", "OUTPUT")
        self.TensorLocation = members("DEVICE", "HOST")
        self.ExecutionContextAllocationStrategy = members("STATIC", "USER_MANAGED")
        self.DynamicShapesKernelSpecializationStrategy = members("LAZY", "EAGER")
        self.EngineStat = members("STRIPPED_WEIGHTS_SIZE")
        self.EngineValidity = members("VALID", "INVALID")
        flags = {"VERSION_MISMATCH": 1, "UNSUPPORTED_CC": 2}
        self.EngineInvalidityDiagnostics = SimpleNamespace(__members__=flags)
        self.DataType = members(*NUMPY)
        self.deserialised, self.validity, self.contexts = 0, (self.EngineValidity.VALID, 0), []
        self.making, self.launch_fails, self.out_of_memory = threading.Lock(), False, False
        self.capture_fails = False
        outer = self

        class ILogger:
            def __init__(self):
                pass

        class IProfiler:
            def __init__(self):
                pass

        class Runtime:
            engine_host_code_allowed = False

            def __init__(self, logger):
                self.logger = logger
                if outer.rtx:
                    self.get_engine_validity = lambda data: outer.validity

            def deserialize_cuda_engine(self, data):
                outer.deserialised += 1
                if not data.startswith(MAGIC):
                    outer.say(self.logger, "Magic tag does not match")
                    return None
                engine = Engine(outer, data, self.logger)
                if engine.head["host_code"] and not self.engine_host_code_allowed:
                    outer.say(self.logger, "host code is not allowed")
                    return None
                return engine

        self.ILogger, self.IProfiler, self.Runtime = ILogger, IProfiler, Runtime
        self.Refitter = lambda engine, logger: Refitter(engine, logger)
        self.Weights = lambda kind, address, count: SimpleNamespace(
            kind=kind.name, address=address, count=count
        )

    @property
    def features(self):
        return frozenset({"runtime_config"} if self.rtx else ())

    @staticmethod
    def say(logger, text, severity="ERROR"):
        logger.log(SimpleNamespace(name=severity), text)


class Engine:
    """A deserialised plan."""

    def __init__(self, trt, data, logger):
        size = int.from_bytes(data[8:12], "little")
        head = json.loads(data[12 : 12 + size])
        self.trt, self.logger, self.head = trt, logger, head
        self.model = onnx.ModelProto.FromString(data[12 + size :])
        graph = self.model.graph
        self.ins, self.outs = {v.name: v for v in graph.input}, {v.name: v for v in graph.output}
        self.names = [*self.ins, *self.outs]
        self.num_io_tensors, self.num_optimization_profiles = len(self.names), len(head["profiles"])
        self.device_memory_size_v2, self.refittable = SCRATCH, head["refit"]
        self.queued, self.location = 0, trt.TensorLocation.DEVICE
        self.evaluator = ReferenceEvaluator(self.model)

    def get_tensor_name(self, index):
        return self.names[index]

    def get_tensor_mode(self, name):
        return self.trt.TensorIOMode.INPUT if name in self.ins else self.trt.TensorIOMode.OUTPUT

    def get_tensor_location(self, name):
        return self.location

    def _value(self, name):
        return (self.ins.get(name) or self.outs[name]).type.tensor_type

    def get_tensor_dtype(self, name):
        return Member(name=BY_ONNX[self._value(name).elem_type])

    def get_tensor_shape(self, name):
        return [d.dim_value if d.HasField("dim_value") else -1 for d in self._value(name).shape.dim]

    def get_tensor_profile_shape(self, name, index):
        return self.head["profiles"][index][name]

    def get_aliased_input_tensor(self, name):
        return self.head["aliases"].get(name)

    def get_engine_stat(self, stat):
        return 64 * self.head["stripped"]

    def create_runtime_config(self):
        config = SimpleNamespace(strategy=None, cache=None)
        config.create_runtime_cache = lambda: SimpleNamespace()
        config.set_runtime_cache = lambda cache: setattr(config, "cache", cache)
        config.set_execution_context_allocation_strategy = lambda s: setattr(config, "strategy", s)
        return config

    def create_execution_context(self, how):
        strategy = getattr(how, "strategy", how)
        assert strategy.name == "USER_MANAGED"
        if not self.trt.making.acquire(blocking=False):
            raise DeviceError("two contexts of one engine are created at once")
        try:
            if self.trt.out_of_memory:
                self.trt.say(self.logger, "out of memory")
                return None
            time.sleep(0.001)  # another thread may come
            context = Context(self)
        finally:
            self.trt.making.release()
        self.trt.contexts.append(weakref.ref(context))
        if self.trt.rtx:
            context.is_stream_capturable = lambda stream: bool(self.trt.capturable)
        return context


class Context:
    """An execution context. changes: counts what was set, so that a graph knows whether it is still valid."""

    def __init__(self, engine):
        self.engine, self.trt, self.cuda = engine, engine.trt, engine.trt.cuda
        self.active_optimization_profile = 0
        self.shapes, self.addresses, self.scratch = {}, {}, None
        self.changes, self.captured_at, self.dirty, self.profiler = 0, None, True, None

    def _change(self):
        self.changes += 1

    def set_device_memory(self, address, size):
        assert size >= SCRATCH and address % 256 == 0
        self.scratch = address
        self._change()

    def set_optimization_profile_async(self, index, stream):
        self.active_optimization_profile, self.shapes, self.dirty = index, {}, True
        self._change()
        return 0 <= index < self.engine.num_optimization_profiles

    def set_input_shape(self, name, shape):
        low, _, high = self.engine.head["profiles"][self.active_optimization_profile][name]
        if not all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True)):
            self.trt.say(self.engine.logger, f"{name}: shape outside\nthe profile")
            return False
        self.shapes[name], self.dirty = tuple(shape), True
        self._change()
        return True

    def _sizes(self):
        sizes = {}
        for name, shape in self.shapes.items():
            for dim, size in zip(self.engine._value(name).shape.dim, shape, strict=True):
                sizes[dim.dim_param] = size
        return sizes

    def get_tensor_shape(self, name):
        sizes = self._sizes()
        dims = self.engine._value(name).shape.dim
        return [
            d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, -1) for d in dims
        ]

    def set_tensor_address(self, name, address):
        if address % 256:
            raise DeviceError(f"{name} at {address:#x}: not aligned to 256 bytes")
        self.addresses[name] = address
        self._change()
        return True

    def execute_async_v3(self, stream):
        capturing = self.cuda._stream(stream).capture is not None
        if set(self.shapes) != set(self.engine.ins) or set(self.addresses) != set(
            self.engine.names
        ):
            raise DeviceError("enqueued without every shape and address")
        if capturing and self.dirty:
            raise DeviceError("captured before a launch settled the new sizes")
        shapes = {name: self.get_tensor_shape(name) for name in self.engine.names}
        if capturing:
            self.captured_at = self.changes
        elif self.captured_at is not None:
            raise DeviceError("a context is launched again after its capture")
        self.dirty = self.dirty and capturing
        me, engine, addresses = weakref.ref(self), self.engine, dict(self.addresses)
        scratch, changes, count = self.scratch, self.changes, not capturing
        engine.queued += count

        def work(clock, on):
            context = me()
            if context is None:
                raise DeviceError("a context went before its work was done")
            if not count and context.changes != changes:
                raise DeviceError("a captured context was changed")
            engine.queued -= count
            context.cuda.store(scratch, bytes(SCRATCH), clock, on)
            feeds = {}
            for name in engine.ins:
                kind = NUMPY[engine.get_tensor_dtype(name).name]
                nbytes = int(np.prod(shapes[name], dtype=np.int64)) * kind.itemsize
                data = context.cuda.load(addresses[name], nbytes, clock, on)
                feeds[name] = np.frombuffer(data, kind).reshape(shapes[name])
            results = engine.evaluator.run(list(engine.outs), feeds)
            for name, value in zip(engine.outs, results, strict=True):
                kind = NUMPY[engine.get_tensor_dtype(name).name]
                value = np.asarray(value).astype(kind)
                assert list(value.shape) == list(shapes[name])
                context.cuda.store(addresses[name], value.tobytes(), clock, on)

        if self.trt.launch_fails or (capturing and self.trt.capture_fails):
            self.trt.say(self.engine.logger, "launch failed")
            engine.queued -= count
            return False
        with self.cuda.lock:
            self.cuda.trace.append("capture" if capturing else "launch")
            self.cuda.push(stream, work)
            for name in engine.outs if count else ():
                self.cuda.promise(addresses[name], stream)
        if self.profiler is not None:
            for index, node in enumerate(engine.model.graph.node):
                self.profiler.report_layer_time(node.name or node.op_type, 0.25 * (index + 1))
        return True
