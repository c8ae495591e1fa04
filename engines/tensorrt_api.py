"""The one door to `tensorrt` and `tensorrt_rtx`: one API, imported late, with its differences as data.

Nothing else imports either module. Handles are typed Any: both are native modules without stubs.
"""

import importlib
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..core.errors import UnavailableError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Door:
    """Where a runtime's Python module is and how one gets it."""

    module: str
    title: str
    install: str


DOORS: dict[str, Door] = {
    "tensorrt": Door("tensorrt", "TensorRT", "pip install 'blockforge[tensorrt]'"),
    "tensorrt-rtx": Door("tensorrt_rtx", "TensorRT-RTX", "pip install tensorrt-rtx"),
}

# Feature -> the attribute whose presence shows it. Checked on the module that is installed, never assumed by version.
FEATURES: dict[str, tuple[str, str]] = {
    "ahead_of_time": ("IBuilderConfig", "set_compute_capability"),  # builds without the GPU
    "progress": ("IBuilderConfig", "progress_monitor"),
    "stream_plan": ("Builder", "build_serialized_network_to_stream"),
    "timing_cache": ("IBuilderConfig", "create_timing_cache"),
    "python_plugins": ("INetworkDefinition", "add_plugin_v3"),
    "tf32": ("BuilderFlag", "TF32"),
    "strongly_typed_flag": ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
    "runtime_config": ("ICudaEngine", "create_runtime_config"),
    "weight_streaming": ("BuilderFlag", "WEIGHT_STREAMING"),
    "refit": ("BuilderFlag", "REFIT"),
    "strip_plan": ("BuilderFlag", "STRIP_PLAN"),
    "version_compatible": ("BuilderFlag", "VERSION_COMPATIBLE"),
    "hardware_compatibility": ("IBuilderConfig", "hardware_compatibility_level"),
    "tactic_sources": ("IBuilderConfig", "set_tactic_sources"),
}


@dataclass(frozen=True, slots=True)
class Api:
    """An imported TensorRT: `trt` is the module, `features` what it can do."""

    runtime: str
    trt: Any
    features: frozenset[str]

    @property
    def version(self) -> str:
        """Runtime and version, e.g. `tensorrt-rtx 1.7.1.116`."""
        return f"{self.runtime} {self.trt.__version__}"

    def plugin_layer(self) -> Any:
        """The module that takes plugins from Python (`tensorrt.plugin`); UnavailableError where there is none."""
        module = f"{DOORS[self.runtime].module}.plugin"
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise UnavailableError(
                "plugins", found=f"cannot import {module}: {error}", fix='Set plugins = "off"'
            ) from None

    def architectures(self) -> tuple[str, ...]:
        """What the builder can be told to build for, e.g. sm89; empty where it only knows its own GPU."""
        if "ahead_of_time" not in self.features:
            return ()
        names = (name.lower() for name in self.trt.ComputeCapability.__members__)
        return tuple(name for name in names if name.startswith("sm"))


def is_installed(runtime: str) -> bool:
    """Whether the runtime's module can be found; it is not imported."""
    return importlib.util.find_spec(DOORS[runtime].module) is not None


def load_api(runtime: str) -> Api:
    """Import the module behind `runtime`; UnavailableError says how to get it."""
    door = DOORS[runtime]
    try:
        trt = importlib.import_module(door.module)
    except (ImportError, OSError) as error:
        raise UnavailableError(
            door.title, found=f"cannot import {door.module}: {error}", fix=door.install
        ) from None
    has = {
        name for name, (owner, part) in FEATURES.items() if hasattr(getattr(trt, owner, None), part)
    }
    return Api(runtime, trt, frozenset(has))


def create_logger(api: Api, sink: Callable[[str, str], None]) -> Any:
    """An ILogger that hands (severity name, message) to `sink`, from whichever thread TensorRT speaks."""
    trt = api.trt

    class _Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            sink(severity.name, message)

    return _Logger()


def create_monitor(api: Api, sink: Callable[[str, int, int], None]) -> Any:
    """An IProgressMonitor that hands (phase, done, total) to `sink`, at each phase's start and each step."""
    trt = api.trt

    class _Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.totals: dict[str, int] = {}

        def phase_start(self, name: str, parent: str | None, total: int) -> None:
            self.totals[name] = total
            sink(name, 0, total)

        def step_complete(self, name: str, step: int) -> bool:
            sink(name, step + 1, self.totals.get(name, 0))
            return True

        def phase_finish(self, name: str) -> None:
            self.totals.pop(name, None)

    return _Monitor()


def create_profiler(api: Api, sink: Callable[[str, float], None]) -> Any:
    """An IProfiler that hands (layer, milliseconds) to `sink`, once for each layer of a run."""
    trt = api.trt

    class _Profiler(trt.IProfiler):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, name: str, milliseconds: float) -> None:
            sink(name, milliseconds)

    return _Profiler()


def create_writer(api: Api, file: BinaryIO) -> Any:
    """An IStreamWriter into an open file, so that the plan is never held in memory as a whole."""
    trt = api.trt

    class _Writer(trt.IStreamWriter):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)
            self.error: OSError | None = None

        def write(self, data: Any) -> int:
            try:
                return file.write(data)
            except OSError as error:  # a full disk: TensorRT reads 0 as a failure
                self.error = error
                return 0

    return _Writer()
