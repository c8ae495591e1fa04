"""Engines built side by side on a Ray cluster: one task each, the first error stops the others.

The engines go where compile_engine puts them, so every node must see the bundle's folder under the same path.
"""

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import BlockforgeError, BuildError, UsageError
from ..core.manifest import EngineRecord
from ..core.progress import Progress, Step
from .cache import FOLDER
from .compile import compile_engine
from .compile_many import Compiler
from .request import CompileRequest
from .serving.ray_api import LOCAL, cluster, load_ray

STAGE = "compile on Ray"
STOP_SECONDS = 20.0  # for a task to end its builder and remove what it had begun


def ray_compiler(address: str = LOCAL) -> Compiler:
    """A Compiler that spreads engines over the cluster at `address`; `local` starts one on this machine and ends it.

    It raises what compile_engine raises, UnavailableError without Ray or cluster, UsageError where a node does not see the
    folder, and BuildError for a task whose process died. UnavailableError at once where Ray is not installed.
    """
    load_ray()

    def compile_all(requests: Sequence[CompileRequest], progress: Progress) -> list[EngineRecord]:
        requests = [_settled(request) for request in requests]
        with cluster(address) as ray:
            return _spread(ray, requests, progress)

    return compile_all


def _settled(request: CompileRequest) -> CompileRequest:
    """The same request for a process that has another working folder and another environment."""
    cache = request.cache or (Path(os.environ[FOLDER]) if os.environ.get(FOLDER) else None)
    return replace(
        request,
        model=request.model.absolute(),
        folder=request.folder.absolute(),
        cache=cache and cache.absolute(),
    )


def _spread(ray: Any, requests: Sequence[CompileRequest], progress: Progress) -> list[EngineRecord]:
    task_of = ray.remote(num_cpus=1, max_retries=0)(_compile)
    tasks = {
        task_of.options(num_gpus=int(_needs_gpu(request))).remote(request): number
        for number, request in enumerate(requests)
    }
    records: dict[int, EngineRecord] = {}
    waiting = list(tasks)
    try:
        while waiting:
            progress(Step(STAGE, len(records), len(requests)))
            done, waiting = ray.wait(waiting, timeout=1.0)
            for task in done:
                request = requests[tasks[task]]
                records[tasks[task]] = _result(ray, task, request)
                progress(Step(STAGE, len(records), len(requests), request.asked))
    except BaseException:
        for task in waiting:
            ray.cancel(task)
        if waiting:
            ray.wait(waiting, num_returns=len(waiting), timeout=STOP_SECONDS)
        raise
    return [records[number] for number in range(len(requests))]


def _needs_gpu(request: CompileRequest) -> bool:
    return request.target.runtime == "tensorrt" or request.target.device == "cuda"


def _result(ray: Any, task: Any, request: CompileRequest) -> EngineRecord:
    try:
        record: EngineRecord = ray.get(task)
    except (
        BlockforgeError
    ) as error:  # Ray's class derives from ours as well; the cause is the one that was raised
        raise getattr(error, "cause", error) from None
    except ray.exceptions.RayError as error:
        words = " ".join(str(error).split())[:600]
        raise BuildError(
            request.asked, found=f"its task on Ray ended without a result: {words}"
        ) from None
    return record


def _compile(request: CompileRequest) -> EngineRecord:
    """What runs on a node."""
    if not request.model.is_file():
        raise UsageError(
            request.asked,
            found=f"node {platform.node()} does not see {request.model}",
            fix="Write the bundle to storage that every node mounts at one path, or use --ray local",
        )
    return compile_engine(request)
