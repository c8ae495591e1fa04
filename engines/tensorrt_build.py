"""One engine build with TensorRT, inside the child process.

graph (ONNX bytes, weights beside the model file) -> network -> plan file, `Layers:` listing
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import BuildError, UsageError
from .builder_options import save_timing_cache, set_options
from .listing import HEADER
from .memory import peak_bytes
from .plugin_nodes import register_plugins
from .tensorrt_api import Api, create_logger, create_monitor, create_writer, load_api

Emit = Callable[..., None]
LOUD = ("ERROR", "INTERNAL_ERROR", "WARNING")
HEARD = {"warning": LOUD, "info": (*LOUD, "INFO"), "verbose": (*LOUD, "INFO", "VERBOSE")}
QUIET_SECONDS = 0.1  # at most ten progress events a second

# What TensorRT says -> what would work. Matched in order against its error lines.
HINTS: tuple[tuple[str, str], ...] = (
    (r"HW-specific datatypes: fp8", "FP8 needs sm89 or newer: name such a target"),
    (r"HW-specific datatypes", "This architecture lacks a data type of the graph"),
    (r"decomposable", "Attention has no fused kernel in this form"),
    (
        r"plugin creator|[Pp]lugin not found|No importer registered",
        "This operator is unknown to TensorRT",
    ),
    (
        r"[Oo]ut of memory|bad_alloc|OutOfMemory",
        "Give the machine more memory or build a smaller profile",
    ),
    (r"external|weights file|Failed to open file", "Check the file that holds the weights"),
)


def build_plan(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Build the plan that `request` describes; returns seconds, bytes, runtime and peak memory.

    Raises UnavailableError without the runtime, UsageError for an architecture or option it lacks, BuildError
    with TensorRT's own error lines when it refuses the graph.
    """
    api = load_api(request["runtime"])
    if request["plugins"]:
        (architecture,) = request["architectures"]  # a product that takes plugins builds for one
        number = int(architecture.removeprefix("sm"))
        register_plugins(api.plugin_layer(), request["plugins"], number)
    words: list[str] = []  # TensorRT's ERROR lines, in order
    listings: list[str] = []

    def hear(severity: str, text: str) -> None:
        if severity in ("ERROR", "INTERNAL_ERROR"):
            words.append(text)
        if text.startswith(HEADER):
            listings.append(text)
        elif severity in HEARD[request["verbosity"]]:
            emit("log", severity=severity, text=text)

    start = time.monotonic()
    logger = create_logger(api, hear)
    builder = api.trt.Builder(logger)
    network, _parser = _parse(api, builder, logger, request, words)
    monitor = create_monitor(api, _quiet(emit))  # must outlive the build
    config = _configure(api, builder, request, monitor, words)
    plan = Path(request["plan"])
    _build(api, builder, network, config, plan, request["asked"], words)
    if request["timing_cache"] is not None:
        save_timing_cache(config, Path(request["timing_cache"]))
    Path(request["listing"]).write_text("".join(listings), encoding="utf-8")
    return {
        "seconds": time.monotonic() - start,
        "bytes": plan.stat().st_size,
        "runtime": api.version,
        "listings": len(listings),
        "peak_bytes": peak_bytes(),
    }


def _parse(
    api: Api, builder: Any, logger: Any, request: dict[str, Any], words: list[str]
) -> tuple[Any, Any]:
    """The network of the graph; weights are mapped from the folder of `model`, not read."""
    flags = 0
    if "strongly_typed_flag" in api.features:
        flags = 1 << int(api.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = api.trt.OnnxParser(network, logger)
    if not parser.parse(Path(request["graph"]).read_bytes(), request["model"]):
        told = []
        for index in range(parser.num_errors):
            error = parser.get_error(index)
            name, operator = error.node_name(), error.node_operator()
            told.append(f"node {name or error.node()!r} ({operator}): {error.desc()}")
        raise refusal(request["asked"], f"{api.version} cannot parse the graph", told or words)
    return network, parser  # the network's weights live in the parser


def _configure(
    api: Api, builder: Any, request: dict[str, Any], monitor: Any, words: list[str]
) -> Any:
    trt, config = api.trt, builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.progress_monitor = monitor
    set_options(api, config, request)
    for shapes in request["profiles"]:
        profile = builder.create_optimization_profile()
        for name, (low, best, high) in shapes.items():
            profile.set_shape(name, low, best, high)
        if shapes and config.add_optimization_profile(profile) < 0:
            raise refusal(request["asked"], f"{api.version} refuses the profile", words)
    return config


def _build(
    api: Api, builder: Any, network: Any, config: Any, plan: Path, asked: str, words: list[str]
) -> None:
    """Write the plan; straight into the file where the API can."""
    with plan.open("wb") as file:
        if "stream_plan" in api.features:
            writer = create_writer(api, file)
            built = builder.build_serialized_network_to_stream(network, config, writer)
            if writer.error:
                raise UsageError(
                    asked, found=f"cannot write the plan: {writer.error.strerror}", fix="Make room"
                )
        else:
            memory = builder.build_serialized_network(network, config)
            built = memory is not None
            if built:
                file.write(memory)
    if not built or not plan.stat().st_size:
        raise refusal(asked, f"{api.version} cannot build the graph", words)


def refusal(asked: str, what: str, told: list[str]) -> BuildError:
    """One BuildError from TensorRT's error lines, each said once."""
    said = "; ".join(dict.fromkeys(" ".join(line.split()) for line in told)) or "no reason given"
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, said)), "")
    return BuildError(asked, found=f"{what}: {said}", fix=hint)


def _quiet(emit: Emit) -> Callable[[str, int, int], None]:
    """Pass progress on, but not every one of thousands of steps; a phase's start and end always."""
    last = [0.0]

    def step(phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done in (0, total) or now - last[0] >= QUIET_SECONDS:
            last[0] = now
            emit("step", phase=phase, done=done, total=total)

    return step
