"""The child's side: read one request from stdin, do the job, write events to stdout.

Run as `python -m blockforge.engines.build_child` by child.py, never imported by the parent. Native libraries may
print what they like: their stdout is sent to stderr, and events go through a descriptor that only we know.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..core.errors import BlockforgeError

Emit = Callable[..., None]
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> int:
    """Serve one request; the exit status is 0 when an event told the outcome."""
    parent = os.getppid()
    faulthandler.enable()
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    emit = _events_to(os.dup(1))
    os.dup2(2, 1)
    _die_with_parent(parent)
    line = sys.stdin.readline()
    if not line:
        return 1
    threading.Thread(target=_watch_lifeline, daemon=True).start()
    request = json.loads(line)
    try:
        emit("done", **_job(request["job"])(request, emit))
    except BlockforgeError as error:
        emit(
            "failed",
            error=type(error).__name__,
            asked=error.asked,
            found=error.found,
            fix=error.fix,
        )
    return 0


def _job(name: str) -> Callable[[dict[str, Any], Emit], dict[str, Any]]:
    if name == "onnxruntime":
        from .onnxruntime_nodes import list_nodes

        return list_nodes
    from .tensorrt_build import build_plan

    return build_plan


def _events_to(descriptor: int) -> Emit:
    """A writer of events; safe from several threads, since TensorRT speaks from its own."""
    out = os.fdopen(descriptor, "w", encoding="utf-8")
    lock = threading.Lock()

    def emit(event: str, **fields: Any) -> None:
        with lock:
            out.write(json.dumps({"event": event, **fields}) + "\n")
            out.flush()

    return emit


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill us when the parent dies, even while native code holds every thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)


def _watch_lifeline() -> None:
    """Leave when the parent closes our stdin: the way that works on every system.

    Reads the descriptor itself: a thread blocked inside sys.stdin's lock would abort the interpreter's shutdown.
    """
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
