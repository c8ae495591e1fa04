"""A verified source -> the runner of its target; for a plan only once version, architecture and header fit."""

from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from .runner import Runner
from .session_fit import check_header, check_version, pick_gpu
from .session_source import Source
from .tensorrt_api import load_api

Records = tuple[TensorRecord, ...]


def open_runner(
    source: Source, *, graphs: int, device: int | None
) -> tuple[Runner, Records, Records]:
    """(runner, inputs, outputs). Raises what session.Session documents."""
    if source.target.is_tensorrt:
        return _open_engine(source, graphs, device)
    if graphs or device is not None:
        raise UsageError(
            f"session on {source.target}",
            found="cuda_graphs or device, which only TensorRT's targets have",
            fix="Leave them out",
        )
    from .onnxruntime_session import OnnxRuntimeRunner

    assert source.model and source.inputs is not None and source.outputs is not None
    runner = OnnxRuntimeRunner(source.model, source.target, source.outputs, source.profiles)
    return runner, source.inputs, source.outputs


def _open_engine(
    source: Source, graphs: int, device: int | None
) -> tuple[Runner, Records, Records]:
    from .cuda.engine import check_records
    from .cuda.runner import EngineRunner
    from .cuda.runtime import CudaRuntime

    api = load_api(source.target.runtime)
    check_version(source, api.version)
    ordinal = pick_gpu(source, device)
    cuda = CudaRuntime(ordinal)
    with cuda.current():
        check_header(source, api)
    runner = EngineRunner(source, api, cuda, graphs=graphs)
    try:
        inputs, outputs = runner.engine.inputs, runner.engine.outputs
        if source.inputs is not None and source.outputs is not None:
            check_records(runner.engine, source.inputs, source.outputs, source.asked)
            inputs, outputs = _ordered(source.inputs, inputs), _ordered(source.outputs, outputs)
    except BaseException:
        runner.close()
        raise
    return runner, inputs, outputs


def _ordered(records: Records, engine: Records) -> Records:
    """The manifest's records, which name axes, in the engine's order."""
    return tuple(next(r for r in records if r.name == e.name) for e in engine)
