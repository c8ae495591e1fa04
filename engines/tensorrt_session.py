"""Load a TensorRT plan, and run it the plain way: upload, enqueue, download for each call.

Both products through one API. Sessions run engines with more behind them (cuda/); this is what timing and proofs need.
Device memory is behind cuda_device.Device, so that lifetimes can be tested without a GPU.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.dtypes import DType
from ..core.errors import ArtefactError, BuildError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile, Shape, ShapeRange
from .cuda_device import CudaDevice, Device
from .session_profiles import pick_profile
from .tensorrt_api import Api, create_logger, load_api

DTYPES = {dtype.tensorrt: dtype for dtype in DType if dtype.tensorrt}


class Words:
    """What TensorRT complains about, by the thread in which it does."""

    def __init__(self) -> None:
        self._by_thread: dict[int, list[str]] = {}

    def hear(self, severity: str, text: str) -> None:
        """Keep an error."""
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self._by_thread.setdefault(threading.get_ident(), []).append(text)

    def clear(self) -> None:
        """Forget this thread's."""
        self._by_thread.pop(threading.get_ident(), None)

    def said(self) -> str:
        """This thread's complaints; those of TensorRT's own threads where it has none."""
        mine = self._by_thread.get(threading.get_ident())
        words = mine or [w for each in list(self._by_thread.values()) for w in each]
        return "; ".join(" ".join(w.split()) for w in words) or "no reason given"


@dataclass(slots=True)
class Loaded:
    """A deserialised engine with what has to outlive it. inputs, outputs: names in the engine's order."""

    runtime: Any
    logger: Any
    engine: Any
    words: Words
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def said(self) -> str:
        """TensorRT's latest complaints in this thread."""
        return self.words.said()

    def close(self) -> None:
        """Free engine and runtime, in this order; no context may be left."""
        self.engine = None
        self.runtime = None


def load_engine(data: bytes, api: Api, asked: str, *, host_code: bool = False) -> Loaded:
    """Deserialise a plan, which runs native code from it. ArtefactError when it does not fit this TensorRT or GPU.

    host_code: let it bring code for the CPU too, as a version-compatible plan does.
    """
    words = Words()
    logger = create_logger(api, words.hear)
    runtime = api.trt.Runtime(logger)
    if host_code:
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise _unfit(asked, api, words)
    mode = api.trt.TensorIOMode
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    modes = {name: engine.get_tensor_mode(name) for name in names}
    return Loaded(
        runtime,
        logger,
        engine,
        words,
        tuple(name for name in names if modes[name] == mode.INPUT),
        tuple(name for name in names if modes[name] == mode.OUTPUT),
    )


def tensor_record(engine: Any, name: str, asked: str) -> TensorRecord:
    """An input or output of a deserialised engine, its dynamic axes named by their number; ArtefactError for an unknown type."""
    shape = tuple(engine.get_tensor_shape(name))
    dims = tuple(d if d >= 0 else f"{name}.{axis}" for axis, d in enumerate(shape))
    kind = engine.get_tensor_dtype(name).name
    if kind not in DTYPES:
        raise ArtefactError(asked, found=f"{name!r} has elements of type {kind}")
    return TensorRecord(name=name, dtype=DTYPES[kind].value, dims=dims)


def profile_at(engine: Any, inputs: Sequence[TensorRecord], index: int) -> Profile:
    """The engine's profile of that number."""
    profile = {}
    for record in inputs:
        sizes = tuple(d for d in record.dims if isinstance(d, int))
        if len(sizes) == len(record.dims):
            profile[record.name] = ShapeRange(sizes, sizes, sizes)
            continue
        shapes = engine.get_tensor_profile_shape(record.name, index)
        profile[record.name] = ShapeRange(*(tuple(shape) for shape in shapes))
    return profile


class TensorRTRunner:
    """One engine, one execution context, one stream.

    Raises UnavailableError without library or device, ArtefactError when the plan does not fit this TensorRT version
    or GPU.
    """

    def __init__(
        self, plan: Path, runtime: str, *, api: Api | None = None, device: Device | None = None
    ) -> None:
        self._api = api or load_api(runtime)
        self._device: Device = device or CudaDevice()
        try:
            self._loaded = load_engine(plan.read_bytes(), self._api, f"engine {plan}")
            self._engine, self._words = self._loaded.engine, self._loaded.words
            self._context: Any = self._engine.create_execution_context()
            if self._context is None:
                raise _unfit(f"engine {plan}", self._api, self._words)
        except BaseException:
            self._device.close()
            raise
        self._inputs, self._outputs = self._loaded.inputs, self._loaded.outputs

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name. UsageError for sizes that none of several profiles holds, BuildError with TensorRT's words when it fails."""
        self._words.clear()
        self._take({name: feeds[name].shape for name in self._inputs})
        with contextlib.ExitStack() as stack:
            for name in self._inputs:
                array = feeds[name]
                self._device.upload(self._bind(stack, name, array.nbytes), array)
            results, addresses = {}, {}
            for name in self._outputs:
                dtype = DTYPES[self._engine.get_tensor_dtype(name).name].numpy
                results[name] = np.empty(tuple(self._context.get_tensor_shape(name)), dtype)
                addresses[name] = self._bind(stack, name, results[name].nbytes)
            if not self._context.execute_async_v3(self._device.stream):
                raise BuildError("run", found=self._said())
            for name, array in results.items():
                self._device.download(array, addresses[name])
            self._device.synchronize()
        return results

    def close(self) -> None:
        """Free context, engine and runtime, in this order, then the stream."""
        self._context = self._engine = None
        self._loaded.close()
        self._device.close()

    def _take(self, shapes: Mapping[str, Shape]) -> None:
        """Set the sizes of every input, in the profile for them where the engine has several."""
        count = self._engine.num_optimization_profiles
        if count > 1:
            records = [tensor_record(self._engine, name, "engine") for name in self._inputs]
            profiles = [profile_at(self._engine, records, index) for index in range(count)]
            index = pick_profile(shapes, profiles, records)
            if index != self._context.active_optimization_profile:
                self._context.set_optimization_profile_async(index, self._device.stream)
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise BuildError(f"input {name!r} of {shape}", found=self._said())

    def _bind(self, stack: contextlib.ExitStack, name: str, nbytes: int) -> int:
        address = self._device.allocate(nbytes)
        stack.callback(self._device.free, address)
        self._context.set_tensor_address(name, address)
        return address

    def _said(self) -> str:
        return self._words.said()


def _unfit(asked: str, api: Api, words: Words) -> ArtefactError:
    return ArtefactError(
        asked,
        found=f"{api.version} cannot load it: {words.said()}",
        fix="An engine runs on the GPU type and TensorRT version it was built for: compile it here",
    )
