"""What can be refused before anything is written or started: names, engines that are not there, addresses, machines."""

import contextlib
import os
import re
import socket

from ...core.bundle import Bundle
from ...core.errors import UsageError
from ...core.manifest import EngineRecord, VariantRecord
from ..engine_choice import plan_of
from ..requirements import check_runnable
from ..target import Target
from .batching import batching_of
from .served_model import ServeOptions
from .wire_types import wire_name


def engine_of(bundle: Bundle, variant: VariantRecord, target: Target) -> EngineRecord | None:
    """The bundle's engine for `target`; None where the ONNX file runs and was never compiled for it.

    Raises UsageError where a plan is needed and the bundle has none.
    """
    if target.is_tensorrt:
        return plan_of(bundle, variant, target, UsageError)
    return next((engine for engine in variant.engines if engine.target == str(target)), None)


def check_served(bundle: Bundle, options: ServeOptions) -> Target:
    """The target, parsed; UsageError for a precision, target, type or batch that `bundle` cannot be served with."""
    variant = bundle.manifest.variant(options.precision)
    target = Target.parse(options.target)
    engine_of(bundle, variant, target)
    for record in (*variant.inputs, *variant.outputs):
        wire_name(record)
    batching_of(variant.inputs, variant.outputs, variant.profiles, options.max_batch)
    return target


def check_machine(target: Target, host: str, port: int) -> None:
    """Raise UnavailableError unless `target` runs on this machine, UsageError unless host:port can be listened on."""
    asked = f"serve on {host}:{port}"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
            if os.name != "nt":  # there it would share a port that is taken
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen(1)
    except OSError as error:
        words = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        raise UsageError(
            asked, found=f"cannot listen there: {words}", fix="Give another --host or --port"
        ) from None
    check_runnable(target)
