"""The one door to Ray: a cluster that is started here and ended again, or one that runs already."""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from ...core.errors import UnavailableError

LOCAL = "local"
CONNECT_SECONDS = 5.0
INSTALL = "pip install 'blockforge[serve]'"


def load_ray() -> Any:
    """The module; UnavailableError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to its makers otherwise
    try:
        import ray
    except ImportError as error:
        raise UnavailableError("Ray", found=f"cannot import ray: {error}", fix=INSTALL) from None
    return ray


def load_serve() -> Any:
    """The module ray.serve; UnavailableError where it or what it needs is not installed."""
    load_ray()
    try:
        from ray import serve
    except ImportError as error:
        raise UnavailableError(
            "Ray Serve", found=f"cannot import it: {error}", fix=INSTALL
        ) from None
    return serve


def connected() -> bool:
    """Whether this process is connected to a cluster already."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


@contextlib.contextmanager
def cluster(address: str = LOCAL, *, cpus: int | None = None) -> Iterator[Any]:
    """Connect to the cluster at `address`, or start one on this machine; yields the module, and undoes it at the end.

    cpus: of a cluster that is started here, None for all. A connection that the caller has already made is used and kept.
    Raises UnavailableError without Ray or without a cluster at `address`.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    settings: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        _check_answers(address, host, port)  # Ray itself would try for minutes
    if address == LOCAL:
        settings |= {"include_dashboard": False, "num_cpus": cpus}
    with _signals_kept():
        try:
            ray.init(**settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(address, " ".join(str(error).split())) from None
    try:
        yield ray
    finally:
        with _signals_kept():
            ray.shutdown()


def _check_answers(address: str, host: str, port: str) -> None:
    """Raise UnavailableError unless something accepts connections there."""
    try:
        with socket.create_connection((host, int(port)), CONNECT_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, found: str) -> UnavailableError:
    return UnavailableError(
        f"Ray cluster {address!r}",
        found=found,
        fix="Start one with `ray start --head`, or use local",
    )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray installs handlers of its own; the command line's come back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread: none was changed
            for number, handler in before.items():
                signal.signal(number, handler)
