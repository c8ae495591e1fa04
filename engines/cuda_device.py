"""GPU memory and one stream through cuda-python: the only file that imports `cuda`.

Written to the API of cuda-python 13; it has not run yet, for want of a GPU (see tests/engines/test_tensorrt_session.py for
what a stand-in can show).
"""

from typing import Any, Protocol

import numpy as np

from ..core.errors import UnavailableError


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
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise UnavailableError(
                "TensorRT session",
                found=f"cannot import cuda-python: {error}",
                fix="pip install 'blockforge[gpu]'",
            ) from None
        self._cuda: Any = runtime
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
        """Call a runtime function; UnavailableError with CUDA's name for the fault."""
        status, *values = getattr(self._cuda, name)(*arguments)
        if int(status) != 0:
            raise UnavailableError(
                f"CUDA {name}", found=f"{status.name} ({int(status)})", fix="See nvidia-smi"
            )
        return values[0] if values else None
