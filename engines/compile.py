"""Compile one ONNX graph for one target: legalise, build in a child process, read the plan, write it down.

CompileRequest -> engines/<slug>.plan (TensorRT only), engines/<slug>.layers.json -> EngineRecord
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ..core.errors import BuildError
from ..core.manifest import EngineRecord
from ..core.progress import Progress, Step, silent
from ..core.shapes import check_profiles
from ..graph.io import load_model
from ..plugins.policy import Choice
from .building import ENGINES, finish, run
from .cache import FOLDER, EngineCache, Key, Lookup, key_of, open_cache
from .child import Event
from .dtype_check import check_dtypes
from .legalize import legalize
from .listing import kernels_from_listing
from .onnxruntime_compile import compile_onnxruntime
from .options import BuildOptions
from .outlook import Sizes, check_settings, files_of, known_parts, profile_sizes
from .plugin_nodes import choose_plugins, mark_plugins
from .preflight import Report, preflight, refuse, texts_of
from .profile_kernels import kernels_of_profile
from .request import CompileRequest
from .signature import input_dims
from .staging import staging

__all__ = ["BuildOptions", "CompileRequest", "DryRun", "compile_engine", "dry_run"]

log = logging.getLogger(__name__)

PLAN, LISTING = "plan", "listing.txt"


@dataclass(frozen=True, slots=True)
class DryRun:
    """What compile_engine would do.

    model, nodes: the graph as the builder would read it. options: of the builder, every one. legalized, plugins: as in the
    EngineRecord. parts: what the engine would be made from; empty for ONNX Runtime, which builds none. hit: whether the
    cache has it; cached: why or why not. preflight: what is known to stand in the way; where that is a form that the
    builder would refuse, nothing is said of legal forms and cache.
    """

    target: str
    model: str
    nodes: int
    preflight: Report
    files: tuple[str, ...]
    profiles: tuple[Sizes, ...]
    options: dict[str, Any]
    legalized: tuple[str, ...]
    plugins: tuple[str, ...]
    parts: dict[str, str]
    hit: bool
    cached: str

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types; parts are named, their hashes left out."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"preflight": self.preflight.as_dict()}


def compile_engine(request: CompileRequest, progress: Progress = silent) -> EngineRecord:
    """Build the engine and write its files under `folder`/engines; paths in the record are relative to `folder`.

    Kernels are counted and listed for the first profile; their types are checked for all.
    An engine that the cache holds is copied from there; build_seconds is then what its build took.
    Nothing is left behind when it fails or is interrupted; an older engine of the same target stays until the new
    one is whole.
    Raises UsageError for a missing file, a profile that does not fit, an option that the runtime lacks or a folder that
    cannot be written, ArtefactError for a damaged model, UnavailableError when the runtime or its device is missing
    here, and BuildError with the runtime's own words when it refuses the graph or dies.
    """
    model, choices = _checked(request)
    progress(Step(f"compile {request.target}", detail="graph"))
    if request.target.is_tensorrt:
        record = _compile_tensorrt(request, model, choices, progress)
    else:
        record = compile_onnxruntime(request, model, progress)
    return record.model_copy(update={"plugins": tuple(map(_choice_line, choices))})


def dry_run(request: CompileRequest) -> DryRun:
    """What compile_engine would build from what, and whether the cache has it; nothing is built or written.

    Raises what compile_engine raises before it builds, except for a form known to be refused: preflight has that.
    """
    model, choices = _checked(request)
    first, *more = (texts_of(profile) for profile in request.profiles)
    report = preflight(request.model, request.target, shapes=first, more_shapes=more)
    nodes = model.graph.num_nodes()
    parts: dict[str, str] = {}
    legalized: tuple[str, ...] = ()
    looked = Lookup("nothing is built for it")
    if request.target.is_tensorrt:
        try:
            legal, legalized = _legal(request, model, choices)
        except BuildError as error:
            if report.passed:  # nothing else would say it
                raise
            looked = Lookup(f"the builder would refuse the graph: {error.found}")
        else:
            nodes = len(onnx.ModelProto.FromString(legal).graph.node)
            key, cache = _key(request, legal), _cache(request, choices)
            parts = dict(key.parts)
            looked = cache.look(key) if cache else Lookup(_why_no_cache(choices))
    return DryRun(
        target=str(request.target),
        model=str(request.model),
        nodes=nodes,
        preflight=report,
        files=files_of(request),
        profiles=tuple(profile_sizes(request)),
        options=request.options.as_job(),
        legalized=legalized,
        plugins=tuple(map(_choice_line, choices)),
        parts=parts,
        hit=looked.hit,
        cached=looked.reason,
    )


def _checked(request: CompileRequest) -> tuple[ir.Model, tuple[Choice, ...]]:
    """The model and who runs its operators, once target, options and profiles are known to fit."""
    check_settings(request)
    model = load_model(request.model)
    check_profiles(request.profiles, input_dims(model))
    return model, choose_plugins(model, request.target, request.plugins)


def _choice_line(choice: Choice) -> str:
    used = "plugin" if choice.plugin else "function body"
    return f"{choice.operator}: {used} ({choice.reason})"


def _legal(
    request: CompileRequest, model: ir.Model, choices: Sequence[Choice]
) -> tuple[bytes, tuple[str, ...]]:
    """The graph as the builder reads it, and what was changed. Raises BuildError for a form known to be refused."""
    target = request.target
    legal, legalized = legalize(mark_plugins(model, tuple(choices)), target)
    for each in target.apart:
        refuse(legal, each, request.asked)
    return ir.to_proto(legal).SerializeToString(), legalized


def _cache(request: CompileRequest, choices: Sequence[Choice]) -> EngineCache | None:
    """The cache for this engine: none where a plugin's kernels, which the key does not cover, go into it."""
    return None if _plugins(choices) else open_cache(request.cache)


