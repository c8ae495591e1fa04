"""Compile one ONNX graph for one target: legalise, build in a child process, read the plan, write it down.

CompileRequest -> engines/<slug>.plan (TensorRT only), engines/<slug>.layers.json -> EngineRecord
"""

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ..core.dtypes import DType, dtype_from_onnx
from ..core.manifest import EngineRecord
from ..core.progress import Progress, Step, silent
from ..core.shapes import Profile, check_profile
from ..graph.io import load_model
from ..plugins.policy import Choice
from .child import Event, run_job
from .dtype_check import check_dtypes
from .kernel import Kernel, TensorInfo
from .layers_file import LayersFile, save_layers
from .legalize import legalize
from .listing import kernels_from_listing
from .plugin_nodes import PluginSetting, choose_plugins, mark_plugins
from .preflight import refuse
from .requirements import check_available
from .signature import input_dims
from .staging import staging
from .target import Target

log = logging.getLogger(__name__)

ENGINES = "engines"  # the folder beside model.onnx
BENIGN = (  # warnings of TensorRT that say nothing about the graph
    "has Int64 binding",  # our inputs are int64 as declared
)


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How hard and how long the builder may try.

    workspace_bytes: scratch memory a kernel may use; optimization_level: 0..5 (None: TensorRT's default for both).
    tf32: whether FP32 matrix products may round their inputs to TF32 (ten bits of mantissa), which TensorRT does unless told
    not to and which the verdict on an FP32 graph does not cover. timeout_seconds: None waits for ever.
    """

    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tf32: bool = False
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One engine to build.

    profile: the sizes of every input. folder: engines go to <folder>/engines, e.g. <bundle>/fp16. num_blocks: how
    many decoder blocks the graph has, 0 where it has none. precision: the type that its matrix products must run
    in; None takes it node by node from the graph. plugins: which blockforge operators run as plugins where the
    runtime takes them: "auto", "off" or names.
    """

    model: Path
    target: Target
    profile: Profile
    folder: Path
    num_blocks: int = 0
    precision: DType | None = None
    options: BuildOptions = BuildOptions()
    plugins: PluginSetting = "auto"

    @property
    def asked(self) -> str:
        """What an error about this request says was asked."""
        return f"engine {self.target} of {self.model.name}"


def compile_engine(request: CompileRequest, progress: Progress = silent) -> EngineRecord:
    """Build the engine and write its files under `folder`/engines; paths in the record are relative to `folder`.

    Nothing is left behind when it fails or is interrupted; an older engine of the same target stays until the new
    one is whole.
    Raises UsageError for a missing file, a profile that does not fit or a folder that cannot be written,
    ArtefactError for a damaged model, UnavailableError when the runtime or its device is missing here, and
    BuildError with the runtime's own words when it refuses the graph or dies.
    """
    check_available(request.target)
    model = load_model(request.model)
    check_profile(request.profile, input_dims(model))
    choices = choose_plugins(model, request.target, request.plugins)
    progress(Step(f"compile {request.target}", detail="graph"))
    if request.target.is_tensorrt:
        record = _compile_tensorrt(request, model, choices, progress)
    else:
        record = _compile_onnxruntime(request, model, progress)
    return record.model_copy(update={"plugins": tuple(map(_choice_line, choices))})


def _choice_line(choice: Choice) -> str:
    used = "plugin" if choice.plugin else "function body"
    return f"{choice.operator}: {used} ({choice.reason})"


def _compile_tensorrt(
    request: CompileRequest, model: ir.Model, choices: tuple[Choice, ...], progress: Progress
) -> EngineRecord:
    legal, legalized = legalize(mark_plugins(model, choices), request.target)
    refuse(legal, request.target, request.asked)
    with staging(request.folder / ENGINES, request.target.slug) as stage:
        graph, listing = stage / "graph.onnx", stage / "listing.txt"
        graph.write_bytes(ir.to_proto(legal).SerializeToString())
        job: Event = {
            "job": "tensorrt",
            "asked": request.asked,
            "runtime": request.target.runtime,
            "arch": request.target.compute_capability,
            "graph": str(graph),
            "model": str(request.model.absolute()),
            "plan": str(stage / "plan"),
            "listing": str(listing),
            "plugins": [choice.operator for choice in choices if choice.plugin],
            "profile": {n: (r.min, r.opt, r.max) for n, r in request.profile.items()},
            **dataclasses.asdict(request.options),
        }
        done = _run(request, job, progress)
        kernels = kernels_from_listing(listing.read_text(encoding="utf-8"), request.asked)
        record = _finish(request, stage, done, "builder", kernels)
    offences = check_dtypes(kernels, model, request.precision)
    return record.model_copy(
        update={"legalized": legalized, "violations": tuple(map(str, offences))}
    )


def _compile_onnxruntime(
    request: CompileRequest, model: ir.Model, progress: Progress
) -> EngineRecord:
    feeds = {
        str(value.name): (
            dtype_from_onnx(int(value.dtype or 0)).value,
            request.profile[str(value.name)].min,
        )
        for value in model.graph.inputs
    }
    with staging(request.folder / ENGINES, request.target.slug) as stage:
        nodes = stage / "nodes.json"
        job: Event = {
            "job": "onnxruntime",
            "asked": request.asked,
            "model": str(request.model.absolute()),
            "device": request.target.device,
            "feeds": feeds,
            "nodes": str(nodes),
        }
        done = _run(request, job, progress)
        done["bytes"] = request.model.stat().st_size + _external_bytes(model)
        kernels = tuple(_ran(node) for node in json.loads(nodes.read_text(encoding="utf-8")))
        return _finish(request, stage, done, "profiler", kernels)


def _ran(node: Event) -> Kernel:
    """A node that ONNX Runtime ran."""
    inputs, outputs = (
        tuple(TensorInfo("", dtype, tuple(dims)) for dtype, dims in node[side])
        for side in ("inputs", "outputs")
    )
    return Kernel(
        name=node["name"],
        type=node["type"],
        inputs=inputs,
        outputs=outputs,
        tactic=node["provider"],
        nodes=(node["name"],),
    )


def _run(request: CompileRequest, job: Event, progress: Progress) -> Event:
    stage = f"compile {request.target}"

    def hear(event: Event) -> None:
        if event["event"] == "step":
            progress(Step(stage, event["done"], event["total"], event["phase"]))
        else:
            log.log(_level(event), "%s: %s", request.target, event["text"])

    done = run_job(request.asked, job, hear, timeout_seconds=request.options.timeout_seconds)
    log.debug("%s: child used %s bytes at most", request.asked, done["peak_bytes"])
    return done


def _level(event: Event) -> int:
    """The level of something TensorRT said."""
    if event["severity"] != "WARNING":
        return logging.ERROR
    return logging.DEBUG if any(words in event["text"] for words in BENIGN) else logging.WARNING


def _finish(
    request: CompileRequest,
    stage: Path,
    done: Event,
    source: str,
    kernels: tuple[Kernel, ...],
) -> EngineRecord:
    """Move the files to their names, the plan last: a plan that exists is complete."""
    layers = LayersFile.model_validate(
        {
            "target": str(request.target),
            "runtime": done["runtime"],
            "source": source,
            "num_blocks": request.num_blocks,
            "kernels": kernels,
        }
    )
    save_layers(layers, stage / "layers")
    plan = stage / "plan"
    has_plan = plan.is_file()
    folder, slug = request.folder / ENGINES, request.target.slug
    (stage / "layers").replace(folder / f"{slug}.layers.json")
    if has_plan:
        plan.replace(folder / f"{slug}.plan")
    return EngineRecord(
        target=str(request.target),
        runtime=done["runtime"],
        path=f"{ENGINES}/{slug}.plan" if has_plan else None,
        layers=f"{ENGINES}/{slug}.layers.json",
        bytes=done["bytes"],
        build_seconds=done["seconds"],
        kernels=layers.device_kernels,
        kernels_per_block=layers.kernels_per_block,
        dtypes=layers.dtypes,
    )


def _external_bytes(model: ir.Model) -> int:
    tensors = [v.const_value for v in model.graph.initializers.values()]
    paths = {Path(t.path) for t in tensors if isinstance(t, ir.ExternalTensor)}
    return sum(path.stat().st_size for path in paths)
