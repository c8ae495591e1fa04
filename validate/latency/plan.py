"""A TensorRT plan under the clock: buffers bound once, then only the launch between two CUDA events.

Inputs lie in GPU memory before and outputs stay there after: transfers are not timed, as in trtexec.
"""

import contextlib
from pathlib import Path

import numpy as np

from ...core.errors import BuildError
from ...engines.tensorrt_api import Api
from ...engines.tensorrt_session import DTYPES, TensorRTRunner
from ..runners import numpy_from_tensor
from .cuda_timer import CudaTimer, TimedDevice
from .workload import Feeds


class PlanWorkload(TensorRTRunner):
    """One engine. graph: replay a captured CUDA graph instead of launching each kernel.

    Raises what TensorRTRunner raises; BuildError when TensorRT refuses a shape or fails.
    """

    clock = "CUDA events"

    def __init__(
        self,
        label: str,
        plan: Path,
        runtime: str,
        *,
        graph: bool,
        api: Api | None = None,
        device: TimedDevice | None = None,
    ) -> None:
        self.label, self._replays = label, graph
        self._timer: TimedDevice = device if device is not None else CudaTimer()
        super().__init__(plan, runtime, api=api, device=self._timer)
        self._bound = contextlib.ExitStack()
        self._graph: int | None = None

    def prepare(self, feeds: Feeds) -> None:
        """Upload and bind the inputs, give the outputs room and, for a graph, capture it."""
        self._unbind()
        arrays = {n: np.ascontiguousarray(numpy_from_tensor(feeds[n])) for n in self._inputs}
        self._take({name: array.shape for name, array in arrays.items()})
        for name, array in arrays.items():
            self._timer.upload(self._bind(self._bound, name, array.nbytes), array)
        for name in self._outputs:
            self._bind(self._bound, name, self._bytes_of(name))
        self._timer.synchronize()
        if self._replays:
            self._launch()  # TensorRT settles what a new shape needs at the first launch, outside a capture
            self._timer.synchronize()
            self._graph = self._timer.capture(self._launch)
            self._bound.callback(self._timer.drop, self._graph)

    def time(self) -> float:
        """Seconds of one launch on the GPU."""
        start = self._timer.mark()
        if self._graph is None:
            self._launch()
        else:
            self._timer.replay(self._graph)
        return self._timer.elapsed(start, self._timer.mark())

    def close(self) -> None:
        """Free graph and buffers, then what the runner holds."""
        self._unbind()
        super().close()

    def _unbind(self) -> None:
        self._graph = None
        self._bound.close()

    def _bytes_of(self, name: str) -> int:
        dtype = DTYPES[self._engine.get_tensor_dtype(name).name].numpy
        shape = tuple(self._context.get_tensor_shape(name))
        return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def _launch(self) -> None:
        self._words.clear()
        if not self._context.execute_async_v3(self._timer.stream):
            raise BuildError("run", found=str(self._said()))
