"""The real CUDA behind a session, through cuda-python's runtime bindings."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..cuda_device import call_cuda, check_status, load_cuda

NOT_READY = 600  # cudaErrorNotReady


class CudaRuntime:
    """Cuda on one device; see interface.Cuda. Raises UnavailableError without cuda-python."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._cuda: Any = load_cuda(f"GPU {ordinal}")

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """cudaSetDevice, and back to the caller's device afterwards."""
        before = int(self._call("cudaGetDevice"))
        if before == self.ordinal:
            yield
            return
        self._call("cudaSetDevice", self.ordinal)
        try:
            yield
        finally:
            self._call("cudaSetDevice", before)

    def malloc(self, nbytes: int) -> int:
        """cudaMalloc."""
        return int(self._call("cudaMalloc", nbytes))

    def free(self, address: int) -> None:
        """cudaFree, which would end a capture of this thread if it were not told to relax."""
        relaxed = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        before = self._call("cudaThreadExchangeStreamCaptureMode", relaxed)
        try:
            self._call("cudaFree", address)
        finally:
            self._call("cudaThreadExchangeStreamCaptureMode", before)

    def upload(self, address: int, array: np.ndarray, stream: int) -> None:
        """cudaMemcpyAsync to the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", address, array.ctypes.data, array.nbytes, kind, stream)

    def download(self, array: np.ndarray, address: int, stream: int) -> None:
        """cudaMemcpyAsync from the device."""
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, address, array.nbytes, kind, stream)

    def create_stream(self) -> int:
        """cudaStreamCreateWithFlags, non-blocking."""
        return int(self._call("cudaStreamCreateWithFlags", self._cuda.cudaStreamNonBlocking))

    def destroy_stream(self, stream: int) -> None:
        """cudaStreamDestroy."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """cudaStreamSynchronize."""
        self._call("cudaStreamSynchronize", stream)

    def record(self, stream: int) -> int:
        """cudaEventCreateWithFlags without timing, cudaEventRecord."""
        event = int(self._call("cudaEventCreateWithFlags", self._cuda.cudaEventDisableTiming))
        try:
            self._call("cudaEventRecord", event, stream)
        except BaseException:
            self.destroy_event(event)
            raise
        return event

    def wait(self, stream: int, event: int) -> None:
        """cudaStreamWaitEvent."""
        self._call("cudaStreamWaitEvent", stream, event, 0)

    def has_happened(self, event: int) -> bool:
        """cudaEventQuery."""
        (status,) = self._cuda.cudaEventQuery(event)
        if int(status) == NOT_READY:
            return False
        check_status("cudaEventQuery", status)
        return True

    def wait_for(self, event: int) -> None:
        """cudaEventSynchronize."""
        self._call("cudaEventSynchronize", event)

    def destroy_event(self, event: int) -> None:
        """cudaEventDestroy."""
        self._call("cudaEventDestroy", event)

    def is_capturing(self, stream: int) -> bool:
        """cudaStreamIsCapturing."""
        none = self._cuda.cudaStreamCaptureStatus.cudaStreamCaptureStatusNone
        return bool(self._call("cudaStreamIsCapturing", stream) != none)

    def begin_capture(self, stream: int) -> None:
        """cudaStreamBeginCapture; other threads go on as they like."""
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        """cudaStreamEndCapture, cudaGraphInstantiate."""
        graph = self._call("cudaStreamEndCapture", stream)
        try:
            return int(self._call("cudaGraphInstantiate", graph, 0))
        finally:
            self._call("cudaGraphDestroy", graph)

    def abandon_capture(self, stream: int) -> None:
        """cudaStreamEndCapture; a capture that failed has no graph."""
        status, graph = self._cuda.cudaStreamEndCapture(stream)
        if int(status) == 0:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: int, stream: int) -> None:
        """cudaGraphLaunch."""
        self._call("cudaGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        """cudaGraphExecDestroy."""
        self._call("cudaGraphExecDestroy", graph)

    def _call(self, name: str, *arguments: Any) -> Any:
        return call_cuda(self._cuda, name, *arguments)
