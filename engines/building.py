"""Around one build: run the job in a child process and pass on what it says; write what came out to its place."""

import logging
from pathlib import Path

from ..core.manifest import EngineRecord
from ..core.progress import Progress, Step
from .child import Event, run_job
from .kernel import Kernel
from .layers_file import LayersFile, save_layers
from .request import CompileRequest

log = logging.getLogger(__name__)

ENGINES = "engines"  # the folder beside model.onnx
BENIGN = (  # warnings of TensorRT that say nothing about the graph
    "has Int64 binding",  # our inputs are int64 as declared
)
LEVELS = {"WARNING": logging.WARNING, "INFO": logging.INFO, "VERBOSE": logging.DEBUG}


def run(request: CompileRequest, job: Event, progress: Progress) -> Event:
    """Run `job` in a child process; steps go to `progress`, TensorRT's words to the log. Raises what run_job raises."""
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
    if any(words in event["text"] for words in BENIGN):
        return logging.DEBUG
    return LEVELS.get(event["severity"], logging.ERROR)


def finish(
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
            "options": request.options.recorded() if request.target.is_tensorrt else {},
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
        options=layers.options,
    )
