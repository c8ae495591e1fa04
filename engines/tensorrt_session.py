"""Run a TensorRT plan: deserialise once, then upload, enqueue, download for each call.

Both products through one API. Device memory is behind cuda_device.Device, so that lifetimes can be tested without a GPU.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.dtypes import DType
from ..core.errors import ArtefactError, BuildError
from .cuda_device import CudaDevice, Device
from .tensorrt_api import Api, create_logger, load_api

DTYPES = {dtype.tensorrt: dtype for dtype in DType if dtype.tensorrt}


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
        self._words: list[str] = []
        self._logger = create_logger(self._api, self._hear)
        self._runtime = self._api.trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        self._context: Any = None
        if self._engine is not None:
            self._context = self._engine.create_execution_context()
        if self._context is None:
            self._device.close()
            raise ArtefactError(
                f"engine {plan}",
                found=f"{self._api.version} cannot load it: {self._said()}",
                fix="An engine runs on the GPU type and TensorRT version it was built for: compile it here",
            )
        engine, mode = self._engine, self._api.trt.TensorIOMode
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._inputs = [n for n in names if engine.get_tensor_mode(n) == mode.INPUT]
        self._outputs = [n for n in names if engine.get_tensor_mode(n) == mode.OUTPUT]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name; BuildError with TensorRT's words when it refuses a shape or fails."""
        self._words.clear()
        with contextlib.ExitStack() as stack:
            for name in self._inputs:
                array = feeds[name]
                if not self._context.set_input_shape(name, array.shape):
                    raise BuildError(f"input {name!r} of {array.shape}", found=self._said())
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
        self._context = self._engine = self._runtime = None
        self._device.close()

    def _bind(self, stack: contextlib.ExitStack, name: str, nbytes: int) -> int:
        address = self._device.allocate(nbytes)
        stack.callback(self._device.free, address)
        self._context.set_tensor_address(name, address)
        return address

    def _hear(self, severity: str, text: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self._words.append(text)

    def _said(self) -> Any:
        return "; ".join(" ".join(w.split()) for w in self._words) or "no reason given"
