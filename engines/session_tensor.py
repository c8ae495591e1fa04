"""A result in host memory, with the interface of one on a GPU: it is computed already."""

from typing import Any

import numpy as np

from ..core.dtypes import DType
from . import dlpack


class HostTensor:
    """What ONNX Runtime computed. DLPack hands it on without a copy, in every element type (numpy's own has no bf16)."""

    def __init__(self, array: np.ndarray, dtype: DType) -> None:
        self._array, self.dtype = array, dtype
        self.shape, self.address = array.shape, array.ctypes.data

    def wait(self) -> None:
        """Return at once."""

    def numpy(self) -> np.ndarray:
        """The array itself, not a copy."""
        return self._array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **how: Any) -> Any:
        """A capsule over the same memory; BufferError where another device or a copy is asked for."""
        device = self.__dlpack_device__()
        dlpack.check_request(device, how)
        return dlpack.export(self.address, self.shape, self.dtype, device, self._array)
