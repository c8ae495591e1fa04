"""The door to cuda-python, and a device with one stream: the only file that imports `cuda`.

Written to the API of cuda-bindings 13.4, whose functions tests/engines/test_cuda_runtime.py calls as far as they go
without a driver; for want of a GPU nothing has run beyond that.
"""

from typing import Any, Protocol

import numpy as np

from ..core.errors import UnavailableError


def load_cuda(asked: str) -> Any:
    """cuda-python's CUDA runtime; UnavailableError says how to get it."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise UnavailableError(
            asked,
            found=f"cannot import cuda-python: {error}",
            fix="pip install 'blockforge[gpu]'",
        ) from None
    return runtime


def call_cuda(cuda: Any, name: str, *arguments: Any) -> Any:
    """Call a runtime function; UnavailableError with CUDA's name for the fault."""
    status, *values = getattr(cuda, name)(*arguments)
    check_status(name, status)
    return values[0] if values else None


def check_status(name: str, status: Any) -> None:
    """Raise UnavailableError with CUDA's name for the fault unless `status` is success."""
    if int(status) != 0:
        raise UnavailableError(
            f"CUDA {name}", found=f"{status.name} ({int(status)})", fix="See nvidia-smi"
        )


class Device(Protocol):
    """What the TensorRT runner needs of a GPU. Addresses are plain integers."""

    stream: int

    def allocate(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes."""

    def free(self, address: int) -> None:
        """Give back what allocate gave."""

    def upload(self, address: int, array: np.ndarray) -> None:
        """Queue a copy of a contiguous array to the device."""

    def download(self, array: np.ndarray, address: int) -> None:
        """Queue a copy from the device into a contiguous array."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def close(self) -> None:
        """Destroy the stream."""


class CudaDevice:
    """The current CUDA device, with a stream of its own."""

    def __init__(self) -> None:
        self._cuda: Any = load_cuda("TensorRT session")
        self.stream = int(self._call("cudaStreamCreate"))

    def allocate(self, nbytes: int) -> int:
        """cudaMalloc; at least one byte, since an empty tensor needs an address too."""
        return int(self._call("cudaMalloc", max(nbytes, 1)))

    def free(self, address: int) -> None:
        """cudaFree."""
        self._call("cudaFree", address)

    def upload(self, address: int, array: np.ndarray) -> None:
        """cudaMemcpyAsync to the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, self.stream)

    def download(self, array: np.ndarray, address: int) -> None:
        """cudaMemcpyAsync from the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, self.stream)

    def synchronize(self) -> None:
        """cudaStreamSynchronize."""
        self._call("cudaStreamSynchronize", self.stream)

    def close(self) -> None:
        """cudaStreamDestroy."""
        self._call("cudaStreamDestroy", self.stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        return call_cuda(self._cuda, name, *arguments)
