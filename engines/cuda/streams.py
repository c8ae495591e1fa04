"""A CUDA stream as callers have it -> its handle as a number."""

from typing import Any

from ...core.errors import UsageError


def stream_handle(stream: Any) -> int:
    """The handle of an integer, of an object with `__cuda_stream__` (cuda.core), `cuda_stream` (torch) or `ptr` (CuPy).

    Objects that convert to an integer (cudaStream_t) are taken too. Raises UsageError for anything else.
    """
    if isinstance(stream, bool):
        raise _unknown(stream)
    if isinstance(stream, int):
        handle = stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        handle = int((protocol() if callable(protocol) else protocol)[1])
    elif hasattr(stream, "cuda_stream"):
        handle = int(stream.cuda_stream)
    elif hasattr(stream, "ptr"):
        handle = int(stream.ptr)
    elif hasattr(stream, "__int__"):
        handle = int(stream)
    else:
        raise _unknown(stream)
    if handle < 0:
        raise _unknown(stream)
    return handle


def _unknown(stream: Any) -> UsageError:
    return UsageError(
        f"stream {stream!r}",
        found="no CUDA stream",
        fix="Give its handle as a number, or a stream of cuda-python, torch or CuPy",
    )
