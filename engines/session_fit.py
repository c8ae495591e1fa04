"""Whether a plan fits this machine, before a byte of it is loaded: TensorRT's version, then the GPU's architecture.

TensorRT-RTX's plans need the version that built them. So do TensorRT's, unless built version-compatible: then the same
major number, and no older. A GPU fits when its architecture is one that the plan was built for.
"""

from ..core.errors import ArtefactError, UnavailableError, UsageError
from .gpu import Gpu, gpus
from .requirements import check_runnable
from .session_source import Source
from .tensorrt_api import Api, create_logger
from .tensorrt_session import Words


def check_version(source: Source, version: str) -> None:
    """Raise ArtefactError unless `version` of the runtime ("tensorrt 11.4.0.106") can load the plan."""
    if source.runtime in ("", version):
        return
    built, here = (text.rpartition(" ") for text in (source.runtime, version))
    if built[0] == here[0] == "tensorrt" and source.options.get("version_compatible"):
        then, now = _numbers(built[2]), _numbers(here[2])
        if then[:1] == now[:1] and then <= now:
            return
    raise ArtefactError(
        source.asked,
        found=f"it was built with {source.runtime}, and here is {version}",
        fix=f"Compile it here, or install {source.runtime}",
    )


def pick_gpu(source: Source, device: int | None) -> int:
    """The number of the GPU to run on: `device`, or the first that the plan was built for.

    Raises UnavailableError where there is none, UsageError for a `device` that does not exist or fit.
    """
    found = gpus()
    fitting = [number for number, gpu in enumerate(found) if _fits(source, gpu)]
    if device is not None and found:
        if not 0 <= device < len(found):
            has = ", ".join(f"{n} ({g.name})" for n, g in enumerate(found))
            raise UsageError(f"GPU {device}", found="no such GPU here", fix=f"There is {has}")
        if device not in fitting:
            gpu = found[device]
            raise UsageError(
                f"{source.asked} on GPU {device}",
                found=f"{gpu.name} is {gpu.architecture}, the engine is for {source.target.device}",
                fix="Leave the device out, or compile for that architecture",
            )
        return device
    if not fitting:
        check_runnable(source.target)
        raise UnavailableError(source.asked, found="no GPU that it was built for")
    return fitting[0]


def check_header(source: Source, api: Api) -> None:
    """Raise ArtefactError where TensorRT-RTX, from the plan's header alone, says that it cannot run here.

    Full TensorRT has no such question, and answers it while it deserialises.
    """
    words = Words()
    logger = create_logger(api, words.hear)
    runtime = api.trt.Runtime(logger)
    ask = getattr(runtime, "get_engine_validity", None)
    if ask is None:
        return
    validity, causes = ask(source.plan)
    if validity == api.trt.EngineValidity.INVALID:
        known = api.trt.EngineInvalidityDiagnostics.__members__.items()
        reasons = [name.lower() for name, member in known if int(causes) & int(member)]
        raise ArtefactError(
            source.asked,
            found=f"{api.version} says of its header: {', '.join(reasons) or words.said()}",
            fix="Compile it here",
        )


def _fits(source: Source, gpu: Gpu) -> bool:
    if gpu.architecture in source.target.architectures:
        return True
    return (
        source.target.runtime == "tensorrt"
        and source.options.get("hardware_compatibility") == "ampere_plus"
        and int(gpu.architecture.removeprefix("sm")) >= 80
    )


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]
