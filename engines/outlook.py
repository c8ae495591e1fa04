"""What is known of an engine before its graph is there: files, options, and what the cache holds for it.

CompileRequest -> Outlook; the graph itself is not read
"""

from dataclasses import dataclass
from typing import Any

from .building import ENGINES
from .cache import FOLDER, open_cache, settled_parts
from .gpu import gpus
from .options import check_options
from .request import CompileRequest
from .requirements import check_available
from .tensorrt_api import load_api

Sizes = dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What compile_engine will do once it has the graph.

    options: of the builder, every one; none for ONNX Runtime. candidates: engines in the cache that have the same runtime,
    architecture, profiles and options, whatever their graph; cached: what follows from that.
    """

    target: str
    files: tuple[str, ...]
    profiles: tuple[Sizes, ...]
    options: dict[str, Any]
    plugins: str
    candidates: int
    cached: str


def outlook(request: CompileRequest) -> Outlook:
    """See Outlook; raises what check_settings raises."""
    check_settings(request)
    candidates, cached = _in_cache(request)
    plugins = request.plugins if isinstance(request.plugins, str) else ", ".join(request.plugins)
    return Outlook(
        target=str(request.target),
        files=files_of(request),
        profiles=tuple(profile_sizes(request)),
        options=request.options.as_job() if request.target.is_tensorrt else {},
        plugins=plugins,
        candidates=candidates,
        cached=cached,
    )


def check_settings(request: CompileRequest) -> None:
    """Raise UsageError for an option that the target lacks, UnavailableError for what is missing here."""
    check_available(request.target)
    if request.target.is_tensorrt:
        runtime = request.target.runtime
        features = load_api(runtime).features
        check_options(request.options, runtime, features, gpu=bool(gpus()), asked=request.asked)


def files_of(request: CompileRequest) -> tuple[str, ...]:
    """What a build writes, relative to the request's folder."""
    layers = f"{ENGINES}/{request.target.slug}.layers.json"
    return (f"{ENGINES}/{request.target.slug}.plan", layers) if request.target.is_tensorrt else (layers,)  # fmt: skip


def profile_sizes(request: CompileRequest) -> list[Sizes]:
    """Every profile as min, opt and max of each input."""
    return [
        {name: (r.min, r.opt, r.max) for name, r in profile.items()} for profile in request.profiles
    ]


def known_parts(request: CompileRequest) -> dict[str, str]:
    """The parts of the engine's key but for graph and weights."""
    target, api = request.target, load_api(request.target.runtime)
    where = list(target.architectures)
    if not api.architectures():  # the engine belongs to the model of GPU
        where += sorted({gpu.name for gpu in gpus() if gpu.architecture == target.device})
    return settled_parts(
        runtime=api.version,
        architectures=where,
        option=request.options.deciding(),
        **{f"profile{n}": sizes for n, sizes in enumerate(profile_sizes(request))},
    )


def _in_cache(request: CompileRequest) -> tuple[int, str]:
    if not request.target.is_tensorrt:
        return 0, "nothing is built for it"
    cache = open_cache(request.cache)
    if cache is None:
        return 0, f"there is no cache: ${FOLDER} names none"
    held, alike = len(cache.entries()), len(cache.alike(known_parts(request)))
    if not alike:
        return 0, f"miss: none of its {held} engines has this runtime, architecture, profile and options"  # fmt: skip
    return alike, f"{alike} of its {held} engines fit as far as is known: the graph decides"