def _why_no_cache(choices: Sequence[Choice]) -> str:
    if names := _plugins(choices):
        return (
            f"an engine with the plugin {names[0]} is not kept: the key does not cover its kernels"
        )
    return f"there is no cache: ${FOLDER} names none"


def _key(request: CompileRequest, legal: bytes) -> Key:
    """The key of the engine; reads every weight."""
    return key_of(legal, request.model.absolute().parent, known_parts(request))


def _plugins(choices: Sequence[Choice]) -> list[str]:
    return [choice.operator for choice in choices if choice.plugin]


def _compile_tensorrt(
    request: CompileRequest, model: ir.Model, choices: Sequence[Choice], progress: Progress
) -> EngineRecord:
    legal, legalized = _legal(request, model, choices)
    with staging(request.folder / ENGINES, request.target.slug) as stage:
        graph, listing = stage / "graph.onnx", stage / LISTING
        graph.write_bytes(legal)
        job: Event = {
            "job": "tensorrt",
            "asked": request.asked,
            "runtime": request.target.runtime,
            "architectures": list(request.target.architectures),
            "graph": str(graph),
            "model": str(request.model.absolute()),
            "plan": str(stage / PLAN),
            "listing": str(listing),
            "plugins": _plugins(choices),
            "profiles": profile_sizes(request),
            **request.options.as_job(),
        }
        cache = _cache(request, choices)
        if cache is None:
            done = run(request, job, progress)
            kernels = kernels_from_listing(listing.read_text(encoding="utf-8"), request.asked)
        else:
            key = _key(request, legal)
            found = cache.fetch(key, stage)
            said = f"cache {'hit' if found.hit else 'miss'}: {found.reason}"
            log.info("%s: %s", request.asked, said)
            progress(Step(f"compile {request.target}", detail=said))
            done = run(request, job, progress) if found.result is None else dict(found.result)
            kernels = kernels_from_listing(listing.read_text(encoding="utf-8"), request.asked)
            if not found.hit:
                cache.keep(key, {PLAN: stage / PLAN, LISTING: listing}, done)
        record = finish(request, stage, done, "builder", kernels_of_profile(kernels, 0))
    offences = check_dtypes(kernels, model, request.precision)
    return record.model_copy(
        update={"legalized": legalized, "violations": tuple(map(str, offences))}
    )
