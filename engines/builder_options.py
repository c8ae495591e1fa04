"""The options of one build, set on TensorRT's builder config; runs in the build child.

Each setting is read back where TensorRT is known to change or drop it without a word.
"""

from pathlib import Path
from typing import Any

from ..core.errors import ArtefactError, UsageError
from ..core.whole_file import write_whole
from .tensorrt_api import Api

FLAGS = {  # option -> member of BuilderFlag
    "version_compatible": "VERSION_COMPATIBLE",
    "weight_streaming": "WEIGHT_STREAMING",
    "refit": "REFIT",
    "strip_plan": "STRIP_PLAN",
}


def set_options(api: Api, config: Any, request: dict[str, Any]) -> None:
    """Set every option that `request` names (the fields of BuildOptions), and the architectures.

    Raises UsageError for a value that this TensorRT does not know or silently replaces, ArtefactError for a timing cache
    of another version or GPU.
    """
    trt, asked = api.trt, request["asked"]
    if request["workspace_bytes"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request["workspace_bytes"])
    if request["optimization_level"] is not None:
        config.builder_optimization_level = request["optimization_level"]
        if config.builder_optimization_level != request["optimization_level"]:  # clamped in silence
            raise UsageError(
                asked,
                found=f"{api.version} has no optimization level {request['optimization_level']}",
                fix="Give 0 (fastest build) to 5",
            )
    if "tf32" in api.features and not request["tf32"]:
        config.clear_flag(trt.BuilderFlag.TF32)
    for option, name in FLAGS.items():
        if request[option]:
            flag = trt.BuilderFlag.__members__[name]
            config.set_flag(flag)
            _took(api, asked, option, config.get_flag(flag))
    if request["hardware_compatibility"] is not None:
        name = request["hardware_compatibility"].upper()
        level = _member(api, asked, trt.HardwareCompatibilityLevel, name)
        config.hardware_compatibility_level = level
        took = config.hardware_compatibility_level == level
        _took(api, asked, "hardware_compatibility", took)
    if request["tactic_sources"] is not None:
        names = [name.upper() for name in request["tactic_sources"]]
        bits = sum(1 << int(_member(api, asked, trt.TacticSource, name)) for name in names)
        took = config.set_tactic_sources(bits) and config.get_tactic_sources() == bits
        _took(api, asked, "tactic_sources", took)
    if request["timing_cache"] is not None:
        _load_timing_cache(api, config, Path(request["timing_cache"]), asked)
    if "ahead_of_time" in api.features:
        _set_architectures(api, config, request)


def save_timing_cache(config: Any, path: Path) -> None:
    """Write what the build measured to `path`, whole or not at all. Raises UsageError when it cannot be written."""
    data = bytes(config.get_timing_cache().serialize())
    try:
        write_whole(path, data)
    except OSError as error:
        raise UsageError(
            f"timing cache {path}", found=f"cannot write it: {error.strerror}", fix="Make room"
        ) from None


def _load_timing_cache(api: Api, config: Any, path: Path, asked: str) -> None:
    """Give the builder the times in `path`, an empty cache where there is no such file."""
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, ignore_mismatch=False):
        raise ArtefactError(
            asked,
            found=f"{api.version} does not take the timing cache {path}",
            fix="It belongs to another version or GPU: name another file",
        )


def _set_architectures(api: Api, config: Any, request: dict[str, Any]) -> None:
    names = request["architectures"]
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        if name not in api.architectures():
            raise UsageError(
                request["asked"],
                found=f"{api.version} does not build for {name}",
                fix=f"It builds for {', '.join(api.architectures())}",
            )
        member = api.trt.ComputeCapability.__members__[name.upper()]
        config.set_compute_capability(member, index)


def _member(api: Api, asked: str, kind: Any, name: str) -> Any:
    """The member of a TensorRT enumeration; UsageError lists those that exist."""
    if name not in kind.__members__:
        known = ", ".join(each.lower() for each in kind.__members__)
        raise UsageError(
            asked,
            found=f"{api.version} has no {kind.__name__} {name.lower()}",
            fix=f"It has {known}",
        )
    return kind.__members__[name]


def _took(api: Api, asked: str, option: str, took: bool) -> None:
    if not took:
        raise UsageError(
            asked, found=f"{api.version} does not take {option}", fix=f"Leave {option} out"
        )
