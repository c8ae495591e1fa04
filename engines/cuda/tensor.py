"""A result in GPU memory: read it on the host, or hand it on without a copy."""

import math
import weakref
from typing import Any

import numpy as np

from ...core.dtypes import DType
from ...core.shapes import Shape
from .. import dlpack
from ..views import LEGACY
from .blocks import Arena, Block
from .flight import Flight
from .interface import Cuda


class DeviceTensor:
    """Row-major GPU memory that a run writes on `stream`.

    It can be consumed by anything with DLPack (the consumer's stream is made to wait) or `__cuda_array_interface__` (which
    names the stream to wait for). The memory is freed when nobody holds the tensor, nor anything made from it, any more;
    a session that closes frees it before, unless it was handed on in one of these ways.
    """

    def __init__(
        self,
        where: tuple[Cuda, Arena, int],
        shape: Shape,
        dtype: DType,
        flight: Flight,
        *,
        memory: Block | tuple[int, object],
    ) -> None:
        """where: device, its arena, and the stream of the run. memory: a block of the arena, or an address of the caller's
        with what keeps it alive."""
        self._cuda, self._arena, self._stream = where
        self.shape, self.dtype, self._flight = shape, dtype, flight
        self._block: Block | None = None
        if isinstance(memory, Block):
            self._block, self.address = memory, memory.address
            weakref.finalize(self, self._arena.give_back, memory).atexit = False
        else:
            self.address, self._owner = memory

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def wait(self) -> None:
        """Return when the run that writes it is done; at once when the session was closed, which waits for all."""
        with self._cuda.current():
            self._flight.wait()

    def numpy(self) -> np.ndarray:
        """A copy in host memory, once it is computed. UsageError when the session was closed."""
        array = np.empty(self.shape, self.dtype.numpy)
        with self._arena.reading(self._block, "result"), self._cuda.current():
            self._flight.wait()
            stream = self._cuda.create_stream()
            try:
                self._cuda.download(array, self.address, stream)
            finally:
                self._cuda.synchronize(stream)
                self._cuda.destroy_stream(stream)
        return array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._cuda.ordinal

    def __dlpack__(self, *, stream: int | None = None, **how: Any) -> Any:
        """A capsule over the same memory. stream: the consumer's, as DLPack numbers them; -1: it takes care itself.

        BufferError where another device or a copy is asked for, UsageError when the session was closed.
        """
        device = self.__dlpack_device__()
        dlpack.check_request(device, how)
        self._lend()
        if stream != -1:
            with self._cuda.current():
                self._flight.hold(stream or LEGACY)
        return dlpack.export(self.address, self.shape, self.dtype, device, self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype in (DType.BF16, DType.FP8_E4M3):
            raise AttributeError(f"the CUDA array interface has no type {self.dtype.value}")
        self._lend()
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self._stream or LEGACY,
            "version": 3,
        }

    def _lend(self) -> None:
        self._arena.lend(self._block, "result")
